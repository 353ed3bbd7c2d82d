"""Tests of several PostgreSQL servers in one URL: a primary and standbys that are promoted."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from stepwell.errors import InvalidOption, OutcomeUnknown, StorageUnavailable
from stepwell.operate.checks.postgres import check
from stepwell.storage.postgres import PostgresStorage
from stepwell.storage.postgres.hosts import Host, hosts_of
from tests.constants import Constants
from tests.servers.postgres import shared
from tests.servers.process import free_port
from tests.servers.standby import StandbyPair
from tests.until import until

SECRET = "hunter2-secret"


@pytest.fixture(scope="module")
def pair() -> Iterator[StandbyPair]:
    pair = StandbyPair()
    yield pair
    pair.stop()


async def test_a_write_that_the_synchronous_standby_does_not_have_is_neither_acknowledged_nor_seen(
    pair: StandbyPair,
) -> None:
    async with PostgresStorage.from_url(pair.url("unknown"), timeout=0.5, patience=0.8) as storage:
        await storage.update_data("bot", 1, {"a": 1})
        await pair.synchronize()
        pair.standby.pause()
        # The first attempt is committed on the primary only; the others must not report that as a success.
        with pytest.raises(OutcomeUnknown):
            await storage.update_data("bot", 1, {"b": 1})
        assert await storage.get_data("bot", 1) == {"a": 1}
        pair.standby.resume()
        await until(lambda: storage.get_data("bot", 1), lambda it: it == {"a": 1, "b": 1})


async def test_a_storage_follows_a_promotion_and_does_not_return_to_the_old_primary(pair: StandbyPair) -> None:
    url = pair.url()
    async with PostgresStorage.from_url(url, timeout=1, connect_timeout=1) as storage:
        woken = asyncio.Event()
        storage.listen("t", woken.set)
        assert await storage.update_data("bot", 1, {"before": 1}) == {"before": 1}
        await pair.synchronize()
        await storage.update_data("bot", 1, {"synchronous": 1})
        # The old primary does not answer, then it comes back and would accept writes.
        pair.primary.pause()
        await pair.promote()
        expected = {"before": 1, "synchronous": 1, "promoted": 1}
        assert await storage.update_data("bot", 1, {"promoted": 1}) == expected
        pair.standby.resume()
        for key in range(8):
            await storage.update_data("bot", key, {"key": key})
        assert await storage.get_data("bot", 1) == expected | {"key": 1}
        # A storage that has never seen the new primary finds it, in either order of the servers.
        reverse = f"postgresql://postgres@{pair.primary.address},{pair.standby.address}/postgres"
        for each in (url, reverse):
            async with PostgresStorage.from_url(each) as another:
                assert await another.get_data("bot", 1) == expected | {"key": 1}
                await arrives(another, woken)
        findings = check(await storage.settings(), time.time())
        (servers,) = [each for each in findings if each.check == "servers"]
        assert servers.level == "fail" and f"{pair.primary.address} accepts writes" in servers.what
        assert f"{pair.standby.address} was replaced by a server that was promoted" in servers.what


async def test_a_storage_leaves_a_primary_that_goes_on_after_a_promotion(constants: Constants) -> None:
    constants(hosts_checked_every=0.1)
    pair = StandbyPair()
    try:
        async with PostgresStorage.from_url(pair.url()) as storage:
            await storage.update_data("bot", 1, {"n": 0})
            await pair.promote()
            admin = await asyncpg.connect(pair.primary.url())
            async with asyncio.timeout(60):
                number = 0
                while not await admin.fetchval("select count(*) from stepwell.records where key = '2'"):
                    number += 1
                    await storage.update_data("bot", 2, {"n": number})
            assert await storage.get_data("bot", 2) == {"n": number}
            await admin.close()
    finally:
        pair.stop()


async def arrives(sender: PostgresStorage, woken: asyncio.Event) -> None:
    woken.clear()
    async with asyncio.timeout(30):
        while not woken.is_set():
            await sender.notify("t")
            await asyncio.sleep(0.02)


async def test_a_server_that_does_not_answer_delays_no_other() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = (
            f"postgresql://postgres@127.0.0.1:{silent.getsockname()[1]},{shared().address}/postgres?schema=not_delayed"
        )
        started = time.monotonic()
        async with PostgresStorage.from_url(url, connect_timeout=60) as storage:
            assert await storage.update_data("bot", 1, {"a": 1}) == {"a": 1}
        assert time.monotonic() - started < 30


async def test_a_wrong_password_for_all_servers_is_final() -> None:
    url = f"postgresql://nobody_{free_port()}:{SECRET}@{shared().address},{shared().address}/postgres"
    with pytest.raises(StorageUnavailable, match="does not exist") as caught:
        await PostgresStorage(url).open()
    assert caught.value.final


def test_the_servers_of_a_url(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PGPORT", raising=False)
    assert hosts_of(f"postgresql://me:{SECRET}@one:5433,two/db") == [Host("one", 5433), Host("two", 5432)]
    assert hosts_of("postgresql://[::1]:5433,[::2]/db") == [Host("::1", 5433), Host("::2", 5432)]
    assert hosts_of("postgresql:///db?host=one,two&port=1,2") == [Host("one", 1), Host("two", 2)]
    assert hosts_of("postgresql:///db?host=one,two&port=7") == [Host("one", 7), Host("two", 7)]
    assert hosts_of("postgresql://%2Frun%2Fone,%2Frun%2Ftwo/db") == [Host("/run/one", 5432), Host("/run/two", 5432)]
    assert len(hosts_of("postgresql:///db")) == 1
    with pytest.raises(InvalidOption, match="port of server 2"):
        hosts_of(f"postgresql://me:{SECRET}@one:1,two:{SECRET}/db")
    with pytest.raises(InvalidOption, match="accepts writes"):
        PostgresStorage("postgresql://one,two/db?target_session_attrs=standby")
