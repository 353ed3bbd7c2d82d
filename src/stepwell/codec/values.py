"""Exact encoding of values as JSON text.

Values that JSON represents exactly are plain JSON. Others are a dict with one key that starts with ``$``:
``{"$tuple": [1, 2]}``, ``{"$decimal": "9.90"}``. A user's dict with such a key, or with a key that is not a str, is
written as ``{"$dict": [[key, value], ...]}``, so that tags are unambiguous.
"""

from __future__ import annotations

import base64
import collections
import datetime as dt
import functools
import inspect
import sys
from bisect import bisect_left
from collections.abc import Callable
from decimal import Decimal
from enum import Enum
from itertools import islice
from math import isfinite
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from stepwell._secrets import quoted
from stepwell.codec import pieces
from stepwell.codec.json import MalformedJSON, WrongType, convert, from_json, to_json
from stepwell.codec.types import PACKERS, unpack
from stepwell.errors import EncodeError, StoredDataError, UnknownType
from stepwell.record import Limits

__all__ = ["DecodeError", "conform", "decode", "encode", "from_json", "quote", "step", "to_json"]

_EXACT = frozenset({str, bool, type(None)})
_SMALLEST, _LARGEST = -(1 << 63), (1 << 64) - 1


class DecodeError(StoredDataError):
    """A stored text was not written by ``encode``."""


class _RefusedError(Exception):
    """Internal: the reason for a refusal. ``_locate`` finds the path."""


def quote(text: str) -> str:
    """Return a str as a JSON string."""
    return to_json(text).decode()


def encode(value: Any, limits: Limits, path: str = "$", *, large: bool = False) -> bytes:
    """Return a value as JSON text in UTF-8. Raises ``EncodeError`` with the path of an unsupported value.

    ``large``: encode in pieces; the text is the same.

    Example::

        from stepwell.engine import encode_value

        assert encode_value({1: "one"}, storage.limits) == b'{"$dict":[[1,"one"]]}'
    """
    try:
        return pieces.dump(value, _plain, limits.depth) if large else to_json(_plain(value, limits.depth))
    except (_RefusedError, UnicodeEncodeError):
        raise _locate(value, limits.depth, path) from None


def decode(text: str, depth: int = 64) -> Any:
    """Return the value that ``encode`` was given. Raises ``DecodeError``, a ``StoredDataError``.

    Example::

        from stepwell.engine import decode_value, encode_value

        assert decode_value(encode_value((1, 2), storage.limits).decode()) == (1, 2)
    """
    # One level of a tagged value takes up to four brackets. Most texts are too short to exceed the limit.
    deepest = 4 * depth + 8
    try:
        if len(text) > 2 * pieces.PIECE:
            value = pieces.load(text, deepest)
        elif len(text) > deepest and pieces.too_deep(text, deepest):
            raise RecursionError
        else:
            value = from_json(text)
        return _revived(value) if '"$' in text else value
    except StoredDataError:
        raise
    except RecursionError as error:
        raise DecodeError(f"it is nested deeper than the limit of {depth}") from error
    except (
        MalformedJSON,
        ValueError,
        TypeError,
        ArithmeticError,
        LookupError,
        AttributeError,
        # ZoneInfo("America") tries to open a directory.
        OSError,
    ) as error:
        raise DecodeError(f"it cannot be read ({type(error).__name__})") from error


def _plain(value: Any, left: int) -> Any:
    """Return a value that msgspec encodes exactly."""
    kind = type(value)
    if kind in _EXACT:
        return value
    if kind is int:
        return value if _SMALLEST <= value <= _LARGEST else {"$int": hex(value)}
    if kind is float:
        if not isfinite(value):
            raise _RefusedError("is not a finite number; store None or a str instead")
        return value
    if left == 0:
        raise _RefusedError("is nested too deeply, or contains itself; make it flatter")
    if kind is list:
        if len(value) > 64:
            return _items(value, left - 1)
        return [item if type(item) in _EXACT else _plain(item, left - 1) for item in value]
    if kind is dict:
        plain = {}
        for key, item in value.items():
            if type(key) is not str or key[:1] == "$":
                return {"$dict": [[_plain(k, left - 1), _plain(v, left - 1)] for k, v in value.items()]}
            # Most items are leaves, which need no call.
            kind = type(item)
            if kind in _EXACT or (kind is int and _SMALLEST <= item <= _LARGEST) or (kind is float and isfinite(item)):
                plain[key] = item
            else:
                plain[key] = _plain(item, left - 1)
        return plain
    tagged = _TAGGED.get(kind)
    if tagged is not None:
        return tagged(value, left - 1)
    packer = PACKERS.get(kind)
    if packer is not None:
        try:
            tag, name, packed = packer(value)
        except (AttributeError, KeyError):
            raise _RefusedError("has a field without a value; set it, or give it a default") from None
        return {tag: [name, _plain(packed, left - 1)]}
    raise _RefusedError(_why_refused(value))


def _why_refused(value: Any) -> str:
    """Return why a value that has no packer cannot be stored, and what to store instead."""
    if isinstance(value, type):
        return "is a class, which cannot be stored; store a name instead"
    if inspect.isroutine(value) or isinstance(value, functools.partial):
        return "is a function, which cannot be stored; store a name instead"
    if isinstance(value, dict):
        return "is a dict of another class, which cannot be stored; store dict(value)"
    if isinstance(value, list | collections.deque):
        return "is a sequence of another class, which cannot be stored; store list(value)"
    if isinstance(value, bytearray | memoryview):
        return "is not of the class bytes; store bytes(value)"
    if type(value).__module__.partition(".")[0] in sys.stdlib_module_names:
        return "is of a class of Python that cannot be stored; store its plain values, such as str(value)"
    return "is of a class that is not registered; decorate it with @stepwell.record_type, or store its plain values"


def _moment(value: dt.datetime | dt.time) -> Any:
    """Return ISO text, with zone name and fold where the text alone would not decode to an equal value."""
    zone = value.tzinfo
    if isinstance(zone, ZoneInfo) and zone.key is not None:
        return [value.replace(tzinfo=None).isoformat(), zone.key, value.fold]
    if zone is not None and zone.utcoffset(None) is None:
        raise _RefusedError("has an unsupported time zone class; use zoneinfo.ZoneInfo or datetime.timezone")
    return value.isoformat() if not value.fold else [value.isoformat(), None, value.fold]


def _decode_moment(kind: type[dt.datetime] | type[dt.time], stored: Any) -> dt.datetime | dt.time:
    if isinstance(stored, str):
        return kind.fromisoformat(stored)
    text, zone, fold = stored
    moment = kind.fromisoformat(text)
    if zone is None:
        return moment.replace(fold=fold)
    try:
        return moment.replace(tzinfo=ZoneInfo(zone), fold=fold)
    except ZoneInfoNotFoundError as error:
        raise StoredDataError(
            f"the time zone {quoted(zone)} is unknown on this machine; run: pip install tzdata"
        ) from error


def _decimal(value: Decimal) -> str:
    if value.is_nan():
        raise _RefusedError("is not a number; store None or a str instead")
    return str(value)


def _items(value: Any, left: int) -> list[Any]:
    if len(value) <= 64:
        return [item if type(item) in _EXACT else _plain(item, left) for item in value]
    plain: list[Any] = []
    items = iter(value)
    while chunk := list(islice(items, 1024)):
        # Most long lists have values of one type, which is faster to check than each value.
        plain += chunk if _is_exact(chunk) else [item if type(item) is str else _plain(item, left) for item in chunk]
    return plain


def _is_exact(chunk: list[Any]) -> bool:
    """Return whether JSON represents these values exactly. ``False`` for most mixed types."""
    kinds = {*map(type, chunk)}
    if kinds == {int}:
        return bool(min(chunk) >= _SMALLEST and max(chunk) <= _LARGEST)
    return kinds <= _EXACT or (kinds == {float} and all(map(isfinite, chunk)))


def _sorted_items(value: Any, left: int) -> list[Any]:
    # Equal sets have equal texts in every process, so an unchanged set is not written again.
    items = _items(value, left)
    if len(items) <= 4096:
        return sorted(items, key=to_json)
    # Sorting holds the GIL, so it is done in buckets. A sample determines their bounds.
    cuts = sorted([to_json(item) for item in items[:: len(items) // 512]])[::4]
    buckets: list[list[Any]] = [[] for _ in range(len(cuts) + 1)]
    for item in items:
        buckets[bisect_left(cuts, to_json(item))].append(item)
    return [item for bucket in buckets for item in sorted(bucket, key=to_json)]


_TAGGED: dict[type, Callable[[Any, int], dict[str, Any]]] = {
    tuple: lambda value, left: {"$tuple": _items(value, left)},
    set: lambda value, left: {"$set": _sorted_items(value, left)},
    frozenset: lambda value, left: {"$frozenset": _sorted_items(value, left)},
    bytes: lambda value, left: {"$bytes": base64.b64encode(value).decode()},
    dt.datetime: lambda value, left: {"$datetime": _moment(value)},
    dt.date: lambda value, left: {"$date": value.isoformat()},
    dt.time: lambda value, left: {"$time": _moment(value)},
    dt.timedelta: lambda value, left: {"$timedelta": [value.days, value.seconds, value.microseconds]},
    Decimal: lambda value, left: {"$decimal": _decimal(value)},
    UUID: lambda value, left: {"$uuid": str(value)},
}

_REVIVE: dict[str, Callable[[Any], Any]] = {
    "$int": lambda stored: int(stored, 16),
    "$dict": lambda stored: {_revived(key): _revived(value) for key, value in stored},
    "$tuple": lambda stored: tuple([_revived(item) for item in stored]),
    "$set": lambda stored: {_revived(item) for item in stored},
    "$frozenset": lambda stored: frozenset([_revived(item) for item in stored]),
    "$bytes": lambda stored: base64.b64decode(stored, validate=True),
    "$datetime": lambda stored: _decode_moment(dt.datetime, stored),
    "$date": dt.date.fromisoformat,
    "$time": lambda stored: _decode_moment(dt.time, stored),
    "$timedelta": lambda stored: dt.timedelta(*stored),
    "$decimal": Decimal,
    "$uuid": UUID,
    "$enum": lambda stored: unpack("$enum", stored[0], _revived(stored[1])),
    "$record": lambda stored: unpack("$record", stored[0], _revived(stored[1])),
}


def _revived(value: Any) -> Any:
    kind = type(value)
    if kind is list:
        return [_revived(item) for item in value]
    if kind is dict:
        if len(value) == 1:
            ((key, item),) = value.items()
            if key[:1] == "$":
                revive = _REVIVE.get(key)
                if revive is None:
                    raise UnknownType(key)
                return revive(item)
        return {key: _revived(item) for key, item in value.items()}
    return value


def _locate(value: Any, left: int, path: str) -> EncodeError:
    """Return the error for the first inner value that cannot be encoded. Slow, and only for the message."""
    if left > 0:
        for step, child in _children(value):
            try:
                to_json(_plain(child, left - 1))
            except (_RefusedError, UnicodeEncodeError):
                return _locate(child, left - 1, path + step)
    try:
        to_json(_plain(value, left))
    except _RefusedError as refused:
        return EncodeError(path, _type_name(value), str(refused))
    except UnicodeEncodeError:
        pass
    return EncodeError(path, _type_name(value), "contains a lone surrogate; encode it to bytes, or clean the text")


def _children(value: Any) -> list[tuple[str, Any]]:
    kind = type(value)
    if kind is dict:
        keys = [("(key)", key) for key in value]
        return keys + [(step(key), item) for key, item in value.items()]
    if kind in (list, tuple):
        return [(f"[{index}]", item) for index, item in enumerate(value)]
    if kind in (set, frozenset):
        return [("{}", item) for item in value]
    if kind in PACKERS:
        try:
            packed = PACKERS[kind](value)[2]
        except (AttributeError, KeyError):
            return []
        fields = packed[0] if isinstance(packed, tuple) else packed
        if isinstance(fields, dict):
            return [(f".{name}", item) for name, item in fields.items()]
    return []


def step(key: Any) -> str:
    """Return one step of a path: ``.price``, or ``["two words"]``.

    Example::

        from stepwell.engine import path_step

        assert path_step("price") == ".price"
    """
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{quoted(key)}]"


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


# Values of these types are not converted, so a str instead of a date is an error.
_KEPT = (bytes, bytearray, memoryview, dt.datetime, dt.date, dt.time, dt.timedelta, Decimal, UUID)


def conform(value: Any, kind: Any) -> tuple[Any, str | None]:
    """Return a value as the declared type, and ``None``; or the value itself, and a description of the problem."""
    try:
        return convert(value, kind, builtin_types=_KEPT), None
    except WrongType as error:
        if isinstance(value, Enum) and _is_member(value, kind):
            return value, None
        return value, str(error)
    except TypeError:
        # msgspec does not support the annotation, such as a union of two classes.
        return value, None


def _is_member(value: Enum, kind: Any) -> bool:
    """Return whether a type has this member. msgspec accepts a number, but not the member with that number."""
    try:
        return convert(value.value, kind) is value
    except (WrongType, TypeError):
        return False
