// A form for an answer that must fit a JSON schema: a field for each property, and JSON for what no field can show.
import { el } from "./dom.js";
import { area } from "./fields.js";

const DEEPEST = 3, NUMBER = /^\s*-?\d+(\.\d+)?([eE][+-]?\d+)?\s*$/;

// Returns the schema without references, and whether it may be null.
function open(schema, root) {
  let found = schema ?? {};
  for (let hops = 0; found.$ref && hops < 16; hops += 1) found = found.$ref.replace(/^#\//, "").split("/").reduce((at, step) => at?.[step], root) ?? {};
  const choices = found.anyOf ?? found.oneOf ?? (found.allOf?.length === 1 ? found.allOf : null);
  if (choices) {
    const others = choices.filter((each) => each.type !== "null");
    if (others.length === 1) return { ...found, anyOf: undefined, ...open(others[0], root), nullable: others.length < choices.length };
  }
  return Array.isArray(found.type) && found.type.length === 2 && found.type.includes("null") ? { ...found, type: found.type.find((each) => each !== "null"), nullable: true } : found;
}

const problemAt = (path) => el("span", { class: "problem", "data-path": path });

// The field of one value. Its name is the path that the errors of the server have: $.to.city.
function field(schema, root, path, label, isRequired) {
  const found = open(schema, root), name = `at ${path}`, optional = !isRequired || found.nullable;
  const text = found.title && found.title.toLowerCase() !== label.toLowerCase() ? `${label} (${found.title})` : label;
  const about = [found.description ? el("span", { class: "note" }, found.description) : null, problemAt(path)];
  const initial = found.default === undefined || found.default === null ? "" : typeof found.default === "string" ? found.default : JSON.stringify(found.default);
  const options = found.type === "boolean" ? [true, false] : found.enum ?? (found.const === undefined ? null : [found.const]);
  if (options) {
    const shown = (option) => (option === true ? "Yes" : option === false ? "No" : String(option));
    return el("label", {}, text, el("select", { name, required: !optional, "data-kind": "json" }, el("option", { value: "" }, optional ? "–" : "choose …"),
      ...options.map((option) => el("option", { value: JSON.stringify(option), selected: JSON.stringify(option) === JSON.stringify(found.default) }, shown(option)))), ...about);
  }
  if (found.type === "string") {
    const props = { name, "data-kind": "text", required: !optional && (found.minLength ?? 0) > 0, autocomplete: "off" };
    return el("label", {}, text, (found.maxLength ?? 1000) > 200 && !found.format ? el("textarea", { ...props, rows: "1", value: initial }) : el("input", { ...props, value: initial }), ...about);
  }
  if (found.type === "integer" || found.type === "number") return el("label", {}, text, el("input", { name, "data-kind": "number", inputmode: found.type === "integer" ? "numeric" : "decimal", required: !optional, autocomplete: "off", value: initial }), ...about);
  return el("label", {}, `${text} (JSON)`, el("textarea", { name, "data-kind": "json", rows: "2", required: !optional, value: initial }), ...about);
}

// The fields of an object, and of the objects in it.
function fieldsOf(schema, root, path, depth) {
  const required = new Set(schema.required ?? []);
  return Object.entries(schema.properties).map(([name, inside]) => {
    const found = open(inside, root), at = `${path}.${name}`;
    if (found.properties && required.has(name) && !found.nullable && depth < DEEPEST) return el("fieldset", {}, el("legend", {}, name), problemAt(at), ...fieldsOf(found, root, at, depth + 1));
    return field(inside, root, at, name, required.has(name));
  });
}

// The value of a field as JSON; undefined if it is left out. A number stays as it was typed, so that none is rounded.
function valueOf(input, isRequired, nullable) {
  const kind = input.dataset.kind, text = input.value;
  if (text === "" && !(kind === "text" && isRequired && !nullable)) return isRequired && nullable ? "null" : isRequired ? '""' : undefined;
  if (kind === "number") return NUMBER.test(text) ? text.trim() : JSON.stringify(text);
  return kind === "json" ? text : JSON.stringify(text);
}

function collect(schema, root, path, box) {
  const required = new Set(schema.required ?? []);
  const parts = Object.entries(schema.properties).map(([name, inside]) => {
    const found = open(inside, root), at = `${path}.${name}`, input = box.elements.namedItem(`at ${at}`);
    const value = input ? valueOf(input, required.has(name), found.nullable) : found.properties ? collect(found, root, at, box) : undefined;
    return value === undefined ? null : `${JSON.stringify(name)}:${value}`;
  });
  return `{${parts.filter(Boolean).join(",")}}`;
}

// The place of each problem: "Expected `int`, got `str` - at `$.amount`", and "Object missing required field `amount`".
function placesOf(error) {
  return [...error.matchAll(/(?:^|: |; )([^;:]*?) - at `(\$[^`]*)`/g)].map(([, text, path]) => {
    const missing = text.match(/missing required field `([^`]+)`/);
    return [missing ? `${path}.${missing[1]}` : path, text];
  });
}

// Returns the parts of a dialog (see edits.js) for an answer that must fit a schema; without one, it is JSON or a text.
export function answerForm(schema) {
  const found = open(schema, schema);
  const isObject = Boolean(found.properties && Object.keys(found.properties).length);
  if (!schema || (!isObject && !found.type && !found.enum)) return { fields: [area("value", "Answer (JSON, or else a text)", { autofocus: true })] };
  return {
    fields: isObject ? fieldsOf(found, schema, "$", 0) : [field(schema, schema, "$", "Answer", true)],
    body: (given, box) => ({ wait: given.wait, value: isObject ? collect(found, schema, "$", box) : valueOf(box.elements.namedItem("at $"), true, found.nullable) }),
    // Shows each problem at its field, and returns whether there is a field for all of them.
    problem: (error, box) => {
      const marks = [...box.querySelectorAll(".problem")];
      for (const mark of marks) { mark.textContent = ""; mark.parentElement.querySelector("input, select, textarea")?.removeAttribute("aria-invalid"); }
      const missing = [...error.matchAll(/missing required field `([^`]+)`(?! - at)/g)].map(([text, name]) => [`$.${name}`, text]);
      const places = [...placesOf(error), ...missing];
      let first = null;
      for (const [path, text] of places) {
        const mark = marks.find((each) => path === each.dataset.path || path.startsWith(`${each.dataset.path}.`) || path.startsWith(`${each.dataset.path}[`));
        if (!mark) return false;
        const input = mark.parentElement.querySelector("input, select, textarea");
        mark.textContent = text;
        input?.setAttribute("aria-invalid", "true");
        first ??= input;
      }
      first?.focus();
      return places.length > 0;
    },
  };
}
