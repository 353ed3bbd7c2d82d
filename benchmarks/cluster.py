"""Redis Cluster: whole updates on three masters against redis-py's cluster client doing HMGET and one EVALSHA.

50 tasks, each on its own key, measured in turns. The client's CPU time per update is compared with that on a single
server and on a Cluster of one master.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable

from redis.asyncio import RedisCluster as Client
from tests.servers.redis import RedisCluster, RedisServer

from benchmarks.redis import FLOOR, TASKS, UPDATES, Way, rate, whole_updates

ROUNDS = 41
#: The required ratio to redis-py's cluster client.
TARGET = 1.5
#: How much more CPU time of the client an update may take with three nodes than with one.
MORE = 1.15

PLAIN, SINGLE, ONE, THREE = "redis-py's cluster client", "a single server", "a Cluster of 1", "a Cluster of 3"


async def plain(cluster: RedisCluster) -> Way:
    """Return an update with redis-py's cluster client: optimistic locking, written by hand."""
    client = Client(host="127.0.0.1", port=cluster.nodes[0].port, decode_responses=True)
    await client.initialize()
    sha = await client.script_load(FLOOR)

    async def update(number: int) -> None:
        key = f"floor:{number}"
        version, state, count = await client.hmget(key, ["version", "state", "count"])
        state = "email" if state == "name" else "name"
        await client.evalsha(sha, 1, key, version or "", state, int(count or 0) + 1)

    return update, client.aclose


async def measured(update: Callable[[int], Awaitable[None]]) -> tuple[float, float]:
    """Return the updates per second, and the client's CPU time per update in microseconds."""
    start = time.process_time()
    found = await rate(update)
    return found, (time.process_time() - start) / (TASKS * UPDATES) * 1e6


async def main() -> int:
    server, one, three = RedisServer(), RedisCluster(masters=1, replicas=0), RedisCluster(replicas=0)
    ways = {
        PLAIN: await plain(three),
        SINGLE: whole_updates(server.url()),
        ONE: whole_updates(one.url()),
        THREE: whole_updates(three.url()),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    times: dict[str, list[float]] = {name: [] for name in ways}
    try:
        for turn in range(ROUNDS + 1):
            for name, (update, _) in ways.items():
                found, cpu = await measured(update)
                if turn:  # the first round connects and loads the scripts
                    rates[name].append(found)
                    times[name].append(cpu)
    finally:
        for _, close in ways.values():
            await close()
        for each in (three, one, server):
            each.stop()
    for name in ways:
        ratio = _median_ratio(rates[name], rates[PLAIN])
        print(
            f"{name:27} {statistics.median(rates[name]):8,.0f} updates/s   {ratio:5.2f} times redis-py   "
            f"{statistics.median(times[name]):5.0f} us CPU of the client"
        )
    speed = _median_ratio(rates[THREE], rates[PLAIN])
    more = _median_ratio(times[THREE], times[ONE])
    print(f"against a single server: {_median_ratio(times[THREE], times[SINGLE]):.2f} times its CPU time")
    print(f"{THREE}: {speed:.2f} times redis-py, at least {TARGET:g}: {'MISSED' if speed < TARGET else 'ok'}")
    print(f"{THREE}: {more:.2f} times the CPU time of {ONE}, at most {MORE:g}: {'MISSED' if more > MORE else 'ok'}")
    return (speed < TARGET) + (more > MORE)


def _median_ratio(mine: list[float], theirs: list[float]) -> float:
    return statistics.median([one / other for one, other in zip(mine, theirs, strict=True)])
