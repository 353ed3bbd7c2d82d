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

from stepwell.record import Change, Head, Queue, Version
from stepwell.storage.queue_text import queue_of, queue_text, time_text
from stepwell.storage.reference import Header

__all__ = [
    "NOTHING",
    "Row",
    "checksum",
    "header_of",
    "name_hash",
    "row_and_sizes",
    "row_of",
    "sealed",
    "tags_of",
    "update",
]


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


def header_of(row: Row) -> Header:
    """Return what the rules of writes need of a row."""
    number, write, base, written_at, alive, flow, state, head, tags, size, expires_at, deadline, _, _, queue, _ = row
    return Header(
        Version(number, write),
        base,
        written_at,
        bool(alive),
        None if head is None else Head(flow=flow, state=state, text=head),
        tags_of(tags),
        size,
        expires_at,
        deadline,
        queue_of(queue),
    )


def row_of(address: Sequence[str], header: Header, before: Row, change: Change, names: tuple[int, int]) -> Row:
    """Return the row of a header after a change. ``names``: the columns ``names`` and ``part_names``."""
    head = header.head or _NO_HEAD
    tags = before.tags
    if header.tags != tags_of(tags):
        tags = json.dumps(header.tags, ensure_ascii=False) if header.tags else None
    queue = None if header.queue is None else before.queue
    if isinstance(change.queue, Queue):
        queue = queue_text(change.queue) + time_text(header.queued_at)
    columns = (
        *header.version, header.base, header.written_at, int(header.alive), head.flow, head.state, head.text or None,
        tags, header.size,
        header.expires_at, header.deadline, *names, queue,
    )  # fmt: skip
    return _new(Row, (*columns, checksum(address, columns)))


@lru_cache(maxsize=4096)
def tags_of(text: str | None) -> tuple[str, ...]:
    """Return the tags in the column of a row."""
    try:
        tags = json.loads(text) if text else ()
    except ValueError:
        # Tags are only an index. A record with damaged tags can still be read, replaced and removed.
        return ()
    return tuple([tag for tag in tags if type(tag) is str]) if type(tags) is list else ()


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
_NO_HEAD = Head(flow=None, state=None, text="")
_INDEXED = ("alive", "flow", "state", "expires_at", "deadline", "queue")
_UPDATE_UNINDEXED = _update_of(tuple([name not in _INDEXED for name in Row._fields]))
