// Formatted texts, and the blocks of rich messages. All text becomes text nodes.
import { el } from "./dom.js";

const STYLES = { bold: "strong", italic: "em", underline: "u", strikethrough: "s", code: "code", pre: "code", spoiler: "span", blockquote: "span", expandable_blockquote: "span" };
// Shown as blocks, which end their line.
const BLOCKS = ["pre", "blockquote", "expandable_blockquote"];
const MARKED = ["bot_command", "url", "mention", "hashtag", "cashtag", "email", "text_link", "text_mention", "phone_number", "date_time", "custom_emoji"];

function link(url, kind, ...inside) {
  return /^https?:\/\//.test(url) ? el("a", { class: `entity ${kind}`, href: url, target: "_blank", rel: "noopener noreferrer" }, ...inside) : el("span", { class: `entity ${kind}`, title: url }, ...inside);
}

// Offsets are UTF-16 units, as in JavaScript. An outer entity comes before those inside it.
export function formatted(text, entities) {
  const known = entities.filter(({ type }) => type in STYLES || MARKED.includes(type));
  const part = (from, to, inside) => {
    const parts = [];
    let at = from;
    for (let n = 0; n < inside.length; n++) {
      const entity = inside[n];
      const { type, offset } = entity;
      const end = Math.min(offset + entity.length, to);
      if (offset < at || end <= offset) continue;
      parts.push(text.slice(at, offset));
      const inner = part(offset, end, inside.slice(n + 1).filter((each) => each.offset >= offset && each.offset + each.length <= end));
      if (type === "text_link" || type === "url") parts.push(link(entity.url ?? text.slice(offset, end), type, ...inner));
      else parts.push(el(STYLES[type] ?? "span", { class: `entity ${type}`, title: type === "pre" ? entity.language : null }, ...inner));
      at = BLOCKS.includes(type) && text[end] === "\n" ? end + 1 : end;
    }
    return [...parts, text.slice(at, to)];
  };
  return part(0, text.length, known);
}

const TEXTS = { bold: "strong", italic: "em", underline: "u", strikethrough: "s", code: "code", subscript: "sub", superscript: "sup", marked: "mark" };

// What presses a button while a message is built; null in a draft.
let press = null;

function button(each) {
  if (each.url) return link(each.url, "key shown", ...inline(each.text));
  const { callback_data: data } = each;
  const work = press;
  return data === undefined || !work ? el("span", { class: "key shown" }, ...inline(each.text)) : el("button", { type: "button", class: "key", onclick: () => work(data) }, ...inline(each.text));
}

function inline(text) {
  if (typeof text === "string") return [text];
  if (Array.isArray(text)) return text.flatMap(inline);
  const inside = text.text === undefined ? [] : inline(text.text);
  if (text.type === "url") return [link(text.url, "url", ...inside)];
  if (text.type === "custom_emoji") return [text.alternative_text];
  if (text.type === "mathematical_expression") return [el("code", { class: "math" }, text.expression)];
  if (text.type === "anchor") return [];
  if (text.type === "button") return [button(text.button)];
  return [el(TEXTS[text.type] ?? "span", { class: `entity ${text.type}` }, ...inside)];
}

const credit = (text) => (text === undefined ? null : el("cite", {}, ...inline(text)));
const caption = (given) => (given === undefined ? null : el("figcaption", {}, ...inline(given.text ?? given), credit(given.credit)));
const WORDS = { photo: "photo", video: "video", audio: "audio", document: "document", animation: "animation", voice_note: "voice" };

function item(each) {
  const mark = each.has_checkbox ? (each.is_checked ? "☑" : "☐") : each.label;
  return el("li", {}, el("span", { class: "label" }, mark), el("div", {}, ...each.blocks.map(block)));
}

function block(each) {
  const text = () => inline(each.text);
  const inside = () => each.blocks.map(block);
  switch (each.type) {
    case "heading": return el("p", { class: `heading size${each.size}`, role: "heading", "aria-level": String(Math.min(6, each.size + 2)) }, ...text());
    case "pre": return el("pre", { title: each.language, tabindex: "0" }, ...text());
    case "footer": return el("p", { class: "footer" }, ...text());
    case "divider": return el("hr");
    case "thinking": return el("p", { class: "thinking" }, ...text());
    case "mathematical_expression": return el("pre", { class: "math", tabindex: "0" }, each.expression);
    case "anchor": return el("span", {});
    case "list": return el("ul", {}, ...each.items.map(item));
    case "blockquote": return el("blockquote", {}, ...inside(), credit(each.credit));
    case "expandable_blockquote": case "pullquote": return el("blockquote", { class: each.type }, el("p", {}, ...text()), credit(each.credit));
    case "details": return el("details", { open: each.is_open }, el("summary", {}, ...inline(each.summary)), ...inside());
    case "table": return el("div", { class: "scroll", tabindex: "0" }, el("table", { class: each.is_striped ? "striped" : "" },
      each.caption === undefined ? null : el("caption", {}, ...inline(each.caption)),
      el("tbody", {}, ...each.cells.map((row) => el("tr", {}, ...row.map((cell) => el(cell.is_header ? "th" : "td", { class: `to-${cell.align}`, colspan: cell.colspan, rowspan: cell.rowspan }, ...inline(cell.text ?? ""))))))));
    case "collage": case "slideshow": return el("figure", {}, ...inside(), caption(each.caption));
    case "map": return el("figure", {}, el("span", { class: "media" }, `map ${each.location.latitude}, ${each.location.longitude}`), caption(each.caption));
    case "buttons": return el("div", { class: "row" }, ...each.buttons.map(button));
    case "paragraph": return el("p", {}, ...text());
    default: return el("figure", {}, el("span", { class: "media" }, WORDS[each.type] ?? each.type), caption(each.caption));
  }
}

export function richMessage({ blocks, is_rtl }, pressed = null) {
  press = pressed;
  return el("div", { class: "rich", dir: is_rtl ? "rtl" : null }, ...blocks.map(block));
}
