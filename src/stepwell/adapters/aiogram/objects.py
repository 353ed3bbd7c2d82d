"""Telegram's objects of aiogram as values, such as ``await state.update_data(user=message.from_user)``.

They are stored as the Bot API describes them, and validated when they are read.
"""

from __future__ import annotations

from contextvars import ContextVar
from datetime import datetime
from typing import Any

from aiogram import Bot, enums, types
from aiogram.client.default import Default

from stepwell.adapters.framework.objects import classes_in, register_classes, register_enums, without_enums

__all__ = ["as_json", "bot_of_objects", "register_objects"]

#: The bot that objects get when they are read.
bot_of_objects: ContextVar[Bot | None] = ContextVar("stepwell_aiogram_bot", default=None)


def register_objects() -> None:
    """Register the classes of Telegram's objects."""
    register_classes("aiogram", classes_in(types, types.TelegramObject), _pack, _unpack)
    register_enums("aiogram.enums", enums)


def as_json(value: types.TelegramObject) -> Any:
    """Return one of Telegram's objects as the Bot API sends it."""
    return _with_plain_times(_pack(value))


def _with_plain_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_plain_times(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_plain_times(each) for each in value]
    return int(value.timestamp()) if isinstance(value, datetime) else value


def _pack(value: types.TelegramObject) -> Any:
    return without_enums(_without_defaults(value.model_dump(by_alias=True, exclude_none=True, warnings=False)))


def _unpack(cls: type[types.TelegramObject], stored: dict[str, Any]) -> types.TelegramObject:
    return cls.model_validate(stored, context={"bot": bot_of_objects.get()})


def _without_defaults(value: Any) -> Any:
    """Return fields without the placeholders for which the bot's default is taken."""
    if isinstance(value, dict):
        return {name: _without_defaults(each) for name, each in value.items() if not isinstance(each, Default)}
    if isinstance(value, list | tuple):
        return [_without_defaults(each) for each in value]
    return value
