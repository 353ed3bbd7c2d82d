"""Stepwell's conversations in aiogram's handlers."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import pytest
from aiogram import Bot, Dispatcher, F, Router
from aiogram.exceptions import TelegramAPIError, TelegramBadRequest, TelegramForbiddenError, TelegramNetworkError
from aiogram.filters import Command, and_f, or_f
from aiogram.types import ErrorEvent, Message, Poll

from stepwell import Storage
from stepwell._optional import require
from stepwell.adapters.aiogram import (
    StepwellStorage,
    fsm_flow,
    fsm_in_flow,
    fsm_state,
    setup,
)
from stepwell.errors import (
    BotApiError,
    ContextClosed,
    ExtraTooOld,
    InvalidOption,
    MissingExtra,
    NoKeyError,
    StorageUnavailable,
    TransitionError,
    UnknownFlowError,
    UsageError,
)
from stepwell.fsm import FSM, Context, Flow, state
from stepwell.testing import Clock
from tests.adapters.aiogram_bots import Silent, feed, make_bot, message
from tests.adapters.cancellation import cancel_at
from tests.backends import Backend
from tests.constants import Constants
from tests.until import until


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


def bot_of(fsm: FSM, *, bot: Bot | None = None) -> Dispatcher:
    dispatcher = Dispatcher(disable_fsm=True)
    setup(dispatcher, fsm, bot=bot)
    router = Router()
    dispatcher.include_router(router)

    @router.message(Command("register"))
    async def register(message: Message, ctx: Context) -> None:
        ctx.start_flow(Registration)
        await message.answer("What's your name?")

    @router.message(Command("cancel"), fsm_in_flow())
    async def cancel(message: Message, ctx: Context) -> None:
        ctx.clear_flow()
        ctx.answer("Cancelled.")

    @router.message(fsm_state(Registration.get_name), F.text != "fail")
    async def name(message: Message, ctx: Context) -> None:
        ctx.update_data(name=message.text)
        ctx.transition("get_email")
        await message.answer(f"Got it, {message.text}!")

    @router.message(fsm_flow(Registration) & F.text.func(lambda text: text == "fail"))
    async def fail(message: Message, ctx: Context) -> None:
        ctx.update_data(broken=True)
        ctx.set_state("get_email")
        ctx.answer("never sent")
        raise RuntimeError("half-way")

    @router.message(fsm_state("get_email"))
    async def email(message: Message, ctx: Context) -> str:
        said = f"Welcome, {ctx.data['name']}!"
        ctx.clear_flow()
        ctx.answer(said)
        return said

    return dispatcher


async def test_a_conversation_through_the_dispatcher(fsm: FSM) -> None:
    dispatcher, (bot, session) = bot_of(fsm), make_bot()
    await feed(dispatcher, bot, message("hello?"))
    await feed(dispatcher, bot, message("/register"))
    await feed(dispatcher, bot, message("Alice"))
    record = await fsm.storage.get_state("my_bot", (42, 42))
    assert record is not None
    assert (record.flow, record.state, record.data) == ("registration", "get_email", {"name": "Alice"})
    # Another worker, started later. The result of a handler is returned.
    assert await feed(bot_of(fsm), bot, message("a@b.c")) == "Welcome, Alice!"
    assert session.texts == ["What's your name?", "Got it, Alice!", "Welcome, Alice!"]
    assert await fsm.storage.get_state("my_bot", (42, 42)) is None


async def test_a_handler_that_raises_changes_nothing(fsm: FSM) -> None:
    dispatcher, (bot, session) = bot_of(fsm), make_bot()
    await feed(dispatcher, bot, message("/register"))
    with pytest.raises(RuntimeError):
        await feed(dispatcher, bot, message("fail"))
    record = await fsm.storage.get_state("my_bot", (42, 42))
    assert record is not None
    assert (record.state, record.data) == ("get_name", {})
    assert session.texts == ["What's your name?"]


async def test_a_handler_that_raises_changes_nothing_even_if_an_error_handler_catches_it(fsm: FSM) -> None:
    dispatcher, (bot, session) = bot_of(fsm), make_bot()
    seen: list[type[BaseException]] = []

    @dispatcher.error()
    async def on_error(event: ErrorEvent, ctx: Context) -> str:
        seen.append(type(event.exception))
        with pytest.raises(ContextClosed):
            ctx.update_data(late=True)
        return "handled"

    await feed(dispatcher, bot, message("/register"))
    assert await feed(dispatcher, bot, message("fail", update_id=5000)) == "handled"
    assert seen == [RuntimeError]
    record = await fsm.storage.get_state("my_bot", (42, 42))
    assert record is not None
    assert (record.state, record.data) == ("get_name", {})
    # The update was not handled, so its next delivery is handled.
    await feed(dispatcher, bot, message("fail", update_id=5000))
    assert seen == [RuntimeError, RuntimeError]
    assert session.texts == ["What's your name?"]


async def test_a_redelivered_update_is_handled_once(fsm: FSM) -> None:
    dispatcher, (bot, session) = bot_of(fsm), make_bot()
    update = message("/register")
    await feed(dispatcher, bot, update)
    await feed(dispatcher, bot, update)
    name = message("Alice")
    await asyncio.gather(*(feed(dispatcher, bot, name) for _ in range(5)))
    assert session.texts == ["What's your name?", "Got it, Alice!"]
    # Calls of ctx.answer() are made after the commit and may be lost, so they are repeated.
    done = message("a@b.c")
    await feed(dispatcher, bot, done)
    await feed(dispatcher, bot, done)
    assert session.texts[2:] == ["Welcome, Alice!", "Welcome, Alice!"]


async def test_one_update_is_one_claim_and_one_commit(fsm: FSM, monkeypatch: pytest.MonkeyPatch) -> None:
    dispatcher, (bot, _) = bot_of(fsm), make_bot()
    await feed(dispatcher, bot, message("/register"))
    made: list[str] = []
    perform = type(fsm.storage).perform

    async def noted(self: Storage, operation: Any) -> Any:
        made.append(type(operation).__name__)
        return await perform(self, operation)

    monkeypatch.setattr(type(fsm.storage), "perform", noted)
    await feed(dispatcher, bot, message("Alice"))
    assert made == ["Claim", "Apply"]


async def test_messages_of_one_user_are_handled_one_at_a_time(fsm: FSM) -> None:
    dispatcher = Dispatcher(disable_fsm=True)
    setup(dispatcher, fsm)

    @dispatcher.message()
    async def count(message: Message, ctx: Context) -> None:
        seen = ctx.data.get("n", 0)
        await asyncio.sleep(0)
        ctx.update_data({"n": seen + 1, "order": [*ctx.data.get("order", []), message.text]})

    bot, _ = make_bot()
    updates = [message(str(number)) for number in range(20)]
    await asyncio.gather(*(feed(dispatcher, bot, update) for update in updates))
    assert await fsm.storage.get_data("my_bot", (42, 42)) == {"n": 20, "order": [str(number) for number in range(20)]}


async def test_filters_combine(fsm: FSM) -> None:
    dispatcher = Dispatcher(disable_fsm=True)
    setup(dispatcher, fsm)
    seen: list[str] = []

    def on(name: str, *filters: Any) -> None:
        @dispatcher.message(*filters)
        async def handler(message: Message, ctx: Context) -> None:
            seen.append(name)
            if message.text == "go":
                ctx.start_flow(Registration)
                ctx.update_data(level=3)

    on("both", fsm_flow("registration") & fsm_state("get_name"), F.text == "both")
    on("either", fsm_flow(None) | fsm_state("get_email"))
    on("aiogram and", and_f(fsm_in_flow(), F.text == "and"))
    on("aiogram or", or_f(~fsm_in_flow(), F.text == "or"))
    on("or F", fsm_flow(None) | (F.text == "or F"))
    on("data", fsm_state(("level", 3)) & ~fsm_state(("level", 4)), F.text == "data")
    on("rest")
    bot, _ = make_bot()
    for text in ("go", "both", "and", "or", "or F", "data", "x"):
        await feed(dispatcher, bot, message(text))
    assert seen == ["either", "both", "aiogram and", "aiogram or", "or F", "data", "rest"]


async def test_f_before_a_context_filter_raises(fsm: FSM) -> None:
    dispatcher = Dispatcher(disable_fsm=True)
    setup(dispatcher, fsm)

    @dispatcher.message(F.text & fsm_flow(Registration))
    async def handler(message: Message) -> None:
        raise AssertionError

    with pytest.raises(TypeError, match=r"put fsm_flow\(\.\.\.\) before the & or \|"):
        await feed(dispatcher, make_bot()[0], message("x"))


async def test_a_filter_without_setup_raises() -> None:
    dispatcher = Dispatcher(disable_fsm=True)

    @dispatcher.message(fsm_in_flow())
    async def handler(message: Message) -> None:
        raise AssertionError

    with pytest.raises(UsageError, match=r"call setup\(dispatcher, fsm\) first"):
        await feed(dispatcher, make_bot()[0], message("x"))


@pytest.mark.parametrize(
    "hidden",
    [
        fsm_flow(Unknown),
        ~fsm_state(Unknown.a),
        and_f(F.text, fsm_flow("unknown")),
        or_f(F.text, and_f(F.text, fsm_flow("unknown"))),
    ],
    ids=["flow", "inverted", "and", "nested"],
)
async def test_an_unregistered_flow_in_a_filter_raises_at_startup(fsm: FSM, hidden: Any) -> None:
    dispatcher, (bot, _) = bot_of(fsm), make_bot()
    router = Router()

    @router.message(hidden)
    async def handler(message: Message) -> None:
        raise AssertionError

    dispatcher.include_router(router)
    with pytest.raises(UnknownFlowError, match=r"add it to FSM\(flows="):
        await dispatcher.emit_startup(bot=bot)
    for _ in range(2):
        with pytest.raises(UnknownFlowError):
            await feed(dispatcher, bot, message("x"))


async def test_an_update_without_a_key_has_an_empty_context(fsm: FSM, caplog: pytest.LogCaptureFixture) -> None:
    dispatcher = Dispatcher(disable_fsm=True)
    setup(dispatcher, fsm)
    seen: list[Any] = []

    @dispatcher.poll(fsm_flow(None))
    async def poll(poll: Poll, ctx: Context) -> None:
        seen.append((ctx.key, ctx.data))
        if poll.question == "write":
            ctx.update_data(x=1)

    options = {"options": [], "total_voter_count": 0, "is_closed": False, "is_anonymous": True, "type": "regular"}
    about = {"allows_multiple_answers": False, "allows_revoting": False, "members_only": False, **options}
    bot, _ = make_bot()
    await feed(dispatcher, bot, {"update_id": 1, "poll": {"id": "1", "question": "read", **about}})
    assert seen == [(None, {})]
    with pytest.raises(NoKeyError, match="use another key="):
        await feed(dispatcher, bot, {"update_id": 2, "poll": {"id": "1", "question": "write", **about}})


async def test_an_undeclared_transition_reaches_the_error_handler(fsm: FSM) -> None:
    dispatcher = Dispatcher(disable_fsm=True)
    setup(dispatcher, fsm)
    seen: list[BaseException] = []

    @dispatcher.message()
    async def handler(message: Message, ctx: Context) -> None:
        ctx.start_flow(Registration)
        ctx.transition("nowhere")

    @dispatcher.error()
    async def on_error(event: ErrorEvent) -> None:
        seen.append(event.exception)

    await feed(dispatcher, make_bot()[0], message("x"))
    assert isinstance(seen[0], TransitionError)
    assert await fsm.storage.get_state("my_bot", (42, 42)) is None


async def test_each_bot_of_a_dispatcher_has_its_own_namespace(fsm: FSM, storage: Storage) -> None:
    dispatcher = bot_of(fsm)
    (first, said), (second, _) = make_bot(7), make_bot(8)
    await feed(dispatcher, first, message("/register", update_id=1))
    await feed(dispatcher, second, message("/register", update_id=1))
    await feed(dispatcher, second, message("Bob", update_id=2))
    assert [entry.state.state async for entry in storage.scan("my_bot")] == ["get_name"]
    assert [entry.state.state async for entry in storage.scan("my_bot:8")] == ["get_email"]
    # After a restart the namespaces stay, in any order of the bots.
    dispatcher = bot_of(FSM("my_bot", storage=storage, flows=[Registration]))
    await feed(dispatcher, second, message("b@b.c", update_id=3))
    await feed(dispatcher, first, message("Alice", update_id=2))
    assert said.texts == ["What's your name?", "Got it, Alice!"]
    assert [entry.state.data async for entry in storage.scan("my_bot")] == [{"name": "Alice"}]
    assert [entry.key async for entry in storage.scan("my_bot:8")] == []


async def test_startup_and_shutdown_open_and_close_the_storage(storage: Storage) -> None:
    fsm = FSM("my_bot", storage=storage, flows=[Registration])
    dispatcher, (bot, _) = bot_of(fsm), make_bot()
    await dispatcher.emit_startup(bot=bot)
    assert storage.is_open
    await dispatcher.emit_shutdown(bot=bot)
    assert not storage.is_open


async def test_a_startup_cancelled_at_any_point_leaves_nothing_open(storage: Storage) -> None:
    tasks = asyncio.all_tasks()
    bots = [make_bot(number)[0] for number in (7, 8)]
    point = 1
    while True:
        machine = FSM("my_bot", storage=storage, flows=[Registration], on_expired=lambda key, state: None)
        dispatcher = bot_of(machine)
        if not await cancel_at(dispatcher.emit_startup(bots=bots), point):
            break
        assert not storage.is_open
        assert storage.expired_listeners == []
        assert asyncio.all_tasks() == tasks
        point += 1
    assert storage.is_open
    await dispatcher.emit_shutdown()
    assert not storage.is_open


async def test_timers_run_from_startup_to_shutdown_and_answer_through_their_bot(backend: Backend) -> None:
    class Patience(Flow, name="patience"):
        @staticmethod
        async def give_up(ctx: Context) -> None:
            ctx.clear_flow()
            ctx.answer("Too late.")

        waiting = state(timeout=600, on_timeout=give_up)
        default_state = waiting

    clock = Clock()
    fsm = FSM("my_bot", storage=backend.storage(clock=clock), flows=[Patience])
    dispatcher = Dispatcher(disable_fsm=True)
    setup(dispatcher, fsm)

    @dispatcher.message()
    async def begin(message: Message, ctx: Context) -> None:
        ctx.start_flow(Patience)

    (bot, said), (second, also) = make_bot(7), make_bot(8)
    await dispatcher.emit_startup(bot=bot, bots=(bot,))
    await feed(dispatcher, bot, message("go", user=1))
    await feed(dispatcher, second, message("go", user=2))
    clock.advance(601)
    await until(lambda: said.texts and also.texts)
    await dispatcher.emit_shutdown(bot=bot)
    assert said.calls == [{"method": "sendMessage", "chat_id": 1, "text": "Too late."}]
    assert also.calls == [{"method": "sendMessage", "chat_id": 2, "text": "Too late."}]


async def test_timers_answer_through_the_bot_passed_to_setup_before_the_first_update(fsm: FSM) -> None:
    bot, session = make_bot()
    dispatcher = bot_of(fsm, bot=bot)
    await dispatcher.emit_startup()
    assert fsm.send is not None
    await fsm.send({"method": "sendMessage", "chat_id": 1, "text": "hi"})
    assert session.texts == ["hi"]
    with pytest.raises(BotApiError, match="refused: this release of aiogram has no method 'sendNonsense'"):
        await fsm.send({"method": "sendNonsense"})
    await dispatcher.emit_shutdown()


async def test_a_group_that_becomes_a_supergroup_keeps_its_state(fsm: FSM) -> None:
    dispatcher, (bot, session) = bot_of(fsm), make_bot()
    await feed(dispatcher, bot, message("/register", user=1, chat=-5))
    moved = message("", user=1, chat=-5, migrate_to_chat_id=-1005)
    del moved["message"]["text"]
    await feed(dispatcher, bot, moved)
    await feed(dispatcher, bot, message("Alice", user=1, chat=-1005))
    assert session.texts == ["What's your name?", "Got it, Alice!"]
    assert await fsm.storage.get_state("my_bot", (-5, 1)) is None


async def test_an_update_waits_for_a_busy_key_and_logs_a_warning(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    fsm = FSM("my_bot", storage=storage, flows=[Registration], wait=0.05)
    dispatcher, (bot, session) = bot_of(fsm), make_bot()
    await feed(dispatcher, bot, message("hello"))
    entered = asyncio.Event()

    async def feed_later() -> None:
        await entered.wait()
        await feed(dispatcher, bot, message("/register"))

    fed = asyncio.create_task(feed_later())
    async with fsm.conversation(key=(42, 42)):
        entered.set()
        await until(lambda: "waiting longer" in caplog.text)
        assert not fed.done()
    await fed
    assert session.texts == ["What's your name?"]


async def test_an_update_waits_for_an_unavailable_storage(
    fsm: FSM, storage: Storage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dispatcher, (bot, session) = bot_of(fsm), make_bot()
    await feed(dispatcher, bot, message("hello"))
    perform, failures = type(storage).perform, [StorageUnavailable("away", sent=False)] * 2

    async def failing(self: Storage, operation: Any) -> Any:
        if failures:
            raise failures.pop()
        return await perform(self, operation)

    monkeypatch.setattr(type(storage), "perform", failing)
    await feed(dispatcher, bot, message("/register"))
    assert session.texts == ["What's your name?"]
    assert "retrying in" in caplog.text


def refuse(session: Silent, refused: str, error: type[TelegramAPIError]) -> None:
    """Let the calls with one text fail."""
    make_request = session.make_request

    async def make(bot: Bot, method: Any, timeout: int | None = None) -> Any:
        if getattr(method, "text", None) == refused:
            raise error(method=method, message="no")
        return await make_request(bot, method, timeout)

    session.make_request = make  # type: ignore[method-assign]


async def test_an_answer_that_cannot_be_sent_raises_after_a_while_and_is_sent_with_the_next_delivery(
    fsm: FSM, constants: Constants
) -> None:
    constants(sending_patience=0.05, sending_pauses=(0.01, 0.01))
    dispatcher, (bot, session) = bot_of(fsm), make_bot()
    await feed(dispatcher, bot, message("/register"))
    await feed(dispatcher, bot, message("Alice"))
    make_request = session.make_request
    refuse(session, "Welcome, Alice!", TelegramNetworkError)
    email = message("a@b.c")
    with pytest.raises(TelegramNetworkError):
        await feed(dispatcher, bot, email)
    assert await fsm.storage.get_state("my_bot", (42, 42)) is None
    session.make_request = make_request  # type: ignore[method-assign]
    await feed(dispatcher, bot, email)
    assert session.texts[2:] == ["Welcome, Alice!"]


async def test_an_error_handler_that_raises_for_a_refused_call_does_not_fail_the_update(
    fsm: FSM, caplog: pytest.LogCaptureFixture
) -> None:
    dispatcher, (bot, session) = bot_of(fsm), make_bot()

    @dispatcher.message(Command("two"))
    async def two(message: Message, ctx: Context) -> None:
        ctx.answer("one")
        ctx.answer("two")

    @dispatcher.error()
    async def on_error(event: ErrorEvent) -> None:
        raise RuntimeError("half-way")

    refuse(session, "one", TelegramForbiddenError)
    await feed(dispatcher, bot, message("/two"))
    assert session.texts == ["two"]
    assert "an error handler raised for a call that failed" in caplog.text


@pytest.mark.parametrize("handled", [False, True])
async def test_a_refused_call_is_reported_and_the_other_calls_are_made(
    fsm: FSM, handled: bool, caplog: pytest.LogCaptureFixture
) -> None:
    dispatcher, (bot, session) = bot_of(fsm), make_bot()
    seen: list[Exception] = []

    @dispatcher.message(Command("three"))
    async def three(message: Message, ctx: Context) -> None:
        ctx.start_flow(Registration)
        for text in ("one", "two", "three"):
            ctx.answer(text)
        ctx.call("sendMessage", no_chat=1)

    if handled:

        @dispatcher.error()
        async def on_error(event: ErrorEvent, ctx: Context) -> None:
            assert event.update.update_id == 5000
            seen.append(event.exception)

    refuse(session, "two", TelegramBadRequest)
    # Each delivery succeeds: a webhook would deliver an update that fails again and again.
    for _ in range(2):
        await feed(dispatcher, bot, message("/three", update_id=5000))
    assert session.texts == ["one", "three"] * 2
    assert await fsm.storage.get_state("my_bot", (42, 42)) is not None
    kinds = [type(error).__name__ for error in seen]
    assert kinds == (["TelegramBadRequest", "ValidationError"] if handled else [])
    logged = caplog.text.count("sendMessage failed after the update was handled: Telegram server says - no")
    assert logged == (1 if handled else 2), "the second delivery has no context, so it only logs"


def test_setup_warns_of_aiograms_memory_storage(fsm: FSM, storage: Storage) -> None:
    with pytest.warns(UserWarning, match=r"disable_fsm=True"):
        setup(Dispatcher(), fsm)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        setup(Dispatcher(disable_fsm=True), fsm)
        setup(Dispatcher(storage=StepwellStorage(storage)), fsm)


def test_setup_checks_its_arguments_and_runs_once(fsm: FSM) -> None:
    dispatcher = Dispatcher(disable_fsm=True)
    with pytest.raises(InvalidOption, match="takes an FSM"):
        setup(dispatcher, "fsm")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="takes a Dispatcher, the root of all routers"):
        setup(Router(), fsm)  # type: ignore[arg-type]
    setup(dispatcher, fsm)
    with pytest.raises(UsageError, match=r"setup\(\) was already called"):
        setup(dispatcher, fsm)


async def test_both_styles_work_in_one_dispatcher_over_one_storage(fsm: FSM, storage: Storage) -> None:
    dispatcher = Dispatcher(storage=StepwellStorage(storage))
    setup(dispatcher, fsm)

    @dispatcher.message()
    async def handler(message: Message, ctx: Context, state: Any) -> None:
        await state.update_data(a=1)
        ctx.start_flow(Registration)

    await feed(dispatcher, make_bot()[0], message("x"))
    assert [entry.state.data async for entry in storage.scan("aiogram:7")] == [{"a": 1}]
    assert [entry.state.flow async for entry in storage.scan("my_bot")] == ["registration"]


def test_an_unsupported_release_of_aiogram_raises(tmp_path: Path) -> None:
    with pytest.raises(ExtraTooOld, match=r"pip install --upgrade 'stepwell\[aiogram\]'"):
        require("aiogram", "aiogram", minimum="99.1")
    with pytest.raises(MissingExtra):
        require("no_such_package", "aiogram", minimum="1")
    # Like aiogram 2: without the modules of release 3.
    (tmp_path / "aiogram").mkdir()
    (tmp_path / "aiogram" / "__init__.py").touch()
    (tmp_path / "aiogram-2.25.1.dist-info").mkdir()
    (tmp_path / "aiogram-2.25.1.dist-info" / "METADATA").write_text("Name: aiogram\nVersion: 2.25.1\n")
    code = textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import stepwell.adapters.aiogram
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ExtraTooOld: aiogram 2.25.1 is too old, at least 3.21 is required" in done.stderr


def test_no_part_of_a_token_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def converse() -> None:
        fsm = FSM("my_bot", storage="memory://", flows=[Registration], wait=0)
        dispatcher, (bot, _) = bot_of(fsm), make_bot()
        await dispatcher.emit_startup(bot=bot)
        update = message("/register")
        await feed(dispatcher, bot, update)
        await feed(dispatcher, bot, update)
        await dispatcher.emit_shutdown(bot=bot)

    asyncio.run(converse())
    assert "secret" not in caplog.text
