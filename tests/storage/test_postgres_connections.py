"""New connections to PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from stepwell import open_storage
from stepwell.storage.postgres.client import Options, ServerError, UrlSource
from tests.servers.postgres import shared
from tests.servers.proxy import Proxy


@pytest.mark.parametrize("option", ["", "&prepared_statements=off"])
async def test_a_second_connection_does_not_ask_for_the_built_in_types(option: str) -> None:
    schema = f"connections_{len(option)}"
    async with Proxy(shared().port) as proxy:
        url = f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres?schema={schema}{option}"
        async with open_storage(url) as storage:
            await storage.update_data("bot", 1, {"a": 1})
        proxy.requests = bytearray()
        async with open_storage(url) as storage:
            await storage.update_data("bot", 1, {"b": 2})
            assert await storage.get_data("bot", 1) == {"a": 1, "b": 2}
        assert b"run_batch" in proxy.requests
        assert b"typeinfo" not in proxy.requests


@pytest.fixture
async def connection() -> AsyncIterator[Any]:
    source = UrlSource(shared().url(), Options())
    opened = await source.acquire()
    yield opened
    await source.close(opened)


async def test_a_prepared_statement_is_prepared_again_after_a_migration(connection: Any) -> None:
    await connection.execute("create temporary table changing (a integer); insert into changing values (1)")
    for _ in range(3):
        assert [tuple(row) for row in await connection.fetch("select * from changing where a = $1", 1)] == [(1,)]
    await connection.execute("alter table changing add column b integer default 2")
    for _ in range(3):
        assert [tuple(row) for row in await connection.fetch("select * from changing where a = $1", 1)] == [(1, 2)]


async def test_statements_stay_prepared_while_a_connection_runs_many_others(connection: Any) -> None:
    for number in [0, 1, *range(250), 0, 1]:
        ((found,),) = await connection.fetch(f"select {number} + $1::integer", 1)
        assert found == number + 1
    prepared = "select count(*) from pg_prepared_statements"
    ((count,),) = await connection.fetch(prepared)
    assert count <= 101, "asyncpg keeps 100"


async def test_a_statement_that_fails_can_be_run_again(connection: Any) -> None:
    for divisor in (1, 0, 2, 0, 4):
        if divisor:
            assert tuple((await connection.fetch("select 4 / $1::integer", divisor))[0]) == (4 // divisor,)
        else:
            with pytest.raises(ServerError):
                await connection.fetch("select 4 / $1::integer", divisor)
