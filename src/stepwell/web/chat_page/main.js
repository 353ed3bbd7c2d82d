// A chat: the events of the server are applied to the messages by their ids, so that one that comes twice changes nothing.
import { banner, byId, el, keyed, toast } from "./dom.js";

// Several chats of one person differ in the part of the address behind the "#".
const CHAT = /^#[\w-]{1,64}$/.test(location.hash) ? location.hash.slice(1) : "main";
const PLACE = encodeURIComponent(CHAT);
const messages = new Map();
const main = byId("messages");
const input = byId("text");
let state = { state: "idle", waiting: 0 };

// Not crypto.randomUUID, which browsers have over HTTPS only.
const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");

const pending = (message) => Boolean(message?.sent || message?.waiting);

function apply(change) {
  if (change.type === "message") {
    const { id, waiting } = change.message;
    // One that has waited comes behind the answer to the one before.
    if (pending(messages.get(id)) && !waiting) messages.delete(id);
    messages.set(id, change.message);
  }
  else if (change.type === "gone") change.ids.forEach((id) => messages.delete(id));
  else if (change.type === "state") state = change;
  else if (change.type === "delta") {
    const part = messages.get(change.id)?.parts[change.part];
    if (part) part.text = part.text.slice(0, change.at) + change.text;
  }
}

function tool(part) {
  const states = { "input-available": "runs …", "output-available": "done", "output-error": "failed" };
  const output = part.errorText ?? part.output;
  const state = part.errorText?.startsWith("The outcome is unknown") ? "outcome unknown" : states[part.state] ?? part.state;
  return el("details", { class: "tool" }, el("summary", {}, part.type.slice(5), " – ", state),
    el("pre", { tabindex: "0" }, JSON.stringify(part.input, null, 2), output === undefined ? "" : `\n→ ${typeof output === "string" ? output : JSON.stringify(output, null, 2)}`));
}

function question(part) {
  const { question: text, options, reply } = part.input;
  const open = part.state === "approval-requested";
  const decided = part.choice ? `${part.choice}${part.by ? ` (${part.by})` : ""}` : "Not answered";
  return el("div", { class: `bubble question${open ? " open" : ""}`, role: "group", "aria-label": text }, el("p", {}, text),
    open ? el("div", { class: "options" }, ...options.map((choice) => el("button", { type: "button", onclick: () => press("decide", { id: part.approval.id, choice }) }, choice)))
      : el("span", { class: "note" }, reply && part.state === "input-available" ? "Write your answer below." : decided));
}

function call({ data: { method, params } }) {
  const text = params.caption ?? params.text ?? params.question ?? params.title;
  return el("div", { class: "bubble" }, el("span", { class: "note" }, method.replace(/^(send|copy|forward)/, "")), text ? ` ${text}` : "");
}

function view(part, old) {
  if (part.type !== "text") return part.toolCallId?.includes(":ask") ? question(part) : part.type === "data-call" ? call(part) : tool(part);
  // The node stays, so that a selection and the reading position survive.
  const node = old?.firstChild?.nodeType === Node.TEXT_NODE ? old : el("div", { class: "bubble" }, " ");
  if (part.text.startsWith(node.firstChild.data) && node === old) node.firstChild.appendData(part.text.slice(node.firstChild.data.length));
  else node.firstChild.data = part.text;
  return node;
}

function render() {
  const low = main.scrollHeight - main.scrollTop - main.clientHeight < 80;
  const all = [...messages.values()];
  keyed(byId("list"), [...all.filter((each) => !pending(each)), ...all.filter(pending)], (message) => message.id, (message, old) => {
    const node = old ?? el("li");
    node.className = `${message.role}${pending(message) ? " sent" : ""}`;
    const parts = message.parts.filter((part) => part.type !== "text" || part.text.trim());
    keyed(node, parts.map((part, place) => ({ place, ...part })), (part) => `${part.place}${part.type}`, view);
    return node;
  });
  byId("empty").hidden = messages.size > 0;
  const busy = ["running", "collecting"].includes(state.state);
  byId("stop").hidden = !["running", "asking"].includes(state.state);
  byId("stop").disabled = state.stopping;
  const said = state.stopping ? "Stopping …" : busy ? "Writing …" : state.state === "asking" ? "Waits for an answer" : "";
  if (byId("state").textContent !== said) byId("state").textContent = said;
  if (low) main.scrollTop = main.scrollHeight;
}

async function post(name, body = {}) {
  try {
    const response = await fetch(`api/${PLACE}/${name}`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
    return response.ok ? { ok: true, ...await response.json() } : { error: await response.text(), again: response.status === 503 };
  } catch {
    return { again: true, error: "The server does not respond. Please try again." };
  }
}

async function press(name, body) {
  const answer = await post(name, body);
  if (!answer.ok) toast(answer.error, "bad");
  input.focus();
}

// With the same id a message is taken once, however often it is sent.
async function send(message, tries = 0) {
  const answer = await post("messages", { id: message.id, text: message.parts[0].text });
  if (answer.said) toast(answer.said);
  if (answer.ok) return;
  if (answer.again && tries < 60) {
    setTimeout(() => send(message, tries + 1), 1000);
    return;
  }
  toast(answer.error, "bad");
  messages.delete(message.id);
  if (!input.value) input.value = message.parts[0].text;
  render();
}

function grow() {
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight + 2}px`;
}

byId("write").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = input.value.trim();
  if (!text) return;
  const message = { id: newId(), role: "user", parts: [{ type: "text", text }], sent: true };
  messages.set(message.id, message);
  input.value = "";
  grow();
  render();
  main.scrollTop = main.scrollHeight;
  input.focus();
  send(message);
});
input.addEventListener("input", grow);
input.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); byId("write").requestSubmit(); }
});
byId("stop").addEventListener("click", () => press("stop"));
addEventListener("hashchange", () => location.reload());

// The browser connects again by itself, and names the last event that it has.
const events = new EventSource(`api/${PLACE}/events`);
events.onopen = () => banner("");
events.onmessage = ({ data }) => { JSON.parse(data).forEach(apply); render(); };
events.onerror = () => banner(events.readyState === EventSource.CLOSED ? "The chat cannot be opened. Load the page again, or sign in." : "The connection was lost. It is opened again …");
input.focus();
