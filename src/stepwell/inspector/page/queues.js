// The queues of runs, and the runs that wait in one of them.
import { el } from "./dom.js";
import { field } from "./filters.js";
import { amount, card, counted, link, nothing, table } from "./parts.js";
import { cellsOf } from "./runs.js";
import { status } from "./status.js";
import { lasting } from "./times.js";

const COLUMNS = [{ label: "queue" }, { label: "waiting", class: "right" }, { label: "next run" }, { label: "priority", class: "right" }, { label: "waits for", class: "right" },
  { label: "worked off by" }, { label: "limits", class: "fill" }];
const RUNS = [{ label: "place", class: "right" }, { label: "run" }, { label: "status" }, { label: "flow" }, { label: "node" }, { label: "started" }, { label: "duration", class: "right" }, { label: "waiting", class: "right" },
  { label: "priority", class: "right" }, { label: "partition" }, { label: "tags" }, { label: "reason or question", class: "fill" }];

function worksOff(row) {
  if (row.holder) return el("span", {}, "after ", el("a", { href: link("run", { id: row.holder }) }, row.holder));
  if (!row.workers) return status("nobody", "failed");
  return `${counted(row.workers, "worker")}, at most ${counted(row.concurrency, "run")} at once`;
}

function limits(row) {
  const given = row.limits;
  return [given.everywhere ? `${given.everywhere} at once in all workers` : null, given.concurrency ? `${given.concurrency} at once in each worker` : null, given.rate ? `${given.rate[0]} in ${given.rate[1]} s` : null].filter(Boolean).join(", ") || null;
}

function showQueues(app, found, params) {
  const rows = found.rows.map((row) => ({ id: row.name, cells: [
    el("span", { class: row.partition === null ? null : "inner" }, el("a", { href: link("queue", { name: row.name }) }, row.partition === null ? row.flow : `${row.flow} / ${row.partition}`), row.revision > 1 ? el("span", { class: "note" }, ` revision ${row.revision}`) : null),
    amount(row.waiting, row.more), row.next ? el("a", { href: link("run", { id: row.next.flow_id }) }, row.next.flow_id) : null, row.next?.priority ? String(row.next.priority) : null,
    row.since ? lasting(row.since) : null, worksOff(row), limits(row)] }));
  return [card("Queues", "with waiting runs: by priority, then the oldest first; a partition runs one after the other",
    rows.length ? table(COLUMNS, rows) : nothing("No run waits in a queue.", "Submitted runs appear here until a worker takes them."),
    el("p", { class: "pager" }, params.after ? el("a", { href: link("queues", { flow: params.flow }) }, "First page") : null, found.after ? el("a", { href: link("queues", { ...params, after: found.after }) }, "Next page") : null))];
}

function showQueue(app, found, params) {
  return [card(found.name, "in the order in which workers take them", table(RUNS, found.rows.map((row) => ({ id: row.flow_id, cells: [String(row.place), ...cellsOf(row)] }))),
    el("p", { class: "pager" }, params.after ? el("a", { href: link("queue", { name: found.name }) }, "First page") : null, found.after ? el("a", { href: link("queue", { name: found.name, after: found.after }) }, "Next page") : null))];
}

export const queues = { name: "queues", title: "Queues", go: "q", source: "queues", show: showQueues, filters: (params) => [field("flow", "Flow begins with", params.flow)] };
export const queue = { name: "queue", title: "Queue", of: "queues", source: "queue", titleOf: (params) => params.name, show: showQueue };
