"""Texts and captions of calls: their formatting, their entities, and the limits of their length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepwell.botapi.errors import bad_request
from stepwell.botapi.formatting.entities import Entity, find_entities, utf16_length
from stepwell.botapi.formatting.html import parse_html
from stepwell.botapi.formatting.markdown import parse_markdown, parse_markdown_v2
from stepwell.botapi.params import Params

__all__ = ["formatted_text", "link_preview", "read_text", "text_of"]

MAX_TEXT, MAX_CAPTION = 4096, 1024
#: The description of the error by whether it is a text, and whether the call edits a message.
_TOO_LONG = {
    (True, False): "message is too long",
    (True, True): "MESSAGE_TOO_LONG",
    (False, False): "message caption is too long",
    (False, True): "MEDIA_CAPTION_TOO_LONG",
}
#: Before the formatting is parsed.
MAX_RAW_TEXT = 64 * 1024
_READERS: dict[str, Callable[[str], tuple[str, list[Entity]]]] = {
    "html": parse_html,
    "markdownv2": parse_markdown_v2,
    "markdown": parse_markdown,
}
_KINDS = frozenset(
    {
        "mention", "hashtag", "cashtag", "bot_command", "url", "email", "phone_number", "bank_card_number", "bold",
        "italic", "underline", "strikethrough", "spoiler", "blockquote", "expandable_blockquote", "code", "pre",
        "text_link", "text_mention", "custom_emoji", "date_time", "media_timestamp",
    }
)  # fmt: skip
#: The highest offset and length of an entity.
_MOST_UNITS = 1_000_000
#: Telegram finds no links or commands in them.
_OPAQUE = frozenset({"code", "pre", "text_link", "text_mention", "custom_emoji"})


def text_of(
    params: Params, name: str = "text", listed: str = "entities", *, edits: bool = False, may_be_empty: bool = False
) -> dict[str, Any]:
    """Return the checked text or caption of a call and its entities; Telegram words the errors of edits differently."""
    limit = MAX_TEXT if name == "text" else MAX_CAPTION
    text, entities = formatted_text(params, name, listed, limit=limit, too_long=_TOO_LONG[name == "text", edits])
    if not text.strip():
        if may_be_empty:
            return {name: ""}
        if name == "text":
            raise bad_request("message text is empty")
        return {}
    return {name: text, **({listed: entities} if entities else {})}


def read_text(text: str, parse_mode: str) -> tuple[str, list[Entity]]:
    """Return the plain text of a formatted one, and its entities. Raises ``Refusal`` as Telegram does.

    Example::

        from stepwell.botapi import read_text

        text, entities = read_text("Hello, <b>world</b>", "HTML")
        assert entities == [{"type": "bold", "offset": 7, "length": 5}]
    """
    reader = _READERS.get(parse_mode.lower())
    if reader is None:
        raise bad_request("unsupported parse_mode")
    plain, entities = reader(text)
    # Readers list an entity after the entities inside it; the outer one comes first.
    return plain, sorted(entities, key=lambda each: (each["offset"], -each["length"]))


def formatted_text(
    params: Params, name: str, listed: str, mode: str = "parse_mode", *, limit: int, too_long: str
) -> tuple[str, list[Entity]]:
    """Return a text and its entities: by its parse mode, else as listed, and those that Telegram finds itself."""
    text, reader = params.text(name), params.text(mode).lower()
    given = params.objects(listed) if listed in params.given else []
    # The limit counts the parsed text; this one bounds the work of parsing.
    if len(text) > MAX_RAW_TEXT:
        raise bad_request(too_long)
    if reader and reader != "none":
        if reader not in _READERS:
            raise bad_request("unsupported parse_mode")
        text, given = _READERS[reader](text)
        # Readers list an entity after the entities inside it; the outer one comes first.
        given.reverse()
    else:
        _check_listed(text, given)
    text, given = _trimmed(text, given)
    if utf16_length(text) > limit:
        raise bad_request(too_long)
    if not given:
        return text, find_entities(text)
    return text, sorted([*given, *_found(text, given)], key=lambda entity: (entity["offset"], -entity["length"]))


def _check_listed(text: str, given: list[Entity]) -> None:
    """Raise the refusal for listed entities that are not inside the text."""
    size = utf16_length(text)
    for entity in given:
        if entity.get("type") not in _KINDS:
            raise bad_request("can't parse MessageEntity: Unsupported type specified")
        for field in ("offset", "length"):
            value = entity.get(field)
            if type(value) is not int:
                raise bad_request(f"can't parse MessageEntity: Can't find field \"{field}\"")
            if not 0 <= value <= _MOST_UNITS:
                raise bad_request(f"receive an entity with incorrect {field} {value}")
        offset, end = entity["offset"], entity["offset"] + entity["length"]
        if entity["length"] and offset >= size:
            raise bad_request(f"entity begins after the end of the text at UTF-16 offset {offset}")
        if end > size:
            raise bad_request(
                f"entity beginning at UTF-16 offset {offset} ends after the end of the text at UTF-16 offset {end}"
            )


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
