// One conversation.
import { el } from "./dom.js";
import { drawFlow } from "./diagram.js";
import { card, facts, isRemoved, link, list, stateOf } from "./parts.js";
import { lasting, moment, span } from "./times.js";
import { tree } from "./tree.js";

export function record(app, found, params, width) {
  const flow = app.flows.conversations.find((each) => each.name === found.flow);
  const button = (name, label, field) => (app.allowWrite ? el("button", { type: "button", class: "small", onclick: () => app.ask(name, found, field) }, label) : null);
  return [
    card(`${found.bot} ${found.key}`, app.allowWrite ? "" : "read-only",
      ...found.damage.map((each) => el("p", { class: "warning" }, `Unreadable: ${each}`)),
      facts(["flow", found.flow], ["state", stateOf(app, found.flow, found.state)], ["revision", found.revision === null ? null : String(found.revision)],
        ["written", moment(found.written_at)], ["timer", found.deadline === null ? null : moment(found.deadline)], ["expires", found.expires_at === null ? null : moment(found.expires_at)], ["held", found.held === null ? null : el("span", {}, `for ${Math.ceil(found.held)} s more, unless it is extended, by `, el("code", {}, found.holder))],
        ["handled updates", found.handled ? `${found.handled} remembered, the last is ${found.last_handled}` : null],
        ["waiting flows", found.waiting.map(([flow, state]) => `${flow}/${state}`).join(", ")], ["unsent answers", found.unsent ? String(found.unsent) : null],
        ["expired, not handled", found.expired ? String(found.expired) : null],
        ["tags", found.tags.length ? el("span", {}, ...found.tags.flatMap((tag) => [el("a", { href: link("records", { bot: found.bot, tag }) }, tag), " "])) : null],
        ["version", el("code", {}, found.version)]),
      app.allowWrite ? el("p", { class: "actions" }, button("set_state", "Set state"), button("set_field", "Set a field"), button("clear", "Clear"), button("forget", "Forget")) : null),
    card("Data", "", tree(found.data, (name) => (app.allowWrite ? el("span", { class: "edits" },
      el("button", { type: "button", class: "quiet small", "aria-label": `Change ${name}`, onclick: () => app.ask("set_field", found, name) }, "Change"),
      el("button", { type: "button", class: "quiet small", "aria-label": `Remove ${name}`, onclick: () => app.ask("remove_field", found, name) }, "Remove")) : null))),
    Object.keys(found.profile).length ? card("Profile", "kept when the conversation ends", tree(found.profile)) : null,
    card("History", found.history.length ? `the last ${found.history.length + 1} states, the newest first` : "",
      flow && found.state !== null ? el("div", { class: "diagram" }, drawFlow(flow, { width, current: found.state, path: [...found.history, found.state],
        marks: isRemoved(app, found.flow, found.state) ? { [found.state]: "bad" } : {} })) : null,
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
