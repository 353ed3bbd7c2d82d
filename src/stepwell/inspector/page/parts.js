// Elements that several pages have.
import { el } from "./dom.js";

export function link(page, params = {}) {
  const query = new URLSearchParams(Object.entries(params).filter(([, value]) => value !== null && value !== undefined));
  return `#/${page}${query.size ? `?${query}` : ""}`;
}

export function card(title, note, ...children) {
  return el("section", { class: "card", "aria-label": title, "data-key": title }, el("header", {}, el("h2", {}, title), note ? el("span", { class: "note" }, note) : null), ...children);
}

// A small table. A cell is an element, a text or null.
export function list(heads, rows, empty) {
  if (!rows.length) return el("p", { class: "empty" }, empty);
  return table(heads.map((label) => ({ label })), rows.map((cells) => ({ cells })));
}

// A table. A column has a label, and perhaps a class such as "right" or "fill". A row has cells and an id, and perhaps a class.
export function table(columns, rows) {
  return el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Table" }, el("table", { class: "list" },
    el("thead", {}, el("tr", {}, ...columns.map((column) => el("th", { scope: "col", class: column.class, "aria-sort": column.sorted }, column.head ?? column.label)))),
    el("tbody", {}, ...rows.map((row) => el("tr", { "data-key": row.id, class: row.class }, ...row.cells.map((cell, at) => el("td", { "data-head": columns[at].label, class: columns[at].class }, cell ?? el("span", { class: "none" }, "–"))))))));
}

// Names with values; without a value it is left out.
export function facts(...pairs) {
  return el("dl", { class: "facts" }, ...pairs.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([name, value, kind]) => el("div", { class: kind }, el("dt", {}, name), el("dd", {}, value))));
}

// The conversations, turns and runs of the same chat.
export function sameChat(found) {
  const links = [
    ...(found.places ?? []).map(([page, bot, key]) => el("a", { class: "tag", href: link(page, { bot, key }) }, `${page === "turn" ? "turn" : "conversation"} ${bot} ${key}`)),
    ...(found.chats ?? []).map((chat) => el("a", { class: "tag", href: link("runs", { tag: `chat=${chat}` }) }, `runs of chat ${chat}`))];
  return links.length ? el("span", {}, ...links.flatMap((each) => [each, " "])) : null;
}

// A page or a list without anything: what it would show, and what to do.
export function nothing(title, ...texts) {
  return el("div", { class: "nothing" }, el("b", {}, title), ...texts.map((each) => el("p", {}, each)));
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

// The columns of a list that is sorted by the address: "sort=started", or "sort=-started" for the largest first.
export function sortable(columns, page, params) {
  return columns.map((column) => {
    if (!column.sort) return column;
    const by = params.sort?.replace(/^-/, "") === column.sort ? params.sort : null;
    // Times and numbers are looked at from the largest one.
    const first = column.least ? column.sort : `-${column.sort}`, second = column.least ? `-${column.sort}` : column.sort;
    const next = by === first ? second : by === second ? null : first;
    return { ...column, sorted: by === null ? undefined : by.startsWith("-") ? "descending" : "ascending",
      head: el("a", { href: link(page, { ...params, sort: next, after: null }) }, column.label, by === null ? "" : by.startsWith("-") ? " ↓" : " ↑") };
  });
}

// A box that chooses a row, and one that chooses all of a page.
export function pick(app, id, name) {
  return el("input", { type: "checkbox", "aria-label": `Choose ${name}`, checked: app.chosen.has(id),
    onchange: (event) => { if (event.target.checked) app.chosen.add(id); else app.chosen.delete(id); app.redraw(); } });
}

export function pickAll(app, ids) {
  const all = ids.length > 0 && ids.every((id) => app.chosen.has(id));
  return el("input", { type: "checkbox", "aria-label": "Choose all of this page", checked: all,
    onchange: (event) => { for (const id of ids) if (event.target.checked) app.chosen.add(id); else app.chosen.delete(id); app.redraw(); } });
}
