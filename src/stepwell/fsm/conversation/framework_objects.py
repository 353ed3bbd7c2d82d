"""Keyboards and other objects of Telegram frameworks, as the plain values of the Bot API that can be stored."""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import Enum
from typing import Any, Final

__all__ = ["PLAIN", "as_plain"]

#: The types of values that ``as_plain`` need not look at.
PLAIN: Final = frozenset({str, int, float, bool, type(None)})
#: The result for a value that JSON cannot represent, such as a file.
_UNKNOWN: Final = object()


def as_plain(value: Any) -> Any:
    """Return an object of aiogram, python-telegram-bot or telebot as dicts, lists and texts; other values unchanged.

    An object that contains a file or another value that JSON cannot represent is returned unchanged too.
    """
    found = _plain(value)
    return value if found is _UNKNOWN else found


def _plain(value: Any) -> Any:
    kind = type(value)
    if kind is str:
        # telebot replaces a file by the name under which it would send the file.
        return _UNKNOWN if value.startswith("attach://") else value
    if kind in PLAIN:
        return value
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, dict):
        return _plain_dict(value.items())
    if isinstance(value, list | tuple):
        items = [_plain(each) for each in value]
        return _UNKNOWN if any(each is _UNKNOWN for each in items) else items
    if hasattr(kind, "to_dict"):
        return _plain(value.to_dict())
    if hasattr(kind, "to_json"):
        return _plain(json.loads(value.to_json()))
    if hasattr(kind, "model_fields"):
        return _plain_model(value)
    return _UNKNOWN


def _plain_dict(items: Iterable[tuple[Any, Any]]) -> Any:
    found = {name: _plain(each) for name, each in items}
    return _UNKNOWN if any(each is _UNKNOWN for each in found.values()) else found


def _plain_model(value: Any) -> Any:
    """Return a pydantic model as a dict, without the placeholders of fields that are not set."""
    fields, are_set = type(value).model_fields, value.model_fields_set
    found = {}
    for name, each in value:
        plain = _plain(each)
        if plain is _UNKNOWN and name in are_set:
            return _UNKNOWN
        if plain is not _UNKNOWN and plain is not None:
            found[(fields[name].alias if name in fields else None) or name] = plain
    return found
