"""Telegram's objects of telebot as values, such as ``bot.add_data(user_id, chat_id, user=message.from_user)``.

A message or a press of a button is stored as Telegram has sent it, and any other object by its attributes.
"""

from __future__ import annotations

from typing import Any

from telebot import types

from stepwell.adapters.framework.objects import classes_in, register_classes

__all__ = ["register_objects"]

#: The classes that keep what Telegram has sent.
_SENT: tuple[Any, ...] = (types.Message, types.CallbackQuery)


def register_objects() -> None:
    """Register the classes of Telegram's objects."""
    bases = (types.JsonDeserializable, types.JsonSerializable, types.Dictionaryable)
    register_classes("telebot", classes_in(types, bases), _pack, _unpack)


def _pack(value: Any) -> Any:
    return value.json if isinstance(value, _SENT) else vars(value)


def _unpack(cls: Any, stored: Any) -> Any:
    if issubclass(cls, _SENT):
        return cls.de_json(stored)
    value = cls.__new__(cls)
    vars(value).update(stored)
    return value
