"""The arguments of commands: durations, numbers, addresses, and fields with their values."""

from __future__ import annotations

import argparse
from typing import Any
from urllib.parse import urlsplit

from stepwell.engine import decode_value, quoted
from stepwell.errors import InvalidOption, StepwellError
from stepwell.operate.fields import check_text, is_json, split_field
from stepwell.options import seconds_of

__all__ = ["add_hosts", "address", "duration", "port", "positive", "stored_assignment", "stored_value"]


def add_hosts(parser: argparse.ArgumentParser, who: str) -> None:
    """Add ``--host`` and ``--allow-host`` to a command that serves pages or the Bot API to ``who``."""
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: this machine only)")
    parser.add_argument(
        "--allow-host",
        metavar="NAME",
        action="append",
        default=[],
        help=f"another host name or address that {who} may use; may be repeated",
    )


def duration(text: str) -> float:
    """Parse a duration: ``90``, ``15m``, ``2h``, ``7d``."""
    try:
        return seconds_of(text, "must be a duration like 90s, 15m, 2h or 7d, got {}")
    except InvalidOption as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def positive(text: str) -> int:
    """Parse a whole number above 0."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, got {quoted(text)}")
    return int(text)


def port(text: str) -> int:
    """Parse the number of a port."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"a port must be a number from 0 to 65535, got {quoted(text)}")
    return int(text)


def address(text: str) -> str:
    """Check a web address."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise argparse.ArgumentTypeError(f"must be an address like https://bot.example.com/hook, got {quoted(text)}")
    return text


def stored_assignment(text: str) -> tuple[str, Any]:
    """Parse ``field=value`` of a change; see ``stored_value``."""
    name, value = split_field(text)
    return name, stored_value(value, f"the value of {quoted(name)}")


def stored_value(text: str, what: str = "the value") -> Any:
    """Parse a value to store: JSON as it is shown, or else a text that does not begin like JSON. ``what`` names it in
    errors.
    """
    if not is_json(text):
        check_text(text, what)
        return text
    try:
        return decode_value(text)
    except StepwellError as error:
        raise InvalidOption(f"{what} is not valid: {error}") from error
