// The colours: those of the system, or the ones that were chosen in this browser.
import { byId } from "./dom.js";

const KEY = "stepwell-theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const button = byId("theme");

function show() {
  const chosen = localStorage.getItem(KEY);
  if (chosen) document.documentElement.dataset.theme = chosen;
  const dark = chosen ? chosen === "dark" : system.matches;
  button.textContent = dark ? "Light" : "Dark";
  button.setAttribute("aria-label", dark ? "Switch to light colours" : "Switch to dark colours");
  return dark;
}

button.addEventListener("click", () => {
  localStorage.setItem(KEY, show() ? "light" : "dark");
  show();
});
system.addEventListener("change", show);
show();
