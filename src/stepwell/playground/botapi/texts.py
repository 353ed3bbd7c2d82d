"""Texts and captions of calls: their entities, and the limits of their length."""

from __future__ import annotations

from typing import Any

from stepwell.playground.botapi import entities
from stepwell.playground.botapi.params import Params
from stepwell.playground.botapi.refusal import bad_request

__all__ = ["text_of"]

MAX_TEXT, MAX_CAPTION = 4096, 1024
#: Before the formatting is parsed.
MAX_RAW_TEXT = 64 * 1024


def text_of(params: Params, name: str = "text", listed: str = "entities") -> dict[str, Any]:
    """Return the checked text of a call and its entities."""
    given = params.objects(listed) if listed in params.given else []
    if not all(type(entity.get(name)) is int for entity in given for name in ("offset", "length")):
        raise bad_request(f"can't parse {listed}: offset and length are numbers")
    # The message limit counts the parsed text; this one bounds the work of parsing.
    if len(params.text(name)) > MAX_RAW_TEXT:
        raise bad_request("message is too long" if name == "text" else "message caption is too long")
    text, formatted = (
        (params.text(name), given) if given else entities.parse_text(params.text(name), params.text("parse_mode"))
    )
    if entities.utf16_length(text) > (MAX_TEXT if name == "text" else MAX_CAPTION):
        raise bad_request("message is too long" if name == "text" else "message caption is too long")
    if not text.strip():
        if name == "text":
            raise bad_request("message text is empty")
        return {}
    every = sorted([*formatted, *entities.find_entities(text)], key=lambda entity: entity["offset"])
    return {name: text, **({listed: every} if every else {})}
