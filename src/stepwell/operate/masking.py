"""Masking of secrets in values that are shown: by the names of fields, and by markers on fields and classes."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

from stepwell.engine import MASK, class_of, is_secret, masked_text, secret_fields

__all__ = ["MASK", "hidden_texts", "is_secret", "masked", "masked_field", "masked_fields", "masked_text"]

#: The attribute of a registered class that marks it as a whole.
MARKER: Final = "__stepwell_secret__"


def masked(tree: Any) -> Any:
    """Return a copy of a decoded JSON value of the codec with its secrets masked.

    Fields are recognised by their names. In a registered class that this process has imported, fields marked with
    ``Annotated[..., Secret]`` are masked too. A class with ``__stepwell_secret__ = True`` is masked as a whole.
    """
    if isinstance(tree, list):
        return [masked(each) for each in tree]
    if not isinstance(tree, dict):
        return tree
    if len(tree) == 1:
        ((tag, inside),) = tree.items()
        if tag in ("$record", "$enum"):
            return {tag: [inside[0], _of_class(tag, *inside)]}
    return masked_fields(tree)


def masked_fields(fields: Any, marked: Collection[str] = ()) -> dict[str, Any]:
    """Return a decoded dict with its secrets masked; ``marked`` are the names of fields that are secret as a whole."""
    if list(fields) == ["$dict"]:
        return {"$dict": [[name, masked_field(name, value, marked)] for name, value in fields["$dict"]]}
    return {name: masked_field(name, value, marked) for name, value in fields.items()}


def masked_field(name: Any, value: Any, marked: Collection[str] = ()) -> Any:
    """Return the value of one field of a dict with its secrets masked."""
    if value is not None and isinstance(name, str) and (name in marked or is_secret(name)):
        return MASK
    return masked(value)


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


def _of_class(tag: str, name: str, inside: Any) -> Any:
    cls = class_of(tag, name)
    if getattr(cls, MARKER, False):
        return MASK
    marked = frozenset() if cls is None else secret_fields(cls)
    if not isinstance(inside, dict):
        return masked(inside)
    if list(inside) == ["$tuple"]:
        # A pydantic model with extra fields or unset fields.
        fields, rest = inside["$tuple"]
        return {"$tuple": [masked_fields(fields, marked), masked(rest)]}
    return masked_fields(inside, marked)
