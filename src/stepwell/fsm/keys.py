"""Key strategies: which conversation an update belongs to.

A strategy is anything with ``extract(update)``, or a function of the update. It gets an ``Update`` and
returns a key, or ``None`` for "no key". 0 stands for a chat or thread that an update does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from stepwell.errors import InvalidOption
from stepwell.fsm.update import Update

__all__ = [
    "Business",
    "Chat",
    "ChatTopic",
    "ChatTopicUser",
    "ChatUser",
    "KeyStrategy",
    "Parts",
    "User",
    "Where",
    "answer_to",
    "answer_to_key",
    "moved",
    "name_of",
    "params_of",
    "parts_of",
    "strategy",
    "tags_of",
    "tags_of_key",
]


@runtime_checkable
class KeyStrategy(Protocol):
    """Must give the same key for every update of one conversation."""

    def extract(self, update: Update, /) -> Any:
        """The key, any nesting of ``str, int, bool, None, bytes, tuple``; ``None`` for no key."""


class Parts(NamedTuple):
    """Whom and what a key stands for; 0 and ``None`` stand for nobody."""

    chat: int | None = None
    user: int | None = None
    thread: int | None = None
    business_connection: str | None = None


@dataclass(frozen=True, slots=True)
class ChatUser:
    """Each user in each chat: ``(chat, user)``. The default."""

    def extract(self, update: Update) -> tuple[int, int] | None:
        user, chat = update.user, update.chat
        if user is None:
            return None
        if chat is None:
            return (0, user.id) if update.chatless else None
        return (chat.id, user.id)

    def parts(self, key: Any) -> Parts:
        return Parts(chat=key[0], user=key[1])


@dataclass(frozen=True, slots=True)
class User:
    """Each user, wherever they write: ``(user,)``."""

    def extract(self, update: Update) -> tuple[int] | None:
        return (update.user.id,) if update.user is not None else None

    def parts(self, key: Any) -> Parts:
        return Parts(user=key[0])

    def tags(self, update: Update) -> Iterable[str]:
        return [f"user:{update.user.id}"] if update.user is not None else []


@dataclass(frozen=True, slots=True)
class Chat:
    """Each chat, shared by everybody in it: ``(chat,)``."""

    def extract(self, update: Update) -> tuple[int] | None:
        return (update.chat.id,) if update.chat is not None else None

    def parts(self, key: Any) -> Parts:
        return Parts(chat=key[0])

    def tags(self, update: Update) -> Iterable[str]:
        return [f"chat:{update.chat.id}"] if update.chat is not None else []


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTopic:
    """Each forum topic, shared by everybody in it: ``(chat, thread)``, thread 0 outside of topics.

    Replies in an ordinary group have a thread too; ``strict_topics`` counts forum topics only.
    """

    strict_topics: bool = False

    def extract(self, update: Update) -> tuple[int, int] | None:
        topic = update.topic(strict=self.strict_topics)
        if update.chat is None or topic is None:
            return None
        return (update.chat.id, topic)

    def parts(self, key: Any) -> Parts:
        return Parts(chat=key[0], thread=key[1])

    def tags(self, update: Update) -> Iterable[str]:
        return [f"chat:{update.chat.id}"] if update.chat is not None else []


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTopicUser:
    """Each user in each forum topic: ``(chat, thread, user)``, thread 0 outside of topics."""

    strict_topics: bool = False

    def extract(self, update: Update) -> tuple[int, int, int] | None:
        topic = update.topic(strict=self.strict_topics)
        if update.chat is None or update.user is None or topic is None:
            return None
        return (update.chat.id, topic, update.user.id)

    def parts(self, key: Any) -> Parts:
        return Parts(chat=key[0], thread=key[1], user=key[2])


class Business:
    """Any other strategy, kept apart for each business account: ``(connection, key)``.

    The connection is 0 for what reaches the bot itself.
    """

    __slots__ = ("inner",)

    def __init__(self, inner: object) -> None:
        self.inner = strategy(inner)

    def extract(self, update: Update) -> tuple[str | int, Any] | None:
        key = self.inner.extract(update)
        return (update.business_connection_id or 0, key) if key is not None else None

    def tags(self, update: Update) -> Iterable[str]:
        return tags_of(self.inner, update, self.inner.extract(update))

    def parts(self, key: Any) -> Parts:
        return parts_of(self.inner, key[1])._replace(business_connection=key[0] or None)

    def moved(self, key: tuple[str | int, Any], old: int, new: int) -> tuple[str | int, Any] | None:
        inner = moved(self.inner, key[1], old, new)
        return None if inner is None else (key[0], inner)

    def __repr__(self) -> str:
        return f"Business({self.inner!r})"


@dataclass(frozen=True, slots=True)
class _Function:
    function: Callable[[Update], Any]

    def extract(self, update: Update) -> Any:
        return self.function(update)


def strategy(key: object) -> KeyStrategy:
    """The strategy that was given as an instance, a class or a function."""
    if isinstance(key, type) and callable(getattr(key, "extract", None)):
        try:
            key = key()
        except TypeError as error:
            raise InvalidOption(f"key={key!r} cannot be made without arguments; give an instance") from error
    if isinstance(key, KeyStrategy):
        return key
    if callable(key) and not isinstance(key, type):
        return _Function(key)
    raise InvalidOption(
        f"key={key!r} is no key strategy; give keys.ChatUser() or another of stepwell.fsm.keys, "
        "a function of the update, or an object with extract(update)"
    )


def reads_telegram(key: KeyStrategy) -> bool:
    """Whether this is one of the strategies of this module, which read updates of Telegram."""
    return type(key).__module__ == __name__ and not isinstance(key, _Function)


def name_of(key: KeyStrategy) -> str:
    """What a strategy is called in messages."""
    if isinstance(key, _Function):
        return getattr(key.function, "__name__", repr(key.function))
    return type(key).__name__


def tags_of(key: KeyStrategy, update: Update, value: Any) -> tuple[str, ...]:
    """Under which people and chats a record is found again: ``("user:42", "chat:-100")``.

    A strategy says it with ``tags(update)``. Where it does not, the user and the chat count
    whose ids are in its key.
    """
    own = getattr(key, "tags", None)
    if callable(own):
        return tuple(own(update))
    parts = list(_parts(value))
    return tuple(
        f"{name}:{peer.id}"
        for name, peer in (("user", update.user), ("chat", update.chat))
        if peer is not None and peer.id in parts
    )


def parts_of(key: KeyStrategy, value: Any) -> Parts:
    """What a key says by itself. A strategy tells it with ``parts(key)``; where it does not, nothing is known."""
    own = getattr(key, "parts", None)
    try:
        return own(value) if callable(own) else Parts()
    except (TypeError, LookupError):
        # A key given by hand need not have the shape of the strategy's.
        return Parts()


def tags_of_key(key: KeyStrategy, value: Any) -> tuple[str, ...]:
    """The tags of a record that was made without an update."""
    parts = parts_of(key, value)
    named = (("user", parts.user), ("chat", parts.chat))
    return tuple(f"{name}:{peer}" for name, peer in named if type(peer) is int and peer)


#: Where an answer goes: chat, thread and business connection, or nothing where nobody can say.
Where: TypeAlias = tuple[int, int | None, str | None] | tuple[()]


def answer_to(update: Update) -> Where:
    """Where the answer to an update goes."""
    peer = update.chat or update.user
    if peer is None:
        return ()
    return peer.id, update.thread_id if update.in_topic else None, update.business_connection_id


def answer_to_key(key: KeyStrategy, value: Any) -> Where:
    """Where an answer without an update goes, as far as the key says it."""
    parts = parts_of(key, value)
    chat = parts.chat or parts.user
    return (chat, parts.thread or None, parts.business_connection) if type(chat) is int else ()


def params_of(where: Where) -> dict[str, Any]:
    """The parameters of ``sendMessage`` that say it."""
    names = ("chat_id", "message_thread_id", "business_connection_id")
    return {name: part for name, part in zip(names, where, strict=False) if part is not None}


def moved(key: KeyStrategy, value: Any, old: int, new: int) -> Any:
    """The key of a record whose chat got a new id; ``None`` to leave the record where it is.

    A strategy says it with ``moved(key, old, new)``. Where it does not, the id is replaced wherever it stands.
    """
    own = getattr(key, "moved", None)
    return own(value, old, new) if callable(own) else _replaced(value, old, new)


def _replaced(value: Any, old: int, new: int) -> Any:
    if isinstance(value, tuple):
        return tuple(_replaced(part, old, new) for part in value)
    return new if type(value) is int and value == old else value


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple):
        for part in value:
            yield from _parts(part)
    else:
        yield value
