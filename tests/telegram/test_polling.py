"""run_polling against the local Bot API: order, errors, restarts, stops."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from examples import registration
from stepwell import Limits, MemoryStorage, Storage, open_storage
from stepwell.botapi import BotAPI, Person
from stepwell.errors import BotUnavailable, InsideLoop, InvalidOption, StorageUnavailable, UsageError
from stepwell.fsm import (
    FSM,
    AnswerRefused,
    Context,
    Flow,
    FSMEvent,
    Router,
    UpdateReceived,
    command,
    keys,
    kind,
    state,
    text,
)
from stepwell.record import INBOX
from stepwell.slot import Slot
from stepwell.storage import Apply
from stepwell.storage.operations import Get
from stepwell.telegram import BotApiError, BotClient, Sender, run_polling, run_polling_sync
from stepwell.telegram.receiving.inbox import Inbox
from stepwell.testing import Clock
from tests.backends import Backend
from tests.until import forever, until


class Count(Flow, name="count"):
    counting = state(to=["counting"])
    default_state = counting


def make_router(storage: Storage) -> Router:
    return Router(FSM("my_bot", storage=storage, flows=[Count]))


class Running:
    """A bot that polls, and its local Bot API."""

    def __init__(self, api: BotAPI, router: Router, options: dict[str, Any]) -> None:
        self.api = api
        self.bot = api.bot("my_bot")
        self.router = router
        self.options = options
        self.task: asyncio.Task[None] | None = None

    def person(self, user: int = 42) -> Person:
        return self.api.chat(self.bot, user)

    async def start(self) -> None:
        started = asyncio.Event()
        self.task = asyncio.create_task(
            run_polling(
                self.router, self.bot.token, api=self.api.url, limits=None, on_start=lambda me: started.set(),
                **self.options,
            )
        )  # fmt: skip
        waiting = asyncio.create_task(started.wait())
        await asyncio.wait((self.task, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()

    async def stop(self) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait((self.task,))


@asynccontextmanager
async def polling(router: Router, **options: Any) -> AsyncIterator[Running]:
    async with BotAPI() as api:
        running = Running(api, router, options)
        await running.start()
        try:
            yield running
        finally:
            await running.stop()


@pytest.mark.every_backend
async def test_a_conversation(backend: Backend) -> None:
    async with polling(registration.make_router(backend.storage())) as running:
        alice = running.person()
        assert await alice.ask("/register") == "What's your name?"
        assert await alice.ask("Alice") == "Got it, Alice! What's your email?"
        assert await alice.ask("alice@example.com") == "Please confirm."
        assert await alice.ask("yes") == "Registered! Welcome, Alice!"


async def test_a_refused_answer_is_logged_and_reported_with_its_chat_update_and_handler(
    caplog: pytest.LogCaptureFixture,
) -> None:
    router = make_router(MemoryStorage())
    reported: list[FSMEvent] = []
    assert router.fsm is not None
    router.fsm.subscribe(reported.append)

    @router.on(text())
    async def greet(ctx: Context) -> None:
        ctx.answer("")
        ctx.answer("Hello", chat_id=-100)
        ctx.answer("Hello")

    async with polling(router) as running:
        alice = running.person()
        running.bot.refuse(403, "Forbidden: bot was kicked from the group chat", chat=-100)
        assert await alice.ask("Hi") == "Hello"
    number = next(event.update_id for event in reported if isinstance(event, UpdateReceived))
    handler = f"{__name__}.{greet.__qualname__}"
    refused = [event for event in reported if isinstance(event, AnswerRefused)]
    assert [(event.chat, event.code, event.description) for event in refused] == [
        (42, 400, "Bad Request: message text is empty"),
        (-100, 403, "Forbidden: bot was kicked from the group chat"),
    ]
    for event in refused:
        assert (event.update_id, event.handler, event.method, event.key) == (number, handler, "sendMessage", (42, 42))
        assert event.update is not None
        assert event.update.text == "Hi"
        assert f"{event.error} (chat {event.chat}, update {number}, handler {handler})" in caplog.text


async def test_a_refused_answer_of_a_timer_is_reported_with_its_chat_and_key(caplog: pytest.LogCaptureFixture) -> None:
    router = make_router(MemoryStorage())
    fsm = router.fsm
    assert fsm is not None
    reported: list[FSMEvent] = []
    fsm.subscribe(reported.append)
    async with polling(router):
        async with fsm.conversation(key=(42, 42)) as ctx:
            ctx.answer("")
    (event,) = [event for event in reported if isinstance(event, AnswerRefused)]
    assert (event.chat, event.key, event.method, event.code) == (42, (42, 42), "sendMessage", 400)
    assert (event.update, event.update_id, event.handler) == (None, None, None)
    assert event.address == fsm.storage.address("my_bot", (42, 42))
    assert "message text is empty (chat 42, key (42, 42))" in caplog.text


async def test_a_slow_handler_delays_no_other_chat_and_answers_of_one_chat_stay_in_order() -> None:
    router = make_router(MemoryStorage())
    proceed = asyncio.Event()

    @router.on(text())
    async def echo(ctx: Context) -> None:
        if ctx.text == "slow":
            await proceed.wait()
        ctx.answer(f"{ctx.text} 1")
        ctx.answer(f"{ctx.text} 2")

    async with polling(router) as running:
        alice, bob = running.person(42), running.person(43)
        await alice.send("slow")
        await alice.send("quick")
        for number in range(3):
            assert await bob.ask(str(number)) == f"{number} 1"
            assert await bob.answer() == f"{number} 2"
        assert alice.last is None
        proceed.set()
        assert [await alice.answer() for _ in range(4)] == ["slow 1", "slow 2", "quick 1", "quick 2"]


async def test_a_flood_in_one_chat_stops_no_other_chat() -> None:
    router = make_router(MemoryStorage())
    proceed = asyncio.Event()

    @router.on(text())
    async def echo(ctx: Context) -> None:
        if ctx.text == "0":
            await proceed.wait()
        ctx.answer(f"got {ctx.text}")

    async with polling(router, in_flight=20) as running:
        alice, bob = running.person(42), running.person(43)
        for number in range(150):
            await alice.send(str(number))
        try:
            assert await bob.ask("hello") == "got hello"
            assert alice.last is None
        finally:
            proceed.set()
        assert [await alice.answer() for _ in range(150)] == [f"got {number}" for number in range(150)]


async def test_a_backlog_that_fills_the_inbox_is_dropped_with_a_warning_and_stops_no_other_chat(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limit = 400_000
    storage = MemoryStorage(limits=Limits(run=limit))
    router = make_router(storage)
    proceed = asyncio.Event()

    @router.on(text())
    async def echo(ctx: Context) -> None:
        if ctx.text == "hang":
            await proceed.wait()
        ctx.answer(f"got {ctx.text}"[:100])

    def warnings() -> list[str]:
        return [each.getMessage() for each in caplog.records if "dropped" in each.getMessage()]

    async with polling(router) as running:
        alice, bob, carol = running.person(42), running.person(43), running.person(44)
        for flooding in (alice, carol):
            await flooding.send("hang")
            for number in range(150):
                await flooding.send(f"{number} " + "x" * 4000)
        try:
            assert await bob.ask("hello") == "got hello"
            stored = await storage.perform(Get(storage.address(INBOX, "my_bot"), parts=True))
            size = sum(map(len, stored.parts.values()))
            assert limit / 4 < size < limit / 2
            assert [line.partition("of chat ")[2][:3] for line in warnings()] == ["42 ", "44 "]
        finally:
            proceed.set()
        await until(lambda: storage.perform(Get(storage.address(INBOX, "my_bot"), parts=True)), lambda it: not it.parts)
        answered = 0
        for flooding in (alice, carol):
            answers = [each["text"].split()[1] for each in flooding.messages if each["from"]["is_bot"]]
            # The oldest updates are kept, in their order.
            assert answers == ["hang", *map(str, range(len(answers) - 1))]
            assert len(answers) > 10
            answered += len(answers)
    # The first warning of each chat came at once. A second one has the rest, when its queue is empty.
    assert len(warnings()) == 4
    assert answered + sum(int(line.split()[0]) for line in warnings()) == 302


async def test_fetching_stops_while_too_many_chats_have_unfinished_updates() -> None:
    router = make_router(MemoryStorage())
    proceed = asyncio.Event()
    running_handlers = []

    @router.on(text())
    async def wait(ctx: Context) -> None:
        running_handlers.append(ctx.key)
        await proceed.wait()
        ctx.answer("done")

    async with polling(router, in_flight=2) as running:
        people = [running.person(42 + number) for number in range(3)]
        await people[0].send("one")
        await people[0].send("two")
        await until(lambda: running_handlers)
        await people[1].send("one")
        await until(lambda: len(running_handlers) == 2)
        await people[2].send("one")
        proceed.set()
        assert [await person.answer() for person in people] == ["done"] * 3


async def test_a_failing_handler_is_logged_without_content_and_its_update_is_not_handled_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    storage = MemoryStorage()
    router = make_router(storage)
    seen = []

    @router.on(text())
    async def fail(ctx: Context) -> None:
        seen.append(ctx.text)
        if ctx.text == "secret":
            raise ValueError("broken handler")
        ctx.answer("fine")

    async with polling(router) as running:
        alice = running.person()
        await alice.send("secret")
        assert await alice.ask("hello") == "fine"
        await running.stop()
        await running.start()
        assert await alice.ask("again") == "fine"
    assert seen == ["secret", "hello", "again"]
    record = next(each for each in caplog.records if each.levelno == logging.ERROR)
    assert "(key (42, 42))" in record.getMessage()
    assert "broken handler" in caplog.text
    assert "secret" not in caplog.text


async def test_a_handler_whose_own_client_gets_no_answer_is_not_called_again(caplog: pytest.LogCaptureFixture) -> None:
    router = make_router(MemoryStorage())
    called = []

    @router.on(command("charge"))
    async def charge(ctx: Context) -> None:
        called.append(ctx.text)
        async with BotClient("1:other", api="http://127.0.0.1:9", patience=0.05) as client:
            await client.call("sendMessage", chat_id=99, text="a note")

    @router.on(text())
    async def answer(ctx: Context) -> None:
        ctx.answer("fine")

    async with polling(router) as running:
        alice = running.person()
        await alice.send("/charge")
        assert await alice.ask("hello") == "fine"
    assert called == ["/charge"]
    assert "(key (42, 42))" in caplog.text


async def test_a_handler_that_blocks_for_longer_than_its_lease_is_called_a_few_times_and_given_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    storage = MemoryStorage(clock=clock)
    router = Router(FSM("my_bot", storage=storage, flows=[], lease=30))
    called = []

    @router.on(command("pay"))
    async def pay(ctx: Context) -> None:
        called.append(ctx.text)
        ctx.update_data(paid=True)
        # The handler blocks, so the lease cannot be renewed, and another worker writes the record.
        clock.advance(31)
        address = storage.address("my_bot", (42, 42))
        await storage.perform(Apply(address, storage.change(address, set=storage.seal(address).fields({"other": 1}))))

    @router.on(text())
    async def answer(ctx: Context) -> None:
        ctx.answer(f"paid: {ctx.data.get('paid')}")

    async with polling(router) as running:
        alice = running.person()
        await alice.send("/pay")
        assert await alice.ask("hello") == "paid: None"
    assert called == ["/pay"] * 3
    errors = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "expired before the commit" in caplog.text
    assert router.fsm is not None
    assert (router.fsm.received, router.fsm.failed, router.fsm.retried) == (2, 1, 2)


async def test_a_handler_that_changes_data_after_forget_is_not_called_again() -> None:
    storage = MemoryStorage()
    router = make_router(storage)
    called = []

    @router.on(command("forgetme"))
    async def forget(ctx: Context) -> None:
        called.append(ctx.text)
        assert router.fsm is not None
        await router.fsm.forget(user=42)
        ctx.update_data(forgotten=True)

    @router.on(text())
    async def answer(ctx: Context) -> None:
        ctx.update_data(text=ctx.text)
        ctx.answer(str(ctx.data))

    async with polling(router) as running:
        alice = running.person()
        assert await alice.ask("one") == "{'text': 'one'}"
        await alice.send("/forgetme")
        assert await alice.ask("two") == "{'text': 'two'}"
    assert called == ["/forgetme"]


async def test_an_update_whose_record_another_process_replaces_is_handled_again() -> None:
    storage = MemoryStorage()
    router = make_router(storage)
    called = []

    @router.on(text())
    async def answer(ctx: Context) -> None:
        called.append(ctx.text)
        if len(called) == 1:
            await storage.set_data("my_bot", ctx.key, {"from": "an operator"})
        ctx.update_data(text=ctx.text)
        ctx.answer(str(ctx.data))

    async with polling(router) as running:
        assert await running.person().ask("one") == "{'from': 'an operator', 'text': 'one'}"
    assert called == ["one", "one"]
    assert router.fsm is not None
    assert (router.fsm.received, router.fsm.failed, router.fsm.retried) == (1, 0, 1)


@pytest.mark.parametrize("own", [True, False])
async def test_answers_are_sent_once_the_bot_api_is_back(own: bool) -> None:
    """Also those that the router itself sends."""
    router = make_router(MemoryStorage())
    called = []

    class Away(BotClient):
        failures = 0

        async def call(self, method: str, /, **params: Any) -> Any:
            if method == "sendMessage" and params["text"] == "second" and self.failures < 5:
                self.failures += 1
                raise BotUnavailable(method, 502, "Bad Gateway")
            return await super().call(method, **params)

    @router.on(text())
    async def answer(ctx: Context) -> None:
        called.append(ctx.text)
        ctx.answer("first")
        ctx.answer("second")

    async with BotAPI() as api:
        running = Running(api, router, {})
        alice = running.person()
        async with Away(running.bot.token, api=api.url) as client:
            running.options["client"] = client
            if own:
                router.send = Sender(client).send
            await running.start()
            await alice.send("hi")
            assert [await alice.answer(), await alice.answer(timeout=30)] == ["first", "second"]
            await running.stop()
        assert client.failures == 5
        assert called == ["hi"]
        assert [each["text"] for each in alice.messages if each["from"]["is_bot"]] == ["first", "second"]


async def test_a_refused_call_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    router = make_router(MemoryStorage())
    refused = []

    @router.on(text())
    async def answer(ctx: Context) -> None:
        ctx.answer("first", parse_mode="Nonsense")
        ctx.answer("second")

    async with polling(router, on_send_error=lambda call, error: refused.append((call["text"], error.code))) as running:
        alice = running.person()
        assert await alice.ask("hello") == "second"
        assert refused == [("first", 400)]


async def test_a_user_who_blocks_the_bot_delays_nobody() -> None:
    router = make_router(MemoryStorage())
    failed = asyncio.Event()
    proceed = asyncio.Event()

    @router.on(command("wait"))
    async def wait(ctx: Context) -> None:
        await proceed.wait()
        ctx.answer("you are back")

    @router.on(text())
    async def echo(ctx: Context) -> None:
        ctx.answer("hello")

    def on_send_error(call: dict[str, Any], error: Exception) -> None:
        assert type(error).__name__ == "BotBlocked"
        failed.set()

    async with polling(router, on_send_error=on_send_error) as running:
        alice, bob = running.person(42), running.person(43)
        await alice.send("/wait")
        await alice.block()
        proceed.set()
        await asyncio.wait_for(failed.wait(), 30)
        assert await bob.ask("hi") == "hello"


async def test_a_limited_chat_delays_no_other_chat() -> None:
    router = make_router(MemoryStorage())

    @router.on(text())
    async def echo(ctx: Context) -> None:
        ctx.answer(f"you said {ctx.text}")

    async with polling(router) as running:
        alice, bob = running.person(42), running.person(43)
        running.bot.limit(2, method="sendMessage", chat=42)
        await alice.send("one")
        await alice.send("two")
        assert await bob.ask("hello") == "you said hello"
        assert alice.last is None
        assert [await alice.answer(timeout=30), await alice.answer()] == ["you said one", "you said two"]


async def test_updates_of_one_key_in_two_chats_are_answered_in_order() -> None:
    router = Router(FSM("my_bot", storage=MemoryStorage(), flows=[Count], key=keys.User()))
    handled = []

    @router.on(text())
    async def echo(ctx: Context) -> None:
        handled.append(ctx.text)
        ctx.start_flow(Count)
        ctx.answer(f"you said {ctx.text}")

    async with polling(router) as running:
        alice = running.person(42)
        group = alice.group(-5)
        running.bot.limit(1, method="sendMessage", chat=42)
        await alice.send("one")
        await until(lambda: handled == ["one"])
        await group.send("two")
        assert await group.answer(timeout=30) == "you said two"
        # The answer to the first update was sent before the second one was handled.
        assert alice.last == "you said one"


class Away(MemoryStorage):
    """A storage that can be unavailable."""

    away = False

    async def perform(self, operation: Any) -> Any:
        if self.away:
            raise StorageUnavailable("the storage is switched off", sent=False)
        return await super().perform(operation)


async def test_updates_wait_for_a_storage_that_is_away(caplog: pytest.LogCaptureFixture) -> None:
    storage = Away()
    async with polling(registration.make_router(storage)) as running:
        alice = running.person()
        assert await alice.ask("/register") == "What's your name?"
        storage.away = True
        await alice.send("Alice")
        await until(lambda: "updates wait for the storage" in caplog.text)
        assert alice.last == "What's your name?"
        storage.away = False
        assert await alice.answer() == "Got it, Alice! What's your email?"


async def remind(ctx: Context) -> None:
    ctx.answer("Are you there?")
    ctx.clear_flow()


class Asking(Flow, name="asking"):
    name = state(to=[], timeout=60, on_timeout=remind)
    default_state = name


@pytest.mark.parametrize("stored", [True, False])
async def test_a_timer_does_not_overtake_the_answer_to_an_update_of_a_killed_process(stored: bool) -> None:
    clock = Clock()
    storage = MemoryStorage(clock=clock)
    router = Router(FSM("my_bot", storage=storage, flows=[Asking]))

    @router.on(text())
    async def handler(ctx: Context) -> None:
        ctx.start_flow(Asking)
        ctx.answer("Your name?")

    async with BotAPI() as api, storage:
        running = Running(api, router, {})
        alice = running.person()
        await alice.send("hi")
        # The process was killed before it sent the answer.
        async with BotClient(running.bot.token, api=api.url) as client:
            (update,) = await client.call("getUpdates")
            router.fsm.expect_ticks()  # type: ignore[union-attr]
            await router.handle(update)
            if stored:
                await Inbox(storage, "my_bot").keep([update])
                await client.call("getUpdates", offset=update["update_id"] + 1, timeout=0)
        clock.advance(61)
        await running.start()
        assert [await alice.answer(), await alice.answer()] == ["Your name?", "Are you there?"]
        await running.stop()


@pytest.mark.parametrize("how", ["signals", "cancelled twice"])
async def test_an_update_that_was_being_handled_is_handled_after_a_restart(how: str) -> None:
    storage = MemoryStorage()
    router = make_router(storage)
    begun, ended = asyncio.Event(), False

    @router.on(text())
    async def handler(ctx: Context) -> None:
        begun.set()
        if not ended:
            await forever()
        ctx.answer(f"got {ctx.text}")

    async with polling(router) as running:
        alice = running.person()
        await alice.send("one")
        await alice.send("two")
        await begun.wait()
        await until(lambda: not running.bot.updates.pending or len(running.bot.updates.pending) < 2)
        assert running.task is not None
        if how == "signals":
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.05)
            os.kill(os.getpid(), signal.SIGINT)
        else:
            running.task.cancel()
            running.task.cancel()
        await asyncio.wait_for(asyncio.wait((running.task,)), 30)
        ended = True
        await running.start()
        assert [await alice.answer(), await alice.answer()] == ["got one", "got two"]
    async with storage:
        assert await Inbox(storage, "my_bot").load() == []


async def test_a_signal_lets_handlers_finish_and_stops() -> None:
    router = make_router(MemoryStorage())
    begun, proceed = asyncio.Event(), asyncio.Event()

    @router.on(text())
    async def handler(ctx: Context) -> None:
        begun.set()
        await proceed.wait()
        ctx.answer("done")

    async with polling(router) as running:
        alice = running.person()
        await alice.send("go")
        await begun.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.05)
        assert running.task is not None
        assert not running.task.done()
        proceed.set()
        await asyncio.wait_for(running.task, 30)
        assert alice.last == "done"


async def test_a_signal_lets_the_answer_of_a_timer_finish(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    router = Router(FSM("my_bot", storage=MemoryStorage(clock=clock), flows=[Asking]))

    @router.on(text())
    async def handler(ctx: Context) -> None:
        ctx.start_flow(Asking)
        ctx.answer("Your name?")

    async with polling(router) as running:
        alice = running.person()
        assert await alice.ask("hi") == "Your name?"
        running.bot.limit(1, method="sendMessage", chat=42)
        clock.advance(61)
        await until(lambda: "Telegram asks to wait" in caplog.text)
        os.kill(os.getpid(), signal.SIGTERM)
        assert running.task is not None
        await asyncio.wait_for(running.task, 30)
        assert alice.last == "Are you there?"


@pytest.mark.parametrize("only_the_inbox", [False, True])
async def test_a_signal_stops_while_the_storage_is_away(only_the_inbox: bool, caplog: pytest.LogCaptureFixture) -> None:
    class PartlyAway(Away):
        async def perform(self, operation: Any) -> Any:
            if only_the_inbox and operation.address.namespace != INBOX:
                return await MemoryStorage.perform(self, operation)
            return await super().perform(operation)

    storage = PartlyAway()
    router = make_router(storage)
    proceed = asyncio.Event()

    @router.on(text())
    async def handler(ctx: Context) -> None:
        if ctx.text == "first":
            await proceed.wait()
        ctx.answer(f"got {ctx.text}")

    async with polling(router) as running:
        alice, bob = running.person(42), running.person(43)
        await alice.send("first")
        await until(lambda: not running.bot.updates.pending)
        storage.away = True
        proceed.set()
        await bob.send("second")
        await until(lambda: "updates wait for the storage" in caplog.text)
        os.kill(os.getpid(), signal.SIGTERM)
        assert running.task is not None
        done, _ = await asyncio.wait((running.task,), timeout=30)
        storage.away = False
        assert done
        await running.start()
        assert await bob.answer() == "got second"
        assert await alice.answer() == "got first"


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_stop_does_not_wait_for_a_conversation_that_is_held(tmp_path: Path, elsewhere: bool) -> None:
    url = f"sqlite:///{tmp_path}/bot.db"
    storage, other = open_storage(url), open_storage(url)
    router = make_router(storage)

    @router.on(text())
    async def handler(ctx: Context) -> None:
        ctx.answer(f"got {ctx.text}")

    async with storage, other, polling(router) as running:
        alice = running.person()
        async with Slot(other if elsewhere else storage, "my_bot", (42, 42)):
            await alice.send("first")
            await until(lambda: not running.bot.updates.pending)
            os.kill(os.getpid(), signal.SIGTERM)
            assert running.task is not None
            await asyncio.wait_for(running.task, 5)
        assert alice.last is None
        # The stopped bot has left no claim.
        async with asyncio.timeout(5), Slot(other, "my_bot", (42, 42)):
            pass
        # It is in the inbox.
        await running.start()
        assert await alice.answer() == "got first"


class Strange(BaseException):
    pass


@pytest.mark.parametrize("error", [Strange, SystemExit])
async def test_no_exception_of_a_handler_ends_the_bot(error: type[BaseException]) -> None:
    router = make_router(MemoryStorage())

    @router.on(text("fail"))
    async def fail(ctx: Context) -> None:
        raise error("broken handler")

    @router.on(text())
    async def answer(ctx: Context) -> None:
        ctx.answer("fine")

    async with polling(router) as running:
        alice = running.person()
        await alice.send("fail")
        assert await alice.ask("hello") == "fine"


async def test_one_signal_stops_all_pollers_of_a_process() -> None:
    async with polling(make_router(MemoryStorage())) as one, polling(make_router(MemoryStorage())) as other:
        os.kill(os.getpid(), signal.SIGTERM)
        assert one.task is not None
        assert other.task is not None
        assert not (await asyncio.wait((one.task, other.task), timeout=30))[1]


class StrangeReplies(BotClient):
    """Gets replies that no Bot API server sends, before the usual ones."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.strange: list[Any] = [
            None,
            {"update_id": 1},
            [None, "x", {}, {"update_id": "1"}],
            [{"update_id": 0, "message": value} for value in (None, [], {"chat": {"id": []}}, {"chat": {"id": {}}})],
            [{"update_id": 0, "message": {"chat": {"id": 1}, "from": {"id": [1]}}, "poll": 5}],
        ]

    async def call(self, method: str, /, **params: Any) -> Any:
        if method == "getUpdates" and self.strange:
            return self.strange.pop(0)
        return await super().call(method, **params)


async def test_strange_replies_of_a_server_do_not_end_the_bot() -> None:
    async with BotAPI() as api:
        running = Running(api, registration.make_router(MemoryStorage()), {})
        async with StrangeReplies(running.bot.token, api=api.url) as client:
            running.options["client"] = client
            await running.start()
            assert await running.person().ask("/register") == "What's your name?"
            assert not client.strange
            await running.stop()


async def test_a_second_process_ends_the_first_with_one_sentence() -> None:
    async with polling(make_router(MemoryStorage())) as running:
        other = asyncio.create_task(run_polling(make_router(MemoryStorage()), running.bot.token, api=running.api.url))
        assert running.task is not None
        done, _ = await asyncio.wait((running.task, other), timeout=30, return_when=asyncio.FIRST_COMPLETED)
        with pytest.raises(UsageError, match="another process polls with this bot token"):
            done.pop().result()
        other.cancel()
        await asyncio.wait((other,))


async def test_polling_while_a_webhook_is_set_is_refused() -> None:
    async with BotAPI() as api:
        bot = api.bot("my_bot")
        async with BotClient(bot.token, api=api.url) as client:
            await client.call("setWebhook", url="http://127.0.0.1:1/hook")
        with pytest.raises(UsageError, match="has a webhook"):
            await run_polling(make_router(MemoryStorage()), bot.token, api=api.url)


async def test_reactions_are_requested_if_a_handler_waits_for_them(caplog: pytest.LogCaptureFixture) -> None:
    router, reactions = make_router(MemoryStorage()), list[str]()

    @router.on(kind("message_reaction"))
    async def reacted(ctx: Context) -> None:
        reactions.append(ctx.update.event["new_reaction"][0]["emoji"])

    @router.on(text())
    async def greet(ctx: Context) -> None:
        ctx.answer("Hello!")

    async with polling(router) as running:
        alice = running.person()
        assert await alice.ask("Hi") == "Hello!"
        await alice.react("👍")
        await until(lambda: reactions)
    assert reactions == ["👍"]
    assert not caplog.messages
    async with polling(router, allowed_updates=["message"]) as running:
        assert await running.person().ask("Hi") == "Hello!"
    assert caplog.messages == ["a handler waits for message_reaction, which allowed_updates does not name"]


@pytest.mark.parametrize("allowed", ["message", 5, [5]])
async def test_allowed_updates_must_be_a_list_of_texts(allowed: Any) -> None:
    with pytest.raises(InvalidOption, match="allowed_updates takes a list of kinds"):
        await run_polling(make_router(MemoryStorage()), "123:abc", allowed_updates=allowed)


async def test_wrong_arguments() -> None:
    async with BotAPI() as api:
        with pytest.raises(BotApiError, match="the token is not valid"):
            await run_polling(make_router(MemoryStorage()), "123:nothing", api=api.url)
    with pytest.raises(InvalidOption, match="needs a router with a machine"):
        await run_polling(Router(), "123:abc")
    nothing: Any = None
    with pytest.raises(InvalidOption, match="needs a router with a machine"):
        await run_polling(nothing, "123:abc")
    for wrong in (0, "x", None, 1.5):
        with pytest.raises(InvalidOption, match="in_flight must be at least 1"):
            await run_polling(make_router(MemoryStorage()), "123:abc", in_flight=wrong)  # type: ignore[arg-type]
    with pytest.raises(InsideLoop):
        run_polling_sync(make_router(MemoryStorage()), "123:abc")


@pytest.mark.parametrize("own", [None, 50_000])
def test_a_process_that_only_polls_collects_garbage_less_often(own: int | None) -> None:
    program = """
import gc, sys
from stepwell.telegram.receiving import polling
async def shown(router, token):
    print(gc.get_threshold()[0], gc.get_freeze_count() > 1000)
polling.run_polling = shown
own = int(sys.argv[1])
if own:
    gc.set_threshold(own)
polling.run_polling_sync(None)
"""
    shown = subprocess.run([sys.executable, "-c", program, str(own or 0)], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == (["10000", "True"] if own is None else [str(own), "False"])
