"""Redis: claim and commit against plain redis-py doing HMGET and one EVALSHA.

50 tasks, each on its own key, measured in turns: our operations on texts, like those of plain redis-py, and the whole
update with codec, order and lease renewal. The bound is for the whole update.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

from redis.asyncio import Redis
from tests.servers.redis import RedisCluster, RedisServer

from stepwell import open_storage
from stepwell.record import Change
from stepwell.slot import Slot
from stepwell.storage import Apply, Claim, Claimed, Guard

TASKS, UPDATES, ROUNDS = 50, 40, 9
#: The required ratio to plain redis-py.
TARGET = 2.0

OURS = "a whole update, one server"
Way = tuple[Callable[[int], Awaitable[None]], Callable[[], Awaitable[None]]]

#: Optimistic locking: write only if the version is the one that was read.
FLOOR = """
if redis.call('HGET', KEYS[1], 'version') ~= ARGV[1] and ARGV[1] ~= '' then return 0 end
redis.call('HINCRBY', KEYS[1], 'version', 1)
redis.call('HSET', KEYS[1], 'state', ARGV[2], 'count', ARGV[3])
return 1
"""


async def rate(update: Callable[[int], Awaitable[None]]) -> float:
    """Return the updates per second of all tasks together."""

    async def task(number: int) -> None:
        for _ in range(UPDATES):
            await update(number)

    start = time.perf_counter()
    await asyncio.gather(*(task(number) for number in range(TASKS)))
    return TASKS * UPDATES / (time.perf_counter() - start)


def operations(url: str) -> Way:
    storage = open_storage(url)

    async def update(number: int) -> None:
        address = storage.address("bench", (number, number))
        token = storage.ids()
        claimed: Claimed = await storage.perform(Claim(address, token, 30.0))
        fields = {} if claimed.record is None else claimed.record.fields
        state = "email" if fields.get("state") == "name" else "name"
        change = Change(write=storage.ids(), set={"state": state, "count": str(int(fields.get("count", 0)) + 1)})
        await storage.perform(Apply(address, change, Guard(token, claimed.base)))

    return update, storage.close


def whole_updates(url: str) -> Way:
    storage = open_storage(url)

    async def update(number: int) -> None:
        async with Slot(storage, "bench", (number, number)) as slot:
            slot.flow, slot.state = "form", "email" if slot.state == "name" else "name"
            slot.data["count"] = slot.data.get("count", 0) + 1
            await slot.commit()

    return update, storage.close


async def plain(server: RedisServer) -> Way:
    client = Redis(port=server.port, decode_responses=True)
    sha = await client.script_load(FLOOR)

    async def update(number: int) -> None:
        key = f"floor:{number}"
        version, state, count = await client.hmget(key, "version", "state", "count")
        state = "email" if state == "name" else "name"
        await client.evalsha(sha, 1, key, version or "", state, int(count or 0) + 1)

    return update, client.aclose


async def main() -> int:
    server, cluster = RedisServer(), RedisCluster()
    ways = {
        "plain redis-py, HMGET + EVALSHA": await plain(server),
        "claim + commit, one server": operations(server.url("?prefix=operations")),
        OURS: whole_updates(server.url()),
        "claim + commit, Cluster of 3": operations(cluster.url("?prefix=operations")),
        "a whole update, Cluster of 3": whole_updates(cluster.url()),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    try:
        for turn in range(ROUNDS + 1):
            for name, (update, _) in ways.items():
                found = await rate(update)
                if turn:  # the first round connects and loads the scripts
                    rates[name].append(found)
    finally:
        for _, close in ways.values():
            await close()
        cluster.stop()
        server.stop()
    floor = next(iter(rates.values()))
    missed = 0
    for name, found in rates.items():
        ratios = [mine / theirs for mine, theirs in zip(found, floor, strict=True)]
        ratio = statistics.median(ratios)
        print(f"{name:34} {statistics.median(found):8,.0f} updates/s   {ratio:5.2f} times the floor")
        missed += name == OURS and ratio < TARGET
    print(f"{OURS}: at least {TARGET:g} times the floor: {'MISSED' if missed else 'ok'}")
    return missed
