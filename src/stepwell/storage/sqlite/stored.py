"""Records as readers see them, from the rows of one or of several queries; and the usable columns of damaged rows."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from stepwell.record import Address, Damage, Stored, Version
from stepwell.storage.queue_text import queue_of
from stepwell.storage.sqlite.columns import NOTHING, Row, checksum, name_hash, tags_of

__all__ = [
    "FIELDS_DIFFER",
    "IS_RECORD",
    "MISSING",
    "NOT_AS_WRITTEN",
    "contents_of",
    "is_sound",
    "record_of",
    "salvaged",
    "stored",
    "text_of",
    "texts_of",
]


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
        queue=queue_of(row.queue),
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


#: The name of the field or part that marks damage. No written field or part has it.
_DAMAGED = "$damaged"
MISSING = ("its row", "is missing, but its fields or parts are there")
NOT_AS_WRITTEN = ("its row", "does not match its checksum")
FIELDS_DIFFER = ("its fields", "are not the ones that were written")
_PARTS_DIFFER = ("its parts", "are not the ones that were written")
#: A limit for version numbers of damaged rows.
_LARGEST = 1 << 62
#: The first column of the queries for whole records; the rows of parts have another number.
IS_RECORD, _IS_FIELD = range(2)
