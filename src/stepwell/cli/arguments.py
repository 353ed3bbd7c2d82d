"""The arguments of commands: durations, numbers, addresses, and fields with their values."""

from __future__ import annotations

import argparse
import json
import re
from typing import Any
from urllib.parse import urlsplit

from stepwell.errors import InvalidOption

__all__ = ["address", "assignment", "duration", "json_or_text", "port", "positive"]

_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def duration(text: str) -> float:
    """Parse a duration: ``90``, ``15m``, ``2h``, ``7d``."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"must be a duration like 90s, 15m, 2h or 7d, got {text!r}")
    return float(found[1]) * _SECONDS[found[2]]


def positive(text: str) -> int:
    """Parse a whole number above 0."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, got {text!r}")
    return int(text)


def port(text: str) -> int:
    """Parse the number of a port."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"a port must be a number from 0 to 65535, got {text!r}")
    return int(text)


def address(text: str) -> str:
    """Check a web address."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise argparse.ArgumentTypeError(f"must be an address like https://bot.example.com/hook, got {text!r}")
    return text


def assignment(text: str) -> tuple[str, Any]:
    """Parse ``field=value``: the value is JSON, or else a text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InvalidOption(f"{text!r} is not field=value")
    return name, json_or_text(value)


def json_or_text(text: str) -> Any:
    """Parse JSON; a text that is not JSON is returned as it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text
