"""The columns of a record, their values after a change, their checksum, and the statements that write them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache, lru_cache
from struct import pack
from typing import Any, Final
from zlib import crc32

from stepwell.codec.json import Struct
from stepwell.record import Change, Head, Queue, Version
from stepwell.storage.queue_text import queue_of, queue_text, time_text
from stepwell.storage.reference import Header

__all__ = [
    "COLUMNS",
    "NOTHING",
    "Row",
    "checksum",
    "header_of",
    "name_hash",
    "row_and_sizes",
    "row_of",
    "tags_of",
    "update",
]


class Row(Struct, gc=False):
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


#: The names of the columns, in the order in which statements have them.
COLUMNS: Final[tuple[str, ...]] = Row.__struct_fields__
#: The row of an address without a record.
NOTHING: Final = Row()
_INDEXED = ("alive", "flow", "state", "expires_at", "deadline", "queue")
_NO_HEAD: Final = Head(flow=None, state=None, text="")


@lru_cache(maxsize=4096)
def name_hash(name: str) -> int:
    """Return a positive number for a name, so that a sum of them changes with every missing name."""
    return crc32(name.encode()) + 1


def checksum(address: Sequence[str], row: Row) -> int:
    """Return the checksum of the address and of all other columns of a row.

    Raises ``struct.error`` if the type of a column is wrong, as it may be in a damaged file.
    """
    namespace, key = address
    texts = f"{namespace}\n{key}\n{row.write}\n{row.base}\n{row.flow}\n{row.state}\n{row.head}\n{row.tags}\n{row.queue}"
    expires_at, deadline = row.expires_at, row.deadline
    # Packing numbers is much faster than formatting them as text.
    numbers = pack(
        "<qdqqddqq",
        row.number,
        row.written_at,
        row.alive,
        row.bytes,
        -1.0 if expires_at is None else expires_at,
        -1.0 if deadline is None else deadline,
        row.names,
        row.part_names,
    )
    return crc32(numbers, crc32(texts.encode()))


def header_of(row: Row) -> Header:
    """Return what the rules of writes need of a row."""
    return Header(
        version=Version(row.number, row.write),
        base=row.base,
        written_at=row.written_at,
        alive=bool(row.alive),
        head=None if row.head is None else Head(flow=row.flow, state=row.state, text=row.head),
        tags=tags_of(row.tags),
        size=row.bytes,
        expires_at=row.expires_at,
        deadline=row.deadline,
        queue=queue_of(row.queue),
    )


def row_of(address: Sequence[str], header: Header, before: Row, change: Change, names: tuple[int, int]) -> Row:
    """Return the row of a header after a change. ``names``: the columns ``names`` and ``part_names``."""
    tags = before.tags
    if header.tags != tags_of(tags):
        tags = json.dumps(header.tags, ensure_ascii=False) if header.tags else None
    queue = None if header.queue is None else before.queue
    if isinstance(change.queue, Queue):
        queue = queue_text(change.queue) + time_text(header.queued_at)
    head = header.head or _NO_HEAD
    row = Row(
        number=header.version.number,
        write=header.version.write,
        base=header.base,
        written_at=header.written_at,
        alive=int(header.alive),
        flow=head.flow,
        state=head.state,
        head=head.text or None,
        tags=tags,
        bytes=header.size,
        expires_at=header.expires_at,
        deadline=header.deadline,
        names=names[0],
        part_names=names[1],
        queue=queue,
    )
    row.checksum = checksum(address, row)
    return row


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
    """Return the statement that writes a changed row, and its bindings.

    SQLite writes every index of a column that a statement names, so an indexed column is named only if it differs.
    """
    changed = tuple([name for name in _INDEXED if getattr(old, name) != getattr(new, name)])
    plain = (
        new.number, new.write, new.base, new.written_at, new.head, new.tags, new.bytes, new.names, new.part_names,
        new.checksum,
    )  # fmt: skip
    return _update_of(changed), (*plain, *[getattr(new, name) for name in changed], *address)


@cache
def _update_of(changed: tuple[str, ...]) -> str:
    columns = ",".join([f"{name}=?" for name in COLUMNS if name not in _INDEXED] + [f"{name}=?" for name in changed])
    # Only names of columns are formatted in; values are always bound.
    return f"UPDATE record SET {columns} WHERE namespace=? AND key=?"  # noqa: S608


@cache
def row_and_sizes(count: int) -> str:
    """Return the query for a row and the sizes of this many fields, whose names are bound after the address."""
    size = "(SELECT octet_length(name)+octet_length(value) FROM field WHERE namespace=?1 AND key=?2 AND name=?{})"
    columns = ",".join([*COLUMNS, *[size.format(3 + number) for number in range(count)]])
    return f"SELECT {columns} FROM record WHERE namespace=?1 AND key=?2"  # noqa: S608
