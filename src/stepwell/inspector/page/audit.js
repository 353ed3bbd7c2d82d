// The audit: who changed what, and the values before and after.
import { el } from "./dom.js";
import { card, link, nothing, table } from "./parts.js";
import { moment } from "./times.js";

const PAGES = { record: (bot, key) => link("record", { bot, key }), turn: (bot, key) => link("turn", { bot, key }), run: (bot, key) => link("run", { id: key }), messages: (bot) => link("messages", { bot }), call: (bot) => link("messages", { bot }) };

function changeOf(row) {
  const names = [...new Set([...Object.keys(row.before ?? {}), ...Object.keys(row.after ?? {})])];
  if (!names.length) return null;
  return el("div", { class: "diff", role: "group", "aria-label": "What has changed", tabindex: "0" }, ...names.flatMap((name) => [row.before?.[name] === undefined ? null : el("div", { class: "old" }, `- ${name}: ${row.before[name]}`), row.after?.[name] === undefined ? null : el("div", { class: "new" }, `+ ${name}: ${row.after[name]}`)]).filter(Boolean));
}

function showAudit(app, found, params) {
  const columns = [{ label: "when" }, { label: "who" }, { label: "what", class: "most" }, { label: "of" }];
  return [card("Audit", "changes with the inspector and the command line, the newest first", found.rows.length ? table(columns, found.rows.map((row) => ({ id: String(row.number), cells: [moment(row.at), row.who,
    el("div", {}, el("span", { class: "said" }, row.what), changeOf(row)), row.subject && PAGES[row.subject[0]] ? el("a", { href: PAGES[row.subject[0]](row.subject[1], row.subject[2]) }, row.subject[2] || row.subject[1]) : null] })))
    : nothing("Nobody has changed anything.", "Each edit with this page or the command line appears here, with who made it."),
  el("p", { class: "pager" }, params.before ? el("a", { href: link("audit") }, "First page") : null, found.before ? el("a", { href: link("audit", { before: found.before }) }, "Older changes") : null))];
}

export const audit = { name: "audit", title: "Audit", go: "a", source: "audit", show: showAudit };
