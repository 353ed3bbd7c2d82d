// The page: keeps the sections that the server sends, and renders from them.
import { act, banner, byId, el, keyed, toast } from "./dom.js";
import { ChatPane } from "./chat.js";
import { AGAIN, failures, renderTimeline } from "./events.js";
import { renderBot, renderFlow, renderRecord, renderRuns, renderTimer, currentRecord } from "./inspect.js";
import { renderTurn, tick } from "./turn.js";
import { divider, recall, remember, view } from "./layout.js";

const app = {
  sections: {},
  panes: [],
  active: null,
  chosenFlow: null,
  chosenRun: null,
  person: "",
  connected: false,
  ahead: 0,
  seen: {},
  // Repeated updates that a toast has named.
  told: new Set(),

  time() { return Date.now() / 1000 + this.ahead; },
  room(id) { return this.sections.people?.rooms.find((room) => room.id === id); },
  name(id) { return this.sections.people?.people.find((user) => user.id === id)?.name ?? String(id); },
  commands() { return this.sections.bot?.commands ?? []; },
  // A bot with turns only has neither a flow nor a record.
  hasNoFlow() {
    const { machines = [], turns = [] } = this.sections;
    return machines.length + turns.length > 0 && !machines.some((machine) => machine.flows.length);
  },

  where(place) {
    const record = currentRecord(this, place)?.record;
    return record?.flow ? `${record.flow} / ${record.state}` : null;
  },

  focus(pane) {
    if (this.active === pane) return;
    this.active = pane;
    this.chosenFlow = null;
    this.render();
  },

  open(room) {
    const found = this.room(room);
    const user = found.members.includes(this.active.place.user) && found.type !== "private" ? this.active.place.user : found.members[0];
    this.active.place = { room, user, thread: null };
    this.chosenFlow = null;
    this.render();
    byId("rooms").querySelector(`[data-room="${room}"]`)?.scrollIntoView({ inline: "nearest", block: "nearest" });
    this.active.input.focus();
  },

  toggleBeside(pane) {
    if (this.panes.length > 1) {
      this.panes = this.panes.filter((each) => each !== pane);
      this.active = this.panes[0];
    } else {
      const taken = this.panes.map((each) => each.place.room);
      const free = this.sections.people.rooms.find((room) => !taken.includes(room.id)) ?? this.sections.people.rooms[0];
      this.panes.push(new ChatPane(this, { room: free.id, user: free.members[0], thread: null }));
      this.active = this.panes[1];
    }
    this.render();
  },

  render() {
    const { people } = this.sections;
    if (!people) return;
    if (!this.panes.length) {
      const first = people.rooms[0];
      const places = (recall("panes") ?? []).filter((place) => this.room(place.room)?.members.includes(place.user));
      if (!places.length) places.push({ room: first.id, user: first.members[0], thread: null });
      this.panes = places.map((place) => new ChatPane(this, place));
      this.active = this.panes[0];
    }
    remember("panes", this.panes.map((pane) => pane.place));
    this.failures = failures(this);
    const open = this.panes.map((pane) => pane.place.room);
    for (const id of open) this.seen[id] = this.last(id);
    keyed(byId("rooms"), people.rooms.map((room) => ({ ...room, on: open.includes(room.id), fresh: this.last(room.id) !== (this.seen[room.id] ?? 0), topics: 0 })), (room) => room.id,
      (room) => el("button", { type: "button", class: `room${room.fresh ? " fresh" : ""}`, "aria-pressed": String(room.on), "data-room": room.id, onclick: () => this.open(room.id) },
        el("span", { class: `face ${room.type === "private" ? "" : "many"}`, "aria-hidden": "true" }, room.title.slice(0, 1).toUpperCase()), el("span", { class: "title" }, room.title), room.fresh ? el("span", { class: "hidden" }, " (new)") : null));
    const box = byId("panes");
    const nodes = this.panes.map((pane) => pane.node);
    if (nodes.length !== box.children.length || nodes.some((node, at) => node !== box.children[at])) box.replaceChildren(...nodes);
    document.body.classList.toggle("two", this.panes.length > 1);
    for (const pane of this.panes) {
      pane.node.classList.toggle("active", this.panes.length > 1 && pane === this.active);
      pane.render();
    }
    const now = currentRecord(this, this.active.place);
    renderBot(this);
    renderTimer(this, now);
    renderFlow(this, now);
    renderRecord(this, now);
    renderRuns(this);
    renderTurn(this);
    renderTimeline(this);
    byId("view-where").textContent = now?.record?.state ?? "";
  },

  last(id) {
    const messages = this.sections[`room ${id}`]?.messages ?? [];
    return messages.length ? messages[messages.length - 1].id : 0;
  },
};

function listen() {
  const events = new EventSource("/events");
  events.onopen = () => { app.connected = true; banner(); };
  events.onmessage = (event) => {
    const { now, sections } = JSON.parse(event.data);
    app.ahead = now - Date.now() / 1000;
    const notice = sections.notice;
    const flow = currentRecord(app, app.active?.place ?? {})?.record?.flow;
    Object.assign(app.sections, sections);
    if (sections.timeline) {
      const kept = new Set(sections.timeline.map((n) => `event ${n}`));
      for (const name of Object.keys(app.sections)) if (name.startsWith("event ") && !kept.has(name)) delete app.sections[name];
    }
    if (currentRecord(app, app.active?.place ?? {})?.record?.flow !== flow) app.chosenFlow = null;
    app.render();
    if (notice && notice.n !== app.notice && app.ready) toast(notice.text, notice.alert ? "alert" : "");
    app.notice = notice?.n ?? app.notice;
    for (const [name, item] of Object.entries(sections)) {
      if (!name.startsWith("event ") || !item.duplicate || app.told.has(name)) continue;
      app.told.add(name);
      if (app.ready) toast(`“${item.title}”: ${AGAIN[item.duplicate]}.`);
    }
    if (!app.ready && matchMedia("(min-width: 720px)").matches) app.active?.input.focus();
    app.ready = true;
  };
  events.onerror = () => {
    app.connected = false;
    renderBot(app);
    banner("The playground has stopped. Start it again in the terminal and open its new link; the conversation continues.");
    if (events.readyState === EventSource.CLOSED) setTimeout(listen, 2000);
  };
}

for (const name of ["chat", "state"]) byId(`view-${name}`).addEventListener("click", () => { view(name); app.render(); });
for (const [from, to] of [["view-chat", "view-state"], ["view-state", "view-chat"]]) {
  byId(from).addEventListener("keydown", (event) => {
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") { byId(to).focus(); byId(to).click(); }
  });
}
byId("event-filter").addEventListener("change", (event) => { app.person = event.target.value; app.render(); });
byId("restart").addEventListener("click", () => act("restart"));
const adding = byId("adding");
byId("add").addEventListener("click", () => { byId("adding-name").value = ""; adding.showModal(); });
async function add(kind) {
  const name = byId("adding-name").value.trim() || (kind === "person" ? "Carol" : "Group");
  adding.close();
  const made = await act(`add_${kind}`, { name });
  if (made) { app.opening = made.room; for (let tries = 0; tries < 50 && !app.room(made.room); tries++) await new Promise((go) => setTimeout(go, 20)); if (app.room(made.room)) app.open(made.room); }
}
for (const button of adding.querySelectorAll("button[type=button]")) button.addEventListener("click", () => add(button.value));
byId("adding-name").addEventListener("keydown", (event) => { if (event.key === "Enter") { event.preventDefault(); add("person"); } });
divider();
const resized = new ResizeObserver(() => app.render());
for (const id of ["diagram", "run-diagram"]) resized.observe(byId(id));
setInterval(() => { if (app.active) { renderTimer(app, currentRecord(app, app.active.place)); tick(app); } }, 200);
document.title = "Stepwell playground";
listen();
