"""Values as the page shows them: JSON, truncated, with secrets masked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepwell.operate.masking import MASK, is_secret

__all__ = ["as_json"]

MAX_TEXT, MAX_ITEMS, MAX_DEPTH = 4096, 100, 12


def as_json(value: Any, depth: int = 0) -> Any:
    """Return a value as JSON for display; other types become their ``repr``."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        # A browser would round larger numbers.
        return value if abs(value) < 2**53 else str(value)
    if isinstance(value, str):
        return _cut(str.__str__(value))
    if depth >= MAX_DEPTH:
        return "…"
    if isinstance(value, Mapping):
        fields = {
            _cut(name if isinstance(name, str) else repr(name)): (
                MASK if isinstance(name, str) and is_secret(name) and inner is not None else as_json(inner, depth + 1)
            )
            for name, inner in list(value.items())[:MAX_ITEMS]
        }
        return fields if len(value) <= MAX_ITEMS else {**fields, "…": f"{len(value) - MAX_ITEMS} more"}
    if isinstance(value, list | tuple):
        items = [as_json(inner, depth + 1) for inner in value[:MAX_ITEMS]]
        return items if len(value) <= MAX_ITEMS else [*items, f"… {len(value) - MAX_ITEMS} more"]
    return _cut(repr(value))


def _cut(text: str) -> str:
    # A lone surrogate cannot be encoded.
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"
