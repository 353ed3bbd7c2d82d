"""The marker of secret fields, and the data types of flows and bots that may have it."""

from __future__ import annotations

import typing
from functools import lru_cache
from typing import Any, Literal
from weakref import WeakSet

__all__ = ["Secret", "register_data", "secret_fields", "secret_fields_of"]

#: The data of a flow, or the profile of a bot.
Kind = Literal["flow", "profile"]
_DATA: dict[tuple[Kind, str], WeakSet[type]] = {}


class Secret:
    """Marks a field whose value the command line and the inspector show as ``•••``::

        @dataclass
        class Payment:
            amount: int
            account: Annotated[str, Secret]

    It works in the data type of a flow, in the model of a form, in the type of a profile and in every registered
    class. The value is stored as usual.
    """


def register_data(kind: Kind, name: str, cls: type) -> None:
    """Remember the data type of a flow, or the type of the profiles of a bot."""
    _DATA.setdefault((kind, name), WeakSet()).add(cls)


def secret_fields_of(kind: Kind, name: str | None) -> frozenset[str]:
    """Return the marked fields of the data of a flow or bot; if its type is unknown, those of all known types.

    Example::

        from stepwell.engine import secret_fields_of

        assert "name" not in secret_fields_of("flow", "registration")
    """
    known = _DATA.get((kind, name or "")) or [cls for at, found in _DATA.items() if at[0] == kind for cls in found]
    return frozenset().union(*map(secret_fields, known))


@lru_cache(maxsize=512)
def secret_fields(cls: type) -> frozenset[str]:
    """Return the names of the fields of a class whose annotations have the marker.

    Example::

        from stepwell.engine import secret_fields

        @dataclass
        class Account:
            name: str
            card: Annotated[str, Secret]

        assert secret_fields(Account) == {"card"}
    """
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except Exception:  # noqa: BLE001 - an annotation may raise any error
        # A name cannot be resolved: search the texts instead.
        hints = {}
        for base in reversed(cls.__mro__):
            hints |= vars(base).get("__annotations__", {})
    return frozenset(name for name, hint in hints.items() if _is_marked(hint))


def _is_marked(hint: Any) -> bool:
    if isinstance(hint, str):
        return Secret.__name__ in hint
    if isinstance(hint, typing.NewType):
        return _is_marked(hint.__supertype__)
    if any(each is Secret or isinstance(each, Secret) for each in getattr(hint, "__metadata__", ())):
        return True
    return any(_is_marked(each) for each in typing.get_args(hint) if each is not ...)
