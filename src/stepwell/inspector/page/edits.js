// The dialogs that change a record or a run. Each sends the version that the page showed when it was opened.
import { byId, el, toast } from "./dom.js";

async function post(name, body) {
  try {
    const response = await fetch(`api/${name}`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
    return response.headers.get("content-type")?.includes("json") ? await response.json() : { error: await response.text() };
  } catch {
    return { error: "The server does not respond. Is it still running?" };
  }
}

function isJson(text) {
  try { JSON.parse(text); return true; } catch { return false; }
}

// A text that is not JSON is sent as a text. The server refuses one that begins like JSON.
function asJson(text) {
  return isJson(text) || beginsLikeJson(text) ? text : JSON.stringify(text);
}

function beginsLikeJson(text) {
  return /^\s*[{["]/.test(text);
}

function input(name, label, value, props = {}) {
  return el("label", {}, label, el("input", { name, value, autocomplete: "off", required: true, ...props }));
}

function choice(name, label, options, value) {
  return el("label", {}, label, el("select", { name, required: true }, ...options.map((option) => el("option", { value: option, selected: option === value }, option))));
}

const FORMS = {
  set_state: (app, found) => {
    const flow = app.flows.conversations.find((each) => each.name === found.flow);
    return {
      title: "Set state", main: "Set state", note: "The timer of the new state does not start.",
      fields: [input("flow", "Flow", found.flow ?? ""), flow ? choice("state", "State", flow.states, found.state) : input("state", "State", found.state ?? "")],
      done: "The state was set.",
    };
  },
  set_field: (app, found, field) => {
    const old = found.data[field];
    // A text is shown as it is, unless it would be read as JSON.
    const value = field === undefined ? "" : typeof old === "string" && !isJson(old) && !beginsLikeJson(old) ? old : JSON.stringify(old);
    // Masked and truncated values are not complete, and large numbers are shown as texts.
    const isWhole = !/•••|…|"-?\d{16,}"/.test(JSON.stringify(old) ?? "");
    return {
      title: field === undefined ? "Set a field" : `Change ${field}`, main: "Set", note: "The value is JSON, or else a text.",
      fields: [input("field", "Field", field ?? "", { readonly: field !== undefined }), el("label", {}, "Value", el("textarea", { name: "value", rows: "4", required: true, autofocus: field !== undefined, value: isWhole ? value : "" }))],
      done: "The field was set.", unchanged: field === undefined || !isWhole ? undefined : value,
    };
  },
  remove_field: (app, found, field) => ({ title: `Remove ${field}?`, main: "Remove", fields: [el("input", { name: "field", type: "hidden", value: field })], done: "The field was removed." }),
  clear: () => ({ title: "Clear this conversation?", main: "Clear", note: "The conversation ends and its data is deleted. The profile is kept.", fields: [], done: "The conversation was cleared.", leave: "records" }),
  forget: () => ({ title: "Forget this record?", main: "Forget", note: "The record is deleted with its profile and all traces.", fields: [], done: "The record was deleted.", leave: "records" }),
  retry: () => ({ title: "Retry this run?", main: "Retry", note: "The run enters the queue, and a worker continues it at the node that failed.", fields: [], done: "The run is in the queue." }),
  pause: () => ({ title: "Pause this run?", main: "Pause", note: "The run stops after the nodes that it runs now. No worker continues it until it is resumed.", fields: [], done: "The run is paused." }),
  cancel: () => ({ title: "Cancel this run?", main: "Cancel the run", note: "The run ends as cancelled, wherever it runs.", fields: [input("reason", "Reason (stored with the run)", "", { required: false })], done: "The run was cancelled." }),
  answer: (app, found, wait) => ({
    title: "Answer", main: "Answer", note: "JSON, or else a text. A worker continues the run.",
    fields: [el("input", { name: "wait", type: "hidden", value: wait }), el("label", {}, "Answer", el("textarea", { name: "value", rows: "3", required: true, autofocus: true }))], done: "The answer was stored.",
  }),
};

// What changed between the version that the page showed and the present one.
function changesOf(before, now) {
  const changes = ["flow", "state", "status", "node"].filter((name) => name in now && now[name] !== before[name]).map((name) => `${name}: ${before[name]} → ${now[name]}`);
  const names = now.data ? [...new Set([...Object.keys(before.data), ...Object.keys(now.data)])] : [];
  const fields = names.filter((name) => JSON.stringify(before.data[name]) !== JSON.stringify(now.data[name]));
  return [...changes, ...(fields.length ? [`changed fields: ${fields.join(", ")}`] : [])].join("; ");
}

export function ask(app, name, shown, field) {
  let found = shown;
  const form = FORMS[name](app, found, field);
  const dialog = byId("dialog");
  const problem = el("p", { class: "warning", role: "alert", hidden: true });
  const box = byId("dialog-form");
  const subject = found.flow_id === undefined ? { bot: found.bot, key: found.key } : { id: found.flow_id };
  const send = el("button", { type: "submit", class: "main" }, form.main);
  box.replaceChildren(el("h2", { id: "dialog-title" }, form.title), form.note ? el("p", { class: "note" }, form.note) : "", ...form.fields, problem,
    el("p", { class: "actions" }, send, el("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, "Back")));
  box.onsubmit = async (event) => {
    event.preventDefault();
    const given = Object.fromEntries(new FormData(box));
    if (form.unchanged !== undefined && given.value === form.unchanged) {
      // JavaScript has one kind of numbers: writing 1.0 back would store 1.
      dialog.close();
      toast("Nothing was changed.");
      return;
    }
    if ("value" in given) given.value = asJson(given.value);
    send.disabled = true;
    const answer = await post(name, { ...subject, ...given, version: found.version });
    send.disabled = false;
    if (answer.ok) {
      dialog.close();
      toast(form.done);
      if (form.leave) location.hash = `#/${form.leave}?${new URLSearchParams({ bot: found.bot })}`;
      else app.refresh();
      return;
    }
    const now = answer.record ?? answer.run;
    problem.textContent = answer.error;
    if (answer.conflict && now) {
      // The next attempt has the present version, after the person has seen what changed.
      const changes = changesOf(found, now);
      problem.textContent = `It changed since this page showed it${changes ? ` (${changes})` : ""}. Nothing was written. Check it, then press ${form.main} again or go back.`;
      found = now;
      app.refresh();
    }
    problem.hidden = false;
  };
  const opener = document.activeElement;
  dialog.addEventListener("close", () => focusAgain(opener), { once: true });
  dialog.showModal();
}

// Focuses the button that opened a dialog, or its successor if the page was shown again meanwhile.
function focusAgain(opener) {
  const name = (button) => button.getAttribute("aria-label") ?? button.textContent;
  const next = opener.isConnected ? opener : [...byId("content").querySelectorAll("button")].find((each) => name(each) === name(opener));
  next?.focus();
}
