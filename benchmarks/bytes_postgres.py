"""The bytes of a conversation in PostgreSQL, by table and index, and the share of updates that touch no index."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

import asyncpg
from tests.servers.postgres import PostgresServer

from stepwell import open_storage
from stepwell.fsm import FSM, Flow, state

#: Conversations at the same time.
AT_ONCE = 50
#: Autovacuum is on by default. It runs more often here, because the conversations of weeks are made in seconds.
VACUUM = {"autovacuum": "on", "autovacuum_naptime": "1s", "shared_buffers": "128MB"}
#: The bytes of each table and index, without those of the system.
SIZES = """
select c.relname, pg_relation_size(c.oid) + coalesce(pg_relation_size(c.reltoastrelid), 0)
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = 'stepwell' and c.relkind in ('r', 'i') and pg_relation_size(c.oid) > 0
order by 2 desc
"""
HOT = """
select sum(n_tup_hot_upd)::float8 / nullif(sum(n_tup_upd), 0)
from pg_stat_user_tables where schemaname = 'stepwell' and relname ~ '^records'
"""


class Form(Flow, name="form"):
    """Two states and two small fields."""

    name = state(to=["email"])
    email = state(to=["name"])
    default_state = name


class Footprint(NamedTuple):
    """Bytes for each conversation, by table and index, and the share of updates of records that touched no index."""

    sizes: dict[str, float]
    hot: float

    @property
    def total(self) -> float:
        return sum(self.sizes.values())


async def converse(fsm: FSM, user: int, turn: int) -> None:
    """Handle one update of one user."""
    async with fsm.conversation(key=(user, user), update_id=700_000_000 + turn * 10_000_000 + user) as ctx:
        if ctx.flow is None:
            ctx.start_flow(Form)
        elif turn % 3 == 0:
            ctx.transition("email" if ctx.state == "name" else "name")
        ctx.update_data(name="Alice Example", count=turn)


async def footprints(
    count: int, turns: int, settings: Mapping[str, str] | None = None, sql: str = ""
) -> list[Footprint]:
    """Return the bytes after the first update of each conversation, and after ``turns`` more, with autovacuum."""
    server = PostgresServer(settings=VACUUM | dict(settings or {})).start()
    found = []
    try:
        async with open_storage(server.url(), sweep_every=None) as storage:
            admin: Any = await asyncpg.connect(server.url())
            if sql:
                await admin.execute(sql)
            fsm = FSM("registration_bot", storage=storage, flows=[Form])
            for turn in range(turns + 1):
                users = iter(range(100_000_000, 100_000_000 + count))

                async def work(turn: int, users: Any) -> None:
                    for user in users:
                        await converse(fsm, user, turn)

                await asyncio.gather(*(work(turn, users) for _ in range(AT_ONCE)))
                if turn in (0, turns):
                    # The statistics of sessions arrive with a delay.
                    await asyncio.sleep(1.5)
                    await admin.execute("vacuum analyze stepwell.records, stepwell.memos")
                    sizes = {name: size / count for name, size in await admin.fetch(SIZES) if size / count > 1}
                    found.append(Footprint(sizes, await admin.fetchval(HOT) or 0.0))
            await admin.close()
    finally:
        server.stop()
    return found
