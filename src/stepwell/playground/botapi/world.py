"""The state behind the local Bot API: users, bots, chats and messages.

Everything is in memory, as the JSON that Telegram would send, and used from one event loop.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

from stepwell.errors import InvalidOption, UsageError
from stepwell.playground.botapi.refusal import Refusal, bad_request
from stepwell.playground.botapi.updates import UpdateQueue

__all__ = ["SERVICE", "Bot", "Failure", "Room", "StoredFile", "Topic", "World", "WorldEvent"]

#: The most calls that are kept for each bot.
MAX_CALLS = 1000
#: Ids below this are supergroups and channels.
SUPERGROUP = -(10**12)


class WorldEvent(NamedTuple):
    """An event for the subscribers of ``world.watch(...)``."""

    #: ``update`` (to a bot), ``call`` (by a bot), ``message``, ``edited``, ``deleted``, ``answered``.
    kind: str
    bot: Bot | None
    room: Room | None
    #: The update, the call with its result, the message, or the answer to a callback query.
    body: dict[str, Any]


@dataclass(slots=True, eq=False)
class Failure:
    """A failure of the next calls, for tests of error handling."""

    #: ``None`` for a connection that is cut.
    refusal: Refusal | None
    #: In lower case; ``None`` for every method.
    method: str | None
    #: The only ``chat_id``; ``None`` for calls to any chat or to none.
    chat: int | str | None
    times: int
    #: Whether a connection is cut after the call was performed.
    after: bool = False

    def fits(self, method: str, chat: object) -> bool:
        """Return whether it is for a call of this method to this chat."""
        return self.method in (None, method.lower()) and self.chat in (None, chat)


@dataclass(slots=True, eq=False)
class Bot:
    """A registered bot."""

    id: int
    name: str
    token: str = field(repr=False)
    #: Its user, as ``getMe`` returns it.
    user: dict[str, Any] = field(repr=False)
    updates: UpdateQueue = field(default_factory=UpdateQueue, repr=False)
    #: The newest calls, each with ``method``, its parameters and its ``answer``.
    calls: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=MAX_CALLS), repr=False)
    #: The commands of ``setMyCommands``, by scope and language.
    commands: dict[tuple[str, str], list[Any]] = field(default_factory=dict, repr=False)
    #: Its name, descriptions, menu buttons and default rights, by field and language or chat.
    profile: dict[tuple[str, str], Any] = field(default_factory=dict, repr=False)
    failures: list[Failure] = field(default_factory=list, repr=False)

    def refuse(
        self,
        code: int,
        description: str,
        *,
        method: str | None = None,
        chat: int | str | None = None,
        times: int = 1,
        **more: Any,
    ) -> None:
        """Make the next calls fail: ``bot.refuse(429, "Too Many Requests: retry after 3", retry_after=3)``.

        ``method`` and ``chat`` choose the calls, by default all.
        """
        self.failures.append(Failure(Refusal(code, description, **more), method and method.lower(), chat, times))

    def limit(
        self, retry_after: int, *, method: str | None = None, chat: int | str | None = None, times: int = 1
    ) -> None:
        """Make the next calls fail with 429."""
        what = f"Too Many Requests: retry after {retry_after}"
        self.refuse(429, what, method=method, chat=chat, times=times, retry_after=retry_after)

    def cut(
        self, *, method: str | None = None, chat: int | str | None = None, times: int = 1, after: bool = False
    ) -> None:
        """Close the connection of the next calls without a response; ``after=True``: after the call was performed."""
        self.failures.append(Failure(None, method and method.lower(), chat, times, after))

    def failure_of(self, method: str, chat: object = None) -> Failure | None:
        """Return the failure that is set for a call, if any, and count it."""
        if not self.failures:
            return None
        failure = next((failure for failure in self.failures if failure.fits(method, chat)), None)
        if failure is not None:
            failure.times -= 1
            if failure.times <= 0:
                self.failures.remove(failure)
        return failure


@dataclass(slots=True, eq=False)
class StoredFile:
    """A file that was uploaded, or named by its URL."""

    id: str
    #: ``photo``, ``document``, ``video`` and so on, or ``thumbnail``.
    kind: str
    name: str
    media_type: str
    content: bytes
    #: Its object in messages, such as Video; empty until it is sent.
    json: dict[str, Any]

    @property
    def base(self) -> dict[str, Any]:
        """The fields that the objects of all kinds of files have."""
        size = {"file_size": len(self.content)} if self.content else {}
        return {"file_id": self.id, "file_unique_id": self.id, **size}


@dataclass(slots=True)
class Topic:
    """A topic of a forum."""

    id: int
    name: str
    closed: bool = False


@dataclass(slots=True, eq=False)
class Room:
    """A chat. The private chats of one user with two bots are two rooms with the same id."""

    #: The Chat object in every message.
    chat: dict[str, Any]
    #: User id to status: ``creator``, ``administrator``, ``member``, ``left``, ``kicked``.
    members: dict[int, str] = field(default_factory=dict, repr=False)
    #: By id, oldest first.
    messages: dict[int, dict[str, Any]] = field(default_factory=dict, repr=False)
    topics: dict[int, Topic] = field(default_factory=dict, repr=False)
    #: The votes in polls: message id to user id to the chosen options.
    votes: dict[int, dict[int, list[int]]] = field(default_factory=dict, repr=False)
    #: The current reply keyboard.
    keyboard: dict[str, Any] | None = field(default=None, repr=False)
    #: The id of the supergroup that this group was upgraded to.
    moved_to: int | None = None
    ids: Iterator[int] = field(default_factory=lambda: count(1), repr=False)

    @property
    def id(self) -> int:
        """The chat's id in the Bot API."""
        number: int = self.chat["id"]
        return number

    @property
    def type(self) -> str:
        """``private``, ``group``, ``supergroup`` or ``channel``."""
        kind: str = self.chat["type"]
        return kind


class World:
    """All users, bots and chats. ``clock`` returns seconds since 1970."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.users: dict[int, dict[str, Any]] = {}
        self.bots: dict[str, Bot] = {}
        self.rooms: dict[Any, Room] = {}
        #: Callback queries and inline queries, by id.
        self.queries: dict[str, dict[str, Any]] = {}
        #: Uploaded files, by id.
        self.files: dict[str, StoredFile] = {}
        self._watchers: list[Callable[[WorldEvent], None]] = []
        # Above the ids of earlier runs: bots remember the ids of handled updates.
        self._update_ids = count(int(clock() * 1000))
        self._query_ids = count(int(clock() * 1000))

    # Users and chats

    def bot(self, name: str, *, token: str | None = None, **fields: Any) -> Bot:
        """Register a bot, with a new token by default; the number before the colon is its id."""
        bot_id = 7_000_000_001 + len(self.bots)
        token = token or f"{bot_id}:{secrets.token_urlsafe(26)}"
        number, colon, secret = token.partition(":")
        if not (number.isdigit() and colon and secret) or token in self.bots:
            raise InvalidOption("a bot's token must have the form 123456:secret and not be registered yet")
        user = {"id": int(number), "is_bot": True, "first_name": name, "username": name, **fields}
        bot = Bot(int(number), name, token, user)
        self.bots[token] = bot
        self.users[bot.id] = user
        return bot

    def user(self, id: int, **fields: Any) -> dict[str, Any]:  # noqa: A002
        """Return a user, created if needed."""
        if id <= 0:
            raise InvalidOption(f"the id of a user must be above 0, got {id}")
        user = self.users.setdefault(id, {"id": id, "is_bot": False, "first_name": f"User {id}", "language_code": "en"})
        user.update(fields)
        return user

    def private(self, bot: Bot, user_id: int) -> Room:
        """Return the private chat of a user with a bot."""
        room = self.rooms.get((bot.id, user_id))
        if room is None:
            user = self.user(user_id)
            names: dict[str, Any] = {
                name: user[name] for name in ("first_name", "last_name", "username") if name in user
            }
            room = Room({"id": user_id, **names, "type": "private"}, {bot.id: "member", user_id: "member"})
            self.rooms[bot.id, user_id] = room
        return room

    def group(self, id: int, **fields: Any) -> Room:  # noqa: A002
        """Return a group, supergroup or channel, created if needed; its id is negative."""
        if id >= 0:
            raise InvalidOption(f"the id of a group must be below 0, got {id}")
        room = self.rooms.get(id)
        if room is None:
            kind = "supergroup" if id < SUPERGROUP or fields.get("is_forum") else "group"
            room = self.rooms[id] = Room({"id": id, "title": f"Group {-id}", "type": kind})
        room.chat.update(fields)
        return room

    def room_for(self, bot: Bot, chat_id: int | str) -> Room:
        """Return the chat that a bot names; raise the error that Telegram would send."""
        if isinstance(chat_id, str):
            named = [room for room in self.rooms.values() if f"@{room.chat.get('username')}" == chat_id]
            # A private chat has no @name.
            room = next((room for room in named if room.type != "private"), None)
        else:
            room = self.rooms.get((bot.id, chat_id) if chat_id > 0 else chat_id)
        if room is None:
            raise bad_request("chat not found")
        if room.moved_to is not None:
            raise bad_request("group chat was upgraded to a supergroup chat", migrate_to_chat_id=room.moved_to)
        if room.type == "private" and room.members.get(bot.id) == "kicked":
            raise Refusal(403, "Forbidden: bot was blocked by the user")
        if room.members.get(bot.id) not in ("member", "administrator"):
            raise Refusal(403, f"Forbidden: bot is not a member of the {room.type} chat")
        return room

    # Messages and updates

    def post(self, room: Room, sender: dict[str, Any] | None, **content: Any) -> dict[str, Any]:
        """Post a message. Bots get updates for users and service messages, not for other bots."""
        in_channel = room.type == "channel"
        message = {
            "message_id": next(room.ids),
            "date": int(self.clock()),
            "chat": dict(room.chat),
            **({"sender_chat": dict(room.chat)} if in_channel else {}),
            **({"from": dict(sender)} if sender is not None and not in_channel else {}),
            **content,
        }
        room.messages[message["message_id"]] = message
        self._publish(WorldEvent("message", None, room, message))
        by_bot = sender is not None and sender["is_bot"]
        if not by_bot or not SERVICE.isdisjoint(message):
            self.broadcast(room, "channel_post" if in_channel else "message", message)
        return message

    def change(self, room: Room, message: dict[str, Any], **content: Any) -> None:
        """Change fields of a message; a field that is ``None`` is removed. Bots get no update."""
        for name, value in content.items():
            if value is None:
                message.pop(name, None)
            else:
                message[name] = value
        self._publish(WorldEvent("edited", None, room, message))

    def edit(self, room: Room, message: dict[str, Any], *, by_bot: bool, **content: Any) -> dict[str, Any]:
        """Edit a message; bots get an update for the edit of a user."""
        self.change(room, message, **content, edit_date=int(self.clock()))
        if not by_bot:
            self.broadcast(room, "edited_channel_post" if room.type == "channel" else "edited_message", message)
        return message

    def delete(self, room: Room, message_id: int) -> None:
        """Delete a message; bots get no update."""
        self._publish(WorldEvent("deleted", None, room, room.messages.pop(message_id)))

    def sender(self, message: dict[str, Any]) -> Bot | None:
        """Return the bot that sent a message; ``None`` for a user."""
        return next((bot for bot in self.bots.values() if bot.id == message.get("from", {}).get("id")), None)

    def broadcast(self, room: Room, kind: str, event: dict[str, Any]) -> None:
        """Send an update to every bot in a room."""
        for bot in self.bots.values():
            # A bot that left or was removed gets no more updates.
            if room.members.get(bot.id) in ("member", "administrator"):
                self.update(bot, kind, event)

    def update(self, bot: Bot, kind: str, event: dict[str, Any]) -> dict[str, Any] | None:
        """Send an update to one bot, unless its ``allowed_updates`` exclude it."""
        if not bot.updates.wants(kind):
            return None
        # A copy, so that later edits do not change an update that was sent.
        update = {"update_id": next(self._update_ids), kind: _copied(event)}
        chat = event.get("chat") or event.get("message", {}).get("chat") or event.get("from") or {}
        bot.updates.put(update, chat.get("id"))
        self._publish(WorldEvent("update", bot, None, update))
        return update

    def deliver(self, bot: Bot, update: dict[str, Any]) -> None:
        """Deliver an update as it is, for the first time or again."""
        bot.updates.put(update, None, again=True)
        self._publish(WorldEvent("update", bot, None, update))

    def redeliver(self, bot: Bot, update_id: int | None = None) -> None:
        """Deliver the last update, or the one with this id, again."""
        chosen = [update for update in bot.updates.all if update_id in (None, update["update_id"])]
        if not chosen:
            raise UsageError("there is no update to repeat yet; send a message first")
        self.deliver(bot, chosen[-1])

    def ask(self, bot: Bot, kind: str, query: dict[str, Any]) -> str:
        """Send a callback query or an inline query, and return its id."""
        query_id = str(next(self._query_ids))
        self.queries[query_id] = {"bot": bot.id, "kind": kind, "answer": None}
        self.update(bot, kind, {"id": query_id, **query})
        return query_id

    def answer(self, bot: Bot, kind: str, query_id: str, answer: dict[str, Any]) -> None:
        """Store a bot's answer to a query. A second answer is refused."""
        query = self.queries.get(query_id)
        if query is None or query["bot"] != bot.id or query["kind"] != kind or query["answer"] is not None:
            raise bad_request("query is too old and response timeout expired or query ID is invalid")
        query["answer"] = answer
        self._publish(WorldEvent("answered", bot, None, {"id": query_id, **answer}))

    def migrate(self, room: Room, new_id: int | None = None) -> Room:
        """Upgrade a group to a supergroup with another id; both get a service message."""
        if room.type != "group" or room.moved_to is not None:
            raise InvalidOption("only a group can be upgraded to a supergroup, and only once")
        new = self.group(new_id or SUPERGROUP + room.id, title=room.chat["title"], type="supergroup")
        new.members.update(room.members)
        by = self.users[next(iter(room.members))]
        self.post(room, by, migrate_to_chat_id=new.id)
        self.post(new, by, migrate_from_chat_id=room.id)
        room.moved_to = new.id
        return new

    # Subscribers

    def watch(self, watcher: Callable[[WorldEvent], None]) -> Callable[[], None]:
        """Call ``watcher`` with every event; return a function that stops it."""
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    def called(self, bot: Bot, call: dict[str, Any]) -> None:
        """Record a call of a bot with its result."""
        bot.calls.append(call)
        self._publish(WorldEvent("call", bot, None, call))

    def _publish(self, event: WorldEvent) -> None:
        for watcher in list(self._watchers):
            watcher(event)


def _copied(value: Any) -> Any:
    """Return a deep copy of plain JSON, in a fraction of the time of ``copy.deepcopy``."""
    if isinstance(value, dict):
        # Most values are leaves, which need no call.
        return {name: _copied(each) if isinstance(each, dict | list) else each for name, each in value.items()}
    return [_copied(each) for each in value] if isinstance(value, list) else value


#: Service messages; every bot gets an update for them.
SERVICE = frozenset(
    {
        "new_chat_members", "left_chat_member", "new_chat_title", "migrate_to_chat_id", "migrate_from_chat_id",
        "forum_topic_created", "forum_topic_edited", "forum_topic_closed", "forum_topic_reopened",
    }
)  # fmt: skip
