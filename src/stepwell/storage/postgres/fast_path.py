"""The fast path beside the batch function: plain statements for claims of known records, for simple writes, and for a
write with parts.

The statements apply the rules of ``run_batch.sql`` or return too few rows; the caller then calls the function. The
statement for parts may also fail with ``RowExists``, and then the caller calls the function too.
A write statement writes the whole batch or nothing. A claim statement may claim some of the records, which is safe to
repeat. ``docs/decisions/020-postgresql-batches.md`` has the measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.resources import files
from operator import attrgetter
from typing import Any, TypeAlias

from stepwell.record import KEEP, TURN, Version
from stepwell.storage.operations import Applied, Apply, Claim, Claimed, Operation, Result
from stepwell.storage.postgres.fast_parts import PartsWrite, parts_applied
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
_KEY, _TIME, _RECORD, _BASE, _MEMO, _STALE = 0, 1, 2, 4, 13, 14
#: How many addresses are remembered, and how many are dropped when there are more.
_MOST_KNOWN, _DROPPED = 50_000, 1_000
#: How many rows may be missing in a batch of claims, on average. A missing row costs a second round trip.
_MOST_MISSING = 0.3
#: The number of claims from which the missing rows are estimated.
_OBSERVED = 50


#: The SQL of a statement; its arguments after lane, number and time; and a function that turns its rows into results in
#: the order of the operations, or into ``None`` if the batch function must run the batch.
Statement: TypeAlias = tuple[str, Sequence[Any], Callable[[Sequence[Any], Sequence[Any]], list[Result] | None]]


class FastPath:
    """The fast path of one schema."""

    def __init__(self, schema: str) -> None:
        self.claims_sql: str = (_FOLDER / "fast_claims.sql").read_text("utf-8").replace("@schema@", schema)
        self.writes_sql: str = (_FOLDER / "fast_writes.sql").read_text("utf-8").replace("@schema@", schema)
        self.parts: PartsWrite = PartsWrite(schema)
        #: Hashes of addresses that had a record when they were last claimed. A collision costs one round trip.
        self._known: set[int] = set()
        #: The estimated share of other addresses that have no record, or are leased.
        self._missing: float = 1.0

    def statement(self, operations: Sequence[Any]) -> Statement | None:
        """Return the statement for a batch, or ``None`` if only the function can run it."""
        first = operations[0]
        if type(first) is Apply and first.change.parts and len(operations) == 1:
            found = self.parts.statement(first)
            return None if found is None else (*found, parts_applied)
        addresses = {*map(_address, operations)}
        if len(addresses) < len(operations):
            # One statement cannot change a row twice.
            return None
        if type(first) is Claim:
            others = {*map(hash, addresses)} - self._known
            if others and (len(others) * self._missing > _MOST_MISSING or any(map(_is_turn, operations))):
                return None
            args = _claims(operations)
            return None if args is None else (self.claims_sql, args, self._claimed)
        args = _writes(operations)
        return None if args is None else (self.writes_sql, args, _applied)

    def remember(self, operations: Sequence[Any], results: Sequence[Result]) -> None:
        """Remember the addresses at which a record was claimed, and at how many of the others none was."""
        claimed = [
            (hash(operation.address), type(result) is Claimed and result.record is not None)
            for operation, result in zip(operations, results, strict=True)
            if type(operation) is Claim and not operation.renew and not _is_turn(operation)
        ]
        others = [success for address, success in claimed if address not in self._known]
        if others:
            self._missing += min(1.0, len(others) / _OBSERVED) * (others.count(False) / len(others) - self._missing)
        if len(self._known) > _MOST_KNOWN:
            for _ in range(_DROPPED):
                self._known.pop()
        self._known.update([address for address, success in claimed if success])

    def _claimed(self, operations: Sequence[Any], rows: Sequence[Any]) -> list[Result] | None:
        found: dict[str, Result] = {}
        for row in rows:
            if not row[_STALE]:
                record = None if row[_RECORD] is None else stored(row, _RECORD)
                found[row[_KEY]] = Claimed(record=record, base=row[_BASE], memo=row[_MEMO], now=row[_TIME])
        if len(found) < len(operations):
            # The function reports which of the others have a record.
            self._known.difference_update([hash(each.address) for each in operations if each.address.key not in found])
            return None
        results = [found[operation.address.key] for operation in operations]
        if not self._known.issuperset(map(hash, map(_address, operations))):
            self.remember(operations, results)
        return results


_address = attrgetter("address")


def _is_turn(operation: Operation) -> bool:
    """Return whether an operation is about a turn. A turn has a row only while it is claimed."""
    return operation.address.key.endswith(TURN)


def _claims(operations: Sequence[Any]) -> tuple[Any, ...] | None:
    rows = []
    namespace, lease = operations[0].address.namespace, operations[0].lease
    for operation in operations:
        if type(operation) is not Claim:
            return None
        its_namespace, key = operation.address
        if operation.renew or operation.lease != lease or its_namespace != namespace:
            return None
        rows.append((key, operation.token))
    return namespace, *_arrays(rows), lease, len(rows)


def _writes(operations: Sequence[Any]) -> tuple[Any, ...] | None:
    rows = []
    first = operations[0]
    namespace = first.address.namespace
    for operation in operations:
        if type(operation) is not Apply or operation.guard is None or not is_simple_write(operation):
            return None
        (its_namespace, key), change = operation.address, operation.change
        same = its_namespace == namespace and operation.lease == first.lease and change.limit == first.change.limit
        if change.fresh or not same:
            return None
        data, size = small_fields(change.set)
        flow = state = head = deadline = expiry = None
        if change.head is not KEEP:
            flow, state, head = change.head.flow, change.head.state, change.head.text
        flags = KEEP_FLAG if operation.then == "keep" else 0
        if change.deadline is not KEEP:
            flags, deadline = flags | DEADLINE_FLAG, change.deadline
        if change.expiry is not KEEP:
            flags, expiry = flags | EXPIRY_FLAG, change.expiry
        rows.append(
            (
                key,
                operation.guard.token,
                change.write,
                operation.guard.base,
                str(size),
                str(flags),
                None if flow is None else escaped(flow),
                None if state is None else escaped(state),
                head,
                data,
                None if change.memo is KEEP else change.memo,
                None if deadline is None else repr(float(deadline)),
                None if expiry is None else repr(float(expiry)),
            )
        )
    return namespace, *_arrays(rows), first.lease, first.change.limit, len(rows)


def _arrays(rows: Sequence[tuple[str | None, ...]]) -> list[str]:
    """Return one array literal per column, which asyncpg encodes faster than a list."""
    literals = []
    for column in zip(*rows, strict=True):
        items = []
        for text in column:
            if text is None:
                items.append("NULL")
            else:
                items.append('"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"')
        literals.append("{" + ",".join(items) + "}")
    return literals


def _applied(operations: Sequence[Any], rows: Sequence[Any]) -> list[Result] | None:
    if not rows:
        return None
    found: list[Result] = [None] * len(operations)
    for at, version, now in rows:
        apply = operations[at - 1]
        found[at - 1] = Applied(version=Version(version, apply.change.write), base=apply.guard.base, now=now)
    return found
