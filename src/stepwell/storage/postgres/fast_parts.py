"""The fast path for one write with new parts: an append to a log, or a checkpoint of LangGraph.

Its statement applies the rules of ``run_batch.sql`` or returns no row; the caller then calls the function.
``docs/decisions/020-postgresql-batches.md`` has the measurements.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Any, Final

from stepwell.codec.json import texts_to_json
from stepwell.record import KEEP, Version
from stepwell.storage.operations import Applied, Apply, Guard, Operation
from stepwell.storage.postgres.rows import LARGE, escaped_part, seconds
from stepwell.storage.reference import weight

__all__ = ["applied", "arguments", "statement"]

_UNGUARDED: Final = Guard()


def statement(schema: str) -> str:
    """Return the statement for a quoted schema."""
    return (files("stepwell.storage.postgres") / "fast_parts.sql").read_text("utf-8").replace("@schema@", schema)


def arguments(operations: Sequence[Operation]) -> list[Any] | None:
    """Return the arguments after lane, number and time, or ``None`` if only the function can run the batch."""
    write = operations[0]
    if len(operations) > 1 or type(write) is not Apply or not write.change.parts:
        return None
    change, guard = write.change, write.guard or _UNGUARDED
    others = (change.head, change.tags, change.deadline, change.memo, change.queue)
    if (
        any(other is not KEEP for other in others)
        or change.replace
        or change.delete
        or change.unset
        or change.drop is not None
        or write.returning
        or guard.absent
        or None in change.parts.values()
        or any(len(text) > LARGE for text in change.set.values())
    ):
        return None
    names = list(map(escaped_part, change.parts))
    bodies = list(change.parts.values())
    parts_size = sum(map(weight, names, bodies))
    size = parts_size + sum(weight(name, text) for name, text in change.set.items())
    return [
        *write.address,
        change.write,
        size,
        parts_size,
        change.limit,
        None if change.expiry is KEEP else float(seconds(change.expiry)),
        guard.token,
        write.lease if guard.token is not None and write.then == "keep" else None,
        texts_to_json({**change.set}).decode() if change.set else None,
        guard.base,
        *(guard.version or (None, None)),
        names,
        bodies,
    ]


def applied(row: Any) -> Applied:
    """Return the result of a write."""
    version, write, base, now = row
    return Applied(version=Version(version, write), base=base, now=now)
