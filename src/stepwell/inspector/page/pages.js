// The pages: each function returns the elements of one page from the JSON of the server.
import { el } from "./dom.js";
import { drawFlow } from "./diagram.js";
import { moment, span } from "./times.js";
import { tree } from "./tree.js";

export function link(page, params = {}) {
  const query = new URLSearchParams(Object.entries(params).filter(([, value]) => value !== null && value !== undefined));
  return `#/${page}${query.size ? `?${query}` : ""}`;
}

function card(title, note, ...children) {
  return el("section", { class: "card", "aria-label": title }, el("header", {}, el("h2", {}, title), note ? el("span", { class: "note" }, note) : null), ...children);
}

function list(heads, rows, empty) {
  if (!rows.length) return el("p", { class: "empty" }, empty);
  return el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Table" }, el("table", { class: "list" },
    el("thead", {}, el("tr", {}, ...heads.map((head) => el("th", { scope: "col" }, head)))),
    el("tbody", {}, ...rows.map((cells) => el("tr", {}, ...cells.map((cell, at) => el("td", { "data-head": heads[at] }, cell ?? el("span", { class: "none" }, "–"))))))));
}

const BAD = new Set(["failed", "stuck", "unreadable"]);

function status(name) {
  return el("span", { class: `pill ${BAD.has(name) ? "bad" : name}` }, name);
}

function facts(...pairs) {
  return el("dl", { class: "facts" }, ...pairs.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

function isRemoved(app, flow, state) {
  const known = app.flows.conversations.find((each) => each.name === flow);
  return Boolean(known && state !== null && !known.states.includes(state));
}

function stateOf(app, flow, state) {
  if (state === null) return el("span", { class: "none" }, "no state");
  return el("span", {}, state, isRemoved(app, flow, state) ? el("span", { class: "mark bad" }, "not in the flow") : null);
}

// Overview

export function overview(app, found) {
  if (found.states === null) return [card("Counts", "", el("p", { class: "empty", role: "status" }, "Counting …")), timersOf(app, found), schedulesOf(found)].filter(Boolean);
  const bots = [...new Set(found.states.map((row) => row.bot))];
  const pages = [];
  for (const bot of bots) {
    const rows = found.states.filter((row) => row.bot === bot);
    const total = rows.reduce((sum, row) => sum + row.records, 0);
    pages.push(card(bot, `${total} conversations${found.complete ? "" : `; at most ${found.counted} of a bot are counted`}`,
      list(["flow", "state", "conversations", "oldest write"], rows.map((row) => [
        row.flow, stateOf(app, row.flow, row.state),
        el("a", { href: link("records", { bot, flow: row.flow ?? "", state: row.state ?? "" }) }, String(row.records)), moment(row.oldest)]), "No conversations.")));
  }
  if (!bots.length) pages.push(card("Conversations", "", el("p", { class: "empty" }, "This storage has no conversations yet.")));
  pages.push(card("Runs", found.complete ? "" : `at most ${found.counted} are counted`,
    list(["flow", "status", "runs", "oldest write"], found.runs.map((row) => [row.flow || null, status(row.status),
      ["unreadable", "unknown"].includes(row.status) ? String(row.runs) : el("a", { href: link("runs", { flow: row.flow, status: row.status }) }, String(row.runs)), row.oldest ? moment(row.oldest) : null]), "This storage has no runs of node flows.")));
  return [...pages, timersOf(app, found), schedulesOf(found)].filter(Boolean);
}

function timersOf(app, found) {
  return card("Timers", found.overdue ? "" : "the next ones",
    found.overdue ? el("p", { class: "warning" }, `${found.overdue} timers are more than a minute overdue. Is the bot running?`) : null,
    list(["bot", "key", "state", "due"], found.timers.map((row) => [row.bot, el("a", { href: link("record", { bot: row.bot, key: row.key }) }, row.key), stateOf(app, row.flow, row.state), moment(row.deadline)]), "No timers."));
}

function schedulesOf(found) {
  if (!found.schedules.length) return null;
  return card("Schedules", "", list(["schedule", "flow", "times", "next", "last run"], found.schedules.map((row) => (row.error
      ? [row.name, null, row.error, null, null]
      : [row.name, row.flow, row.times, row.paused ? status("paused") : moment(row.next), row.last_id ? el("a", { href: link("run", { id: row.last_id }) }, moment(row.last)) : null])), ""));
}

// Flows

export function flows(app, found, width) {
  if (found.states === null) return [card("Flows", "", el("p", { class: "empty", role: "status" }, "Counting …"))];
  const pages = [];
  for (const flow of app.flows.conversations) {
    const rows = found.states.filter((row) => row.flow === flow.name);
    for (const bot of [...new Set(rows.map((row) => row.bot))].concat(rows.length ? [] : [null])) {
      const own = rows.filter((row) => row.bot === bot && row.state !== null);
      const notes = Object.fromEntries(own.map((row) => [row.state, `${row.records}, for ${span(Date.now() / 1000 - row.oldest)}`]));
      const links = bot === null ? {} : Object.fromEntries(own.map((row) => [row.state, link("records", { bot, flow: flow.name, state: row.state })]));
      const removed = own.filter((row) => isRemoved(app, flow.name, row.state)).map((row) => row.state);
      const label = `${flow.name}: ${own.map((row) => `${row.records} in ${row.state}`).join(", ") || "no conversations"}`;
      pages.push(card(flow.name, bot === null ? "no conversations" : `conversations of ${bot} in each state, and the time since the oldest write`,
        removed.length ? el("p", { class: "warning" }, `Conversations are in states that the flow does not have: ${removed.join(", ")}.`) : null,
        el("div", { class: "diagram" }, drawFlow({ ...flow, states: [...flow.states, ...removed] }, { width, notes, links, label }))));
    }
  }
  for (const flow of app.flows.runs) {
    const rows = found.runs.filter((row) => row.flow === flow.name);
    pages.push(card(flow.name, "node flow", el("p", { class: "statuses" }, ...rows.flatMap((row) => [el("a", { href: link("runs", { flow: flow.name, status: row.status }) }, status(row.status), ` ${row.runs}`), " "])),
      el("div", { class: "diagram" }, drawFlow(flow, { width, label: `${flow.name}: ${flow.states.join(", ")}` }))));
  }
  if (!pages.length) pages.push(card("Flows", "", el("p", { class: "empty" }, "Start the inspector with your flows to see their diagrams: stepwell inspect URL bot.py")));
  return pages;
}

// Lists

function more(app, found, page, params) {
  if (app.searching) {
    return el("p", { class: "pager", role: "status" }, `Searching: ${found.rows.length} found in ${found.looked} records. `, el("button", { type: "button", class: "small", onclick: () => app.stop() }, "Stop"));
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
  return [card("Runs", params.status ? "" : "that have not ended", list(["run", "flow", "status", "node", "written", "why"], found.rows.map((row) => [
    el("a", { href: link("run", { id: row.flow_id }) }, row.flow_id), row.flow, status(row.status), row.node, moment(row.updated_at),
    row.why ?? (row.question === null || row.question === undefined ? null : text(row.question))]), "No run matches."), more(app, found, "runs", params))];
}

function text(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

// One record

export function record(app, found) {
  const button = (name, label, field) => (app.allowWrite ? el("button", { type: "button", class: "small", onclick: () => app.ask(name, found, field) }, label) : null);
  return [
    card(`${found.bot} ${found.key}`, app.allowWrite ? "" : "read-only",
      ...found.damage.map((each) => el("p", { class: "warning" }, `Unreadable: ${each}`)),
      facts(["flow", found.flow], ["state", stateOf(app, found.flow, found.state)], ["revision", found.revision === null ? null : String(found.revision)],
        ["written", moment(found.written_at)], ["timer", found.deadline === null ? null : moment(found.deadline)], ["expires", found.expires_at === null ? null : moment(found.expires_at)], ["held", found.held === null ? null : `by a handler, for ${Math.ceil(found.held)} s more`],
        ["waiting flows", found.waiting.map(([flow, state]) => `${flow}/${state}`).join(", ")], ["unsent answers", found.unsent ? String(found.unsent) : null],
        ["expired, not handled", found.expired ? String(found.expired) : null],
        ["tags", found.tags.length ? el("span", {}, ...found.tags.flatMap((tag) => [el("a", { href: link("records", { bot: found.bot, tag }) }, tag), " "])) : null],
        ["version", el("code", {}, found.version)]),
      app.allowWrite ? el("p", { class: "actions" }, button("set_state", "Set state"), button("set_field", "Set a field"), button("clear", "Clear"), button("forget", "Forget")) : null),
    card("Data", "", tree(found.data, (name) => (app.allowWrite ? el("span", { class: "edits" },
      el("button", { type: "button", class: "quiet small", "aria-label": `Change ${name}`, onclick: () => app.ask("set_field", found, name) }, "Change"),
      el("button", { type: "button", class: "quiet small", "aria-label": `Remove ${name}`, onclick: () => app.ask("remove_field", found, name) }, "Remove")) : null))),
    Object.keys(found.profile).length ? card("Profile", "kept when the conversation ends", tree(found.profile)) : null,
    card("History", "previous states, the newest last", found.history.length || found.state !== null
      ? el("ol", { class: "path" }, ...found.history.map((state) => el("li", {}, state)), found.state === null ? null : el("li", { "aria-current": "step" }, found.state))
      : el("p", { class: "empty" }, "No previous states.")),
  ].filter(Boolean);
}

// One run

export function run(app, found, width) {
  const can = (...names) => app.allowWrite && names.includes(found.status);
  const button = (name, label, field) => el("button", { type: "button", class: "small", onclick: () => app.ask(name, found, field) }, label);
  const graph = app.flows.runs.find((each) => each.name === found.flow);
  const inside = (node) => graph?.states.find((state) => node === state || node?.startsWith(`${state}/`)) ?? null;
  const path = graph ? found.path.map(inside).filter(Boolean) : [];
  return [
    card(found.flow_id, app.allowWrite ? "" : "read-only",
      found.reason ? el("p", { class: "warning" }, found.reason) : null,
      found.interrupted ? el("p", { class: "warning" }, "The call that ran it was cancelled. The next worker continues it.") : null,
      facts(["flow", found.flow], ["status", status(found.status)], ["next node", found.node], ["branches", found.branches.map(([line, node]) => `${line}: ${node}`).join(", ")],
        ["started", found.started_at === null ? null : moment(found.started_at)], ["written", moment(found.updated_at)], ["removed", found.expires_at === null ? null : moment(found.expires_at)],
        ["queue", found.queue], ["due for a worker", found.due === null ? null : moment(found.due)], ["priority", found.priority ? String(found.priority) : null], ["partition", found.partition],
        ["parent", found.parent ? el("a", { href: link("run", { id: found.parent }) }, found.parent) : null], ["revision", String(found.revision)], ["version", el("code", {}, found.version)]),
      ...found.progress.map((each) => el("p", { class: "timer" }, el("span", {}, each.node), el("progress", { max: each.total, value: each.done, "aria-label": `Items of ${each.node}` }), el("span", {}, `${each.done} of ${each.total} items`))),
      can("queued", "running", "parked", "sleeping", "paused", "failed", "stuck") ? el("p", { class: "actions" },
        can("failed", "stuck", "paused") ? button("retry", found.status === "paused" ? "Resume" : "Retry") : null, can("queued", "running", "parked", "sleeping") ? button("pause", "Pause") : null, button("cancel", "Cancel the run")) : null),
    found.waits.length ? card("Waits", "", found.answered ? el("p", { class: "warning" }, "An answer is stored. A worker continues the run.") : null, ...found.waits.map((wait) => el("div", { class: "wait", "data-wait": wait.id },
      facts(["node", wait.node], ["question", wait.question === null ? null : text(wait.question)], ["until", wait.deadline === null ? null : moment(wait.deadline)],
        ["child runs", wait.children.length ? el("span", {}, ...wait.children.flatMap((id) => [el("a", { href: link("run", { id }) }, id), " "])) : null]),
      wait.id && app.allowWrite && !found.answered ? el("p", { class: "actions" }, button("answer", "Answer", wait.id)) : null))) : null,
    found.errors.length ? card("Errors", "newest first", ...found.errors.map((error, at) => el("details", { class: "error", open: at === 0, "data-keep": `error ${error.at}` },
      el("summary", {}, el("b", {}, error.type), `: ${error.message} `, el("span", { class: "note" }, `at ${error.node}, attempt ${error.attempt}, `, moment(error.at))),
      error.traceback ? el("pre", { tabindex: "0" }, error.traceback) : el("p", { class: "empty" }, "No traceback was stored.")))) : null,
    card("Nodes", "the last that completed, the newest last",
      graph ? el("div", { class: "diagram" }, drawFlow(graph, { width, path, current: inside(found.node), ended: found.status === "finished" })) : null,
      found.path.length ? el("ol", { class: "path" }, ...found.path.map((node) => el("li", {}, node)), found.node ? el("li", { "aria-current": "step" }, found.node) : null) : el("p", { class: "empty" }, "No node has completed.")),
    card("Shared state", "", tree(found.shared)),
  ].filter(Boolean);
}
