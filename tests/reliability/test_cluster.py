"""A Redis Cluster that changes under load loses and repeats nothing, and users wait little longer than they must."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from stepwell import Storage, open_storage
from stepwell.storage.redis.cluster import SLOTS
from stepwell.storage.redis.wire import tag_of
from tests.reliability.dose import dose, seeded
from tests.reliability.failovers import LONGER, Prober, check_totals, longest_pause, pause_of, progress
from tests.reliability.workers import Worker, Workers
from tests.servers.redis import RedisCluster, RedisServer
from tests.until import until

#: Users of each of the two workers.
USERS = dose("USERS", 5, 25)
URL = "?durability=wait&patience=60"
#: Seconds for which a slow node is stopped: fewer than those after which it is replaced.
SLOW = 0.8
#: Failovers of one load. Its logs grow, and they are read again and again.
EACH = 5
#: Makes a master fail; gets the master and its replica.
Fault: TypeAlias = Callable[[RedisServer, RedisServer], None]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    # Masters go on while another one is replaced.
    cluster = RedisCluster(options="--cluster-require-full-coverage no --enable-debug-command yes")
    yield cluster
    cluster.stop()


class Load:
    """Two workers with users."""

    def __init__(self, cluster: RedisCluster, storage: Storage, talking: list[Worker]) -> None:
        self._cluster = cluster
        self._storage = storage
        self._talking = talking
        #: The hash tag of each user.
        self.tags: dict[int, int] = {}

    async def progress(self, updates: int, prober: Prober | None = None) -> None:
        now = time.monotonic()
        await progress(self._talking, 2 * USERS, [now + 1e9] if prober is None else prober.times, updates)

    async def find_tags(self) -> None:
        await self.progress(1)
        async for entry in self._storage.scan("talk"):
            self.tags[entry.key[-1]] = tag_of(self._storage.address("talk", entry.key))

    def users_of(self, tags: set[int]) -> set[int]:
        return {user for user, tag in self.tags.items() if tag in tags}

    def check_pauses(self, since: float, tags: set[int], allowed: float, what: str, elsewhere: float = 0.0) -> None:
        """Check how long the users of these hash tags waited, and that no other user waited for them.

        ``elsewhere``: how long a plain client of another hash tag waited.
        """
        affected = self.users_of(tags)
        ours = longest_pause(self._talking, since, affected)
        others = longest_pause(self._talking, since, self.tags.keys() - affected)
        print(f"{what}: {allowed:.2f} s, users at most {ours:.2f} s, users of other nodes at most {others:.2f} s")
        assert ours <= allowed + LONGER
        assert others <= elsewhere + LONGER


@asynccontextmanager
async def load(cluster: RedisCluster, workers: Workers, prefix: str, stop: Path) -> AsyncIterator[Load]:
    """Run users until the end of the block, and then check their totals."""
    await asyncio.to_thread(cluster.until_ready)
    url = cluster.url(f"{URL}&prefix={prefix}")
    talking = [workers.start("converse_on", url, users=USERS, first=first, stop=str(stop)) for first in (1, 1 + USERS)]
    async with open_storage(url, sweep_every=None) as storage:
        users = Load(cluster, storage, talking)
        await users.find_tags()
        yield users
        stop.touch()
        for worker in talking:
            await worker.wait_for("done", timeout=120)
        print(f"{await check_totals(storage, talking)} updates")


def tags_of(cluster: RedisCluster, node: RedisServer) -> set[int]:
    """Return the hash tags of a master."""
    return {tag for tag, port in enumerate(cluster.ports_of(SLOTS)) if port == node.port}


def is_master(node: RedisServer) -> bool:
    with node.client() as client:
        return bool(client.info("replication")["role"] == "master")


def kill(master: RedisServer, replica: RedisServer) -> None:
    master.process.kill()


def fail_over(master: RedisServer, replica: RedisServer) -> None:
    with replica.client() as client:
        client.execute_command("CLUSTER", "FAILOVER")


def suspend(master: RedisServer, replica: RedisServer) -> None:
    master.process.pause()


def cut_off(master: RedisServer, replica: RedisServer) -> None:
    """Cut a master off from the other nodes. Clients and its replica still reach it."""
    with master.client() as client:
        client.execute_command("DEBUG", "DROP-CLUSTER-PACKET-FILTER", -2)


def restart(master: RedisServer) -> None:
    # In this thread: the server ends with the thread that has started it.
    master.start()


def rejoin(master: RedisServer) -> None:
    # A node whose packets were dropped may keep its old view of the others for ever, so it starts anew.
    master.process.kill()
    restart(master)


@pytest.mark.parametrize(
    ("fault", "repair", "most"),
    [
        pytest.param(kill, restart, 30, id="kill"),
        pytest.param(fail_over, lambda master: None, 10, id="manual"),
        pytest.param(suspend, lambda master: master.process.resume(), 10, id="suspend"),
        pytest.param(cut_off, rejoin, 10, id="partition"),
    ],
)
async def test_replaced_masters_under_load_lose_and_repeat_nothing(
    fault: Fault,
    repair: Callable[[RedisServer], Any],
    most: int,
    cluster: RedisCluster,
    workers: Workers,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    choose = seeded()
    name = request.node.callspec.id
    total = dose("FAILOVERS", 1, most)
    for first in range(0, total, EACH):
        async with load(cluster, workers, f"{name}-{first}", tmp_path / f"stop-{first}") as users:
            for number in range(first, min(first + EACH, total)):
                await users.progress(3)
                tag = choose.choice(sorted(users.tags.values()))
                await replace_master(cluster, users, tag, fault, repair, f"{name} {number + 1}")


async def replace_master(
    cluster: RedisCluster, users: Load, tag: int, fault: Fault, repair: Callable[[RedisServer], Any], what: str
) -> None:
    """Let a replica take over from the master of a hash tag, and check how long users waited."""
    master = cluster.master_of(SLOTS[tag])
    replica = cluster.replica_of(master)
    tags = tags_of(cluster, master)
    prober = Prober([master, replica], f"{{{tag:02}}}probe")
    try:
        await users.progress(1, prober)
        begun = time.monotonic()
        fault(master, replica)
        await until(lambda: asyncio.to_thread(is_master, replica))
        # Without a replica, the new master acknowledges nothing.
        repair(master)
        await users.progress(2, prober)
        users.check_pauses(begun, tags, pause_of(prober.times, begun), what)
    finally:
        await asyncio.to_thread(prober.stop)
    await asyncio.to_thread(cluster.until_ready)


async def test_a_slow_node_under_load_delays_its_own_users_only(
    cluster: RedisCluster, workers: Workers, tmp_path: Path
) -> None:
    choose = seeded()
    async with load(cluster, workers, "slow", tmp_path / "stop") as users:
        for number in range(dose("STOPS", 1, 10)):
            await users.progress(3)
            master = cluster.master_of(SLOTS[choose.choice(sorted(users.tags.values()))])
            tags = tags_of(cluster, master)
            begun = time.monotonic()
            master.process.pause()
            await asyncio.sleep(SLOW)
            master.process.resume()
            stopped = time.monotonic() - begun
            await users.progress(2)
            users.check_pauses(begun, tags, stopped, f"stop {number + 1}")


@pytest.mark.parametrize("way", ["keys", "atomic"])
async def test_slots_that_move_to_a_new_node_under_load_lose_and_repeat_nothing(
    way: str, cluster: RedisCluster, workers: Workers, tmp_path: Path
) -> None:
    choose = seeded()
    if way == "atomic" and not cluster.moves_atomically():
        pytest.skip("this server has no atomic slot migration")
    # In this thread: the servers end with the thread that has started them.
    added = cluster.add_shard()
    async with load(cluster, workers, f"move-{way}", tmp_path / "stop") as users:
        for number in range(dose("RESHARDINGS", 1, 5)):
            present = sorted(set(users.tags.values()))
            other = choose.choice(sorted(set(present) - tags_of(cluster, added)))
            moved = choose.sample([tag for tag in present if tag != other], dose("SLOTS", 3, 16))
            target = added if number % 2 == 0 else cluster.master_of(SLOTS[other])
            # All nodes write their configuration to the disk for each slot, and answer nobody meanwhile.
            prober = Prober(cluster.nodes, f"{{{other:02}}}probe")
            try:
                await users.progress(3, prober)
                begun = time.monotonic()
                longest = 0.0
                for tag in moved:
                    start = time.monotonic()
                    await asyncio.to_thread(cluster.move_slot, SLOTS[tag], target, atomic=way == "atomic")
                    longest = max(longest, time.monotonic() - start)
                await users.progress(2, prober)
                what = f"resharding {number + 1}, the slowest of {len(moved)} slots"
                users.check_pauses(begun, set(moved), longest, what, pause_of(prober.times, begun))
            finally:
                await asyncio.to_thread(prober.stop)
