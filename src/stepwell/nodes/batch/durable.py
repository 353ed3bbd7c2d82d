"""Batches of durable runs: all items are stored before the first one runs, results in groups as they finish."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from stepwell._secrets import quoted
from stepwell.errors import KeptError, Parked, TooLarge
from stepwell.nodes.batch.items import BatchRun
from stepwell.nodes.graph.hooks import call_hook
from stepwell.nodes.run.branch import Park
from stepwell.nodes.walk.on_error import Failed, attach, kept_error
from stepwell.slot import Sealed
from stepwell.storage.transport.group_commit import GroupCommit

if TYPE_CHECKING:
    from stepwell.nodes.graph.plan import Stage
    from stepwell.nodes.run.branch import Branch
    from stepwell.nodes.walk.execution import Cursor

__all__ = ["as_list", "row_of", "run_batch_durable", "store_items"]

#: The most items in one part, and parts in one commit.
ITEMS_A_PART, PARTS_A_COMMIT = 256, 40
#: No item starts while so many results are not committed yet. After a crash, their items and those under way run again.
UNSAVED = 25
#: The most seconds that a result waits for others, to share one commit.
DELAY = 0.01


async def run_batch_durable(stage: Stage, cursor: Cursor, node: Any, shared: Any, inside: bool) -> tuple[Any, Any]:
    """Run a batch, or the rest of it; return the items, and the results in their order."""
    branch = cursor.branch
    assert branch is not None
    journal, path = branch.journal, stage.path
    done: dict[int, Any] = {}
    if inside:
        items = [item for part in journal.parts.all_of(path, "items") for item in part]
        for part in journal.parts.all_of(path, "done"):
            for index, result, *error in part:
                done[index] = Failed(items[index], KeptError(*error)) if error else result
    else:
        items = await as_list(stage.items(stage, await call_hook(stage.prep, node, shared)))
        await store_items(branch, stage, cursor.visit, items, [0, len(items)])
    return items, await _DurableBatchRun(stage, cursor, node, items, done=done, branch=branch).run_all()


async def as_list(source: Iterable[Any] | AsyncIterable[Any]) -> list[Any]:
    if isinstance(source, list):
        return source
    if isinstance(source, Iterable):
        return list(source)
    return [item async for item in source]


async def store_items(branch: Branch, stage: Stage, visit: int, items: list[Any], begun: Any) -> None:
    """Write all items. The last commit marks them as complete with ``begun``, and no item runs before it."""
    journal, path = branch.journal, stage.path
    begin, number, size = 0, 0, ITEMS_A_PART
    while begin < len(items):
        try:
            part = await journal.parts.seal_soon(
                path,
                f"items:{path}:{number}",
                items[begin : begin + size],
                lambda at, first=begin: _item_at(at, first),  # type: ignore[misc]
            )
        except TooLarge as error:
            if size == 1:
                error.add_note(f"item {begin} of batch {quoted(path)}")
                raise
            size //= 2
            continue
        journal.parts.put(path, "items", number, part)
        begin, number = begin + size, number + 1
        if number % PARTS_A_COMMIT == 0:
            await branch.save(path)
    branch.begin(stage, visit, None, begun)
    await branch.save(path)


def _item_at(at: str, first: int) -> str:
    """Translate ``[3].price`` in the part that begins with item 256 to ``item 259: $.price``."""
    number, _, rest = at.removeprefix("[").partition("]")
    return f"item {first + int(number)}: ${rest}"


class _DurableBatchRun(BatchRun):
    """A batch that stores its results as parts of the run; each part is written once."""

    def __init__(
        self, stage: Stage, cursor: Cursor, node: Any, items: list[Any], *, done: dict[int, Any], branch: Branch
    ) -> None:
        super().__init__(stage, cursor, node, items)
        # The results of a chunk in a thread are not committed before the chunk ends.
        self.largest_chunk = max(8, UNSAVED // (self.settings.concurrency or UNSAVED))
        self._journal = branch.journal
        self._iterator = iter([pair for pair in enumerate(items) if pair[0] not in done])
        self._taken = len(done)
        self.results = [done.get(index) for index in range(len(items))]
        self.done = len(done)
        self._succeeded = len(done)
        self._parts = len(branch.journal.parts.all_of(stage.path, "done"))
        self._saves: GroupCommit[tuple[int, Any], None] = GroupCommit(self._commit, name="stepwell-results")
        #: Results that are being written.
        self._in_flight = 0
        #: The error of a save. Nothing is saved after it.
        self._failure: Exception | None = None
        #: How many items wait.
        self._waiting = 0

    async def run_all(self) -> list[Any]:
        try:
            results = await super().run_all()
        except BaseException as error:
            if (failure := await self._save_at_the_end()) is not None:
                # It must not hide why the batch ended.
                attach(error, [failure])
            raise
        if self._waiting or self.drained:
            await self._saves.flush()
        unsaved = await self._saves.take_back()
        if self.fatal is not None:
            # The last save was under way when the last item ended, and failed after that.
            raise self.fatal
        if self.drained:
            self._journal.handed_over = True
            raise Park
        if self._waiting:
            self._journal.recheck(self.stage.path)
            raise Park
        self._journal.rechecks.pop(self.stage.path, None)
        # The commit of the node replaces these last results; encode them only to raise if one cannot be stored.
        await self._seal(unsaved, self._parts)
        return results

    async def take(self) -> tuple[int, Any] | None:
        if self.run.drain.asked and self.left:
            self.drained = True
            return None
        while self._saves.waiting + self._in_flight >= UNSAVED and not self._halted:
            await self._saves.flush()
            if self._failure is not None:
                raise self.halt()
            if perf_counter() > self.run.yield_at:
                await self.run.yield_now()
        return await super().take()

    def succeed(self, index: int, result: Any) -> None:
        super().succeed(index, result)
        self._queue_save(index)

    def fail(self, index: int, item: Any, error: Exception, attempt: int = 1) -> None:
        if isinstance(error, Parked):
            # It runs again when the run is resumed.
            self._waiting += 1
            return
        super().fail(index, item, error, attempt)
        if self.settings.on_error == "skip":
            self._queue_save(index)

    def _queue_save(self, index: int) -> None:
        self._saves.put((index, self.results[index]), linger=DELAY)

    async def _commit(self, results: list[tuple[int, Any]]) -> list[None]:
        """Store results that are not stored yet."""
        if self._failure is not None:
            return [None] * len(results)
        journal, path = self._journal, self.stage.path
        self._in_flight = len(results)
        try:
            for part in await self._seal(results, self._parts):
                journal.parts.put(path, "done", self._parts, part)
                self._parts += 1
            self._succeeded += len(results)
            journal.open[path] = [self._succeeded, self.total]
            await journal.save_whole(path)
        except Exception as error:  # noqa: BLE001 - conclude() raises it
            self._failure = error
            self.fatal = self.fatal or error
            self.halt()
        finally:
            self._in_flight = 0
        return [None] * len(results)

    async def _seal(self, results: list[tuple[int, Any]], number: int) -> list[Sealed]:
        """Encode results as one part, or as several if they are large; raise if one cannot be stored."""
        path = self.stage.path
        rows = [row_of(index, result) for index, result in results]
        try:
            name = f"done:{path}:{number}"
            return [await self._journal.parts.seal_soon(path, name, rows, lambda at: _result_at(at, results))]
        except TooLarge as error:
            if len(results) == 1:
                error.add_note(f"the result of item {results[0][0]} of batch {quoted(path)}")
                raise
        half = len(results) // 2
        first = await self._seal(results[:half], number)
        return [*first, *await self._seal(results[half:], number + len(first))]

    async def _save_at_the_end(self) -> Exception | None:
        """Commit the last results of a batch that failed, so that these items do not run again; return a new error."""
        before = self._failure
        await self._saves.flush()
        return self._failure if before is None else None


def row_of(index: int, result: Any) -> list[Any]:
    """Return the stored form of a result; of a failed item only the error, since the item is stored already."""
    if not isinstance(result, Failed):
        return [index, result]
    error = kept_error(result.error)
    return [index, None, error.type_name, error.message]


def _result_at(at: str, results: list[tuple[int, Any]]) -> str:
    """Translate ``[3][1].price`` in a part of results to the item of the fourth result and ``$.price``."""
    number, _, rest = at.removeprefix("[").partition("]")
    return f"the result of item {results[int(number)][0]}: ${rest.removeprefix('[1]')}"
