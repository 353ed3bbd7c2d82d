"""Stepwell's conversations in telebot's handlers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from telebot import TeleBot, apihelper, asyncio_helper, types
from telebot.async_telebot import AsyncTeleBot

from stepwell import State, open_storage, sync
from stepwell.adapters.telebot import fsm_of, setup
from stepwell.botapi import BotAPI
from stepwell.errors import ContextClosed, InvalidOption, UnknownFlowError, UsageError
from stepwell.fsm import FSM, Context, Flow, state
from tests.backends import Backend
from tests.until import wait_until

# Older releases of telebot with a newer aiohttp.
pytestmark = pytest.mark.filterwarnings("ignore:ssl_context is deprecated:DeprecationWarning")

_ids = itertools.count(1)


class Registration(Flow, name="registration"):
    get_name = state(to=["get_email"])
    get_email = state(to=[], timeout=0.2, on_timeout="late")
    late = state()
    default_state = get_name

    @staticmethod
    async def on_enter(ctx: Context, state: str) -> None:
        if state == "late":
            ctx.answer("Are you still there?")


class Unknown(Flow, name="unknown"):
    a = state()


def update(text: str, *, update_id: int | None = None, chat_id: int = 42, **more: Any) -> types.Update:
    message = {
        "message_id": 1,
        "date": 1,
        "chat": {"id": chat_id, "type": "private" if chat_id > 0 else "group"},
        "from": {"id": 42, "is_bot": False, "first_name": "Alice"},
        **({"text": text} if text else {}),
        **more,
    }
    found = types.Update.de_json({"update_id": update_id or next(_ids), "message": message})
    assert found is not None
    return found


def add_handlers(bot: Any, fsm: FSM) -> Any:
    """Add the same handlers to a bot of either kind."""
    setup(bot, fsm)

    def begin(message: types.Message) -> None:
        fsm_of(message).start_flow(Registration)
        fsm_of(message).answer("What's your name?")

    def name(message: types.Message) -> None:
        ctx = fsm_of(message)
        ctx.update_data(name=message.text)
        if message.text == "fail":
            raise RuntimeError("half-way")
        ctx.transition("get_email")
        ctx.answer(f"Got it, {message.text}!")

    def email(message: types.Message) -> None:
        ctx = fsm_of(message)
        ctx.answer(f"Welcome, {ctx.data['name']}!")
        ctx.clear_flow()

    def adapted(handler: Callable[[types.Message], None]) -> Any:
        async def awaited(message: types.Message) -> None:
            handler(message)

        return awaited if isinstance(bot, AsyncTeleBot) else handler

    bot.register_message_handler(adapted(begin), commands=["register"], fsm_in_flow=False)
    bot.register_message_handler(adapted(name), fsm_state=Registration.get_name)
    bot.register_message_handler(adapted(email), fsm_flow=Registration, fsm_state=["get_email", "late"])
    return bot


@pytest.fixture
def fsm(backend: Backend) -> Iterator[FSM]:
    """A machine on the background loop, which a sync bot uses."""
    storage = open_storage(backend.place())
    # Otherwise the bot closes it.
    sync(storage.open())
    yield FSM("my_bot", storage=storage, flows=[Registration], run_timers=False)
    sync(storage.close())


@asynccontextmanager
async def polling(bot: Any) -> AsyncIterator[None]:
    if isinstance(bot, AsyncTeleBot):
        running = asyncio.create_task(bot.infinity_polling(timeout=1, request_timeout=5))
    else:
        running = asyncio.create_task(asyncio.to_thread(bot.infinity_polling, timeout=5, long_polling_timeout=1))
    yield
    if isinstance(bot, AsyncTeleBot):
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    else:
        await asyncio.to_thread(bot.stop_bot)
        await running
        await asyncio.to_thread(apihelper._get_req_session().close)


@pytest.mark.parametrize("awaits", [False, True], ids=["sync", "async"])
async def test_a_conversation_by_polling_with_a_redelivery_and_a_timeout(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, awaits: bool
) -> None:
    url = backend.place()
    fsm = FSM("my_bot", storage=url, flows=[Registration])
    async with BotAPI() as api:
        for helper in (apihelper, asyncio_helper):
            monkeypatch.setattr(helper, "API_URL", f"{api.url}/bot{{0}}/{{1}}")
        registered = api.bot("my_bot")
        person = api.chat(registered)
        make = AsyncTeleBot if awaits else TeleBot
        async with polling(add_handlers(make(registered.token), fsm)):
            assert await person.ask("/register") == "What's your name?"
            # The second delivery repeats the answer and changes nothing.
            await person.redeliver()
            assert await person.answer() == "What's your name?"
            assert await person.ask("Alice") == "Got it, Alice!"
            assert await person.answer() == "Are you still there?"
            assert await person.ask("a@b.c") == "Welcome, Alice!"
    assert not fsm.storage.is_open


@pytest.mark.parametrize("middlewares", [False, True], ids=["plain", "middlewares"])
def test_a_handler_that_raises_changes_nothing_and_its_update_is_handled_again(fsm: FSM, middlewares: bool) -> None:
    bot = TeleBot("7:token", threaded=False, use_class_middlewares=middlewares)
    setup(bot, fsm)
    seen: list[Any] = []

    @bot.message_handler(commands=["register"])
    def begin(message: types.Message) -> None:
        fsm_of(message).start_flow(Registration)

    @bot.message_handler(fsm_flow=Registration)
    def count(message: types.Message) -> None:
        ctx = fsm_of(message)
        ctx.update_data(n=ctx.data.get("n", 0) + 1)
        seen.append(ctx)
        if len(seen) == 1:
            raise RuntimeError("half-way")

    bot.process_new_updates([update("/register")])
    if middlewares:
        bot.process_new_updates([update("fail", update_id=500)])
    else:
        with pytest.raises(RuntimeError):
            bot.process_new_updates([update("fail", update_id=500)])
    with pytest.raises(ContextClosed):
        seen[0].update_data(late=True)
    assert sync(fsm.storage.get_data("my_bot", (42, 42))) == {}
    for _ in range(3):
        bot.process_new_updates([update("again", update_id=500)])
    assert len(seen) == 2
    assert sync(fsm.storage.get_data("my_bot", (42, 42))) == {"n": 1}
    bot.stop_bot()


async def test_a_handler_of_an_async_bot_that_raises_changes_nothing(backend: Backend) -> None:
    storage = backend.storage()
    fsm = FSM("my_bot", storage=storage, flows=[Registration], run_timers=False)
    await storage.set_state("my_bot", (42, 42), State("registration", "get_name", {}))
    bot = add_handlers(AsyncTeleBot("7:token"), fsm)
    # Older releases cannot close a session that was not used.
    await asyncio_helper.session_manager.get_session()
    await bot.process_new_updates([update("fail")])
    assert await storage.get_state("my_bot", (42, 42)) == State("registration", "get_name", {})
    await bot.close_session()


@pytest.mark.every_backend
def test_threads_handle_the_updates_of_a_user_once_and_in_order(fsm: FSM) -> None:
    bot = TeleBot("7:token", num_threads=8)
    setup(bot, fsm)

    @bot.message_handler(func=lambda message: True)
    def count(message: types.Message) -> None:
        ctx = fsm_of(message)
        if ctx.flow is None:
            ctx.start_flow(Registration)
        ctx.update_data(texts=[*ctx.data.get("texts", []), message.text])

    texts = [str(number) for number in range(60)]
    updates = [update(text) for text in texts]
    # The same objects again, and the same ids again.
    bot.process_new_updates(updates + updates + [update("x", update_id=each.update_id) for each in updates])
    wait_until(lambda: not bot.worker_pool.tasks.qsize())
    bot.worker_pool.raise_exceptions()
    bot.stop_bot()
    assert sync(fsm.storage.get_data("my_bot", (42, 42))) == {"texts": texts}


def press(data: str) -> types.Update:
    message = {"message_id": 1, "date": 1, "chat": {"id": 42, "type": "private"}, "text": "?"}
    query = {
        "id": "1", "chat_instance": "1", "from": {"id": 42, "is_bot": False, "first_name": "Alice"},
        "message": message, "data": data,
    }  # fmt: skip
    found = types.Update.de_json({"update_id": next(_ids), "callback_query": query})
    assert found is not None
    return found


@pytest.mark.parametrize("awaits", [False, True], ids=["sync", "async"])
async def test_updates_of_different_types_are_handled_in_the_order_in_which_they_arrive(awaits: bool) -> None:
    seen: list[str] = []
    fsm = FSM("my_bot", storage="memory://", flows=[Registration], run_timers=False)
    updates = [press("a"), update("b"), press("c"), update("d")]
    if awaits:
        async_bot = AsyncTeleBot("7:token")
        setup(async_bot, fsm)

        async def note(event: Any) -> None:
            seen.append(getattr(event, "data", None) or event.text)

        async_bot.register_message_handler(note)
        async_bot.register_callback_query_handler(note, func=lambda query: True)
        await async_bot.process_new_updates(updates)
        await asyncio_helper.session_manager.get_session()
        await async_bot.close_session()
    else:
        bot = TeleBot("7:token", threaded=False)
        setup(bot, fsm)
        bot.register_message_handler(lambda message: seen.append(message.text))
        bot.register_callback_query_handler(lambda query: seen.append(query.data), func=lambda query: True)
        await asyncio.to_thread(bot.process_new_updates, updates)
        await asyncio.to_thread(bot.stop_bot)
    assert seen == ["a", "b", "c", "d"]


class Raising:
    """An exception handler that raises."""

    def handle(self, exception: Exception) -> bool:
        raise RuntimeError("half-way")


class RaisingLater:
    """The same for ``AsyncTeleBot``."""

    async def handle(self, exception: Exception) -> bool:
        raise RuntimeError("half-way")


@pytest.mark.parametrize("raises", [False, True], ids=["", "raises"])
@pytest.mark.parametrize("awaits", [False, True], ids=["sync", "async"])
async def test_a_call_that_fails_after_the_commit_does_not_fail_the_update(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, awaits: bool, raises: bool
) -> None:
    fsm = FSM("my_bot", storage="memory://", flows=[Registration])
    async with BotAPI() as api:
        for helper in (apihelper, asyncio_helper):
            monkeypatch.setattr(helper, "API_URL", f"{api.url}/bot{{0}}/{{1}}")
        registered = api.bot("my_bot")
        person = api.chat(registered)

        def answer(message: types.Message) -> None:
            fsm_of(message).call("sendMessage", chat_id=5, text="The chat does not exist.")
            fsm_of(message).answer("hello")

        async def answer_async(message: types.Message) -> None:
            answer(message)

        if awaits:
            async_bot = AsyncTeleBot(registered.token, exception_handler=RaisingLater() if raises else None)
            setup(async_bot, fsm)
            async_bot.register_message_handler(answer_async)
            await async_bot.process_new_updates([update("hi")])
            await async_bot.close_session()
        else:
            bot = TeleBot(registered.token, threaded=False, exception_handler=Raising() if raises else None)
            setup(bot, fsm)
            bot.register_message_handler(answer)
            await asyncio.to_thread(bot.process_new_updates, [update("hi")])
            await asyncio.to_thread(bot.stop_bot)
            await asyncio.to_thread(apihelper._get_req_session().close)
        assert await person.answer() == "hello"
    assert "sendMessage failed after the update was handled" in caplog.text
    assert ("the exception handler raised RuntimeError" in caplog.text) is raises
    assert registered.token not in caplog.text


def test_a_group_that_becomes_a_supergroup_keeps_its_conversations(fsm: FSM) -> None:
    bot = TeleBot("7:token", threaded=False)
    setup(bot, fsm)
    bot.register_message_handler(lambda message: fsm_of(message).start_flow(Registration), commands=["register"])
    bot.process_new_updates([update("/register", chat_id=-5)])
    bot.process_new_updates([update("", chat_id=-5, migrate_to_chat_id=-1005)])
    found = sync(fsm.storage.get_state("my_bot", (-1005, 42)))
    assert found == State("registration", "get_name", {})
    bot.stop_bot()


def test_wrong_uses_are_refused(fsm: FSM) -> None:
    bot = TeleBot("7:token", threaded=False)
    with pytest.raises(InvalidOption, match="takes a TeleBot or an AsyncTeleBot"):
        setup(fsm, fsm)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="takes an FSM"):
        setup(bot, Registration)  # type: ignore[arg-type]
    setup(bot, fsm)
    with pytest.raises(UsageError, match="already called for this bot"):
        setup(bot, fsm)
    with pytest.raises(UsageError, match="no conversation for this Message"):
        fsm_of(update("x").message)
    bot.register_message_handler(lambda message: None, fsm_flow=Unknown)
    with pytest.raises(UnknownFlowError, match="unknown"):
        bot.process_new_updates([update("x")])


def test_a_bot_may_have_middleware_functions(fsm: FSM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apihelper, "ENABLE_MIDDLEWARE", True)
    bot = TeleBot("7:token", threaded=False)
    setup(bot, fsm)
    seen: list[str] = []

    @bot.middleware_handler()
    def change(bot: TeleBot, update: types.Update) -> None:
        update.message.text += "!"

    bot.register_message_handler(lambda message: seen.append(message.text))
    bot.process_new_updates([update("hi")])
    bot.stop_bot()
    assert seen == ["hi!"]


def test_a_handler_can_stop_its_bot(fsm: FSM) -> None:
    bot = TeleBot("7:token", threaded=False)
    setup(bot, fsm)

    @bot.message_handler()
    def stop(message: types.Message) -> None:
        fsm_of(message).start_flow(Registration)
        bot.stop_bot()

    bot.process_new_updates([update("stop")])
    assert sync(fsm.storage.get_state("my_bot", (42, 42))) is not None
