// The timeline of a run: a row for each visit of a node, with bars for the time that it has run, waited and been queued.
import { el, svg } from "./dom.js";
import { table, text } from "./parts.js";
import { status } from "./status.js";
import { duration, moment } from "./times.js";
import { tree } from "./tree.js";

const WIDE = 1000;
const COLUMNS = [{ label: "node" }, { label: "ended with" }, { label: "started" }, { label: "ran", class: "right" }, { label: "waited", class: "right" }, { label: "attempts", class: "right" }, { label: "timeline", class: "bars" }];

// The rows that are drawn: [from, to, kind] in seconds since 1970.
function barsOf(entry, now) {
  const before = entry.queued + entry.paused, idle = entry.waited + entry.slept;
  const end = entry.open ? now : entry.started_at + entry.duration;
  const bars = [];
  if (entry.paused) bars.push([entry.started_at - before, entry.started_at - entry.queued, "paused"]);
  if (entry.queued) bars.push([entry.started_at - entry.queued, entry.started_at, "queued"]);
  if (entry.open && entry.status !== "running") bars.push([entry.started_at, end, entry.status === "queued" || entry.status === "paused" ? entry.status : "waited"]);
  else {
    if (idle) bars.push([entry.started_at, entry.started_at + idle, "waited"]);
    bars.push([entry.started_at + idle, end, entry.error ? "failed" : "ran"]);
  }
  return bars;
}

// What the run does now: it runs, waits or is queued since its last write.
function present(found) {
  const nodes = [...(found.node ? [found.node] : []), ...found.branches.map(([, node]) => node)];
  if (found.ended || found.status === "failed" || found.status === "stuck") return [];
  return nodes.map((node) => {
    const since = found.waits.find((wait) => wait.node === node)?.since ?? found.since ?? found.updated_at;
    return { node, open: true, status: found.status, started_at: since, duration: 0, queued: 0, paused: 0, waited: 0, slept: 0, error: null, attempts: null, action: null };
  });
}

function label(seconds) {
  return seconds === 0 ? "0" : duration(seconds);
}

function axis(first, last) {
  return el("span", { class: "axis", "aria-hidden": "true" }, ...(last - first < 0.001 ? [0] : [0, 0.25, 0.5, 0.75, 1]).map((part) => el("span", {}, label((last - first) * part))));
}

function drawn(bars, first, last) {
  const at = (time) => ((time - first) / Math.max(last - first, 0.001)) * WIDE;
  return svg("svg", { class: "lane", viewBox: `0 0 ${WIDE} 16`, preserveAspectRatio: "none", role: "img", "aria-label": bars.map(([from, to, kind]) => `${kind} ${duration(to - from)}`).join(", ") },
    ...[0, 0.25, 0.5, 0.75, 1].map((part) => svg("line", { x1: part * WIDE, x2: part * WIDE, y1: 0, y2: 16, class: "tick" })),
    ...bars.map(([from, to, kind]) => {
      const high = { ran: 10, failed: 10, waited: 4, queued: 2, paused: 2 }[kind];
      // Something very short is still to be seen.
      return svg("rect", { x: Math.min(at(from), WIDE - 3).toFixed(1), width: Math.max(at(to) - at(from), 3).toFixed(1), y: 8 - high / 2, height: high, class: kind });
    }));
}

function details(entry) {
  const rows = [
    entry.error ? el("p", { class: "bad" }, `${entry.error[0]}: ${entry.error[1]}`) : null,
    ...["input", "output"].map((name) => (entry[name] === null || entry[name] === undefined ? null : el("div", {}, el("span", { class: "note" }, `${name}: `),
      typeof entry[name] === "object" && !Array.isArray(entry[name]) ? tree(entry[name]) : el("code", {}, text(entry[name]))))),
  ].filter(Boolean);
  return el("span", {}, entry.node, rows.length ? el("details", {}, el("summary", { "aria-label": `Details of ${entry.node}` }, "details"), ...rows) : null);
}

// How a node has ended and who has answered it, or what it does and how far its batch is.
function outcome(entry, found) {
  if (entry.open) {
    const batch = found.progress.find((each) => each.node === entry.node);
    return batch ? el("span", { class: "outcome" }, status(entry.status), el("progress", { max: batch.total, value: batch.done, "aria-label": `Items of ${batch.node}` }), `${batch.done} of ${batch.total}`) : status(entry.status);
  }
  if (entry.action === null) return entry.error ? status("failed") : null;
  const action = entry.action === "default" ? el("span", { class: "none" }, "default") : entry.action;
  return entry.answered_by ? el("span", {}, action, el("span", { class: "note" }, ` by ${entry.answered_by}`)) : action;
}

export function timeline(found) {
  const entries = [...found.history, ...present(found)];
  if (!entries.length) return null;
  const now = Date.now() / 1000;
  const drawings = entries.map((entry) => barsOf(entry, now));
  const first = Math.min(...drawings.flat().map(([from]) => from)), last = Math.max(...drawings.flat().map(([, to]) => to));
  const columns = COLUMNS.map((column) => (column.class === "bars" ? { ...column, head: el("span", {}, el("span", { class: "hidden" }, "timeline"), axis(first, last)) } : column));
  const rows = entries.map((entry, at) => {
    const total = entry.open ? now - entry.started_at : entry.duration;
    const waits = entry.open && entry.status !== "running";
    const waited = waits ? total : entry.queued + entry.paused + entry.waited + entry.slept;
    return { id: `${at} ${entry.node} ${entry.open ? "open" : ""}`, cells: [
      entry.open ? el("b", { "aria-current": "step" }, entry.node) : details(entry),
      outcome(entry, found),
      moment(entry.started_at), waits || (entry.action === null && !entry.open) ? null : duration(total - entry.waited - entry.slept), waited ? duration(waited) : null,
      entry.attempts === null ? null : String(entry.attempts), drawn(drawings[at], first, last)] };
  });
  return table(columns, rows);
}
