// The flows: each diagram with the conversations in each state, or the runs at each node.
import { el } from "./dom.js";
import { drawFlow } from "./diagram.js";
import { amount, card, inOrder, isRemoved, link, list, nothing, stateOf } from "./parts.js";
import { status } from "./status.js";
import { moment, span } from "./times.js";
import { zoomable } from "./zoom.js";

// Seconds after which the state with the oldest conversation is marked.
const LATE = 60;

function showFlows(app, found, params, width) {
  if (found.states === null) return [card("Flows", "", el("p", { class: "empty", role: "status" }, "Counting …"))];
  const pages = [];
  for (const flow of app.flows.conversations) {
    const rows = found.states.filter((row) => row.flow === flow.name);
    for (const bot of rows.length ? [...new Set(rows.map((row) => row.bot))] : [null]) {
      pages.push(conversations(app, flow, bot, rows.filter((row) => row.bot === bot && row.state !== null), width));
    }
  }
  for (const flow of app.flows.runs) pages.push(nodes(flow, found, width));
  if (!pages.length) pages.push(card("Flows", "", nothing("No flows were given.", "Start the inspector with your flows to see their diagrams: stepwell inspect URL bot.py")));
  return pages;
}

function age(at) {
  return Math.max(0, Date.now() / 1000 - at);
}

// The oldest of the rows that are not at an end of the flow.
function oldestOf(rows, ends) {
  const open = rows.filter((row) => row.oldest !== null && !ends.includes(row.state) && age(row.oldest) >= LATE);
  return open.length ? open.reduce((one, two) => (two.oldest < one.oldest ? two : one)) : null;
}

function conversations(app, flow, bot, found, width) {
  const rows = inOrder(app, found);
  const removed = rows.filter((row) => isRemoved(app, flow.name, row.state)).map((row) => row.state);
  const oldest = oldestOf(rows, flow.ends);
  const to = (row, more = {}) => link("records", { bot, flow: flow.name, state: row.state, ...more });
  const marks = { ...(oldest ? { [oldest.state]: "late" } : {}), ...Object.fromEntries(removed.map((state) => [state, "bad"])) };
  return card(flow.name, bot === null ? "no conversations" : `conversations of ${bot}: how many, and the time since the oldest was written`,
    removed.length ? el("p", { class: "warning" }, `Conversations are in states that the flow does not have: ${removed.join(", ")}.`) : null,
    zoomable(flow.name, drawFlow({ ...flow, states: [...flow.states, ...removed] }, {
      width, marks, notes: Object.fromEntries(rows.map((row) => [row.state, amount(row.records, row.more) + (row.oldest === null ? "" : ` · ${span(age(row.oldest))}`)])),
      links: Object.fromEntries(rows.map((row) => [row.state, to(row)])),
      label: `${flow.name}: ${rows.map((row) => `${amount(row.records, row.more)} in ${row.state}`).join(", ") || "no conversations"}`,
    }), width),
    rows.length ? list(["state", "conversations", "oldest"], rows.map((row) => [
      el("span", {}, stateOf(app, flow.name, row.state), row === oldest ? el("span", { class: "mark" }, "oldest") : null),
      el("a", { href: to(row) }, amount(row.records, row.more)),
      row.oldest === null ? moment(null, "…") : el("a", { href: to(row, { older: Math.floor(age(row.oldest)) }) }, moment(row.oldest))]), "") : null);
}

function nodes(flow, found, width) {
  const counts = found.runs.filter((row) => row.flow === flow.name);
  const rows = (found.nodes ?? []).filter((row) => row.flow === flow.name);
  // A node inside a nested flow is drawn as the nested flow.
  const inside = (node) => flow.states.find((state) => node === state || node.startsWith(`${state}/`)) ?? node;
  const marks = {}, notes = {};
  for (const state of new Set(rows.map((row) => inside(row.node)))) {
    const own = rows.filter((row) => inside(row.node) === state);
    const sums = new Map();
    for (const row of own) sums.set(row.status, (sums.get(row.status) ?? 0) + row.runs);
    if (sums.has("failed") || sums.has("stuck")) marks[state] = "bad";
    notes[state] = `${[...sums].map(([name, sum]) => `${sum} ${name}`).join(", ")} · ${span(age(Math.min(...own.map((row) => row.oldest))))}`;
  }
  const to = (more) => link("runs", { flow: flow.name, ...more });
  return card(flow.name, `node flow: runs at each node, and the time since the oldest was written${found.all_nodes ? "" : `; at most ${found.counted_at_nodes} runs of a status are counted`}`,
    el("p", { class: "statuses" }, counts.length ? null : "No runs.", ...counts.flatMap((row) => [el("a", { href: to({ status: row.status }) }, status(row.status), ` ${amount(row.runs, row.more)}`), " "])),
    zoomable(flow.name, drawFlow(flow, { width, marks, notes, links: Object.fromEntries(Object.keys(notes).map((state) => [state, to({ node: state })])),
      label: `${flow.name}: ${Object.entries(notes).map(([state, note]) => `${state}: ${note}`).join(", ") || "no runs at a node"}` }), width),
    found.nodes === null ? el("p", { class: "empty", role: "status" }, "Counting …") : null,
    rows.length ? list(["node", "status", "runs", "oldest"], rows.map((row) => [row.node, status(row.status),
      el("a", { href: to({ status: row.status, node: row.node }) }, String(row.runs)),
      el("a", { href: to({ status: row.status, node: row.node, older: Math.floor(age(row.oldest)) }) }, moment(row.oldest))]), "") : null);
}

export const flows = { name: "flows", title: "Flows", go: "f", source: "flow_counts", show: showFlows, hurries: (found) => found.states === null || found.nodes === null };
