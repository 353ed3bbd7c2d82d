"""Telegram's objects of python-telegram-bot as values, such as ``user_data["user"] = update.effective_user``.

They are stored as the Bot API describes them, by their ``to_dict``, and read by their ``de_json``.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, TypeAlias

import telegram
from telegram import constants, ext

from stepwell.adapters.framework.objects import classes_in, register_classes, register_enums, without_enums

__all__ = ["AnyApplication", "bot_of_objects", "register_objects"]

#: An application with any classes of its own.
AnyApplication: TypeAlias = ext.Application[Any, Any, Any, Any, Any, Any]
#: The bot that objects get when they are read.
bot_of_objects: ContextVar[telegram.Bot | None] = ContextVar("stepwell_ptb_bot", default=None)

#: Parts that may be any value, if the bot keeps the data of buttons.
_ANY_VALUE = {(telegram.InlineKeyboardButton, "callback_data"), (telegram.CallbackQuery, "data")}


def register_objects() -> None:
    """Register the classes of Telegram's objects."""
    # A bot is one too, and has a token.
    classes = [cls for cls in classes_in(telegram, telegram.TelegramObject) if not issubclass(cls, telegram.Bot)]
    register_classes("telegram", classes, _pack, _unpack)
    register_enums("telegram.constants", constants)


def _pack(value: telegram.TelegramObject) -> Any:
    plain = without_enums(value.to_dict())
    _restore(value, plain)
    return plain


def _restore(value: Any, plain: Any) -> None:
    """Put the objects back into the plain parts of a value where ``de_json`` would leave them as dicts and lists.

    That is the data of a button, which may be any value, and every part of a class that only bots make.
    """
    if isinstance(value, list | tuple):
        for each, part in zip(value, plain, strict=False):
            _restore(each, part)
    elif isinstance(value, telegram.TelegramObject):
        for name, part in plain.items():
            if not isinstance(part, dict | list):
                continue
            own = getattr(value, "from_user" if name == "from" else name, part)
            if (type(value), name) in _ANY_VALUE or (_has_objects(own) and not _reads_objects(type(value))):
                plain[name] = own
            else:
                _restore(own, part)


def _has_objects(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_has_objects, value))
    return isinstance(value, telegram.TelegramObject)


def _reads_objects(cls: type[telegram.TelegramObject]) -> bool:
    """Return whether a class has a ``de_json`` of its own."""
    own = cls.__mro__[: cls.__mro__.index(telegram.TelegramObject)]
    return any(name in vars(each) for each in own for name in ("de_json", "_de_json"))


def _unpack(cls: type[telegram.TelegramObject], stored: dict[str, Any]) -> telegram.TelegramObject:
    return cls.de_json(stored, bot_of_objects.get())
