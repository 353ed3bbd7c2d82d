"""The webhook examples in their real frameworks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from examples.registration import Registration, handlers
from examples.webhooks import aiohttp_app, flask_app, starlette_app

import stepwell
from stepwell.fsm import FSM, Context, Router, text
from stepwell.testing import FaultyStorage
from tests.fsm.conftest import message

SECRET = "s3cret-token"
HEADER = "X-Telegram-Bot-Api-Secret-Token"
ANSWER = {"method": "sendMessage", "chat_id": 42, "text": "What's your name?"}

Post = Callable[[bytes, dict[str, Any]], Awaitable[tuple[int, bytes]]]


@asynccontextmanager
async def starlette() -> AsyncIterator[Post]:
    async with starlette_app.lifespan(starlette_app.app), _asgi(starlette_app.app) as post:
        yield post


@asynccontextmanager
async def fastapi() -> AsyncIterator[Post]:
    from fastapi import FastAPI

    app = FastAPI(lifespan=starlette_app.lifespan)  # type: ignore[arg-type]
    app.add_route("/webhook", starlette_app.webhook, methods=["POST"])
    async with starlette_app.lifespan(app), _asgi(app) as post:
        yield post


@asynccontextmanager
async def _asgi(app: Any) -> AsyncIterator[Post]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://bot.test") as client:

        async def post(body: bytes, headers: dict[str, Any]) -> tuple[int, bytes]:
            raw = {name: value.encode() for name, value in headers.items()}
            answer = await client.post("/webhook", content=body, headers=raw)
            return answer.status_code, answer.content

        yield post


@asynccontextmanager
async def aiohttp() -> AsyncIterator[Post]:
    async with TestClient(TestServer(aiohttp_app.make_app())) as client:

        async def post(body: bytes, headers: dict[str, Any]) -> tuple[int, bytes]:
            answer = await client.post("/webhook", data=body, headers=headers)
            return answer.status, await answer.read()

        yield post


@asynccontextmanager
async def flask() -> AsyncIterator[Post]:
    def send(body: bytes, headers: dict[str, Any]) -> tuple[int, bytes]:
        answer = flask_app.app.test_client().post("/webhook", data=body, headers=headers)
        return answer.status_code, answer.data

    async with _in_threads(send, flask_app) as post:
        yield post


@asynccontextmanager
async def django() -> AsyncIterator[Post]:
    django_app = _django_app()
    from django.test import Client

    def send(body: bytes, headers: dict[str, Any]) -> tuple[int, bytes]:
        answer = Client().post("/webhook", body, content_type="application/json", headers=headers)
        return answer.status_code, answer.content

    async with _in_threads(send, django_app) as post:
        yield post


def _django_app() -> ModuleType:
    from django.conf import settings

    if not settings.configured:
        settings.configure(ROOT_URLCONF="examples.webhooks.django_app", ALLOWED_HOSTS=["testserver"])
    from examples.webhooks import django_app

    return django_app


@asynccontextmanager
async def _in_threads(send: Callable[..., tuple[int, bytes]], module: ModuleType) -> AsyncIterator[Post]:
    try:
        yield lambda body, headers: asyncio.to_thread(send, body, headers)
    finally:
        await asyncio.to_thread(lambda: stepwell.sync(module.fsm.storage.close()))


class Framework(NamedTuple):
    module: ModuleType
    serve: Callable[[], Any]


FRAMEWORKS = {
    "starlette": lambda: Framework(starlette_app, starlette),
    "fastapi": lambda: Framework(starlette_app, fastapi),
    "aiohttp": lambda: Framework(aiohttp_app, aiohttp),
    "flask": lambda: Framework(flask_app, flask),
    "django": lambda: Framework(_django_app(), django),
}


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Framework:
    monkeypatch.setenv("WEBHOOK_SECRET", SECRET)
    return FRAMEWORKS[request.param]()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/bot.db"


def use(framework: Framework, monkeypatch: pytest.MonkeyPatch, storage: Any, *routers: Router) -> None:
    fsm = FSM("registration_bot", storage=storage, flows=[Registration], wait=0.1)
    router = Router(fsm)
    for other in (*routers, handlers):
        router.include(other)
    monkeypatch.setattr(framework.module, "fsm", fsm)
    monkeypatch.setattr(framework.module, "router", router)


async def tell(post: Post, text: str, update_id: int, token: str | None = SECRET) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json"} | ({} if token is None else {HEADER: token})
    status, body = await post(json.dumps(message(text, update_id=update_id)).encode(), headers)
    return status, json.loads(body) if body and status == 200 else None


async def test_the_call_is_the_response_and_a_redelivered_update_gets_it_again(
    framework: Framework, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    use(framework, monkeypatch, url)
    async with framework.serve() as post:
        assert await tell(post, "/register", 1) == (200, ANSWER)
        assert await tell(post, "/register", 1) == (200, ANSWER)
        assert await tell(post, "Alice", 2) == (200, ANSWER | {"text": "Got it, Alice! What's your email?"})
    assert not framework.module.fsm.storage.is_open


async def test_an_update_without_a_handler_is_acknowledged(
    framework: Framework, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    use(framework, monkeypatch, url)
    update = {"update_id": 1, "poll": {"id": "1", "question": "?", "options": []}}
    async with framework.serve() as post:
        headers = {"Content-Type": "application/json", HEADER: SECRET}
        assert await post(json.dumps(update).encode(), headers) == (200, b"")


async def test_without_the_secret_nothing_is_handled(
    framework: Framework, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    use(framework, monkeypatch, url)
    async with framework.serve() as post:
        for token in (None, "", "wrong", SECRET + "x", "s\xe9cret"):
            assert await tell(post, "/register", 1, token) == (403, None)
    async with stepwell.open_storage(url) as storage:
        assert await storage.get_state("registration_bot", (42, 42)) is None


async def test_503_while_the_key_is_busy_and_then_it_is_handled(
    framework: Framework, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    use(framework, monkeypatch, url)
    async with framework.serve() as post, FSM("registration_bot", storage=url, flows=[Registration]) as other:
        async with other.conversation(key=(42, 42)):
            assert await tell(post, "/register", 1) == (503, None)
        assert await tell(post, "/register", 1) == (200, ANSWER)


async def test_503_while_the_storage_is_down_and_then_it_is_handled(
    framework: Framework, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = FaultyStorage(before=range(1, 10_000), patience=0.01)
    use(framework, monkeypatch, storage)
    async with framework.serve() as post:
        assert await tell(post, "/register", 1) == (503, None)
        storage.before = ()
        assert await tell(post, "/register", 1) == (200, ANSWER)


async def test_of_several_calls_all_but_the_last_are_sent(
    framework: Framework, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    chatty = Router()

    @chatty.on()
    async def count(ctx: Context) -> None:
        for number in ("one", "two", "three"):
            ctx.answer(number)

    sent: list[tuple[str, Any]] = []

    async def take(request: web.Request) -> web.Response:
        sent.append((request.path, await request.json()))
        return web.json_response({"ok": True})

    use(framework, monkeypatch, url, chatty)
    app = web.Application()
    app.router.add_post("/{path:.*}", take)
    async with TestServer(app) as api, framework.serve() as post:
        monkeypatch.setenv("BOT_API", str(api.make_url("/bot123:token")))
        assert await tell(post, "hi", 1) == (200, ANSWER | {"text": "three"})
    assert sent == [("/bot123:token/sendMessage", ANSWER | {"text": text}) for text in ("one", "two")]


@asynccontextmanager
async def bot_api(
    monkeypatch: pytest.MonkeyPatch, status_of: Callable[[str], int]
) -> AsyncIterator[list[tuple[str, int]]]:
    """A Bot API that answers each text with a set status; records the texts and statuses."""
    taken: list[tuple[str, int]] = []

    async def take(request: web.Request) -> web.Response:
        text = (await request.json())["text"]
        taken.append((text, status_of(text)))
        return web.json_response({"ok": status_of(text) == 200, "description": "no"}, status=status_of(text))

    app = web.Application()
    app.router.add_post("/{path:.*}", take)
    async with TestServer(app) as api:
        monkeypatch.setenv("BOT_API", str(api.make_url("/bot123:token")))
        yield taken


def counting() -> Router:
    router = Router()

    @router.on()
    async def count(ctx: Context) -> None:
        ctx.update_data(count=ctx.data.get("count", 0) + 1)
        for number in ("one", "two", "three"):
            ctx.answer(number)

    return router


@pytest.mark.parametrize("status", [400, 403])
async def test_a_permanently_refused_call_is_logged_and_the_rest_is_sent(
    framework: Framework, monkeypatch: pytest.MonkeyPatch, url: str, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    use(framework, monkeypatch, url, counting())
    statuses = {"one": status, "two": 200}
    async with bot_api(monkeypatch, statuses.__getitem__) as taken, framework.serve() as post:
        assert await tell(post, "hello", 1) == (200, ANSWER | {"text": "three"})
        assert taken == [("one", status), ("two", 200)]
    assert f"sendMessage was refused with status {status}" in caplog.text
    assert "hello" not in caplog.text


@pytest.mark.parametrize("status", [429, 502])
async def test_503_while_the_bot_api_is_unavailable_and_then_all_calls_are_sent(
    framework: Framework, monkeypatch: pytest.MonkeyPatch, url: str, status: int
) -> None:
    use(framework, monkeypatch, url, counting())
    statuses = {"one": 200, "two": status}
    async with framework.serve() as post:
        monkeypatch.setenv("BOT_API", "http://127.0.0.1:9/bot123:token")
        assert await tell(post, "hello", 1) == (503, None)
        async with bot_api(monkeypatch, statuses.__getitem__) as taken:
            assert await tell(post, "hello", 1) == (503, None)
            statuses["two"] = 200
            assert await tell(post, "hello", 1) == (200, ANSWER | {"text": "three"})
            assert taken == [("one", 200), ("two", status), ("one", 200), ("two", 200)]
    async with stepwell.open_storage(url) as storage:
        assert await storage.get_data("registration_bot", (42, 42)) == {"count": 1}


async def test_a_handler_that_raises_is_logged_without_the_update_and_does_not_block_its_chat(
    framework: Framework, monkeypatch: pytest.MonkeyPatch, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    broken = Router()

    @broken.on(text("broken"))
    async def fail(ctx: Context) -> None:
        ctx.answer("never sent")
        raise ZeroDivisionError

    use(framework, monkeypatch, url, broken)
    async with framework.serve() as post:
        assert await tell(post, "broken", 1) == (200, None)
        assert await tell(post, "/register", 2) == (200, ANSWER)
    assert "ZeroDivisionError" in caplog.text
    assert '"broken"' not in caplog.text


def test_the_secret_is_compared_in_constant_time(framework: Framework) -> None:
    source = Path(str(framework.module.__file__)).read_text()
    assert "hmac.compare_digest(token.encode(" in source


async def test_aiohttp_refuses_a_token_that_is_not_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBHOOK_SECRET", SECRET)
    use(Framework(aiohttp_app, aiohttp), monkeypatch, "memory://")
    async with TestServer(aiohttp_app.make_app()) as server:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(
            f"POST /webhook HTTP/1.1\r\nHost: x\r\n{HEADER}: s".encode() + b"\xe9\r\nContent-Length: 0\r\n\r\n"
        )
        assert (await reader.readline()).startswith(b"HTTP/1.1 403")
        writer.close()
        await writer.wait_closed()
