"""The row of a record: its columns and checksum, the statements that write it, and the record that readers see."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, Final
from zlib import crc32

from stepwell.codec.json import Struct
from stepwell.record import Address, Change, Damage, Head, Queue, Stored, Version
from stepwell.storage.queue_text import queue_of, queue_text, time_text
from stepwell.storage.reference import Header

__all__ = [
    "COLUMNS", "FIELDS_DIFFER", "IS_MEMO", "IS_RECORD", "MISSING", "NOTHING", "NOT_AS_WRITTEN", "Row", "checksum",
    "contents_of", "header_of", "is_sound", "name_hash", "record_of", "row_and_sizes", "row_of", "salvaged", "stored",
    "tags_of", "text_of", "texts_of", "update",
]  # fmt: skip


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
#: The name of the field or part that marks damage. No written field or part has it.
_DAMAGED = "$damaged"
MISSING = ("its row", "is missing, but its fields or parts are there")
NOT_AS_WRITTEN = ("its row", "does not match its checksum")
FIELDS_DIFFER = ("its fields", "are not the ones that were written")
_PARTS_DIFFER = ("its parts", "are not the ones that were written")
#: A limit for version numbers of damaged rows.
_LARGEST = 1 << 62
#: The first column of the queries for whole records.
IS_RECORD: Final = 0
_IS_FIELD: Final = 1
IS_MEMO: Final = 3


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
    numbers = struct.pack(
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
        queue=None if row.queue is None else queue_of(row.queue),
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


def stored(
    address: Address,
    row: Row | None,
    fields: dict[str, str],
    now: float,
    parts: dict[str, str] | None = None,
    *,
    all_parts: bool = True,
) -> Stored | None:
    """Return a record as readers see it. Decoding a damaged part of it raises ``CorruptRecord``.

    A missing part is noticed only if all parts were read.
    """
    damage = None
    if row is None:
        if not fields and not parts:
            return None
        row, damage = salvaged(NOTHING), MISSING
    elif not is_sound(address, row):
        row, damage = salvaged(row), NOT_AS_WRITTEN
    elif not row.alive:
        if not fields and not parts:
            return None
        damage = MISSING
    elif sum(map(name_hash, fields)) != row.names:
        damage = FIELDS_DIFFER
    elif row.expires_at is not None and row.expires_at <= now:
        return None
    if parts is not None and all_parts and sum(map(name_hash, parts)) != row.part_names:
        parts = {**parts, _DAMAGED: Damage(*_PARTS_DIFFER)}
    return record_of(row, fields, parts, damage)


def record_of(
    row: Row, fields: dict[str, str], parts: dict[str, str] | None = None, damage: tuple[str, str] | None = None
) -> Stored:
    """Return the record of a row, even if it has expired."""
    head: str | None = row.head
    if damage is not None:
        # Both are marked: some readers decode only the head, others only the fields.
        head = Damage(*damage, head)
        fields[_DAMAGED] = Damage(*damage)
    return Stored(
        version=Version(row.number, row.write),
        base=row.base,
        written_at=row.written_at,
        head=head,
        fields=fields,
        tags=tags_of(row.tags),
        expires_at=row.expires_at,
        deadline=row.deadline,
        parts=parts,
        queue=None if row.queue is None else queue_of(row.queue),
    )


def is_sound(address: Sequence[str], row: Row) -> bool:
    """Return whether a row matches its checksum."""
    try:
        return row.checksum == checksum(address, row)
    except struct.error:
        return False


def salvaged(row: Row) -> Row:
    """Return the usable columns of a damaged row, so that the record can be replaced or removed."""
    number: object = row.number
    return Row(
        number=number if type(number) is int and 0 <= number < _LARGEST else 0,
        write=row.write if type(row.write) is str else "",
        base=row.base if type(row.base) is str else "",
        alive=1,
        head=row.head if type(row.head) is str else None,
        tags=row.tags if type(row.tags) is str and tags_of(row.tags) else None,
    )


def contents_of(rows: list[Any]) -> tuple[Row | None, dict[str, str], dict[str, str]]:
    """Return the row, the fields and the parts in the result of a query for one record."""
    row = None
    fields: dict[str, str] = {}
    parts: dict[str, str] = {}
    for found in rows:
        kind = found[0]
        if kind == IS_RECORD:
            row = Row(*found[1:])
            continue
        name, text = found[1], found[2]
        if type(name) is not str or type(text) is not str:
            # Such a value fails its checksum.
            name, text = str(text_of(name)), str(text_of(text))
        (fields if kind == _IS_FIELD else parts)[name] = text
    return row, fields, parts


def texts_of(rows: list[Any]) -> dict[str, str]:
    """Return names and texts in the result of a query for them."""
    texts: dict[str, str] = {}
    for found in rows:
        name, text = found
        if type(name) is not str or type(text) is not str:
            # Such a value fails its checksum.
            name, text = str(text_of(name)), str(text_of(text))
        texts[name] = text
    return texts


def text_of(value: Any) -> Any:
    """Return a value that was read as bytes as text, however damaged it is."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
