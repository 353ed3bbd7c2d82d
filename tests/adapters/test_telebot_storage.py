"""telebot's states in a Stepwell storage, compared with its StateMemoryStorage."""

from __future__ import annotations

import asyncio
import datetime
import inspect
import random
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from telebot import TeleBot, types
from telebot.async_telebot import AsyncTeleBot
from telebot.asyncio_storage import StateMemoryStorage as AsyncStateMemoryStorage
from telebot.states import State, StatesGroup
from telebot.storage import StateMemoryStorage

from stepwell import MemoryStorage, SealedStorage, Storage, open_storage, sync
from stepwell.adapters.telebot import AsyncStepwellStateStorage, StepwellStateStorage
from stepwell.errors import CorruptRecord, EncodeError, InsideLoop, InvalidOption, KeyMissing
from stepwell.record import QUARANTINE
from stepwell.storage import Operation
from stepwell.storage.sealed import new_key
from tests.backends import Backend
from tests.backends.sqlite import SQLite

AT = {"chat_id": 42, "user_id": 42, "bot_id": 7}
STEPS = ["set_state", "set_data", "edit", "get_data", "delete_state", "reset_data", "save"]
WEIGHTS = [2, 2, 2, 1, 1, 1, 1]
Outcome = tuple[str, Any]


class Form(StatesGroup):
    name = State()
    email = State()


class Names(Enum):
    first = 1


class StateCalls:
    """Calls a storage of telebot, sync or async."""

    def __init__(self, states: Any) -> None:
        self.states = states
        self.awaits = isinstance(states, AsyncStepwellStateStorage | AsyncStateMemoryStorage)

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Outcome:
        def work() -> Any:
            result = getattr(self.states, method)(*args, **kwargs)
            return dict(result) if isinstance(result, dict) else result

        try:
            if not self.awaits:
                return "returns", await asyncio.to_thread(work)
            result = await getattr(self.states, method)(*args, **kwargs)
            return "returns", dict(result) if isinstance(result, dict) else result
        except Exception as error:
            return "raises", type(error)

    async def edit(self, change: Callable[[dict[Any, Any]], None], **at: Any) -> Outcome:
        def work() -> Any:
            with self.states.get_interactive_data(**at) as data:
                change(data)
                return dict(data)

        if not self.awaits:
            return "returns", await asyncio.to_thread(work)
        async with self.states.get_interactive_data(**at) as data:
            change(data)
            return "returns", dict(data)


@pytest.fixture
def stored(backend: Backend) -> Iterator[Storage]:
    """A storage on the background loop, which the sync class uses."""
    storage = open_storage(backend.place())
    yield storage
    sync(storage.close())


@pytest.fixture
def states(stored: Storage) -> StepwellStateStorage:
    return StepwellStateStorage(stored)


@pytest.mark.parametrize("awaits", [False, True], ids=["sync", "async"])
async def test_every_method_has_the_results_of_the_memory_storage(backend: Backend, awaits: bool) -> None:
    storage = open_storage(backend.place())
    ours = StateCalls(AsyncStepwellStateStorage(storage) if awaits else StepwellStateStorage(storage))
    theirs = StateCalls(AsyncStateMemoryStorage() if awaits else StateMemoryStorage())
    chosen = random.Random(4)
    keys = [AT, {**AT, "message_thread_id": 5}, {**AT, "business_connection_id": "b"}, {"chat_id": -1, "user_id": 2}]
    values = [1, "text", None, 2.5, [1, {"a": "b"}], {"x": {"y": 1}}]
    names = ["Form:name", "bare", "a:b:c", ":x", "x:", "", None, 3, "3", "int:3", Form.email, Names.first]
    for _ in range(300):
        at = chosen.choice(keys)
        (step,) = chosen.choices(STEPS, WEIGHTS)
        if step == "set_state":
            call: tuple[Any, ...] = (step, chosen.choice(names))
        elif step == "set_data":
            call = (step, chosen.choice("abc"), chosen.choice(values))
        elif step == "save":
            call = (step, {name: chosen.choice(values) for name in chosen.sample("abc", 2)})
        else:
            call = (step,)
        if step == "edit":
            name, value, removed = chosen.choice("abc"), chosen.choice(values), chosen.choice("abcd")

            def change(data: dict[Any, Any], name: str = name, value: Any = value, removed: str = removed) -> None:
                data[name] = value
                data.pop(removed, None)

            results = [await each.edit(change, **at) for each in (ours, theirs)]
        else:
            method, *args = call
            parameters = {"set_state": ["state"], "set_data": ["key", "value"], "save": ["data"]}.get(method, [])
            given = dict(zip(parameters, args, strict=True))
            results = [await each.call(method, **at, **given) for each in (ours, theirs)]
        assert results[0] == results[1], (step, call, at)
        for method in ("get_state", "get_data"):
            assert await ours.call(method, **at) == await theirs.call(method, **at), (step, call, at)
    await (storage.close() if awaits else asyncio.to_thread(sync, storage.close()))


def test_arguments_are_accepted_by_position_as_in_their_storage() -> None:
    for ours, theirs in (
        (StepwellStateStorage, StateMemoryStorage),
        (AsyncStepwellStateStorage, AsyncStateMemoryStorage),
    ):
        for method in (
            "set_state", "get_state", "delete_state", "set_data", "get_data", "reset_data", "get_interactive_data",
            "save",
        ):  # fmt: skip
            parameters = [
                [(each.name, each.default) for each in inspect.signature(getattr(cls, method)).parameters.values()]
                for cls in (ours, theirs)
            ]
            assert parameters[0] == parameters[1]


@pytest.mark.every_backend
def test_a_bot_keeps_its_state_and_data(backend: Backend, states: StepwellStateStorage) -> None:
    bot = TeleBot("7:token", state_storage=states, threaded=False)
    assert bot.get_state(42, 42) is None
    with pytest.raises(RuntimeError, match="chat 42 and user 42 have no state"):
        bot.add_data(42, 42, name="Alice")
    assert bot.set_state(42, Form.name, 42)
    bot.add_data(42, 42, name="Alice")
    with bot.retrieve_data(42, 42) as data:
        data["email"] = data["name"] + "@example.com"
    again = TeleBot("7:token", state_storage=StepwellStateStorage(states.storage), threaded=False)
    assert again.get_state(42, 42) == "Form:name"
    with again.retrieve_data(42, 42) as data:
        assert data == {"name": "Alice", "email": "Alice@example.com"}
    assert again.reset_data(42, 42)
    assert (again.get_state(42), states.get_data(**AT)) == ("Form:name", {})
    assert again.delete_state(42, 42)
    assert not again.delete_state(42, 42)
    assert not again.reset_data(42, 42)


async def test_the_records_have_the_bot_the_group_and_tags(backend: Backend) -> None:
    storage = backend.storage()
    states = AsyncStepwellStateStorage(storage)
    bot = AsyncTeleBot("7:token", state_storage=states)
    await bot.set_state(42, Form.name, -100, message_thread_id=5)
    (entry,) = [entry async for entry in storage.scan("telebot:7", flow="Form", tag="user:42")]
    assert (entry.key, entry.state.state) == ((-100, 42, 5, None), "name")
    assert [entry.key async for entry in storage.scan("telebot:7", tag="chat:-100")] == [entry.key]
    await AsyncStepwellStateStorage(storage, name="other").set_state(1, 2, "x")
    assert [entry.key async for entry in storage.scan("other")] == [(1, 2, None, None)]


async def test_no_part_of_a_key_is_left_out_and_empty_parts_are_the_same_as_none(backend: Backend) -> None:
    states = AsyncStepwellStateStorage(backend.storage())
    keys = [
        AT,
        {**AT, "bot_id": 8},
        {**AT, "chat_id": -42},
        {**AT, "user_id": 43},
        {**AT, "message_thread_id": 5},
        {**AT, "business_connection_id": "b"},
        {**AT, "business_connection_id": "5"},
    ]
    for number, key in enumerate(keys):
        await states.set_state(**key, state=f"Form:{number}")
    assert [await states.get_state(**key) for key in keys] == [f"Form:{number}" for number in range(7)]
    assert await states.get_state(42, "42", "", 0, 7) == "Form:0"  # type: ignore[arg-type]


def test_every_type_of_value_comes_back(states: StepwellStateStorage) -> None:
    values: dict[Any, Any] = {
        "when": datetime.datetime(2024, 5, 17, 12, tzinfo=datetime.UTC),
        "price": Decimal("1.10"),
        "pair": (1, "a"),
        "set": {1, 2},
        "bytes": b"\0",
        "numbers": {1: "one"},
        5: "five",
    }
    states.set_state(**AT, state="x")
    for key, value in values.items():
        states.set_data(**AT, key=key, value=value)
    assert states.get_data(**AT) == values
    with states.get_interactive_data(**AT) as data:
        data["more"] = 1
    assert states.get_data(**AT) == {**values, "more": 1}
    with pytest.raises(EncodeError, match="object"):
        states.set_data(**AT, key="a", value=object())
    with pytest.raises(InvalidOption, match="a state must be"):
        states.set_state(**AT, state=2.5)


def test_a_block_that_raises_changes_nothing(states: StepwellStateStorage) -> None:
    states.set_state(**AT, state="x")
    with pytest.raises(ValueError, match="stop"), states.get_interactive_data(**AT) as data:
        data["a"] = 1
        raise ValueError("stop")
    assert states.get_data(**AT) == {}


def test_a_block_writes_only_the_fields_that_it_has_changed(states: StepwellStateStorage) -> None:
    other = StepwellStateStorage(states.storage)
    states.set_state(**AT, state="Form:name")
    states.save(**AT, data={"a": 1, "b": 1, "c": 1})
    with states.get_interactive_data(**AT) as data:
        data["a"] = 2
        del data["c"]
        with other.get_interactive_data(**AT) as theirs:
            theirs["b"] = 2
            theirs["d"] = 1
        other.set_state(**AT, state="Form:email")
    assert states.get_data(**AT) == {"a": 2, "b": 2, "d": 1}
    assert states.get_state(**AT) == "Form:email"


def test_a_block_does_not_create_a_record_that_was_deleted(states: StepwellStateStorage) -> None:
    states.set_state(**AT, state="x")
    with states.get_interactive_data(**AT) as data:
        data["a"] = 1
        states.delete_state(**AT)
    assert (states.get_state(**AT), states.get_data(**AT)) == (None, {})
    with states.get_interactive_data(**AT) as data:
        data["a"] = 1
        states.set_state(**AT, state="y")
    assert states.get_data(**AT) == {"a": 1}


def test_threads_that_set_different_fields_lose_none(states: StepwellStateStorage) -> None:
    states.set_state(**AT, state="x")

    def work(number: int) -> None:
        states.set_data(**AT, key=f"set{number}", value=number)
        with states.get_interactive_data(**AT) as data:
            data[f"with{number}"] = number

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert states.get_data(**AT) == {f"{kind}{number}": number for kind in ("set", "with") for number in range(8)}


def test_a_slow_operation_does_not_block_other_threads() -> None:
    slow, quick = threading.Event(), threading.Event()

    class Slow(MemoryStorage):
        async def perform(self, operation: Operation) -> Any:
            if "1" in operation.address.key:
                slow.set()
                await asyncio.to_thread(quick.wait)
                raise ValueError("too slow")
            return await super().perform(operation)

    storage = Slow()
    states = StepwellStateStorage(storage)
    errors: list[str] = []

    def read_slow() -> None:
        try:
            states.get_state(1, 1)
        except ValueError as error:
            errors.append(str(error))

    thread = threading.Thread(target=read_slow)
    thread.start()
    slow.wait()
    assert states.get_state(2, 2) is None
    assert not errors
    quick.set()
    thread.join()
    assert errors == ["too slow"]
    sync(storage.close())


def test_damaged_data_is_named_and_copied_to_quarantine(tmp_path: Path) -> None:
    backend = SQLite(tmp_path)
    url = backend.place()
    states = StepwellStateStorage(url)
    states.set_state(**AT, state="x")
    states.set_data(**AT, key="a", value=1)
    address = states.storage.address("telebot:7", (42, 42, None, None))
    sync(backend.corrupt(url, address, "field", "a", lambda text: text[:-1]))
    with pytest.raises(CorruptRecord, match="telebot:7"):
        states.get_data(**AT)
    assert list(sync(_all(states.storage, QUARANTINE)))
    sync(states.storage.close())


async def _all(storage: Storage, namespace: str) -> list[Any]:
    return [entry.key async for entry in storage.scan(namespace)]


async def test_the_sync_class_refuses_to_block_an_event_loop(backend: Backend) -> None:
    with pytest.raises(InsideLoop):
        StepwellStateStorage(backend.storage()).get_state(**AT)


def test_state_filters_of_telebot_find_the_state(states: StepwellStateStorage) -> None:
    from telebot.custom_filters import StateFilter

    bot = TeleBot("7:token", state_storage=states, threaded=False)
    bot.add_custom_filter(StateFilter(bot))
    seen: list[str] = []
    bot.register_message_handler(lambda message: seen.append("email"), state=Form.email)
    bot.register_message_handler(lambda message: seen.append("number"), state=1)
    bot.register_message_handler(lambda message: seen.append("any"), state="*")
    for state in (Form.email, 1, "other", None):
        bot.set_state(42, state)  # type: ignore[arg-type]
        bot.process_new_messages([types.Message.de_json(MESSAGE)])  # type: ignore[list-item]
    assert seen == ["email", "number", "any"]


MESSAGE: dict[str, Any] = {
    "message_id": 1,
    "date": 1,
    "chat": {"id": 42, "type": "private"},
    "from": {"id": 42, "is_bot": False, "first_name": "Alice"},
    "text": "hello",
}


async def test_a_state_with_a_wrong_key_is_refused_and_nothing_is_written() -> None:
    inner = MemoryStorage()
    async with SealedStorage(inner, keys=[new_key()]) as owner:
        right = AsyncStepwellStateStorage(owner)
        await right.set_state(42, 42, "name", bot_id=7)
        await right.set_data(42, 42, "city", "Rome", bot_id=7)
        async with SealedStorage(inner, keys=[new_key()]) as storage:
            for wrong in (AsyncStepwellStateStorage(inner), AsyncStepwellStateStorage(storage)):
                with pytest.raises(KeyMissing):
                    await wrong.set_state(42, 42, "email", bot_id=7)
                with pytest.raises(KeyMissing):
                    await wrong.set_data(42, 42, "city", "Oslo", bot_id=7)
            assert await right.get_state(42, 42, bot_id=7) == "name"
            assert await right.get_data(42, 42, bot_id=7) == {"city": "Rome"}
