// The dialogs that change something. Each sends the version that the page showed when it was opened.
//
// A form is a function (app, found, field) that returns: title; main, the text of its button; fields; done, what is said
// afterwards; and perhaps note; danger, if it deletes or ends something; confirm, the name that must be typed first; leave,
// the page to show afterwards; unchanged, the value that is not written; and subject, what names the thing to the server, by
// default {id} of a run or {bot, key}. A function "done" gets the answer of the server, and
// "goes" returns the address to show then. "body" returns what is sent for the fields, and "problem" shows an error of the
// server at its field and returns whether it could. "differs" returns what changes, while it is typed: [name, old, new] as JSON.
import { act, byId, el, toast } from "./dom.js";
import { asJson, input } from "./fields.js";
import { FORMS } from "./pages.js";
import { counted } from "./parts.js";

// What changed between the version that the page showed and the present one.
function changesOf(before, now) {
  const changes = ["flow", "state", "status", "node"].filter((name) => name in now && now[name] !== before[name]).map((name) => `${name}: ${before[name]} → ${now[name]}`);
  const [old, data] = [before.data ?? before.shared ?? {}, now.data ?? now.shared ?? {}];
  const fields = [...new Set([...Object.keys(old), ...Object.keys(data)])].filter((name) => JSON.stringify(old[name]) !== JSON.stringify(data[name]));
  return [...changes, ...(fields.length ? [`changed fields: ${fields.join(", ")}`] : [])].join("; ");
}

export function ask(app, name, shown, field) {
  let found = shown;
  const form = FORMS[name](app, found, field);
  const dialog = byId("dialog");
  const problem = el("p", { class: "warning", role: "alert", hidden: true });
  const box = byId("dialog-form");
  const subject = form.subject ?? (found.flow_id === undefined ? { bot: found.bot, key: found.key } : { id: found.flow_id });
  const send = el("button", { type: "submit", class: form.danger ? "main danger" : "main", disabled: Boolean(form.confirm) }, form.main);
  const confirm = form.confirm ? [input("confirm", `Type ${form.confirm} to confirm`, "", { oninput: (event) => { send.disabled = event.target.value !== form.confirm; } })] : [];
  const diff = el("div", { class: "diff", role: "group", "aria-label": "What changes", hidden: true });
  const differ = () => {
    const lines = (form.differs?.(Object.fromEntries(new FormData(box))) ?? []).filter(([, old, now]) => old !== now);
    diff.hidden = !lines.length;
    diff.replaceChildren(...lines.flatMap(([field, old, now]) => [old === undefined ? null : el("div", { class: "old" }, `- ${field}: ${old}`), now === undefined ? null : el("div", { class: "new" }, `+ ${field}: ${now}`)]).filter(Boolean));
  };
  box.oninput = differ;
  box.replaceChildren(el("h2", { id: "dialog-title" }, form.title), form.note ? el("p", { class: "note" }, form.note) : "", ...form.fields, diff, ...confirm, problem,
    el("p", { class: "actions" }, send, el("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, "Back")));
  box.onsubmit = async (event) => {
    event.preventDefault();
    const { confirm: _, ...given } = Object.fromEntries(new FormData(box));
    if (form.unchanged !== undefined && given.value === form.unchanged) {
      // JavaScript has one kind of numbers: writing 1.0 back would store 1.
      dialog.close();
      toast("Nothing was changed.");
      return;
    }
    if ("value" in given) given.value = asJson(given.value);
    send.disabled = true;
    const body = form.body ? form.body(given, box) : given;
    const answer = await act(name, { ...subject, ...body, version: found.version }, { quiet: true });
    send.disabled = false;
    if (answer.ok) {
      dialog.close();
      toast(typeof form.done === "function" ? form.done(answer) : form.done);
      if (form.goes) location.hash = form.goes(answer);
      else if (form.leave) location.hash = `#/${form.leave}?${new URLSearchParams({ bot: found.bot })}`;
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
    problem.hidden = Boolean(form.problem?.(answer.error, box));
  };
  differ();
  const opener = document.activeElement;
  dialog.addEventListener("close", () => focusAgain(opener), { once: true });
  dialog.showModal();
}

// Makes one edit for several rows, one after the other, and says which of them were refused. "noun" is what the rows are.
export function askAll(app, name, rows, noun) {
  const form = FORMS[name](app, rows[0]), dialog = byId("dialog"), box = byId("dialog-form");
  const title = `${form.main}: ${counted(rows.length, noun)}`, typed = String(rows.length);
  const send = el("button", { type: "submit", class: form.danger ? "main danger" : "main", disabled: Boolean(form.danger) }, form.main);
  const confirm = form.danger ? [input("confirm", `Type ${typed} to confirm`, "", { inputmode: "numeric", oninput: (event) => { send.disabled = event.target.value !== typed; } })] : [];
  const told = el("div", { role: "alert" });
  box.oninput = null;
  box.replaceChildren(el("h2", { id: "dialog-title" }, title), form.note ? el("p", { class: "note" }, form.note) : "", ...form.fields, ...confirm, told,
    el("p", { class: "actions" }, send, el("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, "Back")));
  box.onsubmit = async (event) => {
    event.preventDefault();
    const { confirm: _, ...given } = Object.fromEntries(new FormData(box));
    send.disabled = true;
    const refused = [];
    for (const [at, row] of rows.entries()) {
      told.textContent = `${at + 1} of ${rows.length} …`;
      const answer = await act(name, { id: row.flow_id, version: row.version, ...given }, { quiet: true });
      if (!answer.ok) refused.push([row.flow_id, answer.conflict ? "it changed since the page showed it" : answer.error]);
    }
    app.chosen.clear();
    app.refresh();
    const done = `${counted(rows.length - refused.length, noun)}: ${form.done}`;
    if (!refused.length) { dialog.close(); toast(done); return; }
    send.hidden = true;
    told.replaceChildren(el("p", {}, done), el("p", { class: "notice bad" }, `${counted(refused.length, noun)} refused:`), el("ul", {}, ...refused.map(([id, why]) => el("li", {}, `${id}: ${why}`))));
  };
  dialog.showModal();
}

// Focuses the button that opened a dialog, or its successor if the page was shown again meanwhile.
function focusAgain(opener) {
  const name = (button) => button.getAttribute("aria-label") ?? button.textContent;
  const next = opener.isConnected ? opener : [...byId("content").querySelectorAll("button")].find((each) => name(each) === name(opener));
  next?.focus();
}
