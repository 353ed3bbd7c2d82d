// Adds a button to each code block that copies it; of a console block it copies the commands without their output.
"use strict";

function commandsOf(text) {
  const lines = text.split("\n").filter((line) => /^[$>] /.test(line));
  return lines.map((line) => line.slice(2)).join("\n");
}

function addCopyButton(block) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy-code";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    const text = block.querySelector("pre").textContent;
    const isConsole = block.parentElement.classList.contains("highlight-console");
    await navigator.clipboard.writeText((isConsole && commandsOf(text)) || text);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  block.append(button);
}

// Browsers have no clipboard on pages that are served without TLS.
if (navigator.clipboard) {
  document.querySelectorAll("article div.highlight").forEach(addCopyButton);
}
