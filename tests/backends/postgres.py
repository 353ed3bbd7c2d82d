"""PostgreSQL: one server for the session, a schema for each store, emptied and used again by later tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import ClassVar

import asyncpg
import psutil

from stepwell.record import Address
from tests.backends.base import Backend
from tests.servers import postgres
from tests.until import until

#: Table, the value in it, and how it is set; $1 and $2 are the address, $3 the name, $4 the new text.
WHERE = {
    "field": ("records", "data ->> $3::text", "data = data || jsonb_build_object($3::text, $4::text)", "true"),
    "part": ("parts", "body", "body = $4", "name = $3"),
    "head": ("records", "head", "head = $4", "$3 = ''"),
    "memo": ("records", "memo", "memo = $4", "$3 = ''"),
    "tags": ("records", "tags[1]", "tags[1] = $4", "$3 = ''"),
}

#: Creating a schema takes far longer. A large table would stay large, because nothing vacuums it.
EMPTY = """
do $$ declare name text; begin
    for name in select tablename from pg_tables where schemaname = '{schema}' and tablename <> 'version' loop
        if pg_total_relation_size(format('{schema}.%I', name)) > 200000 then
            execute format('truncate {schema}.%I', name);
        else
            execute format('delete from {schema}.%I', name);
        end if;
    end loop;
end $$
"""
#: Seconds until the server has ended the sessions of closed connections.
CLOSING = 1.0


class Postgres(Backend):
    name = "postgres"
    shared = True
    durable = True

    _numbers = count(1)
    #: Empty schemas.
    _free: ClassVar[list[str]] = []

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._used: list[str] = []

    def place(self) -> str:
        schema = self._free.pop() if self._free else f"place_{next(self._numbers)}"
        self._used.append(schema)
        return f"{postgres.shared().url()}?schema={schema}"

    async def close(self) -> None:
        await super().close()
        if self._used:
            connection = await asyncpg.connect(postgres.shared().url())
            try:
                await self._empty(connection)
            finally:
                await connection.close()

    async def _empty(self, connection: asyncpg.Connection) -> None:
        """Delete all rows, unless a client of the test may still write: then its schemas are not used again."""
        clients = "select from pg_stat_activity where application_name = 'stepwell'"
        give_up = asyncio.get_running_loop().time() + CLOSING
        while await connection.fetch(clients):
            if asyncio.get_running_loop().time() > give_up:
                return
            await asyncio.sleep(0.002)
        for schema in self._used:
            await connection.execute(EMPTY.format(schema=schema))
            self._free.append(schema)

    async def settled(self) -> None:
        # A backend ends when it has finished the requests of its client. Connections of this process stay.
        connection = await asyncpg.connect(postgres.shared().url())
        try:
            others = "select pid from pg_stat_activity where application_name = 'stepwell' and client_port <> all ($1)"

            def ours() -> list[int]:
                return [found.laddr.port for found in psutil.Process().net_connections("tcp") if found.laddr]

            await until(lambda: connection.fetch(others, ours()), lambda found: not found)
        finally:
            await connection.close()

    async def corrupt(self, url: str, address: Address, kind: str, name: str, damage: Callable[[bytes], bytes]) -> None:
        dsn, _, schema = url.partition("?schema=")
        table, value, change, named = WHERE[kind]
        where = f"where namespace = $1 and key = $2 and {named}"
        connection = await asyncpg.connect(dsn)
        try:
            found = await connection.fetchval(f"select {value} from {schema}.{table} {where}", *address, name)
            # The server itself refuses invalid UTF-8, so that this damage cannot occur.
            changed = damage(found.encode()).decode("utf-8", "replace").replace("\0", "\ufffd")
            assert changed != found
            done = await connection.execute(f"update {schema}.{table} set {change} {where}", *address, name, changed)
            assert done == "UPDATE 1"
        finally:
            await connection.close()
