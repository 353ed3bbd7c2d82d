// A stored value as a tree with types. The value is JSON of the codec: {"$date": "2026-01-01"} is a date.
import { el } from "./dom.js";

const MASK = "•••";

function leaf(type, text) {
  return [el("span", { class: `value ${type}` }, text), el("span", { class: "type" }, text === MASK ? "masked" : type)];
}

// Returns [type, children] for a value with parts, and null for a single value.
function parts(given) {
  if (Array.isArray(given)) return ["list", given.map((each, at) => [String(at), each])];
  const names = Object.keys(given);
  const tag = names.length === 1 && names[0].startsWith("$") ? names[0].slice(1) : null;
  const inside = tag ? given[names[0]] : null;
  if ((tag === "tuple" || tag === "set" || tag === "frozenset") && Array.isArray(inside)) return [tag, inside.map((each, at) => [String(at), each])];
  if (tag === "dict" && Array.isArray(inside)) return [tag, inside.map((pair) => [typeof pair[0] === "string" ? pair[0] : JSON.stringify(pair[0]), pair[1]])];
  if (tag === "record" && Array.isArray(inside) && inside[1] !== null && typeof inside[1] === "object") return [inside[0], Object.entries(inside[1])];
  if (tag) return null;
  return ["dict", Object.entries(given)];
}

function single(given) {
  if (given === null) return leaf("none", "none");
  if (typeof given === "boolean") return leaf("bool", given ? "true" : "false");
  if (typeof given === "number") return leaf("number", String(given));
  if (typeof given === "string") return leaf("text", given);
  const [tag] = Object.keys(given);
  const inside = given[tag];
  if (tag === "$record" || tag === "$enum") return leaf(String(inside[0]), typeof inside[1] === "string" ? inside[1] : JSON.stringify(inside[1]));
  return leaf(tag.slice(1), typeof inside === "string" ? inside : JSON.stringify(inside));
}

function branch(name, given, path, more) {
  const found = given !== null && typeof given === "object" ? parts(given) : null;
  const label = el("span", { class: "name" }, name);
  if (!found || !found[1].length) {
    const shown = found ? [el("span", { class: "value none" }, "empty"), el("span", { class: "type" }, found[0])] : single(given);
    return el("li", { "data-field": path, "data-key": path }, more ?? null, label, " ", ...shown);
  }
  const [type, children] = found;
  return el("li", { "data-field": path, "data-key": path }, more ?? null, el("details", { open: children.length <= 20, "data-key": path },
    el("summary", {}, label, " ", el("span", { class: "type" }, `${type}, ${children.length}`)),
    el("ul", {}, ...children.map(([inner, value]) => branch(inner, value, `${path}.${inner}`)))));
}

// "more(name)" returns an element beside a field of the first level.
export function tree(fields, more = () => null) {
  const names = Object.keys(fields);
  if (!names.length) return el("p", { class: "empty" }, "No data.");
  return el("ul", { class: "tree" }, ...names.map((name) => branch(name, fields[name], name, more(name))));
}
