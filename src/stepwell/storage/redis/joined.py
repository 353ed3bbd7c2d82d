"""One call of ``batch.lua`` for several hash tags of a node.

A server refuses a call that names keys of several slots, so this one passes them as arguments. The script checks the
slot of each hash tag itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

from stepwell.errors import StorageUnavailable
from stepwell.record import Address
from stepwell.storage.operations import Operation, Result
from stepwell.storage.redis.client import Reply
from stepwell.storage.redis.server import Answer
from stepwell.storage.redis.wire import Argument, arguments, result

__all__ = ["Group", "joined_arguments", "joined_results", "separate_answers"]

#: The operations of a batch with one hash tag: whether they are writes, the tag, and their indexes in the batch.
Group: TypeAlias = tuple[bool, int, Sequence[int]]


def joined_arguments(
    operations: Sequence[Operation], groups: Collection[Group], uses: Sequence[str], record: Callable[[Address], str]
) -> list[Argument]:
    """Return the arguments for these groups.

    ``uses``: how each of them uses its journal. ``record``: returns the key of a record.
    """
    row: list[Argument] = []
    for (_, _, indexes), use in zip(groups, uses, strict=True):
        if len(indexes) == 1:
            # The usual case.
            operation = operations[indexes[0]]
            row += use, 1, record(operation.address)
            row += arguments(operation)
        else:
            row += use, len(indexes)
            row += [record(operations[n].address) for n in indexes]
            for n in indexes:
                row += arguments(operations[n])
    return row


def joined_results(operations: Sequence[Operation], groups: Collection[Group], answer: Answer) -> list[Result] | None:
    """Return the results of a joined call, or ``None`` if some failed: then use ``separate_answers``."""
    reply, replicated = answer
    first, *rows = reply
    if not replicated or {*map(type, rows)} != {list}:
        return None
    now = float(first)
    results: list[Result] = [None] * len(operations)
    each = iter(rows)
    try:
        for _, _, indexes in groups:
            for n in indexes:
                results[n] = result(operations[n], next(each), now)
    except StorageUnavailable:
        return None
    return results


def separate_answers(groups: Collection[Group], answer: Answer) -> list[Answer | None]:
    """Return the answer to a joined call as one for each group; ``None`` for a group that was not run."""
    reply, replicated = answer
    now = reply[0]
    answers: list[Answer | None] = []
    at = 1
    for _, _, indexes in groups:
        till = at + len(indexes)
        first: Reply = reply[at]
        answers.append(None if type(first) is str else ([now, *reply[at:till]], replicated))
        at = till
    return answers
