"""The log of writes: who changed what. It has the names of records, runs, states and fields, and no values."""

from __future__ import annotations

import logging
import re
from typing import Final

__all__ = ["LOGGER", "log_write", "printable"]

#: The name of the logger.
LOGGER: Final = "stepwell.operate"
#: Characters that begin a new line, change the terminal or the direction of text.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def log_write(who: str, what: str) -> None:
    """Log one write: ``anna cleared shop (42,42)``."""
    logging.getLogger(LOGGER).info("%s %s", printable(who), printable(what))


def printable(text: str) -> str:
    """Return a text with its control characters escaped, for one line of a log or a terminal."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
