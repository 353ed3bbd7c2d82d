// The right-hand side: flow, timer, record and node flows. The events are in events.js.
import { act, banner, byId, el, keyed } from "./dom.js";
import { drawFlow, formatDuration } from "./diagram.js";
import { editRecord, stepBack } from "./dialogs.js";

const TOOLS = { Edit: "Change the state and the data", "Step back": "Undo the last update: its write and its messages" };

function value(given) {
  if (given !== null && typeof given === "object") return el("pre", {}, JSON.stringify(given, null, 2));
  return el("span", { class: typeof given }, typeof given === "string" ? given : String(given));
}

// The machine whose record is shown for a chat: one with a record, else the first.
export function currentRecord(app, place) {
  const found = app.sections.places?.[`${place.room}/${place.user}/${place.thread ?? 0}`] ?? [];
  const shown = found.filter((each) => each.key !== null).map((each) => ({ ...each, ...(app.sections.records?.[`${each.bot}\n${each.key}`] ?? { record: null, path: [], changed: [], fields: [], flow: null, writes: 0 }) }));
  return shown.find((each) => each.record) ?? shown.find((each) => each.path.length) ?? shown[0] ?? null;
}

// Draws a flow into a box, unless the box shows it already.
function draw(box, flow, { current, path, ended }, ...more) {
  const as = JSON.stringify([flow, current, path, box.clientWidth]);
  if (as === box.drawnAs || !box.clientWidth) return;
  box.drawnAs = as;
  box.replaceChildren(drawFlow(flow, { current, path, ended, width: box.clientWidth }), ...more);
}

function tabs(box, items, choose) {
  keyed(box, items.length > 1 ? items : [], (item) => item.id,
    (item) => el("button", { type: "button", class: `tab ${item.kind}`, "aria-pressed": String(item.on), title: item.id, onclick: () => choose(item.id) }, item.id));
}

export function renderFlow(app, now) {
  const machines = app.sections.machines ?? [];
  const flows = machines.flatMap((machine) => machine.flows.map((flow) => ({ bot: machine.bot, flow })));
  const box = byId("diagram");
  if (!flows.length) {
    box.drawnAs = "";
    byId("flows").replaceChildren();
    byId("flow-title").textContent = "Flow";
    const dead = app.sections.bot?.status !== "running";
    box.replaceChildren(el("p", { class: "empty" }, dead ? "The bot is not running." : "No flow yet. Flows of stepwell.fsm appear here when the bot has started."));
    return;
  }
  const active = now?.record?.flow ?? now?.flow;
  const own = flows.find((each) => each.flow.name === active && (!now || each.bot === now.bot));
  const chosen = flows.find((each) => each.flow.name === app.chosenFlow) ?? own ?? flows[0];
  byId("flow-title").textContent = flows.length > 1 ? "Flow" : chosen.flow.name;
  tabs(byId("flows"), flows.map(({ flow }) => ({ id: flow.name, on: flow === chosen.flow, kind: flow.name === now?.record?.flow ? "live" : "" })),
    (name) => { app.chosenFlow = name; app.render(); });
  const here = active === chosen.flow.name;
  const current = here ? now?.record?.state ?? null : null;
  const path = here ? now?.path ?? [] : [];
  draw(box, chosen.flow, { current, path, ended: path.length > 0 && !current },
    chosen.flow.open ? el("p", { class: "note" }, "This flow allows every transition.") : chosen.flow.seen ? el("p", { class: "note" }, "The states seen so far.") : "");
}

export function renderTimer(app, now) {
  const box = byId("timer");
  const deadline = now?.record?.deadline;
  box.hidden = deadline === null || deadline === undefined;
  if (box.hidden) { box.replaceChildren(); box.shown = null; return; }
  const flow = (app.sections.machines ?? []).find((each) => each.bot === now.bot)?.flows.find((each) => each.name === now.record.flow);
  const timeout = flow?.timeouts[now.record.state];
  const id = JSON.stringify([now.bot, now.key, deadline, now.record.state]);
  if (box.shown !== id) {
    box.shown = id;
    box.left = el("b", { class: "left" });
    box.bar = el("progress", { max: timeout?.seconds ?? 60, "aria-label": "Time left" });
    box.replaceChildren(
      el("span", {}, box.left, ` left, then ${timeout?.to ?? "on_timeout"}`), box.bar,
      el("button", { type: "button", class: "small", onclick: () => act("fire_timer", { bot: now.bot, key: now.key }) }, "Fire timer now"));
  }
  const left = Math.max(0, deadline - app.time());
  box.left.textContent = left > 90 ? `${Math.floor(left / 60)} min ${Math.floor(left % 60)} s` : formatDuration(left);
  box.bar.value = left;
}

// Whether the events have a write of a record, which a step back can undo.
function isWritten(app, key) {
  return (app.sections.timeline ?? []).some((n) => {
    const item = app.sections[`event ${n}`];
    return item?.key === key && item.events.some((event) => event.kind === "record");
  });
}

export function renderRecord(app, now) {
  const box = byId("record");
  const note = byId("record-note");
  const record = now?.record;
  note.textContent = [now?.key ? `key ${now.key}` : "", record ? `version ${record.version.split(".")[0]}` : ""].filter(Boolean).join(", ");
  const as = JSON.stringify([now, isWritten(app, now?.key)]);
  if (box.shown === as) return;
  box.shown = as;
  keyed(byId("record-tools"), [...(record && !record.error ? ["Edit"] : []), ...(now?.key && isWritten(app, now.key) ? ["Step back"] : [])], (name) => name,
    (name) => el("button", { type: "button", class: "quiet small", title: TOOLS[name], onclick: () => (name === "Edit" ? editRecord(app, byId("record").now) : stepBack(byId("record").now)) }, name));
  box.now = now;
  if (!record) {
    const machines = app.sections.machines ?? [];
    const ended = now && now.writes > 0;
    box.replaceChildren(el("p", { class: `empty${ended ? " fresh" : ""}` }, ended ? "The conversation has ended and its record was deleted." : machines.length ? "No record: no conversation has started here." : "Records of stepwell.fsm appear here."));
    return;
  }
  if (record.error) {
    box.replaceChildren(el("p", { class: "empty bad" }, record.error));
    return;
  }
  const row = (name, given, fresh, gone) => el("tr", { class: `${fresh ? "fresh" : ""}${gone ? " gone" : ""}`, "data-field": name },
    el("th", { scope: "row" }, name), el("td", {}, given, fresh ? el("span", { class: "mark" }, gone ? "removed" : "changed") : null));
  const fields = Object.entries(record.data);
  const gone = now.fields.filter((name) => !(name in record.data));
  box.replaceChildren(el("table", {},
    el("tbody", {},
      row("flow", value(record.flow), now.changed.includes("flow")),
      row("state", value(record.state), now.changed.includes("state")),
      record.waiting ? row("waiting flows", value(record.waiting), false) : null),
    el("tbody", { class: "data" },
      fields.length || gone.length ? null : el("tr", {}, el("th", { scope: "row" }, "data"), el("td", { class: "none" }, "empty")),
      ...fields.map(([name, given]) => row(name, value(given), now.fields.includes(name))),
      ...gone.map((name) => row(name, "", true, true)))));
}

export function renderRuns(app) {
  const { runs = [], graphs = [] } = app.sections.runs ?? {};
  byId("runs-card").hidden = !runs.length;
  if (!runs.length) return;
  const run = runs.find((each) => each.id === app.chosenRun) ?? runs[0];
  byId("run-title").textContent = run.flow;
  tabs(byId("run-tabs"), runs.slice(0, 6).map((each) => ({ id: each.id, on: each === run, kind: "run" })), (id) => { app.chosenRun = id; app.render(); });
  const { progress } = run;
  const words = { running: `running${run.node ? ` ${run.node}` : ""}`, waiting: run.question !== null ? "waiting for an answer" : "waiting", finished: "finished", cancelled: "cancelled", failed: `failed: ${run.error}`, stuck: `stuck: ${run.error}` };
  byId("run-state").replaceChildren(
    el("span", {}, el("b", { class: run.status === "failed" ? "bad" : "" }, words[run.status])),
    run.question !== null ? el("q", { class: "question" }, typeof run.question === "string" ? run.question : JSON.stringify(run.question)) : "",
    progress ? el("progress", { max: progress.total ?? undefined, value: progress.total === null ? undefined : progress.done, "aria-label": "Items done" }) : "",
    progress ? el("span", { class: "items" }, progress.total === null ? `${progress.done} items` : `${progress.done} of ${progress.total} items`) : "");
  const graph = graphs.find((each) => each.name === run.flow);
  if (graph) draw(byId("run-diagram"), graph, { current: run.at, path: run.path, ended: run.status === "finished" });
}

export function renderBot(app) {
  const bot = app.sections.bot;
  if (!bot) return;
  const lost = app.ready && !app.connected;
  const status = lost ? "not connected" : { running: "running", failed: `exited with code ${bot.exit}`, ended: "exited" }[bot.status] ?? "starting";
  byId("bot").replaceChildren(
    el("span", { class: `dot ${lost ? "lost" : bot.status}`, "aria-hidden": "true" }), el("span", { class: "file", title: bot.storage ? `records are stored in ${bot.storage}` : "" }, bot.file),
    el("span", { class: "status", "data-starts": bot.starts }, bot.pid && !lost ? `${status}, process ${bot.pid}` : status));
  byId("output-card").hidden = !bot.output?.length;
  const output = byId("output");
  const text = (bot.output ?? []).join("\n");
  if (output.textContent !== text) {
    // Follow new lines, unless an earlier one is being read.
    const low = output.scrollHeight - output.scrollTop - output.clientHeight < 30;
    output.textContent = text;
    if (low) output.scrollTop = output.scrollHeight;
  }
  if (app.connected) banner(bot.status === "failed" && `The bot exited with an error${text ? `: ${text.split("\n").pop()}` : ""}. Fix its file, or restart it.`);
}
