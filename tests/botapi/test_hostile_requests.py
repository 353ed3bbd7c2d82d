"""Hostile requests to every route: each is answered, and none with a 5xx."""

from __future__ import annotations

import json
import random
from typing import Any

import httpx
import pytest

from stepwell.botapi import BotAPI
from stepwell.botapi.methods import METHODS
from tests.web.hostile import BODIES, REQUESTS, VALUES

NAMES = [
    "chat_id", "text", "message_id", "message_ids", "from_chat_id", "user_id", "offset", "limit", "allowed_updates",
    "url", "secret_token", "max_connections", "entities", "caption", "caption_entities", "parse_mode", "reply_markup",
    "reply_parameters", "reply_to_message_id", "message_thread_id", "callback_query_id", "inline_query_id", "results",
    "action", "commands", "scope", "language_code", "name", "photo", "document", "media", "latitude", "longitude",
    "phone_number", "first_name", "title", "address", "emoji", "question", "options", "type", "is_anonymous", "file_id",
    "inline_message_id", "protect_content", "drop_pending_updates", "show_alert", "menu_button", "rights", "width",
    "thumbnail", "cover", "quote", "correct_option_ids", "correct_option_id", "explanation", "explanation_media",
    "open_period", "country_codes", "live_period", "link_preview_options", "has_spoiler", "video_start_timestamp",
    "permissions", "until_date", "invite_link", "expire_date", "member_limit", "reaction", "prices", "currency",
    "payload", "shipping_options", "shipping_query_id", "pre_checkout_query_id", "max_tip_amount",
]  # fmt: skip
VALID = {
    "chat_id": 42, "from_chat_id": 42, "message_id": 1, "text": "x", "photo": "http://x/y", "latitude": 1,
    "longitude": 1,
    "phone_number": "1", "first_name": "A", "question": "?", "options": ["a", "b"], "action": "typing", "user_id": 42,
    "results": [], "title": "t", "address": "a", "document": "http://x/y", "name": "n",
    "message_ids": [1, 2], "media": {"type": "photo", "media": "http://x/y"}, "video": "http://x/y",
    "description": "d", "payload": "p", "currency": "XTR", "prices": [{"label": "a", "amount": 1}], "permissions": {},
}  # fmt: skip
FORM = "application/x-www-form-urlencoded"
TYPES = ["application/json", "text/plain", "", FORM, "multipart/form-data", "multipart/form-data; boundary=x"]
PARTS = b'--x\r\nContent-Disposition: form-data; name="photo"; filename="\xff"\r\n\r\nx\r\n--x--\r\n'


@pytest.mark.parametrize("method", [*sorted(METHODS), "noSuchMethod", "%00", "%ff"])
async def test_a_method_of_the_bot_api_answers_every_request(method: str) -> None:
    rng = random.Random(method)
    api = BotAPI(port=8081, webhook_pause=60)
    bot = api.bot("my_bot")
    chat = api.chat(bot)
    await chat.send("hello")
    chat.group(-(10**12) - 1)
    api.world.post(chat.room, bot.user, text="hi")
    base = f"http://127.0.0.1:8081/bot{bot.token}/{method}"
    transport = httpx.ASGITransport(app=api.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, timeout=30) as http:

        async def check(**request: Any) -> None:
            answer = await http.request("POST", base, **request)
            shown = {name: repr(value)[:300] for name, value in request.items()}
            assert answer.status_code < 500, shown
            body = answer.json()
            assert body["ok"] is (answer.status_code == 200), shown
            assert body["ok"] or body["error_code"] == answer.status_code, shown

        for body in BODIES:
            await check(content=body, headers={"Content-Type": "application/json"})
        for kind in TYPES:
            await check(content=PARTS, headers={"Content-Type": kind})
            await check(content=rng.choice(BODIES), headers={"Content-Type": kind})
        for at in range(REQUESTS):
            hostile = {name: rng.choice(VALUES) for name in rng.sample(NAMES, 1 + at % 4)}
            if at % 2:
                hostile = {"chat_id": -(10**12) - 1, **hostile}
            if at % 3:
                await check(json={**VALID, **hostile})
            else:
                # In a form, everything is text.
                await check(data={name: _text(value) for name, value in {**VALID, **hostile}.items()})
    await api.webhooks.close()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@pytest.mark.parametrize("path", ["/", "/bot", "/bot1:x/getMe", "/botx/getMe", "/file/bot1:x/photo/y", "/%ff%00/../x"])
async def test_other_paths_of_the_bot_api_answer_every_request(path: str) -> None:
    api = BotAPI(port=8081)
    transport = httpx.ASGITransport(app=api.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8081") as http:
        for method in ("GET", "HEAD", "POST", "PUT", "OPTIONS", "NONSENSE"):
            for body in BODIES:
                assert 400 <= (await http.request(method, path, content=body)).status_code < 500
