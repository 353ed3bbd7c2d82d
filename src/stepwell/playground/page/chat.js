// One chat pane: the messages, the bot's keyboard and the input box of one user.
import { copyTest, replayChat, startOver } from "./dialogs.js";
import { act, el, keyed } from "./dom.js";
import { fileButton, sendFiles } from "./pictures.js";
import { formatted, richMessage } from "./text.js";

// The pictures of an album are one bubble, as in Telegram.
function albums(messages) {
  const shown = [];
  for (const message of messages) {
    const last = shown[shown.length - 1];
    if (message.album && last?.album === message.album) {
      last.pictures.push({ id: message.id, picture: message.picture, media: message.media });
      if (!last.text) Object.assign(last, { text: message.text, entities: message.entities });
    } else shown.push({ ...message, pictures: message.media === "photo" ? [{ id: message.id, picture: message.picture, media: message.media }] : [] });
  }
  return shown;
}

export class ChatPane {
  constructor(app, place) {
    this.app = app;
    this.place = place;
    this.chosen = -1;
    this.id = `pane${ChatPane.count = (ChatPane.count ?? 0) + 1}`;
    this.title = el("h2");
    this.as = el("select", { "aria-label": "Write as", onchange: () => this.move({ user: Number(this.as.value) }) });
    this.topic = el("select", { "aria-label": "Topic", onchange: () => this.move({ thread: Number(this.topic.value) || null }) });
    this.newTopic = el("button", { type: "button", class: "quiet small", onclick: () => this.openTopic() }, "+ Topic");
    this.beside = el("button", { type: "button", class: "quiet small beside", onclick: () => app.toggleBeside(this) });
    this.messages = el("ol", { class: "messages", "aria-label": "Messages", tabindex: "0", onscroll: () => { if (this.low()) this.newer.hidden = true; } });
    this.newer = el("button", { type: "button", class: "newer small", hidden: true, onclick: () => this.down() }, "↓ New messages");
    // The position in each chat, and the place among the sent texts that Up and Down recall.
    this.positions = new Map();
    this.recalled = -1;
    this.keyboard = el("div", { class: "keyboard", role: "group", "aria-label": "The bot's keyboard" });
    this.menu = el("ul", { class: "commands", role: "listbox", id: `${this.id}-commands`, "aria-label": "Commands", hidden: true });
    this.count = el("span", { class: "hidden", role: "status" });
    this.input = el("textarea", {
      rows: "1", placeholder: "Message, or / for commands", "aria-label": "Message", maxlength: "4096",
      "aria-autocomplete": "list", "aria-controls": `${this.id}-commands`,
      oninput: () => this.complete(), onkeydown: (event) => this.key(event), onblur: () => this.close(),
      onpaste: (event) => { const { files } = event.clipboardData; if (files.length) { event.preventDefault(); this.files(files); } },
    });
    // The id of the message that is being edited.
    this.edited = null;
    this.editing = el("p", { class: "editing", hidden: true }, el("span", {}, "Editing a message"), el("button", { type: "button", class: "quiet small", onclick: () => { this.edit(null); this.input.focus(); } }, "Cancel"));
    // Not built again with each change, because a click on the button ends at the element where it began.
    this.draftText = el("div", { class: "bubble" });
    this.stop = el("button", { type: "button", class: "small stop", title: "Stop further drafts, as the button in Telegram does", onclick: (event) => { act("stop", this.target); this.refocus(event); } }, "■ Stop");
    this.draft = el("li", { class: "theirs draft", "aria-label": "The bot is writing" }, this.draftText, this.stop);
    const tool = (name, title, work) => el("button", { type: "button", class: "quiet small", title, onclick: (event) => { work(event); this.refocus(event); } }, name);
    this.node = el("section", { class: "pane", "aria-label": "Chat", onfocusin: () => app.focus(this) },
      el("header", {}, this.title, this.as, this.topic, this.newTopic, el("span", { class: "space" }), this.beside),
      this.messages, this.newer,
      el("form", { class: "write", onsubmit: (event) => { event.preventDefault(); this.send(); } },
        this.keyboard, this.menu, this.count, this.editing,
        el("div", { class: "line" }, ...fileButton((files) => this.files(files)), this.input, el("button", { class: "main", type: "submit" }, "Send")),
        el("div", { class: "tools" },
          tool("Repeat last update", "Deliver the last update again, as Telegram does when an acknowledgement was lost", () => act("repeat")),
          tool("Send 10 messages", "Send ten messages at once: the text above, or “Message 1” to “Message 10”", () => this.burst()),
          tool("Replay chat", "Send this chat again from its start, for example after a change of the bot", (event) => replayChat(this, event.currentTarget)),
          tool("Start over", "Delete the records and all messages and events of this chat", () => startOver(this)),
          tool("Copy as test", "Copy this chat as a pytest test", () => copyTest(this)))));
  }

  // After a click, but not after a key press, because the keyboard may press the same button again.
  refocus(event) {
    if (event.detail > 0 && matchMedia("(min-width: 720px)").matches) this.input.focus();
  }

  low() {
    return this.messages.scrollHeight - this.messages.scrollTop - this.messages.clientHeight < 60;
  }

  down() {
    this.messages.scrollTop = this.messages.scrollHeight;
    this.newer.hidden = true;
    this.input.focus();
  }

  get target() {
    return { room: this.place.room, user: this.place.user, thread: this.place.thread ?? null };
  }

  move(change) {
    Object.assign(this.place, change);
    this.app.render();
  }

  async send() {
    const text = this.input.value;
    this.close();
    if (!text.trim()) return;
    this.input.value = "";
    this.recalled = -1;
    this.grow();
    this.input.focus();
    const message = this.edited;
    this.edited = null;
    this.editing.hidden = true;
    const sent = message === null ? await act("send", { ...this.target, text }) : await act("edit_message", { ...this.target, message, text });
    if (!sent && !this.input.value) this.input.value = text;
  }

  // The text in the box is the caption.
  async files(files) {
    const text = this.input.value.trim();
    if (await sendFiles(this.target, files, text)) this.edit(null);
    this.input.focus();
  }

  // Puts a message into the box; without one, empties the box.
  edit(item) {
    this.edited = item?.id ?? null;
    this.editing.hidden = !item;
    this.input.value = item?.text ?? "";
    this.grow();
    if (item) this.input.focus();
  }

  async burst() {
    const text = this.input.value.trim();
    if (await act("burst", { ...this.target, ...(text ? { text } : {}) })) this.input.value = "";
  }

  async openTopic() {
    const room = this.app.room(this.place.room);
    const made = await act("add_topic", { ...this.target, name: `Topic ${room.topics.length + 1}` });
    if (made) this.move({ thread: made.thread });
  }

  // Commands

  complete() {
    this.grow();
    const typed = /^\/(\w*)$/.exec(this.input.value);
    const found = typed ? this.app.commands().filter((each) => each.command.startsWith(typed[1].toLowerCase())) : [];
    this.found = found;
    this.chosen = found.length ? 0 : -1;
    this.menu.hidden = !found.length;
    this.count.textContent = found.length ? `${found.length} ${found.length === 1 ? "command" : "commands"}; use the arrow keys and Tab` : "";
    this.menu.replaceChildren(...found.map((each, at) => el("li", {
      role: "option", id: `${this.id}-command${at}`, onmousedown: (event) => { event.preventDefault(); this.take(at); },
    }, el("b", {}, `/${each.command}`), " ", el("span", {}, each.description))));
    this.mark();
  }

  mark() {
    [...this.menu.children].forEach((node, at) => node.setAttribute("aria-selected", String(at === this.chosen)));
    if (this.chosen >= 0) {
      this.input.setAttribute("aria-activedescendant", `${this.id}-command${this.chosen}`);
      this.menu.children[this.chosen].scrollIntoView({ block: "nearest" });
    } else this.input.removeAttribute("aria-activedescendant");
  }

  take(at) {
    this.input.value = `/${this.found[at].command}`;
    this.close();
    this.input.focus();
  }

  close() {
    this.menu.hidden = true;
    this.count.textContent = "";
    this.input.removeAttribute("aria-activedescendant");
  }

  key(event) {
    const open = !this.menu.hidden;
    if (open && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
      event.preventDefault();
      this.chosen = (this.chosen + (event.key === "ArrowDown" ? 1 : this.found.length - 1)) % this.found.length;
      this.mark();
    } else if (open && event.key === "Escape") {
      this.close();
    } else if (!open && this.edited !== null && event.key === "Escape") {
      this.edit(null);
    } else if (open && event.key === "Tab" && !event.shiftKey) {
      event.preventDefault();
      this.take(this.chosen);
    } else if (!open && (event.key === "ArrowUp" || event.key === "ArrowDown")) {
      if (this.recall(event.key === "ArrowUp" ? 1 : -1)) event.preventDefault();
    } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      if (open && this.input.value !== `/${this.found[this.chosen].command}`) this.take(this.chosen);
      this.send();
    }
  }

  // The texts that this user has sent here, the newest first.
  sent() {
    const said = this.app.sections[`room ${this.place.room}`]?.messages ?? [];
    const texts = said.filter((message) => message.from.id === this.place.user && message.text).map((message) => message.text).reverse();
    return texts.filter((text, at) => text !== texts[at - 1]);
  }

  recall(step) {
    const texts = this.sent();
    const typed = this.recalled < 0 ? this.input.value : texts[this.recalled];
    if (this.input.value !== (this.recalled < 0 ? "" : typed)) return false;
    const at = this.recalled + step;
    if (at < -1 || at >= texts.length) return false;
    this.recalled = at;
    this.input.value = at < 0 ? "" : texts[at];
    this.grow();
    this.input.setSelectionRange(this.input.value.length, this.input.value.length);
    return true;
  }

  grow() {
    this.input.rows = Math.min(5, this.input.value.split("\n").length);
  }

  // Rendering

  render() {
    const { app, place } = this;
    const room = app.room(place.room);
    if (!room) return;
    const group = room.type !== "private";
    this.title.textContent = room.title;
    this.node.classList.toggle("group", group);
    this.as.hidden = !group;
    this.newTopic.hidden = !group;
    this.topic.hidden = !group || !room.topics.length;
    const options = (select, items, value) => {
      select.replaceChildren(...items.map(([id, name]) => el("option", { value: id }, name)));
      select.value = String(value);
    };
    if (group) {
      options(this.as, room.members.map((id) => [id, `as ${app.name(id)}`]), place.user);
      options(this.topic, [[0, "General"], ...room.topics.map((topic) => [topic.id, topic.name])], place.thread ?? 0);
    }
    this.beside.textContent = app.panes.length > 1 ? "Close" : "Open second chat";
    const said = app.sections[`room ${place.room}`] ?? { messages: [], keyboard: null, drafts: [] };
    const here = albums(said.messages.filter((message) => !room.topics.length || (message.thread ?? null) === (place.thread ?? null)));
    const draft = said.drafts.find((each) => each.thread === (place.thread ?? null)) ?? null;
    const { messages } = this;
    const at = `${place.room}/${place.thread ?? 0}`;
    const low = this.low();
    if (at !== this.at && this.at) { this.positions.set(this.at, low ? null : messages.scrollTop); if (this.edited !== null) this.edit(null); }
    // Before the messages, because it changes the height of their box.
    keyed(this.keyboard, (said.keyboard ?? []).map((row, at) => ({ at, row, place: this.target })), (item) => item.at,
      ({ at, row }) => el("div", { class: "row" }, ...row.map((button, column) => this.button(button, () => act("press", { ...this.target, row: at, column })))));
    const newest = here[here.length - 1];
    this.write(draft);
    const shown = here.length || draft ? here.map((message) => ({ ...message, failure: app.failures.get(`${place.room}/${message.id}`) ?? null, mine: message.from.id === place.user, group, place: this.target })) : [{ id: "welcome", commands: app.commands(), where: app.where(place), agent: app.hasNoFlow() }];
    keyed(messages, draft ? [...shown, { id: "draft" }] : shown,
      (item) => item.id, (item, old) => (item.id === "welcome" ? this.welcome(item) : item.id === "draft" ? this.draft : this.message(item, old)));
    if (at !== this.at) {
      messages.scrollTop = here.length || draft ? this.positions.get(at) ?? messages.scrollHeight : 0;
      this.newer.hidden = true;
      this.recalled = -1;
    } else if (newest?.id !== this.last && !low && newest?.from.id !== place.user) this.newer.hidden = !newest;
    else if (low || newest?.id !== this.last) messages.scrollTop = here.length || draft ? messages.scrollHeight : 0;
    this.at = at;
    this.last = newest?.id;
  }

  button(button, work) {
    const text = typeof button === "string" ? button : button.text;
    return el("button", { type: "button", class: "key", onclick: (event) => { work(); this.refocus(event); } }, text, button.url ? " ↗" : null);
  }

  // What the bot is writing; nothing while it thinks.
  write(draft) {
    const as = JSON.stringify(draft);
    if (this.drafted === as) return;
    this.drafted = as;
    if (!draft) return;
    this.stop.hidden = !draft.can_stop;
    const said = draft.rich ? richMessage(draft.rich) : draft.text ? el("p", {}, ...formatted(draft.text, draft.entities)) : el("p", { class: "thinking" }, "Thinking…");
    this.draftText.replaceChildren(el("span", { class: "who" }, this.app.sections.people?.bot.name), said);
  }

  message(item, old) {
    if (item.service) return el("li", { class: "service" }, `${item.from.name} ${item.service}`);
    const bubble = this.bubble(item);
    const rest = JSON.stringify([item.buttons, item.failure, item.mine, item.place]);
    // A message that is edited keeps its buttons, so that they can be pressed meanwhile.
    if (old?.rest === rest) { old.querySelector(".bubble").replaceWith(bubble); return old; }
    const rows = (item.buttons ?? []).map((row, at) => el("div", { class: "row" },
      ...row.map((button, column) => this.button(button, () => act("press", { ...this.target, message: item.id, row: at, column })))));
    const node = el("li", { class: item.from.bot ? "theirs" : item.mine ? "mine" : "theirs other", "data-message": item.id }, bubble,
      item.failure ? el("p", { class: "failure", title: "The events show the traceback" }, "✕ ", item.failure) : null, rows.length ? el("div", { class: "inline" }, ...rows) : null);
    node.rest = rest;
    return node;
  }

  bubble(item) {
    const time = new Date(item.date * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
    const pictures = item.pictures.filter((each) => each.picture);
    const missing = item.pictures.length ? item.pictures.length - pictures.length : 0;
    return el("div", { class: "bubble" },
      item.group || item.from.bot ? el("span", { class: "who" }, item.from.name) : null,
      item.reply ? el("blockquote", {}, item.reply) : null,
      pictures.length ? el("div", { class: `pictures${pictures.length > 1 ? " several" : ""}` }, ...pictures.map((each) => el("img", { src: `picture/${each.picture}`, alt: "Picture", loading: "lazy" }))) : null,
      item.media && (missing || !item.pictures.length) ? el("span", { class: "media" }, missing > 1 ? `${missing} photos` : item.media) : null,
      item.rich ? richMessage(item.rich, (data) => act("press", { ...this.target, message: item.id, data })) : el("p", {}, ...formatted(item.text, item.entities)),
      el("div", { class: "below" },
        item.mine && item.text ? el("button", { type: "button", class: "edit", "aria-label": "Edit this message", title: "Edit this message", onclick: () => this.edit(item) }, "Edit") : null,
        el("time", {}, item.edited ? `edited ${time}` : time)));
  }

  welcome({ commands, where, agent }) {
    const try_ = commands.filter((each) => each.command !== "cancel").slice(0, 4);
    return el("li", { class: "welcome" },
      where ? el("p", { class: "resumed" }, el("b", {}, "You have an open conversation: "), el("code", {}, where), ". Send a message to continue.") : null,
      el("h3", {}, "Chat with your bot. Everything stays on this machine."),
      el("ol", {},
        el("li", {}, "Send a message", try_.length ? ", or start with: " : ".", ...try_.map((each) => el("button", { type: "button", class: "chip", onclick: (event) => { act("send", { ...this.target, text: `/${each.command}` }); this.refocus(event); } }, `/${each.command}`))),
        el("li", {}, agent ? "Watch the turn: the messages that it answers, its tools and its questions." : "Watch the state change: the highlighted box is the current state, the record below is what is stored."),
        el("li", {}, "Try to break it: restart the bot, repeat an update, send ten messages at once. Then step back, or replay the chat.")));
  }
}
