"""Operations as the columns that the batch function takes, and its rows as results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from stepwell.codec.values import from_json, to_json
from stepwell.errors import LeaseLost, RecordReplaced, StepwellError, TooLarge, VersionChanged
from stepwell.record import KEEP, Address, Stored, Version
from stepwell.storage.cell import weight
from stepwell.storage.operations import (
    Applied,
    Apply,
    Claim,
    Claimed,
    Get,
    Operation,
    Release,
    Result,
    Taken,
)

__all__ = ["COLUMNS", "STORED", "columns", "escaped", "results", "stored"]

#: A field whose text is longer is kept apart, so that changes of the others do not write it again.
LARGE: Final = 1024

_GET, _CLAIM, _APPLY, _RELEASE = 1, 2, 3, 4
_KINDS: Final[dict[type, int]] = {Get: _GET, Claim: _CLAIM, Apply: _APPLY, Release: _RELEASE}
_REPLACE, _DELETE, _FORGET, _FRESH, _DEADLINE, _EXPIRY, _KEEP, _RETURNING, _RENEW, _PARTS, _USUAL = (
    1 << n for n in range(11)
)
_RECORD, _CLAIMED, _TAKEN, _APPLIED, _LEASE_LOST, _REPLACED, _CHANGED, _TOO_LARGE = range(1, 9)

#: How many columns there are, and how many of them only Apply fills.
COLUMNS: Final = 23
_APPLY_COLUMNS: Final = 17

#: The columns of a record that ``stored`` reads, of a table called ``r``.
STORED: Final = "r.version, r.write, r.base, r.written_at, r.head, r.data, r.large, r.tags, r.expires_at, r.deadline"


def escaped(name: str) -> str:
    """A name without NUL, which PostgreSQL's text cannot hold; different names stay different."""
    return name.replace("\\", "\\\\").replace("\0", "\\0") if "\\" in name or "\0" in name else name


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    return "\\".join(part.replace("\\0", "\0") for part in text.split("\\\\"))


def columns(operations: Sequence[Operation]) -> list[Sequence[Any]]:
    """One sequence per column; those of Apply stay empty if there is none, and arrive as nulls."""
    kinds = [_KINDS[type(operation)] for operation in operations]
    heads = [_place(operation) for operation in operations]
    place: list[Sequence[Any]] = [kinds, *zip(*heads, strict=True)]
    if _APPLY not in kinds:
        return [*place, *([()] * _APPLY_COLUMNS)]
    rows = [_written(operation) if type(operation) is Apply else _NOT_WRITTEN for operation in operations]
    # A column of nothing but nulls need not be sent.
    return [*place, *(column if column.count(None) < len(column) else () for column in zip(*rows, strict=True))]


_NOT_WRITTEN: Final = (None,) * _APPLY_COLUMNS


def _place(operation: Operation) -> tuple[str, str, int, str | None, float | None]:
    """Namespace, key, flags, token, lease."""
    (namespace, key), *_ = operation
    if isinstance(operation, Claim):
        return namespace, key, _RENEW if operation.renew else 0, operation.token, operation.lease
    if isinstance(operation, Get):
        return namespace, key, _PARTS if operation.parts else 0, None, None
    if isinstance(operation, Release):
        return namespace, key, 0, operation.token, None
    change, guard = operation.change, operation.guard
    flags = 0
    if change.replace:
        flags |= _REPLACE
    if change.delete:
        flags |= _DELETE
    if change.forget:
        flags |= _FORGET
    if change.fresh:
        flags |= _FRESH
    if change.deadline is not KEEP:
        flags |= _DEADLINE
    if change.expiry is not KEEP:
        flags |= _EXPIRY
    if operation.then == "keep":
        flags |= _KEEP
    if operation.returning:
        flags |= _RETURNING
    elif (
        not flags & (_REPLACE | _DELETE)
        and guard is not None
        and guard.token is not None
        and guard.base is not None
        and guard.version is None
        and not change.unset
        and not change.parts
        and change.tags is KEEP
        and not any(len(text) > LARGE for text in change.set.values())
    ):
        flags |= _USUAL
    return namespace, key, flags, None if guard is None else guard.token, operation.lease


def _written(apply: Apply) -> tuple[Any, ...]:
    change, guard = apply.change, apply.guard
    data = large = None
    size = 0
    if change.set:
        for name, text in change.set.items():
            size += weight(name, text)
        if size <= LARGE or max(map(len, change.set.values())) <= LARGE:
            data = _json(change.set)
        else:
            data = _json({name: text for name, text in change.set.items() if len(text) <= LARGE})
            large = _json({name: text for name, text in change.set.items() if len(text) > LARGE})
    parts = None
    if change.parts:
        parts = _json({escaped(name): text for name, text in change.parts.items()})
        for name, part in change.parts.items():
            size += weight(escaped(name), part)
    flow = state = head = None
    if change.head is not KEEP:
        flow, state, head = change.head
    version = None if guard is None else guard.version
    return (
        change.write,
        None if guard is None else guard.base,
        None if version is None else version.number,
        None if version is None else version.write,
        None if flow is None else escaped(flow),
        None if state is None else escaped(state),
        head,
        data,
        large,
        _json(change.unset) if change.unset else None,
        None if change.tags is KEEP else _json([escaped(tag) for tag in change.tags]),
        None if change.deadline is KEEP else change.deadline,
        None if change.expiry is KEEP else change.expiry,
        None if change.memo is KEEP else change.memo,
        parts,
        size,
        change.limit,
    )


def _json(value: Any) -> str:
    return to_json(dict(value) if isinstance(value, Mapping) else value).decode()


def results(operations: Sequence[Operation], rows: Sequence[Any]) -> list[Result]:
    """What the function's rows say, in the order of the operations."""
    found: list[Result] = [None] * len(operations)
    for row in rows:
        at, code, clock = row[0] - 1, row[1], row[2]
        if code == _CLAIMED:
            record = None if row[3] is None else stored(row, 3)
            found[at] = Claimed(record, row[5], row[13], clock)
        elif code == _APPLIED:
            record = None if row[8] is None else stored(row, 3)
            found[at] = Applied(Version(row[3], row[4]), row[5], clock, record)
        elif code == _RECORD:
            record = stored(row, 3)
            operation = operations[at]
            if type(operation) is Get and operation.parts:
                record.parts = dict(zip(map(_unescaped, row[15] or ()), row[16] or (), strict=True))
            found[at] = record
        elif code == _TAKEN:
            found[at] = Taken(row[14])
        elif code:
            found[at] = _refused(code, operations[at], row[14])
    return found


def stored(row: Any, first: int) -> Stored:
    """A record from the columns of ``STORED``, the first of which is number ``first`` of the row."""
    version, write, base, written_at, head, data, large, tags, expires_at, deadline = row[first : first + 10]
    fields: dict[str, str] = from_json(data)
    if large is not None:
        fields.update(from_json(large))
    return Stored(
        version=Version(version, write),
        base=base,
        written_at=written_at,
        head=head,
        fields=fields,
        tags=tuple(map(_unescaped, tags)) if tags else (),
        expires_at=expires_at,
        deadline=deadline,
    )


_ERRORS: Final[dict[int, Callable[[str], StepwellError]]] = {
    _LEASE_LOST: LeaseLost,
    _REPLACED: RecordReplaced,
    _CHANGED: VersionChanged,
}


def _refused(code: int, operation: Operation, size: float | None) -> StepwellError:
    address: Address = operation.address
    if code == _TOO_LARGE and isinstance(operation, Apply):
        return TooLarge("the record", int(size or 0), operation.change.limit)
    return _ERRORS[code](address.text)
