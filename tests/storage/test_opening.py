"""Opening and closing storages, by concurrent callers and in any order."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stepwell import MemoryStorage, Storage, sync
from stepwell.errors import StorageClosed, StorageUnavailable, WrongLoop
from stepwell.storage.operations import Claim, Claimed, Operation, Result
from tests.backends import Backend
from tests.storage.key_checks import skip_key_checks
from tests.until import yields


class Logged(MemoryStorage):
    """Logs the start and the end of each call, which takes 10 ms."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.log: list[str] = []
        self.fails = False

    async def perform(self, operation: Operation) -> Any:
        return await Storage.perform(self, operation)

    async def _slowly(self, name: str) -> None:
        self.log.append(f"{name}>")
        await asyncio.sleep(0.01)
        self.log.append(f"<{name}")

    async def _open(self) -> None:
        await self._slowly("open")
        if self.fails:
            raise OSError("no such place")

    async def _close(self) -> None:
        await self._slowly("close")

    async def run(self, operations: Sequence[Operation]) -> list[Result]:
        await self._slowly("run")
        return await super().run(operations)


def in_turn(log: list[str]) -> bool:
    """Return whether no call began before the previous one ended."""
    return all(one[:-1] == other[1:] for one, other in zip(log[::2], log[1::2], strict=True))


async def test_concurrent_callers_open_and_close_it_once() -> None:
    storage = Logged()
    await asyncio.gather(*(storage.get_data("bot", key) for key in range(5)), storage.open(), storage.open())
    await asyncio.gather(storage.close(), storage.close(), storage.close())
    assert storage.log == ["open>", "<open", "run>", "<run", "close>", "<close"]
    assert not storage.is_open


async def test_close_waits_for_running_operations_and_refuses_later_ones() -> None:
    storage = skip_key_checks(Logged())
    await storage.open()
    first = asyncio.create_task(storage.update_data("bot", 1, {"a": 1}))
    await yields(5)
    closing = asyncio.create_task(storage.close())
    await yields(5)
    second = asyncio.create_task(storage.get_data("bot", 1))
    assert await first == {"a": 1}
    await closing
    with pytest.raises(StorageClosed, match=r"open\(\)"):
        await second
    assert storage.log.count("open>") == 1
    await storage.open()
    assert await storage.get_data("bot", 1) == {"a": 1}
    assert in_turn(storage.log), storage.log
    await storage.close()


async def test_a_close_during_the_opening_leaves_it_closed() -> None:
    storage = Logged()
    openings = [asyncio.create_task(storage.open()) for _ in range(3)]
    await yields(5)
    closing = asyncio.create_task(storage.close())
    await asyncio.sleep(0)
    again = asyncio.create_task(storage.get_data("bot", 1))
    results = await asyncio.gather(*openings, again, closing, return_exceptions=True)
    assert {type(result) for result in results} <= {StorageClosed, type(None)}
    assert isinstance(results[3], StorageClosed)
    assert storage.log == ["open>", "<open", "close>", "<close"]
    assert not storage.is_open


async def test_a_storage_closed_before_its_first_use_stays_closed() -> None:
    storage = Logged()
    await storage.close()
    with pytest.raises(StorageClosed):
        await storage.get_data("bot", 1)
    assert storage.log == []


async def test_a_failed_opening_raises_in_all_waiters_and_can_be_retried() -> None:
    storage = Logged()
    storage.fails = True
    results = await asyncio.gather(*(storage.open() for _ in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [OSError] * 3
    storage.fails = False
    await storage.open()
    await storage.close()


async def test_cancelling_one_caller_of_open_does_not_affect_the_others() -> None:
    storage = Logged()
    tasks = [asyncio.create_task(storage.open()) for _ in range(3)]
    await yields(5)
    tasks[0].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [asyncio.CancelledError, type(None), type(None)]
    closers = [asyncio.create_task(storage.close()) for _ in range(2)]
    await yields(5)
    closers[0].cancel()
    await asyncio.gather(*closers, return_exceptions=True)
    assert storage.log == ["open>", "<open", "close>", "<close"]


def test_a_storage_can_be_used_in_another_loop_only_after_its_loop_is_closed() -> None:
    storage = Logged()
    asyncio.run(storage.update_data("bot", 1, {"a": 1}))

    async def many() -> list[Any]:
        return await asyncio.gather(*(storage.get_data("bot", 1) for _ in range(4)))

    assert asyncio.run(many()) == [{"a": 1}] * 4
    assert storage.log.count("open>") == 2

    async def in_another_loop() -> None:
        await storage.open()
        for use in (storage.open, storage.close, lambda: storage.get_data("bot", 1)):
            with pytest.raises(WrongLoop):
                await asyncio.to_thread(asyncio.run, use())
        await storage.close()

    asyncio.run(in_another_loop())


async def test_any_loop_may_close_a_storage_that_is_open_in_the_background_loop() -> None:
    storage = Logged()
    await asyncio.to_thread(sync, storage.update_data("bot", 1, {"a": 1}))
    assert storage.loop is not None
    assert storage.loop is not asyncio.get_running_loop()
    await storage.close()
    assert storage.log[-2:] == ["close>", "<close"]
    with pytest.raises(StorageClosed):
        await asyncio.to_thread(sync, storage.get_data("bot", 1))


async def test_sweeping_stops_with_closing_and_starts_once_with_opening() -> None:
    sweeps = 0

    class Counting(MemoryStorage):
        async def sweep(self, limit: int = 1000) -> Any:
            nonlocal sweeps
            sweeps += 1
            await asyncio.sleep(0.01)
            return await super().sweep(limit)

    storage = Counting(sweep_every=0.02)
    for _ in range(5):
        await storage.open()
        await asyncio.sleep(0.025)
        await storage.close()
    sweeps = 0
    opened = time.monotonic()
    await storage.open()
    await asyncio.sleep(0.3)
    # A sweep and the pause after it take 0.03 s together.
    assert sweeps <= (time.monotonic() - opened) / 0.03 + 2
    await storage.close()
    sweeps = 0
    await asyncio.sleep(0.06)
    assert sweeps == 0


async def test_a_sweep_that_finds_no_server_logs_one_line_and_is_repeated(caplog: pytest.LogCaptureFixture) -> None:
    swept = asyncio.Event()

    class Lost(MemoryStorage):
        sweeps = 0

        async def sweep(self, limit: int = 1000) -> Any:
            self.sweeps += 1
            if self.sweeps == 1:
                raise StorageUnavailable("the server cannot be reached", sent=False)
            swept.set()
            return await super().sweep(limit)

    async with Lost(sweep_every=0.01):
        await asyncio.wait_for(swept.wait(), 10)
    (record,) = caplog.records
    assert record.getMessage() == "sweeping failed: the server cannot be reached; next attempt in 0.01 s"
    assert record.exc_info is None


async def test_the_sweep_timer_does_not_keep_an_unused_storage_alive() -> None:
    storage = MemoryStorage()
    await storage.open()
    watched = weakref.ref(storage)
    del storage
    gc.collect()
    assert watched() is None


@pytest.mark.parametrize("cancelled", [False, True])
async def test_pending_operations_get_results_when_the_storage_closes(backend: Backend, cancelled: bool) -> None:
    storage = backend.storage()
    await storage.open()
    claims = [Claim(storage.address("bot", key), f"t{key}", 5.0) for key in range(40)]
    calls = [asyncio.create_task(storage.perform(claim)) for claim in claims[:20]]
    await yields(3)
    calls += [asyncio.create_task(storage.perform(claim)) for claim in claims[20:]]
    await asyncio.sleep(0)
    if cancelled:
        # Their claims are released by a batch that starts during the close.
        for task in calls[::2]:
            task.cancel()
    async with asyncio.timeout(20):
        await storage.close()
        results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results[1::2]] == [Claimed] * 20
    if cancelled:
        assert {type(result) for result in results[::2]} <= {asyncio.CancelledError, Claimed}
    assert not storage.is_open


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork()")
@pytest.mark.parametrize("closed", [True, False])
def test_using_a_storage_of_the_parent_in_a_forked_worker_raises(closed: bool, tmp_path: Path) -> None:
    # In a separate process, because this one has threads and must not be forked.
    code = f"""
import asyncio, os, stepwell
storage = stepwell.open_storage("sqlite:///{tmp_path}/bot.db")
run = asyncio.run if {closed} else stepwell.sync
run(storage.update_data("bot", 1, {{"a": 1}}))
if os.fork() == 0:
    try:
        stepwell.sync(storage.get_data("bot", 1))
    except stepwell.errors.WrongLoop as error:
        print(error.forked, error, flush=True)
    print(stepwell.sync(stepwell.MemoryStorage().update_data("bot", 1, {{"c": 3}})), flush=True)
    os._exit(0)
os.wait()
print(run(storage.update_data("bot", 1, {{"b": 2}})))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    forked, fresh, parent = ran.stdout.splitlines()
    assert forked.startswith("True this storage was opened before this process was forked")
    assert (fresh, parent) == ("{'c': 3}", "{'a': 1, 'b': 2}")
    assert ran.returncode == 0, ran.stderr
