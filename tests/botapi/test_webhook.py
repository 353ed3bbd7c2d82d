"""Webhooks: in order, with the secret, with retries."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from stepwell.botapi import Bot, BotAPI, Person
from tests.botapi.conftest import Client
from tests.until import until


class Hook:
    """The bot's side of a webhook, with settable responses."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.headers: list[Any] = []
        self.answers: list[web.Response] = []
        self.url = ""
        self.busy = self.most_busy = 0
        #: How many requests must be under way at once before the first one is answered.
        self.together = 1
        self.delay = 0.0

    async def handle(self, request: web.Request) -> web.Response:
        self.busy += 1
        self.most_busy = max(self.most_busy, self.busy)
        self.got.append(await request.json())
        self.headers.append(request.headers)
        await until(lambda: self.most_busy >= self.together)
        await asyncio.sleep(self.delay)
        self.busy -= 1
        return self.answers.pop(0) if self.answers else web.Response()

    async def wait(self, number: int) -> None:
        await until(lambda: len(self.got) >= number)

    @property
    def texts(self) -> list[str]:
        return [update["message"]["text"] for update in self.got]


@pytest.fixture
async def hook() -> AsyncIterator[Hook]:
    hook = Hook()
    app = web.Application()
    app.router.add_post("/hook", hook.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    hook.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    yield hook
    await runner.cleanup()


async def test_updates_go_to_the_webhook_with_its_secret(call: Client, chat: Person, hook: Hook) -> None:
    await chat.send("pending")
    assert await call("setWebhook", url=hook.url, secret_token="s3cret") is True
    await chat.send("new")
    await hook.wait(2)
    assert hook.texts == ["pending", "new"]
    assert hook.headers[0]["X-Telegram-Bot-Api-Secret-Token"] == "s3cret"
    await until(lambda: not chat.bot.updates.pending)
    info = await call("getWebhookInfo")
    assert (info["url"], info["pending_update_count"]) == (hook.url, 0)


async def test_get_updates_is_a_conflict_while_there_is_a_webhook(call: Client, hook: Hook) -> None:
    await call("setWebhook", url=hook.url)
    code, why = await call("getUpdates")
    assert (code, "use deleteWebhook" in why) == (409, True)
    assert await call("deleteWebhook") is True
    assert await call("getUpdates") == []
    assert (await call("getWebhookInfo"))["url"] == ""


async def test_a_failed_delivery_is_retried_in_order(call: Client, chat: Person, hook: Hook) -> None:
    hook.answers = [web.Response(status=500), web.Response(status=503)]
    await call("setWebhook", url=hook.url)
    await chat.send_at_once("a", "b")
    await hook.wait(4)
    assert hook.texts == ["a", "a", "a", "b"]
    info = await call("getWebhookInfo")
    assert "503" in info["last_error_message"]


async def test_an_unreachable_bot_gets_all_updates_later(call: Client, chat: Person, hook: Hook) -> None:
    await call("setWebhook", url="http://127.0.0.1:9/hook")
    await chat.send_at_once("a", "b")
    async with asyncio.timeout(30):
        info = await until(lambda: call("getWebhookInfo"), lambda info: "last_error_message" in info)
    assert info["pending_update_count"] == 2
    assert info["last_error_message"].startswith("Connection failed")
    await call("setWebhook", url=hook.url)
    await hook.wait(2)
    assert hook.texts == ["a", "b"]


async def test_chats_are_delivered_concurrently_up_to_max_connections(
    api: BotAPI, call: Client, chat: Person, bot: Bot, hook: Hook
) -> None:
    hook.together, hook.delay = 3, 0.05
    await call("setWebhook", url=hook.url, max_connections=3)
    for number in range(1, 7):
        await chat.user(number).send_at_once(f"{number}a", f"{number}b")
    await hook.wait(12)
    assert hook.most_busy == 3
    for number in range(1, 7):
        assert [text for text in hook.texts if text.startswith(str(number))] == [f"{number}a", f"{number}b"]


async def test_the_response_may_be_a_call_as_json_or_multipart(call: Client, chat: Person, hook: Hook) -> None:
    said = {"method": "sendMessage", "chat_id": 42, "text": "as JSON"}
    parts = "".join(
        f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in {"method": "sendMessage", "chat_id": "42", "text": "as multipart"}.items()
    )
    hook.answers = [
        web.Response(text=json.dumps(said), content_type="application/json"),
        web.Response(body=(parts + "--x--\r\n").encode(), headers={"Content-Type": "multipart/form-data; boundary=x"}),
        web.Response(text=json.dumps({"method": "nonsense"}), content_type="application/json"),
        web.Response(text="OK"),
    ]
    await call("setWebhook", url=hook.url)
    await chat.send_at_once("1", "2", "3", "4")
    assert [await chat.answer(), await chat.answer()] == ["as JSON", "as multipart"]
    await hook.wait(4)


async def test_a_redelivered_update_does_not_wait_for_its_first_delivery(
    call: Client, chat: Person, hook: Hook
) -> None:
    hook.delay = 0.1
    await call("setWebhook", url=hook.url)
    await chat.send("x")
    await chat.redeliver()
    await hook.wait(2)
    assert hook.most_busy == 2
    assert hook.got[0] == hook.got[1]


async def test_pending_updates_are_dropped_on_demand(call: Client, chat: Person, hook: Hook) -> None:
    await chat.send("old")
    await call("setWebhook", url=hook.url, drop_pending_updates=True)
    await chat.send("new")
    await hook.wait(1)
    assert hook.texts == ["new"]


@pytest.mark.parametrize(
    ("params", "error"),
    [
        ({"url": "https://example.com/hook"}, "this machine only"),
        ({"url": "http://10.0.0.1/hook"}, "this machine only"),
        ({"url": "ftp://127.0.0.1"}, "HTTP or HTTPS"),
        ({"url": "http://127.0.0.1:1", "secret_token": "no spaces"}, "secret token contains unallowed characters"),
        ({"url": "http://127.0.0.1:1", "max_connections": 101}, "from 1 to 100"),
    ],
)
async def test_an_invalid_webhook_is_refused(call: Client, params: dict[str, Any], error: str) -> None:
    code, why = await call("setWebhook", **params)
    assert code == 400
    assert error in why
    assert (await call("getWebhookInfo"))["url"] == ""


async def test_a_webhook_may_be_on_another_host_with_outside() -> None:
    async with BotAPI(outside=True) as api:
        client = Client(api, api.bot("b").token)
        assert await client("setWebhook", url="https://bot.example/hook") is True
        await client.http.aclose()
