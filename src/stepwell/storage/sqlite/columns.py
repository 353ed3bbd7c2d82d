"""The columns of a record, their values after a change, their checksum, and the statements that write them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import compress
from operator import ne
from struct import Struct
from typing import Any, NamedTuple
from zlib import crc32

from stepwell.record import KEEP, Change

__all__ = ["Row", "checksum", "name_hash", "update", "written"]


class Row(NamedTuple):
    """The row of a record, or of its tombstone (``alive=0``)."""

    number: int = 0
    write: str = ""
    base: str = ""
    written_at: float = 0.0
    alive: int = 0
    flow: str | None = None
    state: str | None = None
    head: str | None = None
    tags: str | None = None
    #: The size of all fields and parts with their names.
    bytes: int = 0
    expires_at: float | None = None
    deadline: float | None = None
    #: The sums of ``name_hash`` of all fields and of all parts; ``None``: last written by an earlier release.
    names: int | None = 0
    part_names: int | None = 0
    checksum: int | None = None


#: Packing numbers is much faster than formatting them as text.
_pack = Struct("<qdqqddqq").pack


@lru_cache(maxsize=4096)
def name_hash(name: str) -> int:
    """Return a positive number for a name, so that a sum of them changes with every missing name."""
    return crc32(name.encode()) + 1


def checksum(address: Sequence[str], row: Row) -> int:
    """Return the checksum of all other columns and of the address.

    Raises ``struct.error`` if the type of a column is wrong, as it may be in a damaged file.
    """
    namespace, key = address
    number, write, base, written_at, alive, flow, state, head, tags, size, expires_at, deadline, names, parts, _ = row
    text = f"{namespace}\n{key}\n{write}\n{base}\n{flow}\n{state}\n{head}\n{tags}"
    numbers = _pack(
        number,
        written_at,
        alive,
        size,
        -1.0 if expires_at is None else expires_at,
        -1.0 if deadline is None else deadline,
        names,
        parts,
    )
    return crc32(numbers, crc32(text.encode()))


def written(
    row: Row, change: Change, now: float, *, contents: tuple[int, int, int], held: bool, anew: bool = False
) -> Row:
    """Return a row after a change that does not delete it. ``anew``: the old record has expired and is dropped.

    ``contents`` are the columns ``bytes``, ``names`` and ``part_names`` after the change.
    """
    alive = row.alive
    flow, state, head, tags, deadline = row.flow, row.state, row.head, row.tags, row.deadline
    expires_at = row.expires_at if alive else None
    if anew:
        flow = state = head = tags = deadline = expires_at = None
    if change.head is not KEEP:
        flow, state, head = change.head
    if change.tags is not KEEP:
        tags = json.dumps(change.tags, ensure_ascii=False) if change.tags else None
    if change.deadline is not KEEP:
        deadline = None if change.deadline is None else now + change.deadline
    if change.expiry is not KEEP:
        expires_at = None if change.expiry is None else now + change.expiry
    elif held and expires_at is not None and expires_at <= now:
        expires_at = None
    number = row.number + 1
    size, names, part_names = contents
    columns = (
        number if alive else max(number, int(now * 1e6)),
        change.write,
        change.write if change.replace or anew else row.base,
        now,
        1,
        flow,
        state,
        head,
        tags,
        size,
        expires_at,
        deadline,
        names,
        part_names,
        None,
    )
    # Much faster than calling the class.
    return tuple.__new__(Row, columns)


def update(old: Row, new: Row) -> tuple[str, Sequence[Any]]:
    """Return the statement that writes the columns that differ, and their values.

    SQLite writes every index of a column that a statement names, so an indexed column is named only if it differs.
    """
    number, write, base, written_at, alive, flow, state, head, tags, size, expires_at, deadline, names, parts, check = (
        new
    )
    if old[4:7] == (alive, flow, state) and old[10:12] == (expires_at, deadline):
        return _UPDATE_UNINDEXED, (number, write, base, written_at, head, tags, size, names, parts, check)
    changed = tuple(map(ne, old, new))
    return _update_of(changed), tuple(compress(new, changed))


@cache
def _update_of(changed: tuple[bool, ...]) -> str:
    columns = ", ".join([f"{name} = ?" for name in compress(Row._fields, changed)])
    # Only names of columns are formatted in; values are always bound.
    return f"UPDATE record SET {columns} WHERE namespace = ? AND key = ?"  # noqa: S608


_INDEXED = ("alive", "flow", "state", "expires_at", "deadline")
_UPDATE_UNINDEXED = _update_of(tuple([name not in _INDEXED for name in Row._fields]))
