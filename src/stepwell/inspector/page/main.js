// The inspector: reads the page that the address names, shows it, and reads it again every few seconds.
import { banner, byId, el } from "./dom.js";
import { ask } from "./edits.js";
import { flows } from "./flows.js";
import { records, runs } from "./lists.js";
import { overview } from "./overview.js";
import { link } from "./parts.js";
import { record } from "./record.js";
import { run } from "./run.js";
import { renew, span } from "./times.js";

const EVERY = 3000, ROWS = 50;
const LINKS = [["overview", "Overview"], ["flows", "Flows"], ["records", "Conversations"], ["runs", "Runs"]];
const STATUSES = ["queued", "running", "parked", "sleeping", "paused", "failed", "stuck", "cancelled", "finished"];
const AGES = [["", "any age"], ["60", "1 minute"], ["3600", "1 hour"], ["86400", "1 day"], ["604800", "7 days"]];

const app = {
  flows: { conversations: [], runs: [] },
  allowWrite: false,
  shown: "",
  turn: 0,
  timer: 0,
  searching: false,
  searched: "",
  stop() { app.searching = false; },
  ask(name, found, field) { ask(app, name, found, field); },
  refresh() { app.shown = ""; return load(); },
};

function place() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { page: path || "overview", params: Object.fromEntries(new URLSearchParams(query)) };
}

async function read(name, params = {}) {
  try {
    const response = await fetch(`api/${name}?${new URLSearchParams(params)}`);
    // Awaited here: the server may stop in the middle of a response.
    if (response.headers.get("content-type")?.includes("json")) return await response.json();
    return { ok: false, gone: response.status === 401, error: await response.text() };
  } catch {
    return { ok: false, gone: true, error: "The inspector does not respond. Is it still running?" };
  }
}

const PAGES = { overview, flows, records, record, runs, run };
const SOURCES = { overview: "overview", flows: "flow_counts", records: "records", record: "record", runs: "runs", run: "run" };

function draw(page, found, params) {
  return PAGES[page](app, found, params, Math.max(260, byId("content").clientWidth - 40));
}

// Keeps focus and the open parts of trees when a page is shown again.
function show(nodes) {
  const box = byId("content");
  const kept = new Map([...box.querySelectorAll("details[data-keep]")].map((each) => [each.dataset.keep, each.open]));
  const focusable = "a[href], button, summary, pre[tabindex], div[tabindex]";
  const at = [...box.querySelectorAll(focusable)].indexOf(document.activeElement);
  box.replaceChildren(...nodes);
  for (const each of box.querySelectorAll("details[data-keep]")) if (kept.has(each.dataset.keep)) each.open = kept.get(each.dataset.keep);
  if (at >= 0) box.querySelectorAll(focusable)[at]?.focus({ preventScroll: true });
}

// Continues a search that the server ended after some records, until there is a page of hits or it is stopped.
async function search(turn, page, params, first) {
  let found = first;
  app.searching = true;
  app.searched = location.hash;
  while (app.searching && !found.complete && found.rows.length < ROWS) {
    show(draw(page, found, params));
    const answer = await read(page, { ...params, after: found.after });
    if (turn !== app.turn) return;
    if (!answer.ok) { banner(answer.error); break; }
    const next = answer[page];
    found = { ...next, rows: [...found.rows, ...next.rows], looked: found.looked + next.looked };
  }
  app.searching = false;
  show(draw(page, found, params));
}

async function load() {
  // The result of a search stays as it is.
  if (app.searched === location.hash && app.searched) return;
  clearTimeout(app.timer);
  const turn = ++app.turn;
  const { page, params } = place();
  const source = SOURCES[page];
  const answer = source ? await read(source, params) : { ok: false, error: `There is no page ${page}.` };
  // A newer call shows its own page.
  if (turn !== app.turn) return;
  if (answer.ok) {
    app.allowWrite = answer.allow_write;
    byId("mode").textContent = app.allowWrite ? "edits are allowed" : "read-only";
    const found = answer[source];
    const as = JSON.stringify([page, params, found, byId("content").clientWidth]);
    if (as !== app.shown || page === "overview") show(draw(page, found, params));
    else renew(byId("content"));
    app.shown = as;
    filters(page, params, found);
    banner("");
    if ((page === "records" || page === "runs") && !found.complete) { await search(turn, page, params, found); return; }
  } else {
    if (!answer.gone) { show([el("section", { class: "card" }, el("p", { class: "empty bad" }, answer.error))]); app.shown = ""; }
    banner(answer.gone ? answer.error : "");
  }
  app.timer = setTimeout(() => (document.hidden ? (app.timer = setTimeout(load, EVERY)) : load()), isCounting(answer) ? 500 : EVERY);
}

function isCounting(answer) {
  const counts = answer.overview ?? answer.flow_counts;
  return counts?.states === null || counts?.nodes === null || counts?.states?.some((row) => row.oldest === null);
}

// The ages to choose from, with the one in the address.
function ages(given) {
  return !given || AGES.some(([seconds]) => seconds === given) ? AGES : [...AGES, [given, span(Number(given))]];
}

function select(name, label, options, value) {
  return el("label", {}, label, el("select", { name }, ...options.map(([key, text]) => el("option", { value: key, selected: key === (value ?? "") }, text))));
}

function field(name, label, value, props = {}) {
  return el("label", {}, label, el("input", { name, value: value ?? "", autocomplete: "off", ...props }));
}

function filters(page, params, found) {
  const form = byId("filter"), box = byId("filters");
  box.hidden = page !== "records" && page !== "runs";
  const as = JSON.stringify([page, params, found.bots]);
  if (box.hidden || form.shownAs === as) return;
  form.shownAs = as;
  const fields = page === "records"
    ? [select("bot", "Bot", found.bots.map((bot) => [bot, bot]), found.bot), field("flow", "Flow", params.flow), field("state", "State", params.state), field("key", "Key", params.key),
      field("user", "User", params.user, { inputmode: "numeric" }), field("chat", "Chat", params.chat, { inputmode: "numeric" }), field("tag", "Tag", params.tag), field("field", "Data field", params.field, { placeholder: "to.city=Rome" }),
      select("older", "Not written for", ages(params.older), params.older), select("damaged", "Records", [["", "all"], ["1", "unreadable only"]], params.damaged)]
    : [field("flow", "Flow", params.flow), select("status", "Status", [["", "not ended"], ...STATUSES.map((each) => [each, each])], params.status),
      field("node", "Node", params.node), field("tag", "Tag", params.tag, { placeholder: "customer=7" }), field("field", "Shared field", params.field, { placeholder: "order=7" }),
      select("older", "Not written for", ages(params.older), params.older), field("id", "Id", params.id)];
  form.replaceChildren(...fields, el("button", { type: "submit", class: "main" }, "Filter"), el("a", { href: `#/${page}` }, "Reset"));
}

byId("filter").addEventListener("submit", (event) => {
  event.preventDefault();
  const given = Object.fromEntries([...new FormData(event.target)].filter(([, value]) => value !== ""));
  const next = link(place().page, given);
  if (location.hash === next) { app.searched = ""; app.refresh(); }
  else location.hash = next;
});

function navigate() {
  app.searched = "";
  app.searching = false;
  const { page } = place();
  const own = { record: "records", run: "runs" }[page] ?? page;
  // The links stay, so that they keep the focus.
  for (const each of byId("nav").children) {
    if (each.dataset.page === own) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
  document.title = `${LINKS.find(([name]) => name === own)?.[1] ?? "Page"} – Stepwell inspector`;
  byId("dialog").close();
  byId("main").scrollTop = 0;
  load();
}

// On a phone the filter would fill the screen, so it is opened with a click.
const narrow = matchMedia("(max-width: 719px)");
const fold = () => { byId("filters").open = !narrow.matches; };
narrow.addEventListener("change", fold);
fold();
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); byId("content").focus(); });
addEventListener("hashchange", navigate);
addEventListener("resize", () => { clearTimeout(app.resizing); app.resizing = setTimeout(load, 200); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) load(); });
byId("nav").replaceChildren(...LINKS.map(([name, text]) => el("a", { href: link(name), "data-page": name }, text)));
const known = await read("flows");
if (known.ok) app.flows = known.flows;
navigate();
