// The flows: each diagram with the number of conversations or runs in it.
import { el } from "./dom.js";
import { drawFlow } from "./diagram.js";
import { amount, card, isRemoved, link, status } from "./parts.js";
import { span } from "./times.js";

export function flows(app, found, params, width) {
  if (found.states === null) return [card("Flows", "", el("p", { class: "empty", role: "status" }, "Counting …"))];
  const pages = [];
  for (const flow of app.flows.conversations) {
    const rows = found.states.filter((row) => row.flow === flow.name);
    for (const bot of [...new Set(rows.map((row) => row.bot))].concat(rows.length ? [] : [null])) {
      const own = rows.filter((row) => row.bot === bot && row.state !== null);
      const notes = Object.fromEntries(own.map((row) => [row.state, amount(row.records, row.more) + (row.oldest === null ? "" : `, for ${span(Date.now() / 1000 - row.oldest)}`)]));
      const links = bot === null ? {} : Object.fromEntries(own.map((row) => [row.state, link("records", { bot, flow: flow.name, state: row.state })]));
      const removed = own.filter((row) => isRemoved(app, flow.name, row.state)).map((row) => row.state);
      const label = `${flow.name}: ${own.map((row) => `${amount(row.records, row.more)} in ${row.state}`).join(", ") || "no conversations"}`;
      pages.push(card(flow.name, bot === null ? "no conversations" : `conversations of ${bot} in each state, and the time since the oldest write`,
        removed.length ? el("p", { class: "warning" }, `Conversations are in states that the flow does not have: ${removed.join(", ")}.`) : null,
        el("div", { class: "diagram" }, drawFlow({ ...flow, states: [...flow.states, ...removed] }, { width, notes, links, label }))));
    }
  }
  for (const flow of app.flows.runs) {
    const rows = found.runs.filter((row) => row.flow === flow.name);
    pages.push(card(flow.name, "node flow", el("p", { class: "statuses" }, ...rows.flatMap((row) => [el("a", { href: link("runs", { flow: flow.name, status: row.status }) }, status(row.status), ` ${amount(row.runs, row.more)}`), " "])),
      el("div", { class: "diagram" }, drawFlow(flow, { width, label: `${flow.name}: ${flow.states.join(", ")}` }))));
  }
  if (!pages.length) pages.push(card("Flows", "", el("p", { class: "empty" }, "Start the inspector with your flows to see their diagrams: stepwell inspect URL bot.py")));
  return pages;
}
