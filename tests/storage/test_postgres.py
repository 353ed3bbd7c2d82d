"""Tests of the PostgreSQL storage: the contract, connections, plans and batches."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import random
import re
import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import asyncpg
import pytest

from stepwell import MemoryStorage, State, Storage, open_storage
from stepwell.errors import EncodeError, LeaseLost, NewerSchema, StorageUnavailable
from stepwell.record import Address, Change, Place, Queue, Version
from stepwell.slot import Slot
from stepwell.storage import Applied, Apply, Claim, Claimed, Get, Guard, Operation, Query, Release, Taken
from stepwell.storage.postgres import PostgresStorage
from stepwell.storage.postgres.client import PostgresConnection
from stepwell.storage.postgres.schema import VERSION
from stepwell.storage.transport.batch import JOURNAL_LIFE, Batch
from stepwell.testing import Clock, JournaledStorageContract
from tests.backends.postgres import Postgres
from tests.constants import Constants
from tests.servers import pgbouncer
from tests.servers.postgres import PostgresServer, shared
from tests.storage.test_differential import TEXTS, Script, plain, play
from tests.until import until

_numbers = itertools.count(1)


def fresh() -> str:
    """Return the URL of an empty schema."""
    return Postgres(Path()).place()


def schema() -> str:
    return f"own_{next(_numbers)}"


@pytest.fixture
async def admin() -> AsyncIterator[Any]:
    connection = await asyncpg.connect(shared().url())
    yield connection
    await connection.close()


class TestPostgresStorage(JournaledStorageContract):
    @pytest.fixture(autouse=True)
    async def _backend(self, tmp_path: Path) -> AsyncIterator[None]:
        self.backend = Postgres(tmp_path)
        yield
        await self.backend.close()

    def open_storage(self, clock: Clock) -> Storage:
        self.url = self.backend.place()
        return open_storage(self.url, clock=clock)

    def reopen(self, storage: Storage) -> Storage:
        return open_storage(self.url, clock=storage.clock)


def bounced(**options: Any) -> PostgresStorage:
    """Return a storage with an empty schema behind PgBouncer without prepared statements."""
    url = f"{pgbouncer.shared().url()}?schema={schema()}&prepared_statements=off"
    return PostgresStorage.from_url(url, sweep_every=None, **options)


async def test_behind_pgbouncer_the_error_names_the_missing_option() -> None:
    with pytest.raises(StorageUnavailable, match="prepared_statements=false"):
        await open_storage(pgbouncer.shared().url()).open()


async def test_through_pgbouncer_results_equal_those_of_memory() -> None:
    clock = Clock()
    async with MemoryStorage(clock=clock, sweep_every=None) as ours, bounced(clock=clock) as theirs:
        seed = random.SystemRandom().randrange(1 << 32)
        print(f"seed {seed}")
        assert await play(Script(random.Random(seed), queues=True), clock, ours, theirs) > 50


async def test_through_pgbouncer_many_tasks_lose_nothing() -> None:
    one = bounced()
    other = bounced(schema=one.schema)
    async with one, other:
        await asyncio.gather(*((one, other)[n % 2].update_data("bot", 1, {f"f{n}": n}) for n in range(60)))
        assert await one.get_data("bot", 1) == {f"f{n}": n for n in range(60)}

        async def count(storage: Storage) -> None:
            async with Slot(storage, "bot", 2) as slot:
                slot.data["count"] = slot.data.get("count", 0) + 1
                await slot.commit()

        await asyncio.gather(*(count((one, other)[n % 2]) for n in range(20)))
        assert await other.get_data("bot", 2) == {"count": 20}
        assert len([entry async for entry in one.scan("bot")]) == 2


async def test_a_given_pool_is_used_and_not_closed_and_its_connections_are_returned() -> None:
    async with asyncpg.create_pool(shared().url(), min_size=1, max_size=1) as pool:
        async with PostgresStorage(pool, schema=schema()) as storage:
            await asyncio.gather(*(storage.update_data("bot", n % 3, {f"f{n}": n}) for n in range(30)))
            assert len([entry async for entry in storage.scan("bot")]) == 3
            assert pool.get_idle_size() == pool.get_size() == 1
        assert await pool.fetchval("select 1") == 1


async def test_ten_workers_can_start_at_once_on_an_empty_database() -> None:
    for _ in range(3):
        url = fresh()
        workers = [open_storage(url) for _ in range(10)]
        try:
            await asyncio.gather(*(worker.update_data("bot", 1, {f"w{n}": n}) for n, worker in enumerate(workers)))
            assert await workers[0].get_data("bot", 1) == {f"w{n}": n for n in range(10)}
        finally:
            for worker in workers:
                await worker.close()


def test_a_storage_is_reopened_in_a_new_event_loop() -> None:
    storage = open_storage(fresh())

    async def use(number: int) -> dict[Any, Any]:
        return await storage.update_data("bot", 1, {f"n{number}": number})

    asyncio.run(use(1))
    with pytest.warns(ResourceWarning):
        assert asyncio.run(use(2)) == {"n1": 1, "n2": 2}
        gc.collect()

    async def end() -> None:
        await storage.close()

    with pytest.warns(ResourceWarning):
        asyncio.run(end())
        gc.collect()


async def test_a_memo_is_in_its_row_or_in_its_table_and_two_tags_of_a_chat_are_one_row(admin: Any) -> None:
    name = schema()
    async with PostgresStorage(shared().url(), schema=name, sweep_every=None) as storage:
        for key in range(2):
            # A memo is short, long and short again.
            address = Address("bot", str(key))
            await storage.perform(Apply(address, Change("w", tags=("user:1", "chat:1"), memo="m")))
            expected = "m"
            for turn, memo in enumerate(("m" * 300, "n" * 400, "m")):
                claimed = await storage.perform(Claim(address, "t", 30.0))
                assert claimed.memo == expected
                change = Change(f"w{turn}", memo=memo, **({"unset": ["x"]} if key else {}))
                await storage.perform(Apply(address, change, Guard("t", claimed.base)))
                expected = memo
                place = await admin.fetchrow(
                    f"select r.memo, m.body from {name}.records r left join {name}.memos m using (namespace, key) "
                    "where key = $1",
                    str(key),
                )
                assert tuple(place) == ((memo, None) if len(memo) <= 256 else (None, memo))
            assert await admin.fetchval(f"select count(*) from {name}.tagged where key = $1", str(key)) == 1


async def test_a_schema_of_a_newer_release_is_refused(admin: Any) -> None:
    name = schema()
    async with PostgresStorage(shared().url(), schema=name):
        pass
    assert await admin.fetchval(f"select number from {name}.version") == VERSION
    await admin.execute(f"update {name}.version set number = 99")
    with pytest.raises(NewerSchema, match="upgrade stepwell"):
        await PostgresStorage(shared().url(), schema=name).open()


@pytest.mark.parametrize("table", ["records (id int)", "version (id int)", "version (number int)", "journal (id int)"])
async def test_a_schema_of_another_program_is_refused_and_not_changed(admin: Any, table: str) -> None:
    name = schema()
    await admin.execute(f"create schema {name}; create table {name}.{table}")
    with pytest.raises(StorageUnavailable, match=f"the schema {name} of .* belongs to another program.*schema="):
        await PostgresStorage(shared().url(), schema=name).open()
    tables = await admin.fetch("select tablename from pg_tables where schemaname = $1", name)
    assert [each[0] for each in tables] == [table.partition(" ")[0]]


async def test_a_role_without_the_right_to_create_can_use_an_existing_schema(admin: Any) -> None:
    name = schema()
    async with PostgresStorage(shared().url(), schema=name):
        pass
    await admin.execute(f"create role worker_{name} login")
    await admin.execute(f"grant usage on schema {name} to worker_{name}")
    await admin.execute(f"grant all on all tables in schema {name} to worker_{name}")
    async with PostgresStorage(shared().url(user=f"worker_{name}"), schema=name) as storage:
        assert await storage.update_data("bot", 1, {"a": 1}) == {"a": 1}


async def test_values_that_jsonb_would_change_are_returned_exactly() -> None:
    data = {
        "nul": "a\0b",
        "large": 1e16,
        "small": -0.0,
        "order": {"z": 1, "a": 2, "aa": 3},
        "twice": [1.0, 1, True],
        "big": 10**40,
        "nul\0name": 1,
        "": "empty name",
        "long\0": "\0" * 2000,
    }
    async with open_storage(fresh()) as storage:
        async with Slot(storage, "bot", "nul\0key") as slot:
            slot.place, slot.data = Place("flow\0", "back\\slash"), data
            await slot.commit()
        found = await storage.get_state("bot", "nul\0key")
        assert found == State("flow\0", "back\\slash", data)
        assert found is not None
        assert str(found.data["small"]) == "-0.0"
        assert list(found.data["order"]) == ["z", "a", "aa"]
        assert [type(value) for value in found.data["twice"]] == [float, int, bool]
        assert [entry.key async for entry in storage.scan("bot", flow="flow\0")] == ["nul\0key"]
        assert [entry.key async for entry in storage.scan("bot", flow="flow\\0")] == []


async def test_names_of_any_length_can_be_found() -> None:
    long = "f" * 5000
    async with open_storage(fresh()) as storage:
        await storage.set_state("bot", 1, State(long + "1", long, {}))
        await storage.set_state("bot", 2, State(long + "2", long, {}))
        address = storage.address("bot", 3)
        await storage.perform(Apply(address, Change(write="w", tags=(long + "\0", "u\\1"))))
        assert [entry.key async for entry in storage.scan("bot", flow=long + "2", state=long)] == [2]
        (entry,) = [entry async for entry in storage.scan("bot", tag=long + "\0")]
        assert entry.tags == (long + "\0", "u\\1")


async def test_a_large_field_is_not_rewritten_when_another_field_changes(admin: Any) -> None:
    noise = "".join(random.choices("0123456789abcdef", k=10_000))
    async with open_storage(fresh()) as storage:
        await storage.set_state("bot", 1, State("f", "s", {"large": noise, "count": 0}))
        await storage.update_data("bot", 1, {"count": 1})
        before = await admin.fetchval("select pg_current_wal_insert_lsn()")
        updates = 200
        for n in range(updates):
            async with Slot(storage, "bot", 1) as slot:
                slot.data["count"] = n
                await slot.commit()
        written = await admin.fetchval("select pg_current_wal_insert_lsn() - $1::pg_lsn", before)
        print(f"{written / updates:.0f} bytes of log an update")
        assert written / updates < 2500
        assert await storage.get_data("bot", 1) == {"large": noise, "count": updates - 1}


async def test_batches_of_several_workers_do_not_deadlock(admin: Any) -> None:
    await admin.execute("create database circles")
    url = shared().url("circles")
    workers = [open_storage(url, sweep_every=None) for _ in range(4)]
    chance = random.Random(7)
    keys = range(25)
    try:
        await workers[0].open()

        async def work(storage: Storage) -> None:
            for _ in range(60):
                # Batches in random order, on keys that are created and deleted all the time.
                batch: list[Operation] = []
                for key in chance.sample(keys, 12):
                    address = storage.address("bot", key)
                    token = chance.choice("abc")
                    batch.append(
                        chance.choice(
                            [
                                Claim(address, token, 0.01),
                                Release(address, token),
                                Apply(address, Change(write=storage.ids(), set={"a": "00000000 1"})),
                                Apply(address, Change(write=storage.ids(), delete=True, forget=True)),
                                Apply(address, Change(write=storage.ids(), tags=(token,), memo="m"), Guard(token)),
                            ]
                        )
                    )
                try:
                    await storage.run(batch)
                except StorageUnavailable as error:
                    assert not error.sent, error
                    assert "a row was inserted meanwhile" in str(error), error

        await asyncio.gather(*(work(storage) for storage in workers), _sweeping(workers[0]))
        assert await admin.fetchval("select deadlocks from pg_stat_database where datname = 'circles'") == 0
        connection = await asyncpg.connect(url)
        try:
            # There are no tags or memos without a record.
            for table in ("tagged", "memos"):
                orphans = "left join stepwell.records r using (key) where r.key is null"
                assert await connection.fetchval(f"select count(*) from stepwell.{table} {orphans}") == 0
        finally:
            await connection.close()
    finally:
        for storage in workers:
            await storage.close()


async def _sweeping(storage: Storage) -> None:
    for _ in range(40):
        await storage.sweep(10)
        await asyncio.sleep(0.01)


async def test_an_old_server_is_refused(constants: Constants) -> None:
    constants(oldest_postgres=99)
    storage = open_storage(f"{shared().url()}?schema={schema()}")
    with pytest.raises(StorageUnavailable, match=r"is PostgreSQL \d\d, which is too old: use PostgreSQL 99 or newer"):
        await storage.open()


def _explaining() -> PostgresServer:
    """Return a server that logs the plan of every statement."""
    explain = {"log_min_duration": "0", "log_nested_statements": "on", "log_format": "json"}
    return PostgresServer(
        settings={"session_preload_libraries": "auto_explain"}
        | {f"auto_explain.{name}": value for name, value in explain.items()}
    )


async def test_no_frequent_statement_scans_a_whole_table() -> None:
    server = _explaining().start()
    try:
        async with open_storage(server.url(), sweep_every=None) as storage:
            # Start with an empty table: a plan is made once and kept while the table grows.
            for start in (0, 1, 3000):
                await _use_everything(storage, start)
                await asyncio.gather(*(_conversation(storage, n) for n in range(start, start + 300)))
            await _use_everything(storage, 5000)
        # Statements of operators may read whole tables.
        explained = [each for each in _explained(server.log.read_text()) if "create table" not in each["Query Text"]]
    finally:
        server.stop()
    plans = [each["Plan"] for each in explained]
    assert len(plans) > 100
    nodes = [node for plan in plans for node in _nodes(plan)]
    scans = {
        (node["Node Type"], node["Relation Name"], node.get("Index Name")) for node in nodes if "Relation Name" in node
    }
    assert ("Index Scan", "records", "records_pkey") in scans
    ours = {"records", "tagged", "parts", "memos"}
    whole = {scan for scan in scans if scan[0] == "Seq Scan" and scan[1] in ours}
    assert not whole, whole
    # A scan of a whole index is as bad.
    unconditional = [
        node
        for node in nodes
        if "Index Name" in node and "Index Cond" not in node and node.get("Relation Name") in ours
    ]
    assert not unconditional, unconditional
    by_state = [node["Index Cond"] for node in nodes if node.get("Index Name") == "records_by_state"]
    assert by_state
    assert all("flow" in condition for condition in by_state), by_state


async def _conversation(storage: Storage, n: int) -> None:
    async with Slot(storage, "bot", n) as slot:
        slot.flow, slot.state = "form", f"s{n % 5}"
        slot.data["n"] = n
        await slot.commit(tags=(f"u{n}",), deadline=n % 7 - 3, expiry=3600, memo=[n], parts={"p": n})


async def _step(storage: Storage, n: int) -> None:
    async with Slot(storage, "bot", n) as slot:
        slot.flow, slot.state = "form", f"s{n % 3}"
        slot.data["steps"] = slot.data.get("steps", 0) + 1
        await slot.commit(memo=[n])


async def _use_everything(storage: Storage, n: int) -> None:
    await _conversation(storage, n)
    await _conversation(storage, n)
    # Alone, and several at once.
    await _step(storage, n)
    for _ in range(2):
        await asyncio.gather(*(_step(storage, other) for other in range(n, n + 4)))
    await storage.update_data("bot", n, {"other": "x" * 3000})
    await storage.get_state("bot", n)
    assert isinstance(await storage.perform(Claim(storage.address("bot", n), "t", 0.001)), Claimed)
    await storage.page(Query("bot", tag=f"u{n}"), None, 10)
    await storage.traces("bot", f"u{n}", limit=10)
    for query in (Query("bot", "form", "s1"), Query("bot", "form"), Query("bot", state="s1"), Query("bot", None)):
        await storage.page(query, storage.address("bot", 1), 10)
    await storage.page(Query("bot"), storage.address("bot", 1), 10)
    await storage.due("bot", limit=10)
    await storage.due("bot", limit=10, flow="form")
    await storage.perform(Apply(storage.address("bot", n), Change(write="w", queue=Queue(f"q{n}"))))
    await storage.queued("bot", f"q{n}", limit=10)
    await storage.queues("bot", limit=10)
    await storage.sweep(10)
    await storage.clear("bot", n)


@pytest.mark.parametrize("count", [0, 1, 2])
async def test_batches_use_index_lookups_after_the_table_was_analyzed_nearly_empty(count: int) -> None:
    server = _explaining().start()
    try:
        async with open_storage(server.url(), sweep_every=None) as storage:
            for n in range(count):
                await _step(storage, n)
            connection = await asyncpg.connect(server.url(), server_settings={"search_path": "stepwell"})
            for table in ("records", "memos", "journal", "parts"):
                await connection.execute(f"vacuum analyze {table}")
            await connection.close()
            for _ in range(4):
                await asyncio.gather(*(_step(storage, n) for n in range(10)))
            await storage.perform(part_write(storage.address("bot", 1), "p1", "p2"))
            await storage.perform(part_write(storage.address("bot", 1), "p3", "p4"))
            await storage.perform(part_write(storage.address("bot", 1), "p4"))
            await storage.forget(storage.address("bot", 1))
        explained = _explained(server.log.read_text())
    finally:
        server.stop()
    ours = ("records", "memos", "parts", "tagged")
    for beginning in ("select", "update", "insert", "delete"):
        plans = [each["Plan"] for each in explained if each["Query Text"].lower().startswith(beginning)]
        nodes = [node for plan in plans for node in _nodes(plan) if node.get("Relation Name") in ours]
        assert nodes, beginning
        assert not [node for node in nodes if node["Node Type"] == "Seq Scan"]
        assert not [node for node in nodes if "Index Name" in node and "Index Cond" not in node], beginning


def _explained(log: str) -> list[dict[str, Any]]:
    found = re.findall(r"plan:\n\t(\{\n.*?\n\t\})", log, re.DOTALL)
    return [json.loads(text.replace("\n\t", "\n"), strict=False) for text in found]


def _nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for child in plan.get("Plans", ()) for node in _nodes(child))]


async def test_a_claim_that_arrives_after_a_newer_batch_claims_nothing() -> None:
    async with open_storage(fresh()) as storage:
        address = storage.address("bot", 1)
        late = Batch.of([Claim(address, "late", 30)], "lane", 1)
        await storage.run(Batch.of([Claim(address, "first", 30)], "lane", 1))
        storage._sent = 0  # as if the next batch were the first one, delayed until now
        with pytest.raises(Exception, match="SW001"):
            await storage.run(late)


async def test_a_repeated_batch_gives_the_same_results_and_changes_nothing() -> None:
    async with open_storage(fresh()) as storage:
        one, two, three = (storage.address("bot", n) for n in range(3))
        claimed = await storage.perform(Claim(one, "t", 30))
        batch = [
            Apply(one, Change(write="w1", set={"a": "00000000 1"}), claimed and None, returning=True),
            Apply(two, Change(write="w2", delete=True)),
            Apply(three, Change(write="w3", set={"a": "x" * 100}, limit=10)),
            Apply(one, Change(write="w4", set={"b": "00000000 2"})),
            Apply(one, Change(write="w5", delete=True), None),
        ]
        first = await storage.run(Batch.of(batch, "lane", 7))
        again = await storage.run(Batch.of(batch, "lane", 7))
        assert [type(result) for result in again] == [type(result) for result in first]
        assert [getattr(result, "version", None) for result in again[1:]] == [
            getattr(result, "version", None) for result in first[1:]
        ]
        assert [getattr(result, "base", None) for result in again[1:]] == [
            getattr(result, "base", None) for result in first[1:]
        ]
        assert str(again[2]) == str(first[2])
        with pytest.raises(Exception, match="SW001"):
            await storage.run(Batch.of(batch, "lane", 6))


# Batches


def small_write(address: Address, token: str, number: int, base: str = "") -> Apply:
    change = Change(f"w{number}", set={"n": f"00000000 {number}"}, memo=f"m{number}")
    return Apply(address, change, Guard(token, base))


def part_write(address: Address, *names: str, guard: Guard | None = None, body: str = "00000000 1") -> Apply:
    return Apply(address, Change(secrets.token_hex(8), parts=dict.fromkeys(names, body)), guard)


async def held(storage: Storage, *keys: int) -> list[Address]:
    """Create records and claim each with its number as the token."""
    addresses = [storage.address("bot", key) for key in keys]
    for address, key in zip(addresses, keys, strict=True):
        await storage.set_state("bot", key, State("f", "s", {"n": 0}))
        assert isinstance(await storage.perform(Claim(address, str(key), 30)), Claimed)
    return addresses


@pytest.mark.parametrize("count", [1, 3])
async def test_writes_sent_again_give_the_same_results_and_change_nothing(count: int) -> None:
    async with open_storage(fresh()) as storage:
        addresses = await held(storage, *range(count))
        await storage.run(Batch.of([Apply(addresses[0], Change("first", set={}))], "lane", 6))
        bases = [stored.base for stored in await asyncio.gather(*(storage.perform(Get(each)) for each in addresses))]
        batch = [small_write(each, str(n), n, bases[n]) for n, each in enumerate(addresses)]
        first = await storage.run(Batch.of(batch, "lane", 7))
        assert [(type(result), result.version.write) for result in first] == [(Applied, f"w{n}") for n in range(count)]
        again = await storage.run(Batch.of(batch, "lane", 7))
        assert [(result.version, result.base) for result in again] == [
            (result.version, result.base) for result in first
        ]
        with pytest.raises(Exception, match="SW001"):
            await storage.run(Batch.of(batch, "lane", 6))
        stored = [await storage.perform(Get(each)) for each in addresses]
        assert [each.version for each in stored] == [result.version for result in first]


@pytest.mark.parametrize("guarded", [False, True])
async def test_a_write_of_parts_sent_again_gives_the_same_result_and_changes_nothing(guarded: bool) -> None:
    async with PostgresStorage(shared().url(), schema=schema(), sweep_every=None) as storage:
        address = storage.address("bot", 1)
        (before,) = cast("list[Applied]", await storage.run(Batch.of([part_write(address, "p1")], "lane", 1)))
        write = part_write(address, "p2", "p3", guard=Guard(version=before.version) if guarded else None)
        (first,) = cast("list[Applied]", await storage.run(Batch.of([write], "lane", 2)))
        assert first.version == (before.version.number + 1, write.change.write) and first.base == before.base
        (again,) = cast("list[Applied]", await storage.run(Batch.of([write], "lane", 2)))
        assert (again.version, again.base) == (first.version, first.base)
        with pytest.raises(Exception, match="SW001"):
            await storage.run(Batch.of([write], "lane", 1))
        assert (await storage.perform(Get(address))).version == first.version


@pytest.mark.parametrize("other", ["p2", "p4"])
async def test_a_write_of_parts_that_waited_for_another_one_counts_its_parts(admin: Any, other: str) -> None:
    name = schema()
    async with PostgresStorage(shared().url(), schema=name, sweep_every=None) as storage:
        address = storage.address("bot", 1)
        await storage.run(Batch.of([part_write(address, "p1")], "lane", 1))
        connection = await asyncpg.connect(shared().url(), server_settings={"search_path": name})
        transaction = connection.transaction()
        await transaction.start()
        # What another process does with the same part, or with another one.
        await connection.execute(
            "update records set version = version + 1, size = size + 102, parts_size = parts_size + 102"
        )
        await connection.execute("insert into parts values ('bot', $1, $2, 102, $3)", address.key, other, "x" * 100)
        waiting = asyncio.create_task(storage.run(Batch.of([part_write(address, "p2", "p3")], "lane", 2)))
        await _until_a_lock_is_awaited(admin)
        await transaction.commit()
        assert isinstance((await waiting)[0], Applied)
        size = await connection.fetchval("select sum(weight) from parts")
        assert await connection.fetchval("select parts_size from records") == size == 3 * 12 + 102 * (other == "p4")
        assert await connection.fetchval("select size from records") == size
        await connection.close()


async def test_a_write_may_replace_some_parts_and_add_others() -> None:
    async with PostgresStorage(shared().url(), schema=schema(), sweep_every=None) as storage:
        address = storage.address("bot", 1)
        for names, body in ((("p1",), "1"), (("p2", "p3"), "22"), (("p3", "p4"), "333")):
            await storage.perform(part_write(address, *names, body=body))
        stored = await storage.perform(Get(address, True))
        assert stored.parts == {"p1": "1", "p2": "22", "p3": "333", "p4": "333"}


async def test_one_write_that_is_refused_does_not_affect_the_others_of_its_batch() -> None:
    async with PostgresStorage(shared().url(), schema=schema(), sweep_every=None) as storage:
        addresses = await held(storage, 0, 1, 2)
        before = [await storage.perform(Get(each)) for each in addresses]
        batch = [
            small_write(address, "wrong" if n == 1 else str(n), n, before[n].base)
            for n, address in enumerate(addresses)
        ]
        await storage.run(Batch.of([Apply(addresses[0], Change("first", set={}))], "lane", 1))
        before[0] = await storage.perform(Get(addresses[0]))
        results = await storage.run(Batch.of(batch, "lane", 2))
        assert [type(result) for result in results] == [Applied, LeaseLost, Applied]
        after = [await storage.perform(Get(each)) for each in addresses]
        assert [each.version.number - old.version.number for each, old in zip(after, before, strict=True)] == [1, 0, 1]
        assert [each.fields["n"] for each in after] == ["00000000 0", before[1].fields["n"], "00000000 2"]


async def test_batches_keep_names_with_special_characters() -> None:
    odd = [
        'say "hi"',
        "back\\slash",
        "NULL",
        "null",
        "{a,b}",
        "a,b",
        " ",
        "'",
        "é\u2028",
        '"',
        "\\",
        '","',
        '\\"',
        "\0",
    ]
    async with open_storage(fresh()) as storage:

        async def step(name: str, turn: int) -> None:
            async with Slot(storage, "bot", (name, 1)) as slot:
                assert slot.data == ({"turn": turn - 1, "name": name} if turn else {})
                # Some have no flow, so that a batch contains nulls.
                somewhere = turn == 4 or len(name) % 2
                slot.flow, slot.state = (name, name) if somewhere else (None, None)
                slot.data = {"turn": turn, "name": name}
                await slot.commit(memo=[name])

        for turn in range(4):
            await asyncio.gather(*(step(name, turn) for name in odd))
            await step(odd[turn], turn + 1)
            await storage.set_data("bot", (odd[turn], 1), {"turn": turn, "name": odd[turn]})
        await asyncio.gather(*(step(name, 4) for name in odd))
        for name in odd:
            assert await storage.get_state("bot", (name, 1)) == State(name, name, {"turn": 4, "name": name})
            await storage.perform(part_write(storage.address("bot", (name, 1)), *odd))
            assert (await storage.perform(Get(storage.address("bot", (name, 1)), True))).parts.keys() == {*odd}
            found = [entry.key async for entry in storage.scan("bot", flow=name, state=name)]
            assert found == [(name, 1)]


async def test_one_token_may_claim_several_keys_in_one_batch() -> None:
    async with open_storage(fresh()) as storage:
        for key in range(3):
            await storage.set_data("bot", key, {"n": key})
        claims = [Claim(storage.address("bot", key), "t", 30.0) for key in range(3)]
        for turn in (1, 2):
            found = await storage.run(Batch.of(claims, "lane", turn))
            assert [each.record.fields["n"][9:] for each in found] == ["0", "1", "2"]


def _sent(storage: PostgresStorage, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the batches that are sent from now on.

    A slow machine also sends claims of turns, which let other processes in every quarter of a second.
    """
    sent: list[str] = []

    async def fetch(connection: PostgresConnection, query: str, *args: Any) -> list[Any]:
        if ' waiting"' not in args[-1]:
            sent.append({storage._run_batch_sql: "function", storage._parts_sql: "parts"}[query])
        return await original(connection, query, *args)

    original = PostgresConnection.fetch
    monkeypatch.setattr(PostgresConnection, "fetch", fetch)
    return sent


async def test_results_of_batches_equal_those_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    pick, clock = random.Random(seed), Clock()
    addresses = [Address("bot", str(n)) for n in range(6)]
    holders: dict[Address, tuple[str, str]] = {}
    versions: dict[Address, Version] = {}
    async with (
        MemoryStorage(clock=clock, sweep_every=None) as ours,
        PostgresStorage(shared().url(), schema=schema(), clock=clock, sweep_every=None) as theirs,
    ):
        sent = _sent(theirs, monkeypatch)

        def write(address: Address, n: int) -> Apply:
            token, base = holders.get(address, ("none", "")) if pick.random() < 0.9 else ("wrong", "wrong")
            fields = {name: pick.choice(TEXTS[:3]) for name in pick.sample("abc", pick.randrange(3))}
            times = {name: 20.0 for name in ("expiry", "deadline") if pick.random() < 0.1}
            memo = {"memo": f"m{n}"} if pick.random() < 0.5 else {}
            change = Change(f"w{n}-{address.key}", set=fields, **times, **memo)
            return Apply(address, change, Guard(token, base), pick.choice(["release", "keep"]), 30.0)

        def with_parts(address: Address, n: int) -> Apply:
            token, base = holders.get(address, ("none", ""))
            version = versions.get(address) if pick.random() < 0.4 else None
            held = pick.random() < 0.4
            guard = Guard(token if held else None, base if pick.random() < 0.4 else None, version)
            fields = {name: pick.choice(TEXTS) for name in pick.sample("abc", pick.choice([0, 0, 1]))}
            times = {"expiry": pick.choice([20.0, None])} if pick.random() < 0.2 else {}
            names = pick.sample(["p1", "p10", "ü", "{a,b}", '"'], pick.choice([1, 2, 2, 5]))
            parts = {name: pick.choice(TEXTS) for name in names}
            change = Change(f"w{n}-{address.key}", set=fields, parts=parts, limit=pick.choice([500, 50_000]), **times)
            return Apply(address, change, pick.choice([None, guard]), pick.choice(["release", "keep"]), 30.0)

        for n in range(1, 400):
            clock.advance(pick.choice([0.0, 1.0, 7.5]))
            chosen = pick.sample(addresses, pick.choice([1, 1, 2, 4]))
            kind = pick.choice(["claims", "writes", "writes", "parts", "others"])
            batch: list[Operation]
            if kind == "claims":
                batch = [Claim(each, pick.choice(["t1", "t2"]), 30.0) for each in chosen]
            elif kind == "writes":
                batch = [write(each, n) for each in chosen]
            elif kind == "parts":
                batch = [with_parts(chosen[0], n)]
            else:
                batch = [Apply(each, Change(f"w{n}", delete=pick.random() < 0.1, set={})) for each in chosen]
            expected = await ours.run(batch)
            found = await theirs.run(Batch.of(batch, "claims" if kind == "claims" else "writes", n))
            for operation, one, other in zip(batch, expected, found, strict=True):
                assert plain(one) == plain(other), operation
                if isinstance(operation, Claim) and isinstance(one, Claimed):
                    holders[operation.address] = operation.token, one.base
                if isinstance(one, Applied):
                    versions[operation.address] = one.version
        for address in addresses:
            assert plain(await ours.perform(Get(address, True))) == plain(await theirs.perform(Get(address, True)))
        assert min(sent.count("parts"), sent.count("function")) > 20


async def test_a_claim_is_one_round_trip_for_old_and_for_new_records(monkeypatch: pytest.MonkeyPatch) -> None:
    async with PostgresStorage(shared().url(), schema=schema(), sweep_every=None) as storage:
        await _step(storage, 1)
        sent = _sent(storage, monkeypatch)
        await _step(storage, 1)
        assert len(sent) == 2
        sent.clear()
        for _ in range(2):
            async with Slot(storage, "bot", 2):
                pass
        # A claim without a write leaves no row.
        assert len(sent) == 4
        sent.clear()
        for _ in range(3):
            await _step(storage, 2)
        assert len(sent) == 6


async def test_a_batch_of_claims_returns_records_that_exist_are_gone_or_are_leased_elsewhere() -> None:
    name = schema()
    async with (
        PostgresStorage(shared().url(), schema=name, sweep_every=None) as ours,
        PostgresStorage(shared().url(), schema=name, sweep_every=None) as theirs,
    ):
        keys = there, gone, taken, cleared = range(4)
        for key in keys:
            await ours.set_data("bot", key, {"n": 0})
        for _ in range(2):
            await asyncio.gather(*(_step(ours, key) for key in keys))
        assert isinstance(await theirs.perform(Claim(theirs.address("bot", taken), "theirs", 30)), Claimed)
        await theirs.perform(Apply(theirs.address("bot", gone), Change("w", delete=True, forget=True)))
        await theirs.clear("bot", cleared)
        claims = [Claim(ours.address("bot", key), f"mine {key}", 30) for key in keys]
        found = dict(zip(keys, await asyncio.gather(*map(ours.perform, claims)), strict=True))
        assert found[there].record.fields["n"].endswith(" 0")
        assert isinstance(found[taken], Taken) and 25 < found[taken].remaining <= 30
        assert (found[gone].record, found[gone].base, found[gone].memo) == (None, "", None)
        # A tombstone has no record, but a memo and a base.
        assert found[cleared].record is None and found[cleared].base and found[cleared].memo


#: A short memo is in the row of its record, a long one in a table of its own.
MEMOS = {"short": "m", "long": "m" * 300}


@pytest.mark.parametrize("memo", MEMOS)
async def test_a_claim_that_waited_for_a_lock_sees_the_new_memo(admin: Any, memo: str) -> None:
    name = schema()
    async with PostgresStorage(shared().url(), schema=name) as storage:
        (address,) = await held(storage, 1)
        base = (await storage.perform(Get(address))).base
        change = Change("w1", memo=MEMOS[memo])
        await storage.perform(Apply(address, change, Guard("1", base)))
        # The record is free, and the lane exists.
        await storage.perform(Claim(address, "x", 30))
        await storage.perform(Release(address, "x"))
        connection = await asyncpg.connect(shared().url(), server_settings={"search_path": name})
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(
            "update records set token = null, leased_until = 0, write = 'w2', version = version + 1, "
            "memo_until = memo_until + 1, memo = 'new' || memo"
        )
        await connection.execute("update memos set body = 'new' || body")
        waiting = asyncio.create_task(storage.perform(Claim(address, "y", 30)))
        await _until_a_lock_is_awaited(admin)
        await transaction.commit()
        claimed = await waiting
        assert (claimed.memo, claimed.record.version.write) == (f"new{MEMOS[memo]}", "w2")
        await connection.close()


async def test_the_lease_of_a_claim_that_waited_for_a_lock_starts_after_the_wait(admin: Any) -> None:
    name = schema()
    async with PostgresStorage(shared().url(), schema=name) as storage:
        address = storage.address("bot", 1)
        for _ in range(2):
            await _step(storage, 1)
        connection = await asyncpg.connect(shared().url(), server_settings={"search_path": name})
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("select from records for update")
        waiting = asyncio.create_task(storage.perform(Claim(address, "mine", 2.0)))
        await _until_a_lock_is_awaited(admin)
        await asyncio.sleep(1.2)
        released_at = time.monotonic()
        # The row did not change, so the server does not evaluate the statement again.
        await transaction.rollback()
        assert isinstance(await waiting, Claimed)
        taken = await storage.perform(Claim(address, "another", 2.0))
        assert isinstance(taken, Taken)
        assert taken.remaining > 1.9 - (time.monotonic() - released_at)
        await connection.close()


async def test_a_claim_does_not_return_a_record_that_expired() -> None:
    clock = Clock()
    async with PostgresStorage(shared().url(), schema=schema(), clock=clock, sweep_every=None) as storage:
        for _ in range(2):
            async with Slot(storage, "bot", 1) as slot:
                slot.data["n"] = slot.data.get("n", 0) + 1
                await slot.commit(expiry=60, memo=["m"])
        address = storage.address("bot", 1)
        clock.advance(61)
        claimed = await storage.perform(Claim(address, "t", 30))
        assert (claimed.record, claimed.memo is None) == (None, False)


async def test_a_delayed_claim_of_a_record_claims_nothing() -> None:
    async with PostgresStorage(shared().url(), schema=schema(), sweep_every=None) as storage:
        address = storage.address("bot", 1)
        await storage.set_data("bot", 1, {})
        for turn in (1, 2):
            await storage.run(Batch.of([Claim(address, "first", 30)], "lane", turn))
        await storage.run([Release(address, "first")])
        storage._sent = 0  # as if this were the first sending, delayed until now
        with pytest.raises(Exception, match="SW001"):
            await storage.run(Batch.of([Claim(address, "late", 30)], "lane", 1))
        assert isinstance((await storage.run([Claim(address, "next", 30)]))[0], Claimed)


@pytest.mark.parametrize("count", [1, 2])
async def test_a_write_that_waited_for_a_lock_checks_the_new_row(admin: Any, count: int) -> None:
    name = schema()
    async with PostgresStorage(shared().url(), schema=name) as storage:
        addresses = await held(storage, *range(count))
        for n, address in enumerate(addresses):
            base = (await storage.perform(Get(address))).base
            await storage.perform(small_write(address, str(n), 10 + n, base))
            assert isinstance(await storage.perform(Claim(address, str(n), 30)), Claimed)
        before = [await storage.perform(Get(each)) for each in addresses]
        connection = await asyncpg.connect(shared().url(), server_settings={"search_path": name})
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("update records set token = 'another' where key = '0'")
        writes = [small_write(address, str(n), n, before[n].base) for n, address in enumerate(addresses)]
        lanes = [lane for name, lane in storage._lanes.items() if name]
        waiting = asyncio.create_task(storage.run(Batch.of(writes, lanes[0]._id, 1000)))
        await _until_a_lock_is_awaited(admin)
        await transaction.commit()
        assert [type(result) for result in await waiting] == [LeaseLost, Applied][:count]
        after = [await storage.perform(Get(each)) for each in addresses]
        assert [new.version.number - old.version.number for new, old in zip(after, before, strict=True)] == [0, 1][
            :count
        ]
        await connection.close()


@pytest.mark.parametrize("count", [1, 3])
async def test_a_write_that_waited_for_a_lock_keeps_the_other_change(admin: Any, count: int) -> None:
    name = schema()
    async with PostgresStorage(shared().url(), schema=name, sweep_every=None) as storage:
        addresses = await held(storage, *range(count))
        await storage.run(Batch.of([Apply(storage.address("bot", "other"), Change("first", set={}))], "lane", 1))
        before = [await storage.perform(Get(each)) for each in addresses]
        writes = [small_write(address, str(n), n, before[n].base) for n, address in enumerate(addresses)]
        connection = await asyncpg.connect(shared().url(), server_settings={"search_path": name})
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("update records set version = version + 1, deadline = 7 where key = '0'")
        waiting = asyncio.create_task(storage.run(Batch.of(writes, "lane", 2)))
        await _until_a_lock_is_awaited(admin)
        await transaction.commit()
        results: list[Any] = await waiting
        growth = [result.version.number - old.version.number for result, old in zip(results, before, strict=True)]
        assert growth == [2, 1, 1][:count]
        after = await connection.fetch(
            "select version, deadline from records where token is null and alive order by key"
        )
        assert [row[0] for row in after][-count:] == [result.version.number for result in results]
        assert [row[1] for row in after][-count:] == [7, None, None][:count]
        await connection.close()


async def _until_a_lock_is_awaited(admin: Any) -> None:
    await until(
        lambda: admin.fetchval(
            "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and application_name = 'stepwell'"
        )
    )


async def test_claims_and_writes_of_old_and_new_keys_do_not_deadlock(admin: Any) -> None:
    name = schema()
    async with PostgresStorage(shared().url(), schema=name, sweep_every=None) as storage:
        # The first use creates the lanes.
        old, new, *others = range(4)
        for key in others:
            assert isinstance(await storage.perform(Claim(storage.address("bot", key), f"t{key}", 30)), Claimed)
            await storage.set_data("bot", key, {})
        await storage.set_data("bot", old, {})
        before = await admin.fetchval("select sum(deadlocks) from pg_stat_database")
        connection = await asyncpg.connect(shared().url(), server_settings={"search_path": name})
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(f"select from records where key = '{old}' for update")
        keys = (old, new)
        claims = asyncio.gather(*(storage.perform(Claim(storage.address("bot", key), f"c{key}", 5)) for key in keys))
        await _until_a_lock_is_awaited(admin)
        writes = asyncio.gather(*(storage.update_data("bot", key, {"n": 1}) for key in keys))
        await asyncio.sleep(0.1)
        await transaction.commit()
        async with asyncio.timeout(60):
            assert [type(result) for result in await claims] == [Claimed, Claimed]
            assert await writes == [{"n": 1}, {"n": 1}]
        await connection.close()
        await admin.execute("select pg_stat_clear_snapshot()")
        assert await admin.fetchval("select sum(deadlocks) from pg_stat_database") == before


async def test_a_delayed_claim_claims_nothing_after_a_newer_one_found_the_record_taken() -> None:
    async with open_storage(fresh()) as storage:
        address = storage.address("bot", 1)
        await storage.run(Batch.of([Claim(address, "other", 30)], "lane", 1))
        assert isinstance((await storage.run(Batch.of([Claim(address, "mine", 30)], "lane", 2)))[0], Taken)
        await storage.run([Release(address, "other")])
        storage._sent -= 2  # as if this were the first sending, delayed until now
        with pytest.raises(Exception, match="SW001"):
            await storage.run(Batch.of([Claim(address, "mine", 30)], "lane", 2))


async def test_a_batch_refuses_a_name_with_a_lone_surrogate() -> None:
    async with open_storage(fresh()) as storage:
        (address,) = await held(storage, 1)
        base = (await storage.perform(Get(address))).base
        with pytest.raises(EncodeError, match="surrogate"):
            await storage.perform(Apply(address, Change("w", set={"a\ud800": "x"}), Guard("1", base)))


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_abandoned_call_of_a_closed_loop_does_not_release_the_lock_of_the_next_loop() -> None:
    storage = PostgresStorage(shared().url(), schema=schema(), sweep_every=None)
    loop = asyncio.new_event_loop()

    async def leave() -> asyncio.Task[Any]:
        await storage.open()
        task = asyncio.ensure_future(storage._other.fetch("select pg_sleep(5)"))
        await asyncio.sleep(0.1)
        return task

    left: list[Any] = [loop.run_until_complete(leave())]
    loop.close()

    async def go_on() -> None:
        await storage.open()
        connection = storage._other
        using = asyncio.ensure_future(connection.fetch("select pg_sleep(1)"))
        await asyncio.sleep(0.1)
        left[0]._log_destroy_pending = False
        left.clear()
        gc.collect()
        assert connection._lock.locked()
        await asyncio.gather(using, connection.fetch("select 1"))
        await storage.close()

    asyncio.run(go_on())


async def test_claims_and_writes_of_several_workers_do_not_deadlock_and_lose_nothing(admin: Any) -> None:
    await admin.execute("create database other_circles")
    url = shared().url("other_circles")
    workers = [open_storage(url, sweep_every=None) for _ in range(4)]
    chance = random.Random(11)
    written = 0
    try:
        for key in range(25):
            await workers[0].set_data("bot", key, {"n": 0})

        async def work(storage: Storage, worker: int) -> None:
            nonlocal written
            for turn in range(1, 60):
                addresses = [storage.address("bot", key) for key in chance.sample(range(25), 12)]
                claims = [Claim(each, storage.ids(), 30.0) for each in addresses]
                claimed = await storage.run(Batch.of(claims, f"claims {worker}", turn))
                writes = []
                for claim, found in zip(claims, claimed, strict=True):
                    if isinstance(found, Claimed) and found.record is not None:
                        count = int(found.record.fields["n"][9:]) + 1
                        change = Change(storage.ids(), set={"n": f"00000000 {count}"})
                        writes.append(Apply(claim.address, change, Guard(claim.token, found.base)))
                chance.shuffle(writes)
                if writes:
                    results = await storage.run(Batch.of(writes, f"writes {worker}", turn))
                    assert all(isinstance(result, Applied) for result in results), results
                    written += len(results)

        await asyncio.gather(*(work(storage, n) for n, storage in enumerate(workers)))
        assert await admin.fetchval("select deadlocks from pg_stat_database where datname = 'other_circles'") == 0
        found = [await workers[0].perform(Get(workers[0].address("bot", key))) for key in range(25)]
        assert sum(int(stored.fields["n"][9:]) for stored in found) == written > 500
    finally:
        for storage in workers:
            await storage.close()


async def test_a_sweep_removes_unused_lanes(admin: Any) -> None:
    name = schema()
    async with PostgresStorage(shared().url(), schema=name) as storage:
        await storage.update_data("bot", 1, {"a": 1})
        assert await admin.fetchval(f"select count(*) from {name}.journal") == 1
        await storage.sweep()
        assert await admin.fetchval(f"select count(*) from {name}.journal") == 1
        for age, left in ((JOURNAL_LIFE - 5, 1), (JOURNAL_LIFE + 5, 0)):
            await admin.execute(f"update {name}.journal set used_at = now() - make_interval(secs => {age})")
            await storage.sweep()
            assert await admin.fetchval(f"select count(*) from {name}.journal") == left
        assert await storage.update_data("bot", 1, {"b": 1}) == {"a": 1, "b": 1}
