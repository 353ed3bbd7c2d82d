// Small charts of the last hour: a bar for each minute.
import { el, svg } from "./dom.js";

const MINUTES = 60, HIGH = 36;

// "of(minute)" is the height of a bar, or null without one; "bad(minute)" the part of it that is red.
export function chart(title, minutes, of, shown, bad = () => 0) {
  const now = Math.floor(Date.now() / 60000) * 60;
  const known = minutes.filter((each) => of(each) !== null && each[0] > now - MINUTES * 60);
  const most = Math.max(...known.map(of), 0);
  const last = known.findLast((each) => each[0] < now) ?? known.at(-1);
  const bars = known.flatMap((each) => {
    const x = MINUTES - 1 - (now - each[0]) / 60, high = most ? (of(each) / most) * HIGH : 0, red = most ? (bad(each) / most) * HIGH : 0;
    return [[x, high, "bar-done"], ...(red ? [[x, Math.max(red, 2), "bar-bad"]] : [])];
  }).filter(([, high]) => high > 0);
  const text = known.length ? `${title}: ${shown(of(last))} in the last minute, at most ${shown(most)} in the last hour` : `${title}: nothing in the last hour`;
  return el("figure", { class: "chart", "data-key": title },
    el("figcaption", {}, el("span", { class: "note" }, title), el("b", { class: "number" }, last ? shown(of(last)) : "–"), el("span", { class: "note most" }, known.length ? `at most ${shown(most)}` : "")),
    svg("svg", { viewBox: `0 0 ${MINUTES} ${HIGH}`, preserveAspectRatio: "none", role: "img", "aria-label": text },
      svg("line", { x1: 0, x2: MINUTES, y1: HIGH, y2: HIGH, class: "tick" }),
      ...bars.map(([x, high, kind]) => svg("rect", { x: x + 0.1, y: (HIGH - high).toFixed(2), width: 0.8, height: high.toFixed(2), class: kind }))));
}
