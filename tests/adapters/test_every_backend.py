"""aiogram on all backends."""

from __future__ import annotations

import asyncio

import pytest
from aiogram.fsm.context import FSMContext
from aiogram.fsm.storage.base import StorageKey

from stepwell import State
from stepwell.adapters.aiogram import StepwellIsolation, StepwellStorage
from stepwell.fsm import FSM
from stepwell.testing import Clock
from tests.adapters.aiogram_bots import feed, make_bot, message
from tests.adapters.test_aiogram_setup import Registration, bot_of
from tests.adapters.test_aiogram_storage import KEY, Form, records
from tests.backends import Backend

pytestmark = pytest.mark.every_backend


async def test_a_conversation_through_the_dispatcher_with_a_redelivery_and_a_timeout(
    backend: Backend, clock: Clock
) -> None:
    fsm = FSM("my_bot", storage=backend.storage(clock=clock), flows=[Registration], run_timers=False)
    dispatcher, (bot, session) = bot_of(fsm), make_bot()
    for update in (message("/register"), message("Alice")):
        await asyncio.gather(*(feed(dispatcher, bot, update) for _ in range(3)))
    clock.advance(601)
    assert await fsm.tick() == 1
    assert await fsm.storage.get_state("my_bot", (42, 42)) == State("registration", "get_name", {"name": "Alice"})
    await feed(bot_of(fsm), bot, message("Bob"))
    await feed(bot_of(fsm), bot, message("b@c.d"))
    assert session.texts == ["What's your name?", "Got it, Alice!", "Got it, Bob!", "Welcome, Bob!"]
    assert await fsm.storage.get_state("my_bot", (42, 42)) is None


async def test_state_and_data_of_a_key_inside_and_outside_of_a_lock(backend: Backend) -> None:
    storage = backend.storage()
    kept, isolation = StepwellStorage(storage), StepwellIsolation(storage)
    context = FSMContext(kept, KEY)
    history = StorageKey(bot_id=7, chat_id=42, user_id=42, destiny="scenes_history")
    await context.set_state(Form.name)
    assert await context.update_data(a=1) == {"a": 1}
    with pytest.raises(RuntimeError):
        async with isolation.lock(KEY):
            await context.update_data(a=2)
            await kept.set_state(history, "b")
            raise RuntimeError
    async with isolation.lock(KEY):
        assert await context.update_data(b=b"2") == {"a": 1, "b": b"2"}
        await kept.update_data(history, {"x": 1})
        await context.set_state(None)
    assert (await context.get_state(), await context.get_data()) == (None, {"a": 1, "b": b"2"})
    assert await kept.get_data(history) == {"x": 1}
    assert len(await records(storage)) == 2
    await context.clear()
    assert len(await records(storage)) == 1


async def test_a_lock_has_one_holder_at_a_time(backend: Backend) -> None:
    storage = backend.storage()
    kept, isolation = StepwellStorage(storage), StepwellIsolation(storage)

    async def add() -> None:
        async with isolation.lock(KEY):
            seen = await kept.get_value(KEY, "n", 0)
            await asyncio.sleep(0)
            await kept.update_data(KEY, {"n": seen + 1})

    await asyncio.gather(*(add() for _ in range(20)))
    assert await kept.get_value(KEY, "n") == 20
