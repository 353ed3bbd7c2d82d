// Conversations with an agent: the list, and one of them with its turn.
import { bar } from "./chosen.js";
import { el } from "./dom.js";
import { area, choice } from "./fields.js";
import { field, select } from "./filters.js";
import { pager } from "./pager.js";
import { card, counted, facts, link, list, nothing, pick, pickAll, sameChat, table } from "./parts.js";
import { status } from "./status.js";
import { lasting, moment } from "./times.js";

const STATES = ["running", "asking", "collecting", "idle"];
const COLUMNS = [{ label: "conversation" }, { label: "bot" }, { label: "state" }, { label: "since" }, { label: "waiting", class: "right" }, { label: "failed", class: "right" }, { label: "asks", class: "fill" }];
const idOf = (row) => `conversation ${row.bot} ${row.key}`;
const stateOf = (row) => status(row.stopping ? `${row.state}, stopping` : row.state, row.state);

export const turns = {
  name: "turns", title: "Turns", go: "t", source: "turns",
  show: (app, found, params) => {
    const failed = found.rows.filter((row) => row.failed).map((row) => [idOf(row), { bot: row.bot, key: row.key, turn: null }]);
    return [
      bar(app, "conversation", failed, (rows) => [app.button("retry_turns", "Retry", { rows }), app.button("drop_turns", "Drop", { rows }, "small danger apart")]),
      card("Turns", params.failed ? "with failed turns" : "", found.rows.length ? table([...(app.allowWrite ? [{ label: "", class: "pick", head: pickAll(app, failed.map(([id]) => id)) }] : []), ...COLUMNS], found.rows.map((row) => ({ id: idOf(row), class: app.chosen.has(idOf(row)) ? "chosen" : undefined, cells: [
        ...(app.allowWrite ? [row.failed ? pick(app, idOf(row), row.key) : el("span", {})] : []), el("a", { href: link("turn", { bot: row.bot, key: row.key }) }, row.key), row.bot, stateOf(row), moment(row.since),
        row.waiting ? String(row.waiting) : null, row.failed ? el("b", { class: "bad" }, String(row.failed)) : null, row.damage ?? row.asks] })))
        : nothing("No conversation matches.", "Conversations with an agent appear here with their first message."), pager(app, found, "turns", params, "conversation")),
    ].filter(Boolean);
  },
  filters: (params) => [field("bot", "Bot", params.bot), select("state", "State", [["", "any"], ...STATES.map((each) => [each, each])], params.state), select("failed", "Turns", [["", "all"], ["1", "failed only"]], params.failed)],
};

function messages(rows, empty) {
  return rows.length ? list(["when", "user", "text"], rows.map((row) => [moment(row.at), row.user === null ? null : String(row.user), el("span", { class: "said" }, row.text || "(no text)")]), "") : empty ? el("p", { class: "empty" }, empty) : null;
}

function showTurn(app, found, params) {
  if (found.damage) return [card(`${found.bot} ${found.key}`, "", el("p", { class: "notice bad" }, `Unreadable: ${found.damage}`))];
  const open = found.questions.filter((each) => !each.answered);
  return [
    card(`${found.bot} ${found.key}`, app.allowWrite ? "" : "read-only",
      facts(["state", stateOf(found)], ["turn", found.turn ? el("code", {}, found.turn) : null], ["attempt", found.turn ? String(found.attempt) : null], ["since", found.since ? moment(found.since) : null],
        ["turns of", found.name], ["complete", found.shuts_at && found.waiting.length ? moment(found.shuts_at) : null], ["unsent calls", found.unsent ? String(found.unsent) : null], ["sent again", found.send_at ? moment(found.send_at) : null],
        ["last write", moment(found.written_at)], ["of the same chat", sameChat(found), "wide"]),
      el("p", { class: "actions" }, app.button("reply_turn", "Reply to the user", found, "small"), found.turn && !found.stopping ? app.button("stop_turn", "Stop the turn", found, "small danger apart") : null)),
    open.length ? card("Questions", "wait for an answer", ...open.map((each) => el("div", { class: "wait", "data-key": `question ${each.number}` },
      el("p", { class: "said" }, each.text), facts(["by", each.approvers ? each.approvers.join(", ") : "anybody in the chat"], ["until", each.deadline ? moment(each.deadline) : null], ["answer", each.reply ? "a message" : each.options.join(" / ")]),
      el("p", { class: "actions" }, app.button("decide", "Answer", found, "small main", each.number))))) : null,
    found.failed.length ? card("Failed turns", "kept until they are retried or dropped", ...found.failed.toReversed().map((each) => el("div", { class: "wait", "data-key": each.id },
      el("p", { class: "notice bad" }, each.error), facts(["ended", moment(each.ended)], ["attempts", String(each.attempts)], ["messages", el("span", { class: "said" }, each.texts.join("\n")), "wide"]),
      el("p", { class: "actions" }, app.button("retry_turns", "Retry", { rows: [{ bot: found.bot, key: found.key, turn: each.id }] }, "small main"), app.button("drop_turns", "Drop", { rows: [{ bot: found.bot, key: found.key, turn: each.id }] }, "small danger apart"))))) : null,
    found.turn ? card("Turn", `attempt ${found.attempt}`, messages(found.messages),
      found.tools.length ? list(["tool", "if interrupted", "outcome"], found.tools.map((each) => [each.name, each.replay === "never" ? "does not run again" : "runs again", each.outcome ? status(each.outcome, each.outcome === "returned" ? "finished" : "failed") : status("runs, or its outcome is unknown", "running")]), "") : null,
      found.text ? el("div", {}, el("h3", {}, "Written so far"), el("p", { class: "said live-text", "aria-live": "off" }, found.text)) : null) : null,
    found.waiting.length ? card("Waiting messages", "for the next turn", messages(found.waiting)) : null,
    found.history.length ? card("History", "the last entries, the newest first", list(["", "entry"], found.history.map((each) => [each.role ?? String(each.number), el("span", { class: "said" }, each.text)]), "")) : null,
  ].filter(Boolean);
}

const OUTCOMES = { stopped: "The turn stops.", accepted: "The answer was accepted. A worker continues the turn.", "answered before": "Too late: the question was answered before.", "too late": "Too late: the turn has ended, or the time of the question is over.", "not allowed": "Only its approvers may answer. Choose one of them.", stored: "The reply is stored, and a worker sends it." };
const told = (answer) => OUTCOMES[answer.outcome];
const many = (found, noun) => counted(found.rows.length, noun);
const doneOf = (verb, noun) => (answer) => `${verb} ${counted(answer.done, noun)}${answer.late ? `; ${answer.late} were gone` : ""}.`;

const forms = {
  stop_turn: (app, found) => ({ title: "Stop this turn?", main: "Stop the turn", danger: true, note: "The text so far ends the turn, and messages that wait become the next one.", fields: [], subject: { bot: found.bot, key: found.key, turn: found.turn }, done: told }),
  reply_turn: (app, found) => ({ title: "Reply to the user", main: "Send", note: "The bot sends it, after the answers that are not sent yet. The agent does not see it.", fields: [area("text", "Message", { autofocus: true, maxlength: "20000" })], done: told }),
  decide: (app, found, number) => {
    const asked = found.questions.find((each) => each.number === number);
    return {
      title: "Answer the question", main: "Answer", note: asked.text, subject: { bot: found.bot, key: found.key, turn: found.turn, question: number }, done: told,
      fields: [asked.reply ? area("choice", "Answer", { autofocus: true }) : choice("choice", "Answer", asked.options), asked.approvers ? choice("by", "In the name of", asked.approvers.map(String)) : null].filter(Boolean),
      body: (given) => ({ choice: given.choice, ...(asked.approvers ? { by: asked.approvers.find((each) => String(each) === given.by) } : {}) }),
    };
  },
  retry_turns: (app, found) => ({ title: `Retry the failed turns of ${many(found, "conversation")}?`, main: "Retry", note: "Their messages wait for a turn again. What their tools have returned is kept, and those that were interrupted are not called again.", fields: [], subject: { chosen: found.rows }, done: doneOf("Retried", "failed turn") }),
  drop_turns: (app, found) => ({ title: `Drop the failed turns of ${many(found, "conversation")}?`, main: "Drop", danger: true, confirm: found.rows.length > 1 ? String(found.rows.length) : undefined, note: "They are removed with their messages.", fields: [], subject: { chosen: found.rows }, done: doneOf("Dropped", "failed turn") }),
};

export const turn = { name: "turn", title: "Turn", of: "turns", source: "turn", titleOf: (params) => `${params.bot} ${params.key}`, show: showTurn, forms, hurries: (found) => found.state === "running" };
