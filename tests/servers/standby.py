"""A PostgreSQL primary with a synchronous standby that can be promoted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from tests.servers.postgres import PostgresServer
from tests.until import until


class StandbyPair:
    """Two servers. Writes to the primary wait for the standby."""

    def __init__(self) -> None:
        self.primary = PostgresServer().start()
        self.standby = PostgresServer(primary=self.primary).start()

    def url(self, schema: str = "stepwell") -> str:
        """Return a URL with both servers, the standby first."""
        return f"postgresql://postgres@{self.standby.address},{self.primary.address}/postgres?schema={schema}"

    async def synchronize(self, commit: str = "on") -> None:
        """Make writes wait for the standby from now on."""
        async with connected(self.primary) as admin:
            await configure(admin, synchronous_standby_names="*", synchronous_commit=commit)
            await until(lambda: admin.fetch("select from pg_stat_replication where sync_state = 'sync'"))

    async def promote(self) -> None:
        """Make the standby the primary, and let it write without a standby, as cluster managers do."""
        async with connected(self.standby) as admin:
            assert await admin.fetchval("select pg_promote()")
            await configure(admin, synchronous_standby_names="")
        self.primary, self.standby = self.standby, self.primary

    async def replace_standby(self) -> None:
        """Start a new standby at the address of the old one, which is killed."""
        old = self.standby
        await asyncio.to_thread(old.stop)
        self.standby = await asyncio.to_thread(lambda: PostgresServer(primary=self.primary, port=old.port).start())

    def stop(self) -> None:
        for server in (self.standby, self.primary):
            server.stop()


async def configure(admin: asyncpg.Connection[Any], **settings: str) -> None:
    for name, value in settings.items():
        await admin.execute(f"alter system set {name} = '{value}'")
    await admin.execute("select pg_reload_conf()")


@asynccontextmanager
async def connected(server: PostgresServer) -> AsyncIterator[asyncpg.Connection[Any]]:
    connection: asyncpg.Connection[Any] = await asyncpg.connect(server.url())
    try:
        yield connection
    finally:
        await connection.close()
