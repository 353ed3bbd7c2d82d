// A status as a shape with a colour and its name: who does not see the colour sees the shape.
import { el, svg } from "./dom.js";

// The kind of each status gives its colour; the shape is drawn in a square of 14.
const RING = "M7 1.5a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11z";
const SHAPES = {
  queued: ["idle", [["path", { d: RING, fill: "none", stroke: "currentColor", "stroke-width": 1.6, "stroke-dasharray": "2.4 1.9" }]]],
  running: ["live", [["path", { d: RING, fill: "none", stroke: "currentColor", "stroke-width": 1.6 }], ["path", { d: "M5.4 4.2 10 7l-4.6 2.8z", fill: "currentColor" }]]],
  waiting: ["held", [["path", { d: RING, fill: "none", stroke: "currentColor", "stroke-width": 1.6 }], ["path", { d: "M7 3.9V7l2.3 1.4", fill: "none", stroke: "currentColor", "stroke-width": 1.6, "stroke-linecap": "round" }]]],
  asking: ["held", [["path", { d: "M1.5 2.5h11v7H7.6L4.5 12V9.5h-3z", fill: "currentColor" }]]],
  sleeping: ["idle", [["path", { d: "M10.9 8.9A5 5 0 0 1 5.1 2.1a5.2 5.2 0 1 0 5.8 6.8z", fill: "currentColor" }]]],
  paused: ["held", [["rect", { x: 3, y: 2.5, width: 3, height: 9, rx: 1, fill: "currentColor" }], ["rect", { x: 8, y: 2.5, width: 3, height: 9, rx: 1, fill: "currentColor" }]]],
  failed: ["bad", [["path", { d: "M7 .8 13.2 7 7 13.2.8 7z", fill: "currentColor" }], ["path", { d: "M5 5l4 4M9 5l-4 4", fill: "none", stroke: "var(--card)", "stroke-width": 1.5 }]]],
  stuck: ["bad", [["path", { d: "M7 1.2 13.3 12.5H.7z", fill: "currentColor" }], ["path", { d: "M7 5v3.5M7 10v1", fill: "none", stroke: "var(--card)", "stroke-width": 1.5 }]]],
  cancelled: ["idle", [["path", { d: RING, fill: "none", stroke: "currentColor", "stroke-width": 1.6 }], ["path", { d: "M3.2 10.8 10.8 3.2", stroke: "currentColor", "stroke-width": 1.6 }]]],
  finished: ["good", [["path", { d: RING, fill: "currentColor" }], ["path", { d: "M4.3 7.2 6.3 9.2 9.9 5.1", fill: "none", stroke: "var(--card)", "stroke-width": 1.6 }]]],
  idle: ["idle", [["circle", { cx: 7, cy: 7, r: 2.5, fill: "currentColor" }]]],
};
// Statuses that have the shape of another one.
const SAME = { parked: "waiting", collecting: "waiting", unreadable: "stuck", unknown: "idle", late: "stuck", refused: "failed", stopped: "cancelled", alive: "running", damaged: "stuck", sent: "finished", unsent: "waiting", accepted: "finished", gone: "failed" };

// "as" is the status whose shape is shown, if the text is another one.
export function status(text, as = text) {
  const [kind, shapes] = SHAPES[SAME[as] ?? as] ?? SHAPES.idle;
  return el("span", { class: `status ${kind}` }, svg("svg", { viewBox: "0 0 14 14", "aria-hidden": "true" }, ...shapes.map(([tag, props]) => svg(tag, props))), el("span", {}, text));
}
