"""The queries for a record with some of its parts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from stepwell.record import Address, Range
from stepwell.storage.sqlite.columns import COLUMNS
from stepwell.storage.sqlite.schema import QUERIES

__all__ = ["range_bindings", "reading"]

#: With more names all parts are read. SQLite allows 32,766 parameters.
_MOST_NAMES = 1 << 14


def range_bindings(address: Address, wanted: Range) -> tuple[Any, ...]:
    """Return the bindings of a query for a range of parts."""
    # Every text is less than every blob.
    last = b"" if wanted.last is None else wanted.last
    return (*address, wanted.first or "", last, -1 if wanted.limit is None else wanted.limit)


def reading(address: Address, wanted: bool | Range | tuple[str, ...]) -> tuple[str, Sequence[Any]]:
    """Return the query for a record with these parts, and its bindings."""
    if wanted is False or wanted == ():
        return QUERIES["get"], address
    if isinstance(wanted, Range):
        return QUERIES["get_range_reverse" if wanted.reverse else "get_range"], range_bindings(address, wanted)
    if wanted is True or len(wanted) > _MOST_NAMES:
        return QUERIES["get_with_parts"], address
    # The number of names is rounded up, so that there are few different statements.
    count = 1 << (len(wanted) - 1).bit_length()
    return _named_parts(count), (*address, *wanted, *wanted[-1:] * (count - len(wanted)))


@lru_cache
def _named_parts(count: int) -> str:
    """Return the query for a record with this many parts, whose names are bound after the address."""
    names = ",".join([f"?{3 + number}" for number in range(count)])
    nulls = ",".join(["NULL"] * (len(COLUMNS) - 2))
    chosen = f"SELECT 2,name,value,{nulls} FROM part WHERE namespace=?1 AND key=?2 AND name IN ({names})"  # noqa: S608
    return f"{QUERIES['get']} UNION ALL {chosen}"
