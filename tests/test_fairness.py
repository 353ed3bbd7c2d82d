"""A key that one process uses all the time is handed over to others."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time

import pytest

from stepwell import Storage
from stepwell.errors import Busy
from stepwell.slot import Slot
from stepwell.slot.waiters import turn_of
from stepwell.storage import Claim, Claimed, Release, Taken
from tests.backends import Backend
from tests.until import until

#: Seconds that a handler takes. A waiter polls every tenth of a second, so shorter ones are overtaken more often.
HANDLER = 0.1


async def hold(storage: Storage, name: str, order: list[str]) -> None:
    async with Slot(storage, "bot", 1) as slot:
        slot.data[name] = slot.data.get(name, 0) + 1
        await asyncio.sleep(HANDLER)
        await slot.commit()
        order.append(name)


async def test_a_process_with_many_waiters_lets_another_in(shared_backend: Backend) -> None:
    url = shared_backend.place()
    hot, other = shared_backend.storage(url), shared_backend.storage(url)
    await asyncio.gather(hot.open(), other.open())
    order: list[str] = []
    waiters = [asyncio.create_task(hold(hot, "hot", order)) for _ in range(20)]
    await until(lambda: order)
    await hold(other, "other", order)
    # It checks for waiters every quarter of a second, and one handler is running.
    assert len(order) <= 8, order
    await asyncio.gather(*waiters)
    assert await other.get_data("bot", 1) == {"hot": 20, "other": 1}


async def test_a_process_that_takes_a_key_again_and_again_lets_another_in(shared_backend: Backend) -> None:
    url = shared_backend.place()
    hot, other = shared_backend.storage(url), shared_backend.storage(url)
    await asyncio.gather(hot.open(), other.open())
    order: list[str] = []

    async def again_and_again() -> None:
        while "other" not in order and len(order) < 20:
            await hold(hot, "hot", order)

    loop = asyncio.create_task(again_and_again())
    await until(lambda: len(order) >= 2)
    await hold(other, "other", order)
    assert len(order) <= 9, order
    await loop


async def test_two_processes_with_many_waiters_take_turns(shared_backend: Backend) -> None:
    url = shared_backend.place()
    storages = {name: shared_backend.storage(url) for name in "ab"}
    await asyncio.gather(*(storage.open() for storage in storages.values()))
    order: list[str] = []
    await asyncio.gather(*(hold(storages[name], name, order) for name in "ab" for _ in range(8)))
    turns = sum(one != two for one, two in itertools.pairwise(order))
    assert turns >= 3, order


async def test_a_killed_waiter_delays_others_only_briefly(shared_backend: Backend) -> None:
    url = shared_backend.place()
    storage, dead = shared_backend.storage(url), shared_backend.storage(url)
    await asyncio.gather(storage.open(), dead.open())
    order: list[str] = []
    await storage.perform(Claim(storage.address("bot", 1), "elsewhere", 30.0))
    waiting = asyncio.create_task(hold(dead, "dead", order))
    while not isinstance(await storage.perform(Claim(turn_of(storage.address("bot", 1)), "probe", 0.001)), Taken):
        await storage.perform(Release(turn_of(storage.address("bot", 1)), "probe"))
        await asyncio.sleep(0.01)
    # As after kill -9: it releases nothing.
    await dead.close()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await storage.perform(Release(storage.address("bot", 1), "elsewhere"))
    started = time.monotonic()
    await asyncio.gather(hold(storage, "a", order), hold(storage, "b", order))
    assert time.monotonic() - started < 10
    assert order == ["a", "b"]


async def test_a_waiter_that_gives_up_or_is_cancelled_leaves_its_place(shared_backend: Backend) -> None:
    url = shared_backend.place()
    storage = shared_backend.storage(url)
    await storage.open()
    address = storage.address("bot", 1)
    await storage.perform(Claim(address, "elsewhere", 30.0))
    with pytest.raises(Busy):
        async with Slot(storage, "bot", 1, wait=0.3):
            pytest.fail("it was held")
    waiting = asyncio.create_task(hold(storage, "a", []))
    await asyncio.sleep(0.3)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert isinstance(await storage.perform(Claim(turn_of(address), "probe", 1.0)), Claimed)


PROCESS = """
import asyncio, sys
from stepwell import open_storage
from stepwell.slot import Slot

async def main(url, updates):
    async def update():
        async with Slot(storage, "bot", 1) as slot:
            await asyncio.sleep(0.3)
            found = slot.data.get("count", 0)
            slot.data["count"] = found + 1
            await slot.commit()
        return found
    async with open_storage(url) as storage:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        found = await asyncio.gather(*(update() for _ in range(updates)))
        print(max(found), flush=True)

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


async def test_one_update_does_not_wait_for_all_updates_of_another_process(shared_backend: Backend) -> None:
    url = shared_backend.place()
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            PROCESS,
            url,
            str(updates),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        for updates in (20, 1)
    ]
    try:
        async with asyncio.timeout(60):
            for process in processes:
                assert await reply(process) == b"ready\n"
            for process in processes:
                assert process.stdin is not None
                process.stdin.write(b"go\n")
                await asyncio.sleep(0.5)
            # The number of updates before this one.
            assert int(await reply(processes[1])) < 12
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.communicate()


async def reply(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    return await process.stdout.readline()
