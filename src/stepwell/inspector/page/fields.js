// The fields of dialogs, and the values in them.
import { el } from "./dom.js";

export function isJson(text) {
  try { JSON.parse(text); return true; } catch { return false; }
}

// A text that is not JSON is sent as a text. The server refuses one that begins like JSON.
export function asJson(text) {
  return isJson(text) || beginsLikeJson(text) ? text : JSON.stringify(text);
}

export function beginsLikeJson(text) {
  return /^\s*[{["]/.test(text);
}

export function input(name, label, value, props = {}) {
  return el("label", {}, label, el("input", { name, value, autocomplete: "off", required: true, ...props }));
}

export function choice(name, label, options, value) {
  return el("label", {}, label, el("select", { name, required: true }, ...options.map((option) => el("option", { value: option, selected: option === value }, option))));
}

export function area(name, label, props = {}) {
  return el("label", {}, label, el("textarea", { name, rows: "4", required: true, ...props }));
}

// The fields of a dialog that changes the field "name" of "data", or a new one. Returns [fields, unchanged, differs].
export function valueFields(data, name) {
  const old = data[name];
  // A text is shown as it is, unless it would be read as JSON.
  const value = name === undefined ? "" : typeof old === "string" && !isJson(old) && !beginsLikeJson(old) ? old : JSON.stringify(old);
  // Masked and truncated values are not complete, and large numbers are shown as texts.
  const isWhole = !/•••|…|"-?\d{16,}"/.test(JSON.stringify(old) ?? "");
  return {
    fields: [input("field", "Field", name ?? "", { readonly: name !== undefined }), area("value", "Value", { autofocus: name !== undefined, value: isWhole ? value : "" })],
    unchanged: name === undefined || !isWhole ? undefined : value,
    differs: (given) => (given.value === "" ? [] : [[given.field, JSON.stringify(data[given.field]), isJson(given.value) ? given.value : JSON.stringify(given.value)]]),
  };
}
