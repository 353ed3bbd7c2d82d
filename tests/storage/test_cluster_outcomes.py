"""In a Cluster each operation has its own outcome: a lost node or a moving slot affects its own records only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterator
from typing import Any

import pytest

from stepwell import Storage, open_storage
from stepwell.errors import OutcomeUnknown, StorageError, StorageUnavailable
from stepwell.record import Change
from stepwell.slot import Slot
from stepwell.slot.waiters import turn_of
from stepwell.storage import Applied, Apply, Claim, Claimed, Get
from stepwell.storage.redis.cluster import SLOTS
from stepwell.storage.redis.server import RedisNode
from stepwell.storage.redis.wire import TAGS, tag_of
from stepwell.storage.transport.batch import Batch
from tests.insides import server_of
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisCluster
from tests.storage.key_checks import skip_key_checks
from tests.storage.test_redis_cluster import _slot_between_nodes
from tests.until import until

BOT = "bot"


@pytest.fixture(scope="module")
def masters() -> Iterator[RedisCluster]:
    """Three masters without replicas. They wait long before they declare a node lost."""
    cluster = RedisCluster(replicas=0, node_timeout=60_000)
    yield cluster
    cluster.stop()


def _node(storage: Storage, key: int) -> RedisNode:
    node: RedisNode = server_of(storage).owners[tag_of(storage.address(BOT, key))]
    return node


def _keys_by_node(storage: Storage) -> dict[int, list[int]]:
    """Return twenty keys of each node, by its port."""
    keys: dict[int, list[int]] = {}
    for key in range(500):
        keys.setdefault(_node(storage, key).port, []).append(key)
    return {port: found[:20] for port, found in keys.items()}


def _forget_owners(storage: Storage) -> None:
    """Let the next operations share one lane, as after a change of the map."""
    server_of(storage).owners = [None] * TAGS


async def _gathered(calls: list[Awaitable[Any]]) -> list[Any]:
    return await asyncio.gather(*calls, return_exceptions=True)


async def test_only_the_writes_that_were_sent_to_a_silent_node_have_an_unknown_outcome(masters: RedisCluster) -> None:
    url = masters.url("?prefix=silent&patience=3&timeout=1.5")
    async with open_storage(url, sweep_every=None) as storage:
        skip_key_checks(storage, BOT)
        by_node = _keys_by_node(storage)
        everything = [storage.update_data(BOT, key, {"n": 0}) for keys in by_node.values() for key in keys]
        await asyncio.gather(*everything)
        victim = masters.nodes[0]
        dead = by_node.pop(victim.port)
        alive = [key for keys in by_node.values() for key in keys]
        victim.process.pause()
        try:
            _forget_owners(storage)
            outcomes = await _gathered([storage.update_data(BOT, key, {"n": 1}) for key in [*alive, *dead]])
        finally:
            victim.process.resume()
        assert outcomes[: len(alive)] == [{"n": 1}] * len(alive)
        assert {type(error) for error in outcomes[len(alive) :]} == {OutcomeUnknown}
        for key in dead:
            # Each was applied once or not at all, and is not applied later.
            assert await storage.update_data(BOT, key, {"m": 1}) in ({"n": 0, "m": 1}, {"n": 1, "m": 1})


async def test_a_claim_that_was_refused_for_its_node_is_granted_once_the_node_answers(masters: RedisCluster) -> None:
    async with open_storage(masters.url("?prefix=claims&timeout=0.5&patience=20"), sweep_every=None) as storage:
        by_node = _keys_by_node(storage)
        victim = masters.nodes[1]
        victim.process.pause()
        _forget_owners(storage)
        claims = {
            key: asyncio.create_task(storage.perform(Claim(storage.address(BOT, key), f"t{key}", 30.0)))
            for keys in by_node.values()
            for key in keys
        }
        lost = {claims[key] for key in by_node[victim.port]}
        await asyncio.wait(set(claims.values()) - lost)
        assert not any(task.done() for task in lost)
        victim.process.resume()
        assert {type(claimed) for claimed in await asyncio.gather(*claims.values())} == {Claimed}


@pytest.mark.parametrize("query", ["", "&durability=wait"], ids=["fast", "wait"])
async def test_updates_on_living_nodes_go_on_while_another_node_is_silent(masters: RedisCluster, query: str) -> None:
    async with open_storage(
        masters.url(f"?prefix=isolated{len(query)}{query}&timeout=20"), sweep_every=None
    ) as storage:
        if query:
            # There are no replicas here, so nothing would be acknowledged.
            storage._wait = 1  # type: ignore[attr-defined]
        by_node = _keys_by_node(storage)
        victim = masters.nodes[2]
        dead = by_node.pop(victim.port)
        victim.process.pause()
        try:
            stuck = [asyncio.create_task(_update(storage, key)) for key in dead]
            for _ in range(3):
                await _gathered([_update(storage, key) for keys in by_node.values() for key in keys])
            assert not any(task.done() for task in stuck)
        finally:
            victim.process.resume()
        await _gathered([*stuck])
        for keys in (*by_node.values(), dead):
            for key in keys:
                assert await storage.get_data(BOT, key) == {"n": 1 if keys is dead else 3}


async def test_an_address_and_the_turn_of_its_waiters_are_on_one_node(masters: RedisCluster) -> None:
    async with open_storage(masters.url("?prefix=turns"), sweep_every=None) as storage:
        for key in (1, "a/b", ("x", 2)):
            address = storage.address(BOT, key)
            assert tag_of(turn_of(address)) == tag_of(address)


async def _update(storage: Storage, key: int) -> None:
    async with Slot(storage, BOT, key, wait=30) as slot:
        slot.data["n"] = slot.data.get("n", 0) + 1
        await slot.commit()


async def test_a_moving_slot_does_not_delay_the_other_slots_of_its_node(masters: RedisCluster) -> None:
    async with open_storage(masters.url("?prefix=moving&patience=30"), sweep_every=None) as storage:
        port = _node(storage, 0).port
        others = [key for key in _keys_by_node(storage)[port] if _tag(storage, key) != _tag(storage, 0)]
        await _update(storage, 0)
        with _slot_between_nodes(masters, SLOTS[_tag(storage, 0)]) as (source, target):
            keys = source.execute_command("CLUSTER", "GETKEYSINSLOT", SLOTS[_tag(storage, 0)], 100)
            source.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
            moving = asyncio.create_task(_update(storage, 0))
            for _ in range(3):
                await asyncio.gather(*(_update(storage, key) for key in others))
            assert not moving.done()
        await moving
        assert await storage.get_data(BOT, 0) == {"n": 2}
        assert _node(storage, 0).port == target.port


def _tag(storage: Storage, key: int) -> int:
    return tag_of(storage.address(BOT, key))


async def test_writes_follow_a_moved_slot_even_if_their_lane_is_never_idle(masters: RedisCluster) -> None:
    async with open_storage(masters.url("?prefix=busy"), sweep_every=None) as storage:
        port = _node(storage, 0).port
        stop = asyncio.Event()
        made = 0

        async def load(key: int) -> None:
            nonlocal made
            while not stop.is_set():
                applied = await storage.perform(_merge(storage, key))
                assert applied.version.write
                made += 1

        keys = [0, 0, 0, *_keys_by_node(storage)[port][:10]]
        loads = [asyncio.create_task(load(key)) for key in keys]
        with _slot_between_nodes(masters, SLOTS[_tag(storage, 0)]) as (source, target):
            found = source.execute_command("CLUSTER", "GETKEYSINSLOT", SLOTS[_tag(storage, 0)], 100)
            if found:
                source.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *found)
        write = _merge(storage, 0)
        await until(lambda: storage.lane_of(write) == ("writes", RedisNode("127.0.0.1", target.port)))
        count = made
        await until(lambda: made > count + 50)
        stop.set()
        await asyncio.gather(*loads)


def _merge(storage: Storage, key: int, **change: Any) -> Apply:
    address = storage.address(BOT, key)
    return Apply(address, Change(write=storage.ids(), set=storage.seal(address).fields({"n": 1}), **change))


async def test_a_call_to_a_node_that_lost_its_slots_is_sent_to_the_new_node_before_its_timeout(
    masters: RedisCluster,
) -> None:
    async with open_storage(masters.url("?prefix=replaced&timeout=60"), sweep_every=None) as storage:
        await storage.update_data(BOT, 1, {"n": 1})
        async with Proxy(_node(storage, 1).port) as proxy:
            proxy.fall_silent()
            # As if this node had been replaced while it did not answer.
            server_of(storage).owners[_tag(storage, 1)] = RedisNode("127.0.0.1", proxy.port)
            async with asyncio.timeout(30):
                assert await storage.update_data(BOT, 1, {"m": 1}) == {"n": 1, "m": 1}
            assert proxy.round_trips


async def test_the_lease_of_a_record_is_read_although_its_node_was_not_known(masters: RedisCluster) -> None:
    async with open_storage(masters.url("?prefix=beside"), sweep_every=None) as storage:
        await storage.perform(Claim(storage.address(BOT, 0), "token", 30.0))
        _forget_owners(storage)
        assert (await storage.beside(storage.address(BOT, 0))).holder == "token"


async def test_operations_of_one_node_are_one_call(masters: RedisCluster) -> None:
    async with open_storage(masters.url("?prefix=joined"), sweep_every=None) as storage:
        writes = _writes_of_a_node(storage)
        node = next(server for server in masters.nodes if server.port == _node(storage, 0).port)
        await storage.run(Batch.of(writes, "lane", 1))
        with node.client() as client:
            before = client.info("commandstats")["cmdstat_evalsha"]["calls"]
            results = await storage.run(Batch.of(writes, "lane", 2))
            assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == before + 1
        assert {type(result) for result in results} == {Applied}


async def test_a_call_for_several_hash_tags_is_applied_once(masters: RedisCluster) -> None:
    async with open_storage(masters.url("?prefix=once"), sweep_every=None) as storage:
        writes = _writes_of_a_node(storage)
        first = await storage.run(Batch.of(writes, "lane", 2))
        assert _versions(await storage.run(Batch.of(writes, "lane", 2))) == _versions(first)
        # Each hash tag has its own journal, so a part of the batch may be sent again alone.
        for write, applied in zip(writes, first, strict=True):
            assert _versions(await storage.run(Batch.of([write], "lane", 2))) == _versions([applied])
        late = await storage.run(Batch.of(writes, "lane", 1))
        assert {type(result) for result in late} == {StorageUnavailable}
        with pytest.raises(StorageError, match="STALE"):
            await storage.run(Batch.of(writes[:1], "lane", 1))
        for write, applied in zip(writes, first, strict=True):
            record = await storage.perform(Get(write.address))
            assert record.version == applied.version  # type: ignore[union-attr]


async def test_a_call_for_several_hash_tags_does_not_touch_half_moved_records(masters: RedisCluster) -> None:
    async with open_storage(masters.url("?prefix=halves"), sweep_every=None) as storage:
        writes = _writes_of_a_node(storage)
        first = await storage.run(Batch.of(writes, "lane", 1))
        slot = SLOTS[tag_of(writes[0].address)]
        with _slot_between_nodes(masters, slot) as (source, target):
            keys = source.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100)
            index = [key for key in keys if ":k:" in key]
            source.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *index)
            # Record and journal are here, an index of theirs is not.
            moving, *others = await storage.run(Batch.of(writes, "lane", 2))
            assert (type(moving), moving.sent) == (StorageUnavailable, False)
            assert {type(result) for result in others} == {Applied}
            source.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *{*keys} - {*index})
        record = await storage.perform(Get(writes[0].address))
        assert record.version == first[0].version  # type: ignore[union-attr]
        # The slot is on another node now, which the client does not know yet.
        moved, *others = await storage.run(Batch.of(writes, "lane", 3))
        assert {type(result) for result in others} == {Applied}
        assert type(moved) in (Applied, StorageUnavailable)
        await storage.perform(writes[0])
        assert _node(storage, 0).port == target.port


def _writes_of_a_node(storage: Storage) -> list[Apply]:
    """Return writes with different hash tags of one node. The first is for the key 0."""
    node = _node(storage, 0)
    keys = {_tag(storage, key): key for key in reversed(range(100)) if _node(storage, key) == node}
    return [_merge(storage, key) for key in sorted(keys.values())[:5]]


def _versions(results: list[Any]) -> list[Any]:
    return [result.version for result in results]


# The last test: it kills a node


async def test_writes_and_timers_of_other_nodes_go_on_at_once_if_a_node_is_lost(masters: RedisCluster) -> None:
    url = masters.url("?prefix=lost&patience=3&timeout=1.5")
    async with open_storage(url, sweep_every=None) as storage, open_storage(url, sweep_every=None) as other:
        skip_key_checks(storage, BOT)
        by_node = _keys_by_node(storage)
        timers = {port: _merge(other, keys[-1], deadline=0.0) for port, keys in by_node.items()}
        await asyncio.gather(*(other.perform(timer) for timer in timers.values()))
        victim = masters.nodes[0]
        dead = by_node.pop(victim.port)
        victim.process.kill()
        lost_timer = timers.pop(victim.port)
        found = await other.due(lost_timer.address.namespace, before=time.time() + 60)
        assert {each.address for each in found} == {timer.address for timer in timers.values()}
        _forget_owners(storage)
        lost = [asyncio.create_task(storage.update_data(BOT, key, {"n": 1})) for key in dead]
        living = [storage.update_data(BOT, key, {"n": 1}) for keys in by_node.values() for key in keys]
        assert await _gathered([*living]) == [{"n": 1}] * 40
        assert not any(task.done() for task in lost)
        for error in await _gathered([*lost]):
            assert type(error) is StorageUnavailable, "it was never sent"


async def test_a_write_and_a_claim_of_a_hash_tag_whose_slot_has_moved_follow_it() -> None:
    cluster = RedisCluster(2, replicas=0)
    try:
        async with open_storage(cluster.url("?prefix=moved&patience=3"), sweep_every=None) as storage:
            written = storage.address(BOT, 0)
            tag = tag_of(written)
            claimed = next(each for n in range(1, 9999) if tag_of(each := storage.address(BOT, n)) == tag)
            await storage.update_data(BOT, 0, {"n": 1})
            source = cluster.master_of(SLOTS[tag])
            target = next(node for node in cluster.nodes if node is not source)
            await asyncio.to_thread(cluster.move_slot, SLOTS[tag], target)
            outcomes = await asyncio.gather(
                storage.perform(Apply(written, Change(write=storage.ids(), set={}))),
                storage.perform(Claim(claimed, "token", 5.0)),
            )
            assert [type(outcome) for outcome in outcomes] == [Applied, Claimed]
            assert server_of(storage).owners[tag].port == target.port
    finally:
        cluster.stop()
