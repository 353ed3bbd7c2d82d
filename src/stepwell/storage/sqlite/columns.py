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
from stepwell.storage.queue_text import queue_text, time_text

__all__ = ["NOTHING", "Row", "checksum", "name_hash", "row_and_sizes", "sealed", "update", "written"]


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
    #: The sums of ``name_hash`` of all fields and of all parts.
    names: int = 0
    part_names: int = 0
    #: The text of ``queue_text`` and ``time_text``.
    queue: str | None = None
    checksum: int = 0


#: The row of an address without a record.
NOTHING = Row()
#: Packing numbers is much faster than formatting them as text.
_pack = Struct("<qdqqddqq").pack


@lru_cache(maxsize=4096)
def name_hash(name: str) -> int:
    """Return a positive number for a name, so that a sum of them changes with every missing name."""
    return crc32(name.encode()) + 1


def checksum(address: Sequence[str], columns: tuple[Any, ...]) -> int:
    """Return the checksum of all other columns of a row and of the address.

    Raises ``struct.error`` if the type of a column is wrong, as it may be in a damaged file.
    """
    namespace, key = address
    (
        number, write, base, written_at, alive, flow, state, head, tags, size, expires_at, deadline, names, parts,
        queue,
    ) = columns  # fmt: skip
    # Formatting None takes much longer than formatting a text.
    flow, state = "None" if flow is None else flow, "None" if state is None else state
    head, tags = "None" if head is None else head, "None" if tags is None else tags
    expires_at, deadline = -1.0 if expires_at is None else expires_at, -1.0 if deadline is None else deadline
    text = f"{namespace}\n{key}\n{write}\n{base}\n{flow}\n{state}\n{head}\n{tags}\n{queue}"
    return crc32(text.encode() + _pack(number, written_at, alive, size, expires_at, deadline, names, parts))


def sealed(address: Sequence[str], row: Row) -> Row:
    """Return a row with its checksum."""
    return _new(Row, (*row[:-1], checksum(address, row[:-1])))


def written(
    address: Sequence[str],
    row: Row,
    change: Change,
    now: float,
    contents: tuple[int, int, int],
    *,
    held: bool,
    anew: bool = False,
) -> Row:
    """Return a row after a change that does not delete it. ``anew``: the old record has expired and is dropped.

    ``contents`` are the columns ``bytes``, ``names`` and ``part_names`` after the change.
    """
    number, _, base, _, alive, flow, state, head, tags, _, expires_at, deadline, _, _, queue, _ = row
    write, replace, _, _, _, new_head, _, _, new_tags, new_deadline, expiry, _, _, _, new_queue, _ = change
    number += 1
    if not alive:
        number, expires_at = max(number, int(now * 1e6)), None
    if anew:
        flow = state = head = tags = deadline = expires_at = queue = None
    if replace or anew:
        base = write
    if new_head is not KEEP:
        flow, state, head = new_head
    if new_tags is not KEEP:
        tags = json.dumps(new_tags, ensure_ascii=False) if new_tags else None
    if new_deadline is not KEEP:
        deadline = None if new_deadline is None else now + new_deadline
    if expiry is not KEEP:
        expires_at = None if expiry is None else now + expiry
    elif held and expires_at is not None and expires_at <= now:
        expires_at = None
    if new_queue is not KEEP:
        queue = None if new_queue is None else queue_text(new_queue) + time_text(now)
    size, names, part_names = contents
    columns = (
        number, write, base, now, 1, flow, state, head, tags, size, expires_at, deadline, names, part_names, queue,
    )  # fmt: skip
    return _new(Row, (*columns, checksum(address, columns)))


def update(address: Sequence[str], old: Row, new: Row) -> tuple[str, Sequence[Any]]:
    """Return the statement that writes the columns that differ, and its bindings.

    SQLite writes every index of a column that a statement names, so an indexed column is named only if it differs.
    """
    (
        number, write, base, written_at, alive, flow, state, head, tags, size, expires_at, deadline, names, parts,
        queue, check,
    ) = new  # fmt: skip
    if old[4:7] == (alive, flow, state) and old[10:12] == (expires_at, deadline) and old[14] == queue:
        values = (number, write, base, written_at, head, tags, size, names, parts, check, *address)
        return _UPDATE_UNINDEXED, values
    changed = tuple(map(ne, old, new))
    return _update_of(changed), (*compress(new, changed), *address)


@cache
def _update_of(changed: tuple[bool, ...]) -> str:
    columns = ",".join([f"{name}=?" for name in compress(Row._fields, changed)])
    # Only names of columns are formatted in; values are always bound.
    return f"UPDATE record SET {columns} WHERE namespace=? AND key=?"  # noqa: S608


@cache
def row_and_sizes(count: int) -> str:
    """Return the query for a row and the sizes of this many fields, whose names are bound after the address."""
    size = "(SELECT octet_length(name)+octet_length(value) FROM field WHERE namespace=?1 AND key=?2 AND name=?{})"
    columns = ",".join([*Row._fields, *[size.format(3 + number) for number in range(count)]])
    return f"SELECT {columns} FROM record WHERE namespace=?1 AND key=?2"  # noqa: S608


#: Makes a NamedTuple without a call of its constructor, which is a Python function.
_new = tuple.__new__
_INDEXED = ("alive", "flow", "state", "expires_at", "deadline", "queue")
_UPDATE_UNINDEXED = _update_of(tuple([name not in _INDEXED for name in Row._fields]))
