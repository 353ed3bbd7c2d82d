"""Batches of operations: one call of ``batch.lua`` for each node.

A hash tag has its own journal and fence, see there, so the operations of each tag succeed or fail by themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from stepwell.codec.json import to_msgpack
from stepwell.errors import NotReplicated, StorageError, StorageUnavailable
from stepwell.storage.operations import Applied, Apply, Claimed, Operation, Result
from stepwell.storage.redis.server import RedisNode, Server, SlotMoves
from stepwell.storage.redis.wire import Keys, Script, result, row_of, tag_of

__all__ = ["Batches", "whole"]

_BATCH: Final = Script("batch")
#: How a group uses the key of its journal, see ``batch.lua``.
_JOURNAL, _CHECK, _RAISE = "journal", "check", "raise"


class Group(NamedTuple):
    """The operations of a batch with one hash tag: how they use its journal, the tag, their indexes in the batch."""

    use: str
    tag: int
    indexes: Sequence[int]


class Batches:
    """Sends batches, and remembers which of them were not answered.

    ``now``: returns the time for scripts, or ``False`` for the server's.
    """

    def __init__(self, server: Server, keys: Keys, now: Callable[[], float | bool]) -> None:
        self._server = server
        self._keys = keys
        self._now = now
        # Claims may be sent more than once, and each attempt has a number. After an attempt without an answer, the
        # lane's next one for that hash tag raises the fence: the server refuses the earlier one if it arrives late.
        self._sent = 0
        #: The numbers of the attempts without an answer, by the id of the lane and the hash tag.
        self._unsure: dict[tuple[str, int], int] = {}

    def reset(self) -> None:
        """Begin anew."""
        self._unsure.clear()

    async def run(
        self, operations: Sequence[Operation], lane: str, number: int = 0, *, wait: int = 0, fenced: bool = False
    ) -> list[Result]:
        """Run a batch over the connections of a lane.

        ``number``: its number in the journal of the lane. ``fenced``: it has claims. ``wait``: milliseconds to wait for
        replicas. The result of an operation whose hash tag failed is ``StorageUnavailable``; if all failed because
        their nodes do not answer, the error is raised.
        """
        if fenced:
            self._sent += 1
        fence = self._sent if fenced else 0
        groups = self._groups(operations, lane, fence)
        nodes: dict[RedisNode | None, list[Group]] = {}
        for group in groups:
            nodes.setdefault(self._server.owners[group.tag], []).append(group)
        results: list[Result] = [None] * len(operations)
        sends = [
            self._send(node, some, operations, results, lane=lane, number=number, fence=fence, wait=wait)
            for node, some in nodes.items()
        ]
        try:
            # A lane usually has one node. A task for a single call would cost more than the call.
            lost = (
                await sends[0] if len(sends) == 1 else [each for some in await asyncio.gather(*sends) for each in some]
            )
        except BaseException:
            for group in groups:
                self._doubt(lane, group, fence)
            raise
        if len(lost) == len(groups):
            raised = [error for error in lost if isinstance(error, StorageUnavailable)]
            if len(lost) == 1 and not raised:
                raise lost[0]
            if len(raised) == len(lost) and not any(isinstance(error, SlotMoves) for error in raised):
                problem = next((error for error in raised if error.final), raised[0])
                problem.sent = any(error.sent for error in raised)
                raise problem
        return results

    def _groups(self, operations: Sequence[Operation], lane: str, fence: int) -> list[Group]:
        """Return the groups of a batch. With a fence, a hash tag of a Cluster has two: writes, and other operations."""
        unsure = self._unsure
        if not self._server.spread:
            writes = Apply in {*map(type, operations)}
            use = _JOURNAL if writes else _RAISE if (lane, 0) in unsure else _CHECK
            return [Group(use, 0, range(len(operations)))]
        writing: dict[int, list[int]] = {}
        reading: dict[int, list[int]] = {}
        # Without claims, the operations of a hash tag keep their order.
        apart = fence or Apply not in {*map(type, operations)}
        for n, operation in enumerate(operations):
            groups = reading if apart and type(operation) is not Apply else writing
            groups.setdefault(tag_of(operation.address), []).append(n)
        return [
            *[Group(_JOURNAL, tag, some) for tag, some in writing.items()],
            *[Group(_RAISE if (lane, tag) in unsure else _CHECK, tag, some) for tag, some in reading.items()],
        ]

    async def _send(
        self,
        node: RedisNode | None,
        groups: list[Group],
        operations: Sequence[Operation],
        results: list[Result],
        *,
        lane: str,
        number: int,
        fence: int,
        wait: int,
    ) -> list[StorageError]:
        """Run groups on a node, put their results into ``results``, and return the errors of those that failed."""
        server, record = self._server, self._keys.record
        rows = [
            (use, f"{tag:02}", [row_of(operations[n], record(operations[n].address)) for n in indexes])
            for use, tag, indexes in groups
        ]
        argument = to_msgpack([self._now(), self._keys.prefix, lane, number, fence, rows])
        answers: Sequence[list[object] | str | StorageError]
        now, replicated = 0.0, True
        try:
            (time, *answers), replicated = await server.evaluate(lane, node, _BATCH, argument, wait=wait)
            now = float(time)
        except StorageError as error:
            answers = [error] * len(groups)
            if isinstance(error, StorageUnavailable) and not error.final:
                await server.lost()
        problems: list[StorageError] = []
        refused = False
        for group, answer in zip(groups, answers, strict=True):
            try:
                if isinstance(answer, str):
                    raise server.problem(answer, node)
                if isinstance(answer, StorageError):
                    raise answer
                for n, reply in zip(group.indexes, answer, strict=True):
                    outcome = result(operations[n], reply, now)  # type: ignore[arg-type]
                    if not replicated and type(outcome) in (Applied, Claimed):
                        outcome = NotReplicated(operations[n].address.text)
                    results[n] = outcome
                if self._unsure:
                    self._answered(lane, group, fence, [results[n] for n in group.indexes])
            except StorageError as error:
                problems.append(error)
                self._doubt(lane, group, fence)
                refused = refused or error is not answer
                for n in group.indexes:
                    results[n] = StorageUnavailable(
                        str(error), sent=getattr(error, "sent", False), final=getattr(error, "final", False)
                    )
        if refused:
            await server.lost(lane, node)
        return problems

    def _doubt(self, lane: str, group: Group, fence: int) -> None:
        """Let the next attempt raise the fence, because this one has no answer."""
        if group.use is not _JOURNAL:
            self._unsure[lane, group.tag] = max(fence, self._unsure.get((lane, group.tag), 0))

    def _answered(self, lane: str, group: Group, fence: int, results: Sequence[Result]) -> None:
        """Forget the attempts that are below a raised fence. A later one may have failed meanwhile.

        A granted claim shows that the server accepted writes, and so raised the fence. It may answer others without.
        """
        is_raised = group.use is _RAISE and Claimed in map(type, results)
        if is_raised and self._unsure.get((lane, group.tag), fence) < fence:
            del self._unsure[lane, group.tag]


def whole(results: list[Result]) -> list[Result]:
    """Return the results of a batch that is retried as a whole, or raise the error of an operation without a result."""
    for outcome in results:
        if isinstance(outcome, StorageUnavailable):
            raise outcome
    return results
