// A drawing that is shown larger, smaller or as large as fits. It is moved by scrolling.
import { el } from "./dom.js";

const STEP = 1.25, LEAST = 0.2, MOST = 3, HIGH = 680;
// The chosen scale of each drawing, so that it stays when the drawing changes.
const scales = new Map();

// "key" names the drawing, "width" is what there is for it.
export function zoomable(key, drawing, width) {
  const [wide, high] = ["width", "height"].map((name) => Number(drawing.getAttribute(name)));
  const fit = Math.min(1, width / wide, HIGH / high);
  const scale = () => scales.get(key) ?? Math.min(1, Math.max(fit, width / wide, 0.6));
  const box = el("div", { class: "diagram zoomed", tabindex: "0", role: "group", "aria-label": `Graph of ${key}` }, drawing);
  const size = (svg) => { svg.setAttribute("width", (wide * scale()).toFixed(0)); svg.setAttribute("height", (high * scale()).toFixed(0)); };
  const set = (event, value) => {
    if (value === null) scales.delete(key);
    else scales.set(key, Math.min(MOST, Math.max(LEAST, value)));
    size(event.target.closest(".zoom").querySelector("svg"));
  };
  size(drawing);
  const button = (text, label, onclick) => el("button", { type: "button", class: "quiet small", "aria-label": label, onclick }, text);
  // A small drawing needs no buttons.
  if (fit === 1) return el("div", { class: "diagram" }, drawing);
  return el("div", { class: "zoom" }, el("p", { class: "zooms" }, button("−", "Zoom out", (event) => set(event, scale() / STEP)), button("+", "Zoom in", (event) => set(event, scale() * STEP)),
    button("Fit", "Fit the graph", (event) => set(event, fit)), button("100 %", "Original size", (event) => set(event, 1))), box);
}
