"""aiogram bots without a network, and updates for them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from itertools import count
from typing import Any

from aiogram import Bot, Dispatcher
from aiogram.client.session.base import BaseSession
from aiogram.methods import TelegramMethod
from aiogram.types import Update

_ids = count(1)


class Silent(BaseSession):
    """Record every call, and return an empty result."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[dict[str, Any]] = []

    async def make_request(self, bot: Bot, method: TelegramMethod[Any], timeout: int | None = None) -> Any:
        self.calls.append({"method": method.__api_method__, **method.model_dump(exclude_none=True, exclude_unset=True)})
        return None

    async def stream_content(self, *args: Any, **kwargs: Any) -> AsyncGenerator[bytes, None]:
        yield b""

    async def close(self) -> None:
        pass

    @property
    def texts(self) -> list[str]:
        return [call["text"] for call in self.calls if "text" in call]


def make_bot(number: int = 7) -> tuple[Bot, Silent]:
    session = Silent()
    return Bot(f"{number}:secret", session=session), session


def message(
    text: str, *, user: int = 42, chat: int | None = None, update_id: int | None = None, **more: Any
) -> dict[str, Any]:
    """A message as Telegram sends it."""
    chat = user if chat is None else chat
    return {
        "update_id": next(_ids) if update_id is None else update_id,
        "message": {
            "message_id": 1,
            "date": 1_700_000_000,
            "chat": {"id": chat, "type": "private" if chat > 0 else "supergroup", "first_name": "A"},
            "from": {"id": user, "is_bot": False, "first_name": "A"},
            "text": text,
            **more,
        },
    }


async def feed(dispatcher: Dispatcher, bot: Bot, update: dict[str, Any]) -> Any:
    return await dispatcher.feed_update(bot, Update.model_validate(update, context={"bot": bot}))
