"""A worker that streams 200 words to a Bot API server, and is killed by its test."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

from stepwell.telegram import BotClient, Sender
from stepwell.turns import Turn, Turns

STORAGE, API, TOKEN, PAUSE = sys.argv[1:]

turns = Turns("bot", storage=STORAGE, collect=0.0)


@turns.handler
async def answer(turn: Turn) -> AsyncIterator[str]:
    for number in range(200):
        yield f"word{number} "
        await asyncio.sleep(float(PAUSE))


async def main() -> None:
    async with BotClient(TOKEN, api=API) as client, turns.worker(send=Sender(client).send, client=client):
        await asyncio.Event().wait()


asyncio.run(main())
