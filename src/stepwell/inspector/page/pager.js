// The pages of a list.
import { el } from "./dom.js";
import { counted, link } from "./parts.js";

export function pager(app, found, page, params, noun) {
  if (app.searching) {
    return el("p", { class: "pager", role: "status" }, `Searching: ${found.rows.length} found in ${counted(found.looked, noun)}. `, el("button", { type: "button", class: "small", onclick: () => app.stop() }, "Stop"));
  }
  return el("p", { class: "pager" },
    params.after ? el("a", { href: link(page, { ...params, after: null }) }, "First page") : null, " ",
    found.after ? el("a", { href: link(page, { ...params, after: found.after }) }, found.complete ? "Next page" : "Search on") : null,
    el("span", { class: "note" }, ` ${found.rows.length} shown, ${found.looked} read${found.complete ? "" : "; there are more"}`));
}
