"""ConversationHandler with its states in the storage: several workers, restarts, timeouts, pending handlers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from enum import Enum
from typing import Any

import pytest
from telegram import Update
from telegram.ext import (
    Application,
    ApplicationHandlerStop,
    CallbackQueryHandler,
    CommandHandler,
    MessageHandler,
    filters,
)

from stepwell import Storage
from stepwell.adapters.ptb import ConversationHandler, StepwellPersistence
from stepwell.codec import encode_key
from stepwell.errors import EncodeError, InvalidOption
from stepwell.slot import Slot
from stepwell.testing import Clock
from tests.adapters.cancellation import cancel_at
from tests.adapters.ptb_bots import builder, calls_of, make_app, message
from tests.backends import Backend
from tests.constants import Constants
from tests.until import until

NAME, EMAIL = range(2)
TEXT = filters.TEXT & ~filters.COMMAND
Handlers = Callable[[], ConversationHandler]


@pytest.fixture
def storage(backend: Backend) -> Storage:
    return backend.storage()


async def begin(update: Any, context: Any) -> int:
    return NAME


async def name(update: Any, context: Any) -> int:
    context.user_data["name"] = update.effective_message.text
    await asyncio.sleep(0)
    return EMAIL


async def email(update: Any, context: Any) -> int:
    context.user_data["email"] = update.effective_message.text
    return ConversationHandler.END


async def cancel(update: Any, context: Any) -> int:
    return ConversationHandler.END


def registration(**options: Any) -> ConversationHandler:
    return ConversationHandler(
        [CommandHandler("register", begin)],
        {NAME: [MessageHandler(TEXT, name)], EMAIL: [MessageHandler(TEXT, email)]},
        [CommandHandler("cancel", cancel)],
        **options,
    )


@asynccontextmanager
async def workers(
    storage: Storage, *handlers: Callable[[], Any], number: int = 2, **options: Any
) -> AsyncIterator[list[Application]]:
    """Start applications that share a storage, as processes do."""
    async with AsyncExitStack() as stack:
        made = [make_app(StepwellPersistence(storage, **options)) for _ in range(number)]
        for application in made:
            for handler in handlers:
                application.add_handler(handler())
            await stack.enter_async_context(application)
        yield made


async def say(application: Application, text: str, **about: Any) -> None:
    await application.process_update(message(application, text, **about))


async def stored(storage: Storage, key: Any = 42) -> Any:
    """Return the state of a record, as ``stepwell show`` prints it."""
    return await storage.get_state("ptb:7", key)


async def test_two_workers_take_turns_in_one_conversation(storage: Storage) -> None:
    async with workers(storage, registration) as (one, two):
        await say(one, "/register")
        await say(two, "Alice")
        record = await stored(storage)
        assert (record.flow, record.state) == ("test_ptb_conversation.begin", "1")
        assert record.data["user_data.name"] == "Alice"
        await say(one, "a@b.c")
        assert one.user_data[42] == {"name": "Alice", "email": "a@b.c"}
        await say(two, "ignored")
        record = await stored(storage)
        assert (record.flow, record.state) == (None, None)
        assert record.data == {
            "user_data": "dict", "user_data.name": "Alice", "user_data.email": "a@b.c", "chat_data": "dict",
        }  # fmt: skip


async def test_quick_messages_are_handled_in_order_with_concurrent_updates(storage: Storage) -> None:
    applications = [builder(StepwellPersistence(storage)).concurrent_updates(True).build() for _ in range(2)]
    seen: list[str] = []

    async def count(update: Any, context: Any) -> int:
        seen_before = context.user_data.get("n", 0)
        await asyncio.sleep(0)
        context.user_data["n"] = seen_before + 1
        context.chat_data["texts"] = [*context.chat_data.get("texts", []), update.message.text]
        seen.append(update.message.text)
        return NAME

    async with AsyncExitStack() as stack:
        for application in applications:
            application.add_handler(
                ConversationHandler([MessageHandler(TEXT, count)], {NAME: [MessageHandler(TEXT, count)]}, [])
            )
            await stack.enter_async_context(application)
        updates = [message(applications[0], str(number)) for number in range(20)]
        await asyncio.gather(*(applications[number % 2].process_update(each) for number, each in enumerate(updates)))
    record = await stored(storage)
    assert record.data["user_data.n"] == 20
    assert sorted(record.data["chat_data.texts"], key=int) == [str(number) for number in range(20)]
    assert len(seen) == 20


async def test_the_members_of_a_group_on_two_workers_share_its_data(storage: Storage) -> None:
    async def score(update: Any, context: Any) -> None:
        total = context.chat_data.get("total", 0)
        await asyncio.sleep(0)
        context.chat_data["total"] = total + 1
        context.user_data.setdefault("chats", set()).add(update.effective_chat.id)

    async with workers(storage, lambda: MessageHandler(TEXT, score)) as (one, two):
        await asyncio.gather(
            *(say(one if user % 2 else two, "x", user=user % 5 + 1, chat=-10 - user % 3) for user in range(30))
        )
    totals = [(await stored(storage, chat)).data["chat_data.total"] for chat in (-10, -11, -12)]
    assert sum(totals) == 30
    assert (await stored(storage, 1)).data["user_data.chats"] == {-10, -11, -12}


@pytest.mark.parametrize(
    ("options", "key", "record"),
    [
        ({}, (-5, 42), 42),
        ({"per_chat": False}, (42,), 42),
        ({"per_user": False}, (-5,), -5),
        ({"name": "form", "persistent": True}, (-5, 42), 42),
    ],
)
async def test_a_conversation_of_a_user_a_chat_or_both(
    storage: Storage, options: dict[str, Any], key: Any, record: Any
) -> None:
    async with workers(storage, lambda: registration(**options)) as (one, two):
        await say(one, "/register", chat=-5)
        field = f"conversation.{options.get('name', 'test_ptb_conversation.begin')}"
        assert (await stored(storage, record)).data[field] == {encode_key(key): NAME}
        same_user = key == (42,)
        await say(two, "Alice", user=43 if key == (-5,) else 42, chat=-6 if same_user else -5)
        assert (await stored(storage, record)).data[field] == {encode_key(key): EMAIL}
        await say(one, "/cancel", chat=-5)
        assert field not in (await stored(storage, record)).data


def pressed(application: Application, data: str, *, message_id: int, user: int = 42) -> Update:
    about = message(application, "x", user=user).to_dict()
    query = {"id": "1", "from": about["message"]["from"], "chat_instance": "1", "data": data}
    query["message"] = {**about["message"], "message_id": message_id}
    made = Update.de_json({"update_id": about["update_id"], "callback_query": query}, application.bot)
    assert made is not None
    return made


async def test_a_conversation_for_each_message(storage: Storage) -> None:
    async def next_one(update: Any, context: Any) -> int:
        context.user_data.setdefault("pressed", []).append(update.callback_query.message.message_id)
        return NAME

    def handler() -> ConversationHandler:
        button = CallbackQueryHandler(next_one, "a")
        return ConversationHandler([button], {NAME: [CallbackQueryHandler(cancel, "b")]}, [], per_message=True)

    async with workers(storage, handler) as (one, two):
        await one.process_update(pressed(one, "a", message_id=5))
        await two.process_update(pressed(two, "a", message_id=6))
        await two.process_update(pressed(two, "b", message_id=5))
        await two.process_update(pressed(two, "b", message_id=7))
    record = await stored(storage)
    assert record.data["user_data.pressed"] == [5, 6]
    (states,) = [value for field, value in record.data.items() if field.startswith("conversation.")]
    assert states == {"(42,42,6)": NAME}


async def test_nested_conversations_on_two_workers(storage: Storage) -> None:
    async def answer(update: Any, context: Any) -> int:
        context.user_data["inner"] = update.message.text
        return ConversationHandler.END

    def nested() -> ConversationHandler:
        inner = ConversationHandler(
            [CommandHandler("inner", begin)],
            {NAME: [MessageHandler(TEXT, answer)]},
            [],
            map_to_parent={ConversationHandler.END: EMAIL},
            name="inner",
        )
        return ConversationHandler(
            [CommandHandler("register", begin)],
            {NAME: [inner], EMAIL: [MessageHandler(TEXT, email)]},
            [],
            name="outer",
        )

    async with workers(storage, nested) as (one, two):
        await say(one, "/register")
        await say(two, "/inner")
        await say(one, "within")
        record = await stored(storage)
        assert record.data["conversation.outer"] == {"(42,42)": EMAIL}
        assert "conversation.inner" not in record.data
        await say(two, "a@b.c")
        assert two.user_data[42] == {"inner": "within", "email": "a@b.c"}
        assert (await stored(storage)).flow is None


class Step(Enum):
    NAME = "name"
    EMAIL = "email"


async def test_states_are_members_of_an_enum(storage: Storage) -> None:
    async def start(update: Any, context: Any) -> Step:
        return Step.NAME

    async def next_step(update: Any, context: Any) -> Step:
        return Step.EMAIL

    def handler() -> ConversationHandler:
        return ConversationHandler(
            [CommandHandler("register", start)],
            {Step.NAME: [MessageHandler(TEXT, next_step)], Step.EMAIL: [MessageHandler(TEXT, email)]},
            [],
        )

    async with workers(storage, handler) as (one, two):
        await say(one, "/register")
        await say(two, "Alice")
        assert (await stored(storage)).state == "EMAIL"
        await say(one, "a@b.c")
    assert (await stored(storage)).flow is None


async def test_an_update_that_is_delivered_again_is_dropped(storage: Storage) -> None:
    async with workers(storage, registration) as (one, two):
        await say(one, "/register")
        for application in (one, two, one):
            await say(application, "Alice", update_id=500)
        assert (await stored(storage)).state == str(EMAIL)
        # Tests use the id 0 for all updates.
        await say(one, "a@b.c", update_id=0)
        await say(two, "/register", update_id=0)
        assert (await stored(storage)).state == str(NAME)


async def test_a_handler_that_raises_does_not_change_the_state(storage: Storage) -> None:
    errors: list[Exception] = []

    async def fail(update: Any, context: Any) -> int:
        context.user_data["seen"] = True
        raise RuntimeError("no")

    async def caught(update: Any, context: Any) -> None:
        errors.append(context.error)

    def handler() -> ConversationHandler:
        return ConversationHandler([CommandHandler("register", begin)], {NAME: [MessageHandler(TEXT, fail)]}, [])

    async with workers(storage, handler, number=1) as (one,):
        one.add_error_handler(caught)
        await say(one, "/register")
        await say(one, "Alice")
        assert (await stored(storage)).state == str(NAME)
        # As with other persistences, changed data is kept.
        assert (await stored(storage)).data["user_data.seen"] is True
    assert [str(error) for error in errors] == ["no"]


async def test_an_update_with_an_unsupported_value_changes_nothing(storage: Storage) -> None:
    errors: list[Exception] = []

    async def bad(update: Any, context: Any) -> int:
        context.user_data["list"].append(1)
        context.user_data["job"] = object()
        context.chat_data["seen"] = True
        return EMAIL

    async def caught(update: Any, context: Any) -> None:
        errors.append(context.error)

    def handler() -> ConversationHandler:
        states: dict[object, Any] = {NAME: [MessageHandler(TEXT, bad)], EMAIL: []}
        return ConversationHandler([CommandHandler("register", begin)], states, [])

    await StepwellPersistence(storage, namespace="ptb:7").update_user_data(42, {"list": []})
    async with workers(storage, handler, number=1) as (one,):
        one.add_error_handler(caught)
        await say(one, "/register")
        await say(one, "Alice")
        assert one.user_data[42] == {"list": []}
        assert one.chat_data[42] == {}
        assert (await stored(storage)).state == str(NAME)
        assert one.handlers[0][0].check_update(message(one, "Bob"))
    assert [(type(error), str(error).split(" ")[0]) for error in errors] == [(EncodeError, "user_data[42].job")]


async def test_a_timeout_ends_the_conversation_in_this_process(storage: Storage) -> None:
    ended: asyncio.Queue[Any] = asyncio.Queue()
    begun: list[Any] = []

    async def start(update: Any, context: Any) -> int:
        begun.append((update, context))
        return NAME

    async def late(update: Any, context: Any) -> None:
        context.user_data["late"] = True
        await ended.put((update, context))

    def handler() -> ConversationHandler:
        states: dict[object, Any] = {NAME: [MessageHandler(TEXT, name)], -2: [MessageHandler(filters.ALL, late)]}
        return ConversationHandler([CommandHandler("register", start)], states, [], conversation_timeout=0.1)

    async with workers(storage, handler, number=1) as (one,):
        await say(one, "/register")
        assert await asyncio.wait_for(ended.get(), 30) == begun[0]
        await until(lambda: stored(storage), lambda it: it.flow is None)
        record = await stored(storage)
        assert record.data["user_data.late"] is True
        assert not [field for field in record.data if field.startswith(("timeout.", "conversation."))]
        assert one.handlers[0][0].check_update(message(one, "/register"))


@pytest.mark.parametrize("killed", [True, False], ids=["after a kill", "while both run"])
async def test_another_worker_ends_the_conversation(
    backend: Backend, clock: Clock, killed: bool, constants: Constants
) -> None:
    constants(tick=0.02)
    storage = backend.storage(clock=clock)
    ended: asyncio.Queue[str] = asyncio.Queue()

    async def late(update: Any, context: Any) -> None:
        context.user_data["late"] = context.user_data["name"]
        await ended.put(update.message.text)

    def handler() -> ConversationHandler:
        states: dict[object, Any] = {
            NAME: [MessageHandler(TEXT, name)],
            EMAIL: [MessageHandler(TEXT, email)],
            ConversationHandler.TIMEOUT: [MessageHandler(filters.ALL, late)],
        }
        return ConversationHandler([CommandHandler("register", begin)], states, [], conversation_timeout=60)

    async with workers(storage, handler, number=1) as (one,):
        await say(one, "/register")
        await say(one, "Alice")
        if killed:
            # The timers of this process end with it.
            await one.persistence.updates.stop()
        async with workers(storage, handler, number=1) as (two,):
            clock.advance(50)
            await asyncio.sleep(0.1)
            assert ended.empty()
            clock.advance(20)
            assert await asyncio.wait_for(ended.get(), 30) == "Alice"
            await until(lambda: stored(storage), lambda it: it.flow is None)
            assert (await stored(storage)).data["user_data.late"] == "Alice"
            assert two.handlers[0][0].check_update(message(two, "/register"))
        # The timer of the first process finds that it has fired.
        await say(one, "Bob")
        assert (await stored(storage)).flow is None
    assert ended.empty()


async def test_a_later_update_in_another_worker_moves_the_timeout(storage: Storage) -> None:
    def handler() -> ConversationHandler:
        return registration(conversation_timeout=0.2)

    async with workers(storage, handler) as (one, two):
        await say(one, "/register")
        handler_of_two = two.handlers[0][0]
        handler_of_two._conversation_timeout = 60
        await say(two, "Alice")
        await asyncio.sleep(0.4)
        assert (await stored(storage)).state == str(EMAIL)


async def test_a_pending_handler_lets_other_updates_wait(storage: Storage) -> None:
    go, waited = asyncio.Event(), asyncio.Queue[int]()

    async def slow(update: Any, context: Any) -> int:
        await go.wait()
        context.user_data["name"] = update.message.text
        return EMAIL

    async def waiting(update: Any, context: Any) -> None:
        await waited.put(id(context.application))

    def handler() -> ConversationHandler:
        states: dict[object, Any] = {
            NAME: [MessageHandler(TEXT, slow, block=False)],
            EMAIL: [MessageHandler(TEXT, email)],
            ConversationHandler.WAITING: [MessageHandler(TEXT, waiting)],
        }
        return ConversationHandler([CommandHandler("register", begin)], states, [])

    async with workers(storage, handler) as (one, two):
        await one.start()
        await say(one, "/register")
        await say(one, "Alice")
        for application in (one, two):
            await say(application, "still there?")
            assert waited.get_nowait() == id(application)
        assert (await stored(storage)).state == str(NAME)
        go.set()
        await until(lambda: stored(storage), lambda it: it.state == str(EMAIL))
        assert (await stored(storage)).data["user_data.name"] == "Alice"
        await say(two, "a@b.c")
        assert (await stored(storage)).flow is None
        await one.stop()
    assert waited.empty()


async def test_a_pending_handler_of_a_killed_process_keeps_the_old_state(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    def handler() -> ConversationHandler:
        return registration(name="form")

    async with workers(storage, handler, number=1) as (one,):
        await say(one, "/register")
        async with Slot(storage, "ptb:7", 42) as slot:
            slot.data["pending.form"] = {"(42,42)": "a process that is gone"}
            await slot.commit()
        await say(one, "Alice")
        record = await stored(storage)
    assert record.state == str(EMAIL)
    assert "pending.form" not in record.data


async def test_two_handlers_with_one_stored_name_are_refused(storage: Storage) -> None:
    application = make_app(StepwellPersistence(storage))
    application.add_handlers([registration(), registration()])
    with pytest.raises(InvalidOption, match=r"'test_ptb_conversation\.begin'; give each a name"):
        await application.initialize()
    application = make_app(StepwellPersistence(storage))
    application.add_handlers([registration(name="a"), registration(name="b")])
    async with application:
        await say(application, "/register")
    record = await stored(storage)
    assert "conversation.a" in record.data
    assert "conversation.b" not in record.data


async def test_without_a_persistence_the_states_are_in_memory(caplog: pytest.LogCaptureFixture) -> None:
    application = make_app()
    application.add_handler(registration())
    async with application:
        await say(application, "/register")
        await say(application, "Alice")
        assert application.user_data[42] == {"name": "Alice"}
    assert [record.message.partition(",")[0] for record in caplog.records if record.name.startswith("stepwell")] == [
        "the ConversationHandlers of this application keep their states in memory"
    ]


async def test_handlers_may_process_further_updates(storage: Storage) -> None:
    async def twice(update: Any, context: Any) -> int:
        application = context.application
        await application.process_update(message(application, "/register", chat=-9))
        await application.process_update(message(application, "/register", user=77))
        context.user_data["name"] = "twice"
        raise ApplicationHandlerStop

    async with workers(storage, lambda: CommandHandler("twice", twice), registration, number=1) as (one,):
        await say(one, "/twice")
    record = await stored(storage)
    assert record.data["user_data.name"] == "twice"
    assert record.data["conversation.test_ptb_conversation.begin"] == {"(-9,42)": NAME}
    assert (await stored(storage, 77)).state == str(NAME)


async def test_dropped_data_is_deleted_when_the_update_ends(storage: Storage) -> None:
    async def drop(update: Any, context: Any) -> None:
        context.application.drop_user_data(42)

    await StepwellPersistence(storage, namespace="ptb:7").update_user_data(42, {"a": 1})
    async with workers(storage, lambda: CommandHandler("drop", drop), number=1) as (one,):
        await say(one, "/drop")
        assert not [field for field in (await stored(storage)).data if field.startswith("user_data")]
    assert await StepwellPersistence(storage, namespace="ptb:7").get_user_data() == {}


async def test_a_job_and_an_update_change_the_same_user(storage: Storage) -> None:
    async with workers(storage, registration) as (one, two):
        await say(one, "/register")
        one.user_data[42]["by job"] = 1
        await two.process_update(message(two, "Alice"))
        one.mark_data_for_update_persistence(user_ids=42)
        await one.update_persistence()
        await say(two, "a@b.c")
        expected = {"name": "Alice", "email": "a@b.c", "by job": 1}
        assert two.user_data[42] == expected
        await say(one, "/register")
        assert one.user_data[42] == expected


async def test_a_job_of_another_process_writes_while_an_update_is_handled(storage: Storage) -> None:
    other = StepwellPersistence(storage, namespace="ptb:7")

    async def meanwhile(update: Any, context: Any) -> int:
        data = (await other.get_user_data())[42]
        data["by job"] = 1
        await other.update_user_data(42, data)
        context.user_data["n"] = 1
        return NAME

    async with workers(storage, lambda: MessageHandler(TEXT, meanwhile), number=1) as (one,):
        await other.update_user_data(42, {"a": 1})
        await say(one, "x")
        assert one.user_data[42] == {"a": 1, "n": 1, "by job": 1}
    assert await other.get_user_data() == {42: {"a": 1, "n": 1, "by job": 1}}


async def test_a_cancelled_update_is_written_completely_or_not_at_all(storage: Storage) -> None:
    async with workers(storage, registration, number=1) as (one,):
        point = 0
        while True:
            point += 1
            await say(one, "/register")
            one.user_data[42].pop("name", None)
            await one.persistence.update_user_data(42, one.user_data[42])
            cancelled = await cancel_at(one.process_update(message(one, "Alice")), point)
            record = await stored(storage)
            assert (record.state == str(EMAIL)) is ("user_data.name" in record.data)
            assert not one.persistence.held
            await say(one, "/cancel")
            assert (await stored(storage)).data.get("user_data.name") == one.user_data[42].get("name")
            if not cancelled:
                break
    assert point >= 2


async def test_updates_are_still_handled_after_a_restart_of_the_application(storage: Storage) -> None:
    application = make_app(StepwellPersistence(storage))
    application.add_handler(registration(conversation_timeout=60))
    for _ in range(2):
        async with application:
            await application.start()
            await say(application, "/register")
            await application.stop()
            await say(application, "/cancel")
    assert not calls_of(application).texts


def test_the_arguments_are_those_of_the_base_class(caplog: pytest.LogCaptureFixture) -> None:
    handler = registration(name="form", conversation_timeout=5, allow_reentry=True, per_message=False)
    assert (handler.name, handler.conversation_timeout, handler.allow_reentry) == ("form", 5, True)
    assert handler.persistent is False
    with pytest.raises(AttributeError, match="conversation_timeout"):
        handler.conversation_timeout = 6
    assert logging.getLogger("stepwell").level == logging.NOTSET
