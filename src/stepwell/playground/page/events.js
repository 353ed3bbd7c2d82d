// The events: one group for each update, timer or job, with its writes, calls and errors.
import { act, byId, el, keyed } from "./dom.js";
import { formatDuration } from "./diagram.js";

const SIGNS = { update: "→", call: "←", record: "✎", timer: "⏱", job: "✎", error: "✕", note: "•" };
const WORDS = { update: "update", call: "Bot API call", record: "stored", timer: "timer", job: "job", error: "error", note: "" };
export const AGAIN = { answered: "handled once, first answer repeated", silent: "handled once" };

function duration(seconds) {
  return seconds < 1 ? `${Math.max(1, Math.round(seconds * 1000))} ms` : formatDuration(seconds);
}

function clock(at) {
  const text = new Date(at * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  return el("time", { datetime: new Date(at * 1000).toISOString() }, text);
}

function sign(kind) {
  return [el("span", { class: "sign", "aria-hidden": "true" }, SIGNS[kind]), WORDS[kind] ? el("span", { class: "hidden" }, `${WORDS[kind]}: `) : null];
}

function step(item) {
  const title = [...sign(item.kind), el("span", { class: "title" }, item.title), item.failed && item.kind !== "error" ? el("span", { class: "mark bad" }, "refused") : null];
  if (item.kind === "error") {
    return el("li", { class: "error" }, el("details", { open: true }, el("summary", {}, ...title),
      el("pre", { tabindex: "0", class: "traceback" }, item.json.traceback)));
  }
  if (item.json === null) return el("li", { class: item.kind }, el("div", { class: "summary" }, ...title));
  return el("li", { class: item.kind }, el("details", {}, el("summary", {}, ...title), el("pre", { tabindex: "0" }, JSON.stringify(item.json, null, 2))));
}

function group(item) {
  const mark = item.duplicate ? AGAIN[item.duplicate] : item.again ? "repeated" : null;
  const head = [...sign(item.kind),
    el("span", { class: "title" }, item.who ? el("b", {}, `${item.who} `) : null, item.title),
    mark ? el("span", { class: "mark" }, mark) : null,
    item.failed ? el("span", { class: "mark bad" }, "failed") : null,
    el("span", { class: "facts" }, item.key ? el("code", { title: "Key of the conversation" }, item.key) : null,
      item.duration === null ? null : el("span", { class: "duration", title: "From the start of its handler to its last event" }, duration(item.duration)), clock(item.at))];
  return el("li", { class: `${item.kind}${item.again ? " again" : ""}${item.failed ? " failed" : ""}`, "data-group": item.n },
    item.json === null ? el("div", { class: "summary" }, ...head) : el("details", {}, el("summary", {}, ...head),
      el("pre", { tabindex: "0" }, JSON.stringify(item.json, null, 2)),
      item.update_id === null ? null : el("button", { type: "button", class: "quiet small", onclick: () => act("repeat", { update_id: item.update_id }) }, "Send this update again")),
    item.events.length ? el("ol", { class: "steps" }, ...item.events.map(step)) : item.key && item.kind === "update" ? el("p", { class: "steps note" }, "nothing stored or sent: no handler matched, or it still runs") : null);
}

function renderFilter(app) {
  const select = byId("event-filter");
  const people = app.sections.people?.people ?? [];
  const as = JSON.stringify(people);
  if (select.shown !== as) {
    select.shown = as;
    select.replaceChildren(el("option", { value: "" }, "everyone"), ...people.map((user) => el("option", { value: String(user.id) }, user.name)));
    select.value = app.person ?? "";
  }
}

// The errors of the page's updates, by chat and message.
export function failures(app) {
  const found = new Map();
  for (const n of app.sections.timeline ?? []) {
    const item = app.sections[`event ${n}`];
    const error = item?.events.find((event) => event.kind === "error");
    if (!error || !item.json) continue;
    const body = Object.values(item.json).find((each) => each && typeof each === "object");
    const message = body?.message ?? body;
    if (message?.chat) found.set(`${message.chat.id}/${message.message_id}`, error.title);
  }
  return found;
}

export function renderTimeline(app) {
  renderFilter(app);
  const groups = (app.sections.timeline ?? []).map((n) => app.sections[`event ${n}`]).filter(Boolean).reverse();
  const shown = app.person ? groups.filter((item) => item.user === null || String(item.user) === app.person) : groups;
  byId("no-events").hidden = shown.length > 0;
  byId("no-events").textContent = groups.length ? "No events of this user yet." : "No events yet.";
  keyed(byId("timeline"), shown, (item) => item.n, group);
}
