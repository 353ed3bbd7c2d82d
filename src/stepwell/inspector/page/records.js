// Conversations: the list, and one of them.
import { drawFlow } from "./diagram.js";
import { el } from "./dom.js";
import { area, choice, input, valueFields } from "./fields.js";
import { ages, field, select } from "./filters.js";
import { pager } from "./pager.js";
import { card, facts, isRemoved, link, list, nothing, sameChat, stateOf, table } from "./parts.js";
import { status } from "./status.js";
import { lasting, moment, span } from "./times.js";
import { tree } from "./tree.js";
import { zoomable } from "./zoom.js";

const COLUMNS = [{ label: "key" }, { label: "flow" }, { label: "state" }, { label: "written" }, { label: "timer" }, { label: "tags", class: "fill" }];

export const records = {
  name: "records", title: "Conversations", go: "c", source: "records",
  show: (app, found, params) => [card("Conversations", found.bot, found.rows.length
    ? table(COLUMNS, found.rows.map((row) => ({ id: row.key, cells: [
      el("a", { href: link("record", { bot: row.bot, key: row.key }) }, row.key), row.flow,
      row.damage.length ? status("unreadable") : stateOf(app, row.flow, row.state), moment(row.written_at), moment(row.deadline), row.tags.join(" ")] })))
    : nothing("No conversation matches.", "Reset the filter to see all of them."), pager(app, found, "records", params, "record"))],
  filters: (params, found) => [select("bot", "Bot", found.bots.map((bot) => [bot, bot]), found.bot), field("flow", "Flow", params.flow), field("state", "State", params.state), field("key", "Key", params.key),
    field("user", "User", params.user, { inputmode: "numeric" }), field("chat", "Chat", params.chat, { inputmode: "numeric" }), field("tag", "Tag", params.tag), field("field", "Data field", params.field, { placeholder: "to.city=Rome" }),
    select("older", "Not written for", ages(params.older), params.older), select("damaged", "Records", [["", "all"], ["1", "unreadable only"]], params.damaged)],
  searches: (text) => [
    ...(/^-?\d+$/.test(text) ? [{ label: `Conversations of user ${text}`, href: link("records", { user: text }) }, { label: `Conversations in chat ${text}`, href: link("records", { chat: text }) }] : []),
    { label: `Conversation with the key ${text}`, href: link("records", { key: text }) }],
};

function showRecord(app, found, params, width) {
  const flow = app.flows.conversations.find((each) => each.name === found.flow);
  const button = (name, label, kind = "small") => app.button(name, label, found, kind);
  return [
    card(`${found.bot} ${found.key}`, app.allowWrite ? "" : "read-only",
      ...found.damage.map((each) => el("p", { class: "warning" }, `Unreadable: ${each}`)),
      facts(["flow", found.flow], ["state", stateOf(app, found.flow, found.state)], ["revision", found.revision === null ? null : String(found.revision)],
        ["written", moment(found.written_at)], ["timer", found.deadline === null ? null : moment(found.deadline)], ["expires", found.expires_at === null ? null : moment(found.expires_at)], ["held", found.held === null ? null : el("span", {}, `for ${Math.ceil(found.held)} s more, unless it is extended, by `, el("code", {}, found.holder))],
        ["handled updates", found.handled ? `${found.handled} remembered, the last is ${found.last_handled}` : null],
        ["waiting flows", found.waiting.map(([flow, state]) => `${flow}/${state}`).join(", ")], ["unsent answers", found.unsent ? String(found.unsent) : null],
        ["expired, not handled", found.expired ? String(found.expired) : null],
        ["tags", found.tags.length ? el("span", {}, ...found.tags.flatMap((tag) => [el("a", { href: link("records", { bot: found.bot, tag }) }, tag), " "])) : null],
        ["version", el("code", {}, found.version), "version"],
        ["of the same chat", sameChat(found), "wide"]),
      app.allowWrite ? el("p", { class: "actions" }, button("reply", "Reply to the user"), button("set_state", "Set state"), button("set_field", "Set a field"), button("clear", "Clear", "small danger apart"), button("forget", "Forget", "small danger")) : null),
    card("Data", "", tree(found.data, (name) => (app.can.has("set_field") ? el("span", { class: "edits" },
      el("button", { type: "button", class: "quiet small", "aria-label": `Change ${name}`, onclick: () => app.ask("set_field", found, name) }, "Change"),
      el("button", { type: "button", class: "quiet small", "aria-label": `Remove ${name}`, onclick: () => app.ask("remove_field", found, name) }, "Remove")) : null))),
    Object.keys(found.profile).length ? card("Profile", "kept when the conversation ends", tree(found.profile)) : null,
    card("History", found.history.length ? `the last ${found.history.length + 1} states, the newest first` : "",
      flow && found.state !== null ? zoomable(flow.name, drawFlow(flow, { width, current: found.state, path: [...found.history, found.state],
        marks: isRemoved(app, found.flow, found.state) ? { [found.state]: "bad" } : {} }), width) : null,
      list(["state", "entered", "stayed"], steps(app, found), "No state.")),
  ].filter(Boolean);
}

// The present state and the previous ones, each with the time until the next one.
function steps(app, found) {
  if (found.flow === null) return [];
  const states = [...found.history, found.state], at = found.entered_at;
  return states.map((state, index) => [
    index === states.length - 1 ? el("b", { "aria-current": "step" }, stateOf(app, found.flow, state)) : stateOf(app, found.flow, state),
    moment(at[index]), stayed(at[index], at[index + 1])]).toReversed();
}

function stayed(entered, left) {
  if (entered === null || left === null) return null;
  return left === undefined ? lasting(entered) : span(left - entered);
}

const forms = {
  set_state: (app, found) => {
    const flow = app.flows.conversations.find((each) => each.name === found.flow);
    const note = el("p", { class: "note", role: "status" });
    const box = el("label", { class: "check" }, el("input", { type: "checkbox", name: "timer", value: "1", checked: true }), el("span", {}, "Start its timer"));
    // Says before what the timer of the chosen state does.
    const tell = (state) => {
      const timeout = flow?.timeouts[state];
      box.hidden = !timeout;
      note.textContent = timeout ? `${state} has a timer: after ${span(timeout.seconds)} the conversation ${timeout.to ? `moves to ${timeout.to}` : "ends, or its function is called"}.` : "No timer starts.";
    };
    const states = flow ? choice("state", "State", flow.states, found.state) : input("state", "State", found.state ?? "");
    states.querySelector("select, input").onchange = (event) => tell(event.target.value);
    tell(flow?.states.includes(found.state) ? found.state : flow?.states[0]);
    return {
      title: "Set state", main: "Set state", fields: [input("flow", "Flow", found.flow ?? ""), states, note, box], done: "The state was set.",
      body: ({ timer, ...given }) => ({ ...given, timer: timer === "1" && Boolean(flow?.timeouts[given.state]) && given.flow === flow.name }),
    };
  },
  reply: (app, found) => ({ title: "Reply to the user", main: "Send", note: "The bot sends it, after the answers that are not sent yet. The conversation stays in its state.", fields: [area("text", "Message", { autofocus: true, maxlength: "20000" })], done: "The reply is stored, and the bot sends it." }),
  set_field: (app, found, name) => ({ title: name === undefined ? "Set a field" : `Change ${name}`, main: "Set", note: "The value is JSON, or else a text.", done: "The field was set.", ...valueFields(found.data, name) }),
  remove_field: (app, found, name) => ({ title: `Remove ${name}?`, main: "Remove", danger: true, fields: [el("input", { name: "field", type: "hidden", value: name })], done: "The field was removed." }),
  clear: (app, found) => ({ title: "Clear this conversation?", main: "Clear", danger: true, confirm: found.key, note: "The conversation ends and its data is deleted. The profile is kept.", fields: [], done: "The conversation was cleared.", leave: "records" }),
  forget: (app, found) => ({ title: "Forget this record?", main: "Forget", danger: true, confirm: found.key, note: "The record is deleted with its profile and all traces.", fields: [], done: "The record was deleted.", leave: "records" }),
};

export const record = { name: "record", title: "Conversation", of: "records", source: "record", titleOf: (params) => `${params.bot} ${params.key}`, show: showRecord, forms };
