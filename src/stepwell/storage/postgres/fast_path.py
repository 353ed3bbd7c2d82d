"""What most batches are, claims or a holder's small writes, as one plain statement: a third quicker than the function.

Writes are made as the function would make them, or none is. Claims are, or some are and the next statement or the
function is asked: a claim may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from stepwell.record import KEEP, Version
from stepwell.storage.operations import Applied, Apply, Claim, Claimed, Result, Taken
from stepwell.storage.postgres.rows import (
    DEADLINE_FLAG,
    EXPIRY_FLAG,
    KEEP_FLAG,
    escaped,
    is_usual,
    small_fields,
    stored,
)

__all__ = ["Statement", "Usual"]

_FOLDER = files("stepwell.storage.postgres")

#: The columns of a claim's row, as claimed_columns.sql begins it: a record is from ``_RECORD`` on.
_KEY, _TIME, _RECORD, _BASE, _MEMO, _REMAINING, _MISSED = 0, 1, 2, 4, 12, 13, 14
#: How many addresses are remembered, and how many are forgotten to make room.
_MOST_KNOWN, _FORGOTTEN = 50_000, 1_000


class Statement(NamedTuple):
    """A statement for a batch."""

    sql: str
    #: After lane, number and time.
    args: tuple[Any, ...]
    #: What its rows say, in the order of the operations; ``None`` if the next one, or the function, must be asked.
    results: Callable[[Sequence[Any], Sequence[Any]], list[Result] | None]


class Usual:
    """The statements for a schema."""

    def __init__(self, schema: str) -> None:
        columns = (_FOLDER / "claimed_columns.sql").read_text("utf-8").rstrip()
        self.known_claims_sql, self.claims_sql, self.writes_sql, self.write_sql = (
            (_FOLDER / name).read_text("utf-8").replace("@claimed@", columns).replace("@schema@", schema)
            for name in ("known_claims.sql", "usual_claims.sql", "usual_writes.sql", "usual_write.sql")
        )
        #: Where there was a record when it was last claimed, so that very likely there still is a row. Hashes: if two
        #: addresses have the same, that costs a round trip at most.
        self._there: set[int] = set()

    def statements(self, operations: Sequence[Any]) -> Iterator[Statement]:
        """Those for a batch, to be sent until one has results; none for what only the function can do."""
        addresses = {operation[0] for operation in operations}
        if len(addresses) < len(operations):
            # One statement cannot do two things to one row.
            return
        if type(operations[0]) is Claim:
            args = _claims(operations)
            if args is not None:
                if self._there.issuperset(map(hash, addresses)):
                    yield Statement(self.known_claims_sql, args, self._all_claimed)
                yield Statement(self.claims_sql, args, self._claimed)
            return
        rows = _rows(operations)
        if rows is None:
            return
        first = operations[0]
        namespace, lease, limit = first.address.namespace, first.lease, first.change.limit
        if len(rows) == 1:
            yield Statement(self.write_sql, (namespace, *rows[0], lease, limit), _applied)
        else:
            yield Statement(self.writes_sql, (namespace, *_columns(rows), lease, limit, len(rows)), _applied)

    def _all_claimed(self, operations: Sequence[Any], rows: Sequence[Any]) -> list[Result] | None:
        if len(rows) == len(operations):
            return self._claimed(operations, rows)
        if rows:
            # Without any, its lane is not known: that says nothing about them.
            self._there.difference_update([hash(operation.address) for operation in operations])
        return None

    def _claimed(self, operations: Sequence[Any], rows: Sequence[Any]) -> list[Result] | None:
        if not rows:
            return None
        places = {operation.address.key: at for at, operation in enumerate(operations)}
        found: list[Result] = [None] * len(operations)
        there = []
        for row in rows:
            if row[_MISSED]:
                return None
            at = places[row[_KEY]]
            if row[_REMAINING] is not None:
                found[at] = Taken(row[_REMAINING])
                continue
            record = None
            if row[_RECORD] is not None:
                record = stored(row, _RECORD)
                there.append(hash(operations[at].address))
            found[at] = Claimed(record, row[_BASE], row[_MEMO], row[_TIME])
        if None in found:
            # A row was made while this statement ran, perhaps by an earlier sending of these very claims.
            return None
        if len(self._there) > _MOST_KNOWN:
            for _ in range(_FORGOTTEN):
                self._there.pop()
        self._there.update(there)
        return found


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
        if type(operation) is not Apply or operation.guard is None or not is_usual(operation):
            return None
        guard = operation.guard
        (its_namespace, key), change, _, then, lease, _ = operation
        alike = its_namespace == namespace and lease == first.lease and change.limit == first.change.limit
        if change.fresh or not alike:
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
        *(column if column.count(None) < len(column) else () for column in rest),
    )


def _array(texts: Iterable[str | None]) -> str:
    """An array of short texts as one: the driver looks at each item of a list several times."""
    items = list(texts)
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
    for at, version, now, *_ in rows:
        operation = operations[at - 1]
        found[at - 1] = Applied(Version(version, operation.change.write), operation.guard.base, now)
    return found
