// Times of the storage as people read them.
import { el } from "./dom.js";

export function span(seconds) {
  const all = Math.abs(seconds);
  if (all < 1) return "less than 1 s";
  if (all < 120) return `${Math.floor(all)} s`;
  if (all < 7200) return `${Math.floor(all / 60)} min`;
  if (all < 172800) return `${Math.floor(all / 3600)} h`;
  return `${Math.floor(all / 86400)} days`;
}

function words(at) {
  const left = at - Date.now() / 1000;
  return left > 0 ? `in ${span(left)}` : `${span(left)} ago`;
}

export function moment(at, empty = "–") {
  if (at === null || at === undefined) return el("span", { class: "none" }, empty);
  const date = new Date(at * 1000);
  if (Number.isNaN(date.getTime())) return el("span", {}, String(at));
  return el("time", { datetime: date.toISOString(), title: date.toISOString() }, words(at));
}

// The time since a moment, for something that still lasts.
export function lasting(since) {
  return el("span", { title: new Date(since * 1000).toISOString() }, span(Date.now() / 1000 - since));
}

// The seconds that something took; null if they are not known.
export function duration(seconds, isUnknown = seconds === null || seconds === undefined) {
  if (isUnknown) return null;
  if (seconds < 0.9995) return `${Math.max(0, Math.round(seconds * 1000))} ms`;
  return seconds < 10 ? `${seconds.toFixed(1)} s` : span(seconds);
}
