"""Whoever writes alone skips the queue, and notices nothing else of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from stepwell import SQLiteStorage
from stepwell.errors import OutcomeUnknown, StorageUnavailable
from stepwell.record import Limits
from stepwell.slot import Slot
from stepwell.storage import Apply, Claim, Claimed, Get, Operation, Result, sqlite
from stepwell.storage.sqlite import connection

BOT, KEY = "bot", 1


class Watched(SQLiteStorage):
    """Counts what goes through the queue, and can hold the thread up."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.queued = 0
        self.gate = threading.Event()
        self.gate.set()

    async def run(self, operations: Sequence[Operation]) -> list[Result]:
        self.queued += sum(type(operation) is Apply for operation in operations)
        return await super().run(operations)

    def _do(self, operations: Sequence[Operation], now: float) -> list[Result]:
        if threading.current_thread() is not threading.main_thread():
            assert self.gate.wait(10)
        return super()._do(operations, now)


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[Watched]:
    async with Watched(str(tmp_path / "bot.db")) as storage:
        await storage.update_data(BOT, KEY, {"n": 0})
        storage.queued = 0
        yield storage
        storage.gate.set()


async def test_one_that_writes_alone_is_not_queued(storage: Watched) -> None:
    async with Slot(storage, BOT, KEY) as slot:
        for number in range(5):
            slot.data["n"] = number
            await slot.commit(keep=True)
    assert storage.queued == 0
    assert await storage.get_data(BOT, KEY) == {"n": 4}


async def test_many_are_gathered_from_the_first_on(storage: Watched) -> None:
    await asyncio.gather(*(storage.update_data(BOT, key, {"n": 1}) for key in range(10, 30)))
    assert storage.queued == 20


async def test_nobody_is_overtaken_between_two_batches(storage: Watched) -> None:
    storage.gate.clear()
    first = [asyncio.create_task(storage.update_data(BOT, key, {"n": 1})) for key in range(10, 13)]
    await asyncio.sleep(0.01)
    later = [asyncio.create_task(storage.update_data(BOT, KEY, {"n": number})) for number in range(5)]
    await asyncio.sleep(0.01)
    storage.gate.set()
    await asyncio.gather(*first, *later)
    assert await storage.get_data(BOT, KEY) == {"n": 4}


@pytest.mark.parametrize("sent", [True, False])
async def test_a_commit_that_fails_says_whether_it_may_have_been_made(
    storage: Watched, monkeypatch: pytest.MonkeyPatch, sent: bool
) -> None:
    write = storage._file.write

    def failing(work: Callable[[], Any], **options: Any) -> Any:
        write(work, **options)
        raise StorageUnavailable("the disk is gone", sent=sent, final=True)

    monkeypatch.setattr(storage._file, "write", failing)
    with pytest.raises(OutcomeUnknown if sent else StorageUnavailable, match="the disk is gone") as caught:
        await storage.update_data(BOT, KEY, {"n": 1})
    assert isinstance(caught.value, OutcomeUnknown) == sent
    assert storage.queued == 0


async def test_a_write_whose_caller_gave_up_is_made_and_others_go_on(
    storage: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CHECKPOINT_COMMITS", 3)
    for number in range(10):
        storage.gate.clear()
        task = asyncio.create_task(storage.update_data(BOT, KEY, {"n": number}))
        await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        storage.gate.set()
        while not storage._idle():
            await asyncio.sleep(0.001)
        assert await storage.get_data(BOT, KEY) == {"n": number}
    assert storage.queued == 0
    assert storage._file._commits <= 3, "the WAL is kept small all the same"


async def test_the_first_claim_after_a_checkpoint_does_not_wait_for_the_disk_in_the_loop(storage: Watched) -> None:
    in_the_loop: list[bool] = []
    do = storage._do

    def watched(operations: Sequence[Operation], now: float) -> list[Result]:
        in_the_loop.append(threading.current_thread() is threading.main_thread())
        return do(operations, now)

    storage._do = watched  # type: ignore[method-assign]
    storage._thread.start(storage._file.checkpoint)  # type: ignore[union-attr]
    while not storage._idle():
        await asyncio.sleep(0.001)
    for number in range(3):
        assert isinstance(await storage.perform(Claim(storage.address(BOT, number), "t", 30.0)), Claimed)
    assert in_the_loop == [False, True, True]


async def test_closing_waits_for_a_write_that_is_under_way(storage: Watched) -> None:
    storage.gate.clear()
    writing = asyncio.create_task(storage.update_data(BOT, KEY, {"n": 1}))
    await asyncio.sleep(0.01)
    closing = asyncio.create_task(storage.close())
    await asyncio.sleep(0.01)
    assert not closing.done()
    storage.gate.set()
    assert await writing == {"n": 1}
    await closing
    await storage.open()
    assert await storage.get_data(BOT, KEY) == {"n": 1}


async def test_closing_waits_for_reads_that_are_queued(storage: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_read", lambda get: None)
    storage.gate.clear()
    writing = asyncio.create_task(storage.update_data(BOT, "somebody else", {"n": 1}))
    await asyncio.sleep(0.01)
    reading = [asyncio.create_task(storage.get_data(BOT, KEY)) for _ in range(3)]
    await asyncio.sleep(0.01)
    closing = asyncio.create_task(storage.close())
    await asyncio.sleep(0.01)
    storage.gate.set()
    async with asyncio.timeout(5):
        assert await asyncio.gather(writing, *reading) == [{"n": 1}] + [{"n": 0}] * 3
        await closing


async def test_a_read_does_not_wait_for_somebody_elses_lock(storage: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it could not be made at once, as while another process is closing the file."""
    monkeypatch.setattr(storage, "_read", lambda get: None)
    other = connection.Connection(storage.path)
    other.execute("BEGIN IMMEDIATE")
    async with asyncio.timeout(5):
        assert await storage.get_data(BOT, KEY) == {"n": 0}
    other.close()


async def test_large_records_are_read_in_the_thread_and_small_ones_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[str] = []

    class Read(SQLiteStorage):
        def _do(self, operations: Sequence[Operation], now: float) -> list[Result]:
            results = super()._do(operations, now)
            readers.append(threading.current_thread().name)
            return results

        def _read(self, get: Get) -> list[Result] | None:
            results = super()._read(get)
            if results is not None:
                readers.append(threading.current_thread().name)
            return results

    async with Read(str(tmp_path / "bot.db"), limits=Limits(record=4_000_000)) as storage:
        for key, name, size in ((1, "fields", sqlite.LARGE + 1), (2, "parts", sqlite.LARGE + 1), (3, "small", 100)):
            async with Slot(storage, BOT, key) as slot:
                slot.data["text"] = "x" * (size if name != "parts" else 1)
                await slot.commit(parts={"text": "x" * size} if name != "fields" else {})
            large = name != "small"
            address = storage.address(BOT, key)
            for operation in (Get(address), Get(address, parts=True), Claim(address, "T", 30.0)):
                readers.clear()
                result = await storage.perform(operation)
                assert readers == ["stepwell-sqlite" if large else threading.main_thread().name], (name, operation)
                stored = result.record if isinstance(result, Claimed) else result
                assert storage.seal(address).data(stored.fields) == {"text": "x" * (size if name != "parts" else 1)}
            # Nothing is left open on the reader: it sees what is written next.
            await storage.set_data(BOT, key, {"n": 1})
            assert await storage.get_data(BOT, key) == {"n": 1}
