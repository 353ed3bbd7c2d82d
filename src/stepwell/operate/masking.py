"""Masking of secrets in values that are shown: by the names of fields, and by markers on fields and classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stepwell.engine import MASK, is_secret, masked, masked_field, masked_fields, masked_text

__all__ = ["MASK", "hidden_texts", "is_secret", "masked", "masked_field", "masked_fields", "masked_text"]


def hidden_texts(tree: Any, shown: Any) -> Iterator[str]:
    """Yield the texts and numbers of a decoded value that its masked copy ``shown`` does not have."""
    if shown == MASK:
        yield from _leaves(tree)
    elif isinstance(tree, dict):
        for name, value in tree.items():
            yield from hidden_texts(value, shown[name])
    elif isinstance(tree, list):
        for value, copy in zip(tree, shown, strict=True):
            yield from hidden_texts(value, copy)


def _leaves(tree: Any) -> Iterator[str]:
    if isinstance(tree, dict | list):
        for value in tree.values() if isinstance(tree, dict) else tree:
            yield from _leaves(value)
    elif isinstance(tree, str | int | float) and not isinstance(tree, bool):
        yield str(tree)
