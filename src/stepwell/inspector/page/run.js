// One run of a node flow.
import { el } from "./dom.js";
import { drawFlow } from "./diagram.js";
import { card, facts, link, list, status, text } from "./parts.js";
import { duration, moment } from "./times.js";
import { tree } from "./tree.js";

export function run(app, found, params, width) {
  const can = (...names) => app.allowWrite && names.includes(found.status);
  const button = (name, label, field) => el("button", { type: "button", class: "small", onclick: () => app.ask(name, found, field) }, label);
  const graph = app.flows.runs.find((each) => each.name === found.flow);
  const inside = (node) => graph?.states.find((state) => node === state || node?.startsWith(`${state}/`)) ?? null;
  const marks = ["failed", "stuck"].includes(found.status) && found.node ? { [inside(found.node)]: "bad" } : {};
  const path = graph ? found.path.map(inside).filter(Boolean) : [];
  return [
    card(found.flow_id, app.allowWrite ? "" : "read-only",
      found.reason ? el("p", { class: "warning" }, found.reason) : null,
      found.interrupted ? el("p", { class: "warning" }, "The call that ran it was cancelled. The next worker continues it.") : null,
      facts(["flow", found.flow], ["status", status(found.status)], ["next node", found.node], ["branches", found.branches.map(([line, node]) => `${line}: ${node}`).join(", ")],
        ["started", found.started_at === null ? null : moment(found.started_at)], ["written", moment(found.updated_at)], ["removed", found.expires_at === null ? null : moment(found.expires_at)],
        ["queue", found.queue], ["due for a worker", found.due === null ? null : moment(found.due)], ["priority", found.priority ? String(found.priority) : null], ["partition", found.partition],
        ["tags", found.tags.length ? el("span", {}, ...found.tags.flatMap((tag) => [el("a", { href: link("runs", { tag }) }, tag), " "])) : null],
        ["parent", found.parent ? el("a", { href: link("run", { id: found.parent }) }, found.parent) : null], ["revision", String(found.revision)], ["version", el("code", {}, found.version)]),
      ...found.progress.map((each) => el("p", { class: "timer" }, el("span", {}, each.node), el("progress", { max: each.total, value: each.done, "aria-label": `Items of ${each.node}` }), el("span", {}, `${each.done} of ${each.total} items`))),
      can("queued", "running", "parked", "sleeping", "paused", "failed", "stuck") ? el("p", { class: "actions" },
        can("failed", "stuck", "paused") ? button("retry", found.status === "paused" ? "Resume" : "Retry") : null, can("queued", "running", "parked", "sleeping") ? button("pause", "Pause") : null, button("cancel", "Cancel the run")) : null),
    found.waits.length ? card("Waits", "", found.answered ? el("p", { class: "warning" }, "An answer is stored. A worker continues the run.") : null, ...found.waits.map((wait) => el("div", { class: "wait", "data-wait": wait.id },
      facts(["node", wait.node], ["question", wait.question === null ? null : typeof wait.question === "object" && !Array.isArray(wait.question) ? tree(wait.question) : text(wait.question)], ["accepts", wait.accepts ? text(JSON.stringify(wait.accepts)) : null], ["until", wait.deadline === null ? null : moment(wait.deadline)],
        ["child runs", wait.children.length ? el("span", {}, ...wait.children.flatMap((id) => [el("a", { href: link("run", { id }) }, id), " "])) : null]),
      wait.id && app.allowWrite && !found.answered ? el("p", { class: "actions" }, button("answer", "Answer", wait.id)) : null))) : null,
    found.errors.length ? card("Errors", "newest first", ...found.errors.map((error, at) => el("details", { class: "error", open: at === 0, "data-keep": `error ${error.at}` },
      el("summary", {}, el("b", {}, error.type), `: ${error.message} `, el("span", { class: "note" }, `at ${error.node}, attempt ${error.attempt}, `, moment(error.at))),
      error.traceback ? el("pre", { tabindex: "0" }, error.traceback) : el("p", { class: "empty" }, "No traceback was stored.")))) : null,
    card("Nodes", "the next one, and the last that completed",
      graph ? el("div", { class: "diagram" }, drawFlow(graph, { width, path, current: inside(found.node), ended: found.status === "finished", marks })) : null,
      list(["node", "started", "duration", "attempts"], [...next(found), ...found.completed.toReversed().map((each) => [
        each.node, moment(each.started_at), duration(each.duration), each.started_at === null ? null : String(each.attempts)])], "No node has completed.")),
    card("Shared state", "", tree(found.shared)),
  ].filter(Boolean);
}

// The nodes that the run continues with. They began after the last write.
function next(found) {
  const nodes = [...(found.node ? [found.node] : []), ...found.branches.map(([, node]) => node)];
  const attempts = (node) => (found.errors[0]?.node === node ? String(found.errors[0].attempt) : null);
  return nodes.map((node) => [el("b", { "aria-current": "step" }, node), found.status === "running" ? moment(found.updated_at) : status(found.status), null, attempts(node)]);
}
