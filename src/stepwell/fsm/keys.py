"""Key strategies: which conversation an update belongs to.

A strategy is an object with ``extract(update)``, or a function of the update. It gets an ``Update`` and returns a key,
or ``None`` if the update has no key. In a key, 0 means that the update has no chat or no thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from stepwell._secrets import quoted
from stepwell.errors import InvalidOption
from stepwell.fsm.update import Update

__all__ = ["Business", "Chat", "ChatTopic", "ChatTopicUser", "ChatUser", "KeyStrategy", "Parts", "User"]


@runtime_checkable
class KeyStrategy(Protocol):
    """A key strategy. It must return the same key for every update of one conversation.

    Example::

        class Team:
            def extract(self, update):
                return ("team", update.chat.id % 10) if update.chat else None

        fsm = FSM("my_bot", storage="memory://", flows=[Registration], key=Team())
    """

    def extract(self, update: Update, /) -> Any:
        """Return the key, any nesting of ``str, int, bool, None, bytes, tuple``, or ``None`` for no key."""


class Parts(NamedTuple):
    """The ids in a key. 0 and ``None`` mean that the key has no such id.

    Example::

        assert keys.ChatUser().parts((-100, 42)) == keys.Parts(chat=-100, user=42)
    """

    chat: int | None = None
    user: int | None = None
    thread: int | None = None
    business_connection: str | None = None


@dataclass(frozen=True, slots=True)
class ChatUser:
    """One conversation per user and chat: ``(chat, user)``. The default.

    Example::

        assert keys.ChatUser().extract(Update.of(update)) == (42, 42)
    """

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
    """One conversation per user, in all chats: ``(user,)``.

    Example::

        fsm = FSM("my_bot", storage="memory://", flows=[Registration], key=keys.User())
        assert fsm.key.extract(Update.of(update)) == (42,)
    """

    def extract(self, update: Update) -> tuple[int] | None:
        return (update.user.id,) if update.user is not None else None

    def parts(self, key: Any) -> Parts:
        return Parts(user=key[0])

    def tags(self, update: Update) -> Iterable[str]:
        return [f"user:{update.user.id}"] if update.user is not None else []


@dataclass(frozen=True, slots=True)
class Chat:
    """One conversation per chat, shared by its members: ``(chat,)``.

    Example::

        fsm = FSM("my_bot", storage="memory://", flows=[Registration], key=keys.Chat())
        assert fsm.key.extract(Update.of(update)) == (42,)
    """

    def extract(self, update: Update) -> tuple[int] | None:
        return (update.chat.id,) if update.chat is not None else None

    def parts(self, key: Any) -> Parts:
        return Parts(chat=key[0])

    def tags(self, update: Update) -> Iterable[str]:
        return [f"chat:{update.chat.id}"] if update.chat is not None else []


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTopic:
    """One conversation per forum topic, shared by its members: ``(chat, thread)``, thread 0 outside of topics.

    Replies in an ordinary group have a thread too; with ``strict_topics`` only forum topics count.

    Example::

        fsm = FSM("my_bot", storage="memory://", flows=[Registration], key=keys.ChatTopic(strict_topics=True))
        assert fsm.key.extract(Update.of(update)) == (42, 0)
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
    """One conversation per user and forum topic: ``(chat, thread, user)``, thread 0 outside of topics.

    Example::

        fsm = FSM("my_bot", storage="memory://", flows=[Registration], key=keys.ChatTopicUser())
        assert fsm.key.extract(Update.of(update)) == (42, 0, 42)
    """

    strict_topics: bool = False

    def extract(self, update: Update) -> tuple[int, int, int] | None:
        topic = update.topic(strict=self.strict_topics)
        if update.chat is None or update.user is None or topic is None:
            return None
        return (update.chat.id, topic, update.user.id)

    def parts(self, key: Any) -> Parts:
        return Parts(chat=key[0], thread=key[1], user=key[2])


class Business:
    """Another strategy, with separate conversations per business account: ``(connection, key)``.

    The connection is 0 for updates that the bot itself gets.

    Example::

        fsm = FSM("my_bot", storage="memory://", flows=[Registration], key=keys.Business(keys.ChatUser()))
        assert fsm.key.extract(Update.of(update)) == (0, (42, 42))
    """

    __slots__ = ("inner",)

    def __init__(self, inner: object) -> None:
        self.inner: KeyStrategy = strategy(inner)

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
class _FunctionStrategy:
    function: Callable[[Update], Any]

    def extract(self, update: Update) -> Any:
        return self.function(update)


def strategy(key: object) -> KeyStrategy:
    """Return the strategy for an instance, a class or a function."""
    if isinstance(key, type) and callable(getattr(key, "extract", None)):
        try:
            key = key()
        except TypeError as error:
            raise InvalidOption(f"key={quoted(key)} needs arguments; pass an instance of it") from error
    if isinstance(key, KeyStrategy):
        return key
    if callable(key) and not isinstance(key, type):
        return _FunctionStrategy(key)
    raise InvalidOption(
        f"key={quoted(key)} is not a key strategy; pass keys.ChatUser() or another strategy of stepwell.fsm.keys, "
        "a function of the update, or an object with extract(update)"
    )


def reads_telegram(key: KeyStrategy) -> bool:
    """Return whether this strategy is one of this module, which read Telegram's updates."""
    return type(key).__module__ == __name__ and not isinstance(key, _FunctionStrategy)


def name_of(key: KeyStrategy) -> str:
    """Return the name of a strategy for error messages."""
    if isinstance(key, _FunctionStrategy):
        return getattr(key.function, "__name__", repr(key.function))
    return type(key).__name__


def tags_of(key: KeyStrategy, update: Update, value: Any) -> tuple[str, ...]:
    """Return the tags of a record: ``("user:42", "chat:-100")``. ``find`` and ``forget`` look records up by them.

    They come from the strategy's ``tags(update)``. Without that method they name the update's user and chat, each if
    its id is in the key.
    """
    own = getattr(key, "tags", None)
    if callable(own):
        return tuple(own(update))
    ids = list(_flatten(value))
    return tuple(
        f"{name}:{peer.id}"
        for name, peer in (("user", update.user), ("chat", update.chat))
        if peer is not None and peer.id in ids
    )


def parts_of(key: KeyStrategy, value: Any) -> Parts:
    """Return the ids in a key as the strategy's ``parts(key)`` names them; without that method, none."""
    own = getattr(key, "parts", None)
    try:
        return own(value) if callable(own) else Parts()
    except (TypeError, LookupError):
        # A key given with key= may differ in shape from the strategy's keys.
        return Parts()


def tags_of_key(key: KeyStrategy, value: Any) -> tuple[str, ...]:
    """Return the tags of a record that was made without an update."""
    parts = parts_of(key, value)
    named = (("user", parts.user), ("chat", parts.chat))
    return tuple(f"{name}:{peer}" for name, peer in named if type(peer) is int and peer)


#: The destination of an answer: chat, thread and business connection; empty if it is not known.
Where: TypeAlias = tuple[int, int | None, str | None] | tuple[()]


def answer_to(update: Update) -> Where:
    """Return the destination of an answer to an update."""
    peer = update.chat or update.user
    if peer is None:
        return ()
    return peer.id, update.thread_id if update.in_topic else None, update.business_connection_id


def answer_to_key(key: KeyStrategy, value: Any) -> Where:
    """Return the destination of an answer without an update, read from the key."""
    parts = parts_of(key, value)
    chat = parts.chat or parts.user
    return (chat, parts.thread or None, parts.business_connection) if type(chat) is int else ()


def params_of(where: Where) -> dict[str, Any]:
    """Return the destination as parameters of ``sendMessage``."""
    names = ("chat_id", "message_thread_id", "business_connection_id")
    return {name: part for name, part in zip(names, where, strict=False) if part is not None}


def moved(key: KeyStrategy, value: Any, old: int, new: int) -> Any:
    """Return the key of a record whose chat got a new id, or ``None`` if the record keeps its key.

    It comes from the strategy's ``moved(key, old, new)``. Without that method, the id is replaced wherever it occurs.
    """
    own = getattr(key, "moved", None)
    return own(value, old, new) if callable(own) else _replace_id(value, old, new)


def _replace_id(value: Any, old: int, new: int) -> Any:
    if isinstance(value, tuple):
        return tuple(_replace_id(part, old, new) for part in value)
    return new if type(value) is int and value == old else value


def _flatten(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple):
        for part in value:
            yield from _flatten(part)
    else:
        yield value
