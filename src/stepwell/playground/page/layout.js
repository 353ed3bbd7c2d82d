// The layout: the divider between chat and state, the two views of a phone, and what a reload keeps.
import { byId } from "./dom.js";

const SMALLEST = 20, LARGEST = 75, STEP = 2;

// A browser may forbid storage.
function kept(work) {
  try { return work(); } catch { return null; }
}

export function remember(name, value) {
  kept(() => sessionStorage.setItem(`stepwell-${name}`, JSON.stringify(value)));
}

export function recall(name) {
  return kept(() => JSON.parse(sessionStorage.getItem(`stepwell-${name}`)));
}

export function divider() {
  const bar = byId("divider");
  const main = document.querySelector("main");
  const show = (percent) => {
    if (percent === null) {
      main.style.removeProperty("--chat");
      kept(() => localStorage.removeItem("stepwell-split"));
    } else {
      const value = Math.min(LARGEST, Math.max(SMALLEST, percent));
      main.style.setProperty("--chat", `${value}%`);
      kept(() => localStorage.setItem("stepwell-split", String(value)));
    }
    bar.setAttribute("aria-valuenow", String(Math.round(current())));
  };
  const current = () => (byId("chats").offsetWidth / main.offsetWidth) * 100;
  bar.setAttribute("aria-valuemin", String(SMALLEST));
  bar.setAttribute("aria-valuemax", String(LARGEST));
  const saved = Number(kept(() => localStorage.getItem("stepwell-split")));
  if (saved) show(saved);
  else bar.setAttribute("aria-valuenow", String(Math.round(current())));
  bar.addEventListener("pointerdown", (event) => {
    event.preventDefault();
    bar.setPointerCapture(event.pointerId);
    const move = (to) => show(((to.clientX - main.getBoundingClientRect().left) / main.offsetWidth) * 100);
    bar.addEventListener("pointermove", move);
    bar.addEventListener("lostpointercapture", () => bar.removeEventListener("pointermove", move), { once: true });
  });
  bar.addEventListener("dblclick", () => show(null));
  bar.addEventListener("keydown", (event) => {
    const to = { ArrowLeft: current() - STEP, ArrowRight: current() + STEP, Home: SMALLEST, End: LARGEST }[event.key];
    if (to !== undefined) { event.preventDefault(); show(to); }
  });
}

// Hidden elements lose their scroll position in some browsers.
const scrolled = new Map();

export function view(name) {
  for (const each of document.querySelectorAll("#state, .messages")) if (each.offsetParent) scrolled.set(each, each.scrollTop);
  document.body.dataset.view = name;
  byId("view-chat").setAttribute("aria-selected", String(name === "chat"));
  byId("view-state").setAttribute("aria-selected", String(name === "state"));
  for (const [each, top] of scrolled) if (each.offsetParent) each.scrollTop = top;
}
