"""Bots of python-telegram-bot for tests with processes. Two of them count messages as steps of a walk."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from examples.ptb_registration import make_application as registration
from examples.ptb_wizard import make_application as wizard
from telegram.ext import MessageHandler, filters

from stepwell.adapters.ptb import ConversationHandler, StepwellPersistence, fsm_flow, fsm_of, fsm_state, setup
from stepwell.fsm import FSM, Flow, state

#: Seconds, so that the keys of a killed worker are soon free.
LEASE = 0.5
WALKING, ARRIVED = range(2)


def make_registration(storage: str, builder: Any) -> Any:
    return registration(storage, builder, lease=LEASE)


def make_wizard(storage: str, builder: Any) -> Any:
    return wizard(storage, builder, lease=LEASE)


def make_handler(storage: str, builder: Any) -> Any:
    """A walk with ConversationHandler and user_data."""

    async def step(update: Any, context: Any) -> int:
        steps = context.user_data.get("steps", [])
        await asyncio.sleep(0)
        context.user_data["steps"] = [*steps, update.message.text]
        context.user_data.setdefault("by", []).append(os.getpid())
        context.chat_data["n"] = context.chat_data.get("n", 0) + 1
        return ARRIVED if len(steps) == 9 else WALKING

    application = builder.persistence(StepwellPersistence(storage, namespace="walkers", lease=LEASE)).build()
    message = MessageHandler(filters.TEXT, step)
    application.add_handler(ConversationHandler([message], {WALKING: [message], ARRIVED: []}, [], name="walk"))
    return application


class Walk(Flow, name="walk"):
    walking = state(to=["walking", "arrived"])
    arrived = state(to=[])
    default_state = walking


def make_flow(storage: str, builder: Any) -> Any:
    """A walk with Stepwell's conversations."""

    async def begin(update: Any, context: Any) -> None:
        ctx = fsm_of(context)
        ctx.start_flow(Walk)
        ctx.update_data(steps=[update.message.text], by=[os.getpid()])

    async def step(update: Any, context: Any) -> None:
        ctx = fsm_of(context)
        steps = [*ctx.data["steps"], update.message.text]
        await asyncio.sleep(0)
        ctx.update_data(steps=steps, by=[*ctx.data["by"], os.getpid()])
        ctx.transition("arrived" if len(steps) == 10 else "walking")

    application = builder.build()
    setup(application, FSM("walkers", storage=storage, flows=[Walk], lease=LEASE))
    application.add_handler(MessageHandler(fsm_flow(None), begin))
    application.add_handler(MessageHandler(fsm_state(Walk.walking), step))
    return application
