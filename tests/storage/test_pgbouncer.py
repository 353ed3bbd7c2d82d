"""Conversations, timers and queues through PgBouncer in transaction mode, whose two sessions all connections share."""

from __future__ import annotations

import asyncio

from stepwell import open_storage
from stepwell.fsm import FSM, Context, Flow, state
from stepwell.nodes import linear, worker
from tests.nodes.flows import A, B
from tests.servers import pgbouncer, postgres
from tests.servers.standby import connected
from tests.until import until


async def test_conversations_timers_and_queues_work_through_a_pooler() -> None:
    fired = asyncio.Event()

    async def fire(ctx: Context) -> None:
        ctx.set_state("late")
        fired.set()

    class Pooled(Flow, name="pooled"):
        ask = state(timeout=0.2, on_timeout=fire)
        late = state()
        default_state = ask

    url = f"{pgbouncer.shared().url()}?schema=through_a_pooler&prepared_statements=false"
    async with open_storage(url) as storage, FSM("bot", storage=storage, flows=[Pooled]) as fsm:

        async def talk(user: int) -> None:
            async with fsm.conversation(key=(user, user), update_id=user) as ctx:
                ctx.start_flow(Pooled)
                ctx.update_data(user=user)

        await asyncio.gather(*(talk(user) for user in range(20)))
        flow = linear(A, B, name="pooled", storage=storage)
        handles = [await flow.submit({"n": n}) for n in range(5)]
        async with worker([flow]), asyncio.timeout(60):
            for handle in handles:
                assert (await handle.result())["trail"] == ["A", "B"]
            await fired.wait()
            await until(lambda: storage.scan("bot", state="late"), lambda late: len(late) >= 20)
        assert [entry.state.data["user"] async for entry in storage.scan("bot")] == sorted(range(20), key=str)
        assert (await storage.settings())["pooled"]
    async with connected(postgres.shared()) as admin:
        # Neither a LISTEN nor a session lock stays in a session that another client uses later.
        locks = "select count(*) from pg_locks where locktype = 'advisory'"
        assert await admin.fetchval(locks) == 0
        assert not await admin.fetch("select from pg_stat_activity where query like 'LISTEN%through_a_pooler%'")
