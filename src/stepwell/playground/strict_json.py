"""JSON from outside: only what can be kept and sent on as JSON."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

__all__ = ["DEEPEST", "loads"]

#: How deeply arrays and objects may be nested.
DEEPEST = 64


def loads(text: str | bytes) -> Any:
    """Decode JSON. ``ValueError`` for deep nesting, lone surrogates, and numbers that are not finite."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(f"nested more than {DEEPEST} levels deep") from None
    level: list[Any] = [value]
    for _ in range(DEEPEST + 1):
        inner: list[Any] = []
        for each in level:
            if isinstance(each, str):
                # Raises UnicodeEncodeError, which is a ValueError.
                each.encode()
            elif isinstance(each, float) and not isfinite(each):
                raise ValueError("a number is not finite")
            elif isinstance(each, dict):
                inner += [*each, *each.values()]
            elif isinstance(each, list):
                inner += each
        if not inner:
            return value
        level = inner
    raise ValueError(f"nested more than {DEEPEST} levels deep")
