"""A bot for ``stepwell run`` with an agent, whose answer ends when the file ``go`` is there."""

import asyncio
import os
from pathlib import Path

from stepwell.fsm import FSM, Context, Router, command
from stepwell.turns import Turn, Turns

GO = Path(__file__).with_name("go")
STORAGE = os.environ["STEPWELL_STORAGE"]

# A killed process holds its conversations for as long as a lease.
turns = Turns("my_bot", storage=STORAGE, collect=float(os.environ.get("COLLECT", "0.2")), lease=1, attempts=10)


@turns.handler
async def answer(turn: Turn):  # type: ignore[no-untyped-def]
    pictures = [message for message in turn.messages if message.album]
    if pictures:
        yield " ".join(message.text for message in pictures)
        return
    yield "Once upon a time "
    while not GO.exists():
        await asyncio.sleep(0.05)
    yield "they lived."


def make_router(storage: object) -> Router:
    router = Router(FSM("my_bot", storage=storage, flows=[], lease=1))  # type: ignore[arg-type]

    @router.on(command("help"))
    async def show_help(ctx: Context) -> None:
        ctx.answer("Ask me.")

    turns.attach(router)
    return router
