// The lists of conversations and of runs.
import { el } from "./dom.js";
import { card, counted, link, list, stateOf, status, text } from "./parts.js";
import { moment } from "./times.js";

function more(app, found, page, params) {
  if (app.searching) {
    return el("p", { class: "pager", role: "status" }, `Searching: ${found.rows.length} found in ${counted(found.looked, page === "runs" ? "run" : "record")}. `, el("button", { type: "button", class: "small", onclick: () => app.stop() }, "Stop"));
  }
  return el("p", { class: "pager" },
    params.after ? el("a", { href: link(page, { ...params, after: null }) }, "First page") : null, " ",
    found.after ? el("a", { href: link(page, { ...params, after: found.after }) }, found.complete ? "Next page" : "Search on") : null,
    el("span", { class: "note" }, ` ${found.rows.length} shown, ${found.looked} read${found.complete ? "" : "; there are more"}`));
}

export function records(app, found, params) {
  return [card("Conversations", found.bot, list(["key", "flow", "state", "written", "timer", "tags"], found.rows.map((row) => [
    el("a", { href: link("record", { bot: row.bot, key: row.key }) }, row.key), row.flow,
    row.damage.length ? status("unreadable") : stateOf(app, row.flow, row.state), moment(row.written_at), moment(row.deadline), row.tags.join(" ")]),
  "No conversation matches."), more(app, found, "records", params))];
}

export function runs(app, found, params) {
  return [card("Runs", params.status ? "" : "that have not ended", list(["run", "flow", "status", "node", "written", "reason or question"], found.rows.map((row) => [
    el("a", { href: link("run", { id: row.flow_id }) }, row.flow_id), row.flow, status(row.status), row.node, moment(row.updated_at),
    row.why ?? (row.question === null || row.question === undefined ? null : text(row.question))]), "No run matches."), more(app, found, "runs", params))];
}
