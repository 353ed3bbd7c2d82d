"""What most batches are, claims or a holder's small writes, as one plain statement: a third quicker than the function.

A statement does exactly what the batch function would, or nothing at all: then the function must be asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from stepwell.record import KEEP, Address, Version
from stepwell.storage.operations import Applied, Apply, Claim, Claimed, Operation, Result, Taken
from stepwell.storage.postgres_rows import escaped, is_usual, small_fields, stored

__all__ = ["Statement", "Usual"]

_FOLDER = files("stepwell.storage") / "sql" / "postgres"
_DEADLINE, _EXPIRY, _KEEP = 16, 32, 64


class Statement(NamedTuple):
    """A statement for a batch."""

    sql: str
    #: After lane, number and time.
    args: tuple[Any, ...]
    #: What its rows say, in the order of the operations; without a row nothing was done.
    results: Callable[[Sequence[Any], Sequence[Any]], list[Result]]


class Usual:
    """The statements for a schema."""

    def __init__(self, schema: str) -> None:
        self.claims_sql, self.writes_sql = (
            (_FOLDER / name).read_text("utf-8").replace("@schema@", schema)
            for name in ("usual_claims.sql", "usual_writes.sql")
        )

    def statement(self, operations: Sequence[Operation]) -> Statement | None:
        """The one for a batch; ``None`` for what only the function can do."""
        if len({operation[0] for operation in operations}) < len(operations):
            # One statement cannot do two things to one row.
            return None
        if type(operations[0]) is Claim:
            args = _claims(operations)
            return None if args is None else Statement(self.claims_sql, args, _claimed)
        args = _writes(operations)
        return None if args is None else Statement(self.writes_sql, args, _applied)


def _claims(operations: Sequence[Any]) -> tuple[Any, ...] | None:
    rows = []
    lease = operations[0].lease
    for operation in operations:
        if type(operation) is not Claim or operation.renew or operation.lease != lease:
            return None
        rows.append((*operation.address, operation.token))
    return *zip(*rows, strict=True), lease


def _claimed(operations: Sequence[Operation], rows: Sequence[Any]) -> list[Result]:
    places = {operation.address: at for at, operation in enumerate(operations)}
    # A row that another process made in this very moment is not seen, and taken.
    found: list[Result] = [Taken(0.001)] * len(operations)
    for row in rows:
        result: Result = Taken(row[14])
        if row[14] is None:
            result = Claimed(None if row[3] is None else stored(row, 3), row[5], row[13], row[2])
        found[places[Address(row[0], row[1])]] = result
    return found


def _writes(operations: Sequence[Any]) -> tuple[Any, ...] | None:
    rows = []
    first = operations[0]
    for operation in operations:
        if type(operation) is not Apply or not is_usual(operation):
            return None
        (namespace, key), change, guard, then, lease, _ = operation
        if change.fresh or lease != first.lease or change.limit != first.change.limit:
            return None
        data, size = small_fields(change.set)
        flow = state = head = None
        if change.head is not KEEP:
            flow, state, head = change.head
        flags = _KEEP if then == "keep" else 0
        deadline = expiry = None
        if change.deadline is not KEEP:
            flags, deadline = flags | _DEADLINE, change.deadline
        if change.expiry is not KEEP:
            flags, expiry = flags | _EXPIRY, change.expiry
        rows.append(
            (
                namespace,
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
    columns = [column if column.count(None) < len(column) else () for column in zip(*rows, strict=True)]
    return *columns, first.lease, first.change.limit


def _applied(operations: Sequence[Any], rows: Sequence[Any]) -> list[Result]:
    found: list[Result] = [None] * len(operations)
    for at, version, now in rows:
        operation = operations[at - 1]
        found[at - 1] = Applied(Version(version, operation.change.write), operation.guard.base, now)
    return found
