"""Conversion of operations to the columns of the batch function, and of its rows to results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, cast

from stepwell.codec.json import from_json, texts_to_json
from stepwell.errors import LeaseLost, RecordExists, RecordReplaced, StepwellError, TooLarge, VersionChanged
from stepwell.record import KEEP, Address, Range, Stored, Version
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
from stepwell.storage.queue_text import queue_of, queue_text
from stepwell.storage.reference import weight

__all__ = [
    "COLUMNS",
    "DEADLINE_FLAG",
    "EXPIRY_FLAG",
    "KEEP_FLAG",
    "LARGE",
    "STORED",
    "columns",
    "escaped",
    "escaped_part",
    "is_simple_write",
    "results",
    "small_fields",
    "stored",
    "unescaped",
]

#: Longer fields are stored in a column of their own, so that changes of other fields do not rewrite them.
LARGE: Final = 1024

_GET, _CLAIM, _APPLY, _RELEASE = 1, 2, 3, 4
_REPLACE, _DELETE, _FORGET, _FRESH, DEADLINE_FLAG, EXPIRY_FLAG = 1, 2, 4, 8, 16, 32
KEEP_FLAG, _RETURNING, _RENEW, _PARTS, _SIMPLE, _NEEDS_ROW = 64, 128, 256, 512, 1024, 2048
_QUEUE, _ABSENT = 4096, 8192
_RECORD, _CLAIMED, _TAKEN, _APPLIED, _LEASE_LOST, _REPLACED, _CHANGED, _TOO_LARGE, _EXISTS = range(1, 10)

#: Columns of the function's rows after those of a record.
_MEMO, _AMOUNT, _NAMES, _BODIES = 14, 15, 16, 17

#: The number of columns, and how many of them are only for Apply.
COLUMNS: Final = 25
_APPLY_COLUMNS: Final = 18

#: The columns of a record that ``stored`` reads, of a table called ``r``.
STORED: Final = (
    "r.version, r.write, r.base, r.written_at, r.head, r.data, r.large, r.tags, r.expires_at, r.deadline, r.queue"
)


@lru_cache(maxsize=1024)
def escaped(name: str) -> str:
    """Escape NUL, which PostgreSQL's text type does not support."""
    return name.replace("\\", "\\\\").replace("\0", "\\0") if "\\" in name or "\0" in name else name


def unescaped(text: str) -> str:
    """Return the name that ``escaped`` was given."""
    if "\\" not in text:
        return text
    return "\\".join(part.replace("\\0", "\0") for part in text.split("\\\\"))


def escaped_part(name: str) -> str:
    """Escape the name of a part so that the order of names stays the same."""
    if "\0" in name or "\x01" in name:
        name = name.replace("\x01", "\x01\x02").replace("\0", "\x01\x01")
    return name.replace("\\", "\\\\") if "\\" in name else name


def unescaped_part(text: str) -> str:
    """Return the name that ``escaped_part`` was given."""
    name = unescaped(text)
    return name.replace("\x01\x01", "\0").replace("\x01\x02", "\x01") if "\x01" in name else name


def columns(operations: Sequence[Operation]) -> list[Any]:
    """Return the number of keys that need a row, then one sequence per column of the function.

    A column of nulls is sent empty; some columns are sent as one item if all items are equal.
    """
    writes = any(type(operation) is Apply for operation in operations)
    times = Counter([operation.address for operation in operations])
    needing: set[Address] = set()
    common = []
    ranges: list[str | None] = []
    rows = []
    for operation in operations:
        address = operation.address
        kind, flags, token, lease = _common(operation)
        if times[address] > 1:
            # One statement cannot change a row twice: the function runs these one by one, in order.
            flags &= ~_SIMPLE
        if flags & _NEEDS_ROW:
            if address in needing:
                flags &= ~_NEEDS_ROW
            needing.add(address)
        common.append((kind, *address, flags, token, lease))
        ranges.append(_range(operation))
        if writes:
            rows.append(_written(operation) if type(operation) is Apply else _NOT_WRITTEN)
    kinds, namespaces, keys, flags_, tokens, leases = zip(*common, strict=True)
    shared = [_short(kinds), _short(namespaces), keys, _short(flags_), tokens, _short(leases)]
    if not writes:
        return [len(needing), *shared, *([()] * _APPLY_COLUMNS), _unless_null(ranges)]
    *written, limits = zip(*rows, strict=True)
    return [
        len(needing),
        *shared,
        *map(_unless_null, written),
        _short(limits),
        _unless_null(ranges),
    ]


def _short(column: Sequence[Any]) -> Sequence[Any]:
    """Return a column of equal items as one item."""
    return column[:1] if column.count(column[0]) == len(column) else column


def _unless_null(column: Sequence[Any]) -> Sequence[Any]:
    """Return a column of nulls as an empty one."""
    return column if column.count(None) < len(column) else ()


_NOT_WRITTEN: Final = (None,) * _APPLY_COLUMNS


def _common(operation: Operation) -> tuple[int, int, str | None, float | None]:
    """Return kind, flags, token and lease of an operation."""
    if isinstance(operation, Get):
        return _GET, _SIMPLE if operation.parts is False else _PARTS, None, None
    if isinstance(operation, Claim):
        return _CLAIM, _RENEW if operation.renew else _SIMPLE | _NEEDS_ROW, operation.token, operation.lease
    if isinstance(operation, Release):
        return _RELEASE, 0, operation.token, None
    change, guard = operation.change, operation.guard
    token = None if guard is None else guard.token
    flags = (
        change.replace * _REPLACE
        | change.delete * _DELETE
        | change.forget * _FORGET
        | change.fresh * _FRESH
        | (change.deadline is not KEEP) * DEADLINE_FLAG
        | (change.expiry is not KEEP) * EXPIRY_FLAG
        | (change.queue is not KEEP) * _QUEUE
        | (guard is not None and guard.absent) * _ABSENT
        | (operation.then == "keep") * KEEP_FLAG
        | operation.returning * _RETURNING
    )
    if token is None:
        if not change.delete or change.memo is not KEEP:
            flags |= _NEEDS_ROW
    elif is_simple_write(operation):
        flags |= _SIMPLE
    return _APPLY, flags, token, operation.lease


def is_simple_write(apply: Apply) -> bool:
    """Return whether a holder changes only small fields, the head, times and the memo."""
    change, guard, returning = apply.change, apply.guard, apply.returning
    return (
        guard is not None
        and guard.token is not None
        and guard.base is not None
        and guard.version is None
        and not returning
        and not change.replace
        and not change.delete
        and not change.unset
        and not change.parts
        and change.drop is None
        and change.tags is KEEP
        and change.queue is KEEP
        and not guard.absent
        and max(map(len, change.set.values()), default=0) <= LARGE
    )


def small_fields(fields: Mapping[str, str]) -> tuple[str | None, int]:
    """Return small fields as JSON, and their size."""
    size = 0
    for name, text in fields.items():
        size += weight(name, text)
    return texts_to_json({**fields}).decode() if fields else None, size


def _written(apply: Apply) -> tuple[Any, ...]:
    change, guard = apply.change, apply.guard
    data, size = small_fields(change.set)
    large = None
    if size > LARGE and max(map(len, change.set.values())) > LARGE:
        data = _json({name: text for name, text in change.set.items() if len(text) <= LARGE})
        large = _json({name: text for name, text in change.set.items() if len(text) > LARGE})
    parts = None
    if change.parts:
        escaped_parts = {escaped_part(name): text for name, text in change.parts.items()}
        parts = _json(escaped_parts)
        for name, part in escaped_parts.items():
            size += weight(name, part)
    flow = state = head = None
    if change.head is not KEEP:
        flow, state, head = change.head.flow, change.head.state, change.head.text
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
        None if change.queue is KEEP or change.queue is None else queue_text(change.queue),
        change.limit,
    )


def _range(operation: Operation) -> str | None:
    """Return the parts that a ``Get`` reads or a change drops, as JSON for the function ``parts_of``."""
    if isinstance(operation, Get):
        chosen = operation.parts
    elif isinstance(operation, Apply) and operation.change.drop is not None:
        chosen = operation.change.drop
    else:
        return None
    if isinstance(chosen, Range):
        first, last = (None if name is None else escaped_part(name) for name in (chosen.first, chosen.last))
        return _json({"first": first or "", "last": last, "limit": chosen.limit, "reverse": chosen.reverse})
    return _json({"names": list(map(escaped_part, chosen))}) if isinstance(chosen, tuple) else None


def _json(value: Any) -> str:
    return texts_to_json(dict(value) if isinstance(value, Mapping) else value).decode()


def results(operations: Sequence[Operation], rows: Sequence[Any]) -> list[Result]:
    """Return the results of the function's rows in the order of the operations."""
    found: list[Result] = [None] * len(operations)
    for row in rows:
        at, code, clock = row[0] - 1, row[1], row[2]
        if code == _CLAIMED:
            record = None if row[3] is None else stored(row, 3)
            found[at] = Claimed(record, row[5], row[_MEMO], clock)
        elif code == _APPLIED:
            record = None if row[8] is None else stored(row, 3)
            found[at] = _applied(operations[at], row, clock, record)
        elif code == _RECORD:
            record = stored(row, 3)
            operation = operations[at]
            if type(operation) is Get and operation.parts is not False:
                record.parts = dict(zip(map(unescaped_part, row[_NAMES] or ()), row[_BODIES] or (), strict=True))
            found[at] = record
        elif code == _TAKEN:
            found[at] = Taken(row[_AMOUNT])
        elif code:
            found[at] = _refused(code, operations[at], row[_AMOUNT])
    return found


def _applied(operation: Operation, row: Any, clock: float, record: Stored | None) -> Applied:
    version, write, base = row[3:6]
    # The function returns null for values that the operation already has.
    apply = cast("Apply", operation)
    change, guard = apply.change, apply.guard
    if write is None:
        write = change.write
    if base is None:
        base = change.write if guard is None or guard.base is None else guard.base
    return Applied(Version(version, write), base, clock, record)


def stored(row: Any, first: int) -> Stored:
    """Return the record whose columns, in the order of ``STORED``, start at index ``first`` of the row."""
    version, write, base, written_at, head, data, large, tags, expires_at, deadline, queue = row[first : first + 11]
    fields: dict[str, str] = from_json(data)
    if large is not None:
        fields.update(from_json(large))
    if tags and "\\" in "".join(tags):
        tags = map(unescaped, tags)
    its_version = Version(version, write)
    place = None if queue is None else queue_of(queue)
    return Stored(its_version, base, written_at, head, fields, tuple(tags or ()), expires_at, deadline, None, place)


_ERRORS: Final[dict[int, Callable[[str], StepwellError]]] = {
    _LEASE_LOST: LeaseLost,
    _REPLACED: RecordReplaced,
    _CHANGED: VersionChanged,
    _EXISTS: RecordExists,
}


def _refused(code: int, operation: Operation, size: float | None) -> StepwellError:
    address: Address = operation.address
    if code == _TOO_LARGE and isinstance(operation, Apply):
        return TooLarge("the record", int(size or 0), operation.change.limit)
    return _ERRORS[code](address.text)
