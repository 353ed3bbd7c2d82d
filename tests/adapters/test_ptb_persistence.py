"""StepwellPersistence: the contract of python-telegram-bot's BasePersistence, and several processes."""

from __future__ import annotations

import asyncio
import datetime
import uuid
from collections import UserDict
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any

import pytest
from telegram.ext import (
    CommandHandler,
    ContextTypes,
    ConversationHandler,
    MessageHandler,
    PersistenceInput,
    filters,
)

from stepwell import Storage, record_type
from stepwell.adapters.ptb import StepwellPersistence
from stepwell.errors import EncodeError, StoredDataError
from tests.adapters.ptb_bots import make_app, message
from tests.backends import Backend

EVERY_TYPE: dict[Any, Any] = {
    "text": "é\n\0", "number": 3, "large": 10**30, "float": 0.1, "flag": True, "nothing": None, "bytes": b"\x00\xff",
    "tuple": (1, ("a",)), "set": {1, "a"}, "list": [1, [2]], "dict": {1: {"a": (1,)}, "b": None},
    "when": datetime.datetime(2024, 1, 2, 3, 4, 5, 6, datetime.UTC), "day": datetime.date(2024, 1, 2),
    "price": Decimal("9.90"), "id": uuid.UUID(int=1), 5: "a number", (1, "a"): "a tuple", None: 1, b"x": 2, "": 3,
    "a.b": 4, "$x": 5, "line\nbreak": 6,
}  # fmt: skip


@pytest.fixture
def storage(backend: Backend) -> Storage:
    return backend.storage()


@pytest.fixture
def kept(storage: Storage) -> StepwellPersistence[Any, Any, Any]:
    return StepwellPersistence(storage)


async def versions(storage: Storage, namespace: str = "ptb") -> dict[Any, Any]:
    return {entry.key: entry.version async for entry in storage.scan(namespace)}


async def test_an_unknown_bot_has_no_data(kept: StepwellPersistence[Any, Any, Any]) -> None:
    assert await kept.get_user_data() == {}
    assert await kept.get_chat_data() == {}
    assert await kept.get_bot_data() == {}
    assert await kept.get_callback_data() is None
    assert await kept.get_conversations("registration") == {}


@pytest.mark.every_backend
async def test_every_value_comes_back_as_it_was(storage: Storage, kept: StepwellPersistence[Any, Any, Any]) -> None:
    await kept.update_user_data(1, EVERY_TYPE)
    await kept.update_chat_data(1, {"in": "private"})
    await kept.update_chat_data(-5, EVERY_TYPE)
    await kept.update_bot_data(EVERY_TYPE)
    for each in (kept, StepwellPersistence(storage)):
        users, chats, bot = await each.get_user_data(), await each.get_chat_data(), await each.get_bot_data()
        assert users == {1: EVERY_TYPE}
        assert chats == {1: {"in": "private"}, -5: EVERY_TYPE}
        assert bot == EVERY_TYPE
        assert {name: type(value) for name, value in users[1].items()} == {
            name: type(value) for name, value in EVERY_TYPE.items()
        }
        # They are copies.
        users[1]["list"].append(3)
        bot.clear()
    assert set(await versions(storage)) == {-5, "bot_data", 1}


async def test_an_empty_entry_is_kept_until_it_is_dropped(
    storage: Storage, kept: StepwellPersistence[Any, Any, Any]
) -> None:
    await kept.update_user_data(1, {})
    await kept.update_chat_data(1, {"a": 1})
    await kept.update_user_data(2, {"a": 1})
    await kept.update_user_data(2, {})
    assert await StepwellPersistence(storage).get_user_data() == {1: {}, 2: {}}
    await kept.drop_user_data(1)
    await kept.drop_user_data(2)
    await kept.drop_user_data(3)
    assert await kept.get_user_data() == {}
    assert await kept.get_chat_data() == {1: {"a": 1}}
    await kept.drop_chat_data(1)
    assert await versions(storage) == {}


async def test_only_what_has_changed_is_written(storage: Storage, kept: StepwellPersistence[Any, Any, Any]) -> None:
    async def update_all() -> None:
        await kept.update_user_data(1, {"a": [1], "b": {2}})
        await kept.update_user_data(2, {"a": [1]})
        await kept.update_chat_data(-1, {"a": 1})
        await kept.update_bot_data({"a": 1})
        await kept.update_conversation("name", (1, 1), "state")
        await kept.update_callback_data(([("k", 1.0, {"b": "x"})], {"q": "k"}))

    await update_all()
    first = await versions(storage) | await versions(storage, "ptb:keyboards")
    await update_all()
    assert await versions(storage) | await versions(storage, "ptb:keyboards") == first
    await kept.update_user_data(2, {"a": [1, 2]})
    second = await versions(storage)
    assert [key for key in second if second[key] != first[key]] == [2]


async def test_two_processes_change_different_items_of_one_entry(storage: Storage) -> None:
    await StepwellPersistence(storage).update_bot_data({"a": 1, "b": 1, "users": {1: "a", 2: "b"}, "tags": {"x", "y"}})
    one, two = StepwellPersistence(storage), StepwellPersistence(storage)
    mine, theirs = await one.get_bot_data(), await two.get_bot_data()
    mine["a"], mine["new"] = 2, "mine"
    mine["users"][3] = "c"
    mine["tags"].add("z")
    theirs["b"] = 3
    del theirs["users"][1]
    theirs["users"][4] = "d"
    theirs["tags"].discard("x")
    await asyncio.gather(one.update_bot_data(mine), two.update_bot_data(theirs))
    expected = {"a": 2, "b": 3, "new": "mine", "users": {2: "b", 3: "c", 4: "d"}, "tags": {"y", "z"}}
    assert await StepwellPersistence(storage).get_bot_data() == expected
    for each, data in ((one, mine), (two, theirs)):
        users = data["users"]
        await each.refresh_bot_data(data)
        assert data == expected
        # A running handler may have it.
        assert data["users"] is users
        await each.update_bot_data(data)
    assert await StepwellPersistence(storage).get_bot_data() == expected


async def test_a_refresh_adds_the_changes_of_others_and_keeps_those_of_this_process(storage: Storage) -> None:
    one, two = StepwellPersistence(storage), StepwellPersistence(storage)
    await one.update_user_data(1, {"a": 1, "b": 1, "c": 1})
    mine, theirs = (await one.get_user_data())[1], (await two.get_user_data())[1]
    mine["a"] = 2
    del mine["c"]
    theirs["b"] = 2
    await two.update_user_data(1, theirs)
    await one.refresh_user_data(1, mine)
    assert mine == {"a": 2, "b": 2}
    await one.update_user_data(1, mine)
    await two.refresh_user_data(1, theirs)
    assert theirs == mine
    await one.drop_user_data(1)
    theirs["d"] = 1
    await two.refresh_user_data(1, theirs)
    assert theirs == {"d": 1}


async def test_an_entry_that_another_process_created_is_not_overwritten(storage: Storage) -> None:
    one, two = StepwellPersistence(storage), StepwellPersistence(storage)
    assert await one.get_user_data() == {}
    await two.update_user_data(1, {"a": 1})
    data = {"b": 1}
    await one.update_user_data(1, {"b": 1})
    assert await two.get_user_data() == {1: {"a": 1, "b": 1}}
    await one.refresh_user_data(1, data)
    assert data == {"a": 1, "b": 1}


async def test_writers_of_one_entry_lose_nothing(storage: Storage) -> None:
    processes = [StepwellPersistence(storage) for _ in range(10)]

    async def work(each: StepwellPersistence[Any, Any, Any], number: int) -> None:
        data = await each.get_bot_data()
        for step in range(5):
            await each.refresh_bot_data(data)
            data.setdefault("done", {})[number, step] = True
            await each.update_bot_data(dict(data))

    await asyncio.gather(*(work(each, number) for number, each in enumerate(processes)))
    assert len((await StepwellPersistence(storage).get_bot_data())["done"]) == 50


@pytest.mark.parametrize(
    ("data", "path"),
    [
        ({"ok": 1, "job": object()}, "user_data[7].job (object)"),
        ({"a": {"b": [1, object()]}}, "user_data[7].a.b[1] (object)"),
        ({5: object()}, "user_data[7][5] (object)"),
    ],
)
async def test_an_unsupported_value_is_named(
    storage: Storage, kept: StepwellPersistence[Any, Any, Any], data: Any, path: str
) -> None:
    with pytest.raises(EncodeError) as error:
        await kept.update_user_data(7, data)
    assert str(error.value).startswith(path)
    assert await versions(storage) == {}


class Step(IntEnum):
    NAME = 1
    EMAIL = 2


class Plain(Enum):
    NAME = 1


@record_type(name="test_ptb.Registered")
class Registered(Enum):
    NAME = 1


async def test_the_states_of_conversations(storage: Storage, kept: StepwellPersistence[Any, Any, Any]) -> None:
    states: dict[Any, Any] = {
        (1, 1): 0, (-5, 1): "text", (2,): (1, "a"), (-5, 1, 99): Step.EMAIL, (1, "inline"): Registered.NAME, (3, 3): -1,
        (4, 4): False,
    }  # fmt: skip
    await kept.update_user_data(1, {"a": 1})
    for key, state in states.items():
        await kept.update_conversation("one", key, state)
    await kept.update_conversation("two", (1, 1), 5)
    for each in (kept, StepwellPersistence(storage)):
        assert await each.get_conversations("one") == states
        assert await each.get_conversations("two") == {(1, 1): 5}
        (await each.get_conversations("one")).clear()
    for key in states:
        await kept.update_conversation("one", key, None)
        await kept.update_conversation("one", key, None)
    await kept.update_conversation("two", (1, 1), None)
    assert await kept.get_conversations("one") == {}
    assert list(await versions(storage)) == [1]
    assert await kept.get_user_data() == {1: {"a": 1}}


async def test_states_of_one_user_from_two_processes_do_not_overwrite_each_other(storage: Storage) -> None:
    one, two = StepwellPersistence(storage), StepwellPersistence(storage)
    await asyncio.gather(
        *(each.update_conversation("name", (-chat, 1), chat) for chat in range(1, 6) for each in (one, two))
    )
    assert await one.get_conversations("name") == {(-chat, 1): chat for chat in range(1, 6)}


async def test_the_member_of_an_enum_that_is_not_registered_needs_the_handler(
    kept: StepwellPersistence[Any, Any, Any],
) -> None:
    await kept.update_conversation("name", (1, 1), Plain.NAME)
    with pytest.raises(StoredDataError, match=r"Plain\.NAME.*record_type"):
        await kept.get_conversations("name")


async def test_callback_data_of_two_processes(storage: Storage) -> None:
    one, two = StepwellPersistence(storage), StepwellPersistence(storage)
    await one.update_callback_data(([("k1", 2.0, {"b1": "x", "b2": [1]})], {"q1": "k1", "q0": "gone"}))
    assert await one.get_callback_data() == ([("k1", 2.0, {"b1": "x", "b2": [1]})], {"q1": "k1", "q0": "gone"})
    await two.update_callback_data(([("k2", 1.0, {"b": (1,)})], {}))
    keyboards, queries = await two.get_callback_data() or ([], {})
    assert keyboards == [("k2", 1.0, {"b": (1,)}), ("k1", 2.0, {"b1": "x", "b2": [1]})]
    # Two uses the first keyboard, and one removes it from its cache meanwhile.
    keyboards[1] = ("k1", 3.0, keyboards[1][2])
    await two.update_callback_data((keyboards, {**queries, "q2": "k1"}))
    await one.update_callback_data(([], {}))
    assert await two.get_callback_data() == (
        [("k2", 1.0, {"b": (1,)}), ("k1", 3.0, {"b1": "x", "b2": [1]})],
        {"q1": "k1", "q2": "k1"},
    )
    await two.update_callback_data(None)
    assert await two.get_callback_data() is None


class Bag(UserDict[Any, Any]):
    pass


@dataclass
class Cart:
    items: list[str] = field(default_factory=list)
    total: Decimal = Decimal(0)


class Counter:
    def __init__(self) -> None:
        self.clicks = 0


async def test_own_types_of_data(storage: Storage) -> None:
    types: Any = ContextTypes(user_data=Cart, chat_data=Counter, bot_data=Bag)
    kept: StepwellPersistence[Cart, Counter, Bag] = StepwellPersistence(storage, context_types=types)
    assert isinstance(await kept.get_bot_data(), Bag)
    counter, bag = Counter(), Bag(a=1)
    counter.clicks = 3
    await kept.update_user_data(1, Cart(["tea"], Decimal("2.50")))
    await kept.update_chat_data(1, counter)
    await kept.update_bot_data(bag)
    other: StepwellPersistence[Cart, Counter, Bag] = StepwellPersistence(storage, context_types=types)
    users, chats, found = await other.get_user_data(), await other.get_chat_data(), await other.get_bot_data()
    assert users == {1: Cart(["tea"], Decimal("2.50"))}
    assert isinstance(chats[1], Counter)
    assert (chats[1].clicks, found, type(found)) == (3, Bag(a=1), Bag)
    cart = users[1]
    cart.items.append("cake")
    await kept.update_user_data(1, Cart(["tea"], Decimal("9.90")))
    await other.refresh_user_data(1, cart)
    assert cart == Cart(["tea", "cake"], Decimal("9.90"))


@pytest.mark.parametrize("kind", [int, float, str])
async def test_data_that_is_one_value(storage: Storage, kind: type) -> None:
    types: Any = ContextTypes(user_data=kind, bot_data=kind)
    kept: StepwellPersistence[Any, Any, Any] = StepwellPersistence(storage, context_types=types)
    assert await kept.get_bot_data() == kind()
    await kept.update_user_data(1, kind(1))
    await kept.update_bot_data(kind(1))
    await kept.refresh_user_data(1, kind(1))
    other: StepwellPersistence[Any, Any, Any] = StepwellPersistence(storage, context_types=types)
    assert await other.get_user_data() == {1: kind(1)}
    assert type(await other.get_bot_data()) is kind


async def test_options_are_those_of_the_base_class(storage: Storage) -> None:
    store = PersistenceInput(bot_data=False)
    kept: StepwellPersistence[Any, Any, Any] = StepwellPersistence(storage, store_data=store, update_interval=3.5)
    assert kept.store_data is store
    assert kept.update_interval == 3.5
    with pytest.raises(AttributeError):
        kept.update_interval = 7
    assert StepwellPersistence(storage).update_interval == 60
    assert StepwellPersistence(storage).store_data == PersistenceInput()


async def test_each_bot_has_its_namespace(storage: Storage) -> None:
    for number, name in ((7, None), (8, None), (9, "shop")):
        kept: StepwellPersistence[Any, Any, Any] = StepwellPersistence(storage, namespace=name)
        async with make_app(kept, number=number) as application:
            application.bot_data["number"] = number
    found = {entry.namespace: entry.state.data["bot_data.number"] for name in ("ptb:7", "ptb:8", "shop")
             async for entry in storage.scan(name)}  # fmt: skip
    assert found == {"ptb:7": 7, "ptb:8": 8, "shop": 9}


def registration() -> ConversationHandler[Any]:
    async def begin(update: Any, context: Any) -> int:
        return 0

    async def name(update: Any, context: Any) -> int:
        context.user_data["name"] = update.message.text
        context.chat_data["count"] = context.chat_data.get("count", 0) + 1
        context.bot_data.setdefault("names", set()).add(update.message.text)
        return ConversationHandler.END

    return ConversationHandler(
        [CommandHandler("register", begin)],
        {0: [MessageHandler(filters.TEXT, name)]},
        [],
        name="registration",
        persistent=True,
    )


async def test_an_application_continues_after_a_restart(backend: Backend) -> None:
    url = backend.place()
    storages = [backend.storage(url) for _ in range(3)] if backend.shared else [backend.storage(url)] * 3
    applications = [make_app(StepwellPersistence(each)) for each in storages]
    for application in applications:
        application.add_handler(registration())
    async with applications[0] as application:
        await application.process_update(message(application, "/register"))
    async with applications[1] as application:
        await application.process_update(message(application, "Alice"))
        await application.update_persistence()
    async with applications[2] as application:
        assert application.user_data[42] == {"name": "Alice"}
        assert application.chat_data[42] == {"count": 1}
        assert application.bot_data == {"names": {"Alice"}}
        assert application.handlers[0][0].check_update(message(application, "Bob")) is None


@pytest.mark.parametrize("opened", [True, False])
async def test_flush_closes_the_storage_that_it_opened(backend: Backend, opened: bool) -> None:
    storage = backend.storage()
    if opened:
        await storage.open()
    application = make_app(StepwellPersistence(storage))
    for _ in range(2):
        async with application:
            await application.start()
            await application.stop()
            application.bot_data["n"] = application.bot_data.get("n", 0) + 1
        assert storage.is_open is opened
    assert (await StepwellPersistence(storage, namespace="ptb:7").get_bot_data()) == {"n": 2}
