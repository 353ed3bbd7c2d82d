"""The roles of a worker whose server fails over: users who go on until a file appears."""

from __future__ import annotations

import asyncio
import random
import time
from itertools import count
from pathlib import Path
from typing import Any

from stepwell import Storage
from stepwell.errors import NotReplicated
from stepwell.fsm import FSM, Context, Router
from tests.reliability.roles import OPERATIONS, Done, Report, handled

#: Seconds between the updates of a user, at most.
THINK = 0.02


async def converse_on(storage: Storage, report: Report, *, users: int, stop: str, first: int = 1) -> None:
    """Send updates of several users, each after the answer to the last one. The handler counts and adds their ids."""
    router = Router(FSM("talk", storage=storage, flows=[]))

    @router.on()
    async def add_up(ctx: Context) -> None:
        update_id = ctx.update.update_id
        ctx.update_data(count=ctx.data.get("count", 0) + 1, total=ctx.data.get("total", 0) + update_id)

    async def one(user: int) -> None:
        person = {"id": user, "is_bot": False, "first_name": "A"}
        message = {"message_id": 1, "date": 1, "from": person, "chat": {"id": user, "type": "private"}, "text": "hi"}
        for update_id in count(user * 1_000_000 + 1):
            if Path(stop).exists():
                return
            await _delivered(router, {"update_id": update_id, "message": message})
            report("acknowledged", user, update_id, time.monotonic())
            await asyncio.sleep(random.uniform(0, THINK))

    await asyncio.gather(*(one(user) for user in range(first, first + users)))


async def _delivered(router: Router, update: dict[str, Any]) -> None:
    while True:
        try:
            await handled(router, update)
            return
        except NotReplicated:
            # A webhook that was not acknowledged is sent again.
            continue


async def operate_on(storage: Storage, report: Report, *, tasks: int, keys: int, seed: int, stop: str) -> None:
    """Run random operations on a few keys, and report time and result of each."""
    done: Done = []

    async def one(task: int) -> None:
        choose = random.Random(seed * 1000 + task)
        while not Path(stop).exists():
            kind = choose.choices(["get", "merge", "replace", "delete", "claim"], [4, 4, 1, 1, 3])[0]
            await OPERATIONS[kind](storage, done, choose.randrange(keys))
            await asyncio.sleep(choose.uniform(0, THINK))

    await asyncio.gather(*(one(task) for task in range(tasks)))
    for entry in done:
        report("op", *entry)
