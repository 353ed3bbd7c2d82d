// The filter of a list. It is in the address, so that a link shows the same rows.
import { byId, el } from "./dom.js";
import { span } from "./times.js";

const AGES = [["", "any age"], ["60", "1 minute"], ["3600", "1 hour"], ["86400", "1 day"], ["604800", "7 days"]];

// The ages to choose from, with the one in the address.
export function ages(given) {
  return !given || AGES.some(([seconds]) => seconds === given) ? AGES : [...AGES, [given, span(Number(given))]];
}

export function select(name, label, options, value) {
  return el("label", {}, label, el("select", { name }, ...options.map(([key, text]) => el("option", { value: key, selected: key === (value ?? "") }, text))));
}

export function field(name, label, value, props = {}) {
  return el("label", {}, label, el("input", { name, value: value ?? "", autocomplete: "off", ...props }));
}

export function showFilters(page, params, found) {
  const form = byId("filter"), box = byId("filters");
  box.hidden = !page.filters;
  const as = JSON.stringify([page.name, params, found.bots]);
  if (box.hidden || form.shownAs === as) return;
  form.shownAs = as;
  form.replaceChildren(...page.filters(params, found), el("button", { type: "submit", class: "main" }, "Filter"), el("a", { href: `#/${page.name}` }, "Reset"));
}

// On a phone the filter would fill the screen, so it is opened with a click.
const narrow = matchMedia("(max-width: 719px)");
const fold = () => { byId("filters").open = !narrow.matches; };
narrow.addEventListener("change", fold);
fold();
