"""The webhook application, served for real, with updates from the local Bot API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from examples import registration
from stepwell import MemoryStorage
from stepwell.botapi import BotAPI, Person
from stepwell.errors import BotUnavailable, InvalidOption
from stepwell.fsm import FSM, Context, Router, command, text
from stepwell.log import Log
from stepwell.storage import Apply
from stepwell.telegram import BotClient, webhook
from stepwell.testing import Clock, FaultyStorage
from stepwell.web.serving import Serving
from tests.backends import Backend
from tests.constants import Constants
from tests.until import until

SECRET = "s3cret"


class Served:
    """A webhook on a port of its own, registered at a local Bot API."""

    def __init__(self, api: BotAPI, router: Router, options: dict[str, Any]) -> None:
        self.api = api
        self.bot = api.bot("my_bot")
        self.app = webhook(router, secret_token=SECRET, token=self.bot.token, api=api.url, limits=None, **options)
        self.url = ""

    def person(self, user: int = 42) -> Person:
        return self.api.chat(self.bot, user)

    async def post(self, body: bytes, secret: str = SECRET, method: str = "POST") -> int:
        async with httpx.AsyncClient(trust_env=False) as http:
            headers = {"X-Telegram-Bot-Api-Secret-Token": secret}
            return (await http.request(method, self.url, content=body, headers=headers)).status_code


@asynccontextmanager
async def serving(router: Router, **options: Any) -> AsyncIterator[Served]:
    async with BotAPI(webhook_pause=0.05) as api:
        served = Served(api, router, options)
        server = Serving(served.app, name="webhook")
        async with served.app:
            port = await server.start("127.0.0.1", 0)
            served.url = f"http://127.0.0.1:{port}/"
            try:
                async with BotClient(served.bot.token, api=api.url) as client:
                    await client.call("setWebhook", url=served.url, secret_token=SECRET)
                yield served
            finally:
                await server.stop()


def make_router(storage: Any) -> Router:
    return Router(FSM("my_bot", storage=storage, flows=[]))


async def test_a_conversation(backend: Backend) -> None:
    async with serving(registration.make_router(backend.storage())) as served:
        alice = served.person()
        assert await alice.ask("/register") == "What's your name?"
        assert await alice.ask("Alice") == "Got it, Alice! What's your email?"


async def test_requests_that_are_not_telegrams_are_refused_and_updates_that_cannot_be_read_are_set_aside() -> None:
    storage = MemoryStorage()
    router = make_router(storage)
    handled = []

    @router.on()
    async def handler(ctx: Context) -> None:
        handled.append(ctx.update)

    async with serving(router, max_body=1000) as served:
        update = b'{"update_id": 1, "message": {"message_id": 1, "chat": {"id": 42}, "from": {"id": 42}}}'
        assert await served.post(update, secret="wrong") == 403
        assert await served.post(update, secret="") == 403
        assert await served.post(update, method="GET") == 405
        # With the secret they are Telegram's, which would repeat them for a day.
        unreadable = (b" " * 1001, b"", b"{", b"[]", b'"text"', b'{"update_id": "1"}', b"[" * 900)
        for body in unreadable:
            assert await served.post(body) == 200
        assert handled == []
        kept = await Log(storage, "my_bot", "updates set aside").read()
        assert [entry.value["update"].encode() for entry in kept] == list(unreadable)
        assert await served.post(update) == 200
        assert len(handled) == 1


async def test_a_wrong_secret_is_refused_before_the_body_is_read() -> None:
    async with serving(make_router(MemoryStorage())) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(served.url).port)
        headers = b"Host: a\r\nX-Telegram-Bot-Api-Secret-Token: wrong\r\nContent-Length: 9\r\n"
        writer.write(b"POST / HTTP/1.1\r\n" + headers + b"\r\n")
        async with asyncio.timeout(20):
            assert (await reader.readline()).startswith(b"HTTP/1.1 403")
        writer.close()


async def test_a_failing_handler_and_a_refused_call_are_final() -> None:
    router = make_router(MemoryStorage())
    handled = []

    @router.on(command("fail"))
    async def fail(ctx: Context) -> None:
        handled.append(ctx.text)
        raise ValueError("broken handler")

    @router.on(command("refuse"))
    async def refuse(ctx: Context) -> None:
        handled.append(ctx.text)
        ctx.answer("first", parse_mode="Nonsense")
        ctx.answer("second")

    @router.on(text())
    async def echo(ctx: Context) -> None:
        ctx.answer("hello")

    async with serving(router) as served:
        alice = served.person()
        await alice.send("/fail")
        assert await alice.ask("/refuse") == "second"
        assert await alice.ask("hi") == "hello"
        assert handled == ["/fail", "/refuse"]


async def test_an_update_comes_again_while_the_storage_is_away() -> None:
    storage = FaultyStorage(patience=0.01)
    async with serving(registration.make_router(storage)) as served:
        alice = served.person()
        assert await alice.ask("/register") == "What's your name?"
        storage.before = range(1 << 30)
        await alice.send("Alice")
        body = b'{"update_id": 99, "message": {"message_id": 1, "chat": {"id": 7}, "from": {"id": 7}, "text": "x"}}'
        assert await served.post(body) == 503
        storage.before = ()
        assert await alice.answer() == "Got it, Alice! What's your email?"
        fsm = served.app.router.fsm
        assert fsm is not None
        # The first update, Alice's second, and the one that Telegram does not send again.
        assert (fsm.received, fsm.failed) == (3, 0)
        assert fsm.retried >= 2


async def test_a_slow_handler_delays_no_other_chat() -> None:
    router = make_router(MemoryStorage())
    proceed = asyncio.Event()

    @router.on(command("wait"))
    async def wait(ctx: Context) -> None:
        await proceed.wait()
        ctx.answer("at last")

    @router.on(text())
    async def echo(ctx: Context) -> None:
        ctx.answer("hello")

    async with serving(router) as served:
        alice, bob = served.person(42), served.person(43)
        await alice.send("/wait")
        assert await bob.ask("hi") == "hello"
        proceed.set()
        assert await alice.answer() == "at last"


async def test_a_repeated_delivery_waits_for_the_first_and_is_not_answered_again() -> None:
    router = make_router(MemoryStorage())
    proceed = asyncio.Event()
    handled = []

    @router.on(text())
    async def slow(ctx: Context) -> None:
        handled.append(ctx.text)
        await proceed.wait()
        ctx.answer("done")

    async with serving(router) as served:
        alice = served.person()
        update = {"message_id": 9, "date": 0, "from": {"id": 42}, "chat": {"id": 42, "type": "private"}, "text": "x"}
        body = json.dumps({"update_id": 77, "message": update}).encode()
        first = asyncio.create_task(served.post(body))
        await until(lambda: handled)
        second = asyncio.create_task(served.post(body))
        proceed.set()
        assert (await first, await second, await served.post(body)) == (200, 200, 200)
        assert [message["text"] for message in alice.messages if message["from"]["is_bot"]] == ["done"]
    assert handled == ["x"]


async def test_a_limited_chat_and_a_blocked_bot_delay_no_other_chat() -> None:
    router = make_router(MemoryStorage())
    blocked: list[Any] = []

    @router.on(text())
    async def echo(ctx: Context) -> None:
        ctx.answer(f"you said {ctx.text}")

    async with serving(router, on_send_error=lambda call, error: blocked.append(type(error).__name__)) as served:
        alice, bob, carol = served.person(42), served.person(43), served.person(44)
        served.bot.limit(2, method="sendMessage", chat=42)
        await alice.send("hi")
        await carol.block()
        body = {"message_id": 9, "date": 0, "from": {"id": 44}, "chat": {"id": 44, "type": "private"}, "text": "x"}
        assert await served.post(json.dumps({"update_id": 78, "message": body}).encode()) == 200
        assert blocked == ["BotBlocked"]
        assert await bob.ask("hello") == "you said hello"
        assert alice.last is None
        assert await alice.answer(timeout=30) == "you said hi"


async def test_the_lifespan_opens_and_closes_the_machine() -> None:
    router = registration.make_router(MemoryStorage())
    app = webhook(router, secret_token=SECRET, token="123:abc")
    received: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    sent: asyncio.Queue[Any] = asyncio.Queue()
    running = asyncio.create_task(app({"type": "lifespan"}, received.get, sent.put))
    await received.put({"type": "lifespan.startup"})
    assert (await sent.get())["type"] == "lifespan.startup.complete"
    assert router.fsm is not None
    assert router.fsm.storage.is_open
    await received.put({"type": "lifespan.shutdown"})
    assert (await sent.get())["type"] == "lifespan.shutdown.complete"
    await running
    assert not router.fsm.storage.is_open


async def test_the_lifespan_reports_any_error_of_the_start() -> None:
    class Broken(MemoryStorage):
        async def open(self) -> None:
            raise ValueError("no port in the URL")

    app = webhook(make_router(Broken()), secret_token=SECRET, token="123:abc")
    received: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    sent: asyncio.Queue[Any] = asyncio.Queue()
    await received.put({"type": "lifespan.startup"})
    await app({"type": "lifespan"}, received.get, sent.put)
    assert await sent.get() == {"type": "lifespan.startup.failed", "message": "ValueError: no port in the URL"}


def test_wrong_arguments() -> None:
    with pytest.raises(InvalidOption, match="needs a router with a machine"):
        webhook(Router(), secret_token=SECRET, token="123:abc")
    with pytest.raises(InvalidOption, match="secret_token must be 1 to 256 characters"):
        webhook(make_router(MemoryStorage()), secret_token="", token="123:abc")
    nothing: Any = None
    with pytest.raises(InvalidOption, match="secret_token must be 1 to 256 characters"):
        webhook(make_router(MemoryStorage()), secret_token=nothing, token="123:abc")
    with pytest.raises(InvalidOption, match="needs a router with a machine"):
        webhook(nothing, secret_token=SECRET, token="123:abc")


async def test_other_frameworks_may_pass_a_missing_header_and_a_body_as_text() -> None:
    async with webhook(make_router(MemoryStorage()), secret_token=SECRET, token="123:abc") as app:
        assert await app.handle(None, b"{}") == 403
        assert await app.handle(SECRET, "{}") == 200
        assert await app.handle(SECRET, '{"update_id": 1}') == 200
        parsed: Any = {"update_id": 1}
        with pytest.raises(InvalidOption, match="takes the body as bytes, got dict"):
            await app.handle(SECRET, parsed)


# The order of a chat


class Interrupted(BotClient):
    """A client whose Bot API can be unavailable, and that notes the texts it has sent."""

    away = False

    def __init__(self) -> None:
        super().__init__("123:abc", api="http://127.0.0.1:9")
        self.sent: list[str] = []

    async def call(self, method: str, /, **params: Any) -> Any:
        # The other tasks run meanwhile.
        await asyncio.sleep(0.002)
        if self.away:
            raise BotUnavailable(method, 502, "Bad Gateway")
        if method != "answerCallbackQuery":
            self.sent.append(params["text"])


def message(number: int, text: str, chat: int = 42) -> bytes:
    inside = {"message_id": number, "date": 0, "from": {"id": 42}, "chat": {"id": chat, "type": "private"}}
    return json.dumps({"update_id": number, "message": {**inside, "text": text}}).encode()


def button(number: int, data: str) -> bytes:
    pressed = {"message_id": 1, "date": 1, "chat": {"id": 42, "type": "private"}}
    query = {"id": "7", "from": {"id": 42}, "message": pressed, "data": data, "chat_instance": "1"}
    return json.dumps({"update_id": number, "callback_query": query}).encode()


def counting_router(storage: Any = None, *, changes: bool = True) -> tuple[Router, list[str]]:
    router = make_router(MemoryStorage() if storage is None else storage)
    handled: list[str] = []

    @router.on()
    async def answer(ctx: Context) -> None:
        said = ctx.text or ctx.update.callback_data
        handled.append(said)
        if changes:
            ctx.update_data(n=ctx.data.get("n", 0) + 1)
        ctx.answer(f"{said} 1")
        ctx.answer(f"{said} 2")

    return router, handled


async def test_updates_of_one_chat_are_answered_one_after_the_other_in_their_order() -> None:
    router, _ = counting_router()
    client = Interrupted()
    async with webhook(router, secret_token=SECRET, client=client) as app:
        bodies = [button(number, str(number)) if number % 2 else message(number, str(number)) for number in range(1, 7)]
        assert await asyncio.gather(*(app.handle(SECRET, body) for body in bodies)) == [200] * 6
        assert not app._last
    assert client.sent == [f"{number} {part}" for number in range(1, 7) for part in (1, 2)]


@pytest.mark.parametrize("changes", [True, False])
@pytest.mark.parametrize("first", [0, 1])
async def test_no_answer_is_lost_while_the_bot_api_is_unavailable(changes: bool, first: int) -> None:
    router, handled = counting_router(changes=changes)
    client = Interrupted()
    bodies = [message(1, "message"), button(2, "button")]
    async with webhook(router, secret_token=SECRET, client=client) as app:
        client.away = True
        # The second one waits for the first. It is not handled, or the record would forget the answers to the first.
        assert await asyncio.gather(*(app.handle(SECRET, body) for body in bodies)) == [503, 503]
        assert handled == ["message"]
        assert await app.handle(SECRET, bodies[first]) == 503
        client.away = False
        # Telegram sends them again, in any order.
        again = [bodies[first], bodies[1 - first]]
        assert await asyncio.gather(*(app.handle(SECRET, body) for body in again)) == [200, 200]
        assert not app._unanswered
    assert handled == ["message", "button"]
    assert client.sent == ["message 1", "message 2", "button 1", "button 2"]


async def test_answers_that_were_sent_before_an_outage_are_not_repeated_after_it() -> None:
    class Breaking(Interrupted):
        async def call(self, method: str, /, **params: Any) -> Any:
            await super().call(method, **params)
            self.away = not self.sent[1:]

    router, handled = counting_router()
    client = Breaking()
    async with webhook(router, secret_token=SECRET, client=client) as app:
        assert await app.handle(SECRET, message(1, "one")) == 503
        client.away = False
        assert await app.handle(SECRET, message(1, "one")) == 200
    assert (handled, client.sent) == (["one"], ["one 1", "one 2"])


async def test_answers_are_not_repeated_after_an_outage_with_many_updates(constants: Constants) -> None:
    constants(webhook_remembered=10)
    router, handled = counting_router()
    client = Interrupted()
    bodies = [message(number, str(number), chat=number) for number in range(1, 31)]
    async with webhook(router, secret_token=SECRET, client=client) as app:
        client.away = True
        assert await asyncio.gather(*(app.handle(SECRET, body) for body in bodies)) == [503] * 30
        client.away = False
        assert await asyncio.gather(*(app.handle(SECRET, body) for body in bodies)) == [200] * 30
        assert not app._unanswered
        for number in range(100, 130):
            assert await app.handle(SECRET, message(number, "later", chat=number)) == 200
        assert len(app._deliveries) == 10
    assert len(handled) == 60
    assert len(client.sent) == len(set(client.sent[:60])) + 60 == 120


async def test_an_update_that_telegram_does_not_send_again_does_not_block_its_chat(
    constants: Constants,
) -> None:
    storage = FaultyStorage(patience=0.01)
    router, handled = counting_router(storage)
    client = Interrupted()
    async with webhook(router, secret_token=SECRET, client=client) as app:
        storage.before = range(1 << 30)
        assert await app.handle(SECRET, message(1, "one")) == 503
        storage.before = ()
        assert await app.handle(SECRET, message(2, "two")) == 200
        client.away = True
        assert await app.handle(SECRET, message(3, "three")) == 503
        client.away = False
        # Another process may have answered it since.
        constants(webhook_unanswered=0.0)
        assert await app.handle(SECRET, message(4, "four")) == 200
        assert not app._unanswered
        assert not app._last
    assert handled == ["two", "three", "four"]
    assert client.sent == ["two 1", "two 2", "four 1", "four 2"]


async def test_an_update_whose_write_may_have_been_applied_is_answered_before_the_next() -> None:
    storage = FaultyStorage(patience=0.01)
    router, handled = counting_router(storage)
    client = Interrupted()
    async with webhook(router, secret_token=SECRET, client=client) as app:
        assert await app.handle(SECRET, message(1, "one")) == 200
        # The claim is the next batch, the commit the one after it. Its result never arrives.
        storage.after = range(len(storage.batches) + 2, 1 << 30)
        assert await app.handle(SECRET, message(2, "two")) == 503
        storage.after = ()
        assert await app.handle(SECRET, button(3, "three")) == 200
    assert handled == ["one", "two", "three"]
    assert client.sent == ["one 1", "one 2", "two 1", "two 2", "three 1", "three 2"]


async def test_errors_of_a_handler_are_final_even_if_they_look_temporary(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    storage = MemoryStorage(clock=clock)
    router = Router(FSM("my_bot", storage=storage, flows=[]))
    handled = []

    @router.on(text("unavailable"))
    async def unavailable(ctx: Context) -> None:
        handled.append(ctx.text)
        raise BotUnavailable("sendMessage", 502, "Bad Gateway")

    @router.on(text())
    async def block(ctx: Context) -> None:
        handled.append(ctx.text)
        ctx.update_data(n=1)
        # The lease ends, and another worker writes the record.
        clock.advance(31)
        address = storage.address("my_bot", (42, 42))
        await storage.perform(Apply(address, storage.change(address, set=storage.seal(address).fields({"other": 1}))))

    async with webhook(router, secret_token=SECRET, client=Interrupted()) as app:
        assert await app.handle(SECRET, message(1, "unavailable")) == 200
        assert [await app.handle(SECRET, message(2, "block")) for _ in range(4)] == [503, 503, 200, 200]
    assert handled == ["unavailable", "block", "block", "block"]
    assert [each.levelname for each in caplog.records].count("ERROR") == 2
