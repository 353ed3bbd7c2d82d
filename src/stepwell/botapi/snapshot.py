"""The users, chats and updates of one bot as JSON, to start with them again."""

from __future__ import annotations

from dataclasses import asdict
from itertools import count
from typing import Any

from stepwell.botapi.methods.messages.polls import close_later
from stepwell.botapi.objects import Room, Topic
from stepwell.botapi.updates import Pending
from stepwell.botapi.world import Bot, World

__all__ = ["load_world", "save_world"]

#: The most messages of a chat, and the most updates, that are kept.
MAX_MESSAGES, MAX_UPDATES = 500, 500


def save_world(world: World, bot: Bot) -> dict[str, Any]:
    """Return the users, the chats and the updates of a bot as JSON, for ``load_world``.

    It has the newest 500 messages of each chat and 500 updates; no files, invoices or queries.

    Example::

        from stepwell.botapi import World, load_world, save_world

        old, new = World(), World()
        bot = old.bot("my_bot")
        old.post(old.private(bot, 42), old.user(42), text="Hello")
        copy = new.bot("my_bot", token=bot.token)
        load_world(new, copy, save_world(old, bot))
        assert new.private(copy, 42).messages[1]["text"] == "Hello"
    """
    rooms = [room for room in world.rooms.values() if bot.id in room.members]
    return {
        "users": [user for user in world.users.values() if not user["is_bot"]],
        "rooms": [
            {
                "chat": room.chat,
                "members": [[user, status] for user, status in room.members.items()],
                "messages": list(room.messages.values())[-MAX_MESSAGES:],
                "topics": [asdict(topic) for topic in room.topics.values()],
                "keyboard": room.keyboard,
                "moved_to": room.moved_to,
            }
            for room in rooms
        ],
        "updates": bot.updates.all[-MAX_UPDATES:],
        "pending": [entry.update for entry in bot.updates.pending[-MAX_UPDATES:]],
    }


def load_world(world: World, bot: Bot, state: dict[str, Any]) -> None:
    """Add what ``save_world`` returned. Unconfirmed updates are delivered again, and open polls close in time.

    Nothing is added if ``state`` is damaged; the error is a ``ValueError``, ``LookupError``, ``TypeError`` or
    ``AttributeError``.

    Example::

        from stepwell.botapi import World, load_world, save_world

        world = World()
        bot = world.bot("my_bot")
        load_world(world, bot, save_world(world, bot))
    """
    users = {user["id"]: user for user in state["users"]}
    rooms = [_room(each) for each in state["rooms"]]
    pending = [Pending(update, object(), again=True) for update in state["pending"]]
    updates = list(state["updates"])
    sent = [message["poll"] for room in rooms for message in room.messages.values() if "poll" in message]
    # A forwarded poll is in several messages.
    polls = {poll["id"]: poll for poll in sent}
    world.users.update(users)
    for room in rooms:
        world.rooms[(bot.id, room.id) if room.type == "private" else room.id] = room
    bot.updates.all[:] = updates
    bot.updates.pending[:] = pending
    for poll in polls.values():
        close_later(world, bot, poll)


def _room(given: dict[str, Any]) -> Room:
    messages = {message["message_id"]: message for message in given["messages"]}
    return Room(
        given["chat"],
        {int(user): str(status) for user, status in given["members"]},
        messages,
        {topic["id"]: Topic(**topic) for topic in given["topics"]},
        keyboard=given["keyboard"],
        moved_to=given["moved_to"],
        ids=count(max(messages, default=0) + 1),
    )
