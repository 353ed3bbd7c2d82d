// Creates elements. Values become text nodes only, so stored data cannot become markup.

let visible = (text) => text;

// From now on, characters that change the direction of a text or cannot be seen are shown by their codes.
export function showControls() {
  visible = (text) => text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b\u2028-\u202e\u2066-\u2069\ufeff]/g, (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    // A property where there is one, so that "patch" can replace it.
    if (name.startsWith("on")) name in node ? (node[name] = value) : node.addEventListener(name.slice(2), value);
    else if (name === "class") node.className = value;
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined).map((child) => (typeof child === "string" ? visible(child) : child)));
  return node;
}

export function svg(tag, props = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(props)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

export const byId = (id) => document.getElementById(id);

// Keeps the nodes of unchanged items in place, so that focus, selected text, scroll position and open details survive.
export function keyed(parent, items, key, build) {
  const kept = parent.keyed ?? new Map();
  const next = new Map();
  const nodes = items.map((item) => {
    const id = key(item);
    const text = JSON.stringify(item);
    const old = kept.get(id);
    // A build may change the old node and return it.
    const entry = old && old.text === text ? old : { text, node: build(item, old?.node) };
    next.set(id, entry);
    return entry.node;
  });
  parent.keyed = next;
  const wanted = new Set(nodes);
  for (const node of [...parent.children]) if (!wanted.has(node)) node.remove();
  nodes.forEach((node, at) => { if (parent.children[at] !== node) parent.insertBefore(node, parent.children[at] ?? null); });
}

const HANDLERS = ["onclick", "onchange", "oninput", "onsubmit", "onkeydown", "onwheel", "onpointerdown", "onpointermove", "onpointerup"];

// Changes the children of an element into other ones where they differ: focus, selected text, scroll positions and open
// details survive, and nothing jumps. Nodes with the same data-key are the same thing.
export function patch(parent, nodes) {
  const keyOf = (node) => node.dataset?.key;
  const kept = new Map([...parent.children].filter(keyOf).map((node) => [keyOf(node), node]));
  let at = parent.firstChild;
  for (const next of nodes) {
    const key = keyOf(next);
    const old = key ? kept.get(key) : at && !keyOf(at) ? at : null;
    if (old?.nodeName !== next.nodeName) {
      parent.insertBefore(next, at);
      continue;
    }
    if (old === at) at = at.nextSibling;
    else parent.insertBefore(old, at);
    patchOne(old, next);
  }
  while (at) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
}

function patchOne(old, next) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== next.data) old.data = next.data;
    return;
  }
  const isOwn = old.dataset?.own !== undefined;
  for (const { name } of [...old.attributes]) if (!next.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  // What a person has opened or closed stays so; an element with data-own changes itself.
  for (const { name, value } of next.attributes) if (name !== "open" && old.getAttribute(name) !== value && !isOwn) old.setAttribute(name, value);
  for (const name of HANDLERS) if (old[name] !== next[name]) old[name] = next[name];
  if ("checked" in next) old.checked = next.checked;
  if (next.nodeName === "PROGRESS" || (next.nodeName === "INPUT" && old !== document.activeElement)) old.value = next.value;
  if (!isOwn) patch(old, [...next.childNodes]);
}

export function toast(text, kind = "") {
  const node = el("div", { class: `toast ${kind}` }, text);
  byId("toasts").append(node);
  setTimeout(() => node.remove(), 6000);
}

// The line above the page; without a text it is hidden.
export function banner(text) {
  const node = byId("banner");
  node.hidden = !text;
  node.textContent = text || "";
}

// Returns the answer; null if it is an error, which a toast shows. With "quiet" an error is returned, too.
export async function act(name, body = {}, { quiet = false } = {}) {
  let answer;
  try {
    const response = await fetch(`api/${name}`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
    });
    answer = response.headers.get("content-type")?.includes("json") ? await response.json() : { error: await response.text() };
  } catch {
    answer = { error: "The server does not respond. Is it still running in the terminal?" };
  }
  if (!answer.ok && !quiet) toast(answer.error, "bad");
  return answer.ok || quiet ? answer : null;
}
