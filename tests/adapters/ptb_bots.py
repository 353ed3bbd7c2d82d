"""python-telegram-bot applications without a network, and updates for them."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

from telegram import Update
from telegram.ext import Application, ApplicationBuilder, BasePersistence
from telegram.request import BaseRequest

_ids = count(1)


class Silent(BaseRequest):
    """Record every call, and return a message or nothing."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    @property
    def read_timeout(self) -> float:
        return 5.0

    async def initialize(self) -> None:
        pass

    async def shutdown(self) -> None:
        pass

    async def do_request(
        self, url: str, method: str, request_data: Any = None, *args: Any, **kwargs: Any
    ) -> tuple[int, bytes]:
        name = url.rpartition("/")[2]
        given = {} if request_data is None else request_data.parameters
        if name == "getMe":
            me = {"id": 7, "is_bot": True, "first_name": "Bot", "username": "my_bot"}
            return 200, json.dumps({"ok": True, "result": me}).encode()
        self.calls.append({"method": name, **given})
        chat = {"id": given.get("chat_id", 1), "type": "private"}
        sent = {"message_id": 1, "date": 1, "chat": chat, "text": given.get("text", "")}
        return 200, json.dumps({"ok": True, "result": sent if name.startswith("send") else True}).encode()

    @property
    def texts(self) -> list[str]:
        return [call["text"] for call in self.calls if "text" in call]


def builder(
    persistence: BasePersistence[Any, Any, Any] | None = None, *, number: int = 7
) -> ApplicationBuilder[Any, ...]:
    made: Any = ApplicationBuilder().token(f"{number}:secret").request(Silent()).get_updates_request(Silent())
    return made if persistence is None else made.persistence(persistence)


def make_app(persistence: BasePersistence[Any, Any, Any] | None = None, *, number: int = 7) -> Application:
    return builder(persistence, number=number).build()


def calls_of(application: Application) -> Silent:
    """Return the recorded calls of an application's bot."""
    request: Silent = application.bot.request
    return request


def message(
    application: Application,
    text: str,
    *,
    user: int = 42,
    chat: int | None = None,
    update_id: int | None = None,
    **more: Any,
) -> Update:
    """A message as Telegram sends it."""
    chat = user if chat is None else chat
    command = {"type": "bot_command", "offset": 0, "length": len(text.split(" ", 1)[0])}
    update = {
        "update_id": next(_ids) if update_id is None else update_id,
        "message": {
            "message_id": 1,
            "date": 1_700_000_000,
            "chat": {"id": chat, "type": "private" if chat > 0 else "supergroup", "first_name": "A"},
            "from": {"id": user, "is_bot": False, "first_name": "A"},
            "text": text,
            "entities": [command] if text.startswith("/") else [],
            **more,
        },
    }
    made = Update.de_json(update, application.bot)
    assert made is not None
    return made
