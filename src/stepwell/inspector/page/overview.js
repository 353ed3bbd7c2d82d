// The overview: counts, timers and schedules.
import { el } from "./dom.js";
import { amount, card, link, list, stateOf, status } from "./parts.js";
import { moment } from "./times.js";

export function overview(app, found) {
  if (found.states === null) return [card("Counts", "", el("p", { class: "empty", role: "status" }, "Counting …")), timersOf(app, found), schedulesOf(found)].filter(Boolean);
  const bots = [...new Set(found.states.map((row) => row.bot))];
  const pages = [];
  for (const bot of bots) {
    const rows = found.states.filter((row) => row.bot === bot);
    const total = amount(rows.reduce((sum, row) => sum + row.records, 0), rows.some((row) => row.more));
    pages.push(card(bot, `${total} conversations${found.complete ? "" : `; at most ${found.counted} of a bot are counted`}`,
      list(["flow", "state", "conversations", "oldest write"], rows.map((row) => [
        row.flow, stateOf(app, row.flow, row.state),
        el("a", { href: link("records", { bot, flow: row.flow ?? "", state: row.state ?? "" }) }, amount(row.records, row.more)), moment(row.oldest, "…")]), "No conversations.")));
  }
  if (!bots.length) pages.push(card("Conversations", "", el("p", { class: "empty" }, "This storage has no conversations yet.")));
  pages.push(card("Runs", found.complete ? "" : `at most ${found.counted} are counted`,
    list(["flow", "status", "runs", "oldest write"], found.runs.map((row) => [row.flow || null, status(row.status),
      ["unreadable", "unknown"].includes(row.status) ? amount(row.runs, row.more) : el("a", { href: link("runs", { flow: row.flow, status: row.status }) }, amount(row.runs, row.more)), row.oldest === 0 ? null : moment(row.oldest, "…")]), "This storage has no runs of node flows.")));
  return [...pages, timersOf(app, found), schedulesOf(found)].filter(Boolean);
}

function timersOf(app, found) {
  return card("Timers", found.overdue ? "" : "the next ones",
    found.overdue ? el("p", { class: "warning" }, `${found.overdue} timers are more than a minute overdue. Is the bot running?`) : null,
    list(["bot", "key", "state", "due"], found.timers.map((row) => [row.bot, el("a", { href: link("record", { bot: row.bot, key: row.key }) }, row.key), stateOf(app, row.flow, row.state), moment(row.deadline)]), "No timers."));
}

function schedulesOf(found) {
  if (!found.schedules.length) return null;
  return card("Schedules", "", list(["schedule", "flow", "times", "next", "last run"], found.schedules.map((row) => (row.error
      ? [row.name, null, row.error, null, null]
      : [row.name, row.flow, row.times, row.paused ? status("paused") : moment(row.next), row.last_id ? el("a", { href: link("run", { id: row.last_id }) }, moment(row.last)) : null])), ""));
}
