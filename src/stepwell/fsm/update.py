"""Updates: one way to read plain Bot API JSON and the objects of aiogram, python-telegram-bot and telebot.

None of these libraries is imported. Fields of a dict are read by key, fields of an object by attribute. A malformed
field reads as ``None``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stepwell._secrets import quoted

__all__ = ["KINDS", "ON_REQUEST", "Command", "Peer", "Update"]


class _Kind(NamedTuple):
    name: str
    #: The class of its event. Handlers of aiogram and telebot get the event without its update.
    event_class: str
    has_user: bool = True
    has_chat: bool = True


_TABLE = (
    _Kind("message", "Message"),
    _Kind("edited_message", "Message"),
    _Kind("business_message", "Message"),
    _Kind("edited_business_message", "Message"),
    _Kind("guest_message", "Message"),
    _Kind("channel_post", "Message", has_user=False),
    _Kind("edited_channel_post", "Message", has_user=False),
    _Kind("callback_query", "CallbackQuery"),
    _Kind("inline_query", "InlineQuery", has_chat=False),
    _Kind("chosen_inline_result", "ChosenInlineResult", has_chat=False),
    _Kind("shipping_query", "ShippingQuery", has_chat=False),
    _Kind("pre_checkout_query", "PreCheckoutQuery", has_chat=False),
    _Kind("purchased_paid_media", "PaidMediaPurchased", has_chat=False),
    _Kind("poll", "Poll", has_user=False, has_chat=False),
    _Kind("poll_answer", "PollAnswer"),
    _Kind("my_chat_member", "ChatMemberUpdated"),
    _Kind("chat_member", "ChatMemberUpdated"),
    _Kind("chat_join_request", "ChatJoinRequest"),
    _Kind("message_reaction", "MessageReactionUpdated"),
    _Kind("message_reaction_count", "MessageReactionCountUpdated", has_user=False),
    _Kind("chat_boost", "ChatBoostUpdated", has_user=False),
    _Kind("removed_chat_boost", "ChatBoostRemoved", has_user=False),
    _Kind("business_connection", "BusinessConnection", has_chat=False),
    _Kind("deleted_business_messages", "BusinessMessagesDeleted", has_user=False),
    _Kind("managed_bot", "ManagedBotUpdated", has_chat=False),
    _Kind("subscription", "BotSubscriptionUpdated", has_chat=False),
    _Kind("stopped_message_generation", "MessageGenerationStopped", has_user=False),
)
#: Every kind of update of Bot API 10.3.
KINDS: tuple[str, ...] = tuple(kind.name for kind in _TABLE)
#: Kinds that a bot gets only if ``allowed_updates`` names them.
ON_REQUEST: frozenset[str] = frozenset({"chat_member", "message_reaction", "message_reaction_count"})
_KNOWN = frozenset(KINDS)
#: The kinds of new messages. An edit of a message of an album is an update of its own.
_WITH_ALBUMS = frozenset({"message", "business_message", "guest_message", "channel_post"})
#: The fields of a message for what a person sends. A message with none of them is a notice of Telegram.
_CONTENT = (
    "text", "photo", "video", "animation", "audio", "voice", "video_note", "document", "sticker", "story", "location",
    "venue", "contact", "poll", "dice", "paid_media", "checklist", "rich_message",
)  # fmt: skip
_WITHOUT_USER = frozenset(kind.name for kind in _TABLE if not kind.has_user)
_WITHOUT_CHAT = frozenset(kind.name for kind in _TABLE if not kind.has_chat)
#: A bare ``ChatMemberUpdated`` counts as ``chat_member``, the last of its kinds.
_KIND_OF_CLASS = {kind.event_class: kind.name for kind in _TABLE}
# Values without fields.
_SCALARS = (str, bytes, int, float, list, tuple, set)
_COMMAND = re.compile(r"/([A-Za-z0-9_]+)(?:@([A-Za-z0-9_]+))?(?:\s+(.*))?", re.DOTALL)


class Command(NamedTuple):
    """``/name@bot args``; name and bot in lower case."""

    name: str
    bot: str | None
    args: str


@dataclass(frozen=True)
class Peer:
    """A user or a chat.

    Its other fields are read by their names in the Bot API, ``peer.language_code`` or ``peer.type``, and are ``None``
    where the update does not have them.
    """

    id: int
    #: The user or chat in the update.
    raw: Any = field(compare=False, repr=False)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _read(self.raw, name)


class Update:
    """An update from any library. Make one with ``Update.of(anything)``.

    Example::

        received = Update.of(update)
        assert received.user.id == 42 and received.text == "/register"
    """

    __slots__ = (
        "_chat_part", "business_connection_id", "callback_data", "callback_id", "chat", "chatless", "command", "event",
        "in_topic", "inline_message_id", "kind", "media_group_id", "message_id", "migration", "raw", "text",
        "thread_id", "update_id", "user",
    )  # fmt: skip

    #: The dict or the object of a library that this update was made from.
    raw: Any
    #: ``None`` if the update has no id; then it is never a duplicate.
    update_id: int | None
    #: The Bot API's name for the kind of update: ``"message"``, ``"callback_query"``.
    kind: str | None
    #: The message, callback query or other event in the update, unchanged.
    event: Any
    #: The user who caused it; ``None`` for channel posts and for anonymous votes and reactions.
    user: Peer | None
    #: The chat it happened in; for an anonymous vote, the chat that voted.
    chat: Peer | None
    #: It belongs to no chat: an inline query, a payment, a vote by a user.
    chatless: bool
    #: The thread or forum topic it happened in.
    thread_id: int | None
    #: The text of the message that was sent; a callback query has none.
    text: str | None
    #: The data of the pressed button.
    callback_data: str | None
    #: The id of the callback query, which ``answerCallbackQuery`` needs.
    callback_id: str | None
    #: The id of the message; for a callback query, of the message with the button.
    message_id: int | None
    #: The id of the message with the button, if it was sent through an inline query.
    inline_message_id: str | None
    #: The id of the album that the message belongs to.
    media_group_id: str | None
    #: It happened in a forum topic, not in a thread of replies.
    in_topic: bool
    #: The old and the new id of a group that became a supergroup, if this message announces it.
    migration: tuple[int, int] | None
    #: The text as a command, such as ``/start@my_bot hello``.
    command: Command | None
    #: The business account that the bot acts for.
    business_connection_id: str | None
    # The part of the event that has the chat: the message that was sent, or the message with the button.
    _chat_part: Any

    def __init__(self, raw: object) -> None:
        self.raw = raw
        if type(raw) is dict and "update_id" in raw:
            message = raw.get("message")
            if type(message) is dict:
                # Fast path for a message in plain JSON.
                self.kind, self.event, self._chat_part = "message", message, message
                number, text, sender = raw["update_id"], message.get("text"), message.get("from")
                self.update_id = number if type(number) is int else None
                self.text = text if text and isinstance(text, str) else None
                self.user = _peer(message.get("user") if sender is None else sender)
                self.chat = _peer(message.get("chat"))
                # Every answer needs these.
                business = message.get("business_connection_id")
                self.business_connection_id = business if business and isinstance(business, str) else None
                self.in_topic = message.get("is_topic_message") is True
                group = message.get("media_group_id")
                self.media_group_id = group if group and isinstance(group, str) else None

    @classmethod
    def of(cls, anything: object) -> Update:
        """Return the ``Update`` for a dict or for a library's update or event. An ``Update`` is returned as it is."""
        return anything if isinstance(anything, Update) else cls(anything)

    def __getattr__(self, name: str) -> Any:
        # Each field is read at its first use, because most handlers use few of them.
        if name in ("kind", "event"):
            self.kind, self.event = _open(self.raw)
            return self.kind if name == "kind" else self.event
        reader = _READERS.get(name)
        if reader is None:
            raise AttributeError(f"{quoted(type(self).__name__)} object has no attribute {quoted(name)}")
        value = reader(self)
        setattr(self, name, value)
        return value

    def topic(self, *, strict: bool = False) -> int | None:
        """Return the thread it happened in, 0 outside of threads, or ``None`` if the thread's id is malformed.

        With ``strict`` only forum topics count. Replies in an ordinary group have a thread too.
        """
        if self.kind in ("channel_post", "edited_channel_post"):
            return 0
        thread = _read(self._chat_part, "message_thread_id")
        if thread is None or (strict and _read(self._chat_part, "is_topic_message") is not True):
            return 0
        return _number(thread)

    def has(self, *fields: str) -> bool:
        """Return whether the message has one of these fields, such as ``"document"``; without names, any content.

        A notice of Telegram, as that somebody has joined, has no content: ask for ``"new_chat_members"``.

        Example::

            if Update.of(update).has("photo", "video"):
                print("a picture or a film")
        """
        # python-telegram-bot has an empty tuple in place of pictures that are not there.
        return any(_read(self.event, name) not in (None, (), []) for name in fields or _CONTENT)

    def __repr__(self) -> str:
        return f"Update(kind={self.kind!r}, update_id={self.update_id!r})"


def _chat_part(update: Update) -> Any:
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
        # Telegram fills in a service user here, for bots that do not read voter_chat.
        return None
    # The field is "from" in JSON and "from_user" in objects, because "from" is a Python keyword.
    sender = _read(event, "from")
    if sender is None and not isinstance(event, dict):
        sender = _read(event, "from_user")
    return _peer(_read(event, "user") if sender is None else sender)


def _chat(update: Update) -> Peer | None:
    if update.kind in _WITHOUT_CHAT:
        return None
    return _peer(_read(update._chat_part, "voter_chat" if update.kind == "poll_answer" else "chat"))


def _chatless(update: Update) -> bool:
    kind, event = update.kind, update.event
    if kind == "poll_answer":
        return _read(event, "voter_chat") is None
    if kind == "callback_query":
        return _read(event, "message") is None
    if kind is None or kind in _KNOWN:
        return kind in _WITHOUT_CHAT and kind not in _WITHOUT_USER
    return _read(event, "chat") is None and _read(event, "message") is None


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
    return _string(_read(update._chat_part, "business_connection_id"))


def _media_group_id(update: Update) -> str | None:
    return _string(_read(update.event, "media_group_id")) if update.kind in _WITH_ALBUMS else None


_READERS: dict[str, Callable[[Update], Any]] = {
    "_chat_part": _chat_part,
    "update_id": lambda update: _update_id(_read(update.raw, "update_id")),
    "user": _user,
    "chat": _chat,
    "chatless": _chatless,
    "thread_id": lambda update: update.topic() or None,
    "text": lambda update: None if update.kind == "callback_query" else _string(_read(update.event, "text")),
    "callback_data": lambda update: _string(_read(update.event, "data")) if update.kind == "callback_query" else None,
    "callback_id": lambda update: _string(_read(update.event, "id")) if update.kind == "callback_query" else None,
    "message_id": lambda update: _number(_read(update._chat_part, "message_id")),
    "inline_message_id": lambda update: (
        _string(_read(update.event, "inline_message_id")) if update.kind == "callback_query" else None
    ),
    "media_group_id": _media_group_id,
    "in_topic": lambda update: _read(update._chat_part, "is_topic_message") is True,
    "migration": _migration,
    "command": _command,
    "business_connection_id": _business_connection_id,
}


def _open(raw: Any) -> tuple[str | None, Any]:
    """Return the kind of an update and its event."""
    if isinstance(raw, dict) or isinstance(raw, Mapping):  # noqa: SIM101 - the first is the fast one
        return _open_json(raw)
    if _read(raw, "update_id") is None:
        return _bare_kind(raw), raw
    for kind in KINDS:
        event = _read(raw, kind)
        if event is not None and not isinstance(event, _SCALARS):
            return kind, event
    # Kinds that a library does not know yet are JSON: python-telegram-bot's api_kwargs, aiogram's model_extra.
    for extra in ("api_kwargs", "model_extra"):
        found = _read(raw, extra)
        if isinstance(found, Mapping):
            opened = _open_json(found, whole=False)
            if opened[0] is not None:
                return opened
    return None, None


def _open_json(raw: Mapping[Any, Any], *, whole: bool = True) -> tuple[str | None, Any]:
    if whole and "update_id" not in raw:
        # A bare callback query or message. The former is checked first, because it contains a message too.
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
        if base.__name__ in _KIND_OF_CLASS:
            return _KIND_OF_CLASS[base.__name__]
    return None


def _message_kind(message: object) -> str:
    edited = "edited_" if _read(message, "edit_date") is not None else ""
    if _read(_read(message, "chat"), "type") == "channel":
        return f"{edited}channel_post"
    if _read(message, "guest_query_id") is not None:
        return "guest_message"
    return f"{edited}business_message" if _string(_read(message, "business_connection_id")) else f"{edited}message"


def _read(node: Any, name: str) -> Any:
    """Return a field of a dict or an object, or ``None`` if it has no such field."""
    if isinstance(node, dict):
        return node.get(name)
    if node is None or isinstance(node, _SCALARS):
        return None
    try:
        return node.get(name) if isinstance(node, Mapping) else getattr(node, name, None)
    except Exception:  # noqa: BLE001
        # A property of a library's object may raise any error. The field then reads as None.
        return None


def _peer(node: Any) -> Peer | None:
    number = node.get("id") if type(node) is dict else _read(node, "id")
    return Peer(number, node) if type(number) is int and number != 0 else None


def _update_id(value: object) -> int | None:
    # Unlike a user or a chat, an update may have the id 0.
    return value if type(value) is int else None


def _number(value: object) -> int | None:
    # 0 means "none" in a key, so it is not a valid id.
    return value if type(value) is int and value != 0 else None


def _string(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
