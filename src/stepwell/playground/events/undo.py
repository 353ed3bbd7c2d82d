"""Undo: step back to the record before the last update, and erase updates with their messages."""

from __future__ import annotations

from typing import Any

from stepwell.botapi import Room, read_markup
from stepwell.errors import UsageError
from stepwell.playground.events.group import EventGroup
from stepwell.playground.played import Play

__all__ = ["erase", "start_over", "step_back"]


async def step_back(play: Play, bot: str, key: str) -> EventGroup:
    """Undo the last write of a conversation: restore its record, and erase its update and all later ones.

    Return the group that was undone. What handlers did elsewhere, and edits of messages, are not undone.
    """
    groups = play.observer.timeline.of_record(bot, key)
    last = max((at for at, group in enumerate(groups) if group.writes), default=None)
    if last is None:
        raise UsageError("there is no update to undo here")
    undone = groups[last]
    if undone.before is None:
        raise UsageError("the record before the last update is not known")
    await play.observer.restore(bot, key, undone.before)
    erase(play, groups[last:])
    return undone


async def start_over(play: Play, room: Room) -> None:
    """Delete the records of a chat, and remove all its messages and events."""
    for bot, key in play.observer.places.keys_of(room.id):
        await play.observer.restore(bot, key, {})
    await play.observer.forget_turns(str(room.id))
    erase(play, play.observer.timeline.of_chat(room.id))
    for number in list(room.messages):
        play.world.delete(room, number)


def erase(play: Play, groups: list[EventGroup]) -> None:
    """Remove updates, their messages and answers, and their events."""
    updates = {group.update["update_id"] for group in groups if group.update is not None}
    queue = play.bot.updates
    queue.all[:] = [update for update in queue.all if update["update_id"] not in updates]
    play.observer.remove(groups)
    for room in play.world.rooms.values():
        for number in [each for group in groups for chat, each in _messages(group) if chat == room.id]:
            if number in room.messages:
                play.world.delete(room, number)
        if any(group.chat == room.id for group in groups):
            room.keyboard = _keyboard(play.observer.timeline.of_chat(room.id), room.id)
    play.rooms_changed()


def _messages(group: EventGroup) -> list[tuple[Any, int]]:
    """Return the chat and id of each message that was sent."""
    sent = [(group.update or {}).get("message")]
    for call in group.calls:
        if str(call["method"]).lower().startswith(("send", "copy", "forward")):
            result = call["answer"].get("result")
            sent += result if isinstance(result, list) else [result]
    return [
        (each["chat"]["id"], each["message_id"])
        for each in sent
        if isinstance(each, dict) and "chat" in each and "message_id" in each
    ]


def _keyboard(groups: list[EventGroup], chat: int) -> dict[str, Any] | None:
    """Return the reply keyboard after these groups."""
    keyboard = None
    for group in groups:
        for call in group.calls:
            if str(call.get("chat_id")) == str(chat) and call["answer"].get("ok"):
                markup = read_markup(call.get("reply_markup"))
                if markup is not None and "inline_keyboard" not in markup:
                    keyboard = None if markup.get("remove_keyboard") else markup
    return keyboard
