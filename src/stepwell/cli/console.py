"""Output of the commands: messages of a chat and of the program, wrapped to the width of the terminal."""

from __future__ import annotations

import os
import sys
import textwrap
from shutil import get_terminal_size

__all__ = ["dim", "say", "tell"]


def say(who: str, text: str) -> None:
    """Print one message of the chat, with the lines after the first indented."""
    print(textwrap.fill(text, _width(), initial_indent=f"{who:<6}", subsequent_indent=" " * 6), flush=True)


def tell(text: str) -> None:
    """Print a message of the program itself; the lines of a list item after the first are indented."""
    indent = "  " if text.startswith("- ") else ""
    print(textwrap.fill(text, _width(), subsequent_indent=indent, break_on_hyphens=False), flush=True)


def dim(text: str) -> None:
    """Print a line in a dim colour."""
    colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    print("\x1b[2m" if colours else "", end="")
    say("", text)
    print("\x1b[0m" if colours else "", end="", flush=True)


def _width() -> int:
    return max(get_terminal_size().columns - 1, 30)
