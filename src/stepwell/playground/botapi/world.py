"""The small world behind the Bot API: people, bots, chats, and what is said in them.

Everything is kept as the JSON that Telegram would send, in memory, and used from one event loop.
"""

from __future__ import annotations

import copy
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

from stepwell.errors import InvalidOption
from stepwell.playground.botapi.refusal import Refusal, bad_request
from stepwell.playground.botapi.updates import UpdateQueue

__all__ = ["Bot", "Failure", "Room", "Topic", "World", "WorldEvent"]

#: Calls that are remembered for each bot.
CALLS = 1000
#: Below this, the id of a chat is that of a supergroup or channel.
SUPERGROUP = -(10**12)


class WorldEvent(NamedTuple):
    """Something that happened, for whoever looks on: ``world.watch(...)``."""

    #: ``update`` (a bot is told), ``call`` (a bot asks), ``message``, ``edited``, ``deleted``, ``answered``.
    kind: str
    bot: Bot | None
    room: Room | None
    #: The update, the call with its answer, the message, or the answer to a pressed button.
    body: dict[str, Any]


@dataclass(slots=True, eq=False)
class Failure:
    """Calls that are to be refused, on demand."""

    refusal: Refusal
    #: In lower case; ``None``: whatever is called.
    method: str | None
    times: int


@dataclass(slots=True, eq=False)
class Bot:
    """A bot that is registered here."""

    id: int
    name: str
    token: str = field(repr=False)
    #: The user that it is, as ``getMe`` gives it.
    user: dict[str, Any] = field(repr=False)
    updates: UpdateQueue = field(default_factory=UpdateQueue, repr=False)
    #: The newest calls, each with ``method``, its parameters, and what was answered.
    calls: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=CALLS), repr=False)
    #: What ``setMyCommands`` set, by scope and language.
    commands: dict[tuple[str, str], list[Any]] = field(default_factory=dict, repr=False)
    failures: list[Failure] = field(default_factory=list, repr=False)

    def refuse(self, code: int, description: str, *, method: str | None = None, times: int = 1, **more: Any) -> None:
        """Let the next calls fail: ``bot.refuse(429, "Too Many Requests: retry after 3", retry_after=3)``."""
        self.failures.append(Failure(Refusal(code, description, **more), method and method.lower(), times))

    def limit(self, retry_after: int, *, method: str | None = None, times: int = 1) -> None:
        """Let the next calls fail with 429."""
        what = f"Too Many Requests: retry after {retry_after}"
        self.refuse(429, what, method=method, times=times, retry_after=retry_after)

    def refused(self, method: str) -> Refusal | None:
        """The error that was asked for."""
        for failure in self.failures:
            if failure.method in (None, method.lower()):
                failure.times -= 1
                if failure.times <= 0:
                    self.failures.remove(failure)
                return failure.refusal
        return None


@dataclass(slots=True)
class Topic:
    """A topic of a forum."""

    id: int
    name: str
    closed: bool = False


@dataclass(slots=True, eq=False)
class Room:
    """A chat. The private chats of one person with two bots are two rooms with one id."""

    #: As it stands in every message.
    chat: dict[str, Any]
    #: User id to status: ``creator``, ``administrator``, ``member``, ``left``, ``kicked``.
    members: dict[int, str] = field(default_factory=dict, repr=False)
    #: By id, oldest first.
    messages: dict[int, dict[str, Any]] = field(default_factory=dict, repr=False)
    topics: dict[int, Topic] = field(default_factory=dict, repr=False)
    #: The reply keyboard that people see below the place for writing.
    keyboard: dict[str, Any] | None = field(default=None, repr=False)
    #: The supergroup that this group became.
    moved_to: int | None = None
    ids: Iterator[int] = field(default_factory=lambda: count(1), repr=False)

    @property
    def id(self) -> int:
        """The chat's id, as bots know it."""
        number: int = self.chat["id"]
        return number

    @property
    def type(self) -> str:
        """``private``, ``group``, ``supergroup`` or ``channel``."""
        kind: str = self.chat["type"]
        return kind


class World:
    """All there is. ``clock`` gives seconds since 1970."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.users: dict[int, dict[str, Any]] = {}
        self.bots: dict[str, Bot] = {}
        self.rooms: dict[Any, Room] = {}
        #: Pressed buttons and inline queries that wait for an answer, by id.
        self.queries: dict[str, dict[str, Any]] = {}
        #: Uploaded files: id, name, type and content.
        self.files: dict[str, dict[str, Any]] = {}
        self._watchers: list[Callable[[WorldEvent], None]] = []
        # Always above those before a restart of this world: bots remember which updates they have handled.
        self._update_ids = count(int(clock() * 1000))
        self._query_ids = count(int(clock() * 1000))

    # Who is there

    def bot(self, name: str, *, token: str | None = None, **fields: Any) -> Bot:
        """Register a bot. Without a token it gets one; the number before the colon is its id."""
        bot_id = 7_000_000_001 + len(self.bots)
        token = token or f"{bot_id}:{secrets.token_urlsafe(26)}"
        number, colon, secret = token.partition(":")
        if not (number.isdigit() and colon and secret) or token in self.bots:
            raise InvalidOption("a bot's token is new here, and has the form 123456:secret")
        user = {"id": int(number), "is_bot": True, "first_name": name, "username": name, **fields}
        bot = Bot(int(number), name, token, user)
        self.bots[token] = bot
        self.users[bot.id] = user
        return bot

    def user(self, id: int, **fields: Any) -> dict[str, Any]:  # noqa: A002
        """A person, made when first asked for."""
        if id <= 0:
            raise InvalidOption(f"the id of a user is above 0, got {id}")
        user = self.users.setdefault(id, {"id": id, "is_bot": False, "first_name": f"User {id}", "language_code": "en"})
        user.update(fields)
        return user

    def private(self, bot: Bot, user_id: int) -> Room:
        """The chat of a person with a bot."""
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
        """A group, supergroup or channel, made when first asked for; its id is negative."""
        if id >= 0:
            raise InvalidOption(f"the id of a group is below 0, got {id}")
        room = self.rooms.get(id)
        if room is None:
            kind = "supergroup" if id < SUPERGROUP or fields.get("is_forum") else "group"
            room = self.rooms[id] = Room({"id": id, "title": f"Group {-id}", "type": kind})
        room.chat.update(fields)
        return room

    def room_for(self, bot: Bot, chat_id: int | str) -> Room:
        """The chat that a bot means, or the refusal that Telegram would give."""
        if isinstance(chat_id, str):
            named = [room for room in self.rooms.values() if f"@{room.chat.get('username')}" == chat_id]
            # Private chats cannot be named.
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

    # What happens

    def post(self, room: Room, sender: dict[str, Any] | None, **content: Any) -> dict[str, Any]:
        """Somebody says something. Bots hear people and services, never each other."""
        message = {
            "message_id": next(room.ids),
            "date": int(self.clock()),
            "chat": dict(room.chat),
            **({"sender_chat": dict(room.chat)} if room.type == "channel" else {}),
            **({"from": dict(sender)} if sender is not None and room.type != "channel" else {}),
            **content,
        }
        room.messages[message["message_id"]] = message
        self._happened(WorldEvent("message", None, room, message))
        by_bot = sender is not None and sender["is_bot"]
        if not by_bot or any(name in message for name in SERVICE):
            self.tell(room, "channel_post" if room.type == "channel" else "message", message)
        return message

    def edit(self, room: Room, message: dict[str, Any], *, by_bot: bool, **content: Any) -> dict[str, Any]:
        """A message becomes another; what is ``None`` is taken away."""
        for name, value in content.items():
            if value is None:
                message.pop(name, None)
            else:
                message[name] = value
        message["edit_date"] = int(self.clock())
        self._happened(WorldEvent("edited", None, room, message))
        if not by_bot:
            self.tell(room, "edited_channel_post" if room.type == "channel" else "edited_message", message)
        return message

    def delete(self, room: Room, message_id: int) -> None:
        """A message is gone; bots are not told."""
        self._happened(WorldEvent("deleted", None, room, room.messages.pop(message_id)))

    def tell(self, room: Room, kind: str, event: dict[str, Any]) -> None:
        """Every bot in a room gets an update."""
        for bot in self.bots.values():
            # "left" and "kicked" hear that they are, and nothing more.
            if room.members.get(bot.id) in ("member", "administrator"):
                self.update(bot, kind, event)

    def update(self, bot: Bot, kind: str, event: dict[str, Any]) -> dict[str, Any] | None:
        """One bot gets an update, unless it does not want this kind."""
        if not bot.updates.wants(kind):
            return None
        # As from the network: what happens to a message later must not show in what was sent.
        update = {"update_id": next(self._update_ids), kind: copy.deepcopy(event)}
        chat = event.get("chat") or event.get("message", {}).get("chat") or event.get("from") or {}
        bot.updates.put(update, chat.get("id"))
        self._happened(WorldEvent("update", bot, None, update))
        return update

    def deliver(self, bot: Bot, update: dict[str, Any]) -> None:
        """An update comes, or comes again, just as it is given."""
        bot.updates.put(update, None, again=True)
        self._happened(WorldEvent("update", bot, None, update))

    def ask(self, bot: Bot, kind: str, query: dict[str, Any]) -> str:
        """A pressed button or an inline query, which waits for its answer; gives its id."""
        query_id = str(next(self._query_ids))
        self.queries[query_id] = {"bot": bot.id, "kind": kind, "answer": None}
        self.update(bot, kind, {"id": query_id, **query})
        return query_id

    def answer(self, bot: Bot, kind: str, query_id: str, answer: dict[str, Any]) -> None:
        """A bot answers, once."""
        query = self.queries.get(query_id)
        if query is None or query["bot"] != bot.id or query["kind"] != kind or query["answer"] is not None:
            raise bad_request("query is too old and response timeout expired or query ID is invalid")
        query["answer"] = answer
        self._happened(WorldEvent("answered", bot, None, {"id": query_id, **answer}))

    def migrate(self, room: Room, new_id: int | None = None) -> Room:
        """A group becomes a supergroup with another id; both get the service message that says so."""
        if room.type != "group" or room.moved_to is not None:
            raise InvalidOption("only a group can become a supergroup, and only once")
        new = self.group(new_id or SUPERGROUP + room.id, title=room.chat["title"], type="supergroup")
        new.members.update(room.members)
        by = self.users[next(iter(room.members))]
        self.post(room, by, migrate_to_chat_id=new.id)
        self.post(new, by, migrate_from_chat_id=room.id)
        room.moved_to = new.id
        return new

    # Who looks on

    def watch(self, watcher: Callable[[WorldEvent], None]) -> Callable[[], None]:
        """Be told of everything; calling what is returned ends it."""
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    def called(self, bot: Bot, call: dict[str, Any]) -> None:
        """A bot has called a method, and was answered."""
        bot.calls.append(call)
        self._happened(WorldEvent("call", bot, None, call))

    def _happened(self, event: WorldEvent) -> None:
        for watcher in list(self._watchers):
            watcher(event)


#: Service messages, which every bot hears of.
SERVICE = frozenset(
    {
        "new_chat_members", "left_chat_member", "new_chat_title", "migrate_to_chat_id", "migrate_from_chat_id",
        "forum_topic_created", "forum_topic_edited", "forum_topic_closed", "forum_topic_reopened",
    }
)  # fmt: skip
