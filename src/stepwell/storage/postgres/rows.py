"""Conversion of operations to the JSON of the batch function, and of its rows to results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

from stepwell.codec.json import from_json, texts_to_json
from stepwell.errors import LeaseLost, RecordExists, RecordReplaced, StepwellError, TooLarge, VersionChanged
from stepwell.record import KEEP, Address, Range, Stored, Version
from stepwell.storage.operations import Applied, Apply, Claim, Claimed, Get, Operation, Release, Result, Taken
from stepwell.storage.queue_text import queue_of, queue_text
from stepwell.storage.reference import weight

__all__ = ["LARGE", "STORED", "addresses_json", "escaped", "results", "stored", "unescaped"]

#: Longer fields are stored in a column of their own, so that changes of other fields do not rewrite them.
LARGE: Final = 1024

#: The columns of a result after those of a record.
_WRITTEN_AT: Final = 3
_MEMO, _CODE, _CLOCK, _AMOUNT, _NAMES, _BODIES = range(11, 17)

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


def addresses_json(operations: Sequence[Operation]) -> str:
    """Return sorted operations as the argument of the batch function: grouped by address."""
    addresses: list[dict[str, Any]] = []
    last: Address | None = None
    for operation in operations:
        address = operation.address
        if address != last:
            last = address
            rows: list[dict[str, Any]] = []
            found: dict[str, Any] = {"namespace": address.namespace, "key": address.key, "operations": rows}
            addresses.append(found)
        if type(operation) is not Get:
            found["locked"] = True
        rows.append(_row(operation))
    return texts_to_json(addresses).decode()


def _row(operation: Operation) -> dict[str, Any]:
    """Return the columns of an operation that are not null."""
    if isinstance(operation, Apply):
        return _apply_row(operation)
    row: dict[str, Any] = {"kind": "get"}
    if isinstance(operation, Claim):
        row["kind"] = "renew" if operation.renew else "claim"
        row["token"], row["lease"] = operation.token, operation.lease
    elif isinstance(operation, Release):
        row["kind"], row["token"] = "release", operation.token
    elif operation.parts is True:
        row["chosen"] = True
    elif operation.parts is not False:
        row["chosen"] = _chosen(operation.parts)
    return row


def _apply_row(apply: Apply) -> dict[str, Any]:
    change, guard = apply.change, apply.guard
    row: dict[str, Any] = {
        "kind": ("forget" if change.forget else "delete") if change.delete else "write",
        "write": change.write,
        "allowed": change.limit,
    }
    if guard is not None:
        row["base"], row["absent"] = guard.base, guard.absent
        if guard.token is not None:
            row["token"] = guard.token
            if apply.then == "keep":
                row["lease"] = apply.lease
        if guard.version is not None:
            row["version"], row["version_write"] = guard.version
    if apply.returning:
        row["wants_record"] = True
    if change.replace:
        row["replace"] = True
    if change.fresh:
        row["fresh"] = True
    if change.head is not KEEP:
        head = change.head
        row["head"] = head.text
        row["flow"] = None if head.flow is None else escaped(head.flow)
        row["state"] = None if head.state is None else escaped(head.state)
    size = 0
    if change.set:
        row["data"] = fields = {**change.set}
        for name, text in fields.items():
            size += weight(name, text)
        if size > LARGE and max(map(len, fields.values())) > LARGE:
            row["data"] = {name: text for name, text in fields.items() if len(text) <= LARGE}
            row["large"] = {name: text for name, text in fields.items() if len(text) > LARGE}
    if change.unset:
        row["unset"] = change.unset
    if change.tags is not KEEP:
        row["tags"] = list(map(escaped, change.tags))
    if change.deadline is not KEEP:
        row["deadline"] = seconds(change.deadline)
    if change.expiry is not KEEP:
        row["expiry"] = seconds(change.expiry)
    if change.memo is not KEEP:
        row["memo"] = change.memo
    if change.queue is not KEEP:
        row["queue"] = "" if change.queue is None else queue_text(change.queue)
    if change.drop is not None:
        row["chosen"] = _chosen(change.drop)
    if change.parts:
        escaped_parts = {escaped_part(name): body for name, body in change.parts.items()}
        parts = {name: body for name, body in escaped_parts.items() if body is not None}
        if parts:
            row["part_names"], row["part_bodies"] = list(parts), list(parts.values())
        if len(parts) < len(escaped_parts):
            row["no_parts"] = [name for name, body in escaped_parts.items() if body is None]
        row["parts_size"] = parts_size = sum([weight(name, body) for name, body in parts.items()])
        size += parts_size
    row["size"] = size
    return row


def seconds(time: float | None) -> float | str:
    """Return seconds from now, as an argument: no time is infinity."""
    return "infinity" if time is None else time


def _chosen(parts: Range | tuple[str, ...]) -> dict[str, Any]:
    """Return some parts as an argument of the function ``parts_of``."""
    if isinstance(parts, Range):
        first, last = (None if name is None else escaped_part(name) for name in (parts.first, parts.last))
        return {"first": first or "", "last": last, "limit": parts.limit, "reverse": parts.reverse}
    return {"names": list(map(escaped_part, parts))}


def results(operations: Sequence[Operation], rows: Sequence[Any]) -> list[Result]:
    """Return the results of the function's rows, which are in the order of the operations."""
    return [_result(operation, row) for operation, row in zip(operations, rows, strict=True)]


def _result(operation: Operation, row: Any) -> Result:
    code = row[_CODE]
    if code == "applied":
        record = None if row[_WRITTEN_AT] is None else stored(row)
        return Applied(version=Version(row[0], row[1]), base=row[2], now=row[_CLOCK], record=record)
    if code == "claimed":
        record = None if row[0] is None else stored(row)
        return Claimed(record=record, base=row[2], memo=row[_MEMO], now=row[_CLOCK])
    if code == "record":
        record = stored(row)
        if isinstance(operation, Get) and operation.parts is not False:
            record.parts = dict(zip(map(unescaped_part, row[_NAMES] or ()), row[_BODIES] or (), strict=True))
        return record
    if code == "taken":
        return Taken(row[_AMOUNT])
    if code == "too large" and isinstance(operation, Apply):
        return TooLarge("the record", int(row[_AMOUNT]), operation.change.limit)
    return _ERRORS[code](operation.address.text) if code in _ERRORS else None


def stored(row: Any, first: int = 0) -> Stored:
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


_ERRORS: Final[dict[str, Callable[[str], StepwellError]]] = {
    "lease lost": LeaseLost,
    "replaced": RecordReplaced,
    "changed": VersionChanged,
    "exists": RecordExists,
}
