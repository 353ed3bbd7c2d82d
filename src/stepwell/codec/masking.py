"""Masking of secrets in decoded values: by the names of fields, and by markers on fields and classes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from stepwell._secrets import MASK, is_secret
from stepwell.codec.secret import secret_fields
from stepwell.codec.types import class_of

__all__ = ["masked", "masked_field", "masked_fields"]

#: The attribute of a registered class that marks it as a whole.
MARKER: Final = "__stepwell_secret__"


def masked(tree: Any) -> Any:
    """Return a copy of a decoded JSON value of the codec with its secrets masked.

    Fields are recognised by their names. In a registered class that this process has imported, fields marked with
    ``Annotated[..., Secret]`` are masked too. A class with ``__stepwell_secret__ = True`` is masked as a whole.

    Example::

        from stepwell.engine import MASK, masked

        assert masked({"name": "Ann", "api_key": "k"}) == {"name": "Ann", "api_key": MASK}
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
    """Return a decoded dict with its secrets masked; ``marked`` are the names of fields that are secret as a whole.

    Example::

        from stepwell.engine import MASK, masked_fields

        assert masked_fields({"name": "Ann", "code": 7}, {"code"}) == {"name": "Ann", "code": MASK}
    """
    if list(fields) == ["$dict"]:
        return {"$dict": [[name, masked_field(name, value, marked)] for name, value in fields["$dict"]]}
    return {name: masked_field(name, value, marked) for name, value in fields.items()}


def masked_field(name: Any, value: Any, marked: Collection[str] = ()) -> Any:
    """Return the value of one field of a dict with its secrets masked.

    Example::

        from stepwell.engine import MASK, masked_field

        assert masked_field("api_key", "k") == MASK
    """
    if value is not None and isinstance(name, str) and (name in marked or is_secret(name)):
        return MASK
    return masked(value)


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
