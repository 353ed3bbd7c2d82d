"""Notices between processes, over PostgreSQL and Redis."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from stepwell import MemoryStorage, Storage, open_storage
from stepwell.storage.postgres import PostgresStorage
from stepwell.storage.transport import notices
from stepwell.storage.transport.notices import NoticeChannel, payload_of
from tests.constants import Constants
from tests.servers import pgbouncer, postgres
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer, the_cluster, the_server
from tests.until import until

SECRET = "hunter2-secret"


class Place:
    """A store, its URL through a proxy, and how many connections listen to its notices."""

    def __init__(self, kind: str, server: Any) -> None:
        self.kind, self.server, self.name = kind, server, f"n{uuid.uuid4().hex[:16]}"

    def url(self, port: int | None = None) -> str:
        port = port or self.server.port
        if self.kind == "postgres":
            return f"postgresql://postgres:{SECRET}@127.0.0.1:{port}/postgres?schema={self.name}&sslmode=disable"
        return f"redis://127.0.0.1:{port}/0?prefix={self.name}"

    async def listening(self) -> int:
        if self.kind == "redis":
            with self.server.client() as client:
                return int(client.pubsub_numsub(f"{self.name}:notices:0")[0][1])
        connection = await asyncpg.connect(self.server.url())
        try:
            sql = "select count(*) from pg_stat_activity where query = $1"
            return int(await connection.fetchval(sql, f'LISTEN "stepwell:{self.name}"'))
        finally:
            await connection.close()


@pytest.fixture(params=["postgres", "redis"])
def place(request: pytest.FixtureRequest) -> Place:
    return Place(request.param, postgres.shared() if request.param == "postgres" else the_server())


@pytest.fixture(params=["postgres", "redis"])
def own_place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A store on a server that a test may stop."""
    server: Any = PostgresServer().start() if request.param == "postgres" else RedisServer()
    yield Place(request.param, server)
    server.stop()


async def arrives(sender: Storage, woken: asyncio.Event, topic: str = "t") -> None:
    """Notify until a notice arrives."""
    async with asyncio.timeout(30):
        while not woken.is_set():
            await sender.notify(topic)
            try:
                await asyncio.wait_for(woken.wait(), 0.1)
            except TimeoutError:
                continue
    woken.clear()


@asynccontextmanager
async def pair(place: Place, proxy: Proxy) -> AsyncIterator[tuple[Storage, Storage, asyncio.Event]]:
    """Open a sender, and a listener through a proxy. They have different servers, so all notices go over the server."""
    async with open_storage(place.url()) as sender, open_storage(place.url(proxy.port)) as listener:
        woken = asyncio.Event()
        listener.listen("t", woken.set)
        await arrives(sender, woken)
        yield sender, listener, woken


CHILD = """
import asyncio, sys
from stepwell import open_storage

async def main():
    async with open_storage(sys.argv[1]) as storage:
        {work}

asyncio.run(main())
"""


@pytest.mark.parametrize("kind", ["postgres", "redis", "redis-cluster"])
async def test_a_notice_of_a_process_that_ends_at_once_arrives(kind: str) -> None:
    place = Place(
        "postgres" if kind == "postgres" else "redis", postgres.shared() if kind == "postgres" else the_server()
    )
    url = the_cluster().url(f"?prefix={place.name}") if kind == "redis-cluster" else place.url()
    async with open_storage(url) as storage:
        woken = asyncio.Event()
        storage.listen("t", woken.set)
        channel = storage._channel
        assert channel is not None
        await until(lambda: channel._connected)
        script = CHILD.format(work="storage.notify_soon('t')")
        done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", script, url], check=True)
        assert done.returncode == 0
        await asyncio.wait_for(woken.wait(), 10)


async def _value(value: bool) -> bool:
    return value


async def test_a_connection_that_is_cut_is_opened_again(
    place: Place, caplog: pytest.LogCaptureFixture, constants: Constants
) -> None:
    async with Proxy(place.server.port) as proxy, pair(place, proxy) as (sender, _, woken):
        # The cuts are one outage, however long this machine takes for them.
        for calm in (600.0, 600.0, 0.2):
            constants(outage_calm=calm)
            proxy.cut_all()
            await asyncio.sleep(0)
            await arrives(sender, woken)
        await until(lambda: "arrive again" in caplog.text)
    ours = [record for record in caplog.records if record.name == notices.__name__]
    assert [record.levelno for record in ours] == [logging.WARNING] * 2, caplog.text
    assert "do not arrive" in ours[0].message
    assert SECRET not in caplog.text


async def test_a_connection_that_is_silent_is_replaced(place: Place, constants: Constants) -> None:
    constants(notices_check_every=0.1)
    async with Proxy(place.server.port) as proxy:
        async with open_storage(place.url()) as sender:
            short = dict.fromkeys(["timeout", "connect_timeout"] if place.kind == "postgres" else ["timeout"], 0.3)
            async with open_storage(place.url(proxy.port), **short) as listener:
                woken = asyncio.Event()
                listener.listen("t", woken.set)
                await arrives(sender, woken)
                # Several checks are answered, also with notices in between.
                for _ in range(5):
                    await asyncio.sleep(0.1)
                    await arrives(sender, woken)
                proxy.fall_silent()
                await asyncio.sleep(0.5)
                proxy.speak()
                await arrives(sender, woken)


async def test_a_server_that_restarts_sends_notices_again(own_place: Place) -> None:
    server = own_place.server
    async with open_storage(own_place.url(), patience=30) as storage:
        woken = asyncio.Event()
        async with Proxy(server.port) as proxy, open_storage(own_place.url(proxy.port), patience=30) as listener:
            listener.listen("t", woken.set)
            await arrives(storage, woken)
            await asyncio.to_thread(server.kill if own_place.kind == "postgres" else server.process.kill)
            await asyncio.to_thread(server.start)
            await storage.set_data("bot", 1, {})
            await arrives(storage, woken)


async def test_one_connection_listens_and_only_while_there_are_listeners(place: Place) -> None:
    tasks = asyncio.all_tasks()
    async with open_storage(place.url()) as storage:
        await storage.notify("t")
        assert await place.listening() == 0
        ends = [storage.listen(topic, lambda: None) for topic in ("t", "t", "other")]
        await until(lambda: _listening(place, 1))
        for end in ends:
            end()
        await until(lambda: _listening(place, 0))
        storage.listen("t", lambda: None)
        await until(lambda: _listening(place, 1))
    await until(lambda: _listening(place, 0))
    assert asyncio.all_tasks() == tasks
    # A closed storage that is opened again listens again.
    async with storage:
        await until(lambda: _listening(place, 1))
    assert asyncio.all_tasks() == tasks


async def _listening(place: Place, count: int) -> bool:
    return await place.listening() == count


async def test_a_storage_closed_while_it_connects_leaks_nothing(place: Place) -> None:
    tasks = asyncio.all_tasks()
    for pause in (0, 0, 0.001, 0.002, 0.005):
        async with open_storage(place.url()) as storage:
            storage.listen("t", lambda: None)
            await asyncio.sleep(pause)
    assert asyncio.all_tasks() == tasks
    await until(lambda: _listening(place, 0))


async def test_a_listener_in_the_same_process_is_called_once_for_each_notice(place: Place) -> None:
    async with Proxy(place.server.port) as proxy, pair(place, proxy) as (other, storage, woken):
        calls: list[int] = []
        storage.listen("own", lambda: calls.append(1))
        await storage.notify("own")
        await storage.notify("own")
        # The server sends notices in order, so the echoes arrive before this one.
        await arrives(other, woken)
        assert calls == [1, 1]
        foreign = asyncio.Event()
        storage.listen("own", foreign.set)
        await other.notify("own")
        await asyncio.wait_for(foreign.wait(), 10)


async def test_without_notices_nothing_listens_and_nothing_is_sent(place: Place) -> None:
    async with Proxy(place.server.port) as proxy:
        async with open_storage(f"{place.url(proxy.port)}&notices=false") as storage:
            woken = asyncio.Event()
            storage.listen("t", woken.set)
            await storage.set_data("bot", 1, {})
            before = proxy.round_trips
            await storage.notify("t")
            storage.notify_soon("t")
            await asyncio.wait_for(woken.wait(), 5)
            assert proxy.round_trips == before
            assert await place.listening() == 0


async def test_behind_pgbouncer_notices_are_sent_and_none_are_received(caplog: pytest.LogCaptureFixture) -> None:
    place = Place("postgres", postgres.shared())
    bounced = f"{pgbouncer.shared().url()}?schema={place.name}&prepared_statements=off"
    async with open_storage(place.url()) as direct, open_storage(bounced) as storage:
        woken, never = asyncio.Event(), asyncio.Event()
        direct.listen("t", woken.set)
        storage.listen("other", never.set)
        await arrives(storage, woken)
        await direct.notify("other")
        await direct.notify("other")
        await asyncio.sleep(0)
        assert not never.is_set()
        assert await place.listening() == 1
    assert caplog.text == ""


async def test_a_pooler_that_accepts_our_settings_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    place = Place("postgres", postgres.shared())
    bounced = f"{pgbouncer.lenient().url()}?schema={place.name}"
    async with open_storage(bounced) as storage:
        storage.listen("t", lambda: None)
        await until(lambda: "behind a connection pooler" in caplog.text)
        assert await place.listening() == 0
        await storage.notify("t")
    assert len(caplog.records) == 1


async def test_a_given_pool_is_not_used_to_listen() -> None:
    place = Place("postgres", postgres.shared())
    async with asyncpg.create_pool(postgres.shared().url(), min_size=1, max_size=1) as pool:
        async with PostgresStorage(pool, schema=place.name) as storage, open_storage(place.url()) as other:
            woken, own = asyncio.Event(), asyncio.Event()
            other.listen("t", woken.set)
            storage.listen("own", own.set)
            await arrives(storage, woken)
            await storage.notify("own")
            await asyncio.wait_for(own.wait(), 5)
            assert pool.get_idle_size() == 1


async def test_a_redis_user_without_the_right_polls(caplog: pytest.LogCaptureFixture) -> None:
    place = Place("redis", the_server())
    with the_server().client() as client:
        rights = ["~*", "resetchannels", "+@all", "-publish", "-subscribe"]
        client.execute_command("ACL", "SETUSER", place.name, "on", f">{SECRET}", *rights)
    async with open_storage(place.url().replace("//", f"//{place.name}:{SECRET}@")) as storage:
        woken = asyncio.Event()
        storage.listen("t", woken.set)
        await storage.notify("t")
        await storage.notify("t")
        await asyncio.wait_for(woken.wait(), 5)
        await until(lambda: len(caplog.records) >= 2)
    assert sorted(record.message.partition(",")[0] for record in caplog.records) == [
        "notices are not sent to other processes",
        "notices from other processes do not arrive here",
    ]
    assert "ACL line in docs/redis.md" in caplog.text
    assert SECRET not in caplog.text


async def test_notices_of_one_topic_are_sent_one_at_a_time_and_the_last_one_after_the_last_change() -> None:
    class Slow(MemoryStorage):
        sent = 0

        async def notify(self, topic: str) -> None:
            await asyncio.sleep(0)
            self.sent += 1
            await super().notify(topic)

    storage = Slow()
    woken = asyncio.Event()
    async with storage:
        storage.listen("t", woken.set)
        for _ in range(100):
            storage.notify_soon("t")
    assert storage.sent == 1
    async with storage:
        storage.notify_soon("t")
        await asyncio.sleep(0)
        storage.notify_soon("t")
        storage.notify_soon("t")
    assert storage.sent == 3
    assert woken.is_set()


@pytest.mark.parametrize("topic", ["a\0b", "a\ud800", "runs:\N{SNOWMAN}" + "x" * 190, "'; drop --"])
async def test_any_topic_arrives(place: Place, topic: str) -> None:
    assert len(payload_of(topic).encode()) <= 200
    async with Proxy(place.server.port) as proxy:
        async with open_storage(place.url()) as sender, open_storage(place.url(proxy.port)) as listener:
            woken = asyncio.Event()
            listener.listen(topic, woken.set)
            await arrives(sender, woken, topic)


async def test_closing_does_not_wait_long_for_a_notice_that_is_not_answered(place: Place, constants: Constants) -> None:
    constants(last_notices=0.05)
    async with Proxy(place.server.port) as proxy:
        storage = open_storage(place.url(proxy.port), timeout=60)
        await storage.open()
        listening = storage.listen("t", lambda: None)
        await until(lambda: _listening(place, 1))
        before = asyncio.all_tasks()
        proxy.fall_silent()
        storage.notify_soon("t")
        assert len(asyncio.all_tasks() - before) == 1
        await asyncio.wait_for(storage.close(), 10)
        listening()
        left = asyncio.all_tasks() - before
        # The proxy has read the notice, and goes on reading.
        assert [task for task in left if task.get_coro().__qualname__ != "StreamReader.read"] == []


class Forgetful(NoticeChannel):
    """Its driver loses the first cancellation."""

    cancelled = 0

    async def _send(self, payload: str) -> None: ...

    async def _receive(self) -> str:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                if self.cancelled > 1:
                    raise


async def test_a_channel_closes_although_its_driver_loses_a_cancellation() -> None:
    channel = Forgetful()
    channel.add("topic", lambda: None)
    channel.start()
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await channel.close()
    assert channel.cancelled == 2
