"""Conversations on all backends: deadlines, tags, memos, expiry and concurrent writes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from examples.shop import NextShop, make_router

from stepwell import State, Storage
from stepwell.errors import RecordReplaced
from stepwell.fsm import FSM, Context, DuplicateUpdate, Flow, state
from stepwell.record import DAY
from stepwell.storage import Claim, Claimed
from stepwell.testing import Chat, Clock
from tests.backends import Backend
from tests.fsm.conftest import Form, Open, message
from tests.until import until

pytestmark = pytest.mark.every_backend

OLD, NEW = -100, -1_000_000_000_100


async def remind(ctx: Context) -> None:
    ctx.update_data(reminded=ctx.data.get("reminded", 0) + 1)


class Timed(Flow, name="timed", ttl=200):
    ask = state(timeout=60, on_timeout=remind)
    default_state = ask


@pytest.fixture
def storage(backend: Backend, clock: Clock) -> Storage:
    return backend.storage(clock=clock)


@pytest.fixture
def fsm(storage: Storage) -> FSM:
    return FSM("bot", storage=storage, flows=[Form, Open, Timed], run_timers=False)


async def begin(fsm: FSM, user: int, chat: int, flow: Any = Form, **more: Any) -> None:
    async with fsm.conversation(message(user=user, chat=chat, **more)) as ctx:
        ctx.start_flow(flow)
        ctx.update_data(user=user)


async def found(entries: Any) -> set[Any]:
    return {entry.key async for entry in entries}


async def test_a_conversation_with_an_inner_flow_a_timeout_a_deploy_and_an_expiry(storage: Storage) -> None:
    chat = Chat(make_router, storage=storage)
    for words in ("/shop", "tea", "/checkout", "Main Street 1", "Berlin"):
        await chat.send(words)
    assert await chat.send("bike") == ["By bike to Main Street 1, Berlin. Pay now?"]
    await chat.advance(601)
    assert await chat.send("post") == ["By post to Main Street 1, Berlin. Pay now?"]
    await chat.restart(lambda storage: make_router(storage, NextShop))
    assert await chat.send("/back") == ["Back at shipping."]
    assert await chat.record() == State(
        "shop", "shipping", {"items": [("tea", 1)], "address": "Main Street 1, Berlin", "by": "post"}
    )
    await chat.advance(8 * DAY)
    assert await chat.record() is None


async def test_an_update_is_handled_once_and_remembered_for_a_day_after_the_end(
    storage: Storage, fsm: FSM, clock: Clock
) -> None:
    for number in range(1, 131):
        async with fsm.conversation(message(update_id=number)) as ctx:
            ctx.set_state("name", flow=Form)
            ctx.update_data(last=number)
    async with fsm.conversation(message(update_id=131)) as ctx:
        ctx.clear_flow()
    assert await storage.get_state("bot", (42, 42)) is None
    assert await found(storage.scan("bot")) == set()
    for number in (131, 130, 4):
        with pytest.raises(DuplicateUpdate):
            async with fsm.conversation(message(update_id=number)):
                pass
    clock.advance(DAY + 1)
    async with fsm.conversation(message(update_id=131)) as ctx:
        assert not ctx.duplicate


async def test_updates_of_one_user_are_handled_in_order_and_one_at_a_time(storage: Storage, fsm: FSM) -> None:
    async def add(ctx: Context) -> None:
        order = ctx.data.get("order", [])
        await asyncio.sleep(0)
        ctx.update_data(order=[*order, ctx.update.update_id])

    await asyncio.gather(*(fsm.handle(message(update_id=number), add) for number in range(1, 16)))
    assert await storage.get_data("bot", (42, 42)) == {"order": list(range(1, 16))}


async def test_saves_errors_and_writes_of_other_processes(storage: Storage, fsm: FSM) -> None:
    key = (42, 42)
    with pytest.raises(ZeroDivisionError):
        async with fsm.conversation(message(update_id=1)) as ctx:
            ctx.start_flow(Form)
            await ctx.save()
            ctx.update_data(lost=1)
            raise ZeroDivisionError
    assert await storage.get_state("bot", key) == State("form", "name", {})
    async with fsm.conversation(message(update_id=1)) as ctx:
        ctx.transition("email")
        await storage.update_data("bot", key, {"outside": 1})
        await ctx.save()
        ctx.update_data(inside=2)
    assert await storage.get_state("bot", key) == State("form", "email", {"outside": 1, "inside": 2})
    with pytest.raises(RecordReplaced):
        async with fsm.conversation(message(update_id=2)) as ctx:
            ctx.transition("done")
            await storage.clear("bot", key)
    assert await storage.get_state("bot", key) is None


async def test_records_are_found_by_user_chat_flow_and_state_and_forgotten(fsm: FSM) -> None:
    await begin(fsm, 1, OLD, update_id=1)
    await begin(fsm, 1, 1, Open, update_id=2)
    await begin(fsm, 2, OLD, update_id=3)
    await begin(fsm, 1, 5, update_id=4)
    async with fsm.conversation(message(user=1, chat=5, update_id=5)) as ctx:
        ctx.clear_flow()
    assert await found(fsm.find(user=1)) == {(OLD, 1), (1, 1)}
    assert await found(fsm.find(chat=OLD)) == {(OLD, 1), (OLD, 2)}
    assert await found(fsm.find(user=1, chat=OLD, state=Form.name)) == {(OLD, 1)}
    assert await found(fsm.find(state=None)) == {(1, 1)}
    assert await fsm.forget(user=1) == 3
    assert await found(fsm.find()) == {(OLD, 2)}
    for key in ((OLD, 1), (1, 1), (5, 1)):
        claimed = await fsm.storage.perform(Claim(fsm.storage.address("bot", key), "T", 1))
        assert isinstance(claimed, Claimed)
        assert (claimed.record, claimed.memo, claimed.base) == (None, None, "")


async def test_a_chat_moves_with_its_data_timer_and_handled_updates(storage: Storage, fsm: FSM, clock: Clock) -> None:
    await begin(fsm, 1, OLD, Timed, update_id=1)
    await begin(fsm, 2, OLD, update_id=2)
    clock.advance(40)
    assert await fsm.move_chat(OLD, NEW) == 2
    assert await found(fsm.find()) == {(NEW, 1), (NEW, 2)}
    with pytest.raises(DuplicateUpdate):
        async with fsm.conversation(message(user=2, chat=NEW, update_id=2)):
            pass
    clock.advance(15)
    assert await fsm.tick() == 0
    clock.advance(10)
    assert await fsm.tick() == 1
    assert await storage.get_state("bot", (NEW, 1)) == State("timed", "ask", {"user": 1, "reminded": 1})


async def test_each_timer_fires_once_with_several_workers(storage: Storage, fsm: FSM, clock: Clock) -> None:
    for user in range(1, 61):
        await begin(fsm, user, user, Timed)
    clock.advance(61)
    workers = [fsm, *(FSM("bot", storage=storage, flows=[Timed], run_timers=False) for _ in range(2))]
    assert sum(await asyncio.gather(*(worker.tick() for worker in workers))) == 60
    assert {entry.state.data["reminded"] async for entry in storage.scan("bot")} == {1}


async def test_a_timer_fires_by_the_clock_of_the_backend(backend: Backend) -> None:
    class Quick(Flow, name="quick"):
        ask = state(timeout=0.2, on_timeout="late")
        late = state()
        default_state = ask

    storage = backend.storage()
    async with FSM("bot", storage=storage, flows=[Quick]) as fsm:
        async with fsm.conversation(key=1) as ctx:
            ctx.start_flow(Quick)
        await until(lambda: storage.get_state("bot", 1), lambda it: it == State("quick", "late", {}))


async def test_an_expired_conversation_is_deleted_and_passed_to_on_expired(backend: Backend, clock: Clock) -> None:
    events: asyncio.Queue[Any] = asyncio.Queue()
    storage = backend.storage(clock=clock, sweep_every=0.05)
    async with FSM("bot", storage=storage, flows=[Timed], on_expired=events.put, run_timers=False) as fsm:
        await begin(fsm, 1, 1, Timed)
        clock.advance(150)
        async with fsm.conversation(message(user=1, chat=1)) as ctx:
            ctx.update_data(seen=True)
        clock.advance(150)
        assert await found(fsm.find()) == {(1, 1)}, "a write prolongs it"
        clock.advance(51)
        assert await found(fsm.find()) == set()
        await fsm.tick()
        async with asyncio.timeout(30):
            assert tuple(await events.get()) == ((1, 1), "timed", "ask")
