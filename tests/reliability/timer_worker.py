"""One worker that runs timers until it is killed: ``python -m tests.reliability.timer_worker URL``."""

from __future__ import annotations

import asyncio
import sys

from stepwell.fsm import FSM, Context, Flow, state


async def fire(ctx: Context) -> None:
    ctx.update_data(fired=ctx.data.get("fired", 0) + 1)
    ctx.set_state("late")


class Timed(Flow, name="timed"):
    ask = state(timeout=3.0, on_timeout=fire)
    late = state()
    default_state = ask


async def main(url: str) -> None:
    async with FSM("bot", storage=url, flows=[Timed]):
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
