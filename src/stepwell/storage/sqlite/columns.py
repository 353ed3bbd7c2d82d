"""One row of the table of records: its columns, what a change makes of them, and the statements that write it."""

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

__all__ = ["Row", "checksum", "name_hash", "sealed", "update", "updates", "written"]


class Row(NamedTuple):
    """The columns of a record."""

    number: int = 0
    write: str = ""
    base: str = ""
    written_at: float = 0.0
    alive: int = 0
    flow: str | None = None
    state: str | None = None
    head: str | None = None
    tags: str | None = None
    #: What all fields and parts take with their names.
    bytes: int = 0
    expires_at: float | None = None
    deadline: float | None = None
    #: The sum of ``name_hash`` over its fields, and over its parts; ``None``: last written by an earlier release.
    names: int | None = 0
    part_names: int | None = 0
    checksum: int | None = None

    def expired(self, now: float) -> bool:
        """Its time is over; a tombstone is never asked."""
        return self.expires_at is not None and self.expires_at <= now


#: Numbers are packed because writing them as text would take most of the time.
_pack = Struct("<qdqqddqq").pack


@lru_cache(maxsize=4096)
def name_hash(name: str) -> int:
    """A positive number for a name: a sum of them gets smaller with any name that is lost."""
    return crc32(name.encode()) + 1


def checksum(address: Sequence[str], row: Row) -> int:
    """The checksum of all other columns, and of the address: a row that is found at another one is noticed.

    Raises ``struct.error`` if a column that was read is not of its type.
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


def sealed(address: Sequence[str], row: Row) -> Row:
    """The row with its checksum."""
    return Row._make((*row[:-1], checksum(address, row)))


def written(
    row: Row, change: Change, now: float, *, contents: tuple[int, int, int], held: bool, anew: bool = False
) -> Row:
    """A row after a change that does not delete it. ``anew``: the old record has expired and is dropped.

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
    return Row(
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
    )


class Updates(NamedTuple):
    """The statements that set some columns of a record."""

    always: str
    #: Only if its version is the one that is given.
    unchanged: str
    #: And only if a lease runs.
    held: str


def updates(columns: str) -> Updates:
    """The statements for some columns, as ``number = ?, write = ?``."""
    # Column names are ours; values are always bound.
    update = f"UPDATE record SET {columns} WHERE namespace = ? AND key = ?"  # noqa: S608
    unchanged = f"{update} AND number = ? AND write = ?"
    lease = "lease.namespace = record.namespace AND lease.key = record.key AND token = ?"
    lease += " AND until > ? AND until <= ? + length"
    return Updates(update, unchanged, f"{unchanged} AND EXISTS (SELECT 1 FROM lease WHERE {lease})")  # noqa: S608


def update(old: Row, new: Row) -> tuple[Updates, Sequence[Any]]:
    """The statements that write what differs, and the values to write."""
    number, write, base, written_at, alive, flow, state, head, tags, size, expires_at, deadline, names, parts, check = (
        new
    )
    if old[4:7] == (alive, flow, state) and old[10:12] == (expires_at, deadline):
        return _UNINDEXED, (number, write, base, written_at, head, tags, size, names, parts, check)
    changed = tuple(map(ne, old, new))
    return _differing(changed), tuple(compress(new, changed))


@cache
def _differing(changed: tuple[bool, ...]) -> Updates:
    return updates(", ".join(f"{name} = ?" for name in compress(Row._fields, changed)))


#: Those for the columns that are in no index.
_UNINDEXED = updates(
    "number = ?, write = ?, base = ?, written_at = ?, head = ?, tags = ?, bytes = ?, "
    "names = ?, part_names = ?, checksum = ?"
)
