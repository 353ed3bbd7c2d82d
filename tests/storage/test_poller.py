"""Polling for due records in one worker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell import MemoryStorage
from stepwell.errors import Conflict, CorruptRecord, StorageUnavailable
from stepwell.record import Address, Change
from stepwell.storage import Apply, poller
from stepwell.storage.poller import DueTasks
from stepwell.storage.transport import outage
from stepwell.testing import Clock


async def overdue(storage: MemoryStorage, count: int) -> list[Address]:
    addresses = [storage.address("bot", key) for key in range(count)]
    for address in addresses:
        await storage.perform(Apply(address, Change(storage.ids(), set={}, deadline=0.0)))
    return addresses


async def test_an_address_has_one_task_at_a_time(clock: Clock) -> None:
    attended: list[Address] = []
    go = asyncio.Event()

    async def attend(address: Address) -> bool:
        attended.append(address)
        await go.wait()
        return True

    async with MemoryStorage(clock=clock) as storage:
        addresses = await overdue(storage, 3)
        tasks = DueTasks(storage, "bot", attend, what="things", waits=True, pauses=(1, 2))
        begun = await tasks.look()
        await asyncio.sleep(0)
        assert await tasks.look() == []
        go.set()
        assert await asyncio.gather(*begun) == [True] * 3
        assert sorted(attended) == addresses
        assert len(await tasks.look()) == 3, "they are still due"
        await tasks.stop()


@pytest.mark.parametrize("waits", [True, False])
async def test_a_poll_waits_for_a_free_task(clock: Clock, monkeypatch: pytest.MonkeyPatch, waits: bool) -> None:
    monkeypatch.setattr(poller, "PAGE", 3)
    at_once = most = 0

    async def attend(address: Address) -> bool:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.001)
        at_once -= 1
        return True

    async with MemoryStorage(clock=clock) as storage:
        await overdue(storage, 7)
        tasks = DueTasks(storage, "bot", attend, what="things", waits=waits, pauses=(1, 2), at_once=2)
        begun = await tasks.look()
        assert len(begun) == 7
        await asyncio.gather(*begun)
        assert most == 2


async def test_a_poll_ends_if_no_task_becomes_free_within_a_tick(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "TICK", 0.01)
    go = asyncio.Event()

    async def attend(address: Address) -> bool:
        return await go.wait()

    async with MemoryStorage(clock=clock) as storage:
        await overdue(storage, 7)
        tasks = DueTasks(storage, "bot", attend, what="things", waits=False, pauses=(1, 2), at_once=2)
        assert len(await tasks.look()) == 2
        assert await tasks.look() == []
        go.set()
        await tasks.stop()


async def test_the_number_of_remembered_pauses_is_bounded(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "MOST_PAUSES", 5)
    attended: list[Address] = []

    async def attend(address: Address) -> bool:
        attended.append(address)
        tasks.pause(address, (60.0, 300.0))
        return False

    async with MemoryStorage(clock=clock) as storage:
        await overdue(storage, 20)
        tasks = DueTasks(storage, "bot", attend, what="things", waits=False, pauses=(1, 2))
        await asyncio.gather(*await tasks.look())
        assert len(attended) == 20
        assert len(await tasks.look()) == 15
        await tasks.stop()


async def test_a_skipped_address_needs_no_free_task(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "AT_ONCE", 1)
    attended: list[Address] = []

    async def attend(address: Address) -> bool:
        attended.append(address)
        return True

    async with MemoryStorage(clock=clock) as storage:
        addresses = await overdue(storage, 6)
        mine = set(addresses[:5])
        tasks = DueTasks(storage, "bot", attend, what="things", waits=False, pauses=(1, 2), skip=mine.__contains__)
        await asyncio.gather(*await tasks.look())
        assert attended == addresses[5:]


async def test_pauses_grow_until_a_success(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    fails = True

    async def attend(address: Address) -> bool:
        (tasks.pause if fails else tasks.unpause)(address)
        return not fails

    async with MemoryStorage(clock=clock, sweep_every=None) as storage:
        await overdue(storage, 1)
        tasks = DueTasks(storage, "bot", attend, what="things", waits=False, pauses=(1.0, 4.0))
        tried: list[float] = []
        for _ in range(30):
            if begun := await tasks.look():
                tried.append(now)
                await asyncio.gather(*begun)
            now += 0.5
        assert tried == [0.0, 1.0, 3.0, 7.0, 11.0]
        fails, now = False, 100.0
        await asyncio.gather(*await tasks.look())
        fails = True
        await asyncio.gather(*await tasks.look())
        now += 1.0
        assert len(await tasks.look()) == 1, "the first pause again"
        await tasks.stop()


async def test_concurrent_polls_start_one_task_for_an_address(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "AT_ONCE", 2)
    busy: set[Address] = set()

    async def attend(address: Address) -> bool:
        assert address not in busy
        busy.add(address)
        await asyncio.sleep(0.001)
        busy.remove(address)
        return True

    async with MemoryStorage(clock=clock) as storage:
        await overdue(storage, 9)
        tasks = DueTasks(storage, "bot", attend, what="things", waits=True, pauses=(1, 2))
        looks = await asyncio.gather(*(tasks.look() for _ in range(3)))
        assert all(await asyncio.gather(*(task for begun in looks for task in begun)))
        await tasks.stop()
        assert not tasks._running


async def test_a_pause_never_exceeds_the_longest(clock: Clock) -> None:
    async def attend(address: Address) -> bool:
        raise AssertionError

    async with MemoryStorage(clock=clock) as storage:
        (address,) = await overdue(storage, 1)
        tasks = DueTasks(storage, "bot", attend, what="things", waits=False, pauses=(1.0, 300.0))
        for _ in range(2000):
            tasks.pause(address)
        assert tasks._pauses._ends[address][1] <= asyncio.get_running_loop().time() + 300.0
        assert await tasks.look() == []


async def test_every_error_is_logged_and_polling_continues(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(poller, "TICK", 0.001)
    attended = asyncio.Event()
    failures = [
        ZeroDivisionError("of the backend"),
        asyncio.CancelledError("by the driver"),
        CorruptRecord("bot/1", "a field", "is damaged"),
        Conflict("held elsewhere"),
        StorageUnavailable("unreachable"),
    ]

    class Storage(MemoryStorage):
        async def due(self, *args: Any, **options: Any) -> Any:
            if failures:
                raise failures.pop()
            return await super().due(*args, **options)

    async def attend(address: Address) -> bool:
        attended.set()
        raise ZeroDivisionError("of the task")

    async with Storage(clock=clock) as storage, asyncio.timeout(10):
        (address,) = await overdue(storage, 1)
        tasks = DueTasks(storage, "bot", attend, what="things", waits=False, pauses=(60.0, 60.0))
        tasks.start()
        await attended.wait()
        while address not in tasks._pauses:
            await asyncio.sleep(0)
        for words in ("of the backend", "by the driver", "is damaged", "held elsewhere", "unreachable", "of the task"):
            assert words in caplog.text
        await tasks.stop()


async def test_polling_is_retried_after_unexpected_errors_at_growing_intervals(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(poller, "TICK", 0.001)
    monkeypatch.setattr(poller, "LONGEST_TICK", 0.02)
    failures = 9

    class Storage(MemoryStorage):
        async def due(self, *args: Any, **options: Any) -> Any:
            nonlocal failures
            if failures:
                failures -= 1
                raise CorruptRecord("bot/1", "a field", "is damaged")
            attended.set()
            return []

    async def attend(address: Address) -> bool:
        return True

    attended = asyncio.Event()
    async with Storage(clock=clock) as storage, asyncio.timeout(10):
        tasks = DueTasks(storage, "bot", attend, what="things", waits=False, pauses=(1, 2))
        tasks.start()
        await attended.wait()
        await tasks.stop()
    pauses = [record.args[1] for record in caplog.records if isinstance(record.args, tuple)]
    assert pauses == [0.002, 0.004, 0.008, 0.016, 0.02, 0.02, 0.02, 0.02, 0.02]
    assert all(record.exc_info for record in caplog.records)


async def test_stop_cancels_running_tasks_and_polling_can_be_started_again(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poller, "TICK", 0.001)
    begun = cancelled = 0

    async def attend(address: Address) -> bool:
        nonlocal begun, cancelled
        begun += 1
        try:
            await asyncio.sleep(60)
        finally:
            cancelled += 1
        return True

    async with MemoryStorage(clock=clock) as storage, asyncio.timeout(10):
        await overdue(storage, 1)
        tasks = DueTasks(storage, "bot", attend, what="things", waits=False, pauses=(1, 2))
        for turn in range(1, 3):
            tasks.start()
            while begun < turn:
                await asyncio.sleep(0.001)
            await tasks.stop()
            assert (begun, cancelled) == (turn, turn)


async def test_an_unavailable_storage_is_logged_at_growing_intervals_and_once_it_is_back(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(poller, "TICK", 0.001)
    monkeypatch.setattr(outage, "WARN_EVERY", (0.05, 0.1))
    monkeypatch.setattr(outage, "CALM", 0.05)
    # The clock of the log advances with each look, so that the number of warnings does not depend on the machine.
    looks, now = 0, 0.0
    monkeypatch.setattr(outage, "monotonic", lambda: now)

    class Unreachable(MemoryStorage):
        unreachable = True

        async def due(self, *args: Any, **options: Any) -> Any:
            nonlocal looks, now
            looks += 1
            now += 0.002
            if self.unreachable:
                raise StorageUnavailable("no connection")
            return await super().due(*args, **options)

    async def attend(address: Address) -> bool:
        return True

    async with Unreachable(clock=clock) as storage:
        tasks = DueTasks(storage, "bot", attend, what="things", waits=True, pauses=(1, 2))
        tasks.start()
        async with asyncio.timeout(60):
            while caplog.text.count("things cannot be read: no connection") < 3:
                await asyncio.sleep(0.01)
            assert looks > 20
            storage.unreachable = False
            now += 1.0
            while "things can be read again" not in caplog.text:
                await asyncio.sleep(0.01)
        await tasks.stop()
    assert len(caplog.records) < looks / 5
