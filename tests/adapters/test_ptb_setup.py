"""Stepwell's conversations in the handlers of python-telegram-bot."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from telegram import Update
from telegram.error import BadRequest
from telegram.ext import (
    Application,
    ApplicationHandlerStop,
    CallbackQueryHandler,
    CommandHandler,
    ConversationHandler,
    Defaults,
    MessageHandler,
    TypeHandler,
    filters,
)

from stepwell import Storage
from stepwell.adapters.ptb import StepwellPersistence, fsm_flow, fsm_in_flow, fsm_of, fsm_state, setup
from stepwell.errors import (
    InvalidOption,
    NoKeyError,
    RecordReplaced,
    StorageUnavailable,
    TransitionError,
    UnknownFlowError,
    UsageError,
)
from stepwell.fsm import FSM, Context, Flow, state
from stepwell.testing import Clock
from tests.adapters.ptb_bots import builder, calls_of, make_app, message
from tests.backends import Backend
from tests.constants import Constants
from tests.until import until

TEXT = filters.TEXT & ~filters.COMMAND


class Registration(Flow, name="registration"):
    get_name = state(to=["get_email"])
    get_email = state(to=[], timeout=600, on_timeout="get_name")
    default_state = get_name


class Unknown(Flow, name="unknown"):
    a = state()


@pytest.fixture
def storage(backend: Backend) -> Storage:
    return backend.storage()


@pytest.fixture
def fsm(storage: Storage) -> FSM:
    return FSM("my_bot", storage=storage, flows=[Registration])


def app_of(fsm: FSM, application: Application | None = None) -> Application:
    async def register(update: Any, context: Any) -> None:
        fsm_of(context).start_flow(Registration)
        await update.message.reply_text("What's your name?")

    async def cancel(update: Any, context: Any) -> None:
        fsm_of(context).clear_flow()
        fsm_of(context).answer("Cancelled.")

    async def name(update: Any, context: Any) -> None:
        ctx = fsm_of(context)
        ctx.update_data(name=update.message.text)
        ctx.transition("get_email")
        await update.message.reply_text(f"Got it, {update.message.text}!")

    async def fail(update: Any, context: Any) -> None:
        ctx = fsm_of(context)
        ctx.update_data(broken=True)
        ctx.set_state("get_email")
        ctx.answer("never sent")
        raise RuntimeError("half-way")

    async def email(update: Any, context: Any) -> None:
        ctx = fsm_of(context)
        said = f"Welcome, {ctx.data['name']}!"
        ctx.clear_flow()
        ctx.answer(said)

    application = application or make_app()
    setup(application, fsm)
    application.add_handlers(
        [
            CommandHandler("register", register),
            CommandHandler("cancel", cancel, fsm_in_flow()),
            MessageHandler(filters.Text(["fail"]) & fsm_flow(Registration), fail),
            MessageHandler(fsm_state(Registration.get_name) & TEXT, name),
            MessageHandler(TEXT & (fsm_state("get_email") | fsm_state("nowhere")), email),
        ]
    )
    return application


async def say(application: Application, text: str, **about: Any) -> None:
    await application.process_update(message(application, text, **about))


async def test_a_conversation_through_the_application(fsm: FSM, storage: Storage) -> None:
    await storage.open()
    async with app_of(fsm) as application:
        for text in ("hello?", "/cancel", "/register", "Alice"):
            await say(application, text)
        record = await storage.get_state("my_bot", (42, 42))
        assert record is not None
        assert (record.flow, record.state, record.data) == ("registration", "get_email", {"name": "Alice"})
    assert calls_of(application).texts == ["What's your name?", "Got it, Alice!"]
    # Another worker, started later.
    async with app_of(fsm) as application:
        await say(application, "a@b.c")
    assert calls_of(application).texts == ["Welcome, Alice!"]
    assert await storage.get_state("my_bot", (42, 42)) is None


async def test_a_handler_that_raises_changes_nothing(fsm: FSM, storage: Storage) -> None:
    await storage.open()
    seen: list[Any] = []

    async def on_error(update: Any, context: Any) -> None:
        ctx = fsm_of(context)
        seen.append((str(context.error), ctx.state, dict(ctx.data)))
        ctx.update_data(failures=ctx.data.get("failures", 0) + 1)
        ctx.answer("Please try again.")

    async def later(update: Any, context: Any) -> None:
        seen.append(fsm_of(context).state)

    async with app_of(fsm) as application:
        application.add_error_handler(on_error)
        application.add_handler(MessageHandler(TEXT & fsm_state("get_name"), later), group=1)
        await say(application, "/register")
        await say(application, "fail", update_id=900)
        # It was handled.
        await say(application, "fail", update_id=900)
    assert seen == [("half-way", "get_name", {}), "get_name"]
    record = await storage.get_state("my_bot", (42, 42))
    assert record is not None
    assert (record.state, record.data) == ("get_name", {"failures": 1})
    assert calls_of(application).texts == ["What's your name?", "Please try again.", "Please try again."]


async def test_an_update_that_is_delivered_again_is_answered_again_and_changes_nothing(fsm: FSM) -> None:
    async with app_of(fsm) as application:
        for text, number in (("/register", 801), ("Alice", 802), ("a@b.c", 803)):
            for _ in range(3):
                await say(application, text, update_id=number)
    # Only the answers that are sent after the commit may not have been sent.
    assert calls_of(application).texts == ["What's your name?", "Got it, Alice!", *["Welcome, Alice!"] * 3]


async def test_a_duplicate_enters_the_handlers_if_that_is_wanted(storage: Storage) -> None:
    seen: list[bool] = []
    application = make_app()
    setup(application, FSM("my_bot", storage=storage, flows=[Registration], on_duplicate="enter"))

    async def start(update: Any, context: Any) -> None:
        ctx = fsm_of(context)
        seen.append(ctx.duplicate)
        if not ctx.duplicate:
            ctx.start_flow(Registration)

    application.add_handler(MessageHandler(TEXT, start))
    async with application:
        for _ in range(2):
            await say(application, "x", update_id=5)
    assert seen == [False, True]


async def test_quick_messages_on_two_workers_are_counted(storage: Storage) -> None:
    class Counting(Flow, name="counting"):
        on = state()
        default_state = on

    async def count(update: Any, context: Any) -> None:
        ctx = fsm_of(context)
        if ctx.flow is None:
            ctx.start_flow(Counting)
        seen = ctx.data.get("n", 0)
        await asyncio.sleep(0)
        ctx.update_data(n=seen + 1)

    workers = []
    for _ in range(2):
        application = builder().concurrent_updates(True).build()
        setup(application, FSM("my_bot", storage=storage, flows=[Counting]))
        application.add_handler(MessageHandler(TEXT, count))
        await application.initialize()
        workers.append(application)
    await asyncio.gather(*(say(workers[number % 2], "x") for number in range(20)))
    assert await storage.get_data("my_bot", (42, 42)) == {"n": 20}
    for application in workers:
        await application.shutdown()


@pytest.mark.parametrize("everywhere", [True, False], ids=["defaults", "handler"])
async def test_a_handler_that_does_not_block_is_refused(fsm: FSM, everywhere: bool) -> None:
    errors: asyncio.Queue[Exception] = asyncio.Queue()
    made = builder().defaults(Defaults(block=False)) if everywhere else builder()
    application = made.build()
    setup(application, fsm)

    async def handler(update: Any, context: Any) -> None:
        fsm_of(context).start_flow(Registration)

    async def on_error(update: Any, context: Any) -> None:
        await errors.put(context.error)

    application.add_handler(MessageHandler(TEXT, handler, **({} if everywhere else {"block": False})))
    application.add_error_handler(on_error)
    async with application:
        await application.start()
        await say(application, "x")
        error = await asyncio.wait_for(errors.get(), 30)
        await application.stop()
    assert isinstance(error, UsageError)
    assert "block=False" in str(error)
    await fsm.storage.open()
    assert await fsm.storage.get_state("my_bot", (42, 42)) is None


async def test_fsm_of_outside_of_a_handler_is_refused(fsm: FSM) -> None:
    contexts: list[Any] = []

    async def keep(update: Any, context: Any) -> None:
        contexts.append(context)
        with pytest.raises(UsageError, match="another task"):
            await asyncio.create_task(in_a_task(context))

    async def in_a_task(context: Any) -> Context[Any]:
        return fsm_of(context)

    async with make_app() as application:
        application.add_handler(MessageHandler(TEXT, keep))
        setup(application, fsm)
        await say(application, "x")
    with pytest.raises(UsageError, match=r"no conversation is open; call setup\(application, fsm\) first"):
        fsm_of(contexts[0])
    with pytest.raises(InvalidOption, match="second argument of a handler"):
        fsm_of(contexts)  # type: ignore[arg-type]


async def test_filters_combine_with_those_of_the_framework(fsm: FSM) -> None:
    matched: list[str] = []

    def note(name: str) -> Any:
        async def handler(update: Any, context: Any) -> None:
            matched.append(name)

        return handler

    combined = {
        "not": ~fsm_in_flow() & TEXT,
        "or": fsm_flow(Registration) | filters.PHOTO,
        "xor": fsm_state("get_name") ^ filters.Regex("^b"),
        "field": TEXT & fsm_state(("name", "Alice")),
        "regex": filters.Regex("^(b)") & fsm_in_flow(),
    }
    application = app_of(fsm)
    # Before the handlers that change the state.
    for group, (name, given) in enumerate(combined.items(), start=-10):
        application.add_handler(MessageHandler(given, note(name)), group=group)
    async with application:
        for text, expected in (
            ("a", ["not"]),
            ("b", ["not", "xor"]),
            ("/register", []),
            ("Alice", ["or", "xor"]),
            ("/none", ["or"]),
            ("b", ["or", "xor", "field", "regex"]),
        ):
            matched.clear()
            await say(application, text)
            assert matched == expected, text


def pressed(application: Application, data: str) -> Update:
    about = message(application, "x").to_dict()
    query = {"id": "1", "from": about["message"]["from"], "chat_instance": "1", "data": data}
    query["message"] = about["message"]
    made = Update.de_json({"update_id": about["update_id"], "callback_query": query}, application.bot)
    assert made is not None
    return made


async def test_a_filter_is_the_pattern_of_a_callback_query_handler(fsm: FSM) -> None:
    seen: list[str] = []

    async def button(update: Any, context: Any) -> None:
        seen.append(update.callback_query.data)
        fsm_of(context).update_data(pressed=update.callback_query.data)

    application = app_of(fsm)
    application.add_handler(CallbackQueryHandler(button, pattern=fsm_state(Registration.get_name)))
    async with application:
        await application.process_update(pressed(application, "early"))
        await say(application, "/register")
        await application.process_update(pressed(application, "now"))
    assert seen == ["now"]


@pytest.mark.parametrize("nested", [False, True])
async def test_a_filter_on_an_unregistered_flow_is_an_error_at_startup(fsm: FSM, nested: bool) -> None:
    async def nothing(update: Any, context: Any) -> None: ...

    handler: Any = MessageHandler(TEXT & ~fsm_flow(Unknown), nothing)
    if nested:
        handler = ConversationHandler([CommandHandler("a", nothing)], {0: [handler]}, [])
    application = app_of(fsm)
    application.add_handler(handler)
    with pytest.raises(UnknownFlowError, match="unknown"):
        await application.initialize()
    await application.shutdown()


async def test_a_filter_without_setup_is_an_error() -> None:
    errors: list[Exception] = []

    async def nothing(update: Any, context: Any) -> None: ...

    async def on_error(update: Any, context: Any) -> None:
        errors.append(context.error)

    async with make_app() as application:
        application.add_handler(MessageHandler(fsm_in_flow(), nothing))
        application.add_error_handler(on_error)
        await say(application, "x")
    assert "filters on the conversation: no conversation is open; call setup" in str(errors[0])


async def test_timers_run_from_start_to_shutdown_and_answer_through_the_bot(backend: Backend) -> None:
    class Patience(Flow, name="patience"):
        @staticmethod
        async def give_up(ctx: Context) -> None:
            ctx.clear_flow()
            ctx.answer("Too late.")

        waiting = state(timeout=600, on_timeout=give_up)
        default_state = waiting

    clock = Clock()
    fsm = FSM("my_bot", storage=backend.storage(clock=clock), flows=[Patience])
    application = make_app()
    setup(application, fsm)

    async def begin(update: Any, context: Any) -> None:
        fsm_of(context).start_flow(Patience)

    application.add_handler(MessageHandler(TEXT, begin))
    for user in (1, 2):
        # It can be started again.
        async with application:
            await say(application, "go", user=user)
            clock.advance(601)
            await until(lambda: len(calls_of(application).calls) >= user)
        assert not fsm.storage.is_open
    assert calls_of(application).calls == [
        {"method": "sendMessage", "chat_id": user, "text": "Too late."} for user in (1, 2)
    ]


async def test_an_open_storage_stays_open(fsm: FSM, storage: Storage) -> None:
    await storage.open()
    async with app_of(fsm) as application:
        await application.start()
        with pytest.raises(RuntimeError, match="still running"):
            await application.shutdown()
        await say(application, "/register")
        await application.stop()
    assert storage.is_open
    assert await storage.get_state("my_bot", (42, 42)) is not None


async def test_a_group_that_becomes_a_supergroup_keeps_its_state(fsm: FSM, storage: Storage) -> None:
    await storage.open()
    async with app_of(fsm) as application:
        await say(application, "/register", user=1, chat=-5)
        about = message(application, "x", user=1, chat=-5, migrate_to_chat_id=-1005).to_dict()
        del about["message"]["text"]
        await application.process_update(Update.de_json(about, application.bot))
        await say(application, "Alice", user=1, chat=-1005)
    assert calls_of(application).texts == ["What's your name?", "Got it, Alice!"]
    assert await storage.get_state("my_bot", (-5, 1)) is None


async def test_an_update_waits_for_an_unavailable_storage(
    fsm: FSM, storage: Storage, monkeypatch: pytest.MonkeyPatch, constants: Constants, caplog: pytest.LogCaptureFixture
) -> None:
    async with app_of(fsm) as application:
        perform, failures = storage.perform, iter(range(2))

        def failing(operation: Any) -> Any:
            if next(failures, None) is not None:
                raise StorageUnavailable("away")
            return perform(operation)

        constants(retry_delay=0.01)
        monkeypatch.setattr(storage, "perform", failing)
        await say(application, "/register")
        monkeypatch.undo()
    assert "the storage is unavailable" in caplog.text
    assert calls_of(application).texts == ["What's your name?"]


async def test_errors_of_the_commit_and_of_calls_go_to_the_error_handlers(fsm: FSM, storage: Storage) -> None:
    errors: list[Exception] = []

    async def on_error(update: Any, context: Any) -> None:
        assert isinstance(update, Update)
        errors.append(context.error)

    async def replaced(update: Any, context: Any) -> None:
        fsm_of(context).start_flow(Registration)
        await storage.clear("my_bot", (42, 42))
        await storage.update_data("my_bot", (42, 42), {"by": "an administrator"})
        await storage.clear("my_bot", (42, 42))

    async def undeclared(update: Any, context: Any) -> None:
        fsm_of(context).transition("get_email")

    async def nonsense(update: Any, context: Any) -> None:
        fsm_of(context).start_flow(Registration)
        fsm_of(context).call("sendMessage", chat_id=1, text="x")

    async with make_app() as application:
        setup(application, fsm)
        application.add_error_handler(on_error)
        for name, handler in (("replaced", replaced), ("undeclared", undeclared), ("nonsense", nonsense)):
            application.add_handler(CommandHandler(name, handler))
        await say(application, "/undeclared")
        await storage.update_data("my_bot", (42, 42), {"a": 1})
        # Also to the caller: the update may be handled again.
        with pytest.raises(RecordReplaced):
            await say(application, "/replaced")

        async def refused(*args: Any, **kwargs: Any) -> tuple[int, bytes]:
            return 400, b'{"ok": false, "error_code": 400, "description": "Bad Request: no"}'

        calls_of(application).do_request = refused  # type: ignore[method-assign]
        await say(application, "/nonsense")
        # It was committed before the call.
        assert (await storage.get_state("my_bot", (42, 42))) is not None
    assert [type(error) for error in errors[:2]] == [TransitionError, RecordReplaced]
    assert isinstance(errors[2], BadRequest)


async def test_an_update_without_a_key_cannot_be_changed(fsm: FSM) -> None:
    errors: list[Exception] = []

    async def on_error(update: Any, context: Any) -> None:
        errors.append(context.error)

    async def change(update: Any, context: Any) -> None:
        fsm_of(context).start_flow(Registration)

    async with make_app() as application:
        setup(application, fsm)
        application.add_handler(TypeHandler(Update, change))
        application.add_error_handler(on_error)
        await application.process_update(Update(1))
        # Updates of other types have no conversation.
        await application.process_update("not an update")
    assert [type(error) for error in errors] == [NoKeyError]


async def test_a_handler_may_stop_the_others(fsm: FSM, storage: Storage) -> None:
    await storage.open()

    async def stop(update: Any, context: Any) -> None:
        fsm_of(context).start_flow(Registration)
        raise ApplicationHandlerStop

    async with make_app() as application:
        setup(application, fsm)
        application.add_handler(MessageHandler(TEXT, stop))
        await say(application, "x")
    assert await storage.get_state("my_bot", (42, 42)) is not None


async def test_conversations_and_data_are_used_together(fsm: FSM, storage: Storage) -> None:
    await storage.open()

    async def both(update: Any, context: Any) -> None:
        fsm_of(context).start_flow(Registration)
        context.user_data["seen"] = True

    application = make_app(StepwellPersistence(storage))
    setup(application, fsm)
    application.add_handler(MessageHandler(TEXT, both))
    async with application:
        await say(application, "x")
    assert await storage.get_data("ptb:7", 42) == {"user_data": "dict", "user_data.seen": True, "chat_data": "dict"}
    assert await storage.get_state("my_bot", (42, 42)) is not None


async def test_setup_takes_an_application_and_an_fsm_once(fsm: FSM) -> None:
    application = make_app()
    with pytest.raises(InvalidOption, match="takes an Application"):
        setup(fsm, application)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="takes an FSM"):
        setup(application, application)  # type: ignore[arg-type]
    setup(application, fsm)
    with pytest.raises(UsageError, match="already called"):
        setup(application, fsm)


class CountingApplication(Application):
    """An application of a user's own class."""

    processed = 0

    async def process_update(self, update: object) -> None:
        self.processed += 1
        await super().process_update(update)


async def test_an_application_of_another_class_works_and_others_are_not_changed(fsm: FSM, storage: Storage) -> None:
    await storage.open()
    own = builder().application_class(CountingApplication).build()
    plain = make_app()
    async with app_of(fsm, own), plain:
        await own.process_update(message(own, "/register"))
        assert calls_of(own).texts == ["What's your name?"]
        assert isinstance(own, CountingApplication)
        assert own.processed == 1
        assert type(plain) is Application
    assert await storage.get_state("my_bot", (42, 42)) is not None
