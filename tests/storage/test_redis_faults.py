"""Faults of Redis servers and connections are handled, or raise a typed error in time."""

from __future__ import annotations

import asyncio
import gc
import time
import traceback
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import hiredis
import pytest
from redis.asyncio import Redis as Client

from stepwell import State, Storage, open_storage
from stepwell.errors import (
    CorruptRecord,
    InvalidOption,
    LeaseLost,
    NotReplicated,
    OutcomeUnknown,
    StorageError,
    StorageFull,
    StorageUnavailable,
)
from stepwell.record import Address, Change
from stepwell.slot import Slot
from stepwell.storage import Apply, Claim, Claimed, Get, Release
from stepwell.storage.redis import RedisStorage
from stepwell.storage.redis.client import RedisConnection, ServerConfig
from stepwell.storage.redis.wire import refusal
from stepwell.storage.transport.batch import JOURNAL_LIFE, Batch
from tests.constants import Constants
from tests.servers.proxy import CERTIFICATE, Proxy
from tests.servers.redis import RedisServer, system_binary, the_cluster, the_server
from tests.storage.key_checks import skip_key_checks
from tests.until import until

BOT = "bot"
#: The beginning of a claim in the argument of the batch script: a list of five that begins with its letter, in msgpack.
CLAIM = b"\x95\xa1C"


def prefix() -> str:
    return f"?prefix={uuid.uuid4().hex}"


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    async with Proxy(the_server().port, seed=4) as proxy:
        yield proxy


def through(proxy: Proxy, **options: Any) -> Storage:
    return open_storage(f"redis://127.0.0.1:{proxy.port}/{prefix()}", sweep_every=None, **options)


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    server = RedisServer()
    yield server
    server.stop()


@pytest.fixture(params=["valkey", "system"])
def either_server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A Valkey server, and one of the system's Redis."""
    server = RedisServer(program=system_binary() if request.param == "system" else None)
    yield server
    server.stop()


# Unknown outcomes


async def test_a_hundred_cut_connections_neither_lose_nor_double_a_write(proxy: Proxy) -> None:
    async with through(proxy) as storage:
        start = (await storage.perform(_merge(storage, "first"))).version.number
        proxy.cut_rate, proxy.cut_what, proxy.most_cuts = 0.4, b"EVALSHA", 100
        done: list[int] = []

        async def writer(number: int) -> None:
            count = 0
            while proxy.cuts < 100 or count < 20:
                applied = await storage.perform(_merge(storage, f"{number}/{count}"))
                done.append(applied.version.number)
                count += 1

        await asyncio.gather(*(writer(number) for number in range(8)))
        data = await storage.get_data(BOT, "hot")
        assert proxy.cuts >= 100
    assert data is not None
    # Every write was acknowledged, made a field of its own, and grew the version by one.
    assert len(data) == len(done) + 1
    assert sorted(done) == list(range(start + 1, start + 1 + len(done)))


def _merge(storage: Storage, name: str) -> Apply:
    address = storage.address(BOT, "hot")
    change = Change(write=storage.ids(), set=storage.seal(address).fields({name: 1}), limit=1 << 24)
    return Apply(address, change)


async def test_cut_claims_and_commits_still_make_each_update_once(proxy: Proxy) -> None:
    async with through(proxy) as storage:
        await storage.set_state(BOT, "count", State("f", "s", {"n": 0}))
        proxy.cut_rate, proxy.cut_what, proxy.most_cuts = 0.3, b"EVALSHA", 20

        async def update() -> None:
            async with Slot(storage, BOT, "count") as slot:
                slot.data["n"] += 1
                await slot.commit()

        for _ in range(6):
            await asyncio.gather(*(update() for _ in range(10)))
        assert proxy.cuts >= 10
        assert await storage.get_data(BOT, "count") == {"n": 60}


async def test_a_write_that_is_never_answered_has_an_unknown_outcome_in_time(proxy: Proxy) -> None:
    async with through(proxy, timeout=0.8, patience=0.3) as storage:
        await skip_key_checks(storage, BOT).set_state(BOT, 1, State("f", "s"))
        proxy.fall_silent()
        start = time.monotonic()
        with pytest.raises(OutcomeUnknown):
            await storage.update_data(BOT, 1, {"a": 1})
        with pytest.raises(StorageUnavailable):
            await storage.get_state(BOT, 1)
        assert time.monotonic() - start < 30
        proxy.speak()
        assert await storage.get_state(BOT, 1) == State("f", "s")


async def test_the_first_call_to_a_silent_server_raises_in_time(proxy: Proxy) -> None:
    proxy.fall_silent()
    storage = through(proxy, timeout=0.2, patience=0.3)
    start = time.monotonic()
    with pytest.raises(StorageUnavailable, match="does not answer within"):
        await storage.open()
    assert time.monotonic() - start < 30
    await storage.close()


async def test_calls_that_wait_behind_two_unanswered_ones_fail_with_them(proxy: Proxy) -> None:
    connection = RedisConnection(ServerConfig.from_url(f"redis://127.0.0.1:{proxy.port}"), 0.2)
    await connection.exchange([("PING",)])
    proxy.fall_silent()
    errors = await asyncio.gather(*(connection.exchange([("PING",)]) for _ in range(10)), return_exceptions=True)
    assert [(type(error), error.sent) for error in errors if isinstance(error, StorageUnavailable)] == [
        (StorageUnavailable, sent) for sent in [True, *[False] * 9]
    ]
    assert ["has not answered two calls" in str(error) for error in errors] == [*[False] * 2, *[True] * 8]
    proxy.speak()
    assert await connection.exchange([("PING",)]) in (["PONG"], [b"PONG"])
    await connection.close()


async def test_a_server_that_is_not_there_gives_an_error_in_time(own_server: RedisServer) -> None:
    own_server.process.kill()
    storage = open_storage(own_server.url(), patience=0.2)
    with pytest.raises(StorageUnavailable, match=f"127.0.0.1:{own_server.port}"):
        await storage.get_state(BOT, 1)
    await storage.close()


async def test_a_server_that_comes_back_is_used_again(own_server: RedisServer) -> None:
    async with open_storage(own_server.url(), sweep_every=None) as storage:
        await storage.set_state(BOT, 1, State("f", "s"))
        own_server.process.kill()
        writing = asyncio.create_task(storage.update_data(BOT, 1, {"a": 1}))
        await asyncio.sleep(0.1)
        await asyncio.to_thread(own_server.start)
        # It kept nothing, and says so.
        assert await writing == {"a": 1}
        assert await storage.get_state(BOT, 1) == State(None, None, {"a": 1})


async def test_a_cancelled_call_leaves_no_answer_for_the_next(proxy: Proxy) -> None:
    async with through(proxy) as storage:
        await storage.set_state(BOT, 1, State("f", "one"))
        await storage.set_state(BOT, 2, State("f", "two"))
        address = storage.address(BOT, 1)
        for pause in range(10):
            task = asyncio.create_task(storage.run([Get(address)]))
            await asyncio.sleep(pause / 5000)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            (found,) = await storage.run([Get(storage.address(BOT, 2))])
            assert storage.seal(storage.address(BOT, 2)).open_head(found.head).place.state == "two"


async def test_the_journal_of_a_lane_lives_as_long_as_the_lane_counts_on(own_server: RedisServer) -> None:
    async with open_storage(own_server.url(), sweep_every=None) as storage:
        await storage.update_data(BOT, 1, {"a": 1})
        with own_server.client() as client:
            (journal,) = client.keys("*:j:*")
            assert JOURNAL_LIFE - 30 < client.ttl(journal) <= JOURNAL_LIFE


# Claims that arrive late


async def test_a_claim_that_arrives_after_it_was_sent_again_and_released_leases_nothing(proxy: Proxy) -> None:
    async with through(proxy) as storage:
        await storage.set_state(BOT, 1, State("f", "s"))
        proxy.hold_what = CLAIM
        async with Slot(storage, BOT, 1) as slot:
            assert proxy.holds.is_set()
            slot.state = "t"
            await slot.commit()
        await proxy.let_through()
        async with Slot(storage, BOT, 1, wait=10) as slot:
            assert slot.state == "t"


async def test_a_claim_that_arrives_after_it_was_given_up_leases_nothing(proxy: Proxy) -> None:
    async with through(proxy, patience=0.0) as storage:
        await storage.set_state(BOT, 1, State("f", "s"))
        proxy.hold_what = CLAIM
        with pytest.raises(StorageUnavailable):
            await storage.perform(Claim(storage.address(BOT, 1), "token", 30.0))
        assert proxy.holds.is_set()
        # This read is queued behind the release of the claim.
        assert await storage.get_state(BOT, 1) == State("f", "s")
        await proxy.let_through()
        async with Slot(storage, BOT, 1, wait=10) as slot:
            assert slot.state == "s"


async def test_a_write_that_arrives_after_it_was_given_up_overwrites_nothing_later(proxy: Proxy) -> None:
    async with through(proxy, patience=0.0) as storage:
        await storage.set_state(BOT, 1, State("f", "s"))
        proxy.hold_what = b"given up"
        with pytest.raises(OutcomeUnknown):
            await storage.update_data(BOT, 1, {"text": "given up"})
        assert proxy.holds.is_set()
        await storage.update_data(BOT, 1, {"text": "later"})
        await proxy.let_through()
        assert await storage.get_data(BOT, 1) == {"text": "later"}


# Costs


async def test_a_claim_a_change_and_a_commit_are_two_round_trips(proxy: Proxy) -> None:
    async with through(proxy) as storage:
        for _ in range(2):
            before = proxy.round_trips
            async with Slot(storage, BOT, 1) as slot:
                slot.data["n"] = slot.data.get("n", 0) + 1
                await slot.commit()
        assert proxy.round_trips - before == 2


async def test_fifty_updates_of_one_key_are_a_hundred_and_ten_commands_at_most(
    proxy: Proxy, constants: Constants
) -> None:
    # Four times a second, two more commands let another process go first; on a slow machine these add up.
    constants(waiters_check_every=3600.0)
    async with through(proxy) as storage:

        async def update() -> None:
            async with Slot(storage, BOT, 1) as slot:
                slot.data["n"] = slot.data.get("n", 0) + 1
                await slot.commit()

        await update()
        proxy.requests = bytearray()
        start = time.monotonic()
        await asyncio.gather(*(update() for _ in range(50)))
        took = time.monotonic() - start
        assert await storage.get_data(BOT, 1) == {"n": 51}
    reader = hiredis.Reader()
    reader.feed(bytes(proxy.requests))
    commands = 0
    while reader.gets() is not False:
        commands += 1
    assert 100 <= commands <= 110, "the last read included"
    # A pause between two holders would take longer.
    assert took < 5


async def test_fifty_merges_of_fifty_tasks_are_a_few_round_trips(proxy: Proxy) -> None:
    async with through(proxy) as storage:
        await storage.update_data(BOT, 1, {"first": 0})
        before = proxy.round_trips
        await asyncio.gather(*(storage.update_data(BOT, 1, {f"f{n}": n}) for n in range(50)))
        assert proxy.round_trips - before <= 3
        assert len(await storage.get_data(BOT, 1) or {}) == 51


# What a server may say


async def test_scripts_are_taught_again_after_a_flush() -> None:
    async with open_storage(the_server().url(prefix())) as storage:
        await storage.set_state(BOT, 1, State("f", "s"))
        with the_server().client() as client:
            client.script_flush()
        await storage.update_data(BOT, 1, {"a": 1})
        with the_server().client() as client:
            client.script_flush()
        assert [entry.state async for entry in storage.scan(BOT)] == [State("f", "s", {"a": 1})]


async def test_a_full_server_writes_nothing_and_raises(own_server: RedisServer) -> None:
    async with open_storage(own_server.url(), patience=0.3) as storage:
        await storage.set_state(BOT, 1, State("f", "s", {"a": 1}))
        with own_server.client() as client:
            client.config_set("maxmemory", "1")
            with pytest.raises(StorageFull):
                await storage.update_data(BOT, 1, {"b": 1})
            assert await storage.get_state(BOT, 1) == State("f", "s", {"a": 1})
            client.config_set("maxmemory", "0")
        assert await storage.update_data(BOT, 1, {"b": 1}) == {"a": 1, "b": 1}


@pytest.mark.parametrize(("option", "value"), [("min-replicas-to-write", "1"), ("maxmemory", "1")])
async def test_a_late_claim_is_refused_although_the_server_refused_writes_meanwhile(
    option: str, value: str, own_server: RedisServer
) -> None:
    async with (
        Proxy(own_server.port) as proxy,
        open_storage(f"redis://127.0.0.1:{proxy.port}", sweep_every=None) as storage,
    ):
        address = storage.address(BOT, 1)
        await storage.set_state(BOT, 1, State("f", "s"))
        proxy.hold_what = b"EVALSHA"
        with pytest.raises(StorageUnavailable):
            await storage.run(Batch.of([Claim(address, "late", 30.0)], "lane", 1))
        with own_server.client() as client:
            client.config_set(option, value)
            # It finds no lease, so it needs no write.
            await storage.run(Batch.of([Release(address, "late")], "lane", 2))
            client.config_set(option, "0")
        await storage.run(Batch.of([Release(address, "late")], "lane", 3))
        await proxy.let_through()
        assert type(await storage.perform(Claim(address, "another", 30.0))) is Claimed


def test_the_errors_of_redis_6_2_inside_a_script_are_recognized() -> None:
    address = Address(BOT, "1")
    full = refusal("@user_script: 247: -OOM command not allowed when used memory > 'maxmemory'.", address)
    assert type(full) is StorageFull
    with pytest.raises(StorageUnavailable, match="replica"):
        refusal("@user_script: 247: -READONLY You can't write against a read only replica.", address)


async def test_a_server_that_becomes_a_replica_is_an_error_until_it_is_a_master(own_server: RedisServer) -> None:
    async with open_storage(own_server.url(), patience=0.3) as storage:
        await storage.set_state(BOT, 1, State("f", "s"))
        with own_server.client() as client:
            client.replicaof("127.0.0.1", the_server().port)
            try:
                with pytest.raises(StorageUnavailable, match=r"READONLY|MASTERDOWN|loading"):
                    await storage.update_data(BOT, 1, {"b": 1})
            finally:
                client.replicaof("NO", "ONE")
        await storage.set_state(BOT, 1, State("f", "t"))
        assert await storage.get_state(BOT, 1) == State("f", "t")


async def test_a_server_that_is_loading_is_waited_for() -> None:
    server = RedisServer("--loading-process-events-interval-bytes", "1024")
    try:
        with server.client() as client:
            client.mset({f"key{n}": "x" * 100 for n in range(1000)})
            client.save()
        server.process.kill()
        # A thousand keys of a millisecond each.
        server.start("--key-load-delay", "1000")
        storage = open_storage(server.url(), patience=0.1)
        with pytest.raises(StorageUnavailable, match="is loading its data"):
            await storage.get_state(BOT, 1)
        await storage.close()
        async with open_storage(server.url(), patience=30) as storage:
            await storage.set_state(BOT, 1, State("f", "s"))
    finally:
        server.stop()


async def test_a_list_is_read_again_if_the_server_has_closed_its_connection(own_server: RedisServer) -> None:
    async with RedisStorage.from_url(own_server.url(), patience=0.1) as storage:
        await storage.set_state(BOT, 1, State("f", "s"))
        with own_server.client() as client:
            for read in (storage.namespaces, lambda: storage.due(BOT), lambda: storage.queued(BOT, "q")):
                await read()
                client.client_kill_filter(_type="normal", skipme=True)
                assert await read() is not None
            client.client_kill_filter(_type="normal", skipme=True)
            assert [entry.key async for entry in storage.scan(BOT)] == [1]


async def test_a_server_that_quotes_the_handshake_does_not_show_the_password() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            words = []
            for _ in range(int(line[1:])):
                size = int((await reader.readline())[1:])
                words.append((await reader.readexactly(size + 2))[:-2].decode())
            quoted = " ".join(f"'{word}'" for word in words[1:])
            writer.write(f"-ERR unknown command '{words[0]}', with args beginning with: {quoted}\r\n".encode())
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    storage = RedisStorage.from_url(f"redis://ann:hunter2@127.0.0.1:{port}/0?patience=30")
    with pytest.raises(StorageUnavailable, match=r"use Redis 6\.2 or newer") as caught:
        await storage.open()
    assert caught.value.final
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))
    server.close()


@pytest.mark.parametrize("user", ["default", "nobody"])
async def test_a_wrong_password_is_an_error_at_once_that_does_not_show_it(own_server: RedisServer, user: str) -> None:
    with own_server.client() as client:
        client.config_set("requirepass", "right")
    storage = open_storage(f"redis://{user}:se%2Fcret@127.0.0.1:{own_server.port}/0", patience=60)
    start = time.monotonic()
    with pytest.raises(StorageUnavailable, match="refuses the user or password") as caught:
        await storage.get_state(BOT, 1)
    assert time.monotonic() - start < 30, "not retried"
    error: BaseException | None = caught.value
    while error is not None:
        assert "cret" not in f"{error} {error!r}"
        error = error.__cause__ or error.__context__
    assert "cret" not in repr(storage)
    async with open_storage(f"redis://:right@127.0.0.1:{own_server.port}/0") as allowed:
        assert await allowed.get_state(BOT, 1) is None


@pytest.mark.parametrize(
    "url", ["redis://:se/cret@localhost/0", "redis://u:se#cret:x@localhost:1", "redis://:a@b:cret/"]
)
def test_a_url_that_cannot_be_read_is_not_shown(url: str) -> None:
    try:
        storage = open_storage(url)
    except InvalidOption as error:
        assert "cret" not in f"{error} {error.__cause__}"
        assert error.__cause__ is None
    else:
        assert "cret" not in repr(storage)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis://localhost/production", "the number of a database, such as /0$"),
        ("redis://localhost/1/2", "the number of a database"),
        ("redis://localhost/-1", "the number of a database"),
        ("rediss://localhost/1x", "the number of a database"),
        ("redis://u:12/cret@localhost/0", "an @ after its host; in a password, write .* / as %2F"),
        ("redis+cluster://localhost/x", "the number of a database"),
        ("redis+cluster://localhost:1,localhost:2/3", "only database 0"),
        ("redis+cluster://localhost?db=3", "only database 0"),
        ("redis://localhost:abc/0", "its port must be a number up to 65535$"),
        ("redis://localhost:65536/0", "its port must be a number up to 65535$"),
        ("redis://:a@b:cret/", "its port .*, and special characters in a password must be %-encoded"),
    ],
)
def test_the_error_for_an_invalid_url_names_the_invalid_part(url: str, says: str) -> None:
    with pytest.raises(InvalidOption, match=says) as caught:
        open_storage(url)
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["redis://localhost", "redis://localhost/", "redis://localhost/15", "redis+cluster://localhost/0"]
)
def test_a_database_may_be_named_or_left_out(url: str) -> None:
    open_storage(url)


async def test_the_path_of_a_url_is_the_database(own_server: RedisServer) -> None:
    async with open_storage(f"redis://127.0.0.1:{own_server.port}/3") as storage:
        await storage.set_state(BOT, 1, State("f", "s"))
    with own_server.client() as client:
        assert list(client.info("keyspace")) == ["db3"]


async def test_a_database_that_the_server_does_not_have_is_an_error_at_once(own_server: RedisServer) -> None:
    storage = open_storage(f"redis://127.0.0.1:{own_server.port}/99", patience=60)
    start = time.monotonic()
    with pytest.raises(StorageUnavailable, match="has no database 99; use a lower number"):
        await storage.get_state(BOT, 1)
    assert time.monotonic() - start < 30, "not retried"
    await storage.close()


async def test_a_user_with_the_documented_acl_line_can_do_everything(either_server: RedisServer) -> None:
    with either_server.client() as client:
        client.execute_command("ACL", "SETUSER", "stepwell", "on", ">pass", *acl_line())
    async with open_storage(
        f"redis://stepwell:pass@127.0.0.1:{either_server.port}/0?durability=wait&timeout=0.4"
    ) as storage:
        await storage.init(BOT, ttl=60)
        with pytest.raises(NotReplicated):
            await storage.set_state(BOT, 1, State("f", "s", {"a": 1}))
        async with Slot(storage, BOT, 1) as slot:
            slot.delete()
            with pytest.raises(NotReplicated):
                await slot.commit(memo=[1])
        with pytest.raises(NotReplicated):
            await storage.update_data(BOT, 2, {"a": 1})
        assert [entry.key async for entry in storage.scan(BOT)] == [2]
        assert (await storage.due(BOT), (await storage.sweep()).removed) == ([], 0)
        assert (await storage.queued(BOT, "q"), await storage.queues(BOT)) == ([], [])
        with either_server.client() as client:
            storage.listen("t", lambda: None)
            await until(lambda: dict(client.pubsub_numsub("stepwell:notices:0"))["stepwell:notices:0"])
            with client.pubsub() as other:
                other.subscribe("stepwell:notices:0")
                assert other.get_message(timeout=5)["type"] == "subscribe"
                await storage.notify("t")
                assert other.get_message(timeout=5)["data"] == "t"


async def test_missing_permissions_raise_an_error_that_names_the_acl(own_server: RedisServer) -> None:
    with own_server.client() as client:
        client.execute_command("ACL", "SETUSER", "stepwell", "on", ">pass", "~stepwell:*", "+ping")
    storage = open_storage(f"redis://stepwell:pass@127.0.0.1:{own_server.port}/0")
    with pytest.raises(StorageUnavailable, match="ACL"):
        await storage.get_state(BOT, 1)
    await storage.close()


async def test_a_script_that_may_not_is_an_error_that_names_the_acl(either_server: RedisServer) -> None:
    with either_server.client() as client:
        client.execute_command("ACL", "SETUSER", "stepwell", "on", ">pass", *acl_line(), "-hset")
    async with open_storage(f"redis://stepwell:pass@127.0.0.1:{either_server.port}/0") as storage:
        with pytest.raises(StorageError, match=r"bot/1 \(.*\); see the ACL line in docs/redis\.md"):
            await storage.set_state(BOT, 1, State("f", "s"))


def acl_line() -> list[str]:
    """The rules that the documentation gives."""
    page = (Path(__file__).parents[2] / "docs" / "redis.md").read_text()
    line = next(line for line in page.splitlines() if line.startswith("ACL SETUSER"))
    return line.split()[4:]


# Changes by other programs


@pytest.mark.parametrize("what", ["string", "version", "bytes"])
async def test_a_record_that_was_written_over_is_an_error_until_it_is_replaced(what: str) -> None:
    async with open_storage(the_server().url("?prefix=" + (own := uuid.uuid4().hex))) as storage:
        await storage.set_state(BOT, 1, State("f", "s", {"a": "é"}))
        await storage.set_state(BOT, 2, State("f", "s"))
        with the_server().client() as client:
            (key,) = client.keys(f"{own}:*:r:bot/1")
            if what == "string":
                client.set(key, "x")
            elif what == "version":
                client.hset(key, "$v", "many")
            else:
                client.hset(key, "a", b"\xff\xfe")
        with pytest.raises(CorruptRecord):
            await storage.get_state(BOT, 1)
        with pytest.raises(CorruptRecord):
            await storage.update_data(BOT, 1, {"b": 1})
        assert await storage.get_state(BOT, 2) == State("f", "s")
        assert [entry.key async for entry in storage.scan(BOT) if entry.key == 2] == [2]
        await storage.set_state(BOT, 1, State("f", "t"))
        assert await storage.get_state(BOT, 1) == State("f", "t")
        await storage.clear(BOT, 1)
        assert await storage.get_state(BOT, 1) is None


@pytest.mark.parametrize("server", [the_server, the_cluster])
async def test_odd_names_and_tags_are_found_again(server: Callable[[], Any]) -> None:
    bots = ["a/b", "a", 'c\\"/', '/\\"', "{17}", "é\n"]
    tags = ("a\nb", "a\\nb", "\\", "", "g:a/b", "\\\\n")
    async with open_storage(server().url(prefix()), sweep_every=None) as storage:
        for bot in bots:
            address = storage.address(bot, ("k/", bot))
            change = Change(write=storage.ids(), set=storage.seal(address).fields({"a": 1}), tags=tags, deadline=0.0)
            await storage.perform(Apply(address, change))
        assert set(await storage.namespaces()) == {storage.address(bot, 1).namespace for bot in bots}
        for bot in bots:
            address = storage.address(bot, ("k/", bot))
            assert [due.address for due in await storage.due(address.namespace)] == [address]
            for tag in tags:
                assert [(entry.key, entry.tags) async for entry in storage.scan(bot, tag=tag)] == [(("k/", bot), tags)]
                assert await storage.traces(address.namespace, tag) == [address]
            assert [entry.key async for entry in storage.scan(bot, tag="b")] == []
            await storage.perform(Apply(address, Change(write=storage.ids(), delete=True, forget=True)))
        assert await storage.namespaces() == []


async def test_a_lost_lease_writes_nothing_by_the_servers_own_clock() -> None:
    url = the_server().url(prefix())
    async with open_storage(url) as storage, open_storage(url) as other:
        async with Slot(storage, BOT, 1, lease=0.2) as slot:
            slot.data["a"] = 1
            storage.renewals.discard(slot)
            async with Slot(other, BOT, 1, lease=30, wait=30):
                with pytest.raises(LeaseLost):
                    await slot.commit()
        assert await storage.get_state(BOT, 1) is None


# Clients, URLs, options


async def test_a_client_that_was_passed_in_is_used_and_never_closed() -> None:
    client = Client(port=the_server().port, db=3)
    own = uuid.uuid4().hex
    async with RedisStorage(client, prefix=own) as storage:
        await storage.set_state(BOT, 1, State("f", "s", {"a": "é"}))
        assert await storage.get_state(BOT, 1) == State("f", "s", {"a": "é"})
        assert len(await client.keys(f"{own}:*:r:*")) == 1
    assert await client.ping()
    await client.aclose()


async def test_tls_checks_the_servers_certificate() -> None:
    async with Proxy(the_server().port, tls=True) as proxy:
        url = f"rediss://localhost:{proxy.port}/0{prefix()}"
        async with open_storage(f"{url}&ssl_ca_certs={CERTIFICATE}") as storage:
            await storage.set_state(BOT, 1, State("f", "s"))
            assert await storage.get_state(BOT, 1) == State("f", "s")
        distrusting = open_storage(url, patience=0.2)
        with pytest.raises(StorageUnavailable, match=r"(?i)certificate"):
            await distrusting.open()


async def test_tls_refuses_a_certificate_for_another_host_unless_checks_are_off() -> None:
    async with Proxy(the_server().port, tls=True) as proxy:
        # The same address as in the certificate, under a name that is not in it.
        place = f"127.1:{proxy.port}"
        url = f"rediss://{place}/0{prefix()}&ssl_ca_certs={CERTIFICATE}"
        client = Client(host="127.1", port=proxy.port, ssl=True, ssl_ca_certs=str(CERTIFICATE))
        cluster = f"rediss+cluster://{place}/?ssl_ca_certs={CERTIFICATE}"
        for storage in (
            open_storage(url, patience=0.2),
            RedisStorage(client, patience=0.2),
            open_storage(cluster, patience=0.2),
        ):
            with pytest.raises(StorageUnavailable, match=r"(?i)certificate verify failed|hostname|doesn't match"):
                await storage.open()
        for option in ("ssl_check_hostname=false", "ssl_cert_reqs=none"):
            async with open_storage(f"{url}&{option}") as storage:
                assert await storage.get_state(BOT, 1) is None


@pytest.mark.parametrize("scheme", ["rediss", "rediss+cluster"])
@pytest.mark.parametrize("option", ["ssl_ca_certs", "ssl_certfile"])
@pytest.mark.parametrize("there", [True, False])
async def test_a_tls_file_that_cannot_be_read_is_an_error_at_once_that_names_it(
    tmp_path: Path, scheme: str, option: str, there: bool
) -> None:
    path = tmp_path / "some.pem"
    if there:
        path.write_text("no certificate")
    storage = open_storage(f"{scheme}://localhost:{the_server().port}?{option}={path}", patience=60)
    start = time.monotonic()
    with pytest.raises(StorageUnavailable, match=f"fix {option}={path} "):
        await storage.open()
    assert time.monotonic() - start < 30, "not retried"
    await storage.close()


async def test_a_unix_socket_will_do(tmp_path: Any) -> None:
    path = tmp_path / "redis.sock"
    server = RedisServer("--unixsocket", str(path))
    try:
        async with open_storage(f"unix://{path}?db=1") as storage:
            await storage.set_state(BOT, 1, State("f", "s"))
            assert await storage.get_state(BOT, 1) == State("f", "s")
    finally:
        server.stop()


async def test_the_error_for_a_cluster_node_used_as_a_single_server_says_what_to_do() -> None:
    async with open_storage(the_cluster().nodes[0].url(prefix()), patience=0.2) as storage:
        with pytest.raises(StorageUnavailable, match=r"redis\+cluster://"):
            await storage.run([_get(storage, key) for key in range(20)])


async def test_the_error_for_a_single_server_used_as_a_cluster_says_what_to_do() -> None:
    storage = open_storage(f"redis+cluster://127.0.0.1:{the_server().port}", patience=0.2)
    with pytest.raises(StorageUnavailable, match="redis://"):
        await storage.open()
    await storage.close()


def _get(storage: Storage, key: Any) -> Get:
    return Get(storage.address(BOT, key))


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("redis://localhost?durability=slow", {}),
        ("redis://localhost?timeout=soon", {}),
        ("redis://localhost?prefix=a{b", {}),
        ("redis://localhost?no_such_option=1", {}),
        ("redis://localhost?protocol=7", {}),
        ("rediss://localhost?ssl_cert_reqs=perhaps", {}),
        ("redis+sentinel://localhost", {}),
        ("redis://localhost", {"prefix": ""}),
        ("redis://localhost", {"timeout": 0}),
        ("redis://localhost", {"client": object()}),
    ],
)
def test_an_option_that_cannot_be_is_refused(url: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        open_storage(url, **options)


def test_an_object_that_is_no_client_is_refused() -> None:
    with pytest.raises(InvalidOption, match="not int"):
        RedisStorage(7)  # type: ignore[arg-type]


@pytest.mark.parametrize("server", [the_server, the_cluster])
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_loop_that_ended_without_closing_does_not_spoil_the_next(server: Callable[[], Any]) -> None:
    storage = open_storage(server().url(prefix()), sweep_every=None)

    async def use(number: int) -> None:
        await asyncio.gather(*(storage.update_data(BOT, key, {f"n{number}": 1}) for key in range(9)))

    async def look() -> None:
        assert [len(entry.state.data) async for entry in storage.scan(BOT)] == [2] * 9
        await storage.close()

    for number in range(2):
        asyncio.run(use(number))
    asyncio.run(look())
    # The sockets of the loops that ended are closed here, and complain here.
    gc.collect()


async def test_options_may_stand_in_the_url() -> None:
    own = uuid.uuid4().hex
    async with open_storage(the_server().url(f"?prefix={own}&timeout=3&patience=1&sweep_every=7")) as storage:
        await storage.set_state(BOT, 1, State("f", "s"))
    with the_server().client() as client:
        assert len(client.keys(f"{own}:*:r:bot/1")) == 1
