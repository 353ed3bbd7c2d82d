"""The records of a user or chat are found by index, without scanning other records."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

from stepwell.fsm import FSM
from tests.backends.redis import Redis
from tests.fsm.conftest import Form, message


async def test_find_forget_and_move_read_no_more_keys_if_there_are_more_records(tmp_path: Path) -> None:
    backend = Redis(tmp_path)
    client = backend.client()

    def lookups() -> int:
        stats = client.info("stats")
        return int(stats["keyspace_hits"] + stats["keyspace_misses"])

    async def cost(others: int) -> list[int]:
        storage = backend.storage(sweep_every=None)
        fsm = FSM("bot", storage=storage, flows=[Form], run_timers=False)

        async def begin(user: int, chat: int) -> None:
            async with fsm.conversation(message(user=user, chat=chat)) as ctx:
                ctx.start_flow(Form)

        await asyncio.gather(*(begin(user, -user) for user in range(1000, 1000 + others)))
        await begin(1, -5)
        await begin(2, -5)
        marks = [lookups()]
        assert [entry.key async for entry in fsm.find(user=1)] == [(-5, 1)]
        marks.append(lookups())
        assert await fsm.move_chat(-5, -6) == 2
        marks.append(lookups())
        assert await fsm.forget(user=1) >= 1
        marks.append(lookups())
        return [after - before for before, after in itertools.pairwise(marks)]

    few, many = await cost(5), await cost(2000)
    assert few == many
    await backend.close()
