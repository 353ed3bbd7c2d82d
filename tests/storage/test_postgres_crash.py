"""Tests that killed servers and broken connections neither lose nor repeat writes."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator

import pytest

from stepwell import State, Storage, open_storage
from stepwell.errors import LeaseLost, OutcomeUnknown, StorageUnavailable
from stepwell.record import Change
from stepwell.slot import Slot
from stepwell.storage import Applied, Apply
from tests.servers.postgres import PostgresServer, shared
from tests.servers.proxy import Proxy
from tests.until import until

LARGE_DOSE = os.environ.get("STEPWELL_DOSE") == "large"
KILLS = 30 if LARGE_DOSE else 2
CUTS = 5000 if LARGE_DOSE else 50


async def test_killing_the_server_under_load_loses_no_acknowledged_write() -> None:
    server = PostgresServer(durable=True).start()
    try:
        acknowledged: dict[int, list[int]] = {task: [] for task in range(20)}
        async with open_storage(server.url(), patience=30, connect_timeout=1) as storage:
            for _ in range(KILLS):
                over = asyncio.Event()
                tasks = [
                    asyncio.ensure_future(_write(storage, task, acknowledged[task], over)) for task in acknowledged
                ]
                before = sum(map(len, acknowledged.values()))
                await until(lambda: sum(map(len, acknowledged.values())) >= before + 150)
                server.kill()
                await asyncio.to_thread(server.start)
                await asyncio.sleep(0.2)
                over.set()
                await asyncio.gather(*tasks)
            for task, numbers in acknowledged.items():
                found = await storage.get_data("bot", task)
                assert found is not None
                lost = [number for number in numbers if found.get(f"n{number}") != number]
                assert not lost, f"task {task} lost {lost}"
                # Both fields of a write are stored, or neither.
                assert found["last"] in (f"n{number}" for number in range(max(numbers), max(numbers) + 2))
        assert sum(map(len, acknowledged.values())) >= 150 * KILLS
    finally:
        server.stop()


async def _write(storage: Storage, task: int, acknowledged: list[int], over: asyncio.Event) -> None:
    number = max(acknowledged, default=-1)
    while not over.is_set():
        number += 1
        try:
            if number % 2:
                await storage.update_data("bot", task, {f"n{number}": number, "last": f"n{number}"})
            else:
                async with Slot(storage, "bot", task) as slot:
                    slot.data[f"n{number}"] = number
                    slot.data["last"] = f"n{number}"
                    await slot.commit()
        except LeaseLost:
            # A crash may lose a claim; then nothing was written.
            continue
        except (OutcomeUnknown, StorageUnavailable) as error:
            raise AssertionError(f"the server was back within the patience, but: {error}") from error
        acknowledged.append(number)


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    seed = int(os.environ.get("STEPWELL_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
    print(f"STEPWELL_SEED={seed}")
    async with Proxy(shared().port, seed=seed) as proxy:
        yield proxy


def through(proxy: Proxy) -> Storage:
    url = f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres?schema=cut_{proxy.port}"
    return open_storage(url, sweep_every=None, patience=30)


async def test_cut_connections_neither_lose_nor_repeat_a_write(proxy: Proxy) -> None:
    async with through(proxy) as storage:
        address = storage.address("bot", "hot-key")
        seal = storage.seal(address)

        async def merge(name: str) -> int:
            change = Change(write=storage.ids(), set=seal.fields({name: 1}), limit=1 << 24)
            applied: Applied = await storage.perform(Apply(address, change))
            return applied.version.number

        first = await merge("first")
        proxy.cut_rate, proxy.cut_what, proxy.most_cuts = 0.4, b"hot-key", CUTS
        versions: list[int] = []

        async def work(task: int) -> None:
            number = 0
            while proxy.cuts < CUTS or number < 20:
                number += 1
                versions.append(await merge(f"{task}/{number}"))

        await asyncio.gather(*(work(task) for task in range(8)))
        data = await storage.get_data("bot", "hot-key")
    assert proxy.cuts >= CUTS
    assert data is not None
    assert len(data) == len(versions) + 1
    # Every write was acknowledged once and increased the version by one.
    assert sorted(versions) == list(range(first + 1, first + 1 + len(versions)))


async def test_cut_claims_and_commits_apply_each_update_once(proxy: Proxy) -> None:
    async with through(proxy) as storage:
        await storage.set_state("bot", "hot-key", State("f", "s", {"n": 0}))
        proxy.cut_rate, proxy.cut_what, proxy.most_cuts = 0.3, b"hot-key", CUTS // 5

        async def update() -> None:
            async with Slot(storage, "bot", "hot-key") as slot:
                slot.data["n"] += 1
                await slot.commit()

        done = 0
        while proxy.cuts < CUTS // 5:
            await asyncio.gather(*(update() for _ in range(10)))
            done += 10
        assert await storage.get_data("bot", "hot-key") == {"n": done}
