// Elements that several pages have.
import { el } from "./dom.js";

export function link(page, params = {}) {
  const query = new URLSearchParams(Object.entries(params).filter(([, value]) => value !== null && value !== undefined));
  return `#/${page}${query.size ? `?${query}` : ""}`;
}

export function card(title, note, ...children) {
  return el("section", { class: "card", "aria-label": title }, el("header", {}, el("h2", {}, title), note ? el("span", { class: "note" }, note) : null), ...children);
}

export function list(heads, rows, empty) {
  if (!rows.length) return el("p", { class: "empty" }, empty);
  return el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Table" }, el("table", { class: "list" },
    el("thead", {}, el("tr", {}, ...heads.map((head) => el("th", { scope: "col" }, head)))),
    el("tbody", {}, ...rows.map((cells) => el("tr", {}, ...cells.map((cell, at) => el("td", { "data-head": heads[at] }, cell ?? el("span", { class: "none" }, "–"))))))));
}

const BAD = new Set(["failed", "stuck", "unreadable"]);

export function status(name) {
  return el("span", { class: `pill ${BAD.has(name) ? "bad" : name}` }, name);
}

export function facts(...pairs) {
  return el("dl", { class: "facts" }, ...pairs.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

// A count; with more, only this many were counted so far.
export function amount(count, more) {
  return more ? `${count}+` : String(count);
}

// A count with its noun.
export function counted(count, noun, more) {
  return `${amount(count, more)} ${noun}${count === 1 && !more ? "" : "s"}`;
}

export function text(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

export function isRemoved(app, flow, state) {
  const known = app.flows.conversations.find((each) => each.name === flow);
  return Boolean(known && state !== null && !known.states.includes(state));
}

// Rows of one bot in the order of the flows; removed and unknown states are last.
export function inOrder(app, rows) {
  const place = (row) => {
    const at = app.flows.conversations.find((each) => each.name === row.flow)?.states.indexOf(row.state) ?? -1;
    return at < 0 ? Infinity : at;
  };
  return rows.toSorted((one, two) => (one.flow === two.flow ? place(one) - place(two) || 0 : 0));
}

export function stateOf(app, flow, state) {
  if (state === null) return el("span", { class: "none" }, "no state");
  return el("span", {}, state, isRemoved(app, flow, state) ? el("span", { class: "mark bad" }, "not in the flow") : null);
}
