"""Batches of durable runs: all items are stored before the first one runs, results in groups as they finish."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from stepwell._secrets import quoted
from stepwell.errors import KeptError, Parked, TooLarge
from stepwell.nodes.engine.branch import Park
from stepwell.nodes.engine.hooks import call_hook
from stepwell.nodes.engine.items import BatchRun
from stepwell.nodes.engine.on_error import Failed, attach, kept_error
from stepwell.nodes.engine.threads import settled
from stepwell.nodes.engine.workgroup import Halt
from stepwell.slot import Sealed

if TYPE_CHECKING:
    from stepwell.nodes.engine.branch import Branch
    from stepwell.nodes.engine.plan import Stage
    from stepwell.nodes.engine.position import Cursor

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
        items = [item for part in journal.parts_of(path, "items") for item in part]
        for part in journal.parts_of(path, "done"):
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
            part = await journal.seal_soon(
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
        journal.put(path, "items", number, part)
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
        self._parts = len(branch.journal.parts_of(stage.path, "done"))
        self._unsaved: list[tuple[int, Any]] = []
        self._in_flight = 0
        self._save_lock = asyncio.Lock()
        self._saving: asyncio.Task[None] | None = None
        self._save_failed = False
        #: How many items wait.
        self._waiting = 0

    async def run_all(self) -> list[Any]:
        try:
            results = await super().run_all()
        except BaseException as error:
            try:
                await self._save_at_the_end()
            except Exception as failure:  # noqa: BLE001 - it must not hide why the batch ended
                attach(error, [failure])
            raise
        await self._end_saving()
        if self._waiting:
            await self._save()
            self._journal.recheck(self.stage.path)
            raise Park
        self._journal.rechecks.pop(self.stage.path, None)
        if self.fatal is not None:
            # The last save was under way when the last item ended, and failed after that.
            raise self.fatal
        # The commit of the node replaces these last results; encode them only to raise if one cannot be stored.
        await self._seal(self._unsaved, self._parts)
        return results

    async def take(self) -> tuple[int, Any] | None:
        while len(self._unsaved) + self._in_flight >= UNSAVED and not self._halted:
            try:
                await self._save()
            except Exception as error:  # noqa: BLE001 - conclude() raises it
                raise self._fail_save(error) from None
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
        self._unsaved.append((index, self.results[index]))
        if self._saving is None:
            self._saving = asyncio.get_running_loop().create_task(self._save_later(), name="stepwell-results")

    async def _save_later(self) -> None:
        try:
            while self._unsaved and self.fatal is None:
                await asyncio.sleep(DELAY)
                await self._save()
        except Exception as error:  # noqa: BLE001 - conclude() raises it
            self._fail_save(error)
        finally:
            self._saving = None

    def _fail_save(self, error: Exception) -> Halt:
        self.fatal = self.fatal or error
        self._save_failed = True
        return self.halt()

    async def _save(self) -> None:
        """Commit the results that are not stored yet; one commit at a time."""
        async with self._save_lock:
            results, self._unsaved = self._unsaved, []
            self._in_flight = len(results)
            try:
                if results:
                    await self._commit(results)
            finally:
                self._in_flight = 0

    async def _commit(self, results: list[tuple[int, Any]]) -> None:
        journal, path = self._journal, self.stage.path
        for part in await self._seal(results, self._parts):
            journal.put(path, "done", self._parts, part)
            self._parts += 1
        self._succeeded += len(results)
        journal.open[path] = [self._succeeded, self.total]
        await journal.save_whole(path)

    async def _seal(self, results: list[tuple[int, Any]], number: int) -> list[Sealed]:
        """Encode results as one part, or as several if they are large; raise if one cannot be stored."""
        path = self.stage.path
        rows = [row_of(index, result) for index, result in results]
        try:
            name = f"done:{path}:{number}"
            return [await self._journal.seal_soon(path, name, rows, lambda at: _result_at(at, results))]
        except TooLarge as error:
            if len(results) == 1:
                error.add_note(f"the result of item {results[0][0]} of batch {quoted(path)}")
                raise
        half = len(results) // 2
        first = await self._seal(results[:half], number)
        return [*first, *await self._seal(results[half:], number + len(first))]

    async def _save_at_the_end(self) -> None:
        """Commit the last results of a batch that failed, so that these items do not run again."""
        await self._end_saving()
        if not self._save_failed:
            await self._save()

    async def _end_saving(self) -> None:
        if (saving := self._saving) is not None:
            # While this task has the lock, no commit is under way.
            async with self._save_lock:
                saving.cancel()
            await settled(saving)


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
