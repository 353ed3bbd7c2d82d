"""Reads formatted texts: the parse modes of Telegram, and the Markdown that language models write."""

from __future__ import annotations

from stepwell.texts.pieces import FormattedText

__all__ = ["COMMONMARK", "read_formatting"]

#: The parse mode of texts of language models. Telegram does not know it; such a text is sent with entities.
COMMONMARK = "commonmark"


def read_formatting(text: str, parse_mode: str) -> FormattedText | None:
    """Return a formatted text with its entities, or ``None`` if it cannot be parsed.

    ``parse_mode`` is one of Telegram's, or ``"CommonMark"``, whose texts can always be parsed.
    """
    # Both are imported on use, because most texts need neither.
    if parse_mode.lower() == COMMONMARK:
        from stepwell.texts.markdown import read_markdown

        return read_markdown(text)
    from stepwell.botapi import Refusal, read_text

    try:
        return FormattedText(*read_text(text, parse_mode))
    except Refusal:
        return None
