"""The flow of the tests of timers, and the role of the workers that run them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stepwell import Storage
from stepwell.fsm import FSM, Context, Flow, state


async def fire(ctx: Context) -> None:
    ctx.update_data(fired=ctx.data.get("fired", 0) + 1)
    ctx.set_state("late")


class Timed(Flow, name="timed"):
    ask = state(timeout=2.0, on_timeout=fire)
    late = state()
    default_state = ask


async def run_timers(storage: Storage, report: Callable[..., None]) -> None:
    """Run timers until killed."""
    async with FSM("bot", storage=storage, flows=[Timed]):
        report("ready")
        await asyncio.Event().wait()
