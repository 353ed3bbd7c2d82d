// The overview: what needs a look, the last hour, counts, processes, timers and schedules.
import { chart } from "./charts.js";
import { el } from "./dom.js";
import { amount, card, counted, inOrder, link, list, nothing, stateOf, table } from "./parts.js";
import { status } from "./status.js";
import { duration, lasting, moment } from "./times.js";

function attention(found) {
  const head = "Needs attention";
  if (!found.problems.length) {
    return card(head, "", found.looked ? el("p", { class: "notice good" }, status("Nothing needs attention.", "finished")) : el("p", { class: "empty", role: "status" }, "Looking …"));
  }
  const bad = found.problems.filter((each) => each.is_bad).length;
  const shape = (each) => { const node = status(each.text, each.status); if (each.is_bad) node.classList.add("bad"); return node; };
  return card(head, bad ? counted(bad, "problem") : "nothing is wrong; these wait", table([{ label: "what", class: "fill" }, { label: "for", class: "right" }, { label: "page", class: "right desk" }], found.problems.map((each) => ({
    id: each.text, cells: [el("a", { class: "plain", href: link(each.page, each.params) }, shape(each)), each.since ? lasting(each.since) : null,
      el("a", { href: link(each.page, each.params), "aria-label": `Show: ${each.text}` }, "Show")] }))));
}

function lastHour(found) {
  const { bot = [], worker = [] } = found.minutes;
  const round = (value) => String(Math.round(value)), time = (value) => duration(value) ?? "–";
  const charts = [
    ...(bot.length ? [chart("updates a minute", bot, (each) => each[1], round, (each) => each[2]), chart("time of an update", bot, (each) => each[3], time)] : []),
    ...(worker.length ? [chart("runs a minute", worker, (each) => each[1], round, (each) => each[2]), chart("time of a run", worker, (each) => each[3], time), chart("wait in the queue", worker, (each) => each[4], time)] : [])];
  return charts.length ? card("Last hour", "failed ones are red", el("div", { class: "charts" }, ...charts)) : null;
}

export function showOverview(app, found) {
  const below = el("div", { class: "columns" }, el("div", { class: "stack" }, processesOf(found), schedulesOf(found)), timersOf(app, found));
  if (found.states === null) return [attention(found), lastHour(found), card("Counts", "", el("p", { class: "empty", role: "status" }, "Counting …")), below].filter(Boolean);
  const bots = [...new Set(found.states.map((row) => row.bot))].map((bot) => conversationsOf(app, found, bot));
  const runs = found.runs.length ? [runsOf(found)] : [], turns = found.turns.length ? [turnsOf(found)] : [];
  // Those of which there is more.
  const counts = bots.length ? [...bots, ...turns, ...runs] : [...runs, ...turns];
  if (!counts.length) counts.push(card("Conversations and runs", "", nothing("This storage is empty.", "Conversations appear with the first update of a bot, and runs when they are started or submitted.")));
  return [attention(found), lastHour(found), el("div", { class: "columns" }, ...counts), below].filter(Boolean);
}

function conversationsOf(app, found, bot) {
  const rows = inOrder(app, found.states.filter((row) => row.bot === bot));
  return card(bot, `${counted(sum(rows, "records"), "conversation", rows.some((row) => row.more))}${found.complete ? "" : `; at most ${found.counted} of a bot are counted`}`,
    list(["flow", "state", "conversations", "oldest write"], rows.map((row) => [
      row.flow, stateOf(app, row.flow, row.state),
      el("a", { href: link("records", { bot, flow: row.flow ?? "", state: row.state ?? "" }) }, amount(row.records, row.more)), moment(row.oldest, "…")]), "No conversations."));
}

function runsOf(found) {
  return card("Runs", found.complete ? "" : `at most ${found.counted} are counted`,
    list(["flow", "status", "runs", "oldest write"], found.runs.map((row) => [row.flow || null, status(row.status),
      ["unreadable", "unknown"].includes(row.status) ? amount(row.runs, row.more) : el("a", { href: link("runs", { flow: row.flow, status: row.status }) }, amount(row.runs, row.more)), row.oldest === 0 ? null : moment(row.oldest, "…")]), ""));
}

function turnsOf(found) {
  return card("Turns", "conversations with an agent", list(["name", "state", "conversations", "oldest write"], found.turns.map((row) => [row.name, status(row.state),
    el("a", { href: link("turns", { state: row.state }) }, amount(row.conversations, row.more)), moment(row.oldest, "…")]), ""));
}

function sum(rows, name) {
  return rows.reduce((all, row) => all + row[name], 0);
}

function processesOf(found) {
  const running = found.processes.map((row) => [`${row.host} ${row.pid}`, status(row.kind, "running"), row.names.join(", "),
    `${counted(row.done, row.kind === "bot" ? "update" : "run")}${row.failed ? `, ${row.failed} failed` : ""}${row.retried ? `, ${row.retried} retried` : ""}`, moment(row.started_at), moment(row.seen_at)]);
  const gone = found.stopped.map((row) => [`${row.host} ${row.pid}`, row.ended ? status(row.kind, "cancelled") : status(row.kind, "gone"), row.names.join(", "), row.ended ? "stopped" : el("span", { class: "empty bad" }, "died"), null, moment(row.seen_at)]);
  return card("Processes", "of the last hour", list(["process", "kind", "of", "a minute", "started", "seen"], [...running, ...gone], "No process that runs a bot or a worker was seen."));
}

function timersOf(app, found) {
  return card("Timers", "the next ones",
    list(["bot", "key", "state", "due"], found.timers.map((row) => [row.bot, el("a", { href: link("record", { bot: row.bot, key: row.key }) }, row.key), stateOf(app, row.flow, row.state), moment(row.deadline)]), "No timers."));
}

function schedulesOf(found) {
  if (!found.schedules.length) return null;
  return card("Schedules", "", list(["schedule", "flow", "times", "next", "last run"], found.schedules.map((row) => (row.error
    ? [row.name, null, row.error, null, null]
    : [row.name, row.flow, row.times, row.paused ? status("paused") : moment(row.next), row.last_id ? el("a", { href: link("run", { id: row.last_id }) }, moment(row.last)) : null])), ""));
}

export const overview = {
  name: "overview", title: "Overview", go: "o", source: "overview", show: showOverview,
  hurries: (found) => !found.looked || found.states.some((row) => row.oldest === null),
};
