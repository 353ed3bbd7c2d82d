"""A bot for ``stepwell run`` that ends its process at the text "poison", and writes down each such attempt."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from stepwell import Storage
from stepwell.fsm import FSM, Context, Router, text


def make_router(storage: Storage | str) -> Router:
    router = Router(FSM("my_bot", storage=storage, flows=[], lease=1.0))

    @router.on(text())
    async def echo(ctx: Context) -> None:
        if ctx.text == "poison":
            with Path(os.environ["ATTEMPTS"]).open("a") as file:
                file.write("x")
            if os.environ["HOW"] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            os._exit(9)
        ctx.answer(f"got {ctx.text}")

    return router
