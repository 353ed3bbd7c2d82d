"""Masking of secrets in values that are shown: by the names of fields, and by a marker on classes."""

from __future__ import annotations

import re
from collections.abc import Collection
from itertools import pairwise
from typing import Any, Final

from stepwell.codec.types import class_of

__all__ = ["MASK", "is_secret", "masked"]

MASK: Final = "•••"
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SECRET = frozenset(
    {
        "apikey", "authorization", "cookie", "credential", "credentials", "cvc", "cvv", "iban", "otp", "passphrase",
        "passwd", "password", "passwords", "pin", "pwd", "secret", "secrets", "token", "tokens",
    }
)  # fmt: skip
_SECRET_PAIRS = frozenset({("api", "key"), ("access", "key"), ("private", "key"), ("card", "number")})
#: The attribute of a registered class that marks it: ``True``, or the names of its secret fields.
MARKER: Final = "__stepwell_secret__"


def is_secret(name: str) -> bool:
    """Return whether a field of this name probably holds a secret: ``api_key``, ``dbPassword``, ``PIN``."""
    words = [word.lower() for word in _WORDS.findall(name)]
    return bool(_SECRET & set(words)) or any(pair in _SECRET_PAIRS for pair in pairwise(words))


def masked(tree: Any) -> Any:
    """Return a copy of a decoded JSON value of the codec with its secrets masked.

    Fields are recognised by their names. A registered class with ``__stepwell_secret__ = True`` is masked as a whole,
    and one with ``__stepwell_secret__ = {"card"}`` in these fields, if this process has imported the class.
    """
    if isinstance(tree, list):
        return [masked(each) for each in tree]
    if not isinstance(tree, dict):
        return tree
    if len(tree) == 1:
        ((tag, inside),) = tree.items()
        if tag == "$dict":
            return {tag: [[key, _field(key, value)] for key, value in inside]}
        if tag in ("$record", "$enum"):
            return {tag: [inside[0], _of_class(tag, *inside)]}
    return {name: _field(name, value) for name, value in tree.items()}


def _field(name: Any, value: Any) -> Any:
    return MASK if isinstance(name, str) and is_secret(name) and value is not None else masked(value)


def _of_class(tag: str, name: str, inside: Any) -> Any:
    marker = getattr(class_of(tag, name), MARKER, False)
    if marker is True:
        return MASK
    names: Collection[str] = marker if isinstance(marker, Collection) else ()
    if names and isinstance(inside, dict):
        return {field: MASK if field in names else _field(field, value) for field, value in inside.items()}
    return masked(inside)
