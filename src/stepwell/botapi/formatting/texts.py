"""Texts and captions of calls: their formatting, their entities, and the limits of their length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepwell.botapi.errors import bad_request
from stepwell.botapi.formatting.entities import Entity, find_entities, utf16_length
from stepwell.botapi.formatting.html import parse_html
from stepwell.botapi.formatting.markdown import parse_markdown, parse_markdown_v2
from stepwell.botapi.params import Params

__all__ = ["formatted_text", "link_preview", "text_of"]

MAX_TEXT, MAX_CAPTION = 4096, 1024
#: Before the formatting is parsed.
MAX_RAW_TEXT = 64 * 1024
_READERS: dict[str, Callable[[str], tuple[str, list[Entity]]]] = {
    "html": parse_html,
    "markdownv2": parse_markdown_v2,
    "markdown": parse_markdown,
}
#: Telegram finds no links or commands in them.
_OPAQUE = frozenset({"code", "pre", "text_link", "text_mention", "custom_emoji"})


def text_of(params: Params, name: str = "text", listed: str = "entities") -> dict[str, Any]:
    """Return the checked text or caption of a call and its entities."""
    limit, kind = (MAX_TEXT, "message") if name == "text" else (MAX_CAPTION, "message caption")
    text, entities = formatted_text(params, name, listed, limit=limit, too_long=f"{kind} is too long")
    if not text.strip():
        if name == "text":
            raise bad_request("message text is empty")
        return {}
    return {name: text, **({listed: entities} if entities else {})}


def formatted_text(
    params: Params, name: str, listed: str, mode: str = "parse_mode", *, limit: int, too_long: str
) -> tuple[str, list[Entity]]:
    """Return a text and its entities: by its parse mode, else as listed, and those that Telegram finds itself."""
    text, reader = params.text(name), params.text(mode).lower()
    given = params.objects(listed) if listed in params.given else []
    if not all(type(entity.get(field)) is int for entity in given for field in ("offset", "length")):
        raise bad_request(f"can't parse {listed}: offset and length are numbers")
    # The limit counts the parsed text; this one bounds the work of parsing.
    if len(text) > MAX_RAW_TEXT:
        raise bad_request(too_long)
    if reader and reader != "none":
        if reader not in _READERS:
            raise bad_request("unsupported parse_mode")
        text, given = _READERS[reader](text)
        # Readers list an entity after the entities inside it; the outer one comes first.
        given.reverse()
    text, given = _trimmed(text, given)
    if utf16_length(text) > limit:
        raise bad_request(too_long)
    if not given:
        return text, find_entities(text)
    return text, sorted([*given, *_found(text, given)], key=lambda entity: (entity["offset"], -entity["length"]))


def _trimmed(text: str, given: list[Entity]) -> tuple[str, list[Entity]]:
    """Remove spaces and line ends around a text as Telegram does: at its start only before the first entity."""
    text = text.rstrip()
    if not given:
        return text.lstrip(" \n"), []
    first = max(min(each["offset"] for each in given), 0)
    removed = min(len(text) - len(text.lstrip(" \n")), first)
    text, size = text[removed:], utf16_length(text) - removed
    moved = [{**each, "offset": each["offset"] - removed} for each in given]
    ended = [{**each, "length": min(each["length"], size - each["offset"])} for each in moved]
    return text, [each for each in ended if each["length"] > 0]


def _found(text: str, given: list[Entity]) -> list[Entity]:
    opaque = [(each["offset"], each["offset"] + each["length"]) for each in given if each.get("type") in _OPAQUE]
    return [
        each
        for each in find_entities(text)
        if not any(start < each["offset"] + each["length"] and each["offset"] < end for start, end in opaque)
    ]


def link_preview(params: Params) -> dict[str, Any]:
    """Return the options of the link preview of a call."""
    if "link_preview_options" not in params.given and "disable_web_page_preview" not in params.given:
        return {}
    options = params.json("link_preview_options", dict, "link preview options")
    if options is None and params.flag("disable_web_page_preview"):
        options = {"is_disabled": True}
    return {"link_preview_options": options} if options else {}
