"""The state behind the local Bot API: users, bots, chats and messages.

Everything is in memory, as the JSON that Telegram would send, and used from one event loop.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, NamedTuple

from stepwell.botapi.bots import Bot
from stepwell.botapi.errors import NotPossible, Refusal, bad_request
from stepwell.botapi.limits import FloodLimits
from stepwell.botapi.objects import Draft, PendingInvoice, Room, StoredFile

__all__ = ["SERVICE", "Bot", "Room", "World", "WorldEvent"]

#: Ids below this are supergroups and channels.
SUPERGROUP = -(10**12)


class WorldEvent(NamedTuple):
    """An event for the subscribers of ``world.watch(...)``.

    Example::

        from stepwell.botapi import World

        world, kinds = World(), []
        end = world.watch(lambda event: kinds.append(event.kind))
        world.post(world.private(world.bot("my_bot"), 42), world.user(42), text="Hello")
        assert "message" in kinds
    """

    #: ``update`` (to a bot), ``call`` (by a bot), ``message``, ``edited``, ``deleted``, ``answered``, ``reacted``,
    #: ``draft``.
    kind: str
    bot: Bot | None
    room: Room | None
    #: The update, the call with its result, the message, the answer to a query, the reactions to a message, or the
    #: draft; it is empty when the draft has disappeared.
    body: dict[str, Any]


class World:
    """All users, bots and chats. ``clock`` returns seconds since 1970.

    Example::

        from stepwell.botapi import Room, World

        world = World()
        room: Room = world.private(world.bot("my_bot"), 42)
        message = world.post(room, world.user(42), text="Hello")
        assert room.messages == {message["message_id"]: message}
    """

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.users: dict[int, dict[str, Any]] = {}
        self.bots: dict[str, Bot] = {}
        self.rooms: dict[Any, Room] = {}
        #: Callback queries, inline queries, and queries of payments, by id.
        self.queries: dict[str, dict[str, Any]] = {}
        #: Uploaded files, by id.
        self.files: dict[str, StoredFile] = {}
        #: The PhotoSize lists of profile photos, by user id, the newest first.
        self.photos: dict[int, list[list[dict[str, Any]]]] = {}
        #: By link.
        self.invoices: dict[str, PendingInvoice] = {}
        #: Payments by their ``telegram_payment_charge_id``.
        self.payments: dict[str, dict[str, Any]] = {}
        #: ``None`` if bots may send as many messages as they want.
        self.limits: FloodLimits | None = None
        #: Close polls, by the id of the poll, and remove drafts, by chat and topic.
        self.timers: dict[str, asyncio.TimerHandle] = {}
        self._watchers: list[Callable[[WorldEvent], None]] = []
        # Above the ids of earlier runs: bots remember the ids of handled updates.
        self._update_ids = count(int(clock() * 1000))
        self._query_ids = count(int(clock() * 1000))

    # Users and chats

    def bot(self, name: str, *, token: str | None = None, **fields: Any) -> Bot:
        """Register a bot, with a new token by default; the number before the colon is its id.

        Raises ``ValueError`` for a token of another form, or of another bot.
        """
        bot_id = 7_000_000_001 + len(self.bots)
        token = token or f"{bot_id}:{secrets.token_urlsafe(26)}"
        number, colon, secret = token.partition(":")
        if not (number.isdigit() and colon and secret) or token in self.bots:
            raise ValueError("a bot's token must have the form 123456:secret and not be registered yet")
        user = {"id": int(number), "is_bot": True, "first_name": name, "username": name, **fields}
        bot = Bot(int(number), name, token, user)
        self.bots[token] = bot
        self.users[bot.id] = user
        return bot

    def user(self, id: int, **fields: Any) -> dict[str, Any]:  # noqa: A002
        """Return a user, created if needed. Raises ``ValueError`` for an id below 1."""
        if id <= 0:
            raise ValueError(f"the id of a user must be above 0, got {id}")
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
        """Return a group, supergroup or channel, created if needed. Raises ``ValueError`` unless its id is negative."""
        if id >= 0:
            raise ValueError(f"the id of a group must be below 0, got {id}")
        room = self.rooms.get(id)
        if room is None:
            kind = "supergroup" if id < SUPERGROUP or fields.get("is_forum") else "group"
            room = self.rooms[id] = Room({"id": id, "title": f"Group {-id}", "type": kind})
        room.chat.update(fields)
        return room

    def room_for(self, bot: Bot, chat_id: int | str) -> Room:
        """Return the chat that a bot names. Raises the ``Refusal`` that Telegram would send."""
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
        by_bot = sender is not None and sender["is_bot"]
        if by_bot:
            self.end_draft(room, message.get("message_thread_id", 0))
        self.publish(WorldEvent("message", None, room, message))
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
        self.publish(WorldEvent("edited", None, room, message))

    def edit(self, room: Room, message: dict[str, Any], *, by_bot: bool, **content: Any) -> dict[str, Any]:
        """Edit a message; bots get an update for the edit of a user."""
        self.change(room, message, **content, edit_date=int(self.clock()))
        if not by_bot:
            self.broadcast(room, "edited_channel_post" if room.type == "channel" else "edited_message", message)
        return message

    def delete(self, room: Room, message_id: int) -> None:
        """Delete a message; bots get no update."""
        if message_id in room.pins:
            room.pins.remove(message_id)
        for table in (room.votes, room.reactions, room.invoices):
            table.pop(message_id, None)
        self.publish(WorldEvent("deleted", None, room, room.messages.pop(message_id)))

    def show_draft(self, room: Room, draft: Draft) -> None:
        """Show what a bot is writing, in place of the last draft of this topic, until its time has passed."""
        room.drafts[draft.thread] = draft
        self.publish(WorldEvent("draft", None, room, draft.json()))
        self._end_draft_later(room, draft.thread)

    def end_draft(self, room: Room, thread: int) -> None:
        """Remove the draft of a topic, if there is one."""
        timer = self.timers.pop(f"draft {id(room)} {thread}", None)
        if timer is not None:
            timer.cancel()
        if room.drafts.pop(thread, None) is not None:
            self.publish(WorldEvent("draft", None, room, {}))

    def draft(self, room: Room, thread: int) -> Draft | None:
        """Return the draft of a topic, unless its time has passed."""
        draft = room.drafts.get(thread)
        return draft if draft is not None and draft.until > self.clock() else None

    def _end_draft_later(self, room: Room, thread: int) -> None:
        name = f"draft {id(room)} {thread}"
        if (old := self.timers.pop(name, None)) is not None:
            old.cancel()
        left = max(room.drafts[thread].until - self.clock(), 0.0)
        self.timers[name] = asyncio.get_running_loop().call_later(left, partial(self._end_draft_if_due, room, thread))

    def _end_draft_if_due(self, room: Room, thread: int) -> None:
        # The clock may be slower than that of the loop.
        if self.draft(room, thread) is None:
            self.end_draft(room, thread)
        else:
            self._end_draft_later(room, thread)

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
        self.publish(WorldEvent("update", bot, None, update))
        return update

    def deliver(self, bot: Bot, update: dict[str, Any]) -> None:
        """Deliver an update as it is, for the first time or again."""
        bot.updates.put(update, None, again=True)
        self.publish(WorldEvent("update", bot, None, update))

    def redeliver(self, bot: Bot, update_id: int | None = None) -> None:
        """Deliver the last update, or the one with this id, again. Raises ``NotPossible`` if there is none."""
        chosen = [update for update in bot.updates.all if update_id in (None, update["update_id"])]
        if not chosen:
            raise NotPossible("there is no update to repeat yet; send a message first")
        self.deliver(bot, chosen[-1])

    def ask(self, bot: Bot, kind: str, query: dict[str, Any], about: Any = None) -> str:
        """Send a query to a bot, such as a callback query, and return its id. ``answer`` returns ``about``."""
        query_id = str(next(self._query_ids))
        self.queries[query_id] = {"bot": bot.id, "kind": kind, "answer": None, "about": about}
        self.update(bot, kind, {"id": query_id, **query})
        return query_id

    def answer(self, bot: Bot, kind: str, query_id: str, answer: dict[str, Any]) -> Any:
        """Store a bot's answer to a query, and return what the query is about. A second answer is refused."""
        query = self.queries.get(query_id)
        if query is None or query["bot"] != bot.id or query["kind"] != kind or query["answer"] is not None:
            raise bad_request("query is too old and response timeout expired or query ID is invalid")
        query["answer"] = answer
        self.publish(WorldEvent("answered", bot, None, {"id": query_id, **answer}))
        return query["about"]

    def migrate(self, room: Room, new_id: int | None = None) -> Room:
        """Upgrade a group to a supergroup with another id; both get a service message.

        Raises ``ValueError`` for a chat that is no group.
        """
        if room.type != "group" or room.moved_to is not None:
            raise ValueError("only a group can be upgraded to a supergroup, and only once")
        new = self.group(new_id or SUPERGROUP + room.id, title=room.chat["title"], type="supergroup")
        new.members.update(room.members)
        new.details.update(room.details)
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
        self.publish(WorldEvent("call", bot, None, call))

    def publish(self, event: WorldEvent) -> None:
        """Send an event to the subscribers."""
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
        "pinned_message", "successful_payment", "refunded_payment",
        "forum_topic_created", "forum_topic_edited", "forum_topic_closed", "forum_topic_reopened",
    }
)  # fmt: skip
