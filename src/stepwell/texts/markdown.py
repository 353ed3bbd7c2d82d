"""The Markdown of language models as text and entities. The only module that imports telegramify-markdown."""

from __future__ import annotations

import logging
from typing import Any

from stepwell._optional import require
from stepwell.texts.pieces import Entity, FormattedText, cut_entities, units

__all__ = ["read_markdown"]

_telegramify: Any = require(
    "telegramify_markdown", "markdown", distribution="telegramify-markdown", minimum="1.4", below="2"
)
_pyromark: Any = require("pyromark", "markdown")

logger: logging.Logger = logging.getLogger("stepwell.telegram")

#: Those of telegramify-markdown, so that both find HTML in the same places.
_OPTIONS: Any = (
    _pyromark.Options.ENABLE_TABLES
    | _pyromark.Options.ENABLE_STRIKETHROUGH
    | _pyromark.Options.ENABLE_TASKLISTS
    | _pyromark.Options.ENABLE_MATH
)
_LINE_BREAKS = ("<br>", "<br/>", "<br />")


def read_markdown(text: str) -> FormattedText:
    """Return the text without markup, and its entities. Markup that is not closed stays text."""
    try:
        plain, entities = _telegramify.convert(_without_html(text), config=_CONFIG)
    except Exception:
        # A text must not be lost because a library cannot read it.
        logger.exception("a text in Markdown is sent as it is")
        return FormattedText(text, [])
    plain = plain.rstrip()
    if not plain:
        # Such as a list of links that nothing refers to.
        return FormattedText(text, [])
    found = [each.to_dict() for each in entities]
    plain = _with_ends_of_code(plain, found)
    return FormattedText(plain, _valid(found, units(plain)))


def _with_ends_of_code(text: str, entities: list[Entity]) -> str:
    """Return a text with a line end after each block of code, which telegramify-markdown omits in a list."""
    encoded, end_of_line = text.encode("utf-16-le"), "\n".encode("utf-16-le")
    for code in entities:
        end = code["offset"] + code["length"]
        if code["type"] == "pre" and encoded[2 * end : 2 * end + 2] not in (end_of_line, b""):
            encoded = encoded[: 2 * end] + end_of_line + encoded[2 * end :]
            for each in entities:
                if each["offset"] >= end:
                    each["offset"] += 1
                elif each["offset"] + each["length"] > end:
                    each["length"] += 1
    return encoded.decode("utf-16-le")


def _valid(entities: list[Entity], size: int) -> list[Entity]:
    """Return the entities of a text of this size, the outer before the inner ones. Telegram has no quotes in quotes."""
    valid: list[Entity] = []
    quoted_until = 0
    for each in sorted(cut_entities(entities, 0, size), key=lambda each: (each["offset"], -each["length"])):
        if each["type"] in ("blockquote", "expandable_blockquote"):
            if each["offset"] < quoted_until:
                continue
            quoted_until = each["offset"] + each["length"]
        valid.append(each)
    return valid


def _without_html(text: str) -> str:
    """Escape tags, which telegramify-markdown drops: a model that writes about HTML means them. Breaks become lines."""
    if "<" not in text:
        return text
    encoded, parts, start = text.encode(), [], 0
    for event, span in _pyromark.events_with_range(text, options=_OPTIONS):
        if isinstance(event, dict) and ("InlineHtml" in event or "Html" in event):
            parts.append(encoded[start : span["start"]])
            found = encoded[span["start"] : span["end"]]
            parts.append(b"\\\n" if found.decode().lower() in _LINE_BREAKS else found.replace(b"<", b"\\<"))
            start = span["end"]
    parts.append(encoded[start:])
    return b"".join(parts).decode()


def _config() -> Any:
    config = _telegramify.RenderConfig.isolated()
    symbols = config.markdown_symbol
    # Headings are bold. Pictures before them would say something that the model did not.
    for level in (1, 2, 3, 4):
        setattr(symbols, f"heading_level_{level}", "")
    symbols.unordered_list_item = "•"
    symbols.task_completed, symbols.task_uncompleted = "☑", "☐"
    return config


_CONFIG: Any = _config()
