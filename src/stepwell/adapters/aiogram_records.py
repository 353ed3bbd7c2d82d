"""The place of aiogram's states and data in a storage. It does not import aiogram."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

__all__ = ["DEFAULT_DESTINY", "AiogramKey", "KeyParts", "address_of", "tags_of"]

#: aiogram's name for the destiny of keys that have no other one.
DEFAULT_DESTINY = "default"


class KeyParts(Protocol):
    """The parts of aiogram's ``StorageKey``."""

    @property
    def bot_id(self) -> int: ...
    @property
    def chat_id(self) -> int: ...
    @property
    def user_id(self) -> int: ...
    @property
    def thread_id(self) -> int | None: ...
    @property
    def business_connection_id(self) -> str | None: ...
    @property
    def destiny(self) -> str: ...


class AiogramKey(NamedTuple):
    """A ``StorageKey`` for programs without aiogram."""

    bot_id: int
    chat_id: int
    user_id: int
    thread_id: int | None = None
    business_connection_id: str | None = None
    destiny: str = DEFAULT_DESTINY


def address_of(name: str, key: KeyParts) -> tuple[str, Any]:
    """Return the namespace and the key of a record. ``name``: the name of the ``StepwellStorage``."""
    parts = (key.chat_id, key.user_id, key.thread_id, key.business_connection_id, key.destiny)
    return f"{name}:{key.bot_id}", parts


def tags_of(key: KeyParts) -> tuple[str, ...]:
    """Return the tags of a record."""
    # Key strategies for a whole chat use the chat's id as user id.
    user = (f"user:{key.user_id}",) if key.user_id > 0 else ()
    return (*user, f"chat:{key.chat_id}")
