// The card of a turn: what waits, what runs, its tools and its questions.
import { byId, el } from "./dom.js";
import { formatDuration } from "./diagram.js";
import { currentRecord } from "./inspect.js";

const WORDS = {
  collecting: "collecting messages", running: "running", asking: "waiting for an answer", idle: "no turn runs",
};
const OUTCOMES = { returned: "done", raised: "raised an error" };

// The conversation of the open chat; else one whose chat is not known.
function currentTurn(app) {
  const { room, thread } = app.active.place;
  const shown = app.sections.turns ?? [];
  return shown.find((each) => each.room === room && each.thread === (thread ?? null)) ?? shown.find((each) => each.room === null) ?? null;
}

// A text that counts down to a time, or up from it.
function clock(at, words) {
  return el("span", { class: "clock note", "data-at": at, "data-words": words });
}

function part(title, rows) {
  return rows.length ? el("section", { class: "part" }, el("h3", {}, title), el("ul", {}, ...rows)) : null;
}

function message(each) {
  return el("li", {}, el("b", {}, each.who ? `${each.who} ` : ""), each.text || (each.album ? "a picture of an album" : "a message without text"));
}

function tool(each, attempt) {
  const state = each.outcome ? OUTCOMES[each.outcome] : attempt > 1 && each.replay === "never" ? "was interrupted, or runs" : "runs";
  return el("li", { class: each.outcome ?? "open" }, el("code", {}, each.name), " ",
    el("span", { class: `mark${each.outcome === "raised" ? " bad" : ""}` }, state), " ",
    el("span", { class: "note" }, each.replay === "never" ? "at most once" : "may run again"));
}

function question(each) {
  const state = each.answered ? each.choice ?? "no answer in time" : "open";
  return el("li", { class: each.answered ? "" : "open" }, el("q", { class: "question" }, each.text), " ",
    el("span", { class: "mark" }, state), " ",
    el("span", { class: "note" }, each.answered ? "" : each.options.join(" / ")), " ",
    !each.answered && each.deadline !== null ? clock(each.deadline, "left") : null);
}

export function renderTurn(app) {
  const now = currentTurn(app);
  const card = byId("turn-card");
  card.hidden = !now;
  const only = app.hasNoFlow();
  byId("diagram").closest("article").hidden = only;
  byId("record").closest("article").hidden = only && !currentRecord(app, app.active.place)?.record;
  const as = JSON.stringify(now);
  if (now && card.shown !== as) {
    card.shown = as;
    const state = now.stopping ? "stopping" : WORDS[now.state];
    byId("turn-note").textContent = `key ${now.key}`;
    byId("turn").replaceChildren(...[
      el("p", { class: "timer" }, el("b", {}, state),
        now.attempt > 1 ? el("span", { class: "mark bad" }, `attempt ${now.attempt}`) : null,
        now.started !== null ? clock(now.started, "ago") : null,
        now.state === "collecting" && now.shuts_at !== null ? clock(now.shuts_at, "until the turn starts") : null),
      part("Waiting", now.waiting.map(message)),
      part("In this turn", now.messages.map(message)),
      part("Tools", now.tools.map((each) => tool(each, now.attempt))),
      part("Questions", now.questions.map(question)),
      now.unsent ? el("p", { class: "note" }, `${now.unsent} ${now.unsent === 1 ? "call is" : "calls are"} not sent yet`) : null,
      part("Failed", now.failed.map((each) => el("li", { class: "bad" }, `${each.texts.join(", ")}: ${each.error}`))),
    ].filter(Boolean));
  }
  if (now) tick(app);
}

// Shows the times again, without building the card again.
export function tick(app) {
  for (const each of byId("turn").querySelectorAll(".clock")) {
    const { at, words } = each.dataset;
    const seconds = words === "ago" ? app.time() - Number(at) : Number(at) - app.time();
    const text = seconds <= 0 ? "" : seconds < 10 ? `${seconds.toFixed(1)} s` : formatDuration(seconds);
    each.textContent = text ? `${words === "ago" ? "for " : ""}${text}${words === "ago" ? "" : ` ${words}`}` : "";
  }
}
