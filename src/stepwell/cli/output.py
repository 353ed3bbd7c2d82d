"""Output of the operator's commands: JSON for programs, tables for people."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from shutil import get_terminal_size
from typing import Any

from stepwell.operate.audit import printable

__all__ = [
    "NOT_FOUND_OR_CHANGED",
    "Table",
    "ago",
    "cell",
    "due",
    "json_text",
    "moment",
    "note",
    "print_fields",
    "print_json",
    "print_table",
    "print_tree",
    "report",
    "span",
]

#: The exit code if there is no such record, or if it is busy, was changed meanwhile or is already as it should be.
NOT_FOUND_OR_CHANGED = 3

_UNITS = ((86_400, "d"), (3600, "h"), (60, "m"))


def print_json(value: Any) -> None:
    """Print one JSON document."""
    print(json.dumps(value, indent=2))


def print_table(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print rows below their headers."""
    found = list(rows)
    if found:
        Table(headers).print(found)
    else:
        note("nothing found")


class Table:
    """Rows below their headers. In a terminal, long lines are cut."""

    def __init__(self, headers: Sequence[str]) -> None:
        self._headers: Sequence[str] = [header.upper() for header in headers]
        #: Empty before the first rows.
        self._widths: list[int] = []

    def print(self, rows: Iterable[Sequence[Any]]) -> None:
        """Print some rows, with the headers at first and when a column has become wider."""
        cells = [[cell(each) for each in row] for row in rows]
        before = self._widths
        least = before or [len(header) for header in self._headers]
        self._widths = [max(width, *(len(row[n]) for row in cells)) for n, width in enumerate(least)]
        room = get_terminal_size().columns if sys.stdout.isatty() else None
        for row in cells if self._widths == before else [self._headers, *cells]:
            line = "  ".join(text.ljust(width) for text, width in zip(row, self._widths, strict=True)).rstrip()
            print(line if room is None or len(line) <= room else f"{line[: room - 1]}…")
        sys.stdout.flush()


def print_fields(fields: dict[str, Any]) -> None:
    """Print names and values below each other, without those that are missing."""
    for name, value in fields.items():
        if value is not None or name in ("flow", "state"):
            print(f"{name:<9} {cell(value)}")


def print_tree(name: str, tree: Any) -> None:
    """Print a value as an indented tree."""
    print(f"{name:<10}{json_text(tree, indent=2)}".replace("\n", f"\n{'':<10}"))


def cell(value: Any) -> str:
    """Return a value as text for a terminal, without control characters."""
    return "-" if value is None else printable(value if isinstance(value, str) else str(value))


def json_text(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON for a terminal."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return "\n".join(cell(line) for line in text.split("\n"))


def note(text: str) -> None:
    """Print a message that is not part of the result, to stderr."""
    print(text, file=sys.stderr, flush=True)


def report(options: argparse.Namespace, result: dict[str, Any], text: str) -> int:
    """Print the result of a command as JSON or as a text, and return exit code 0."""
    if options.json:
        print_json(result)
    else:
        print(text)
    return 0


def span(seconds: float) -> str:
    """Return a duration: ``3d 4h``, ``5m 10s``."""
    left = int(abs(seconds))
    if left < 60:
        return f"{left}s"
    for n, (size, unit) in enumerate(_UNITS):
        if left >= size:
            smaller, name = _UNITS[n + 1] if n + 1 < len(_UNITS) else (1, "s")
            rest = left % size // smaller
            return f"{left // size}{unit}" + (f" {rest}{name}" if rest else "")
    raise AssertionError


def ago(at: float | None) -> str:
    """Return how long ago a time was, or how far ahead it is: ``5m``, ``in 2h``."""
    if at is None:
        return "-"
    past = time.time() - at
    return span(past) if past >= 0 else f"in {span(past)}"


def due(at: float | None) -> str:
    """Return how far ahead a deadline is, or how long ago it was: ``in 2h``, ``5m ago``."""
    return ago(at) if at is None or at > time.time() else f"{ago(at)} ago"


def moment(at: float | None) -> str:
    """Return a time in UTC, and how long ago it was."""
    if at is None:
        return "-"
    try:
        text = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))
    except (OverflowError, ValueError, OSError):
        return f"{at:g}"
    return f"{text} ({due(at)})"
