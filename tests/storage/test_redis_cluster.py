"""A Cluster that changes under load: slots that move, masters that die, replicas that lag."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import redis
from redis.asyncio import RedisCluster as Client

from stepwell import State, Storage, open_storage
from stepwell.errors import (
    InvalidOption,
    LeaseLost,
    NotReplicated,
    OutcomeUnknown,
    RunExists,
    RunFinished,
    StorageUnavailable,
)
from stepwell.fsm import FSM, Context, DuplicateUpdate
from stepwell.nodes import NodeFlow
from stepwell.record import Change
from stepwell.slot import Slot
from stepwell.storage import Apply, Claim, Claimed, Release, Result
from stepwell.storage.contract import RunBatch
from stepwell.storage.observers import observe_batches
from stepwell.storage.redis import RedisStorage
from stepwell.storage.redis.cluster import SLOTS
from stepwell.storage.redis.server import RedisNode
from stepwell.storage.redis.wire import tag_of
from stepwell.storage.transport.batch import Batch
from tests.constants import Constants
from tests.fsm.conftest import Form, message
from tests.insides import server_of
from tests.nodes.flows import Trail
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisCluster, RedisServer, the_cluster
from tests.until import until

BOT = "bot"


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[RedisCluster]:
    """A Cluster for the tests here that change it; the last of them kills a node."""
    cluster = RedisCluster()
    yield cluster
    cluster.stop()


@pytest.fixture
def replicated() -> Iterator[tuple[RedisServer, RedisServer]]:
    """A master and its replica, without a Cluster around them."""
    master = RedisServer("--repl-diskless-sync-delay", "0")
    replica = RedisServer("--replicaof", "127.0.0.1", str(master.port))
    yield master, replica
    replica.process.resume()
    replica.stop()
    master.stop()


async def linked(master: RedisServer) -> None:
    with master.client() as client:
        # Without a write of its own, a client waits for nothing.
        await until(lambda: client.set("linked", 1) and client.wait(1, 100))


async def test_records_are_spread_over_all_masters() -> None:
    async with open_storage(the_cluster().url(f"?prefix={uuid.uuid4().hex}")) as storage:
        await asyncio.gather(*(storage.set_state(BOT, n, State("f", "s", {"n": n})) for n in range(200)))
        nodes = {storage.lane_of(Apply(storage.address(BOT, n), Change(write="w"))) for n in range(200)}
        assert len(nodes) == 3
        assert {entry.key async for entry in storage.scan(BOT, page=7)} == set(range(200))


async def test_the_only_master_of_a_cluster_has_two_lanes_with_connections_of_their_own() -> None:
    cluster = RedisCluster(1, replicas=0)
    try:
        async with open_storage(cluster.url(), sweep_every=None) as storage:
            keys = range(200)
            lanes = {storage.lane_of(Apply(storage.address(BOT, n), Change(write="w"))) for n in keys}
            assert len(lanes) == 2
            with cluster.nodes[0].client() as client:
                before = len(client.client_list())
                # All are sent at once, so each lane makes one call at least.
                await asyncio.gather(*(storage.update_data(BOT, n, {"n": n}) for n in keys))
                assert len(client.client_list()) == before + 2
            assert {entry.key async for entry in storage.scan(BOT, page=7)} == {*keys}
            assert len((await storage.settings())["nodes"]) == 1
    finally:
        cluster.stop()


async def test_a_cluster_of_one_master_may_fail_over_grow_and_shrink_under_load() -> None:
    cluster = RedisCluster(1)
    try:
        async with open_storage(cluster.url("?durability=wait&patience=30"), sweep_every=None) as storage:
            keys = range(20)
            made = dict.fromkeys(keys, 0)
            stop = asyncio.Event()

            async def load(key: int) -> None:
                while not stop.is_set():
                    async with Slot(storage, BOT, key, wait=30) as slot:
                        slot.data["n"] = slot.data.get("n", 0) + 1
                        await slot.commit()
                    await storage.update_data(BOT, key, {f"f{made[key] % 50}": made[key]})
                    made[key] += 1

            def lanes() -> set[Any]:
                return {storage.lane_of(Apply(storage.address(BOT, key), Change(write="w"))) for key in keys}

            async def see(expected: set[Any]) -> None:
                async with asyncio.timeout(30):
                    while lanes() != expected:
                        await progress()
                    await progress()

            async def progress() -> None:
                goal = {key: made[key] + 3 for key in keys}
                await until(lambda: any(task.done() for task in loads) or all(made[key] >= goal[key] for key in keys))
                assert not any(task.done() for task in loads)

            loads = [asyncio.create_task(load(key)) for key in keys]
            try:
                await progress()
                replica = cluster.replica_of(cluster.nodes[0])
                with replica.client() as client:
                    client.execute_command("CLUSTER", "FAILOVER")
                halves = {("writes", RedisNode("127.0.0.1", replica.port, half)) for half in (0, 1)}
                await see(halves)
                # Not in a thread: the servers end with the thread that has started them.
                added = cluster.add_shard()
                moved = {SLOTS[_tag(storage, key)] for key in keys[:10]}
                # One slot stays there: a master without slots becomes a replica.
                other = next(slot for slot in range(16384) if slot not in SLOTS)
                for slot in (other, *moved):
                    await asyncio.to_thread(cluster.move_slot, slot, added)
                await see({("writes", RedisNode("127.0.0.1", port)) for port in (replica.port, added.port)})
                for slot in moved:
                    await asyncio.to_thread(cluster.move_slot, slot, replica)
                await see(halves)
            finally:
                stop.set()
                await asyncio.gather(*loads)
            assert [(await storage.get_data(BOT, key) or {})["n"] for key in keys] == [*made.values()]
    finally:
        cluster.stop()


async def test_the_map_of_slots_is_not_taken_from_a_node_that_has_left_the_cluster() -> None:
    cluster = RedisCluster(1)
    try:
        async with open_storage(cluster.url("?patience=0"), sweep_every=None) as storage:
            await storage.set_state(BOT, 1, State("f", "s"))
            with cluster.nodes[1].client() as client:
                client.execute_command("CLUSTER", "RESET")
            # Each load asks another node first.
            for _ in range(3):
                await server_of(storage).find()
                assert await storage.get_state(BOT, 1) == State("f", "s")
    finally:
        cluster.stop()


async def test_a_slow_call_to_either_half_of_an_only_master_is_not_given_up(constants: Constants) -> None:
    constants(redis_slow=0.1)
    cluster = RedisCluster(1)
    try:
        async with open_storage(cluster.url(), sweep_every=None) as storage:
            keys = range(50)

            async def update(n: int) -> None:
                await asyncio.gather(*(storage.update_data(BOT, key, {"n": n}) for key in keys))

            await update(0)
            with cluster.nodes[0].client() as client:
                before = {each["id"] for each in client.client_list()}
                cluster.nodes[0].process.pause()
                updates = asyncio.create_task(update(1))
                # The replica answers meanwhile that its master has all slots.
                await asyncio.sleep(0.5)
                assert not updates.done()
                cluster.nodes[0].process.resume()
                await updates
                assert {each["id"] for each in client.client_list()} >= before
    finally:
        cluster.stop()


async def test_a_cluster_client_that_was_passed_in_is_used_and_never_closed() -> None:
    client = Client(host="127.0.0.1", port=the_cluster().nodes[0].port)
    await client.initialize()
    async with RedisStorage(client, prefix=uuid.uuid4().hex) as storage:
        await storage.set_state(BOT, 1, State("f", "s"))
        assert await storage.get_state(BOT, 1) == State("f", "s")
    assert await client.ping()
    await client.aclose()


async def test_a_batch_whose_answers_were_lost_is_made_once_on_all_nodes() -> None:
    async with open_storage(the_cluster().url(f"?prefix={uuid.uuid4().hex}")) as storage:
        writes = [
            Apply(a := storage.address(BOT, n), Change(write=storage.ids(), set=storage.seal(a).fields({"n": n})))
            for n in range(60)
        ]
        batch = Batch.of(writes, "lane", 1)
        first, second = await storage.run(batch), await storage.run(batch)
        assert [_version(result) for result in first] == [_version(result) for result in second]
        assert len({_version(result) for result in first}) == 60


def _version(result: Any) -> Any:
    return result.version


async def test_a_slot_may_move_under_load_and_nothing_is_lost(own_cluster: RedisCluster) -> None:
    async with open_storage(own_cluster.url("?prefix=moved"), sweep_every=None) as storage:
        keys = _keys_of_one_tag(storage, 5)
        moving = asyncio.Event()
        made = dict.fromkeys(keys, 0)

        async def load(key: int) -> None:
            while not moving.is_set() or made[key] < 20:
                async with Slot(storage, BOT, key) as slot:
                    slot.data["n"] = slot.data.get("n", 0) + 1
                    await slot.commit()
                await storage.update_data(BOT, key, {f"f{made[key] % 50}": made[key]})
                made[key] += 1

        loads = [asyncio.create_task(load(key)) for key in keys]
        await asyncio.sleep(0.1)
        for _ in range(2):
            await asyncio.to_thread(_move_slot, own_cluster, SLOTS[_tag(storage, keys[0])])
            await asyncio.sleep(0.1)
        moving.set()
        await asyncio.gather(*loads)
        for key in keys:
            data = await storage.get_data(BOT, key)
            assert data is not None
            assert data["n"] == made[key]
        assert {entry.key async for entry in storage.scan(BOT)} == set(keys)


@pytest.mark.parametrize("patience", [0.0, 10.0], ids=["given up", "sent again"])
async def test_a_claim_that_arrives_late_at_a_node_leases_nothing(patience: float) -> None:
    url = the_cluster().url(f"?prefix={uuid.uuid4().hex}")
    async with open_storage(url, sweep_every=None, patience=patience) as storage:
        await storage.set_state(BOT, 1, State("f", "s"))
        owners = server_of(storage).owners
        async with Proxy(owners[_tag(storage, 1)].port) as proxy:
            # The first call goes through the proxy. When it fails, the storage asks the Cluster again for the owner.
            owners[_tag(storage, 1)] = RedisNode("127.0.0.1", proxy.port)
            proxy.hold_what = b"EVALSHA"
            claim = Claim(storage.address(BOT, 1), "token", 30.0)
            if patience:
                await storage.perform(claim)
                await storage.perform(Release(claim.address, claim.token))
            else:
                with pytest.raises(StorageUnavailable):
                    await storage.perform(claim)
            assert proxy.holds.is_set()
            assert await storage.get_state(BOT, 1) == State("f", "s")
            await proxy.let_through()
            async with Slot(storage, BOT, 1, wait=10) as slot:
                assert slot.state == "s"


async def test_an_answer_to_an_earlier_batch_does_not_let_a_late_claim_through(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_storage(the_cluster().url(f"?prefix={uuid.uuid4().hex}"), sweep_every=None) as storage:
        one, two = (storage.address(BOT, key) for key in _keys_of_one_tag(storage, 2))
        server, tag, go = server_of(storage), tag_of(one), asyncio.Event()

        async def delayed(*args: Any, **options: Any) -> Any:
            answer = await type(server).evaluate(server, *args, **options)
            await go.wait()
            return answer

        # The tag changes its lane while both are under way, so they use two connections.
        with monkeypatch.context() as patch:
            patch.setattr(server, "evaluate", delayed)
            earlier = asyncio.create_task(storage.run(Batch.of([Claim(two, "two", 30.0)], "lane", 1)))
            await asyncio.sleep(0)
        owners = server_of(storage).owners
        async with Proxy(owners[tag].port) as proxy:
            owners[tag] = RedisNode("127.0.0.1", proxy.port)
            proxy.hold_what = b"EVALSHA"
            claim = Claim(one, "one", 30.0)
            with pytest.raises(StorageUnavailable):
                await storage.run(Batch.of([claim], "lane", 2))
            go.set()
            assert type((await earlier)[0]) is Claimed
            assert type((await storage.run(Batch.of([claim], "lane", 3)))[0]) is Claimed
            await storage.run(Batch.of([Release(one, "one")], "lane", 4))
            await proxy.let_through()
            assert type(await storage.perform(Claim(one, "another", 30.0))) is Claimed


async def test_writes_to_one_address_keep_their_order_while_its_node_changes() -> None:
    url = the_cluster().url(f"?prefix={uuid.uuid4().hex}")
    async with open_storage(url, sweep_every=None, timeout=0.5) as storage:
        await storage.set_state(BOT, 1, State("f", "s"))
        cluster = server_of(storage)
        tag = _tag(storage, 1)
        async with Proxy(cluster.owners[tag].port) as proxy:
            proxy.fall_silent()
            cluster.owners[tag] = RedisNode("127.0.0.1", proxy.port)
            first = asyncio.create_task(storage.update_data(BOT, 1, {"n": 1}))
            await until(lambda: proxy.round_trips)
            # Another call has found that the address is on another node now.
            await cluster.find()
            await asyncio.gather(first, storage.update_data(BOT, 1, {"n": 2}))
            assert await storage.get_data(BOT, 1) == {"n": 2}
            await storage.update_data(BOT, 1, {"n": 3})
            write = Apply(storage.address(BOT, 1), Change(write="w"))
            assert storage.lane_of(write) == ("writes", cluster.owners[tag]), "it follows once nothing is under way"


async def test_observers_see_the_batches_of_a_cluster() -> None:
    seen: list[Batch] = []

    def observer(storage: Storage, run: RunBatch) -> RunBatch:
        async def observed(batch: Batch) -> list[Result]:
            seen.append(batch)
            return await run(batch)

        return observed

    end = observe_batches(observer)
    try:
        async with open_storage(the_cluster().url(f"?prefix={uuid.uuid4().hex}"), sweep_every=None) as storage:
            await storage.set_state(BOT, 1, State("f", "s"))
    finally:
        end()
    assert [type(operation) for batch in seen for operation in batch] == [Apply]


def _tag(storage: Storage, key: int) -> int:
    return tag_of(storage.address(BOT, key))


def _keys_of_one_tag(storage: Storage, count: int) -> list[int]:
    first = _tag(storage, 0)
    return list(itertools.islice((n for n in itertools.count() if _tag(storage, n) == first), count))


@contextmanager
def _slot_between_nodes(cluster: RedisCluster, slot: int) -> Iterator[tuple[redis.Redis, RedisServer]]:
    """While it moves: the old node's client, and the new node. It has moved in the end."""
    masters = cluster.masters()
    with ExitStack() as stack:
        clients = [stack.enter_context(node.client()) for node in masters]
        ids = [client.execute_command("CLUSTER", "MYID") for client in clients]
        owner = next(n for n, client in enumerate(clients) if _owns(client, slot, ids[n]))
        target = (owner + 1) % len(clients)
        clients[target].execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[owner])
        clients[owner].execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])
        yield clients[owner], masters[target]
        for n in (target, owner, *range(len(clients))):
            clients[n].execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[target])


def _migrate(source: redis.Redis, target: RedisServer, key: str) -> None:
    source.execute_command("MIGRATE", "127.0.0.1", target.port, key, 0, 5000)


def _move_slot(cluster: RedisCluster, slot: int) -> None:
    """As redis-cli does it: key by key, with both nodes knowing of it."""
    with _slot_between_nodes(cluster, slot) as (source, target):
        while keys := source.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 3):
            for key in keys:
                _migrate(source, target, key)


def _owns(client: Any, slot: int, own_id: str) -> bool:
    for first, last, (_, _, node_id, *_), *_ in client.execute_command("CLUSTER", "SLOTS"):
        if first <= slot <= last:
            return bool(node_id == own_id)
    return False


async def test_half_moved_records_are_not_touched(own_cluster: RedisCluster) -> None:
    async with open_storage(own_cluster.url("?prefix=half"), sweep_every=None, patience=0.3) as storage:
        for number in range(3):
            await storage.update_data(BOT, 0, {"n": number})
        slot = SLOTS[_tag(storage, 0)]
        with _slot_between_nodes(own_cluster, slot) as (source, target):
            keys = source.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100)
            for key in keys:
                if ":k:" in key:
                    _migrate(source, target, key)
            # Record and journal are here, an index of theirs is not.
            for attempt in (storage.update_data, storage.set_data):
                with pytest.raises(StorageUnavailable):
                    await attempt(BOT, 0, {"n": "moving"})
            for key in keys:
                if ":k:" not in key:
                    _migrate(source, target, key)
            with pytest.raises(StorageUnavailable):
                await storage.clear(BOT, 0)
        assert await storage.get_data(BOT, 0) == {"n": 2}
        assert await storage.update_data(BOT, 0, {"n": 3}) == {"n": 3}
        assert [entry.key async for entry in storage.scan(BOT)] == [0]


# A duplicate is acknowledged when a replica has the write that it repeats


@contextmanager
def _without_replicas(replicas: Sequence[RedisServer]) -> Iterator[None]:
    for replica in replicas:
        replica.process.pause()
    try:
        yield
    finally:
        for replica in replicas:
            replica.process.resume()


@pytest.mark.parametrize("where", ["server", "cluster"])
async def test_a_duplicate_of_a_write_that_no_replica_has_is_not_acknowledged(
    where: str, request: pytest.FixtureRequest
) -> None:
    handled: list[int] = []

    async def start(ctx: Context) -> None:
        handled.append(1)
        ctx.start_flow(Form)

    if where == "server":
        master, replica = request.getfixturevalue("replicated")
        await linked(master)
        url, replicas = master.url("?"), [replica]
    else:
        cluster = request.getfixturevalue("own_cluster")
        masters = cluster.masters()
        url, replicas = cluster.url("?"), [node for node in cluster.nodes if node not in masters]
    async with open_storage(f"{url}durability=wait&timeout=1.2&prefix=dup") as storage:
        fsm = FSM(BOT, storage=storage, flows=[Form])
        update = message(update_id=1)
        with _without_replicas(replicas):
            for _ in range(2):
                with pytest.raises(NotReplicated):
                    await fsm.handle(update, start)
            with pytest.raises(NotReplicated):
                async with fsm.conversation(update):
                    pass
        async with asyncio.timeout(30):
            while True:
                try:
                    assert await fsm.handle(update, start) is None
                    break
                except NotReplicated:
                    continue
        with pytest.raises(DuplicateUpdate):
            async with fsm.conversation(update):
                pass
        assert handled == [1]


async def test_an_update_that_two_workers_get_at_once_is_acknowledged_by_neither_before_a_replica_has_it(
    replicated: tuple[RedisServer, RedisServer],
) -> None:
    master, replica = replicated
    await linked(master)
    url = master.url("?durability=wait&timeout=20")
    async with open_storage(url) as one, open_storage(url) as two:
        first, second = (FSM(BOT, storage=storage, flows=[Form]) for storage in (one, two))
        with _without_replicas([replica]):
            update = message(update_id=1)
            writing = asyncio.create_task(first.handle(update, _start))
            with master.client() as client:
                await until(lambda: bool(client.keys("*:m:*")))
            repeating = asyncio.create_task(second.handle(update, _start))
            done, _ = await asyncio.wait([writing, repeating], timeout=0.5)
            assert not done
        await asyncio.gather(writing, repeating)


async def _start(ctx: Context) -> None:
    ctx.start_flow(Form)


async def test_the_read_of_a_claim_is_not_confirmed_by_a_server_without_the_claim(
    replicated: tuple[RedisServer, RedisServer],
) -> None:
    successor, _ = replicated
    await linked(successor)
    old = RedisServer()
    try:
        async with Proxy(old.port) as proxy:
            url = f"redis://127.0.0.1:{proxy.port}/0"
            async with open_storage(url, durability="wait", timeout=1.2) as storage, Slot(storage, BOT, 1) as slot:
                with pytest.raises(NotReplicated):
                    await slot.confirm()
                proxy.point_to(successor.port)
                with pytest.raises(LeaseLost):
                    await slot.confirm()
    finally:
        old.stop()


async def test_a_run_that_no_replica_has_is_not_reported_as_there_or_finished(
    replicated: tuple[RedisServer, RedisServer],
) -> None:
    master, replica = replicated
    await linked(master)
    async with open_storage(master.url("?durability=wait&timeout=1.2")) as storage:
        flow = NodeFlow(start=Trail())
        with _without_replicas([replica]):
            with pytest.raises(NotReplicated):
                await flow.run({}, storage=storage, flow_id="r")
            with pytest.raises(NotReplicated):
                await flow.run({}, storage=storage, flow_id="r")
        await linked(master)
        with pytest.raises(RunExists):
            await flow.run({}, storage=storage, flow_id="r")
        await flow.resume("r", storage=storage)
        with _without_replicas([replica]), pytest.raises(NotReplicated):
            await flow.resume("r", storage=storage)
        await linked(master)
        with pytest.raises(RunFinished):
            await flow.resume("r", storage=storage)


# Replicas that take over or lag


async def test_a_killed_master_loses_no_acknowledged_write_and_writes_continue(own_cluster: RedisCluster) -> None:
    url = own_cluster.url("?durability=wait&timeout=2&patience=30")
    async with open_storage(url, sweep_every=None) as storage:
        acknowledged: dict[int, int] = dict.fromkeys(range(30), -1)
        unsure: dict[int, int] = dict.fromkeys(range(30), -1)
        stop = asyncio.Event()

        async def load(key: int) -> None:
            for number in itertools.count():
                if stop.is_set():
                    return
                try:
                    await storage.update_data(BOT, key, {"n": number})
                    acknowledged[key] = number
                except (OutcomeUnknown, StorageUnavailable):
                    unsure[key] = number

        loads = [asyncio.create_task(load(key)) for key in acknowledged]
        await until(lambda: min(acknowledged.values()) > 0)
        before = dict(acknowledged)
        victim = own_cluster.nodes[0]
        victim.process.kill()
        await until(lambda: len(own_cluster.masters()) == 3)
        # Its successor has no replica, and so acknowledges nothing, until the fallen master is back as one.
        await asyncio.to_thread(victim.start)
        await until(lambda: all(acknowledged[key] > before[key] + 5 for key in before))
        stop.set()
        await asyncio.gather(*loads)
        for key, number in acknowledged.items():
            data = await storage.get_data(BOT, key)
            assert data is not None
            assert number <= data["n"] <= max(number, unsure[key])


async def test_a_write_that_no_replica_has_in_time_is_not_acknowledged(
    replicated: tuple[RedisServer, RedisServer],
) -> None:
    master, replica = replicated
    await linked(master)
    async with open_storage(master.url(), durability="wait", timeout=1.2) as storage:
        await storage.set_state(BOT, 1, State("f", "s"))
        replica.process.pause()
        with pytest.raises(NotReplicated, match="a failover may lose it"):
            await storage.update_data(BOT, 1, {"a": 1})
        async with Slot(storage, BOT, 1) as slot:
            slot.state = "t"
            with pytest.raises(NotReplicated):
                await slot.commit()
        replica.process.resume()
        assert await storage.update_data(BOT, 1, {"b": 1}) == {"a": 1, "b": 1}
        with replica.client() as client:
            assert client.keys("*:r:*")


async def test_a_write_waits_for_as_many_replicas_as_required(replicated: tuple[RedisServer, RedisServer]) -> None:
    master, _ = replicated
    await linked(master)
    async with open_storage(master.url("?durability=wait&wait_for=2&timeout=1.2")) as storage:
        with pytest.raises(NotReplicated, match="too few replicas had it in time"):
            await storage.set_state(BOT, 1, State("f", "s"))
        other = RedisServer("--replicaof", "127.0.0.1", str(master.port))
        try:
            with master.client() as client:
                await until(lambda: client.set("linked", 1) and client.wait(2, 100) == 2)
            await storage.set_state(BOT, 1, State("f", "s"))
        finally:
            other.stop()


@pytest.mark.parametrize("number", ["0", "many"])
def test_the_number_of_replicas_is_checked(number: str) -> None:
    with pytest.raises(InvalidOption, match=r"wait_for .* number"):
        open_storage(f"redis://localhost?wait_for={number}")


async def test_an_answer_from_the_journal_waits_for_the_replica_too(
    replicated: tuple[RedisServer, RedisServer],
) -> None:
    master, replica = replicated
    await linked(master)
    async with open_storage(master.url(), durability="wait", timeout=1.2) as storage:
        address = storage.address(BOT, 1)
        change = Change(write=storage.ids(), set=storage.seal(address).fields({"a": 1}))
        batch = Batch.of([Apply(address, change)], "lane", 1)
        replica.process.pause()
        assert isinstance((await storage.run(batch))[0], NotReplicated)
    async with open_storage(master.url(), durability="wait", timeout=1.2) as other:
        assert isinstance((await other.run(batch))[0], NotReplicated)
        replica.process.resume()
        await linked(master)
        assert not isinstance((await other.run(batch))[0], NotReplicated)
