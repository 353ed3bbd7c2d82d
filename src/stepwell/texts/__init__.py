"""Texts for Telegram: split at its limits, formatted, and shown while they are written."""

from stepwell.texts.calls import Formatting, MakeCall, fit, is_unmodified, is_unparsable, make_call, without_formatting
from stepwell.texts.formatting import read_formatting
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
    "fit",
    "is_unmodified",
    "is_unparsable",
    "make_call",
    "read_formatting",
    "split",
    "units",
    "without_formatting",
]
