"""``stepwell doctor``, on each storage that processes can share, with planted faults."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from stepwell import State, open_storage
from stepwell.errors import StorageUnavailable
from stepwell.fsm import FSM
from stepwell.nodes import Node, NodeFlow
from stepwell.operate.checks import check_settings, postgres, redis, sqlite
from stepwell.operate.checks.clock import check_clock
from stepwell.operate.processes import processes
from stepwell.storage.operations import Claim
from tests.backends import Backend
from tests.backends.postgres import Postgres
from tests.backends.redis import Redis, RedisCluster
from tests.cli.conftest import Command, Done, fill
from tests.constants import Constants
from tests.servers import pgbouncer
from tests.servers.postgres import PostgresServer, shared
from tests.until import until

BOT = """
from stepwell.fsm import FSM, Flow, Router, state

class Order(Flow, name="order"):
    item = state()
    paid = state()

def make_router(storage):
    return Router(FSM("shop", storage=storage, flows=[Order]))
"""


def levels(done: Done, check: str) -> list[str]:
    return [each["level"] for each in json.loads(done.out)["checks"] if each["check"] == check]


def found(done: Done, level: str) -> str:
    checks = json.loads(done.out)["checks"]
    return "\n".join(f"{each['what']} -> {each['advice']}" for each in checks if each["level"] == level)


def failures(done: Done) -> set[str]:
    """Return the checks that failed, except for fsync: the PostgreSQL of the tests runs without it."""
    failed = {each["check"] for each in json.loads(done.out)["checks"] if each["level"] == "fail"}
    assert done.code == bool(failed)
    return failed if "fsync is off" not in done.out else failed - {"durability"}


@pytest.mark.every_backend
async def test_a_healthy_storage_has_no_failures(url: str, command: Command) -> None:
    done = await command("doctor", "--json")
    assert failures(done) == set()
    for check in ("connection", "server", "records", "timers", "runs", "workers", "quarantine", "leases"):
        assert set(levels(done, check)) == {"ok"}, check
    table = await command("doctor")
    assert table.code == done.code
    assert "3 records of 'shop' can be read" in table.out
    assert "checks, " in table.out


class Fails(Node):
    def exec(self, prep_res: Any) -> Any:
        raise RuntimeError("no stock")


@pytest.mark.every_backend
async def test_planted_faults_are_found_on_each_storage(
    shared_backend: Backend, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = shared_backend.place()
    monkeypatch.setenv("STEPWELL_STORAGE", url)
    file = tmp_path / "bot_of_doctor.py"
    file.write_text(BOT)
    # Everything was written an hour ago: the timers are overdue, and no worker has taken the queued run.
    storage = shared_backend.storage(url, clock=lambda: time.time() - 3600)
    await fill(storage)
    with pytest.raises(RuntimeError):
        await NodeFlow(Fails(name="stock"), name="order").run({}, storage=storage, flow_id="bad")
    await NodeFlow(Fails(name="stock"), name="order").submit({}, storage=storage, flow_id="waits")
    done = await command("doctor", str(file), "--json")
    assert failures(done) == set()
    warnings = found(done, "warn")
    assert "2 records of 'shop' are in order/address, which the code does not declare" in warnings
    assert "2 timers of 'shop' are overdue, the first for 30" in warnings
    assert "; no process of the bot was seen -> start the bot" in warnings
    assert "1 run is failed, the first is bad at node stock: RuntimeError: no stock" in warnings
    assert "runs wait for a worker, waits of the flow 'order' for 36" in warnings
    assert "; no worker of this flow was seen -> start a worker" in warnings


MIGRATING = """
from stepwell.fsm import FSM, Flow, Router, state


class Order(Flow, name="order", revision=2):
    place = state()
    default_state = place

    @staticmethod
    def migrate(old_revision, state, data):
        return "place", data


router = Router(FSM("shop", storage="memory://", flows=[Order]))
"""


async def test_records_of_an_earlier_revision_are_to_be_migrated(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPWELL_STORAGE", url := f"sqlite:///{tmp_path}/a.db")
    file = tmp_path / "bot_that_migrates.py"
    file.write_text(MIGRATING)
    async with open_storage(url) as storage:
        await storage.set_state("shop", 42, State("order", "address", {}))
    warnings = found(await command("doctor", str(file), "--json"), "warn")
    assert "1 record of 'shop' is in order/address, which the code does not declare" in warnings
    assert "stepwell migrate converts all now" in warnings
    assert "add migrate()" not in warnings
    assert (await command("migrate", str(file), "--yes")).code == 0
    assert "order/address" not in found(await command("doctor", str(file), "--json"), "warn")


async def test_processes_that_run_are_counted(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch, constants: Constants
) -> None:
    monkeypatch.setenv("STEPWELL_STORAGE", url := f"sqlite:///{tmp_path}/a.db")
    constants(presence_first=0.0)
    async with open_storage(url, clock=lambda: time.time() - 3600) as storage:
        await fill(storage)
    async with open_storage(url) as storage, FSM("shop", storage=storage, flows=[], run_timers=False):
        await until(lambda: processes(storage, limit=10))
        done = await command("doctor", "--json")
    assert "1 process of bots and workers was seen" in found(done, "ok")
    assert "2 timers of 'shop' are overdue" in found(done, "warn")
    assert "; 1 process of the bot was seen -> look for errors of on_timeout" in found(done, "warn")


@pytest.mark.every_backend
async def test_damaged_records_and_long_leases_are_found_on_each_storage(
    shared_backend: Backend, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = shared_backend.place()
    monkeypatch.setenv("STEPWELL_STORAGE", url)
    async with open_storage(url) as storage:
        await storage.set_data("shop", (1, 1), {"name": "Anna"})
        address = storage.address("shop", (1, 1))
        await shared_backend.corrupt(url, address, "field", "name", lambda text: text.replace(b"Anna", b"Enna"))
        with pytest.raises(Exception, match="checksum"):
            await storage.get_data("shop", (1, 1))
        await storage.perform(Claim(storage.address("shop", (2, 2)), "t", 3600.0))
        await storage.perform(Claim(storage.address("shop", (3, 3)), "t", 60.0))
        done = await command("doctor", "--json")
    assert "records" in failures(done)
    assert "1 of 1 record of 'shop' cannot be read, the first is (1,1) -> stepwell ls shop --damaged" in found(
        done, "fail"
    )
    assert "1 copy of a damaged record is in quarantine" in found(done, "warn")
    assert "shop (2,2) is held for 3" in found(done, "warn")


@pytest.mark.every_backend
async def test_a_clock_that_differs_is_found(
    shared_backend: Backend, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = shared_backend.place()
    async with open_storage(url):
        pass
    monkeypatch.setattr("stepwell.operate.checks.time.time", lambda: 1000.0)
    done = await command("doctor", "--storage", url, "--json")
    clocks = levels(done, "clock")
    assert set(clocks) == (set() if url.startswith("sqlite") else {"warn"})


async def test_a_long_search_for_leases_is_no_difference_of_clocks(tmp_path: Path) -> None:
    backend = Postgres(tmp_path)
    async with open_storage(backend.place()) as storage:
        schema = (await storage.settings())["schema_name"]
        locker: Any = await asyncpg.connect(shared().url())
        async with locker.transaction():
            await locker.execute(f"lock table {schema}.records in access exclusive mode")
            reading = asyncio.create_task(storage.settings())
            await until(lambda: locker.fetchval("select count(*) from pg_locks where not granted"))
            unlocked_at = await locker.fetchval("select date_part('epoch', clock_timestamp())")
        await locker.close()
        assert (await reading)["now"] >= unlocked_at


async def test_a_schema_of_a_later_release_fails(tmp_path: Path, command: Command) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    async with open_storage(url):
        pass
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        connection.execute("PRAGMA user_version = 999")
    done = await command("doctor", "--storage", url, "--json")
    assert (done.code, levels(done, "schema")) == (1, ["fail"])
    assert "has schema 999" in found(done, "fail")


async def test_an_sqlite_file_in_memory_that_others_may_read_and_without_fsync_is_found(command: Command) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        url = f"sqlite:///{folder}/a.db?synchronous=NORMAL"
        async with open_storage(url):
            pass
        Path(folder, "a.db").chmod(0o644)
        done = await command("doctor", "--storage", url, "--json")
    warned = {each["check"] for each in json.loads(done.out)["checks"] if each["level"] == "warn"}
    assert warned >= {"durability", "file system", "permissions"}


async def test_replicas_of_redis_need_durability_wait(command: Command) -> None:
    cluster = RedisCluster(Path()).place()
    assert set(levels(await command("doctor", "--storage", cluster, "--json"), "replicas")) == {"warn"}
    alone = Redis(Path()).place()
    done = await command("doctor", "--storage", f"{alone}{'&' if '?' in alone else '?'}durability=wait", "--json")
    assert levels(done, "replicas") == ["fail"]
    assert "has no append-only file" in found(done, "warn")


async def test_postgresql_settings_that_lose_writes_are_found(command: Command) -> None:
    server = PostgresServer(settings={"synchronous_commit": "local", "synchronous_standby_names": "second"})
    server.start()
    try:
        done = await command("doctor", "--storage", server.url(), "--json")
    finally:
        server.stop()
    assert "fsync is off: a crash can damage the database -> set fsync = on" in found(done, "fail")
    assert "synchronous_commit is local: a write is acknowledged before" in found(done, "warn")


async def test_bots_that_the_code_does_not_have_are_named(url: str, command: Command, tmp_path: Path) -> None:
    (tmp_path / "other_of_doctor.py").write_text(BOT.replace('"shop"', '"market"'))
    done = await command("doctor", str(tmp_path / "other_of_doctor.py"), "--json")
    assert "the code that was given has no bot 'shop'" in found(done, "warn")
    assert "flows and states were not checked" in (await command("doctor")).err


@pytest.mark.parametrize(("options", "level"), [("", "fail"), ("&prepared_statements=off", "ok")])
async def test_pgbouncer_needs_an_option(options: str, level: str, command: Command) -> None:
    url = f"{pgbouncer.lenient().url()}?schema=doctor{options}"
    done = await command("doctor", "--storage", url, "--json")
    assert levels(done, "pooler") == [level]


async def test_a_storage_that_cannot_be_reached_is_one_failure(command: Command) -> None:
    done = await command("doctor", "--storage", "redis://localhost:1?patience=0.1", "--json")
    assert done.code == 1
    assert levels(done, "connection") == ["fail"]


@pytest.mark.parametrize("broken", ["page", "due", "queues"])
async def test_a_server_that_fails_during_the_checks_is_one_failure(
    broken: str, url: str, command: Command, monkeypatch: pytest.MonkeyPatch, shared_backend: Backend
) -> None:
    async def fails(self: Any, *arguments: Any, **options: Any) -> Any:
        raise StorageUnavailable("Redis at 127.0.0.1:7001 cannot be reached", final=True)

    monkeypatch.setattr(type(shared_backend.storage(url)), broken, fails)
    done = await command("doctor", "--json")
    assert (done.code, done.err) == (1, "")
    assert "Redis at 127.0.0.1:7001 cannot be reached" in found(done, "fail")
    assert levels(done, "connection") == ["ok", "fail"]
    text = await command("doctor")
    assert text.code == 1
    assert text.out.splitlines()[-1].endswith(" 1 failure")


async def test_a_damaged_file_gets_no_advice_about_the_network(command: Command, tmp_path: Path) -> None:
    async with open_storage(f"sqlite:///{tmp_path}/a.db") as storage:
        await fill(storage)
    content = (tmp_path / "a.db").read_bytes()
    (tmp_path / "a.db").write_bytes(content[: len(content) // 2])
    done = await command("doctor", "--storage", f"sqlite:///{tmp_path}/a.db", "--json")
    assert "restore it from a backup" in found(done, "fail")
    assert "network" not in done.out


async def test_the_patience_of_bots_is_judged_and_not_that_of_the_command(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[float] = []

    def check(settings: Any) -> list[Any]:
        judged.append(settings["patience"])
        return []

    monkeypatch.setattr("stepwell.operate.doctor.check_settings", check)
    for option, patience in (("durability=fast", 10.0), ("patience=3", 3.0)):
        url = Redis(Path()).place()
        done = await command("doctor", "--storage", f"{url}{'&' if '?' in url else '?'}{option}")
        assert (done.code, judged) == (0, [patience]), done.err
        judged.clear()


async def test_code_without_flows_is_reported(url: str, command: Command, tmp_path: Path) -> None:
    (tmp_path / "empty_of_doctor.py").write_text("")
    done = await command("doctor", str(tmp_path / "empty_of_doctor.py"))
    assert (done.code, done.out) == (1, "")
    assert "has no router, FSM or NodeFlow" in done.err


def worst(findings: list[Any]) -> set[tuple[str, str]]:
    return {(each.check, each.level) for each in findings if each.level != "ok"}


def test_settings_of_sqlite() -> None:
    good = {
        "backend": "sqlite", "version": "3.51.3", "wal_reset_bug": False, "schema": 4, "synchronous": "FULL",
        "file_system": "ext4", "network": False, "bytes": 1, "wal_bytes": 0, "free_bytes": 1 << 40,
        "others_can_read": False, "wal_ignored": {"frames": 0, "commits": 0},
    }  # fmt: skip
    assert worst(check_settings(good)) == set()
    bad = {"wal_reset_bug": True, "network": True, "synchronous": "NORMAL", "free_bytes": 1, "wal_bytes": 1 << 40}
    assert worst(sqlite.check({**good, **bad, "others_can_read": True}, 0.0)) == {
        ("server", "fail"), ("file system", "fail"), ("durability", "warn"), ("disk", "warn"), ("WAL", "warn"),
        ("permissions", "warn"),
    }  # fmt: skip
    assert worst(sqlite.check({**good, "file_system": "tmpfs"}, 0.0)) == {("file system", "warn")}


def test_settings_of_redis() -> None:
    node = {
        "redis_version": "8.2.2", "maxmemory_policy": "noeviction", "aof_enabled": "1", "connected_slaves": "0",
        "now": 1000.0,
    }  # fmt: skip

    def check(durability: str = "fast", wait_for: int = 1, **changes: Any) -> set[tuple[str, str]]:
        settings = {"backend": "redis", "durability": durability, "wait_for": wait_for}
        return worst(redis.check({**settings, "nodes": {"a:1": {**node, **changes}}}, 1000.0))

    assert check() == set()
    assert check(redis_version="8.2.1") == check(redis_version="7.0.15") == {("server", "warn")}
    assert check(redis_version="6.0.9") == {("server", "fail")}
    assert check(valkey_version="8.1.3") == {("server", "warn")}
    assert check(valkey_version="9.0.0") == set()
    assert check(maxmemory_policy="volatile-lru", evicted_keys="3") == {("eviction", "fail"), ("evicted", "fail")}
    assert check(aof_enabled="0") == {("persistence", "warn")}
    assert check(aof_last_write_status="err") == {("persistence", "fail")}
    assert check("wait") == {("replicas", "fail")}
    assert check(connected_slaves="1") == {("replicas", "warn")}
    assert check("wait", connected_slaves="1") == check("wait", 2, connected_slaves="2") == set()
    assert check("wait", 2, connected_slaves="1") == {("replicas", "fail")}
    assert check(now=1010.0) == {("clock", "warn")}
    nodes: dict[str, Any] = {"a:1": {}}
    assert worst(redis.check({"durability": "fast", "nodes": nodes}, 0.0)) == {("server", "warn")}


def test_settings_of_sentinels() -> None:
    node = {
        "redis_version": "8.2.2", "maxmemory_policy": "noeviction", "aof_enabled": "1", "connected_slaves": "2",
        "now": 1000.0, "min_slaves_good_slaves": "2",
    }  # fmt: skip
    good = {"num-other-sentinels": "2", "down-after-milliseconds": "5000"}

    def check(known: dict[str, str], node: dict[str, Any] = node, patience: float = 10.0) -> set[tuple[str, str]]:
        settings = {"durability": "wait", "nodes": {"a:1": node}, "sentinels": {"b:1": known}, "patience": patience}
        return worst(redis.check(settings, 1000.0))

    assert check(good) == set()
    assert check({"problem": "NOQUORUM"}) == {("sentinel", "fail")}
    assert check({**good, "num-other-sentinels": "1"}) == {("sentinels", "warn")}
    assert check({**good, "down-after-milliseconds": "30000"}) == {("patience", "warn")}
    assert check({**good, "down-after-milliseconds": "30000"}, patience=60.0) == set()
    unsafe = {name: value for name, value in node.items() if name != "min_slaves_good_slaves"}
    assert check(good, unsafe) == {("split brain", "warn")}


def test_settings_of_postgresql() -> None:
    good = {
        "backend": "postgres", "server_version": "17.2", "server_version_num": "170002", "synchronous_commit": "on",
        "fsync": "on", "full_page_writes": "on", "in_recovery": False, "now": 1000.0, "schema": 5, "pooled": False,
        "prepared_statements": True, "synchronous_standby_names": "", "replicas": 0, "servers": {},
        "partitions": 0, "partitions_wanted": 0, "schema_name": "stepwell",
    }  # fmt: skip

    def check(**changes: Any) -> set[tuple[str, str]]:
        return worst(postgres.check({**good, **changes}, 1000.0))

    assert check() == check(synchronous_commit="off") == check(pooled=True, prepared_statements=False) == set()
    assert check(server_version_num="130009") == check(in_recovery=True) == {("server", "fail")}
    assert check(fsync="off") == check(full_page_writes="off") == {("durability", "fail")}
    assert check(pooled=True) == {("pooler", "fail")}
    assert check(replicas=1) == {("durability", "warn")}
    assert check(replicas=1, synchronous_standby_names="b") == set()
    assert check(now=900.0) == {("clock", "warn")}
    assert check(partitions=16) == check(partitions=16, partitions_wanted=16) == set()
    assert check(partitions_wanted=16) == {("partitions", "warn")}
    assert check(servers={"a:1": "accepts writes", "b:1": "is a standby"}) == set()
    assert check(servers={"a:1": "accepts writes", "b:1": "cannot be used: ..."}) == {("servers", "warn")}
    assert check(servers={"a:1": "accepts writes", "b:1": "was replaced by ..."}) == {("servers", "fail")}
    assert check(servers={"a:1": "accepts writes", "b:1": "accepts writes"}) == {("servers", "warn")}


def test_the_skew_of_a_clock_has_a_direction() -> None:
    assert "10.0 s ahead of" in check_clock("a", 110.0, 100.0).what
    assert "10.0 s behind" in check_clock("a", 90.0, 100.0).what
