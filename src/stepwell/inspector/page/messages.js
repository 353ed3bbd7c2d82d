// Messages: updates that are not handled, calls that are not sent, and calls that were refused.
import { bar } from "./chosen.js";
import { el } from "./dom.js";
import { select } from "./filters.js";
import { card, counted, link, nothing, pick, pickAll, table } from "./parts.js";
import { moment } from "./times.js";
import { tree } from "./tree.js";

// A card with the rows of one kind. A row has an id, cells, and perhaps a place, which names it to the server.
function group(app, title, note, noun, columns, rows, buttons) {
  if (!rows.length) return null;
  const able = rows.filter((row) => row.place).map((row) => [row.id, row.place]);
  const box = (row) => (app.allowWrite ? [row.place ? pick(app, row.id, row.id) : el("span", {})] : []);
  return card(title, note, bar(app, noun, able, buttons), table([...(app.allowWrite ? [{ label: "", class: "pick", head: pickAll(app, able.map(([id]) => id)) }] : []), ...columns.map((label, at) => ({ label, class: at === columns.length - 1 ? "most" : undefined }))],
    rows.map((row) => ({ id: row.id, class: app.chosen.has(row.id) ? "chosen" : undefined, cells: [...box(row), ...row.cells] }))));
}

const chatOf = (bot, chat) => (chat === null || chat === undefined ? null : el("a", { href: link("records", { bot, chat }) }, String(chat)));
const inside = (key, label, ...content) => el("details", { class: "inside", "data-key": key }, el("summary", {}, label), ...content);

function updateRow(found, each) {
  const place = each.log === null ? null : { log: each.log, entry: each.entry };
  const id = `update ${each.log ?? "inbox"} ${each.entry ?? each.update_id}`;
  return { id, place, cells: [each.update_id === null ? null : String(each.update_id), chatOf(found.bot, each.chat), each.kind, each.at === null ? null : moment(each.at), each.attempts ? String(each.attempts) : null, el("div", {}, el("span", { class: "said" }, each.why ?? "waits for the bot"),
    each.traceback ? inside(`${id} traceback`, "Traceback", el("pre", { tabindex: "0" }, each.traceback)) : null, each.update ? inside(`${id} update`, "Update", tree(each.update)) : null)] };
}

function refusedRow(found, each) {
  const id = `call ${each.chat} ${each.number}`;
  return { id, place: { chat: each.chat, number: each.number }, cells: [moment(each.at), chatOf(found.bot, each.chat), each.method, each.code === null ? null : String(each.code), each.update_id === null ? null : String(each.update_id),
    el("div", {}, el("span", { class: "said" }, each.description), each.handler ? el("span", { class: "note" }, ` of ${each.handler}`) : null, each.call ? inside(`${id} call`, "Call", tree(each.call)) : null)] };
}

function unsentRow(found, each) {
  return { id: `conversation ${each.key}`, place: { key: each.key }, cells: [el("a", { href: link("record", { bot: found.bot, key: each.key }) }, each.key), moment(each.next_at), String(each.attempts),
    el("span", {}, each.calls.map((call) => (call.chat === null ? call.method : `${call.method} to ${call.chat}`)).join(", "))] };
}

// "box" of the address is the kind that a person looks for, which is shown first.
function showMessages(app, found, params) {
  const rows = (kind, makes) => found[kind].map((each) => makes(found, each));
  const changes = (again, drop, label) => (places) => [app.button(again, label, { bot: found.bot, places }), app.button(drop, "Drop", { bot: found.bot, places }, "small danger apart")];
  const pages = [
    group(app, "Failed updates", "their handler has raised, or they have ended their process", "update", ["update", "chat", "kind", "when", "attempts", "why"], rows("aside", updateRow), changes("retry_updates", "drop_updates", "Retry")),
    group(app, "Refused answers", "Telegram did not take them", "call", ["when", "chat", "method", "code", "update", "reason"], rows("refused", refusedRow), changes("resend", "drop_calls", "Resend")),
    group(app, "Unsent answers", "the bot sends them in order", "conversation", ["conversation", "next attempt", "attempts", "calls"], rows("unsent", unsentRow), changes("send_now", "drop_unsent", "Send now")),
    group(app, "Inbox", "updates that the bot has fetched and not finished", "waiting", ["update", "chat", "kind", "when", "attempts", "why"], rows("waiting", updateRow), () => []),
  ].filter(Boolean);
  if (params.box === "refused") pages.sort((one, two) => (two.dataset.key === "Refused answers") - (one.dataset.key === "Refused answers"));
  if (found.more) pages.push(el("p", { class: "note" }, "There are more of a kind than this page lists."));
  return pages.length ? pages : [card("Messages", found.bot, nothing("No message waits or has failed.", "Updates whose handler raises and answers that Telegram refuses appear here."))];
}

const many = (found, noun) => counted(found.places.length, noun);
const doneOf = (what) => (answer) => `${what}: ${answer.done}${answer.late ? `; ${answer.late} were gone, or cannot be handled again` : ""}.`;
const form = (title, main, note, done, more = {}) => (app, found) => ({ title: title(found), main, note, fields: [], subject: { bot: found.bot, chosen: found.places }, done: doneOf(done), ...more });
const dropped = { danger: true };

const forms = {
  retry_updates: form((found) => `Retry ${many(found, "update")}?`, "Retry", "They go back into the inbox. A bot that polls handles them after its next start.", "Back in the inbox"),
  drop_updates: form((found) => `Drop ${many(found, "update")}?`, "Drop", "Nobody handles them any more.", "Dropped", dropped),
  resend: form((found) => `Resend ${many(found, "answer")}?`, "Resend", "The bot sends them again, after the calls that wait already.", "To be sent again"),
  drop_calls: form((found) => `Drop ${many(found, "refused answer")}?`, "Drop", "They are not sent again.", "Dropped", dropped),
  send_now: form((found) => `Send the answers of ${many(found, "conversation")} now?`, "Send now", "The bot does not wait for the time of its next attempt.", "To be sent now"),
  drop_unsent: form((found) => `Drop the answers of ${many(found, "conversation")}?`, "Drop", "They are not sent.", "Dropped", dropped),
};

export const messages = { name: "messages", title: "Messages", go: "m", source: "messages", show: showMessages, forms, filters: (params, found) => [select("bot", "Bot", found.bots.map((bot) => [bot, bot]), found.bot)] };
