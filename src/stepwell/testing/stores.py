"""An empty storage for one test, at any URL."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from stepwell.storage import Storage, open_storage
from stepwell.storage.urls import take_options
from stepwell.testing.clock import Clock

__all__ = ["new_storage"]


@asynccontextmanager
async def new_storage(url: str, folder: Path, clock: Clock | None = None) -> AsyncIterator[Storage]:
    """Open an empty storage at a URL, and remove its records at the end.

    SQLite gets a new file in ``folder``, PostgreSQL a schema of its own, Redis a prefix of its own. A storage of
    another package is opened as it is.
    """
    base, mark, query = url.partition("?")
    name = f"pytest_{uuid.uuid4().hex}"
    options: dict[str, Any] = {} if clock is None else {"clock": clock}
    if base.startswith("sqlite:"):
        url = f"sqlite:///{folder / name}.db{mark}{query}"
    elif base.startswith("postgres"):
        options["schema"] = name
    elif base.startswith(("redis", "unix:")):
        options["prefix"] = name
    storage = open_storage(url, **options)
    try:
        async with storage:
            yield storage
    finally:
        if "schema" in options:
            await _drop_schema(url, name)
        elif "prefix" in options:
            await _delete_keys(url, name)


async def _drop_schema(url: str, name: str) -> None:
    import asyncpg

    from stepwell.storage.postgres.storage import URL_OPTIONS

    dsn, _ = take_options(url, URL_OPTIONS, "a PostgreSQL URL")
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(f"drop schema if exists {name} cascade")
    finally:
        await connection.close()


async def _delete_keys(url: str, prefix: str) -> None:
    from redis.asyncio import Redis, RedisCluster

    from stepwell.storage.redis.storage import URL_OPTIONS

    dsn, _ = take_options(url, URL_OPTIONS, "a Redis URL")
    if "+cluster:" in url:
        nodes, mark, query = dsn.replace("+cluster:", ":").partition("?")
        client: Any = RedisCluster.from_url(nodes.partition(",")[0] + mark + query)
    else:
        client = Redis.from_url(dsn)
    async with client:
        # A Cluster refuses one command for keys of several slots.
        keys = [key async for key in client.scan_iter(match=f"{prefix}*", count=1000)]
        for key in keys:
            await client.unlink(key)
