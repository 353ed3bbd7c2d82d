// What is done with all chosen rows of a list.
import { el } from "./dom.js";
import { counted } from "./parts.js";

// "rows" can be chosen: [id, what names it to the server]; "buttons" gets what names those that are chosen.
export function bar(app, noun, rows, buttons) {
  const chosen = rows.filter(([id]) => app.chosen.has(id));
  if (!chosen.length) return null;
  return el("div", { class: "chosen-bar", role: "group", "aria-label": `Chosen ${noun}s`, "data-key": `${noun} chosen` }, el("b", {}, `${counted(chosen.length, noun)} chosen`), ...buttons(chosen.map(([, place]) => place)).filter(Boolean),
    el("button", { type: "button", class: "small quiet", onclick: () => { for (const [id] of chosen) app.chosen.delete(id); app.redraw(); } }, "Clear"));
}
