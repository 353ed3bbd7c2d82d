// The inspector: reads the page that the address names, shows it, and reads it again every few seconds.
import { banner, byId, el, patch, showControls } from "./dom.js";
import { ask, askAll } from "./edits.js";
import { showFilters } from "./filters.js";
import { listen } from "./keys.js";
import { PAGES } from "./pages.js";
import { link } from "./parts.js";

showControls();

const EVERY = 3000, ROWS = 50;
const BY_NAME = new Map(PAGES.map((page) => [page.name, page]));

const app = {
  flows: { conversations: [], runs: [] },
  // The edits that the person may make, and whether there are any.
  can: new Set(),
  allowWrite: false,
  // The address that is shown; what was read for which address, and its tag.
  place: "",
  found: null,
  tagged: "",
  tag: "",
  turn: 0,
  timer: 0,
  searching: false,
  searched: "",
  // The chosen rows of a list, by their ids.
  chosen: new Set(),
  stop() { app.searching = false; },
  ask(name, found, field) { ask(app, name, found, field); },
  // A button for an edit; null if the person may not make it.
  button(name, label, found, kind = "small", field = undefined) { return app.can.has(name) ? el("button", { type: "button", class: kind, onclick: () => app.ask(name, found, field) }, label) : null; },
  askAll(name, rows, noun) { askAll(app, name, rows, noun); },
  refresh() { app.tagged = ""; return load(); },
  // Shows the page again with what was read, for example after a row was chosen.
  redraw() { if (app.draw) app.draw(); },
};

function place() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { page: BY_NAME.get(path || "overview"), path, params: Object.fromEntries(new URLSearchParams(query)) };
}

// "tag" is that of what is shown: if nothing has changed, the answer is only {same}.
async function read(name, params = {}, tag = "") {
  try {
    const response = await fetch(`api/${name}?${new URLSearchParams(params)}`, tag ? { headers: { "If-None-Match": tag } } : {});
    if (response.status === 304) return { ok: true, same: true };
    app.tag = response.headers.get("etag") ?? "";
    // Awaited here: the server may stop in the middle of a response.
    if (response.headers.get("content-type")?.includes("json")) return await response.json();
    return { ok: false, gone: response.status === 401, error: await response.text() };
  } catch {
    return { ok: false, gone: true, error: "The inspector does not respond. Is it still running?" };
  }
}

function show(nodes) {
  const box = byId("content");
  if (app.place === location.hash) return patch(box, nodes);
  app.place = location.hash;
  box.replaceChildren(...nodes);
}

function draw(page, found, params) {
  app.draw = () => show(page.show(app, found, params, Math.max(260, byId("content").clientWidth - 34)));
  app.draw();
}

// Continues a search that the server ended after some records, until there is a page of hits or it is stopped.
async function search(turn, page, params, first) {
  let found = first;
  app.searching = true;
  app.searched = location.hash;
  while (app.searching && !found.complete && found.rows.length < ROWS) {
    draw(page, found, params);
    const answer = await read(page.source, { ...params, after: found.after });
    if (turn !== app.turn) return;
    if (!answer.ok) { banner(answer.error); break; }
    const next = answer[page.source];
    found = { ...next, rows: [...found.rows, ...next.rows], looked: found.looked + next.looked };
  }
  app.searching = false;
  draw(page, found, params);
}

async function load() {
  // The result of a search stays as it is.
  if (app.searched === location.hash && app.searched) return;
  clearTimeout(app.timer);
  const turn = ++app.turn;
  const { page, path, params } = place();
  const answer = page ? await read(page.source, params, app.tagged === location.hash ? app.tag : "") : { ok: false, error: `There is no page ${path}.` };
  // A newer call shows its own page.
  if (turn !== app.turn) return;
  const found = answer.same ? app.found : answer[page?.source];
  byId("live").hidden = !answer.ok;
  if (answer.same) {
    // Times go on.
    app.redraw();
    banner("");
  } else if (answer.ok) {
    app.can = new Set(answer.can);
    app.allowWrite = answer.can.length > 0;
    byId("mode").textContent = `${answer.person}, ${answer.role}`;
    app.found = found;
    app.tagged = location.hash;
    draw(page, found, params);
    showFilters(page, params, found);
    banner("");
    if (page.filters && found.complete === false) { await search(turn, page, params, found); return; }
  } else {
    if (!answer.gone) { show([el("section", { class: "card" }, el("p", { class: "empty bad" }, answer.error))]); app.tagged = ""; }
    banner(answer.gone ? answer.error : "");
  }
  app.timer = setTimeout(() => (document.hidden ? (app.timer = setTimeout(load, EVERY)) : load()), found && page.hurries?.(found) ? 500 : EVERY);
}

function navigate() {
  app.searched = "";
  app.searching = false;
  app.chosen.clear();
  const { page, params } = place();
  const own = page?.of ?? page?.name;
  // The links stay, so that they keep the focus.
  for (const each of byId("nav").children) {
    if (each.dataset.page === own) { each.setAttribute("aria-current", "page"); each.scrollIntoView({ block: "nearest", inline: "nearest" }); }
    else each.removeAttribute("aria-current");
  }
  const above = BY_NAME.get(own);
  const title = page?.titleOf?.(params) ?? page?.title ?? "Page";
  byId("title").replaceChildren(...(above && above !== page ? [el("a", { href: link(above.name) }, above.title), " / "] : []), title);
  document.title = `${title} – Stepwell inspector`;
  byId("dialog").close();
  byId("main").scrollTop = 0;
  load();
}

document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); byId("content").focus(); });
byId("filter").addEventListener("submit", (event) => {
  event.preventDefault();
  const { page, params } = place();
  const next = link(page.name, { sort: params.sort, ...Object.fromEntries([...new FormData(event.target)].filter(([, value]) => value !== "")) });
  if (location.hash === next) { app.searched = ""; app.refresh(); }
  else location.hash = next;
});
addEventListener("hashchange", navigate);
addEventListener("resize", () => { clearTimeout(app.resizing); app.resizing = setTimeout(load, 200); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) load(); });
byId("nav").replaceChildren(...PAGES.filter((page) => !page.of).map((page) => el("a", { href: link(page.name), "data-page": page.name }, page.title)));
listen(app, PAGES);
const known = await read("flows");
if (known.ok) app.flows = known.flows;
navigate();
