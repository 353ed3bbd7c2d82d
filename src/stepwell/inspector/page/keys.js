// The keyboard: / opens the palette, g and a letter a page, j and k move in a table, Enter opens, x chooses a row.
import { byId, el } from "./dom.js";
import { link } from "./parts.js";

let pages = [], isGoing = false, at = 0, shown = [];

function isTyping(target) {
  return target.closest("input, select, textarea, [contenteditable]") !== null;
}

function rows() {
  return [...document.querySelectorAll("#content .list tbody tr")].filter((row) => row.querySelector("a[href]"));
}

// Moves the focus to the link of another row.
function move(by) {
  const all = rows();
  const now = all.findIndex((row) => row.contains(document.activeElement));
  const next = all[Math.min(all.length - 1, Math.max(0, now < 0 ? 0 : now + by))];
  next?.querySelector("a[href]").focus();
  next?.scrollIntoView({ block: "nearest" });
}

// The pages whose names match, and the searches for what was typed.
function choices(text) {
  const wanted = text.trim().toLowerCase();
  const found = pages.filter((page) => !page.of && page.title.toLowerCase().includes(wanted)).map((page) => ({ label: page.title, note: page.go ? ["g", page.go] : null, href: link(page.name) }));
  // The buttons of the page and the theme.
  const buttons = [...document.querySelectorAll("#content .card > .actions button, #content .chosen-bar button, #theme")].map((button) => ({ label: button.getAttribute("aria-label") ?? button.textContent, button }))
    .filter(({ label }) => label.toLowerCase().includes(wanted));
  const searches = wanted === "" ? [] : pages.flatMap((page) => page.searches?.(text.trim()) ?? []);
  return [...found, ...buttons, ...searches];
}

function choose(choice) {
  byId("palette").close();
  if (choice?.button) choice.button.click();
  else if (choice) location.hash = choice.href;
}

function suggest(list, input) {
  shown = choices(input.value);
  at = 0;
  list.replaceChildren(...shown.map((choice, index) => el("li", { role: "option", id: `choice-${index}`, onclick: () => choose(choice) }, el("span", {}, choice.label),
    choice.note ? el("span", {}, ...choice.note.map((key) => el("kbd", {}, key))) : null)));
  mark(list, input);
}

function mark(list, input) {
  [...list.children].forEach((each, index) => each.setAttribute("aria-selected", String(index === at)));
  input.setAttribute("aria-activedescendant", shown.length ? `choice-${at}` : "");
  list.children[at]?.scrollIntoView({ block: "nearest" });
}

export function openPalette() {
  const dialog = byId("palette");
  if (dialog.open) return;
  const list = el("ul", { role: "listbox", id: "choices", "aria-label": "Results" });
  const input = el("input", { role: "combobox", "aria-expanded": "true", "aria-controls": "choices", "aria-label": "Search or go to", placeholder: "A page, the id of a run, a user …", autocomplete: "off",
    oninput: () => suggest(list, input),
    onkeydown: (event) => {
      const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (by) { at = (at + by + shown.length) % Math.max(1, shown.length); mark(list, input); event.preventDefault(); }
      if (event.key === "Enter") { choose(shown[at]); event.preventDefault(); }
    } });
  dialog.replaceChildren(input, list);
  suggest(list, input);
  dialog.showModal();
  input.focus();
}

export function listen(app, all) {
  pages = all;
  byId("find").addEventListener("click", openPalette);
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key === "k") { event.preventDefault(); openPalette(); return; }
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target) || document.querySelector("dialog[open]")) return;
    const going = isGoing;
    isGoing = event.key === "g";
    if (going) {
      const page = pages.find((each) => each.go === event.key);
      if (page) { event.preventDefault(); location.hash = link(page.name); }
    } else if (event.key === "/") { event.preventDefault(); openPalette(); }
    else if (event.key === "j") move(1);
    else if (event.key === "k") move(-1);
    else if (event.key === "x") document.activeElement.closest("tr")?.querySelector("td.pick input")?.click();
  });
}
