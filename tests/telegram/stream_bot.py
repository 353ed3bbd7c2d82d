"""A bot whose answer ends when the file ``go`` is there."""

import asyncio
from pathlib import Path

from stepwell.fsm import FSM, Context, Router, text

GO = Path(__file__).with_name("go")


def make_router(storage: object) -> Router:
    # A killed process holds its conversations for as long as a lease.
    router = Router(FSM("my_bot", storage=storage, flows=[], lease=1))  # type: ignore[arg-type]

    @router.on(text())
    async def answer(ctx: Context) -> None:
        async with ctx.stream() as out:
            out.write("Once upon a time ")
            while not GO.exists():
                await asyncio.sleep(0.05)
            out.write("they lived.")

    return router
