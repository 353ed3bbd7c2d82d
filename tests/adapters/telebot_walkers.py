"""Bots of telebot for tests with processes. Two of them count messages as steps of a walk."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from examples.telebot_registration import make_bot as registration
from examples.telebot_wizard import make_bot as wizard
from telebot import TeleBot
from telebot.async_telebot import AsyncTeleBot
from telebot.types import Message

from stepwell.adapters.telebot import fsm_of, setup
from stepwell.fsm import FSM, Flow, state

#: Seconds, so that the keys of a killed worker are soon free.
LEASE = 1.0


def make_registration(token: str, storage: str) -> TeleBot:
    return registration(token, storage, lease=LEASE)


def make_wizard(token: str, storage: str) -> AsyncTeleBot:
    return wizard(token, storage, lease=LEASE)


class Walk(Flow, name="walk"):
    walking = state(to=["walking", "arrived"])
    arrived = state(to=[])
    default_state = walking


def begin(message: Message) -> None:
    ctx = fsm_of(message)
    ctx.start_flow(Walk)
    ctx.update_data(steps=[message.text], by=[os.getpid()])


def step(message: Message, steps: list[Any]) -> None:
    ctx = fsm_of(message)
    ctx.update_data(steps=[*steps, message.text], by=[*ctx.data["by"], os.getpid()])
    ctx.transition("arrived" if len(steps) == 9 else "walking")


def make_sync_walk(token: str, storage: str) -> TeleBot:
    bot = TeleBot(token, threaded=False)
    setup(bot, FSM("walkers", storage=storage, flows=[Walk], lease=LEASE))

    def read_and_step(message: Message) -> None:
        steps = fsm_of(message).data["steps"]
        # Another thread runs here.
        time.sleep(0)
        step(message, steps)

    bot.register_message_handler(begin, fsm_in_flow=False)
    bot.register_message_handler(read_and_step, fsm_state=Walk.walking)
    return bot


def make_async_walk(token: str, storage: str) -> AsyncTeleBot:
    bot = AsyncTeleBot(token)
    setup(bot, FSM("walkers", storage=storage, flows=[Walk], lease=LEASE))

    async def begin_async(message: Message) -> None:
        begin(message)

    async def read_and_step(message: Message) -> None:
        steps = fsm_of(message).data["steps"]
        await asyncio.sleep(0)
        step(message, steps)

    bot.register_message_handler(begin_async, fsm_in_flow=False)
    bot.register_message_handler(read_and_step, fsm_state=Walk.walking)
    return bot
