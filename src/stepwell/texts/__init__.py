"""Texts for Telegram: split at its limits, formatted, escaped, and shown while they are written."""

from stepwell.texts.calls import Formatting, MakeCall, fit, is_unmodified, is_unparsable, make_call, without_formatting
from stepwell.texts.escaping import html, md
from stepwell.texts.formatting import read_formatting
from stepwell.texts.links import decode_payload, encode_payload, start_link
from stepwell.texts.pieces import MAX_CAPTION, MAX_TEXT, FormattedText, split, units
from stepwell.texts.writer import ChatKind, Writer

__all__ = [
    "MAX_CAPTION",
    "MAX_TEXT",
    "ChatKind",
    "FormattedText",
    "Formatting",
    "MakeCall",
    "Writer",
    "decode_payload",
    "encode_payload",
    "fit",
    "html",
    "is_unmodified",
    "is_unparsable",
    "make_call",
    "md",
    "read_formatting",
    "split",
    "start_link",
    "units",
    "without_formatting",
]
