"""Checks of arguments: each raises ``InvalidOption`` with a message of the caller.

In a message, ``{}`` stands for the value without secrets, and ``{type}`` for the name of its type.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection
from datetime import timedelta
from math import inf
from types import UnionType
from typing import Any

from stepwell._secrets import quoted
from stepwell.errors import InvalidOption

__all__ = [
    "check",
    "check_choice",
    "check_function",
    "check_instance",
    "check_not_async",
    "check_number",
    "check_text",
    "check_whole",
    "seconds_of",
]


def check(valid: object, message: str, value: object) -> None:
    """Raise ``InvalidOption`` unless the value of an option is valid.

    Example::

        from stepwell.options import check

        check(len("abc") == 3, "the code must have 3 characters, got {}", "abc")
    """
    if not valid:
        # The value is only formatted for the error: it may be large.
        raise InvalidOption(message.replace("{type}", type(value).__name__).replace("{}", quoted(value)))


def check_number(
    value: object,
    message: str,
    *,
    above: float | None = None,
    least: float = -inf,
    optional: bool = False,
    finite: bool = False,
) -> None:
    """Check that a value is a number, not NaN and not a bool. ``optional``: or ``None``.

    Example::

        from stepwell.options import check_number

        check_number(5.0, "timeout must be a number of seconds above 0, got {}", above=0)
    """
    if optional and value is None:
        return
    valid = isinstance(value, int | float) and not isinstance(value, bool) and value >= least
    if valid and above is not None:
        valid = value > above  # type: ignore[operator]
    check(valid and not (finite and value in (inf, -inf)), message, value)


def check_whole(
    value: object, message: str, *, least: int | None = None, most: int | None = None, optional: bool = False
) -> None:
    """Check that a value is an int, and not a bool. ``optional``: or ``None``.

    Example::

        from stepwell.options import check_whole

        check_whole(3, "attempts must be a number of at least 1, got {}", least=1)
    """
    if optional and value is None:
        return
    valid = isinstance(value, int) and not isinstance(value, bool)
    if valid and least is not None:
        valid = value >= least  # type: ignore[operator]
    if valid and most is not None:
        valid = value <= most  # type: ignore[operator]
    check(valid, message, value)


def check_choice(value: object, choices: Collection[Any], message: str) -> None:
    """Check that a value is one of several texts, or ``None`` if that is one of them.

    Example::

        from stepwell.options import check_choice

        check_choice("raise", ("raise", "return"), "on_park={}: choose 'raise' or 'return'")
    """
    check((value is None or isinstance(value, str)) and value in choices, message, value)


def check_text(value: object, message: str, *, optional: bool = False) -> None:
    """Check that a value is a text that is not empty. ``optional``: or ``None``.

    Example::

        from stepwell.options import check_text

        check_text("orders", "name={}: give a name")
    """
    check((optional and value is None) or (isinstance(value, str) and value), message, value)


def check_function(value: object, message: str, *, optional: bool = False) -> None:
    """Check that a value can be called. ``optional``: or is ``None``.

    Example::

        from stepwell.options import check_function

        check_function(print, "send must be a function, got {}", optional=True)
    """
    check((optional and value is None) or callable(value), message, value)


def check_instance(
    value: object, kind: type | UnionType | tuple[type, ...], message: str, *, optional: bool = False
) -> None:
    """Check that a value is an instance of a class. ``optional``: or ``None``.

    Example::

        from stepwell.options import check_instance

        check_instance(storage, Storage, "storage must be a Storage, got {}")
    """
    check((optional and value is None) or isinstance(value, kind), message, value)


def check_not_async(function: object, message: str) -> None:
    """Check that a function, or an object that is called, is no ``async def``.

    Example::

        from stepwell.options import check_not_async

        check_not_async(print, "{} is an async def, which is not supported")
    """
    called = (function, getattr(function, "__call__", None))  # noqa: B004
    check(not any(map(inspect.iscoroutinefunction, called)), message, function)


_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def seconds_of(value: object, message: str) -> float:
    """Return a duration in seconds: a number, a ``timedelta``, or a text such as ``"90s"``, ``"15m"`` or ``"24h"``.

    Example::

        from stepwell.options import seconds_of

        assert seconds_of("2h", "timeout={}: give a duration such as 90 or '24h'") == 7200
    """
    found = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if found is not None:
        return float(found[1]) * _SECONDS[found[2]]
    if isinstance(value, timedelta):
        return value.total_seconds()
    check_number(value, message, above=0, finite=True)
    return float(value)  # type: ignore[arg-type]
