"""Telegram's objects of python-telegram-bot as values, such as ``user_data["user"] = update.effective_user``.

They are stored as the Bot API describes them, by their ``to_dict``, and read by their ``de_json``.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import telegram

from stepwell.adapters.framework.objects import classes_in, register_classes, without_enums

__all__ = ["bot_of_objects", "register_objects"]

#: The bot that objects get when they are read.
bot_of_objects: ContextVar[telegram.Bot | None] = ContextVar("stepwell_ptb_bot", default=None)


def register_objects() -> None:
    """Register the classes of Telegram's objects."""
    # A bot is one too, and has a token.
    classes = [cls for cls in classes_in(telegram, telegram.TelegramObject) if not issubclass(cls, telegram.Bot)]
    register_classes("telegram", classes, _pack, _unpack)


def _pack(value: telegram.TelegramObject) -> Any:
    return without_enums(value.to_dict())


def _unpack(cls: type[telegram.TelegramObject], stored: dict[str, Any]) -> telegram.TelegramObject:
    return cls.de_json(stored, bot_of_objects.get())
