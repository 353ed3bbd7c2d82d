"""What was acknowledged is there after the server was killed, and nothing is made twice when connections break."""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

import asyncpg

from stepwell import Storage, open_storage
from stepwell.errors import LeaseLost, OutcomeUnknown, StorageUnavailable
from stepwell.slot import Slot
from stepwell.storage import Get
from tests.servers.postgres import PostgresServer, shared

LARGE_DOSE = os.environ.get("STEPWELL_DOSE") == "large"
KILLS = 30 if LARGE_DOSE else 2
CUTS = 5000 if LARGE_DOSE else 100


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
                while sum(map(len, acknowledged.values())) < before + 300:
                    await asyncio.sleep(0.01)
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
                # Two fields of one write: none without the other.
                assert found["last"] in (f"n{number}" for number in range(max(numbers), max(numbers) + 2))
        assert sum(map(len, acknowledged.values())) >= 300 * KILLS
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
            # A claim is not worth waiting for the disk: the crash may take it, and then nothing was written.
            continue
        except (OutcomeUnknown, StorageUnavailable) as error:
            raise AssertionError(f"it was back within the patience, but: {error}") from error
        acknowledged.append(number)


async def test_connections_that_break_neither_lose_nor_double_a_write() -> None:
    seed = int(os.environ.get("STEPWELL_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
    print(f"STEPWELL_SEED={seed}")
    chance = random.Random(seed)
    admin = await asyncpg.connect(shared().url())
    try:
        name = f"cut_{seed}"
        async with open_storage(f"{shared().url()}?schema={name}", patience=30) as storage:
            await storage.update_data("bot", 1, {})
            first = await _version(storage)
            writes = 0
            cuts = 0

            async def work(task: int) -> None:
                nonlocal writes
                number = 0
                while cuts < CUTS:
                    number += 1
                    merged = await storage.update_data("bot", 1, {f"t{task}": number})
                    assert merged[f"t{task}"] == number
                    writes += 1

            async def cut() -> None:
                nonlocal cuts
                while cuts < CUTS:
                    await asyncio.sleep(0.02 + chance.random() * 0.02)
                    ended = await admin.fetchval(
                        "select count(pg_terminate_backend(pid)) from pg_stat_activity "
                        "where application_name = 'stepwell' and query like '%' || $1 || '%'",
                        name,
                    )
                    cuts += ended

            await asyncio.gather(cut(), *(work(task) for task in range(8)))
            assert writes > CUTS
            # Each applied write counts the version up by exactly one.
            assert await _version(storage) - first == writes
    finally:
        await admin.close()


async def _version(storage: Storage) -> int:
    stored: Any = await storage.perform(Get(storage.address("bot", 1)))
    number: int = stored.version.number
    return number
