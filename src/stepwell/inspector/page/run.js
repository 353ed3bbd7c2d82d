// One run of a node flow.
import { drawFlow } from "./diagram.js";
import { el } from "./dom.js";
import { area, choice, input, valueFields } from "./fields.js";
import { card, facts, link, sameChat, text } from "./parts.js";
import { answerForm } from "./schema.js";
import { status } from "./status.js";
import { timeline } from "./timeline.js";
import { duration, lasting, moment } from "./times.js";
import { tree } from "./tree.js";
import { zoomable } from "./zoom.js";

function tags(found) {
  return found.tags.length ? el("span", {}, ...found.tags.flatMap((tag) => [el("a", { class: "tag", href: link("runs", { tag }) }, tag), " "])) : null;
}

function head(app, found) {
  const can = (...names) => app.allowWrite && names.includes(found.status);
  const button = (name, label, kind = "small") => app.button(name, label, found, kind);
  const again = can("failed", "stuck", "paused");
  return card(found.flow_id, app.allowWrite ? "" : "read-only",
    found.why ? el("p", { class: ["failed", "stuck"].includes(found.status) ? "notice bad" : "notice" }, found.why) : null,
    facts(["status", status(found.status)], ["flow", el("a", { href: link("runs", { flow: found.flow }) }, found.flow)], ["next node", found.node],
      ["started", found.started_at === null ? null : moment(found.started_at)],
      [found.ended ? "took" : found.stopped ? "ran for" : "runs since", found.started_at === null ? null : found.stopped ? duration(found.updated_at - found.started_at) : lasting(found.started_at)],
      ["waits since", found.since === null || found.ended ? null : moment(found.since)], ["last write", moment(found.updated_at)],
      ["queue", found.queue ? el("a", { href: link("queue", { name: found.queue }) }, found.queue) : null], ["priority", found.priority ? String(found.priority) : null],
      ["partition", found.partition ? el("a", { href: link("runs", { partition: found.partition }) }, found.partition) : null],
      ["due for a worker", found.due === null ? null : moment(found.due)], ["removed", found.expires_at === null ? null : moment(found.expires_at)],
      ["branches", found.branches.map(([line, node]) => `${line}: ${node}`).join(", ")], ["tags", tags(found)], ["of the same chat", sameChat(found), "wide"],
      ["parent", found.parent ? el("a", { href: link("run", { id: found.parent }) }, found.parent) : null],
      ["forked from", found.forked_from ? el("a", { href: link("run", { id: found.forked_from }) }, found.forked_from) : null],
      ["revision", found.revision > 1 ? String(found.revision) : null], ["version", el("code", { title: found.version }, found.version), "version"]),
    ...found.progress.map((each) => el("p", { class: "timer", "data-key": each.node }, el("span", {}, each.node), el("progress", { max: each.total, value: each.done, "aria-label": `Items of ${each.node}` }), el("span", {}, `${each.done} of ${each.total} items`))),
    can("queued", "running", "parked", "sleeping", "paused", "failed", "stuck") ? el("p", { class: "actions" },
      again ? button("retry", found.status === "paused" ? "Resume" : "Retry", "small main") : null,
      again && nodesOf(app, found).length ? button("retry_at", "Retry at a node") : null,
      can("stuck") && found.calls.length ? button("complete", "Complete a call") : null,
      nodesOf(app, found).length && found.started_at !== null ? button("fork", "Fork at a node") : null,
      can("queued", "running", "parked", "sleeping") ? button("pause", "Pause") : null, button("cancel", "Cancel the run", "small danger apart")) : null);
}

function nodesOf(app, found) {
  return app.flows.runs.find((each) => each.name === found.flow)?.paths ?? [];
}

function waits(app, found) {
  if (!found.waits.length) return null;
  return card("Waits", "", found.answered ? el("p", { class: "warning" }, "An answer is stored. A worker continues the run.") : null, ...found.waits.map((wait) => el("div", { class: "wait", "data-wait": wait.id, "data-key": wait.id || wait.node },
    facts(["node", wait.node], ["since", wait.since === null ? null : moment(wait.since)], ["until", wait.deadline === null ? null : moment(wait.deadline)],
      ["question", wait.question === null ? null : typeof wait.question === "object" && !Array.isArray(wait.question) ? tree(wait.question) : text(wait.question), "wide"], ["accepts", wait.accepts ? el("code", {}, JSON.stringify(wait.accepts)) : null, "wide"],
      ["child runs", wait.children.length ? el("span", {}, ...wait.children.flatMap((id) => [el("a", { href: link("run", { id }) }, id), " "])) : null, "wide"]),
    wait.id && !found.answered ? el("p", { class: "actions" }, app.button("answer", "Answer", found, "small main", wait.id)) : null)));
}

function errors(found) {
  if (!found.errors.length) return null;
  return card("Errors", "newest first", ...found.errors.map((error, at) => el("details", { class: "error", open: at === 0, "data-key": `error ${error.at}` },
    el("summary", {}, el("b", {}, error.type), `: ${error.message} `, el("span", { class: "note" }, `at ${error.node}, attempt ${error.attempt}, `, moment(error.at))),
    error.traceback ? el("pre", { tabindex: "0" }, error.traceback) : el("p", { class: "empty" }, "No traceback was stored."))));
}

function graph(app, found, width) {
  const known = app.flows.runs.find((each) => each.name === found.flow);
  if (!known) return null;
  const inside = (node) => known.states.find((state) => node === state || node?.startsWith(`${state}/`)) ?? null;
  const current = inside(found.node), isBad = ["failed", "stuck"].includes(found.status);
  const path = found.history.filter((entry) => entry.action !== null).map((entry) => inside(entry.node)).filter(Boolean);
  const visits = new Map();
  for (const node of path) visits.set(node, (visits.get(node) ?? 0) + 1);
  const notes = Object.fromEntries([...visits].filter(([, count]) => count > 1).map(([node, count]) => [node, `${count} visits`]));
  return card("Graph", "what was run is blue; the present node is filled", zoomable(known.name, drawFlow(known, { width, path, current, notes, ended: found.status === "finished", marks: isBad && current ? { [current]: "bad" } : {} }), width));
}

function showRun(app, found, params, width) {
  const edit = (name) => (app.allowWrite && !found.ended ? el("span", { class: "edits" },
    el("button", { type: "button", class: "quiet small", "aria-label": `Change ${name}`, onclick: () => app.ask("set_shared", found, name) }, "Change"),
    el("button", { type: "button", class: "quiet small", "aria-label": `Remove ${name}`, onclick: () => app.ask("remove_shared", found, name) }, "Remove")) : null);
  return [head(app, found), waits(app, found), errors(found),
    card("Timeline", found.dropped ? `${found.dropped} older nodes were dropped` : "", el("div", { class: "tall" }, timeline(found) ?? el("p", { class: "empty" }, "No node has completed."))),
    graph(app, found, width),
    card("Shared state", "", tree(found.shared, edit), app.allowWrite && !found.ended ? el("p", { class: "actions" }, el("button", { type: "button", class: "small", onclick: () => app.ask("set_shared", found) }, "Set a field")) : null),
  ].filter(Boolean);
}

const OUTCOMES = { accepted: "The answer was accepted. A worker continues the run.", "answered before": "Too late: the question was answered before.", "too late": "Too late: the time of the question is over." };
const nodeChoice = (app, found) => choice("at", "Node", nodesOf(app, found), found.node);

const forms = {
  retry: (app, found) => ({ title: "Retry this run?", main: "Retry", note: "The run enters the queue, and a worker continues it at the node that it stopped at.",
    fields: found.calls?.length ? [el("p", { class: "notice bad" }, `The outcome of these calls is unknown, and they are made again: ${found.calls.join(", ")}. If one has happened, complete it instead.`)] : [], done: "The run is in the queue." }),
  retry_at: (app, found) => ({ title: "Retry at a node", main: "Retry", note: "The run enters the queue, and a worker continues it at this node, with the shared state as it is now.", fields: [nodeChoice(app, found)], done: "The run is in the queue." }),
  fork: (app, found) => ({ title: "Fork at a node", main: "Fork", note: "A new run begins at this node with the state of this one, which stays as it is.", fields: [nodeChoice(app, found)],
    done: (answer) => `The run ${answer.forked} is in the queue.`, goes: (answer) => link("run", { id: answer.forked }) }),
  complete: (app, found) => ({ title: "Complete a call", main: "Complete", note: `Say what the call has returned: ${found.calls.join(", ")}. Find out first that it has happened.`,
    fields: [input("node", "Node", found.node ?? ""), area("value", "Result (JSON, or else a text)", { autofocus: true })], done: "The run is in the queue." }),
  pause: () => ({ title: "Pause this run?", main: "Pause", note: "The run stops after the nodes that it runs now. No worker continues it until it is resumed.", fields: [], done: "The run is paused." }),
  cancel: (app, found) => ({ title: "Cancel this run?", main: "Cancel the run", danger: true, confirm: found.flow_id, note: "The run ends as cancelled, wherever it runs.", fields: [input("reason", "Reason (stored with the run)", "", { required: false })], done: "The run was cancelled." }),
  set_shared: (app, found, name) => ({ title: name === undefined ? "Set a field" : `Change ${name}`, main: "Set", note: "The value is JSON, or else a text. The run goes on with it when it is continued.", done: "The field was set.", ...valueFields(found.shared, name) }),
  remove_shared: (app, found, name) => ({ title: `Remove ${name}?`, main: "Remove", danger: true, fields: [el("input", { name: "field", type: "hidden", value: name })], done: "The field was removed.",
    differs: () => [[name, JSON.stringify(found.shared[name]), undefined]] }),
  answer: (app, found, id) => {
    const asked = found.waits.find((each) => each.id === id), question = asked.question;
    const form = answerForm(asked.accepts);
    return {
      title: "Answer", main: "Answer", ...form, done: (answer) => OUTCOMES[answer.outcome],
      fields: [question === null ? null : el("div", { class: "asked" }, typeof question === "object" && !Array.isArray(question) ? tree(question) : el("p", { class: "said" }, text(question))), el("input", { name: "wait", type: "hidden", value: id }), ...form.fields].filter(Boolean),
    };
  },
};

export const run = { name: "run", title: "Run", of: "runs", source: "run", titleOf: (params) => params.id, show: showRun, forms };
