"""aiogram's own FSM with StepwellStorage and StepwellIsolation."""

from __future__ import annotations

import asyncio
import contextvars
import datetime
import logging
import uuid
from decimal import Decimal
from typing import Any

import pytest
from aiogram import Dispatcher, F, Router
from aiogram.dispatcher.event.bases import SkipHandler
from aiogram.exceptions import DataNotDictLikeError
from aiogram.filters import Command, StateFilter
from aiogram.fsm.context import FSMContext
from aiogram.fsm.scene import Scene, SceneRegistry, ScenesManager, on
from aiogram.fsm.state import State, StatesGroup
from aiogram.fsm.storage.base import StorageKey
from aiogram.fsm.strategy import FSMStrategy
from aiogram.types import Message

from stepwell import MemoryStorage, SealedStorage, Storage
from stepwell.adapters.aiogram import StepwellIsolation, StepwellStorage, claims, without_isolation
from stepwell.errors import (
    Busy,
    EncodeError,
    InvalidOption,
    KeyMissing,
    LeaseLost,
    RecordReplaced,
    StorageUnavailable,
    UsageError,
)
from stepwell.slot import Slot
from stepwell.storage import Claim
from stepwell.storage.sealed import new_key
from stepwell.testing import Clock
from tests.adapters.aiogram_bots import feed, make_bot, message
from tests.adapters.cancellation import cancel_at
from tests.backends import Backend
from tests.constants import Constants
from tests.until import until, yields

KEY = StorageKey(bot_id=7, chat_id=42, user_id=42)


class Form(StatesGroup):
    name = State()
    email = State()

    class Inner(StatesGroup):
        deep = State()


@pytest.fixture
def storage(backend: Backend) -> Storage:
    return backend.storage()


@pytest.fixture
def kept(storage: Storage) -> StepwellStorage:
    return StepwellStorage(storage)


async def records(storage: Storage, bot_id: int = 7) -> list[Any]:
    return [entry.key async for entry in storage.scan(f"aiogram:{bot_id}")]


@pytest.mark.parametrize("isolated", [False, True], ids=["alone", "isolated"])
async def test_state_and_data_of_a_key(storage: Storage, kept: StepwellStorage, isolated: bool) -> None:
    isolation = StepwellIsolation(storage)

    async def converse() -> None:
        assert await kept.get_state(KEY) is None
        assert await kept.get_data(KEY) == {}
        assert await kept.get_value(KEY, "a") is None
        await kept.set_state(KEY, Form.name)
        assert await kept.get_state(KEY) == "Form:name"
        assert await kept.update_data(KEY, {"a": 1}) == {"a": 1}
        assert await kept.update_data(KEY, {"b": [1]}) == {"a": 1, "b": [1]}
        await kept.set_state(KEY, "Form:email")
        assert await kept.get_data(KEY) == {"a": 1, "b": [1]}
        assert await kept.get_value(KEY, "b") == [1]
        assert await kept.get_value(KEY, "c", "default") == "default"
        await kept.set_data(KEY, {"c": 3})
        assert await kept.get_data(KEY) == {"c": 3}
        assert await kept.get_state(KEY) == "Form:email"

    if isolated:
        async with isolation.lock(KEY):
            await converse()
    else:
        await converse()
    assert await records(storage) == [(42, 42, None, None, "default")]
    assert await kept.get_data(KEY) == {"c": 3}


@pytest.mark.parametrize("isolated", [False, True], ids=["alone", "isolated"])
async def test_clear_leaves_no_record(storage: Storage, kept: StepwellStorage, isolated: bool) -> None:
    async def converse() -> None:
        context = FSMContext(kept, KEY)
        await context.clear()
        assert await records(storage) == []
        await context.set_state(Form.name)
        await context.update_data(a=1)
        await context.clear()
        assert (await context.get_state(), await context.get_data()) == (None, {})
        await context.set_state(Form.name)
        await context.set_state(None)

    if isolated:
        async with StepwellIsolation(kept).lock(KEY):
            await converse()
    else:
        await converse()
    assert await records(storage) == []


@pytest.mark.parametrize("name", ["Form:name", "Form.Inner:deep", "@:bare", "bare", ":x", "x:", "a:b:c", "", None])
async def test_a_state_may_have_any_name(kept: StepwellStorage, name: str | None) -> None:
    await kept.update_data(KEY, {"a": 1})
    await kept.set_state(KEY, name)
    assert await kept.get_state(KEY) == name
    async with StepwellIsolation(kept).lock(KEY):
        assert await kept.get_state(KEY) == name
        await kept.set_state(KEY, name)
        assert await kept.get_state(KEY) == name


async def test_a_group_of_states_is_a_flow(storage: Storage, kept: StepwellStorage) -> None:
    await kept.set_state(KEY, Form.Inner.deep)
    entries = [entry async for entry in storage.scan("aiogram:7", flow="Form.Inner")]
    assert [entry.state.state for entry in entries] == ["deep"]
    assert [entry.key async for entry in storage.scan("aiogram:7", tag="user:42")] == [entries[0].key]


async def test_no_part_of_a_key_is_left_out(storage: Storage, kept: StepwellStorage) -> None:
    keys = [
        KEY,
        StorageKey(bot_id=8, chat_id=42, user_id=42),
        StorageKey(bot_id=7, chat_id=-42, user_id=42),
        StorageKey(bot_id=7, chat_id=42, user_id=43),
        StorageKey(bot_id=7, chat_id=42, user_id=42, thread_id=5),
        StorageKey(bot_id=7, chat_id=42, user_id=42, business_connection_id="b"),
        StorageKey(bot_id=7, chat_id=42, user_id=42, business_connection_id="5"),
        StorageKey(bot_id=7, chat_id=42, user_id=42, destiny="other"),
    ]
    for number, key in enumerate(keys):
        await kept.set_state(key, f"Form:{number}")
        await kept.set_data(key, {"n": number})
    for number, key in enumerate(keys):
        assert await kept.get_state(key) == f"Form:{number}"
        assert await kept.get_data(key) == {"n": number}
    assert len(await records(storage, 7)) == 7
    assert len(await records(storage, 8)) == 1


async def test_every_type_of_value_comes_back(kept: StepwellStorage) -> None:
    values = {
        "when": datetime.datetime(2024, 5, 17, 12, tzinfo=datetime.UTC),
        "price": Decimal("1.10"),
        "pair": (1, 2),
        "tags": {"a", "b"},
        "raw": b"\0",
        "id": uuid.UUID(int=5),
        "numbers": {1: "one"},
        "$x": None,
        "big": 10**40,
    }
    await kept.set_data(KEY, values)
    assert await kept.get_data(KEY) == values
    async with StepwellIsolation(kept).lock(KEY):
        assert await kept.get_data(KEY) == values


@pytest.mark.parametrize("isolated", [False, True], ids=["alone", "isolated"])
async def test_returned_data_is_a_copy(storage: Storage, kept: StepwellStorage, isolated: bool) -> None:
    async def converse() -> None:
        mine = {"list": [1]}
        await kept.set_data(KEY, mine)
        mine["list"].append(2)
        (await kept.get_data(KEY))["list"].append(3)
        (await kept.update_data(KEY, {"b": 1}))["list"].append(4)
        await kept.set_state(KEY, "Form:name")
        assert await kept.get_data(KEY) == {"list": [1], "b": 1}

    if isolated:
        async with StepwellIsolation(storage).lock(KEY):
            await converse()
    else:
        await converse()
    assert await kept.get_data(KEY) == {"list": [1], "b": 1}


@pytest.mark.parametrize("isolated", [False, True], ids=["alone", "isolated"])
async def test_data_that_is_no_mapping_raises_aiograms_error(
    storage: Storage, kept: StepwellStorage, isolated: bool
) -> None:
    async def converse() -> None:
        await kept.set_data(KEY, {"a": 1})
        for wrong in ("text", [("a", 1)], None):
            with pytest.raises(DataNotDictLikeError):
                await kept.set_data(KEY, wrong)  # type: ignore[arg-type]
        with pytest.raises(EncodeError, match=r"\$\.x"):
            await kept.update_data(KEY, {"x": object()})
        with pytest.raises(InvalidOption, match="a state must be a State"):
            await kept.set_state(KEY, 5)  # type: ignore[arg-type]
        assert await kept.update_data(KEY, {"b": 2}) == {"a": 1, "b": 2}

    if isolated:
        async with StepwellIsolation(storage).lock(KEY):
            await converse()
    else:
        await converse()


async def test_fifty_concurrent_updates_leave_fifty_fields(kept: StepwellStorage) -> None:
    await asyncio.gather(*(kept.update_data(KEY, {f"f{n}": n}) for n in range(50)))
    assert await kept.get_data(KEY) == {f"f{n}": n for n in range(50)}


async def test_a_lock_has_one_holder_at_a_time_for_each_key(storage: Storage, kept: StepwellStorage) -> None:
    isolation = StepwellIsolation(storage)
    order: list[int] = []

    async def one(number: int) -> None:
        async with isolation.lock(KEY):
            seen = await kept.get_value(KEY, "n", 0)
            await asyncio.sleep(0)
            await kept.update_data(KEY, {"n": seen + 1})
            order.append(number)

    await asyncio.gather(*map(one, range(20)))
    assert order == list(range(20))
    assert await kept.get_value(KEY, "n") == 20
    async with isolation.lock(KEY), isolation.lock(StorageKey(bot_id=7, chat_id=1, user_id=1)):
        pass
    assert storage.waiters == {}


async def test_another_writers_change_is_kept_beside_the_holders(storage: Storage, kept: StepwellStorage) -> None:
    isolation = StepwellIsolation(storage)
    inside, outside = asyncio.Event(), asyncio.Event()

    async def holder() -> None:
        async with isolation.lock(KEY):
            await kept.update_data(KEY, {"mine": 1})
            inside.set()
            await outside.wait()
            await kept.set_state(KEY, "Form:name")

    held = asyncio.create_task(holder())
    await inside.wait()
    await kept.update_data(KEY, {"theirs": 2})
    outside.set()
    await held
    assert await kept.get_data(KEY) == {"mine": 1, "theirs": 2}
    assert await kept.get_state(KEY) == "Form:name"


async def test_a_record_cleared_meanwhile_is_not_written(storage: Storage, kept: StepwellStorage) -> None:
    await kept.set_data(KEY, {"a": 1})

    async def elsewhere() -> None:
        await FSMContext(kept, KEY).clear()

    # In another context, like the update of another user.
    other = contextvars.copy_context()
    with pytest.raises(RecordReplaced):
        async with StepwellIsolation(storage).lock(KEY):
            await asyncio.get_running_loop().create_task(elsewhere(), context=other)
            await kept.update_data(KEY, {"b": 2})
    assert await kept.get_data(KEY) == {}


async def test_a_holder_with_an_expired_lease_writes_nothing_if_another_one_has_it() -> None:
    clock = Clock()
    storage = MemoryStorage(clock=clock)
    kept, isolation = StepwellStorage(storage), StepwellIsolation(storage, lease=5)
    await kept.update_data(KEY, {"a": 1})
    with pytest.raises(LeaseLost):
        async with isolation.lock(KEY):
            await kept.update_data(KEY, {"a": 2})
            clock.advance(6)
            (held,) = storage.waiters
            await storage.perform(Claim(held, "another", 60))
            await kept.set_state(KEY, "Form:name")
    assert await kept.get_data(KEY) == {"a": 1}
    assert await kept.get_state(KEY) is None
    await storage.close()


async def test_all_writes_of_a_handler_are_one_write_at_its_end(storage: Storage, kept: StepwellStorage) -> None:
    isolation, other = StepwellIsolation(storage), contextvars.copy_context()

    async def elsewhere() -> dict[str, Any]:
        return await kept.get_data(KEY)

    async with isolation.lock(KEY):
        await kept.update_data(KEY, {"a": 1})
        await kept.set_state(KEY, "Form:name")
        assert await asyncio.get_running_loop().create_task(elsewhere(), context=other) == {}
        assert await asyncio.get_running_loop().create_task(elsewhere()) == {"a": 1}
    assert await kept.get_data(KEY) == {"a": 1}
    version = [entry.version async for entry in storage.scan("aiogram:7")]
    with pytest.raises(RuntimeError):
        async with isolation.lock(KEY):
            await kept.update_data(KEY, {"a": 2})
            raise RuntimeError
    with pytest.raises(SkipHandler):
        async with isolation.lock(KEY):
            await kept.update_data(KEY, {"b": 3})
            raise SkipHandler
    async with isolation.lock(KEY):
        await kept.update_data(KEY, {"a": 1})
    assert await kept.get_data(KEY) == {"a": 1, "b": 3}
    assert [entry.version.number async for entry in storage.scan("aiogram:7")] == [version[0].number + 1]


async def test_the_destinies_of_a_key_are_written_together(storage: Storage, kept: StepwellStorage) -> None:
    isolation = StepwellIsolation(storage)
    history = StorageKey(bot_id=7, chat_id=42, user_id=42, destiny="scenes_history")
    with pytest.raises(RuntimeError):
        async with isolation.lock(KEY):
            await kept.set_state(KEY, "a")
            await kept.set_state(history, "b")
            raise RuntimeError
    assert await records(storage) == []
    async with isolation.lock(KEY):
        await asyncio.gather(kept.update_data(history, {"x": 1}), kept.update_data(history, {"y": 2}))
        assert await kept.get_data(history) == {"x": 1, "y": 2}
        await kept.set_state(KEY, "a")
    assert len(await records(storage)) == 2
    assert storage.waiters == {}


@pytest.mark.every_backend
async def test_a_handler_cancelled_at_any_point_releases_everything(storage: Storage, kept: StepwellStorage) -> None:
    isolation = StepwellIsolation(storage, lease=30)
    keys = [KEY, *(StorageKey(bot_id=7, chat_id=42, user_id=42, destiny=f"other{n}") for n in range(3))]

    async def handler() -> None:
        async with isolation.lock(KEY):
            for key in keys:
                await kept.get_data(key)
            await kept.set_state(keys[1], "a")

    point = 1
    while await cancel_at(handler(), point):
        assert storage.waiters == {}
        assert not storage.renewals._due
        for key in keys:
            parts = (key.chat_id, key.user_id, None, None, key.destiny)
            async with Slot(storage, "aiogram:7", parts, wait=1):
                pass
        point += 1
    assert await kept.get_state(keys[1]) == "a"


async def test_a_task_that_waits_for_a_record_when_its_handler_ends_releases_it(
    storage: Storage, kept: StepwellStorage
) -> None:
    other = StorageKey(bot_id=7, chat_id=42, user_id=42, destiny="other")
    held, done = asyncio.Event(), asyncio.Event()

    async def elsewhere() -> None:
        async with StepwellIsolation(storage).lock(other):
            held.set()
            await done.wait()

    holder = asyncio.create_task(elsewhere())
    await held.wait()
    async with StepwellIsolation(storage).lock(KEY):
        task = asyncio.create_task(kept.update_data(other, {"a": 1}))
        while not storage.waiters[storage.address("aiogram:7", (42, 42, None, None, "other"))].waiting:
            await asyncio.sleep(0)
    done.set()
    await asyncio.gather(holder, task)
    assert await kept.get_data(other) == {"a": 1}
    assert storage.waiters == {}
    assert not storage.renewals._due


async def test_a_nested_lock_of_the_same_chat_is_written_with_the_outer_one(
    storage: Storage, kept: StepwellStorage
) -> None:
    stack = StorageKey(bot_id=7, chat_id=42, user_id=42, destiny="stack")
    outer, inner = StepwellIsolation(storage), StepwellIsolation(kept)
    async with outer.lock(KEY):
        async with inner.lock(stack), inner.lock(KEY), inner.lock(stack):
            await kept.set_data(stack, {"a": 1})
            await kept.set_data(KEY, {"b": 2})
        assert await kept.get_data(stack) == {"a": 1}
        assert await records(storage) == []
    assert await kept.get_data(stack) == {"a": 1}
    assert await kept.get_data(KEY) == {"b": 2}
    with pytest.raises(RuntimeError):
        async with outer.lock(KEY):
            async with inner.lock(stack):
                await kept.set_data(stack, {"a": 2})
            raise RuntimeError
    assert await kept.get_data(stack) == {"a": 1}
    assert storage.waiters == {}


async def test_a_nested_lock_without_writes_is_released_at_its_own_end(storage: Storage, kept: StepwellStorage) -> None:
    stack = StorageKey(bot_id=7, chat_id=42, user_id=42, destiny="stack")
    isolation = StepwellIsolation(storage)

    async def task() -> None:
        async with isolation.lock(stack):
            await kept.set_data(stack, {"a": 1})

    async with asyncio.timeout(60), isolation.lock(KEY):
        async with isolation.lock(stack):
            assert await kept.get_data(stack) == {}
        await asyncio.create_task(task())
        assert await kept.get_data(stack) == {"a": 1}
    assert storage.waiters == {}


@pytest.mark.every_backend
async def test_tasks_of_one_update_write_to_each_others_records_without_a_deadlock(
    storage: Storage, kept: StepwellStorage, constants: Constants
) -> None:
    constants(sibling_wait=600)
    isolation = StepwellIsolation(storage)
    one, two = (StorageKey(bot_id=7, chat_id=42, user_id=42, destiny=name) for name in ("one", "two"))
    both = asyncio.Barrier(2)

    async def task(mine: StorageKey, theirs: StorageKey) -> None:
        async with isolation.lock(mine):
            await kept.update_data(mine, {"mine": 1})
            await both.wait()
            await kept.update_data(theirs, {"theirs": 2})
            await both.wait()
            assert await kept.get_data(mine) == {"mine": 1, "theirs": 2}

    async with asyncio.timeout(60), isolation.lock(KEY):
        await asyncio.gather(task(one, two), task(two, one))
    assert await kept.get_data(one) == await kept.get_data(two) == {"mine": 1, "theirs": 2}
    assert storage.waiters == {}


@pytest.mark.every_backend
async def test_a_task_with_its_own_lock_writes_to_the_records_of_the_caller_that_awaits_it(
    storage: Storage, kept: StepwellStorage, constants: Constants
) -> None:
    constants(sibling_wait=600)
    isolation = StepwellIsolation(storage)
    one, two = (StorageKey(bot_id=7, chat_id=42, user_id=42, destiny=name) for name in ("one", "two"))

    async def task() -> None:
        async with isolation.lock(two):
            await kept.update_data(KEY, {"task": 1})
            await kept.update_data(one, {"task": 1})
            await kept.update_data(two, {"task": 1})

    async with asyncio.timeout(60), isolation.lock(one):
        await kept.update_data(KEY, {"caller": 1})
        await asyncio.create_task(task())
        assert await kept.get_data(KEY) == {"caller": 1, "task": 1}
    assert await kept.get_data(KEY) == {"caller": 1, "task": 1}
    assert await kept.get_data(one) == await kept.get_data(two) == {"task": 1}


async def test_a_task_waits_for_a_lock_that_its_handler_holds(storage: Storage, kept: StepwellStorage) -> None:
    isolation = StepwellIsolation(storage)
    order: list[str] = []

    async def background() -> None:
        async with isolation.lock(KEY):
            order.append("background")
            await kept.update_data(KEY, {"background": await kept.get_value(KEY, "handler")})

    async with isolation.lock(KEY):
        task = asyncio.create_task(background())
        await yields(20)
        await kept.update_data(KEY, {"handler": 1})
        order.append("handler")
    await task
    assert order == ["handler", "background"]
    assert await kept.get_data(KEY) == {"handler": 1, "background": 1}


@pytest.mark.every_backend
async def test_two_handlers_that_need_each_others_records_do_not_deadlock(
    storage: Storage, kept: StepwellStorage, constants: Constants, caplog: pytest.LogCaptureFixture
) -> None:
    constants(sibling_wait=0.1)
    isolation = StepwellIsolation(storage)
    one, two = (StorageKey(bot_id=7, chat_id=42, user_id=42, destiny=name) for name in ("one", "two"))
    both = asyncio.Barrier(2)

    async def handler(mine: StorageKey, theirs: StorageKey) -> None:
        async with isolation.lock(mine):
            await both.wait()
            await kept.update_data(theirs, {mine.destiny: 1})
            await kept.update_data(mine, {"mine": 1})

    async with asyncio.timeout(30):
        await asyncio.gather(handler(one, two), handler(two, one))
    assert await kept.get_data(one) == {"mine": 1, "two": 1}
    assert await kept.get_data(two) == {"mine": 1, "one": 1}
    assert "is held elsewhere" in caplog.text
    assert storage.waiters == {}


@pytest.mark.every_backend
async def test_a_handler_waits_once_for_a_record_that_stays_held_elsewhere(
    storage: Storage, kept: StepwellStorage, constants: Constants, caplog: pytest.LogCaptureFixture
) -> None:
    constants(sibling_wait=0.5)
    isolation = StepwellIsolation(storage)
    stack = StorageKey(bot_id=7, chat_id=42, user_id=42, destiny="stack")
    held, over = asyncio.Event(), asyncio.Event()

    async def other_update() -> None:
        async with isolation.lock(stack):
            held.set()
            await over.wait()

    other = asyncio.create_task(other_update())
    await held.wait()
    async with isolation.lock(KEY):
        assert await kept.get_data(stack) == {}
        assert "is held elsewhere" in caplog.text
        caplog.clear()
        begin = asyncio.get_running_loop().time()
        for number in range(10):
            await kept.update_data(stack, {"number": number})
        assert asyncio.get_running_loop().time() - begin < 10 * claims.SIBLING_WAIT
        assert "is held elsewhere" not in caplog.text
        over.set()
        await other
        await kept.update_data(stack, {"claimed": True})
        assert await storage.get_data("aiogram:7", (42, 42, None, None, "stack")) == {"number": 9}
    assert await kept.get_data(stack) == {"number": 9, "claimed": True}
    assert storage.waiters == {}


async def test_two_storage_objects_for_one_bot_warn_once(backend: Backend) -> None:
    url = backend.place()
    one, two = backend.storage(url), backend.storage(url)
    dispatcher = Dispatcher(storage=StepwellStorage(one), events_isolation=StepwellIsolation(two))

    @dispatcher.message()
    async def fail(message: Message, state: FSMContext) -> None:
        await state.set_state(Form.name)
        raise RuntimeError("no")

    bot, _ = make_bot()
    with pytest.warns(UserWarning, match="open one storage and pass it to both") as caught:
        for _ in range(2):
            with pytest.raises(RuntimeError):
                await feed(dispatcher, bot, message("hi"))
    assert len(caught) == 1


async def test_another_users_key_in_another_storage_does_not_warn(backend: Backend) -> None:
    other = StorageKey(bot_id=7, chat_id=43, user_id=43)
    async with StepwellIsolation(backend.storage()).lock(KEY):
        await StepwellStorage(backend.storage()).set_state(other, Form.name)


async def test_a_task_that_outlives_its_handler_writes_directly(storage: Storage, kept: StepwellStorage) -> None:
    done = asyncio.Event()

    async def later() -> None:
        await done.wait()
        await kept.update_data(KEY, {"late": True})

    async with StepwellIsolation(storage).lock(KEY):
        await kept.update_data(KEY, {"a": 1})
        task = asyncio.create_task(later())
    done.set()
    await task
    assert await kept.get_data(KEY) == {"a": 1, "late": True}


async def test_a_busy_lock_logs_a_warning_and_waits(storage: Storage, caplog: pytest.LogCaptureFixture) -> None:
    isolation = StepwellIsolation(storage, wait=0.05)
    held = asyncio.Event()

    async def holder() -> None:
        async with isolation.lock(KEY), asyncio.timeout(30):
            held.set()
            await until(lambda: "waiting longer" in caplog.text)

    holding = asyncio.create_task(holder())
    await held.wait()
    with caplog.at_level(logging.WARNING, logger="stepwell"):
        async with isolation.lock(KEY):
            pass
    await holding


async def test_the_storage_is_closed_where_it_was_opened() -> None:
    storage = MemoryStorage()
    kept = StepwellStorage(storage)
    await kept.set_state(KEY, "a")
    await kept.close()
    assert not kept.storage.is_open
    assert await kept.get_data(KEY) == {}
    await kept.close()
    assert not storage.is_open
    async with storage:
        again = StepwellStorage(storage)
        await again.get_state(KEY)
        await again.close()
        await StepwellIsolation(again).close()
        assert storage.is_open


async def test_the_dispatcher_closes_the_storage_that_its_isolation_opened() -> None:
    storage = MemoryStorage()
    dispatcher, (bot, _) = bot_of(storage), make_bot()
    for _ in range(2):
        await feed(dispatcher, bot, message("/register"))
        assert storage.is_open
        await dispatcher.fsm.close()
        assert not storage.is_open
    async with storage:
        again = bot_of(storage)
        await feed(again, bot, message("/register"))
        await again.fsm.close()
        assert storage.is_open


async def test_a_lock_gives_up_after_its_patience(storage: Storage, caplog: pytest.LogCaptureFixture) -> None:
    isolation, hasty = StepwellIsolation(storage), StepwellIsolation(storage, wait=0.05, patience=0.1)
    async with isolation.lock(KEY):
        with pytest.raises(Busy) as caught:
            # In a context of its own, because a task of the holder shares its claim.
            await asyncio.create_task(enter(hasty.lock(KEY)), context=contextvars.Context())
    assert 0.1 <= caught.value.waited < 30
    assert "an update fails, because it has waited for" in caplog.text
    async with hasty.lock(KEY):
        pass


async def test_a_lock_gives_up_while_the_storage_is_unavailable(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def failing(self: Storage, operation: Any) -> Any:
        raise StorageUnavailable("away", sent=False)

    isolation = StepwellIsolation(storage, patience=0.3)
    async with isolation.lock(KEY):
        pass
    monkeypatch.setattr(type(storage), "perform", failing)
    with pytest.raises(StorageUnavailable, match="away"):
        await enter(isolation.lock(KEY))
    monkeypatch.undo()
    assert "an update fails, because it has waited for" in caplog.text
    async with isolation.lock(KEY):
        pass


async def enter(lock: Any) -> None:
    async with lock:
        pass


async def test_a_handler_that_outlives_its_dispatcher_keeps_no_storage_open(caplog: pytest.LogCaptureFixture) -> None:
    kept = StepwellStorage("sqlite:///:memory:")
    async with StepwellIsolation(kept, lease=0.3).lock(KEY):
        await kept.get_state(KEY)
        await kept.close()
        await until(lambda: kept.storage.is_open or "could not be renewed" in caplog.text)
        assert not kept.storage.is_open
    await kept.close()
    assert not kept.storage.is_open


def test_an_argument_that_is_not_a_storage_is_refused() -> None:
    with pytest.raises(InvalidOption, match="Storage or a URL"):
        StepwellStorage(object())  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="lease"):
        StepwellIsolation(MemoryStorage(), lease=0)
    with pytest.raises(InvalidOption, match="patience"):
        StepwellIsolation(MemoryStorage(), patience=-1)


def bot_of(storage: Storage, **options: Any) -> Dispatcher:
    """A usual registration bot, with StepwellStorage and StepwellIsolation."""
    dispatcher = Dispatcher(storage=StepwellStorage(storage), events_isolation=StepwellIsolation(storage), **options)
    router = Router()
    dispatcher.include_router(router)

    @router.message(Command("register"))
    async def register(message: Message, state: FSMContext) -> None:
        await state.set_state(Form.name)
        await message.answer("What's your name?")

    @router.message(Form.name)
    async def name(message: Message, state: FSMContext) -> None:
        await state.update_data(name=message.text)
        await state.set_state(Form.email)
        await message.answer(f"Got it, {message.text}!")

    @router.message(StateFilter(Form.email), F.text == "fail")
    async def fail(message: Message, state: FSMContext) -> None:
        raise RuntimeError("no")

    @router.message(Form.email)
    async def email(message: Message, state: FSMContext) -> None:
        data = await state.get_data()
        await state.clear()
        await message.answer(f"Welcome, {data['name']}!")

    return dispatcher


async def test_an_existing_bot_keeps_working(storage: Storage) -> None:
    dispatcher, (bot, session) = bot_of(storage), make_bot()
    for user in (1, 2):
        await feed(dispatcher, bot, message("/register", user=user))
    for user, name in ((1, "Alice"), (2, "Bob")):
        await feed(dispatcher, bot, message(name, user=user))
    # Another worker, started later.
    dispatcher = bot_of(storage)
    with pytest.raises(RuntimeError):
        await feed(dispatcher, bot, message("fail", user=1))
    await feed(dispatcher, bot, message("a@b.c", user=1))
    await feed(dispatcher, bot, message("b@b.c", user=2))
    assert session.texts == [
        "What's your name?", "What's your name?", "Got it, Alice!", "Got it, Bob!", "Welcome, Alice!", "Welcome, Bob!",
    ]  # fmt: skip
    assert await records(storage) == []


@pytest.mark.parametrize("ends", [False, True], ids=["keeps the state", "clears the state"])
async def test_a_stop_command_does_not_wait_for_the_handler_that_it_stops(storage: Storage, ends: bool) -> None:
    dispatcher, (bot, session) = bot_of(storage), make_bot()
    without_isolation(dispatcher, Command("stop"))
    without_isolation(dispatcher, F.text == "halt", lambda event: event.from_user.id == 42)
    begun, stopped, router = asyncio.Event(), asyncio.Event(), Router()
    dispatcher.include_router(router)

    @router.message(Command("begin"))
    async def begin(message: Message, state: FSMContext) -> None:
        await state.set_data({"begun": True})

    @router.message(Command("work"))
    async def work(message: Message, state: FSMContext) -> None:
        await state.update_data(work="half")
        begun.set()
        await stopped.wait()
        await message.answer("stopped")

    @router.message(F.text.in_({"/stop", "halt"}))
    async def stop(message: Message, state: FSMContext) -> None:
        if ends:
            await state.clear()
        else:
            await state.update_data(stopped=True)
        stopped.set()

    for text in ("/stop", "halt"):
        await feed(dispatcher, bot, message("/begin"))
        begun.clear()
        stopped.clear()
        working = asyncio.create_task(feed(dispatcher, bot, message("/work")))
        await begun.wait()
        # It waits for the handler.
        other = asyncio.create_task(feed(dispatcher, bot, message("hello")))
        await asyncio.sleep(0.05)
        assert not other.done()
        async with asyncio.timeout(10):
            await feed(dispatcher, bot, message(text))
        if ends:
            with pytest.raises(RecordReplaced):
                await working
        else:
            await working
            assert await dispatcher.storage.get_data(KEY) == {"begun": True, "work": "half", "stopped": True}
        await other
    assert session.texts == ["stopped", "stopped"]


def test_only_updates_of_a_dispatcher_with_an_fsm_can_be_exempted() -> None:
    with pytest.raises(UsageError, match="no FSM"):
        without_isolation(Dispatcher(disable_fsm=True), Command("stop"))
    with pytest.raises(InvalidOption, match="give a filter"):
        without_isolation(Dispatcher())
    with pytest.raises(InvalidOption, match="takes a Dispatcher"):
        without_isolation(Router(), Command("stop"))  # type: ignore[arg-type]


@pytest.mark.parametrize("strategy", list(FSMStrategy))
async def test_every_strategy_of_aiogram_has_its_own_keys(storage: Storage, strategy: FSMStrategy) -> None:
    dispatcher, (bot, _) = bot_of(storage, fsm_strategy=strategy), make_bot()
    for user in (1, 2):
        for chat in (-5, -6):
            for thread in (8, 9):
                topic = {"message_thread_id": thread, "is_topic_message": True}
                await feed(dispatcher, bot, message("/register", user=user, chat=chat, **topic))
    expected = {
        FSMStrategy.USER_IN_CHAT: 4,
        FSMStrategy.CHAT: 2,
        FSMStrategy.GLOBAL_USER: 2,
        FSMStrategy.USER_IN_TOPIC: 8,
        FSMStrategy.CHAT_TOPIC: 4,
    }
    assert len(await records(storage)) == expected[strategy]


async def test_scenes_keep_working(storage: Storage) -> None:
    class Quiz(Scene, state="quiz"):
        @on.message.enter()
        async def begin(self, message: Message, state: FSMContext) -> None:
            await message.answer("2 + 2?")

        @on.message(F.text == "4")
        async def right(self, message: Message, state: FSMContext) -> None:
            await state.update_data(right=True)
            await message.answer("Right.")
            await self.wizard.exit()

        @on.message()
        async def wrong(self, message: Message, state: FSMContext) -> None:
            await message.answer("Again.")
            await self.wizard.retake()

    dispatcher = Dispatcher(storage=StepwellStorage(storage), events_isolation=StepwellIsolation(storage))

    @dispatcher.message(Command("quiz"))
    async def quiz(message: Message, scenes: ScenesManager) -> None:
        await scenes.enter(Quiz)

    SceneRegistry(dispatcher).add(Quiz)
    bot, session = make_bot()
    for text in ("/quiz", "5", "4", "4"):
        await feed(dispatcher, bot, message(text))
    assert session.texts == ["2 + 2?", "Again.", "2 + 2?", "Right."]
    assert {key[-1] for key in await records(storage)} <= {"default", "scenes_history"}


async def test_a_write_with_a_wrong_key_is_refused_and_nothing_is_written() -> None:
    inner = MemoryStorage()
    async with SealedStorage(inner, keys=[new_key()]) as owner:
        right = StepwellStorage(owner)
        await right.set_state(KEY, "name")
        await right.set_data(KEY, {"city": "Rome"})
        async with SealedStorage(inner, keys=[new_key()]) as storage:
            for wrong in (StepwellStorage(inner), StepwellStorage(storage)):
                for write in (wrong.set_state(KEY, "email"), wrong.update_data(KEY, {"age": 7})):
                    with pytest.raises(KeyMissing):
                        await write
            assert await right.get_state(KEY) == "name"
            assert await right.get_data(KEY) == {"city": "Rome"}
