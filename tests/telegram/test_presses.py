"""Presses of buttons, which the runner answers unless their handler does."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias

import pytest

from stepwell import Limits, MemoryStorage
from stepwell.botapi import BotAPI, Person
from stepwell.fsm import FSM, Context, Router, callback, command, keyboard, text
from stepwell.record import INBOX
from stepwell.storage import Get
from stepwell.telegram import BotClient, run_polling, webhook
from stepwell.telegram.receiving.press import HANDLER_TIME, WAITING_TIME
from stepwell.web.serving import Serving
from tests.until import until

#: What answerCallbackQuery shows to the user if it has no parameters.
NOTHING = {"text": "", "show_alert": False, "url": "", "cache_time": 0}


class Running:
    """A running bot and its local Bot API."""

    def __init__(self, api: BotAPI) -> None:
        self.api = api
        self.bot = api.bot("my_bot")

    def person(self, user: int = 42) -> Person:
        return self.api.chat(self.bot, user)

    async def press(self, data: str, user: int = 42) -> tuple[Person, str]:
        """Press a button; return the user and the id of the press."""
        person = self.person(user)
        assert await person.ask("/menu") == "Menu"
        query = await person.press(data)
        assert query is not None
        return person, query

    def answers(self) -> list[dict[str, Any]]:
        """Return the calls that answer a press, in order, also those that were refused."""
        return [call for call in self.bot.calls if call["method"] == "answerCallbackQuery"]


Run: TypeAlias = Callable[[Router], AbstractAsyncContextManager[Running]]


@asynccontextmanager
async def polling(router: Router) -> AsyncIterator[Running]:
    async with BotAPI() as api:
        running = Running(api)
        task = asyncio.create_task(run_polling(router, running.bot.token, api=api.url, limits=None))
        try:
            yield running
        finally:
            task.cancel()
            await asyncio.wait((task,))


@asynccontextmanager
async def serving(router: Router) -> AsyncIterator[Running]:
    async with BotAPI(webhook_pause=0.05) as api:
        running = Running(api)
        token = running.bot.token
        app = webhook(router, secret_token="s3cret", token=token, api=api.url, limits=None)
        server = Serving(app, name="webhook")
        async with app:
            url = f"http://127.0.0.1:{await server.start('127.0.0.1', 0)}/"
            try:
                async with BotClient(token, api=api.url) as client:
                    await client.call("setWebhook", url=url, secret_token="s3cret")
                yield running
            finally:
                await server.stop()


@pytest.fixture(params=[polling, serving])
def run(request: pytest.FixtureRequest) -> Run:
    found: Run = request.param
    return found


def make_router(*buttons: str) -> Router:
    router = Router(FSM("my_bot", storage=MemoryStorage(), flows=[]))

    @router.on(command("menu"))
    async def menu(ctx: Context) -> None:
        ctx.answer("Menu", reply_markup=keyboard([list(buttons)]))

    return router


async def test_a_press_that_no_handler_matches_is_answered(run: Run) -> None:
    async with run(make_router("Old")) as running:
        person, query = await running.press("Old")
        assert await person.notice(query) == NOTHING


async def test_a_press_whose_handler_raises_is_answered(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    router = make_router("Fail")

    @router.on()
    async def fail(ctx: Context) -> None:
        ctx.answer_callback("Never sent")
        raise LookupError("oh")

    async with run(router) as running:
        person, query = await running.press("Fail")
        assert await person.notice(query) == NOTHING
    assert "LookupError: oh" in caplog.text


async def test_a_press_whose_handler_answers_something_else_is_answered_before_that(run: Run) -> None:
    router = make_router("Tea")

    @router.on()
    async def tea(ctx: Context) -> None:
        ctx.answer("Coming up")
        ctx.answer("Here it is")

    async with run(router) as running:
        person, query = await running.press("Tea")
        assert await person.notice(query) == NOTHING
        assert [await person.answer() for _ in range(2)] == ["Coming up", "Here it is"]
        assert len(running.answers()) == 1


async def test_the_answer_of_a_handler_is_the_only_one(run: Run) -> None:
    router = make_router("Tea")

    @router.on()
    async def tea(ctx: Context) -> None:
        ctx.answer("Coming up")
        ctx.answer_callback("One tea", show_alert=True)

    async with run(router) as running:
        person, query = await running.press("Tea")
        assert await person.notice(query) == {**NOTHING, "text": "One tea", "show_alert": True}
        assert await person.answer() == "Coming up"
        # The next update of the chat is handled after all calls for this one.
        assert await person.ask("/menu") == "Menu"
    assert len(running.answers()) == 1


async def test_a_press_is_answered_if_the_answer_of_its_handler_is_refused(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    router = make_router("Tea")

    @router.on()
    async def tea(ctx: Context) -> None:
        ctx.answer_callback("x" * 201)
        ctx.answer("Coming up")

    async with run(router) as running:
        person, query = await running.press("Tea")
        assert await person.notice(query) == NOTHING
        assert await person.answer() == "Coming up"
        assert await person.ask("/menu") == "Menu"
        assert len(running.answers()) == 2
    assert "MESSAGE_TOO_LONG" in caplog.text


async def test_a_press_is_answered_if_sending_the_answer_of_its_handler_fails(run: Run) -> None:
    router = make_router("Tea")

    async def send(call: dict[str, Any]) -> None:
        if call["method"] == "answerCallbackQuery":
            raise LookupError("oh")
        async with BotClient(running.bot.token, api=running.api.url) as client:
            await client.call(call["method"], **{name: value for name, value in call.items() if name != "method"})

    @router.on()
    async def tea(ctx: Context) -> None:
        ctx.answer_callback("Coming up")

    router.send = send
    async with run(router) as running:
        person, query = await running.press("Tea")
        assert await person.notice(query) == NOTHING


async def test_a_press_whose_handler_is_slow_is_answered_before_it_ends(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    router = make_router("Slow")
    proceed = asyncio.Event()

    @router.on()
    async def slow(ctx: Context) -> None:
        async with asyncio.timeout(30):
            await proceed.wait()
        ctx.answer_callback("Too late")
        ctx.answer("Done")

    async with run(router) as running:
        person, query = await running.press("Slow")
        assert await person.notice(query) == NOTHING
        proceed.set()
        assert await person.answer() == "Done"
        assert len(running.answers()) == 1
    records = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(records) == 1
    told = "after more than 3 s, or after it had waited for another update, so its text is not shown"
    assert told in records[0].getMessage()


async def test_a_press_that_waits_for_a_slow_update_of_its_chat_is_answered() -> None:
    router = make_router("Tea")
    proceed = asyncio.Event()

    @router.on(command("slow"))
    async def slow(ctx: Context) -> None:
        async with asyncio.timeout(30):
            await proceed.wait()

    async with polling(router) as running:
        person = running.person()
        await person.ask("/menu")
        await person.send("/slow")
        query = await person.press("Tea")
        assert query is not None
        begun = asyncio.get_running_loop().time()
        assert await person.notice(query) == NOTHING
        # Not after the time that the handler of a press has.
        assert asyncio.get_running_loop().time() - begun < HANDLER_TIME / 2
        proceed.set()


async def test_a_press_whose_conversation_another_task_holds_is_answered_at_once(run: Run) -> None:
    router = make_router("Tea")
    assert router.fsm is not None

    @router.on()
    async def tea(ctx: Context) -> None:
        ctx.answer("Coming up", toast="Too late")

    async with run(router) as running:
        person = running.person()
        await person.ask("/menu")
        async with router.fsm.conversation(key=(42, 42)):
            query = await person.press("Tea")
            assert query is not None
            begun = asyncio.get_running_loop().time()
            assert await person.notice(query) == NOTHING
            assert asyncio.get_running_loop().time() - begun < HANDLER_TIME / 2
        assert await person.answer() == "Coming up"
        assert len(running.answers()) == 1


async def test_a_handler_that_begins_in_time_shows_its_own_toast(run: Run) -> None:
    router = make_router("Tea")

    @router.on()
    async def tea(ctx: Context) -> None:
        # Longer than a press waits for another update.
        await asyncio.sleep(2 * WAITING_TIME)
        ctx.edit("Coming up", toast="One tea")

    async with run(router) as running:
        person, query = await running.press("Tea")
        assert await person.notice(query) == {**NOTHING, "text": "One tea"}
        assert await person.ask("/menu") == "Menu"
        assert len(running.answers()) == 1


async def test_a_press_that_is_dropped_because_its_chat_floods_the_bot_is_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    storage = MemoryStorage(limits=Limits(run=100_000))
    router = Router(FSM("my_bot", storage=storage, flows=[]))
    proceed = asyncio.Event()
    pressed: list[str] = []

    @router.on(command("menu"))
    async def menu(ctx: Context) -> None:
        ctx.answer("Menu", reply_markup=keyboard([["Tea " + "x" * 40]]))

    @router.on(text())
    async def slow(ctx: Context) -> None:
        await proceed.wait()

    @router.on(callback(re.compile("Tea")))
    async def tea(ctx: Context) -> None:
        pressed.append(ctx.text or "")

    async with polling(router) as running:
        person = running.person()
        await person.ask("/menu")
        try:
            await person.send("hang")
            for _ in range(60):
                await person.send("x" * 4000)
            await until(lambda: "dropped" in caplog.text)
            queries = []
            for _ in range(20):
                query = await person.press("Tea " + "x" * 40)
                assert query is not None
                queries.append(query)
            for query in queries:
                assert await person.notice(query) == NOTHING
        finally:
            proceed.set()
        await until(lambda: storage.perform(Get(storage.address(INBOX, "my_bot"), parts=True)), lambda it: not it.parts)
        assert len(pressed) < 20


async def test_an_answer_to_a_press_that_comes_too_late_for_telegram_is_no_failure(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async with run(make_router("Old")) as running:
        person = running.person()
        await person.ask("/menu")
        description = "Bad Request: query is too old and response timeout expired or query ID is invalid"
        running.bot.refuse(400, description, method="answerCallbackQuery")
        await person.press("Old")
        assert await person.ask("/menu") == "Menu"
        assert len(running.answers()) == 1
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
