"""Where an operation runs: inline on the loop, or in a batch of the lane."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from stepwell import SQLiteStorage
from stepwell.errors import OutcomeUnknown, StorageUnavailable
from stepwell.record import Limits, Stored
from stepwell.slot import Slot
from stepwell.storage import Apply, Claim, Claimed, Get, Operation, Range, Result
from stepwell.storage.sqlite import connection
from stepwell.storage.sqlite.storage import INLINE_BYTES
from tests.constants import Constants
from tests.insides import file_of
from tests.storage.key_checks import skip_key_checks
from tests.until import until, yields

BOT, KEY = "bot", 1


class Watched(SQLiteStorage):
    """Counts the writes in batches of the lane, and can block the thread."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.queued = 0
        self.gate = threading.Event()
        self.gate.set()

    async def run(self, operations: Sequence[Operation]) -> list[Result]:
        self.queued += sum(type(operation) is Apply for operation in operations)
        return await super().run(operations)

    def _do(self, operations: Sequence[Operation]) -> list[Result]:
        assert self.gate.wait(10)
        return super()._do(operations)


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[Watched]:
    async with Watched(str(tmp_path / "bot.db")) as storage:
        await skip_key_checks(storage, BOT).update_data(BOT, KEY, {"n": 0})
        storage.queued = 0
        yield storage
        storage.gate.set()


async def test_concurrent_writes_share_a_batch_from_the_first_one_on(storage: Watched) -> None:
    await asyncio.gather(*(storage.update_data(BOT, key, {"n": 1}) for key in range(10, 30)))
    assert storage.queued == 20


async def test_writes_keep_their_order_between_two_batches(storage: Watched) -> None:
    storage.gate.clear()
    first = [asyncio.create_task(storage.update_data(BOT, key, {"n": 1})) for key in range(10, 13)]
    await yields(20)
    later = [asyncio.create_task(storage.update_data(BOT, KEY, {"n": number})) for number in range(5)]
    await yields(20)
    storage.gate.set()
    await asyncio.gather(*first, *later)
    assert await storage.get_data(BOT, KEY) == {"n": 4}


@pytest.mark.parametrize("sent", [True, False])
async def test_the_error_of_a_failed_commit_says_whether_it_may_have_been_made(
    storage: Watched, monkeypatch: pytest.MonkeyPatch, sent: bool
) -> None:
    write = file_of(storage).write

    def failing(work: Callable[[], Any], **options: Any) -> Any:
        write(work, **options)
        raise StorageUnavailable("the disk is gone", sent=sent, final=True)

    monkeypatch.setattr(file_of(storage), "write", failing)
    with pytest.raises(OutcomeUnknown if sent else StorageUnavailable, match="the disk is gone") as caught:
        await storage.update_data(BOT, KEY, {"n": 1})
    assert isinstance(caught.value, OutcomeUnknown) == sent


async def test_a_write_is_finished_after_its_caller_was_cancelled(storage: Watched, constants: Constants) -> None:
    constants(checkpoint_commits=3)
    for number in range(10):
        storage.gate.clear()
        task = asyncio.create_task(storage.update_data(BOT, KEY, {"n": number}))
        await yields(20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        storage.gate.set()
        await until(lambda: storage._idle)
        assert await storage.get_data(BOT, KEY) == {"n": number}
    assert file_of(storage)._commits <= 3, "the WAL is still checkpointed"


async def test_closing_waits_for_a_write_that_is_under_way(storage: Watched) -> None:
    storage.gate.clear()
    writing = asyncio.create_task(storage.update_data(BOT, KEY, {"n": 1}))
    await yields(20)
    closing = asyncio.create_task(storage.close())
    await yields(20)
    assert not closing.done()
    storage.gate.set()
    assert await writing == {"n": 1}
    await closing
    await storage.open()
    assert await storage.get_data(BOT, KEY) == {"n": 1}


async def test_closing_waits_for_reads_that_are_queued(storage: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_read_inline", lambda get: None)
    storage.gate.clear()
    writing = asyncio.create_task(storage.update_data(BOT, "another key", {"n": 1}))
    await yields(20)
    reading = [asyncio.create_task(storage.get_data(BOT, KEY)) for _ in range(3)]
    await yields(20)
    closing = asyncio.create_task(storage.close())
    await yields(20)
    storage.gate.set()
    async with asyncio.timeout(30):
        assert await asyncio.gather(writing, *reading) == [{"n": 1}] + [{"n": 0}] * 3
        await closing


async def test_a_read_in_the_thread_does_not_wait_for_the_lock_of_another_connection(
    storage: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "_read_inline", lambda get: None)
    other = connection.Connection(storage.path)
    other.execute("BEGIN IMMEDIATE")
    async with asyncio.timeout(30):
        assert await storage.get_data(BOT, KEY) == {"n": 0}
    other.close()


async def test_large_records_are_read_in_the_thread_and_small_ones_inline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[str] = []

    class Read(SQLiteStorage):
        def _do(self, operations: Sequence[Operation]) -> list[Result]:
            results = super()._do(operations)
            readers.append(threading.current_thread().name)
            return results

        def _read_inline(self, get: Get) -> tuple[Stored | None] | None:
            results = super()._read_inline(get)
            if results is not None:
                readers.append(threading.current_thread().name)
            return results

    async with Read(str(tmp_path / "bot.db"), limits=Limits(record=4_000_000)) as storage:
        for key, name, size in ((1, "fields", INLINE_BYTES + 1), (2, "parts", INLINE_BYTES + 1), (3, "small", 100)):
            async with Slot(storage, BOT, key) as slot:
                slot.data["text"] = "x" * (size if name != "parts" else 1)
                await slot.commit(parts={"text": "x" * size} if name != "fields" else {})
            address = storage.address(BOT, key)
            operations: list[tuple[Operation, bool]] = [
                (Get(address), name == "fields"),
                (Get(address, parts=("never",)), name == "fields"),
                (Get(address, parts=Range(limit=1)), name != "small"),
                (Get(address, parts=True), name != "small"),
                (Claim(address, "T", 30.0), True),
            ]
            for operation, large in operations:
                readers.clear()
                result = await storage.perform(operation)
                assert readers == ["stepwell-sqlite" if large else threading.main_thread().name], (name, operation)
                stored = result.record if isinstance(result, Claimed) else result
                assert storage.seal(address).data(stored.fields) == {"text": "x" * (size if name != "parts" else 1)}
            # The reader has no statement open, so it sees the next write.
            await storage.set_data(BOT, key, {"n": 1})
            assert await storage.get_data(BOT, key) == {"n": 1}
