"""aiogram's dispatcher on Redis: its own storage and lock, ours in their place, and our conversations.

One update loads state and data, changes a field and sets the next state. Every figure includes the dispatcher.
"""

from __future__ import annotations

import asyncio
import logging
import statistics
import time
import uuid
from collections.abc import Callable
from itertools import count

from aiogram import Bot, Dispatcher
from aiogram.filters import StateFilter
from aiogram.fsm.context import FSMContext
from aiogram.fsm.state import State, StatesGroup
from aiogram.fsm.storage.base import DefaultKeyBuilder
from aiogram.fsm.storage.redis import RedisEventIsolation, RedisStorage
from aiogram.types import Message, Update
from tests.servers.redis import RedisServer

from stepwell import open_storage
from stepwell.adapters.aiogram import StepwellIsolation, StepwellStorage, fsm_state, setup
from stepwell.fsm import FSM, Context, Flow, state

USERS, EACH, ROUNDS = 50, 20, 9
#: The required speedups.
TARGET_MANY, TARGET_ONE = 3, 20

_ids = count(1)


class Form(StatesGroup):
    a = State()
    b = State()


class Pair(Flow, name="pair"):
    a = state(to=["b"])
    b = state(to=["a"])
    default_state = a


def with_states(dispatcher: Dispatcher) -> Dispatcher:
    async def step(state: FSMContext, to: State) -> None:
        data = await state.get_data()
        await state.update_data(n=data["n"] + 1)
        await state.set_state(to)

    @dispatcher.message(StateFilter(Form.a))
    async def at_a(message: Message, state: FSMContext) -> None:
        await step(state, Form.b)

    @dispatcher.message(StateFilter(Form.b))
    async def at_b(message: Message, state: FSMContext) -> None:
        await step(state, Form.a)

    @dispatcher.message()
    async def at_first(message: Message, state: FSMContext) -> None:
        await state.set_data({"n": 1})
        await state.set_state(Form.a)

    return dispatcher


def theirs(url: str) -> Dispatcher:
    """Return a dispatcher with aiogram's own storage and lock."""
    storage = RedisStorage.from_url(url, key_builder=DefaultKeyBuilder(prefix=uuid.uuid4().hex))
    isolation = RedisEventIsolation(storage.redis, storage.key_builder)
    return with_states(Dispatcher(storage=storage, events_isolation=isolation))


def ours(url: str) -> Dispatcher:
    storage = open_storage(f"{url}?prefix={uuid.uuid4().hex}")
    return with_states(Dispatcher(storage=StepwellStorage(storage), events_isolation=StepwellIsolation(storage)))


def conversations(url: str) -> Dispatcher:
    dispatcher = Dispatcher(disable_fsm=True)
    setup(dispatcher, FSM("bench", storage=f"{url}?prefix={uuid.uuid4().hex}", flows=[Pair]))

    @dispatcher.message(fsm_state(Pair.a))
    async def at_a(message: Message, ctx: Context) -> None:
        ctx.update_data(n=ctx.data["n"] + 1)
        ctx.transition("b")

    @dispatcher.message(fsm_state(Pair.b))
    async def at_b(message: Message, ctx: Context) -> None:
        ctx.update_data(n=ctx.data["n"] + 1)
        ctx.transition("a")

    @dispatcher.message()
    async def at_first(message: Message, ctx: Context) -> None:
        ctx.start_flow(Pair)
        ctx.update_data(n=1)

    return dispatcher


Make = Callable[[str], Dispatcher]
WAYS: dict[str, Make] = {
    "RedisStorage, RedisEventIsolation": theirs,
    "StepwellStorage, StepwellIsolation": ours,
    "setup(dispatcher, fsm)": conversations,
}


def update(bot: Bot, user: int) -> Update:
    person = {"id": user, "is_bot": False, "first_name": "A"}
    chat = {"id": user, "type": "private", "first_name": "A"}
    message = {"message_id": 1, "date": 1, "chat": chat, "from": person, "text": "hi"}
    return Update.model_validate({"update_id": next(_ids), "message": message}, context={"bot": bot})


async def seconds(make: Make, url: str, bot: Bot, *, users: int, at_once: int, each: int) -> float:
    """Return the seconds for ``each`` updates in a row, in ``at_once`` concurrent tasks for each user."""
    dispatcher = make(url)
    tasks = [[update(bot, user) for _ in range(each)] for user in range(1, users + 1) for _ in range(at_once)]
    await dispatcher.emit_startup(bot=bot)
    for user in range(1, users + 1):
        await dispatcher.feed_update(bot, update(bot, user))

    async def feed(updates: list[Update]) -> None:
        for one in updates:
            await dispatcher.feed_update(bot, one)

    started = time.perf_counter()
    await asyncio.gather(*map(feed, tasks))
    taken = time.perf_counter() - started
    await dispatcher.emit_shutdown(bot=bot)
    return taken


async def main() -> int:
    """Print the table; return the number of missed targets."""
    logging.getLogger("aiogram").setLevel(logging.WARNING)
    server, bot = RedisServer(), Bot("1:x")
    rates: dict[str, list[float]] = {name: [] for name in WAYS}
    times: dict[str, list[float]] = {name: [] for name in WAYS}
    try:
        for number in range(ROUNDS):
            for name, make in WAYS.items():
                taken = await seconds(make, server.url(), bot, users=USERS, at_once=1, each=EACH)
                rates[name].append(USERS * EACH / taken)
                # aiogram's own takes seconds and hardly varies, so it is measured less often.
                if make is not theirs or number % 4 == 0:
                    times[name].append(await seconds(make, server.url(), bot, users=1, at_once=50, each=1))
    finally:
        server.stop()
    rate = {name: statistics.median(values) for name, values in rates.items()}
    time_of = {name: statistics.median(values) for name, values in times.items()}
    peer, storage, _ = WAYS
    # A ratio for each round, so that other load affects both sides of it.
    faster = {
        name: statistics.median(ours / theirs for ours, theirs in zip(values, rates[peer], strict=True))
        for name, values in rates.items()
    }
    print(f"{'the whole dispatcher on Redis':38}{'50 users':>20}{'50 updates of one user':>28}")
    for name in WAYS:
        print(
            f"{name:38}{rate[name]:>11,.0f}/s {faster[name]:>5.1f}x"
            f"{time_of[name] * 1000:>18,.0f} ms {time_of[peer] / time_of[name]:>5.1f}x"
        )
    return shown("50 users", faster[storage], TARGET_MANY) + shown(
        "50 updates of one user", time_of[peer] / time_of[storage], TARGET_ONE
    )


def shown(what: str, ratio: float, target: float) -> int:
    """Print one line; return 1 if the target is missed."""
    missed = ratio < target
    print(f"{what:24}{ratio:6.1f} times as fast, at least {target:g}{'   MISSED' if missed else ''}")
    return int(missed)
