"""PostgreSQL: one server for the session, a schema for each store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

import asyncpg
import psutil

from stepwell.record import Address
from tests.backends.base import Backend
from tests.servers import postgres

#: Table, the value in it, and how it is set; $1 and $2 are the address, $3 the name, $4 the new text.
WHERE = {
    "field": ("records", "data ->> $3::text", "data = data || jsonb_build_object($3::text, $4::text)", "true"),
    "part": ("parts", "body", "body = $4", "name = $3"),
    "head": ("records", "head", "head = $4", "$3 = ''"),
    "memo": ("memos", "body", "body = $4", "$3 = ''"),
    "tags": ("records", "tags[1]", "tags[1] = $4", "$3 = ''"),
}


class Postgres(Backend):
    name = "postgres"
    shared = True
    durable = True

    _numbers = count(1)

    def place(self) -> str:
        return f"{postgres.shared().url()}?schema=place_{next(self._numbers)}"

    async def settled(self) -> None:
        # A backend ends when it has finished the requests of its client. Connections of this process stay.
        connection = await asyncpg.connect(postgres.shared().url())
        try:
            while True:
                ours = [found.laddr.port for found in psutil.Process().net_connections("tcp") if found.laddr]
                others = (
                    "select pid from pg_stat_activity where application_name = 'stepwell' and client_port <> all ($1)"
                )
                if not await connection.fetch(others, ours):
                    return
                await asyncio.sleep(0.001)
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
