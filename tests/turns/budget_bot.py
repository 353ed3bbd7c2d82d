"""A worker whose turn is killed: each request to its model costs a cent, and is written to a file before and after."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from stepwell.turns import Budget, Turn, Turns

STORAGE, FOLDER = sys.argv[1], Path(sys.argv[2])
REQUESTS = 400

turns = Turns("bot", storage=STORAGE, collect=0.0, attempts=100, lease=1.0, budget=Budget(usd=100, reserve=1))


@turns.handler
async def answer(turn: Turn) -> None:
    for number in range(REQUESTS):
        with (FOLDER / "begun").open("a") as begun:
            begun.write("x")
        await turn.spent(0.01, id=f"{turn.attempt}-{number}")
        with (FOLDER / "counted").open("a") as counted:
            counted.write("x")
        if (FOLDER / "go").exists():
            break
        await asyncio.sleep(0.01)
    turn.answer("done")


async def send(call: object) -> None:
    (FOLDER / "sent").touch()


async def main() -> None:
    async with turns.worker(send=send):
        await asyncio.Event().wait()


asyncio.run(main())
