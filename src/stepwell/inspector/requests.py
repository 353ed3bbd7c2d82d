"""What a request gives: the parameters of a page, and the body of an edit; and how much a page of a list reads."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from stepwell import Storage
from stepwell.engine import decode_value, quoted
from stepwell.errors import InvalidOption, UsageError
from stepwell.inspector.flows import KnownFlows
from stepwell.inspector.subject import Subject
from stepwell.operate.fields import check_text, searched_field
from stepwell.operate.search import check_searchable

__all__ = [
    "PAGE",
    "Action",
    "Enough",
    "Given",
    "Params",
    "View",
    "chosen",
    "fields",
    "limited",
    "number",
    "text",
    "value",
]

#: The rows of a page of a list, how many records or runs are read for it, and for about how many seconds.
PAGE, LOOKED, SECONDS = 50, 20_000, 0.2
#: The seconds for which runs are read that are then sorted.
SORTING = 0.12

#: The most rows of one edit.
MOST_CHOSEN = 200

Params = Mapping[str, str]
Given = Mapping[str, Any]
#: Reads a page.
View = Callable[[Subject, Params], Awaitable[dict[str, Any]]]
#: Writes, as the person with this name.
Action = Callable[[Storage, KnownFlows, str, Given], Awaitable[dict[str, Any]]]


class Enough(Exception):
    """So many records were read that the search ends."""


def limited(page: dict[str, Any], *, sorting: bool = False) -> Callable[[int], None]:
    """Return a callback for the number of records read; it raises ``Enough`` when a page has read enough."""
    end, is_late = time.monotonic() + (SORTING if sorting else SECONDS), False

    def on_look(looked: int) -> None:
        nonlocal is_late
        page["looked"] = looked
        if looked >= LOOKED or (looked and is_late):
            raise Enough
        # One more read, because a short list ends with this one.
        is_late = time.monotonic() >= end
        if sorting and looked and is_late:
            raise Enough

    return on_look


def fields(params: Params) -> dict[str, Any] | None:
    """Return the field and value that are searched for; raise ``InvalidOption`` if they are masked."""
    if not params.get("field"):
        return None
    fields = dict([searched_field(params["field"])])
    check_searchable(fields)
    return fields


def number(params: Params, name: str) -> int:
    """Return a whole number; raise ``InvalidOption`` if it is none."""
    text = params[name]
    if not text.removeprefix("-").isdecimal() or len(text) > 20:
        raise InvalidOption(f"{name} must be a whole number, got {quoted(text[:40])}")
    return int(text)


def text(given: Given, name: str) -> str:
    """Return a text of an edit; raise ``UsageError`` if it is not given."""
    value = given.get(name)
    if not isinstance(value, str) or not value:
        raise UsageError(f"{name} must be a text")
    return value


def value(given: Given) -> Any:
    """Return the value of an edit. It is text of JSON as the page shows it, so that no number is rounded."""
    given_text = text(given, "value")
    try:
        json.loads(given_text)
    except (ValueError, RecursionError):
        check_text(given_text, "the value")
        raise InvalidOption("the value is not JSON; put a text in double quotes") from None
    return decode_value(given_text)


def chosen(given: Given, *names: str) -> list[tuple[Any, ...]]:
    """Return what names each chosen row of an edit of several; raise ``UsageError`` if it is anything else."""
    rows = given.get("chosen")
    if not isinstance(rows, list) or not 0 < len(rows) <= MOST_CHOSEN:
        raise UsageError(f"chosen must be a list of 1 to {MOST_CHOSEN} rows")
    found: list[tuple[Any, ...]] = [tuple(map(row.get, names)) if isinstance(row, dict) else ([],) for row in rows]
    if not all(each is None or type(each) is int or isinstance(each, str) for row in found for each in row):
        raise UsageError(f"each chosen row has {', '.join(names)}: texts or whole numbers")
    return found
