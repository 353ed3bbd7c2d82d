"""The states of conversations: in which record they are, and their stored form."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any, TypeAlias

from stepwell.engine import encode_key, is_registered
from stepwell.errors import StoredDataError

__all__ = ["ConversationKey", "field_of", "home_of", "key_text", "open_state", "pack_state"]

#: The ids of chat, user and message, as far as a conversation is separate for each of them.
ConversationKey: TypeAlias = tuple[int | str, ...]

_ENUM = "enum"


def field_of(name: str) -> str:
    """Return the field with the states of one handler; its value is a dict of states by the texts of their keys."""
    return f"conversation.{name}"


def key_text(key: ConversationKey) -> str:
    """Return a conversation's key as it is written in the fields of its record."""
    return encode_key(key)


def home_of(key: ConversationKey) -> Any:
    """Return the key of the record with a conversation's state, given its chat and user: the record of the user."""
    return key[1 if len(key) > 1 else 0]


def pack_state(state: object) -> Any:
    """Return a state in its stored form. A member of an enum that is not registered is stored by its name."""
    if isinstance(state, Enum) and not is_registered(type(state)):
        # Such a plain value equals the member, and a dict finds both under the same key.
        if isinstance(state, str):
            return str.__str__(state)
        if isinstance(state, int):
            return int(state)
        return {_ENUM: [type(state).__qualname__, state.name]}
    return state


def open_state(stored: Any, declared: Iterable[object] = ()) -> Any:
    """Return the state that ``pack_state`` was given. ``declared``: the states of the handler."""
    # A state is a key of a dict, so no state is a dict itself.
    if type(stored) is not dict:
        return stored
    kind, name = stored[_ENUM]
    for state in declared:
        if isinstance(state, Enum) and type(state).__qualname__ == kind and name in type(state).__members__:
            return type(state)[name]
    raise StoredDataError(
        f"the stored state {kind}.{name} is not a state of this handler; keep the enum's name and members, or decorate "
        "it with @stepwell.record_type"
    )
