"""The fast path beside the batch function: one plain statement for claims of known records, one for simple writes.

The statements apply the rules of ``002_run_batch.sql`` or return too few rows; the caller then calls the function.
A write statement writes the whole batch or nothing. A claim statement may claim some of the records, which is safe to
repeat. ``docs/decisions/020-postgresql-batches.md`` has the measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from stepwell.record import KEEP, Version
from stepwell.storage.operations import Applied, Apply, Claim, Claimed, Result
from stepwell.storage.postgres.rows import (
    DEADLINE_FLAG,
    EXPIRY_FLAG,
    KEEP_FLAG,
    escaped,
    is_simple_write,
    small_fields,
    stored,
)

__all__ = ["FastPath", "Statement"]

_FOLDER = files("stepwell.storage.postgres")

#: Columns of fast_claims.sql; the record starts at ``_RECORD``.
_KEY, _TIME, _RECORD, _BASE, _MEMO, _STALE = 0, 1, 2, 4, 12, 13
#: How many addresses are remembered, and how many are dropped when there are more.
_MOST_KNOWN, _DROPPED = 50_000, 1_000


class Statement(NamedTuple):
    """A fast path statement for one batch."""

    sql: str
    #: Arguments after lane, number and time.
    args: tuple[Any, ...]
    #: Turns rows into results in the order of the operations; ``None`` if the function must run the batch.
    results: Callable[[Sequence[Any], Sequence[Any]], list[Result] | None]


class FastPath:
    """The fast path of one schema."""

    def __init__(self, schema: str) -> None:
        self.claims_sql, self.writes_sql = (
            (_FOLDER / name).read_text("utf-8").replace("@schema@", schema)
            for name in ("fast_claims.sql", "fast_writes.sql")
        )
        #: Hashes of addresses that had a record when they were last claimed. A collision costs one round trip.
        self._known: set[int] = set()

    def statement(self, operations: Sequence[Any]) -> Statement | None:
        """Return the statement for a batch, or ``None`` if only the function can run it."""
        addresses = {operation[0] for operation in operations}
        if len(addresses) < len(operations):
            # One statement cannot change a row twice.
            return None
        if type(operations[0]) is Claim:
            if not self._known.issuperset(map(hash, addresses)):
                return None
            args = _claims(operations)
            return None if args is None else Statement(self.claims_sql, args, self._claimed)
        rows = _rows(operations)
        if rows is None:
            return None
        first = operations[0]
        args = (first.address.namespace, *_columns(rows), first.lease, first.change.limit, len(rows))
        return Statement(self.writes_sql, args, _applied)

    def remember(self, operations: Sequence[Any], results: Sequence[Result]) -> None:
        """Remember the addresses at which the function claimed a record."""
        if len(self._known) > _MOST_KNOWN:
            for _ in range(_DROPPED):
                self._known.pop()
        self._known.update(
            [
                hash(operation[0])
                for operation, result in zip(operations, results, strict=True)
                if type(result) is Claimed and result.record is not None
            ]
        )

    def _claimed(self, operations: Sequence[Any], rows: Sequence[Any]) -> list[Result] | None:
        if len(rows) < len(operations) or True in [row[_STALE] for row in rows]:
            # The function reports which of them have a record.
            self._known.difference_update([hash(operation[0]) for operation in operations])
            return None
        found = {}
        for row in rows:
            record = None if row[_RECORD] is None else stored(row, _RECORD)
            found[row[_KEY]] = Claimed(record, row[_BASE], row[_MEMO], row[_TIME])
        return [found[operation[0].key] for operation in operations]


def _claims(operations: Sequence[Any]) -> tuple[Any, ...] | None:
    keys, tokens = [], []
    (namespace, _), _, lease, _ = operations[0]
    for operation in operations:
        if type(operation) is not Claim or operation.renew or operation.lease != lease:
            return None
        (its_namespace, key), token, _, _ = operation
        if its_namespace != namespace:
            return None
        keys.append(key)
        tokens.append(token)
    return namespace, _array(keys), _array(tokens), lease, len(keys)


def _rows(operations: Sequence[Any]) -> list[tuple[Any, ...]] | None:
    rows = []
    first = operations[0]
    namespace = first.address.namespace
    for operation in operations:
        if type(operation) is not Apply or operation.guard is None or not is_simple_write(operation):
            return None
        guard = operation.guard
        (its_namespace, key), change, _, then, lease, _ = operation
        same = its_namespace == namespace and lease == first.lease and change.limit == first.change.limit
        if change.fresh or not same:
            return None
        data, size = small_fields(change.set)
        flow = state = head = None
        if change.head is not KEEP:
            flow, state, head = change.head
        flags = KEEP_FLAG if then == "keep" else 0
        deadline = expiry = None
        if change.deadline is not KEEP:
            flags, deadline = flags | DEADLINE_FLAG, change.deadline
        if change.expiry is not KEEP:
            flags, expiry = flags | EXPIRY_FLAG, change.expiry
        rows.append(
            (
                key,
                guard.token,
                change.write,
                guard.base,
                size,
                flags,
                None if flow is None else escaped(flow),
                None if state is None else escaped(state),
                head,
                data,
                None if change.memo is KEEP else change.memo,
                deadline,
                expiry,
            )
        )
    return rows


def _columns(rows: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    keys, tokens, writes, bases, sizes, all_flags, flows, states, *rest = zip(*rows, strict=True)
    return (
        _array(keys),
        _array(tokens),
        _array(writes),
        _array(bases),
        _array(map(str, sizes)),
        _array(map(str, all_flags)),
        _array(flows),
        _array(states),
        *[column if column.count(None) < len(column) else () for column in rest],
    )


def _array(texts: Iterable[str | None]) -> str:
    """Return an array literal, which asyncpg encodes faster than a list."""
    items = list(texts)
    if items == [None]:
        return "{NULL}"
    if None not in items:
        joined = '","'.join(map(str, items))
        if "\\" not in joined and joined.count('"') == 2 * len(items) - 2:
            return f'{{"{joined}"}}'
    return "{" + ",".join(["NULL" if item is None else _quoted(item) for item in items]) + "}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _applied(operations: Sequence[Any], rows: Sequence[Any]) -> list[Result] | None:
    if not rows:
        return None
    found: list[Result] = [None] * len(operations)
    for at, version, now in rows:
        operation = operations[at - 1]
        found[at - 1] = Applied(Version(version, operation.change.write), operation.guard.base, now)
    return found
