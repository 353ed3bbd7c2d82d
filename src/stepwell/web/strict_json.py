"""Strict parsing of JSON from outside."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

__all__ = ["MAX_DEPTH", "loads"]

#: The deepest nesting of arrays and objects.
MAX_DEPTH = 64


# Copied in botapi/params.py, because botapi imports nothing else of Stepwell. Change both.
def loads(text: str | bytes) -> Any:
    """Decode JSON. Raises ``ValueError`` for deep nesting, lone surrogates, and numbers that are not finite."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(f"nested more than {MAX_DEPTH} levels deep") from None
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH + 1):
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
    raise ValueError(f"nested more than {MAX_DEPTH} levels deep")
