"""The HTML of rich messages as blocks.

Telegram does not publish how it treats invalid HTML. Here, a tag that it does not know is left out, and a tag without
its end tag ends with the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any, TypeAlias

from stepwell.botapi.formatting.rich.blocks import Block

__all__ = ["parse_rich_html"]

_VOID = frozenset({"br", "hr", "img", "input", "tg-map"})
_STYLES = {
    "b": "bold", "strong": "bold", "i": "italic", "em": "italic", "u": "underline", "ins": "underline",
    "s": "strikethrough", "strike": "strikethrough", "del": "strikethrough", "code": "code", "mark": "marked",
    "sub": "subscript", "sup": "superscript", "tg-spoiler": "spoiler",
}  # fmt: skip
_HEADINGS = {f"h{size}": size for size in range(1, 7)}
_FILES = {"img": "photo", "video": "video", "audio": "audio"}
_BLOCKS = frozenset(
    {
        *_HEADINGS, *_FILES, "p", "pre", "footer", "hr", "ul", "ol", "blockquote", "aside", "details", "table",
        "figure", "tg-collage", "tg-slideshow", "tg-map", "tg-math-block", "tg-thinking", "div",
    }
)  # fmt: skip
#: The deepest nesting of tags; those inside are taken as text. Blocks allow less.
MAX_NESTING = 64
_BREAK = re.compile(r" *\n *")
_SPACES = re.compile(r"[ \t\r\n]+")
_EMOJI, _USER = re.compile(r"tg://emoji\?id=(\d+)"), re.compile(r"tg://user\?id=(\d+)")
_SUFFIXES = {
    ".mp4": "video", ".webm": "video", ".mov": "video", ".gif": "animation", ".mp3": "audio", ".m4a": "audio",
    ".ogg": "voice_note",
}  # fmt: skip


@dataclass(slots=True)
class _Node:
    tag: str
    given: dict[str, str] = field(default_factory=dict)
    inside: list[_Node | str] = field(default_factory=list)

    def first(self, *tags: str) -> _Node | None:
        return next((each for each in self.inside if isinstance(each, _Node) and each.tag in tags), None)

    def all(self, *tags: str) -> list[_Node]:
        """Return the nodes of these tags, also those inside others, such as the rows of a tbody."""
        found: list[_Node] = []
        for each in self.inside:
            if isinstance(each, _Node):
                found += [each] if each.tag in tags else each.all(*tags)
        return found

    def without(self, *tags: str) -> list[_Node | str]:
        return [each for each in self.inside if isinstance(each, str) or each.tag not in tags]


_Inside: TypeAlias = list[_Node | str]


class _Tree(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = _Node("")
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = _Node(tag, {name: value or "" for name, value in attrs})
        self.open[-1].inside.append(node)
        if tag not in _VOID and len(self.open) <= MAX_NESTING:
            self.open.append(node)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].inside.append(_Node(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if any(each.tag == tag for each in self.open[1:]):
            while self.open.pop().tag != tag:
                pass

    def handle_data(self, data: str) -> None:
        self.open[-1].inside.append(data)


def parse_rich_html(html: str) -> list[Block]:
    """Return the blocks of a text in HTML, as a bot could give them."""
    tree = _Tree()
    try:
        tree.feed(html)
        tree.close()
    except AssertionError:
        # HTMLParser asserts on malformed declarations such as <![x.
        tree.handle_data(html)
    return _blocks(tree.root.inside)


def _blocks(inside: _Inside) -> list[Block]:
    blocks: list[Block] = []
    line: _Inside = []

    def end_line() -> None:
        text = _text(line)
        if text:
            blocks.append({"type": "paragraph", "text": text})
        line.clear()

    for each in inside:
        if isinstance(each, str) or not _is_block(each):
            line.append(each)
        else:
            end_line()
            blocks.extend(_block(each))
    end_line()
    return blocks


def _is_block(node: _Node) -> bool:
    if node.tag == "a" and "name" in node.given and not node.inside:
        return True
    return node.tag in _BLOCKS and not _EMOJI.fullmatch(node.given.get("src", ""))


def _block(node: _Node) -> list[Block]:
    tag, given = node.tag, node.given
    if tag in ("p", "div"):
        # A picture in a paragraph is a block of its own.
        return _blocks(node.inside)
    if tag == "a":
        return [{"type": "anchor", "name": given["name"]}]
    if tag in _HEADINGS:
        return [{"type": "heading", "text": _text(node.inside), "size": _HEADINGS[tag]}]
    if tag == "pre":
        return [_preformatted(node)]
    if tag in ("footer", "tg-thinking"):
        return [{"type": tag.removeprefix("tg-"), "text": _text(node.inside)}]
    if tag == "hr":
        return [{"type": "divider"}]
    if tag in ("ul", "ol"):
        items = _items(node)
        return [{"type": "list", "items": items}] if items else []
    if tag == "blockquote":
        if "expandable" in given:
            return [{"type": "expandable_blockquote", "text": _text(node.without("cite")), **_credit(node)}]
        return [{"type": "blockquote", "blocks": _blocks(node.without("cite")), **_credit(node)}]
    if tag == "aside":
        return [{"type": "pullquote", "text": _text(node.without("cite")), **_credit(node)}]
    if tag == "details":
        summary = node.first("summary")
        opened = {"is_open": True} if "open" in given else {}
        text = _text(summary.inside) if summary else ""
        return [{"type": "details", "summary": text, "blocks": _blocks(node.without("summary")), **opened}]
    if tag == "table":
        return [_table(node)]
    if tag == "tg-math-block":
        return [{"type": "mathematical_expression", "expression": _raw(node).strip()}]
    return _media(node)


def _preformatted(node: _Node) -> Block:
    code = node.first("code")
    language = (code.given.get("class", "") if code else "").removeprefix("language-")
    text = _raw(node).removesuffix("\n")
    return {"type": "pre", "text": text, **({"language": language} if language else {})}


def _items(node: _Node) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    ordered, number = node.tag == "ol", _number(node.given.get("start"), 1)
    step = -1 if "reversed" in node.given else 1
    for each in [child for child in node.inside if isinstance(child, _Node) and child.tag == "li"]:
        item: dict[str, Any] = {}
        if ordered:
            number = _number(each.given.get("value"), number)
            item |= {"value": number, "type": each.given.get("type", node.given.get("type", "1"))}
            number += step
        box = next((found for found in each.all("input") if found.given.get("type") == "checkbox"), None)
        if box is not None:
            item |= {"has_checkbox": True, **({"is_checked": True} if "checked" in box.given else {})}
        items.append({"blocks": _blocks(each.inside), **item})
    return items


def _table(node: _Node) -> Block:
    rows = [
        [
            {
                "text": _text(cell.inside),
                **({"is_header": True} if cell.tag == "th" else {}),
                **{name: _number(cell.given[name], 1) for name in ("colspan", "rowspan") if name in cell.given},
                **{name: value for name in ("align", "valign") if (value := _aligned(cell, name))},
            }
            for cell in row.all("td", "th")
        ]
        for row in node.all("tr")
    ]
    caption = node.first("caption")
    flags = {f"is_{name}": True for name in ("bordered", "striped", "compact") if name in node.given}
    return {"type": "table", "cells": rows, **flags, **({"caption": _text(caption.inside)} if caption else {})}


def _aligned(cell: _Node, name: str) -> str:
    # Markdown gives the alignment as a style.
    style = re.search(r"text-align:\s*(\w+)", cell.given.get("style", "")) if name == "align" else None
    return cell.given.get(name, style[1] if style else "")


def _media(node: _Node) -> list[Block]:
    """Return the blocks of files, maps, collages and slideshows, with their caption."""
    caption = node.first("figcaption")
    shown = {}
    if caption is not None:
        shown = {"caption": {"text": _text(caption.without("cite")), **_credit(caption)}}
    elif node.given.get("title"):
        shown = {"caption": {"text": node.given["title"]}}
    if node.tag == "figure":
        inner = node.first(*_FILES, "tg-map")
        return [{**block, **shown} for block in _media(inner)] if inner else []
    if node.tag == "tg-map":
        place = {"latitude": _fraction(node.given.get("lat")), "longitude": _fraction(node.given.get("long"))}
        return [{"type": "map", "location": place, "zoom": _number(node.given.get("zoom"), 13), **shown}]
    if node.tag in ("tg-collage", "tg-slideshow"):
        blocks = _blocks(node.without("figcaption"))
        return [{"type": node.tag.removeprefix("tg-"), "blocks": blocks, **shown}]
    source = node.given.get("src", "")
    suffix = source.partition("?")[0].rpartition(".")[2].lower()
    kind = _SUFFIXES.get(f".{suffix}", _FILES[node.tag])
    spoiler = {"has_spoiler": True} if "tg-spoiler" in node.given else {}
    return [{"type": kind, kind: {"type": kind, "media": source, **spoiler}, **shown}]


def _credit(node: _Node) -> dict[str, Any]:
    cite = node.first("cite")
    return {"credit": _text(cite.inside)} if cite else {}


def _raw(node: _Node) -> str:
    return "".join(each if isinstance(each, str) else _raw(each) for each in node.inside)


def _text(inside: _Inside) -> Any:
    """Return formatted text: a string, an object, or a list of both; without the spaces around it."""
    parts = _joined([part for each in inside for part in _inline(each)])
    if parts and isinstance(parts[0], str):
        parts[0] = parts[0].lstrip()
    if parts and isinstance(parts[-1], str):
        parts[-1] = parts[-1].rstrip()
    parts = [part for part in parts if part != ""]
    return parts[0] if len(parts) == 1 else parts or ""


def _joined(parts: list[Any]) -> list[Any]:
    joined: list[Any] = []
    for part in parts:
        if joined and isinstance(part, str) and isinstance(joined[-1], str):
            joined[-1] += part
        else:
            joined.append(part)
    return [_BREAK.sub("\n", part) if isinstance(part, str) else part for part in joined]


def _inline(node: _Node | str) -> list[Any]:
    if isinstance(node, str):
        return [_SPACES.sub(" ", node)]
    tag, given = node.tag, node.given
    if tag == "br":
        return ["\n"]
    if tag == "img" and (emoji := _EMOJI.fullmatch(given.get("src", ""))):
        return [{"type": "custom_emoji", "custom_emoji_id": emoji[1], "alternative_text": given.get("alt", "")}]
    if tag == "tg-emoji":
        number = given.get("emoji-id", "")
        return [{"type": "custom_emoji", "custom_emoji_id": number, "alternative_text": _raw(node)}]
    if tag == "tg-math":
        return [{"type": "mathematical_expression", "expression": _raw(node)}]
    if tag == "input":
        return []
    inner = [part for each in node.inside for part in _inline(each)]
    parts = _joined(inner)
    text: Any = parts[0] if len(parts) == 1 else parts
    if not parts and tag != "a":
        return []
    if tag in _STYLES or (tag == "span" and given.get("class") == "tg-spoiler"):
        return [{"type": _STYLES.get(tag, "spoiler"), "text": text}]
    if tag == "tg-reference":
        return [{"type": "reference", "text": text, "name": given.get("name", "")}]
    if tag == "tg-time":
        unix, shape = _number(given.get("unix"), 0), given.get("format", "")
        return [{"type": "date_time", "text": text, "unix_time": unix, "date_time_format": shape}]
    return [_link(given, text)] if tag == "a" else parts


def _link(given: dict[str, str], text: Any) -> dict[str, Any]:
    target = given.get("href", "")
    if not target:
        return {"type": "anchor", "name": given.get("name", "")}
    if target.startswith("#"):
        return {"type": "anchor_link", "text": text, "anchor_name": target[1:]}
    if target.startswith("mailto:"):
        return {"type": "email_address", "text": text, "email_address": target.removeprefix("mailto:")}
    if target.startswith("tel:"):
        return {"type": "phone_number", "text": text, "phone_number": target.removeprefix("tel:")}
    if user := _USER.fullmatch(target):
        return {"type": "text_mention", "text": text, "user": {"id": int(user[1])}}
    return {"type": "url", "text": text, "url": target}


def _number(text: str | None, default: int) -> int:
    return int(text) if text is not None and re.fullmatch(r"-?\d{1,9}", text) else default


def _fraction(text: str | None) -> float:
    return float(text) if text is not None and re.fullmatch(r"-?\d{1,3}(\.\d{1,12})?", text) else 0.0
