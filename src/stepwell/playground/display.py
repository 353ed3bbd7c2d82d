"""Values as the page shows them: plain JSON, no longer than anybody reads, secrets masked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

__all__ = ["MASK", "is_secret", "shown"]

MASK = "•••"
LONGEST_TEXT, MOST_ITEMS, DEEPEST = 4096, 100, 12
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SECRET = frozenset(
    {
        "apikey", "authorization", "cookie", "credential", "credentials", "cvc", "cvv", "otp", "passphrase", "passwd",
        "password", "passwords", "pin", "pwd", "secret", "secrets", "token", "tokens",
    }
)  # fmt: skip
_SECRET_PAIRS = frozenset({("api", "key"), ("access", "key"), ("private", "key"), ("card", "number")})


def is_secret(name: str) -> bool:
    """A field of this name is likely to hold what nobody should see: ``api_key``, ``dbPassword``, ``PIN``."""
    words = [word.lower() for word in _WORDS.findall(name)]
    return bool(_SECRET & set(words)) or any(pair in _SECRET_PAIRS for pair in pairwise(words))


def shown(value: Any, depth: int = 0) -> Any:
    """A value as JSON to look at, not to load: what JSON has no word for is shown as Python writes it."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        # Beyond that a browser would show another number.
        return value if abs(value) < 2**53 else str(value)
    if isinstance(value, str):
        return _cut(str.__str__(value))
    if depth >= DEEPEST:
        return "…"
    if isinstance(value, Mapping):
        fields = {
            _cut(name if isinstance(name, str) else repr(name)): (
                MASK if isinstance(name, str) and is_secret(name) and inner is not None else shown(inner, depth + 1)
            )
            for name, inner in list(value.items())[:MOST_ITEMS]
        }
        return fields if len(value) <= MOST_ITEMS else {**fields, "…": f"{len(value) - MOST_ITEMS} more"}
    if isinstance(value, list | tuple):
        items = [shown(inner, depth + 1) for inner in value[:MOST_ITEMS]]
        return items if len(value) <= MOST_ITEMS else [*items, f"… {len(value) - MOST_ITEMS} more"]
    return _cut(repr(value))


def _cut(text: str) -> str:
    # A lone surrogate cannot be sent.
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"
