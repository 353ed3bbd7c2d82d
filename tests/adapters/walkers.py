"""Bots for tests with processes. One of them counts messages as steps of a walk, whichever worker handles them."""

from __future__ import annotations

import asyncio
import os

from aiogram import Dispatcher, F
from aiogram.types import Message
from examples.aiogram_registration import make_dispatcher as registration
from examples.aiogram_wizard import make_dispatcher as wizard

from stepwell.adapters.aiogram import fsm_flow, fsm_state, setup
from stepwell.fsm import FSM, Context, Flow, state


def make_hasty(storage: str) -> Dispatcher:
    """The registration bot with a lease of one second, so that the keys of a killed worker are soon free."""
    return registration(storage, lease=1.0)


def make_hasty_wizard(storage: str) -> Dispatcher:
    """The wizard with such a lease."""
    return wizard(storage, lease=1.0)


class Walk(Flow, name="walk"):
    walking = state(to=["walking", "arrived"])
    arrived = state(to=[])
    default_state = walking


def make_dispatcher(storage: str) -> Dispatcher:
    dispatcher = Dispatcher(disable_fsm=True)
    setup(dispatcher, FSM("walkers", storage=storage, flows=[Walk], lease=1.0))

    @dispatcher.message(fsm_flow(None))
    async def begin(message: Message, ctx: Context) -> None:
        ctx.start_flow(Walk)
        ctx.update_data(steps=[message.text], by=[os.getpid()])

    @dispatcher.message(fsm_state(Walk.walking), F.text)
    async def step(message: Message, ctx: Context) -> None:
        steps = [*ctx.data["steps"], message.text]
        await asyncio.sleep(0)
        ctx.update_data(steps=steps, by=[*ctx.data["by"], os.getpid()])
        ctx.transition("arrived" if len(steps) == 10 else "walking")

    return dispatcher
