// The dialogs: edit a record, copy a chat as a test, and the result of a replay.
import { act, byId, el, toast } from "./dom.js";

function open(title, parts, submit) {
  const dialog = byId("dialog");
  const box = byId("dialog-form");
  box.replaceChildren(el("h2", { id: "dialog-title" }, title), ...parts);
  box.onsubmit = async (event) => { event.preventDefault(); await submit?.(); };
  dialog.showModal();
  return dialog;
}

function buttons(...given) {
  return el("p", { class: "actions" }, ...given, el("button", { type: "button", class: "quiet", onclick: () => byId("dialog").close() }, "Close"));
}

// An edit of an older version is refused, and the page already shows the newer one.
export function editRecord(app, now) {
  const { record } = now;
  const flow = (app.sections.machines ?? []).find((each) => each.bot === now.bot)?.flows.find((each) => each.name === record.flow);
  const state = flow
    ? el("select", {}, ...flow.states.map((name) => el("option", { value: name, selected: name === record.state }, name)))
    : el("input", { value: record.state ?? "", autocomplete: "off" });
  const data = el("textarea", { rows: String(Math.min(16, 3 + JSON.stringify(record.data, null, 2).split("\n").length)), spellcheck: "false", value: JSON.stringify(record.data, null, 2) });
  const problem = el("p", { class: "warning", role: "alert", hidden: true });
  const fail = (text) => { problem.textContent = text; problem.hidden = false; };
  const send = async (name, body, done) => {
    const answer = await act(name, { bot: now.bot, key: now.key, version: record.version, ...body }, { quiet: true });
    if (!answer.ok) { fail(answer.error); return; }
    byId("dialog").close();
    toast(done);
  };
  open("Edit the record", [
    el("p", { class: "note" }, "Values are JSON. ••• stands for a secret, and stays as it is. The timer of another state does not start."),
    el("label", {}, "State", state), el("label", {}, "Data", data), problem,
    buttons(el("button", { type: "submit", class: "main" }, "Save"),
      el("button", { type: "button", onclick: () => send("clear_record", {}, "The conversation has ended.") }, "End the conversation")),
  ], () => {
    try { JSON.parse(data.value); } catch (error) { fail(`The data is not valid JSON: ${error.message}`); return undefined; }
    return send("edit_record", { state: state.value === (record.state ?? "") ? null : state.value, data: data.value }, "The record was changed.");
  });
}

export async function stepBack(now) {
  const answer = await act("step_back", { bot: now.bot, key: now.key });
  if (answer) toast(`Back to the time before “${answer.undone}”.`);
}

export async function replayChat(pane, button) {
  button.disabled = true;
  const answer = await act("replay", { room: pane.place.room });
  button.disabled = false;
  if (!answer) return;
  const { steps, differences } = answer;
  const what = `Replayed ${steps} ${steps === 1 ? "step" : "steps"}`;
  if (!differences.length) { toast(`${what}: the same answers.`); return; }
  const said = (texts) => el("td", {}, ...(texts.length ? texts.map((text) => el("p", {}, text)) : [el("span", { class: "none" }, "no answer")]));
  open(`${what}: ${differences.length} ${differences.length === 1 ? "answer differs" : "answers differ"}`, [
    el("table", { class: "differences" }, el("thead", {}, el("tr", {}, ...["Sent", "Before", "Now"].map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, ...differences.map((each) => el("tr", {}, el("th", { scope: "row" }, each.said), said(each.before), said(each.now))))),
    buttons()]);
}

export async function startOver(pane) {
  open("Start over?", [el("p", { class: "note" }, "The conversations of this chat end, and all its messages and events are removed."),
    buttons(el("button", { type: "submit", class: "main" }, "Start over"))],
  async () => { byId("dialog").close(); if (await act("start_over", { room: pane.place.room })) pane.input.focus(); });
}

export async function copyTest(pane) {
  const answer = await act("copy_test", pane.target);
  if (!answer) return;
  const text = el("textarea", { readonly: true, rows: "16", wrap: "off", spellcheck: "false", "aria-label": "Test", value: answer.text });
  const note = el("p", { class: "note", role: "status" });
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(answer.text);
      note.textContent = `Copied. Save it as ${answer.file} beside the bot's file.`;
    } catch {
      text.select();
      note.textContent = `Press Ctrl+C, and save it as ${answer.file} beside the bot's file.`;
    }
  };
  open("This chat as a test", [note, text, buttons(el("button", { type: "submit", class: "main" }, "Copy again"))], copy);
  text.setSelectionRange(0, 0);
  text.scrollTop = 0;
  await copy();
}
