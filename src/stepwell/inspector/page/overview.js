// The overview: counts, processes, timers and schedules.
import { el } from "./dom.js";
import { amount, card, counted, inOrder, link, list, stateOf } from "./parts.js";
import { status } from "./status.js";
import { moment } from "./times.js";

function showOverview(app, found) {
  const below = el("div", { class: "columns" }, el("div", { class: "stack" }, processesOf(found), schedulesOf(found)), timersOf(app, found));
  if (found.states === null) return [summary(found), card("Counts", "", el("p", { class: "empty", role: "status" }, "Counting …")), below];
  const bots = [...new Set(found.states.map((row) => row.bot))];
  const pages = [summary(found)];
  for (const bot of bots) {
    const rows = inOrder(app, found.states.filter((row) => row.bot === bot));
    pages.push(card(bot, `${counted(sum(rows, "records"), "conversation", rows.some((row) => row.more))}${found.complete ? "" : `; at most ${found.counted} of a bot are counted`}`,
      list(["flow", "state", "conversations", "oldest write"], rows.map((row) => [
        row.flow, stateOf(app, row.flow, row.state),
        el("a", { href: link("records", { bot, flow: row.flow ?? "", state: row.state ?? "" }) }, amount(row.records, row.more)), moment(row.oldest, "…")]), "No conversations.")));
  }
  if (!bots.length) pages.push(card("Conversations", "", el("p", { class: "empty" }, "This storage has no conversations yet.")));
  pages.push(card("Runs", found.complete ? "" : `at most ${found.counted} are counted`,
    list(["flow", "status", "runs", "oldest write"], found.runs.map((row) => [row.flow || null, status(row.status),
      ["unreadable", "unknown"].includes(row.status) ? amount(row.runs, row.more) : el("a", { href: link("runs", { flow: row.flow, status: row.status }) }, amount(row.runs, row.more)), row.oldest === 0 ? null : moment(row.oldest, "…")]), "This storage has no runs of node flows.")));
  return [...pages, below];
}

function sum(rows, name) {
  return rows.reduce((all, row) => all + row[name], 0);
}

function total(rows, name) {
  return amount(sum(rows, name), rows.some((row) => row.more));
}

// The figures that an operator looks at first. A figure that needs a look is red.
function summary(found) {
  const runs = (...names) => (found.runs === null ? "…" : total(found.runs.filter((row) => names.includes(row.status)), "runs"));
  const bots = found.processes.filter((each) => each.kind === "bot");
  const rate = (name) => (bots.length ? String(Math.round(sum(bots, name))) : "–");
  const tiles = [
    ["conversations", found.states === null ? "…" : total(found.states, "records"), false, link("records")],
    ["runs at work", runs("queued", "running", "parked", "sleeping", "paused"), false, link("runs")],
    ["runs failed", runs("failed"), true, link("runs", { status: "failed" })],
    ["runs stuck", runs("stuck"), true, link("runs", { status: "stuck" })],
    ["timers overdue", String(found.overdue), true, null],
    ["updates / min", rate("done"), false, null],
    ["errors / min", rate("failed"), true, null],
    ["processes", String(found.processes.length), false, null],
  ];
  return el("section", { class: "tiles", "aria-label": "Summary" }, ...tiles.map(([name, figure, isBad, href]) => {
    const inside = [el("span", { class: "figure" }, figure), el("span", { class: "note" }, name)];
    const kind = `tile${isBad && parseInt(figure, 10) > 0 ? " bad" : ""}`;
    return href ? el("a", { class: kind, href }, ...inside) : el("div", { class: kind }, ...inside);
  }));
}

function processesOf(found) {
  return card("Processes", "seen in the last minute", list(["process", "runs", "a minute", "started", "seen"], found.processes.map((row) => [
    `${row.host} ${row.pid}`, `${row.kind} ${row.names.join(", ")}`,
    `${counted(row.done, row.kind === "bot" ? "update" : "run")}${row.failed ? `, ${row.failed} failed` : ""}${row.retried ? `, ${row.retried} retried` : ""}`, moment(row.started_at), moment(row.seen_at)]),
  "No process that runs a bot or a worker was seen."));
}

function timersOf(app, found) {
  return card("Timers", found.overdue ? "" : "the next ones",
    found.overdue ? el("p", { class: "warning" }, `${counted(found.overdue, "timer")} more than a minute overdue. Is the bot running?`) : null,
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
  hurries: (found) => found.states === null || found.states.some((row) => row.oldest === null),
};
