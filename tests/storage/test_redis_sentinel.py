"""Sentinels name the master; tests/reliability/test_sentinel.py has the failovers."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis.asyncio.sentinel import Sentinel as Client

from stepwell import State, Storage, open_storage
from stepwell.errors import InvalidOption, StorageUnavailable
from stepwell.slot import Slot
from stepwell.storage.redis import RedisStorage
from stepwell.storage.redis.sentinel import sentinel_config
from tests.servers.process import free_port
from tests.servers.proxy import CERTIFICATE, Proxy
from tests.servers.redis import RedisServer, SentinelProcess, the_cluster
from tests.storage.test_redis_cluster import linked
from tests.storage.test_redis_faults import acl_line
from tests.until import until

BOT = "bot"


@pytest.fixture
def server() -> Iterator[RedisServer]:
    server = RedisServer("--repl-diskless-sync-delay", "0")
    yield server
    server.stop()


@pytest.fixture
def sentinel(server: RedisServer) -> Iterator[SentinelProcess]:
    sentinel = SentinelProcess(f"sentinel monitor one 127.0.0.1 {server.port} 1")
    yield sentinel
    sentinel.stop()


def url(*sentinels: RedisServer | int, name: str = "one", login: str = "", query: str = "") -> str:
    ports = [each if isinstance(each, int) else each.port for each in sentinels]
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    return f"redis+sentinel://{login}{hosts}/{name}/0{query}"


async def test_records_are_written_to_the_master_that_a_sentinel_names(
    server: RedisServer, sentinel: SentinelProcess
) -> None:
    gone = free_port()
    async with open_storage(url(gone, sentinel)) as storage:
        await storage.set_state(BOT, 1, State("f", "s", {"a": 1}))
        async with Slot(storage, BOT, 1) as slot:
            slot.data["a"] = 2
            await slot.commit()
        assert [entry.state async for entry in storage.scan(BOT)] == [State("f", "s", {"a": 2})]
        assert storage.location == f"Redis at one of the Sentinels 127.0.0.1:{gone},127.0.0.1:{sentinel.port}"
        settings = await storage.settings()
        assert list(settings["nodes"]) == [f"127.0.0.1:{server.port}"]
        known = settings["sentinels"][f"127.0.0.1:{sentinel.port}"]
        assert (known["name"], known["quorum"], known.get("problem")) == ("one", "1", None)
        assert "cannot be reached" in settings["sentinels"][f"127.0.0.1:{gone}"]["problem"]
    with server.client() as client:
        assert client.keys("stepwell:*:r:bot/1")


async def test_a_sentinel_client_that_was_passed_in_is_used_and_never_closed(sentinel: SentinelProcess) -> None:
    manager = Client([("127.0.0.1", sentinel.port)])
    client = manager.master_for("one", db=3)
    async with RedisStorage(client) as storage:
        await storage.set_state(BOT, 1, State("f", "s"))
        assert await client.dbsize() > 0
        assert storage.location == f"Redis at one of the Sentinels 127.0.0.1:{sentinel.port}"
    assert await client.ping()
    for each in (client, *manager.sentinels):
        await each.aclose()


async def test_sentinels_and_servers_have_passwords_of_their_own() -> None:
    server = RedisServer("--requirepass", "one")
    sentinel = SentinelProcess(
        "requirepass two", f"sentinel monitor one 127.0.0.1 {server.port} 1", "sentinel auth-pass one one"
    )
    try:
        async with open_storage(url(sentinel, login=":one@", query="?sentinel_password=two")) as storage:
            await storage.set_state(BOT, 1, State("f", "s"))
        for login, query, refuses in (
            (":wrong@", "?sentinel_password=two", f"127.0.0.1:{server.port} refuses the user or password"),
            (":one@", "?sentinel_password=wrong", f"127.0.0.1:{sentinel.port} refuses .*; check sentinel_username and"),
            (":one@", "", f"127.0.0.1:{sentinel.port} refuses the user or password .*; check sentinel_username and"),
        ):
            storage = open_storage(url(sentinel, login=login, query=query), patience=60)
            start = time.monotonic()
            with pytest.raises(StorageUnavailable, match=refuses) as caught:
                await storage.open()
            assert time.monotonic() - start < 30, "not retried"
            assert "wrong" not in f"{caught.value!r} {caught.value} {storage!r} {storage.location}"
    finally:
        sentinel.stop()
        server.stop()


async def test_a_name_that_the_sentinels_do_not_know_is_an_error_at_once(sentinel: SentinelProcess) -> None:
    storage = open_storage(url(sentinel, name="other"), patience=60)
    start = time.monotonic()
    with pytest.raises(StorageUnavailable, match=r"names the master other: .* does not know this name, it knows one$"):
        await storage.open()
    assert time.monotonic() - start < 30, "not retried"


async def test_a_server_in_place_of_a_sentinel_is_an_error_at_once(server: RedisServer) -> None:
    storage = open_storage(url(server), patience=60)
    with pytest.raises(StorageUnavailable, match=f"127.0.0.1:{server.port} does not answer as a Sentinel"):
        await storage.open()


async def test_the_error_names_all_sentinels_that_are_down() -> None:
    ports = [free_port(), free_port()]
    storage = open_storage(url(*ports), patience=0.1)
    with pytest.raises(StorageUnavailable) as caught:
        await storage.get_state(BOT, 1)
    assert all(f"127.0.0.1:{port} cannot be reached" in str(caught.value) for port in ports)
    await storage.close()


async def test_a_silent_sentinel_does_not_delay_the_others(server: RedisServer, sentinel: SentinelProcess) -> None:
    others = [SentinelProcess(f"sentinel monitor one 127.0.0.1 {server.port} 1") for _ in range(2)]
    others[0].process.pause()
    try:
        start = time.monotonic()
        async with open_storage(url(others[0], others[1], sentinel), timeout=60, patience=0) as storage:
            await storage.set_state(BOT, 1, State("f", "s"))
        assert time.monotonic() - start < 30
    finally:
        for each in others:
            each.stop()


async def test_a_server_that_is_a_replica_is_not_used(server: RedisServer, sentinel: SentinelProcess) -> None:
    async with open_storage(url(sentinel), patience=0.3) as storage:
        await storage.set_state(BOT, 1, State("f", "s"))
        with server.client() as client:
            client.replicaof("127.0.0.1", free_port())
            with pytest.raises(StorageUnavailable, match=r"not the master of one any more|READONLY"):
                await storage.update_data(BOT, 1, {"a": 1})
            with pytest.raises(StorageUnavailable, match=f"127.0.0.1:{server.port} is not the master of one any more"):
                await storage.get_state(BOT, 1)
            client.replicaof("NO", "ONE")
        assert await storage.update_data(BOT, 1, {"a": 1}) == {"a": 1}


async def test_a_user_with_the_documented_acl_line_can_use_a_master(
    server: RedisServer, sentinel: SentinelProcess
) -> None:
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "stepwell", "on", ">pass", *acl_line())
        async with open_storage(url(sentinel, login="stepwell:pass@")) as storage:
            await storage.set_state(BOT, 1, State("f", "s"))
        client.execute_command("ACL", "SETUSER", "stepwell", "-role")
    with pytest.raises(StorageUnavailable, match=r"does not permit its user .* ACL line in docs/redis.md"):
        await open_storage(url(sentinel, login="stepwell:pass@"), patience=60).open()


async def test_tls_checks_the_certificates_of_sentinels(sentinel: SentinelProcess) -> None:
    async with Proxy(sentinel.port, tls=True) as proxy:
        place = f"rediss+sentinel://127.0.0.1:{proxy.port}/other"
        with pytest.raises(StorageUnavailable, match=r"(?i)certificate"):
            await open_storage(place, patience=0.1).open()
        with pytest.raises(StorageUnavailable, match="does not know this name, it knows one"):
            await open_storage(f"{place}?ssl_ca_certs={CERTIFICATE}", patience=0.1).open()


async def test_lists_that_may_lag_are_read_from_a_replica(server: RedisServer) -> None:
    replica = RedisServer("--replicaof", "127.0.0.1", str(server.port))
    await linked(server)
    sentinel = SentinelProcess(f"sentinel monitor one 127.0.0.1 {server.port} 1")
    try:
        with sentinel.client() as client:
            await until(lambda: [each["master-link-status"] for each in client.sentinel_slaves("one")] == ["ok"])
        async with open_storage(url(sentinel), replicas="scan", durability="wait") as storage:
            await check_lists(storage, lambda: ([server], [replica]))
            replica.process.kill()
            assert await keys_of(storage, may_lag=True) == set(range(100)), "the master answers"
    finally:
        sentinel.stop()
        replica.stop()


async def test_lists_that_may_lag_are_read_from_replicas_of_a_cluster() -> None:
    cluster = the_cluster()

    def roles() -> tuple[list[RedisServer], list[RedisServer]]:
        masters = cluster.masters()
        return masters, [node for node in cluster.nodes if node not in masters]

    place = cluster.url(f"?prefix={uuid.uuid4().hex}&replicas=scan&durability=wait")
    async with open_storage(place, sweep_every=None) as storage:
        await check_lists(storage, roles)


async def check_lists(storage: Storage, roles: Callable[[], tuple[list[RedisServer], list[RedisServer]]]) -> None:
    """Check which servers run the scripts of lists. ``roles`` returns the present masters and replicas."""
    await asyncio.gather(*(storage.set_state(BOT, n, State("f", "s", {"n": n})) for n in range(100)))
    async with asyncio.timeout(60):
        for may_lag in (True, False):
            while True:
                masters, replicas = roles()
                serving, idle = (replicas, masters) if may_lag else (masters, replicas)
                before = scripts(serving), scripts(idle)
                # A replica applies a write a moment after it has received it. On a busy machine it may be too slow to
                # answer at all, and then the master does.
                whole = await keys_of(storage, may_lag=may_lag) == set(range(100))
                after = scripts(serving), scripts(idle)
                if whole and after[0] > before[0] and after[1] == before[1]:
                    break
                assert may_lag or roles() != (masters, replicas)


async def keys_of(storage: Storage, *, may_lag: bool) -> set[Any]:
    return {entry.key async for entry in storage.scan(BOT, may_lag=may_lag)}


def scripts(servers: list[RedisServer]) -> int:
    """Return how many scripts these servers have run for clients."""
    count = 0
    for server in servers:
        with server.client() as client:
            count += client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)
    return count


def test_a_single_server_has_no_replicas_to_read_from() -> None:
    with pytest.raises(InvalidOption, match=r"needs redis\+sentinel:// or redis\+cluster://"):
        open_storage("redis://localhost?replicas=scan")
    with pytest.raises(InvalidOption, match="replicas is 'none' or 'scan', not 'all'"):
        open_storage("redis+sentinel://localhost/m?replicas=all")


@pytest.mark.parametrize(
    ("text", "sentinels", "server"),
    [
        ("redis+sentinel://a,b:1/m", [("a", 26379), ("b", 1)], {}),
        ("redis+sentinel://[::1],[::2]:5/m/", [("::1", 26379), ("::2", 5)], {}),
        ("redis+sentinel://u:p%40@a/m/3", [("a", 26379)], {"username": "u", "password": "p@", "db": 3}),
        ("redis+sentinel://a/my%2Dm?db=2&client_name=x", [("a", 26379)], {"db": 2, "client_name": "x"}),
    ],
)
def test_urls_are_parsed(text: str, sentinels: list[tuple[str, int]], server: dict[str, Any]) -> None:
    config = sentinel_config(text)
    assert [each.address for each in config.sentinels] == sentinels
    assert server.items() <= config.arguments.items()
    assert config.master in ("m", "my-m")
    for each in config.sentinels:
        assert not {"db", "username", "password"} & each.arguments.keys()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("redis+sentinel://localhost", "name of their master in its path, as in redis"),
        ("redis+sentinel://localhost/", "name of their master"),
        ("redis+sentinel://localhost/m/x", "the number of a database"),
        ("redis+sentinel://localhost:x/m", "its port must be a number"),
        ("redis+sentinel://localhost/m?sentinel=1", "no option 'sentinel'"),
    ],
)
def test_the_error_for_an_invalid_url_names_the_invalid_part(text: str, says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        open_storage(text)
