"""The blocks and texts of rich messages: the checks of those that a bot gives, and their plain text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from stepwell.botapi.errors import bad_request
from stepwell.botapi.formatting.entities import find_entities

__all__ = ["MEDIA", "Block", "buttons_in", "checked_blocks", "plain_text"]

Block: TypeAlias = dict[str, Any]

MAX_TEXT, MAX_BLOCKS, MAX_DEPTH, MAX_MEDIA, MAX_COLUMNS = 32_768, 500, 16, 50, 20

#: The blocks with a file: the field that has it.
MEDIA: frozenset[str] = frozenset({"animation", "audio", "document", "photo", "video", "voice_note"})
#: The fields of each kind of block, each with its kind; ``?`` after it: may be missing.
_BLOCKS: dict[str, dict[str, str]] = {
    "paragraph": {"text": "text"},
    "heading": {"text": "text", "size": "number"},
    "pre": {"text": "text", "language": "string?"},
    "footer": {"text": "text"},
    "divider": {},
    "mathematical_expression": {"expression": "string"},
    "anchor": {"name": "string"},
    "list": {"items": "items"},
    "blockquote": {"blocks": "blocks", "credit": "text?"},
    "expandable_blockquote": {"text": "text", "credit": "text?"},
    "pullquote": {"text": "text", "credit": "text?"},
    "collage": {"blocks": "blocks", "caption": "caption?"},
    "slideshow": {"blocks": "blocks", "caption": "caption?"},
    "table": {
        "cells": "cells", "is_bordered": "flag?", "is_striped": "flag?", "caption": "text?", "is_compact": "flag?"
    },
    "details": {"summary": "text", "blocks": "blocks", "is_open": "flag?"},
    "map": {"location": "object", "zoom": "number?", "width": "number?", "height": "number?", "caption": "caption?"},
    "buttons": {"buttons": "buttons", "align": "string?"},
    "thinking": {"text": "text"},
    **{kind: {kind: "file", "caption": "caption?"} for kind in MEDIA},
}  # fmt: skip
_MAP = {"zoom": 13, "width": 600, "height": 400}
_ITEM = {"blocks": "blocks", "has_checkbox": "flag?", "is_checked": "flag?", "value": "number?", "type": "string?"}
_CELL = {
    "text": "text?", "is_header": "flag?", "colspan": "number?", "rowspan": "number?", "align": "string?",
    "valign": "string?",
}  # fmt: skip
_CAPTION = {"text": "text", "credit": "text?"}
_STYLES = ("bold", "italic", "underline", "strikethrough", "spoiler", "subscript", "superscript", "marked", "code")
#: The fields of each kind of formatted text.
_TEXTS: dict[str, dict[str, str]] = {
    **{style: {"text": "text"} for style in _STYLES},
    "date_time": {"text": "text", "unix_time": "number", "date_time_format": "string?"},
    "text_mention": {"text": "text", "user": "object"},
    "url": {"text": "text", "url": "string"},
    "email_address": {"text": "text", "email_address": "string"},
    "phone_number": {"text": "text", "phone_number": "string"},
    "bank_card_number": {"text": "text", "bank_card_number": "string"},
    "mention": {"text": "text", "username": "string"},
    "hashtag": {"text": "text", "hashtag": "string"},
    "cashtag": {"text": "text", "cashtag": "string"},
    "bot_command": {"text": "text", "bot_command": "string"},
    "anchor_link": {"text": "text", "anchor_name": "string"},
    "reference": {"text": "text", "name": "string"},
    "reference_link": {"text": "text", "reference_name": "string"},
    "custom_emoji": {"custom_emoji_id": "string", "alternative_text": "string"},
    "mathematical_expression": {"expression": "string"},
    "anchor": {"name": "string"},
    "button": {"button": "button"},
}
#: Telegram finds no links inside them.
_OPAQUE = frozenset({"code", "url", "email_address", "phone_number", "text_mention"})
#: The kinds of entities that Telegram finds: the kind of text, and the field with its value.
_FOUND = {
    "url": ("url", "url"),
    "email": ("email_address", "email_address"),
    "mention": ("mention", "username"),
    "hashtag": ("hashtag", "hashtag"),
    "bot_command": ("bot_command", "bot_command"),
}
_PYTHON: dict[str, tuple[type, ...]] = {"string": (str,), "number": (int,), "flag": (bool,), "object": (dict,)}
_ROMAN = ((10, "x"), (9, "ix"), (5, "v"), (4, "iv"), (1, "i"))


def checked_blocks(
    given: Any, file: Callable[[str, Any], Any], *, detects: bool = True, in_draft: bool = False
) -> list[Block]:
    """Return the blocks of a message from those that a bot gives.

    ``file`` returns the object of a file of a kind. ``detects`` finds links and commands in the text.
    """
    check = _Check(file, detects=detects, in_draft=in_draft)
    blocks = check.blocks(given, 1)
    if not check.counted:
        raise bad_request("RICH_MESSAGE_EMPTY")
    if len(plain_text(blocks)) > MAX_TEXT:
        raise bad_request("RICH_MESSAGE_TEXT_TOO_LONG")
    return blocks


class _Check:
    def __init__(self, file: Callable[[str, Any], Any], *, detects: bool, in_draft: bool) -> None:
        self.file = file
        self.detects = detects
        self.in_draft = in_draft
        self.counted = 0
        self.files = 0

    def blocks(self, given: Any, depth: int) -> list[Block]:
        if not isinstance(given, list):
            raise bad_request("can't parse InputRichBlock: expected an Array")
        return [self._block(each, depth) for each in given]

    def _block(self, given: Any, depth: int) -> Block:
        if not isinstance(given, dict):
            raise bad_request("object expected as InputRichMessageBlock")
        kind = given.get("type")
        if kind is None:
            raise bad_request("can't parse InputRichBlock: Can't find field \"type\"")
        if kind not in _BLOCKS or (kind == "thinking" and not self.in_draft):
            raise bad_request(f'can\'t parse InputRichBlock: type "{kind}" is unsupported')
        self._count(depth)
        if kind == "heading" and given.get("size") not in range(1, 7):
            raise bad_request("invalid section heading size specified")
        fields = self._fields(given, _BLOCKS[kind], "InputRichBlock", depth, opaque=kind == "pre")
        return {"type": kind, **(_MAP if kind == "map" else {}), **fields}

    def _count(self, depth: int) -> None:
        self.counted += 1
        if self.counted > MAX_BLOCKS:
            raise bad_request("RICH_MESSAGE_BLOCKS_TOO_MANY")
        if depth > MAX_DEPTH:
            raise bad_request("RICH_MESSAGE_TOO_LARGE")

    def _fields(
        self, given: Any, fields: dict[str, str], what: str, depth: int, *, opaque: bool = False
    ) -> dict[str, Any]:
        if not isinstance(given, dict):
            raise bad_request(f"{what} must be an object")
        found: dict[str, Any] = {}
        for name, kind in fields.items():
            value = given.get(name)
            if value is not None:
                found[name] = self._value(value, kind.rstrip("?"), name, what, depth, opaque=opaque)
            elif not kind.endswith("?"):
                raise bad_request(f"can't parse {what}: Can't find field \"{name}\"")
        return found

    def _value(self, value: Any, kind: str, name: str, what: str, depth: int, *, opaque: bool) -> Any:
        if kind == "text":
            return self._text(value, depth, opaque=opaque)
        if kind == "blocks":
            return self.blocks(value, depth + 1)
        if kind == "items":
            return self._items(value, depth)
        if kind == "cells":
            return self._rows(value, depth)
        if kind == "caption":
            return self._fields(value, _CAPTION, "richBlockCaption", depth)
        if kind == "buttons":
            if not isinstance(value, list) or not value:
                raise bad_request("button row must be non-empty")
            return [self._button(each, depth) for each in value]
        if kind == "button":
            return self._button(value, depth)
        if kind == "file":
            self.files += 1
            if self.files > MAX_MEDIA:
                raise bad_request("RICH_MESSAGE_MEDIA_TOO_MANY")
            return self.file(name, value)
        if not isinstance(value, _PYTHON[kind]) or (kind == "number" and isinstance(value, bool)):
            raise bad_request(f'can\'t parse {what}: Field "{name}" must be of another type')
        return value

    def _items(self, given: Any, depth: int) -> list[dict[str, Any]]:
        if not isinstance(given, list) or not given:
            raise bad_request("list must be non-empty")
        items = []
        number = 0
        for each in given:
            self._count(depth)
            item = self._fields(each, _ITEM, "InputRichBlockListItem", depth)
            ordered = "value" in item or "type" in item
            number = item.get("value", number + 1)
            items.append({"label": _label(number, item.get("type", "1")) if ordered else "•", **item})
        if len({each["label"] == "•" for each in items}) > 1:
            raise bad_request("list must be either ordered or unordered")
        return items

    def _rows(self, given: Any, depth: int) -> list[list[dict[str, Any]]]:
        if not isinstance(given, list) or not all(isinstance(row, list) for row in given):
            raise bad_request("can't parse InputRichBlock: cells must be an Array of Arrays")
        rows = []
        for row in given:
            self._count(depth)
            if len(row) > MAX_COLUMNS:
                raise bad_request("RICH_MESSAGE_TOO_LARGE")
            cells = [self._fields(cell, _CELL, "richBlockTableCell", depth) for cell in row]
            rows.append(
                [{"align": "center" if "is_header" in cell else "left", "valign": "top", **cell} for cell in cells]
            )
        return rows

    def _button(self, given: Any, depth: int) -> dict[str, Any]:
        if not isinstance(given, dict):
            raise bad_request("inlineButton must be an Object")
        return {**given, "text": self._text(given.get("text", ""), depth, opaque=True)}

    def _text(self, given: Any, depth: int, *, opaque: bool = False) -> Any:
        if depth > MAX_DEPTH:
            raise bad_request("RICH_MESSAGE_TOO_LARGE")
        if isinstance(given, str):
            return given if opaque or not self.detects else _detected(given)
        if isinstance(given, list):
            parts: list[Any] = []
            for each in given:
                part = self._text(each, depth + 1, opaque=opaque)
                # The links in a string are further parts of this list.
                parts += part if isinstance(each, str) and isinstance(part, list) else [part]
            return parts
        if not isinstance(given, dict):
            raise bad_request("invalid rich text specified")
        kind = given.get("type")
        if kind not in _TEXTS:
            raise bad_request("unsupported rich text type")
        opaque = opaque or kind in _OPAQUE
        text = {"type": kind, **self._fields(given, _TEXTS[kind], "RichText", depth + 1, opaque=opaque)}
        if kind == "text_mention":
            text["user"] = {"is_bot": False, "first_name": _plain(text["text"]), **text["user"]}
        return text


def _detected(text: str) -> Any:
    """Return a text with the links and commands that Telegram finds in it."""
    units = text.encode("utf-16-le", "surrogatepass")

    def part(begin: int, end: int) -> str:
        return units[begin * 2 : end * 2].decode("utf-16-le", "surrogatepass")

    parts: list[Any] = []
    at = 0
    for entity in find_entities(text):
        end = entity["offset"] + entity["length"]
        kind, field = _FOUND[entity["type"]]
        found = part(entity["offset"], end)
        before = part(at, entity["offset"])
        parts += [*([before] if before else []), {"type": kind, "text": found, field: found.lstrip("@#/")}]
        if kind in ("url", "email_address"):
            parts[-1][field] = found
        at = end
    rest = part(at, len(units) // 2)
    return text if not parts else [*parts, *([rest] if rest else [])]


def _label(number: int, kind: str) -> str:
    if kind in ("a", "A"):
        letters = ""
        left = max(number, 1)
        while left:
            left, rest = divmod(left - 1, 26)
            letters = chr(ord(kind) + rest) + letters
        return f"{letters}."
    if kind in ("i", "I") and 0 < number < 40:
        roman, left = "", number
        for value, sign in _ROMAN:
            while left >= value:
                roman, left = roman + sign, left - value
        return f"{roman if kind == 'i' else roman.upper()}."
    if kind not in ("a", "A", "i", "I", "1"):
        raise bad_request("invalid list item type specified")
    return f"{number}."


def plain_text(blocks: list[Block]) -> str:
    """Return the text of blocks without formatting, a line for each."""
    return "\n".join(line for block in blocks for line in _lines(block))


def buttons_in(blocks: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the text of each button inside blocks, and the button."""
    if isinstance(blocks, list):
        for each in blocks:
            yield from buttons_in(each)
    elif isinstance(blocks, dict):
        for name, each in blocks.items():
            if name in ("button", "buttons"):
                found = each if isinstance(each, list) else [each]
                yield from ((_plain(button["text"]), button) for button in found)
            else:
                yield from buttons_in(each)


def _lines(block: Block) -> Iterator[str]:
    for name in ("summary", "text"):
        if name in block:
            yield _plain(block[name])
    if "expression" in block:
        yield str(block["expression"])
    for inner in block.get("blocks", []):
        yield from _lines(inner)
    for item in block.get("items", []):
        mark = ("☑" if item.get("is_checked") else "☐") if item.get("has_checkbox") else item["label"]
        yield f"{mark} {plain_text(item['blocks'])}"
    for row in block.get("cells", []):
        yield " | ".join(_plain(cell.get("text", "")) for cell in row)
    if "buttons" in block:
        yield " ".join(f"[{_plain(button['text'])}]" for button in block["buttons"])
    caption = block.get("caption")
    if caption is not None:
        # A caption of a file is an object with a text, that of a table is a text.
        yield _plain(caption["text"] if isinstance(caption, dict) and "type" not in caption else caption)
    if "credit" in block:
        yield _plain(block["credit"])


def _plain(text: Any) -> str:
    if isinstance(text, str):
        return text
    if isinstance(text, list):
        return "".join(map(_plain, text))
    if text["type"] == "button":
        return f"[{_plain(text['button']['text'])}]"
    return _plain(text.get("text", text.get("alternative_text", text.get("expression", ""))))
