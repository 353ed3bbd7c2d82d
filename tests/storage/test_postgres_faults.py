"""Tests that broken, silent or misconfigured servers cause typed errors in time, without secrets."""

from __future__ import annotations

import asyncio
import gc
import re
import socket
import time
import traceback
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest

from stepwell import State, open_storage
from stepwell.codec.json import replaced
from stepwell.errors import (
    EncodeError,
    InvalidOption,
    OutcomeUnknown,
    StepwellError,
    StorageError,
    StorageUnavailable,
)
from stepwell.record import Change
from stepwell.slot import Slot
from stepwell.storage import Apply, Claim, Get, Query, Release
from stepwell.storage.postgres import PostgresStorage
from stepwell.storage.postgres.client import Options, PostgresConnection, UrlSource
from stepwell.storage.postgres.schema import create
from tests.constants import Constants
from tests.servers.postgres import PostgresServer, shared
from tests.servers.process import free_port
from tests.servers.proxy import Proxy
from tests.storage.key_checks import skip_key_checks
from tests.until import yields

SECRET = "hunter2-secret"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server that is not shared with other tests."""
    server = PostgresServer().start()
    yield server
    server.stop()


@pytest.fixture
async def admin(server: PostgresServer) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(server.url())
    yield connection
    await connection.close()


async def error_of(storage: PostgresStorage, within: float) -> StepwellError:
    """Return the error of the first use, which must be raised in time and without the password."""
    started = time.monotonic()
    with pytest.raises(StepwellError) as caught:
        await storage.update_data("bot", 1, {"a": 1})
    assert time.monotonic() - started < within
    await storage.close()
    everything = "".join(traceback.format_exception(caught.value))
    assert SECRET not in everything
    return caught.value


async def test_a_wrong_password_is_final(server: PostgresServer, admin: Any) -> None:
    await admin.execute("create role guarded login password 'another'")
    error = await error_of(PostgresStorage(server.url(user="guarded", password=SECRET)), 5)
    assert isinstance(error, StorageUnavailable)
    assert error.final
    assert "password authentication failed" in str(error)


async def test_an_unknown_host_is_an_error_after_the_patience() -> None:
    storage = PostgresStorage(f"postgresql://me:{SECRET}@no-such-host.invalid/db", patience=0.3)
    error = await error_of(storage, 10)
    assert isinstance(error, StorageUnavailable)
    assert "no-such-host.invalid" in str(error)


async def test_a_refused_connection_is_an_error_after_the_patience() -> None:
    storage = PostgresStorage(f"postgresql://me:{SECRET}@127.0.0.1:{free_port()}/db", patience=0.3)
    assert isinstance(await error_of(storage, 5), StorageUnavailable)


@pytest.mark.parametrize("patience", [0.0, 10.0], ids=["given up", "sent again"])
async def test_a_claim_that_arrives_late_leases_nothing(server: PostgresServer, patience: float) -> None:
    async with Proxy(server.port) as proxy:
        url = f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres?schema=late_{int(patience)}&sslmode=disable"
        async with open_storage(url, patience=patience, sweep_every=None) as storage:
            await storage.set_state("bot", 1, State("f", "s"))
            claim = Claim(storage.address("bot", 1), "late-token", 30.0)
            # The first claims prepare the statements, and the storage remembers the record.
            for token in ("first", "second"):
                await storage.perform(replaced(claim, token=token))
                await storage.perform(Release(claim.address, token))
            proxy.hold_what = b"late-token"
            if patience:
                await storage.perform(claim)
                await storage.perform(Release(claim.address, claim.token))
            else:
                with pytest.raises(StorageUnavailable):
                    await storage.perform(claim)
            assert proxy.holds.is_set()
            # This read is queued behind the release of the claim.
            assert await storage.get_state("bot", 1) == State("f", "s")
            await proxy.let_through()
            async with Slot(storage, "bot", 1, wait=10) as slot:
                assert slot.state == "s"


async def test_a_write_that_arrives_after_it_was_given_up_does_not_overwrite_a_later_one(
    server: PostgresServer,
) -> None:
    async with Proxy(server.port) as proxy:
        url = f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres?schema=late_write&sslmode=disable"
        async with open_storage(url, patience=0.0, sweep_every=None) as storage:
            # The first writes prepare the statements.
            for text in ("first", "second"):
                await storage.update_data("bot", 1, {"text": text})
            proxy.hold_what = b"given up"
            with pytest.raises(OutcomeUnknown):
                await storage.update_data("bot", 1, {"text": "given up"})
            assert proxy.holds.is_set()
            await storage.update_data("bot", 1, {"text": "later"})
            await proxy.let_through()
            assert await storage.get_data("bot", 1) == {"text": "later"}


async def test_a_missing_database_is_final(server: PostgresServer) -> None:
    error = await error_of(PostgresStorage(server.url("nowhere", password=SECRET)), 5)
    assert isinstance(error, StorageUnavailable)
    assert error.final
    assert '"nowhere" does not exist' in str(error)


async def test_a_server_without_tls_is_final_if_tls_is_required(server: PostgresServer) -> None:
    error = await error_of(PostgresStorage(f"{server.url(password=SECRET)}?sslmode=require"), 5)
    assert isinstance(error, StorageUnavailable)
    assert error.final
    assert "TLS" in str(error)


async def test_a_server_that_requires_tls_is_final_without_tls(server: PostgresServer, admin: Any) -> None:
    await admin.execute("create role encrypted login")
    error = await error_of(PostgresStorage(f"{server.url(user='encrypted', password=SECRET)}?sslmode=disable"), 5)
    assert isinstance(error, StorageUnavailable)
    assert error.final
    assert "no encryption" in str(error)


async def test_a_server_that_accepts_and_does_not_answer_is_an_error_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://me:{SECRET}@127.0.0.1:{silent.getsockname()[1]}/db"
        error = await error_of(PostgresStorage(url, connect_timeout=0.3, patience=0.2), 5)
    assert isinstance(error, StorageUnavailable)
    assert "in time" in str(error)


async def test_an_unknown_option_is_named(server: PostgresServer) -> None:
    error = await error_of(PostgresStorage.from_url(f"{server.url(password=SECRET)}?colour=red"), 5)
    assert isinstance(error, StorageUnavailable)
    assert error.final
    assert '"colour"' in str(error)


async def test_a_role_without_the_right_to_create_is_final(server: PostgresServer, admin: Any) -> None:
    await admin.execute("create role modest login")
    error = await error_of(PostgresStorage(server.url(user="modest"), schema="not_mine"), 5)
    assert isinstance(error, StorageUnavailable)
    assert error.final
    assert "permission denied" in str(error)


@pytest.mark.parametrize("url", ["postgresql://me:{}@host:port/db", "postgresql://me:{}@[::1/db"])
async def test_an_invalid_url_is_refused_without_quoting_it(url: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        await PostgresStorage.from_url(url.format(SECRET)).open()
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("schema", ["", "Bot", "a-b", 'x"; drop schema public; --', "pg_x", "1a", "ü", "a" * 64])
def test_an_invalid_schema_name_is_refused(schema: str) -> None:
    with pytest.raises(InvalidOption):
        PostgresStorage("postgresql://host/db", schema=schema)


async def test_a_tag_with_a_lone_surrogate_is_refused_alone_and_not_quoted() -> None:
    async with PostgresStorage(shared().url(), schema="surrogates") as storage:

        async def write(key: str, tag: str) -> Any:
            return await storage.perform(Apply(storage.address("bot", key), Change(write="w", tags=(tag,))))

        results = await asyncio.gather(
            write("a", "fine"), write("b", f"{SECRET}\ud800"), write("c", "fine"), return_exceptions=True
        )
        assert [isinstance(result, EncodeError) for result in results] == [False, True, False]
        assert SECRET not in "".join(traceback.format_exception(results[1]))
        assert len([entry async for entry in storage.scan("bot", tag="fine")]) == 2


async def test_dead_connections_are_replaced_without_an_error(server: PostgresServer, admin: Any) -> None:
    async with PostgresStorage(server.url(), schema="dead") as storage:
        for n in range(5):
            assert await storage.update_data("bot", 1, {f"f{n}": n}) == {f"f{m}": m for m in range(n + 1)}
            ended = await admin.fetch(
                "select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name = 'stepwell'"
            )
            assert ended
        assert await storage.get_data("bot", 1) == {f"f{n}": n for n in range(5)}
        assert [entry.key async for entry in storage.scan("bot")] == [1]


async def test_a_server_that_became_read_only_refuses_reads_and_writes(server: PostgresServer, admin: Any) -> None:
    async with PostgresStorage(server.url(), schema="demoted", patience=0.3) as storage:
        await storage.update_data("bot", 1, {"a": 1})
        await admin.execute("alter system set default_transaction_read_only = on")
        await admin.execute("select pg_reload_conf()")
        try:
            await until(lambda: admin.fetchval("show default_transaction_read_only"), "on")
            for use in (storage.get_data("bot", 1), storage.update_data("bot", 1, {"b": 2})):
                with pytest.raises(StorageUnavailable, match="read-only"):
                    await use
        finally:
            await admin.execute("set default_transaction_read_only = off")
            await admin.execute("alter system reset default_transaction_read_only")
            await admin.execute("select pg_reload_conf()")
        await until(lambda: storage.update_data("bot", 1, {"c": 3}), {"a": 1, "c": 3})


async def test_the_primary_is_chosen_from_a_standby_and_a_primary(server: PostgresServer) -> None:
    standby = PostgresServer(standby=True).start()
    try:
        error = await error_of(PostgresStorage(standby.url(), patience=0.2), 10)
        assert "read-only" in str(error)
        both = f"postgresql://postgres@{standby.address},{server.address}/postgres?target_session_attrs=read-write"
        for url in (f"{both}&schema=chosen", f"{both.partition('?')[0]}?schema=chosen"):
            async with PostgresStorage.from_url(url) as storage:
                assert await storage.update_data("bot", 1, {"a": 1}) == {"a": 1}
        # Without a primary, the error has the reason of each server.
        port = free_port()
        nowhere = f"{standby.address},127.0.0.1:{port}/postgres"
        storage = PostgresStorage(f"postgresql://postgres:{SECRET}@{nowhere}", patience=0.2)
        error = await error_of(storage, 10)
        assert isinstance(error, StorageUnavailable) and not error.final
        assert f"no server of PostgreSQL at {nowhere} accepts writes" in str(error)
        assert f"{standby.address} is a standby" in str(error)
        assert f"the connection to 127.0.0.1:{port} could not be opened" in str(error)
        assert storage.location == f"PostgreSQL at {nowhere}"
    finally:
        standby.stop()


async def test_a_list_is_read_again_if_the_server_has_closed_its_connection(server: PostgresServer, admin: Any) -> None:
    kill = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'stepwell'"
    async with PostgresStorage(server.url(), schema="lists", patience=0.1) as storage:
        await storage.update_data("bot", 1, {"a": 1})
        for read in (storage.namespaces, lambda: storage.due("bot"), lambda: storage.queued("bot", "q")):
            await read()
            await admin.execute(kill)
            assert await read() is not None
        await admin.execute(kill)
        assert [entry.key async for entry in storage.scan("bot")] == [1]


async def test_a_lock_that_is_not_released_ends_the_call_in_time(server: PostgresServer, admin: Any) -> None:
    async with PostgresStorage(server.url(), schema="locked", timeout=3, patience=0.2) as storage:
        await storage.update_data("bot", 1, {"a": 1})
        async with admin.transaction():
            await admin.execute("select from locked.records for update")
            started = time.monotonic()
            with pytest.raises(StorageUnavailable, match="lock timeout"):
                await storage.update_data("bot", 1, {"b": 2})
            assert time.monotonic() - started < 5
        assert await storage.update_data("bot", 1, {"c": 3}) == {"a": 1, "c": 3}


async def test_a_server_that_stops_answering_leaves_the_outcome_unknown_in_time(server: PostgresServer) -> None:
    async with PostgresStorage(server.url(), schema="silent", timeout=1, connect_timeout=1, patience=0.2) as storage:
        await skip_key_checks(storage).update_data("bot", 1, {"a": 1})
        server.pause()
        try:
            started = time.monotonic()
            with pytest.raises(OutcomeUnknown):
                await storage.update_data("bot", 1, {"b": 2})
            with pytest.raises(StorageUnavailable):
                await storage.get_data("bot", 2)
            assert time.monotonic() - started < 10
        finally:
            server.resume()
        # The write was applied completely or not at all, and reads work again.
        assert await storage.get_data("bot", 1) in ({"a": 1}, {"a": 1, "b": 2})


async def test_a_server_killed_during_a_call_is_an_error_in_time_and_works_after_a_restart() -> None:
    server = PostgresServer().start()
    try:
        async with PostgresStorage(server.url(), patience=0.5) as storage:
            await skip_key_checks(storage).update_data("bot", 1, {"a": 1})
            admin = await asyncpg.connect(server.url())
            transaction = admin.transaction()
            await transaction.start()
            await admin.execute("select from stepwell.records for update")
            call = asyncio.ensure_future(storage.update_data("bot", 1, {"b": 2}))
            await asyncio.sleep(0.2)
            server.kill()
            started = time.monotonic()
            with pytest.raises(StorageError):
                await call
            assert time.monotonic() - started < 10
            admin.terminate()
            server.start()
            assert await storage.update_data("bot", 1, {"c": 3}) == {"a": 1, "c": 3}
    finally:
        server.stop()


async def test_cancelled_calls_leave_no_open_transaction_and_no_mixed_answers() -> None:
    async with PostgresStorage(shared().url(), schema="cancelled") as storage:
        await storage.update_data("bot", "other", {"n": 0})
        for n in range(60):
            direct = asyncio.ensure_future(storage.page(Query("bot"), None, 10))
            gathered = asyncio.ensure_future(storage.update_data("bot", "k", {f"f{n}": n}))
            await yields(n % 12)
            if n % 3 == 0:
                await asyncio.sleep(0.0005 * (n % 7))
            direct.cancel()
            gathered.cancel()
            await asyncio.wait([direct, gathered])
            assert await storage.get_data("bot", "other") == {"n": 0}
        data = await storage.get_data("bot", "k")
        assert data is not None
        assert all(data[name] == int(name[1:]) for name in data)
    admin = await asyncpg.connect(shared().url())
    try:
        open_ones = "select count(*) from pg_stat_activity where state like 'idle in transaction%'"
        await until(lambda: admin.fetchval(open_ones), 0)
    finally:
        await admin.close()


async def test_a_lone_write_may_be_cancelled() -> None:
    loop = asyncio.get_running_loop()
    reported: list[Any] = []
    loop.set_exception_handler(lambda _, context: reported.append(context))
    async with PostgresStorage(shared().url(), schema="lone") as storage:
        address = storage.address("bot", 1)

        def write(n: int) -> Apply:
            return Apply(address, Change(storage.ids(), parts={str(n): "x"}))

        for n in range(0, 90, 3):
            await storage.perform(write(n))
            cancelled = asyncio.ensure_future(storage.perform(write(n + 1)))
            await asyncio.sleep(0.0001 * (n % 7))
            cancelled.cancel()
            await asyncio.wait([cancelled])
            await storage.perform(write(n + 2))
        stored = await storage.perform(Get(address, True))
        assert {str(n) for n in range(90) if n % 3 != 1} <= stored.parts.keys()
    gc.collect()
    assert not reported


# Creating the tables


class StoppingConnection:
    """A connection that stops before it sends a script."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.stopped = asyncio.Event()
        self.resumed = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def execute(self, query: str, *args: Any) -> Any:
        if "run_batch(" in query:
            self.stopped.set()
            await self.resumed.wait()
        return await self._connection.execute(query, *args)


async def test_a_worker_that_stops_while_it_creates_the_tables_does_not_block_others(
    server: PostgresServer, constants: Constants
) -> None:
    constants(schema_idle_limit=0.5)
    postgres = PostgresConnection(UrlSource(server.url(), Options()), Options())
    stopping: asyncio.Future[StoppingConnection] = asyncio.get_running_loop().create_future()

    async def worker(connection: Any) -> None:
        stopping.set_result(StoppingConnection(connection))
        await create(stopping.result(), "half_made", "here", 5.0)

    working = asyncio.create_task(postgres.call(worker))
    await (await stopping).stopped.wait()
    async with asyncio.timeout(20), PostgresStorage(server.url(), schema="half_made") as storage:
        assert await storage.update_data("bot", 1, {"a": 1}) == {"a": 1}
    stopping.result().resumed.set()
    with pytest.raises(StorageUnavailable):
        await working


async def test_the_error_names_a_session_that_blocks_the_creation_of_the_tables(
    server: PostgresServer, admin: Any, constants: Constants
) -> None:
    constants(schema_lock_wait=0.3)
    pid = admin.get_server_pid()
    named = rf"within 0.3 s: process {pid} of the server \(.* from 127.0.0.1, idle in transaction\)"
    async with admin.transaction():
        await admin.execute("select pg_advisory_xact_lock(hashtextextended('stepwell held_up', 0))")
        error = await error_of(PostgresStorage(server.url(), schema="held_up", patience=0), 20)
    assert re.search(named, str(error)), error
    async with PostgresStorage(server.url(), schema="held_up") as storage:
        assert await storage.update_data("bot", 1, {"a": 1}) == {"a": 1}


async def until(call: Any, wanted: Any) -> None:
    """Wait until a call returns the wanted value, ignoring StorageUnavailable."""
    give_up = time.monotonic() + 10
    while True:
        try:
            found = await call()
        except StorageUnavailable as error:
            found = error
        if found == wanted:
            return
        assert time.monotonic() < give_up, found
        await asyncio.sleep(0.05)


async def test_connections_that_the_server_keeps_ending_are_replaced_without_an_error(
    server: PostgresServer, admin: Any
) -> None:
    async with PostgresStorage(server.url(), schema="ended", sweep_every=None) as storage:
        written = 0
        over = False
        progress = asyncio.Event()

        async def work(key: int) -> None:
            nonlocal written
            while not over:
                async with Slot(storage, "ended", key) as slot:
                    slot.data["n"] = slot.data.get("n", 0) + 1
                    await slot.commit()
                written += 1
                progress.set()

        tasks = [asyncio.create_task(work(key)) for key in range(3)]
        for number in range(60):
            # Wait for a write, so that a slow machine makes progress too.
            progress.clear()
            async with asyncio.timeout(30):
                await progress.wait()
            await asyncio.sleep(0.001 * (number % 10))
            await admin.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'stepwell'"
            )
        over = True
        await asyncio.gather(*tasks)
        counts = [(await storage.get_data("ended", key) or {})["n"] for key in range(3)]
        assert sum(counts) == written >= 60
