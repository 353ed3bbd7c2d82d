"""One way to read an update: plain Bot API JSON, or the objects of aiogram, python-telegram-bot and telebot.

None of them is imported. An object is read by its attributes, a dict by its keys; whatever is malformed
reads as ``None``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

__all__ = ["KINDS", "Command", "Peer", "Update"]

_MESSAGES = ("message", "edited_message", "business_message", "edited_business_message", "guest_message")
_POSTS = ("channel_post", "edited_channel_post")
# The chat is not left out by mistake: these never have one.
_WITHOUT_CHAT = frozenset(
    {
        "inline_query",
        "chosen_inline_result",
        "shipping_query",
        "pre_checkout_query",
        "purchased_paid_media",
        "business_connection",
        "managed_bot",
        "subscription",
    }
)
_WITHOUT_USER = frozenset(
    {
        *_POSTS,
        "poll",
        "message_reaction_count",
        "deleted_business_messages",
        "chat_boost",
        "removed_chat_boost",
        "stopped_message_generation",
    }
)
#: Every kind of update of Bot API 10.3.
KINDS: tuple[str, ...] = (
    *_MESSAGES,
    *_POSTS,
    "callback_query",
    "inline_query",
    "chosen_inline_result",
    "shipping_query",
    "pre_checkout_query",
    "purchased_paid_media",
    "poll",
    "poll_answer",
    "my_chat_member",
    "chat_member",
    "chat_join_request",
    "message_reaction",
    "message_reaction_count",
    "chat_boost",
    "removed_chat_boost",
    "business_connection",
    "deleted_business_messages",
    "managed_bot",
    "subscription",
    "stopped_message_generation",
)
_KNOWN = frozenset(KINDS)
# Handlers of aiogram and telebot get the bare event; its class says what it is.
_BARE = {
    "CallbackQuery": "callback_query",
    "InlineQuery": "inline_query",
    "ChosenInlineResult": "chosen_inline_result",
    "ShippingQuery": "shipping_query",
    "PreCheckoutQuery": "pre_checkout_query",
    "PaidMediaPurchased": "purchased_paid_media",
    "Poll": "poll",
    "PollAnswer": "poll_answer",
    "ChatMemberUpdated": "chat_member",
    "ChatJoinRequest": "chat_join_request",
    "MessageReactionUpdated": "message_reaction",
    "MessageReactionCountUpdated": "message_reaction_count",
    "ChatBoostUpdated": "chat_boost",
    "ChatBoostRemoved": "removed_chat_boost",
    "BusinessConnection": "business_connection",
    "BusinessMessagesDeleted": "deleted_business_messages",
    "ManagedBotUpdated": "managed_bot",
    "BotSubscriptionUpdated": "subscription",
    "MessageGenerationStopped": "stopped_message_generation",
}
# None of these has fields to read.
_SCALARS = (str, bytes, int, float, list, tuple, set)
_COMMAND = re.compile(r"/([A-Za-z0-9_]+)(?:@([A-Za-z0-9_]+))?(?:\s+(.*))?", re.DOTALL)


_set = object.__setattr__


class Command(NamedTuple):
    """``/name@bot args``; name and bot in lower case."""

    name: str
    bot: str | None
    args: str


class Peer:
    """A user or a chat. ``id`` is always there; any other field is read as Telegram names it,
    and is ``None`` when the update does not have it: ``peer.language_code``, ``peer.type``."""

    __slots__ = ("id", "raw")
    id: int
    raw: Any

    def __init__(self, id: int, raw: object) -> None:  # noqa: A002
        _set(self, "id", id)
        _set(self, "raw", raw)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _read(self.raw, name)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"an update is what came in: {name!r} cannot be set")

    def __reduce__(self) -> tuple[object, ...]:
        return Peer, (self.id, self.raw)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Peer) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"Peer(id={self.id})"


class Update:
    """An update of any origin. Make one with ``Update.of(anything)``."""

    __slots__ = (
        "_place",
        "business_connection_id",
        "callback_data",
        "callback_id",
        "chat",
        "chatless",
        "command",
        "event",
        "in_topic",
        "kind",
        "migration",
        "raw",
        "text",
        "thread_id",
        "update_id",
        "user",
    )

    #: What was given: a dict, or a framework's object.
    raw: Any
    #: ``None`` when there is none; such an update is never taken for a duplicate.
    update_id: int | None
    #: What the update is, in the words of the Bot API: ``"message"``, ``"callback_query"``.
    kind: str | None
    #: What it brings, as it came: the message, the callback query.
    event: Any
    #: Who did it. ``None`` where Telegram does not say: channel posts, anonymous votes and reactions.
    user: Peer | None
    #: Where it happened; for an anonymous vote, the chat that voted.
    chat: Peer | None
    #: Updates like this one belong to no chat: an inline query, a payment, a vote by a user.
    chatless: bool
    #: The thread or forum topic it happened in.
    thread_id: int | None
    #: The text of the message that was sent; a callback query has none.
    text: str | None
    #: What the pressed button carries.
    callback_data: str | None
    #: What answering a pressed button needs.
    callback_id: str | None
    #: It happened in a topic of a forum, and not merely in a thread of replies.
    in_topic: bool
    #: Old and new id, when this message says that a group became a supergroup.
    migration: tuple[int, int] | None
    #: The text read as a command: ``/start@my_bot hello``.
    command: Command | None
    #: The business account on whose behalf the bot reads.
    business_connection_id: str | None
    # The part that says where it happened: the message sent, or the one with the button.
    _place: Any

    def __init__(self, raw: object) -> None:
        self.raw = raw
        if type(raw) is dict and "update_id" in raw:
            message = raw.get("message")
            if type(message) is dict:
                # What nearly every update is, known without looking further.
                self.kind, self.event, self._place = "message", message, message
                number, text, sender = raw["update_id"], message.get("text"), message.get("from")
                self.update_id = number if type(number) is int else None
                self.text = text if text and isinstance(text, str) else None
                self.user = _peer(message.get("user") if sender is None else sender)
                self.chat = _peer(message.get("chat"))

    @classmethod
    def of(cls, anything: object) -> Update:
        """The update in a dict, in a framework's update or event, or the ``Update`` itself."""
        return anything if isinstance(anything, Update) else cls(anything)

    def __getattr__(self, name: str) -> Any:
        # A slot is empty until it is first asked for: most updates are asked for little.
        if name in ("kind", "event"):
            self.kind, self.event = _opened(self.raw)
            return self.kind if name == "kind" else self.event
        reader = _READERS.get(name)
        if reader is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        value = reader(self)
        setattr(self, name, value)
        return value

    def topic(self, *, strict: bool = False) -> int | None:
        """The thread it happened in, 0 outside of threads, ``None`` when that cannot be read.

        With ``strict`` only forum topics count: replies in an ordinary group have a thread too.
        """
        if self.kind in _POSTS:
            return 0
        thread = _read(self._place, "message_thread_id")
        if thread is None or (strict and _read(self._place, "is_topic_message") is not True):
            return 0
        return _number(thread)

    def __repr__(self) -> str:
        return f"Update(kind={self.kind!r}, update_id={self.update_id!r})"


def _place(update: Update) -> Any:
    kind, event = update.kind, update.event
    if kind == "callback_query" or (kind not in _KNOWN and _read(event, "chat") is None):
        message = _read(event, "message")
        return event if message is None else message
    return event


def _user(update: Update) -> Peer | None:
    kind, event = update.kind, update.event
    if kind in _WITHOUT_USER:
        return None
    if kind == "poll_answer" and _read(event, "voter_chat") is not None:
        # Telegram still fills in a service user, for bots that do not know of voter chats.
        return None
    # JSON says "from"; objects say "from_user", since "from" is a word of the language.
    sender = _read(event, "from")
    if sender is None and not isinstance(event, dict):
        sender = _read(event, "from_user")
    return _peer(_read(event, "user") if sender is None else sender)


def _chat(update: Update) -> Peer | None:
    if update.kind == "poll" or update.kind in _WITHOUT_CHAT:
        return None
    return _peer(_read(update._place, "voter_chat" if update.kind == "poll_answer" else "chat"))


def _chatless(update: Update) -> bool:
    kind, event = update.kind, update.event
    if kind is None or kind in _WITHOUT_CHAT:
        return kind is not None
    if kind == "poll_answer":
        return _read(event, "voter_chat") is None
    if kind == "callback_query":
        return _read(event, "message") is None
    return kind not in _KNOWN and _read(event, "chat") is None and _read(event, "message") is None


def _command(update: Update) -> Command | None:
    text = update.text
    found = _COMMAND.fullmatch(text) if text is not None and text[0] == "/" else None
    if found is None:
        return None
    name, bot, args = found.groups()
    return Command(name.lower(), bot.lower() if bot else None, (args or "").strip())


def _migration(update: Update) -> tuple[int, int] | None:
    if update.kind != "message" or update.chat is None:
        return None
    to, from_ = (_number(_read(update.event, f"migrate_{way}_chat_id")) for way in ("to", "from"))
    if to is not None:
        return (update.chat.id, to)
    return None if from_ is None else (from_, update.chat.id)


def _business_connection_id(update: Update) -> str | None:
    if update.kind == "business_connection":
        return _string(_read(update.event, "id"))
    return _string(_read(update._place, "business_connection_id"))


_READERS: dict[str, Callable[[Update], Any]] = {
    "_place": _place,
    "update_id": lambda update: _update_id(_read(update.raw, "update_id")),
    "user": _user,
    "chat": _chat,
    "chatless": _chatless,
    "thread_id": lambda update: update.topic() or None,
    "text": lambda update: None if update.kind == "callback_query" else _string(_read(update.event, "text")),
    "callback_data": lambda update: _string(_read(update.event, "data")) if update.kind == "callback_query" else None,
    "callback_id": lambda update: _string(_read(update.event, "id")) if update.kind == "callback_query" else None,
    "in_topic": lambda update: _read(update._place, "is_topic_message") is True,
    "migration": _migration,
    "command": _command,
    "business_connection_id": _business_connection_id,
}


def _opened(raw: Any) -> tuple[str | None, Any]:
    """The kind of an update and what it brings."""
    if isinstance(raw, dict) or isinstance(raw, Mapping):  # noqa: SIM101 - the first is the fast one
        return _opened_json(raw)
    if _read(raw, "update_id") is None:
        return _bare_kind(raw), raw
    for kind in KINDS:
        event = _read(raw, kind)
        if event is not None and not isinstance(event, _SCALARS):
            return kind, event
    # What a framework does not know yet it keeps as JSON: python-telegram-bot here, aiogram (pydantic) there.
    for extra in ("api_kwargs", "model_extra"):
        found = _read(raw, extra)
        if isinstance(found, Mapping):
            opened = _opened_json(found, whole=False)
            if opened[0] is not None:
                return opened
    return None, None


def _opened_json(raw: Mapping[Any, Any], *, whole: bool = True) -> tuple[str | None, Any]:
    if whole and "update_id" not in raw:
        # A message or callback query without its update; the latter holds a message of the bot's own.
        if "chat_instance" in raw:
            return "callback_query", raw
        if "message_id" in raw:
            return _message_kind(raw), raw
    unknown: tuple[str | None, Any] = (None, None)
    for kind, event in raw.items():
        if type(event) is not dict and (event is None or isinstance(event, _SCALARS)):
            continue
        if kind in _KNOWN:
            return kind, event
        if unknown[0] is None and isinstance(kind, str):
            unknown = kind, event
    return unknown


def _bare_kind(event: object) -> str | None:
    for base in type(event).__mro__:
        if base.__name__ == "Message":
            return _message_kind(event)
        if base.__name__ in _BARE:
            return _BARE[base.__name__]
    return None


def _message_kind(message: object) -> str:
    edited = "edited_" if _read(message, "edit_date") is not None else ""
    if _read(_read(message, "chat"), "type") == "channel":
        return f"{edited}channel_post"
    if _read(message, "guest_query_id") is not None:
        return "guest_message"
    return f"{edited}business_message" if _string(_read(message, "business_connection_id")) else f"{edited}message"


def _read(node: Any, name: str) -> Any:
    """A field of a dict or an object, ``None`` when there is no such thing."""
    if isinstance(node, dict):
        return node.get(name)
    if node is None or isinstance(node, _SCALARS):
        return None
    try:
        return node.get(name) if isinstance(node, Mapping) else getattr(node, name, None)
    except Exception:  # noqa: BLE001
        # A framework's property may raise anything; what cannot be read is not there.
        return None


def _peer(node: Any) -> Peer | None:
    number = node.get("id") if type(node) is dict else _read(node, "id")
    return Peer(number, node) if type(number) is int and number != 0 else None


def _update_id(value: object) -> int | None:
    # Unlike a person or a chat, an update may well have the number 0.
    return value if type(value) is int else None


def _number(value: object) -> int | None:
    # 0 stands for "none" in a key, so it cannot be anybody's id.
    return value if type(value) is int and value != 0 else None


def _string(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
