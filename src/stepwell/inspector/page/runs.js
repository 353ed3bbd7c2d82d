// The list of runs.
import { el } from "./dom.js";
import { ages, field, select } from "./filters.js";
import { pager } from "./pager.js";
import { amount, card, counted, link, nothing, pick, pickAll, sortable, table, text } from "./parts.js";
import { status } from "./status.js";
import { duration, lasting, moment } from "./times.js";

const STATUSES = ["queued", "running", "parked", "sleeping", "paused", "failed", "stuck", "cancelled", "finished"];
const COLUMNS = [{ label: "run", sort: "run", least: true }, { label: "status" }, { label: "flow", sort: "flow", least: true }, { label: "node", sort: "node", least: true },
  { label: "started", sort: "started" }, { label: "duration", sort: "duration", class: "right" }, { label: "waiting", sort: "waiting", class: "right" },
  { label: "priority", sort: "priority", class: "right" }, { label: "partition", sort: "partition", least: true }, { label: "tags" }, { label: "reason or question", class: "fill" }];

// The cells of a run that every list of runs has.
export function cellsOf(row) {
  return [
    el("a", { href: link("run", { id: row.flow_id }) }, row.flow_id), status(row.status), row.flow, row.node,
    row.started_at ? moment(row.started_at) : null,
    row.started_at ? (row.stopped ? duration(row.updated_at - row.started_at) : lasting(row.started_at)) : null,
    row.since && !row.ended ? lasting(row.since) : null,
    row.priority ? String(row.priority) : null, row.partition ?? null,
    row.tags.length ? el("span", { class: "tags" }, ...row.tags.flatMap((tag) => [el("a", { class: "tag", href: link("runs", { tag }) }, tag), " "])) : null,
    row.why ?? (row.question === null || row.question === undefined ? null : text(row.question))];
}

// The statuses with their counts, as links that filter.
function statuses(found, params) {
  const tab = (name, content) => el("a", { class: "button tab", href: link("runs", { ...params, status: name, after: null, id: null }), "aria-current": (params.status ?? null) === name ? "true" : null }, ...content);
  return el("nav", { class: "tabs", "aria-label": "Counts" }, tab(null, ["Not ended"]),
    ...["stuck", "failed", "parked", "paused", "running", "queued", "sleeping", "finished", "cancelled"].filter((name) => found.counts[name] || params.status === name)
      .map((name) => tab(name, [status(name), " ", el("span", { class: "number" }, amount(...(found.counts[name] ?? [0, false])))])));
}

// What can be done with all chosen runs: each only with those of a status that fits.
function chosenBar(app, rows) {
  const chosen = rows.filter((row) => app.chosen.has(row.flow_id));
  if (!chosen.length) return null;
  const button = (name, label, statuses, kind = "small") => {
    const fit = chosen.filter((row) => statuses.includes(row.status));
    return fit.length ? el("button", { type: "button", class: kind, onclick: () => app.askAll(name, fit, "run") }, fit.length === chosen.length ? label : `${label} ${fit.length}`) : null;
  };
  return el("div", { class: "chosen-bar", role: "group", "aria-label": "Chosen runs" }, el("b", {}, `${counted(chosen.length, "run")} chosen`),
    button("retry", "Retry", ["failed", "stuck"], "small main"), button("retry", "Resume", ["paused"], "small main"), button("pause", "Pause", ["queued", "running", "parked", "sleeping"]),
    button("cancel", "Cancel the runs", STATUSES.slice(0, 7), "small danger apart"),
    el("button", { type: "button", class: "small quiet", onclick: () => { app.chosen.clear(); app.redraw(); } }, "Clear"));
}

function showRuns(app, found, params) {
  const columns = sortable(COLUMNS, "runs", params), ids = found.rows.map((row) => row.flow_id);
  const picks = app.allowWrite ? [{ label: "", class: "pick", head: pickAll(app, ids) }] : [];
  return [card("Runs", params.status ? "" : params.sort ? "that have not ended" : "that have not ended, those that need a look first", statuses(found, params), app.allowWrite ? chosenBar(app, found.rows) : null,
    found.rows.length
      ? table([...picks, ...columns], found.rows.map((row) => ({ id: row.flow_id, class: app.chosen.has(row.flow_id) ? "chosen" : "", cells: [...(app.allowWrite ? [pick(app, row.flow_id, row.flow_id)] : []), ...cellsOf(row)] })))
      : nothing("No run matches.", params.status || Object.keys(params).length ? "Reset the filter to see all runs." : "Submit one with flow.submit(), and it appears here."),
    found.sorted !== undefined && !found.all ? el("p", { class: "note" }, `Sorted are the first ${counted(found.sorted, "run")} that match; filter by flow, status or tag to sort all of them.`) : null,
    pager(app, found, "runs", params, "run"))];
}

export const runs = {
  name: "runs", title: "Runs", go: "r", source: "runs", show: showRuns,
  filters: (params) => [field("flow", "Flow", params.flow), select("status", "Status", [["", "not ended"], ...STATUSES.map((each) => [each, each])], params.status),
    field("node", "Node", params.node), field("tag", "Tag", params.tag, { placeholder: "customer=7" }), field("partition", "Partition", params.partition), field("field", "Shared field", params.field, { placeholder: "order=7" }),
    select("older", "Not written for", ages(params.older), params.older), field("id", "Id", params.id)],
  searches: (given) => [{ label: `Run ${given}`, href: link("run", { id: given }) }, { label: `Runs of the flow ${given}`, href: link("runs", { flow: given }) }],
};
