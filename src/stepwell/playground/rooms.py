"""Chats and users as JSON for the page."""

from __future__ import annotations

from typing import Any

from stepwell.botapi import Bot, Room, World
from stepwell.web.display import as_json

__all__ = ["people_json", "room_json"]

#: The most messages of a chat that are shown.
MESSAGES = 200
_MEDIA = (
    "photo", "document", "video", "video_note", "audio", "voice", "animation", "sticker", "contact", "venue",
    "location", "dice", "poll", "invoice",
)  # fmt: skip
_SERVICE = {
    "new_chat_members": "joined",
    "left_chat_member": "left",
    "new_chat_title": "renamed the chat",
    "pinned_message": "pinned a message",
    "successful_payment": "paid",
    "refunded_payment": "refunded a payment",
    "forum_topic_created": "opened the topic",
    "forum_topic_edited": "renamed the topic",
    "forum_topic_closed": "closed the topic",
    "forum_topic_reopened": "reopened the topic",
    "migrate_to_chat_id": "upgraded this group to a supergroup",
    "migrate_from_chat_id": "upgraded a group to this supergroup",
}


def people_json(world: World, bot: Bot) -> dict[str, Any]:
    """Return the users and their chats."""
    people = [user for user in world.users.values() if not user["is_bot"]]
    rooms = [room for room in world.rooms.values() if bot.id in room.members and room.moved_to is None]
    return {
        "bot": {"id": bot.id, "name": bot.name},
        "people": [{"id": user["id"], "name": _name(user)} for user in people],
        "rooms": [
            {
                "id": str(room.id),
                "title": room.chat.get("title") or room.chat.get("first_name") or str(room.id),
                "type": room.type,
                "members": [user["id"] for user in people if room.members.get(user["id"]) in _INSIDE],
                "topics": [{"id": topic.id, "name": topic.name} for topic in room.topics.values()],
            }
            for room in rooms
        ],
    }


def room_json(room: Room) -> dict[str, Any]:
    """Return the messages and the keyboard of a chat."""
    return {
        "keyboard": as_json((room.keyboard or {}).get("keyboard")),
        "messages": [_message(message) for message in list(room.messages.values())[-MESSAGES:]],
    }


def _message(message: dict[str, Any]) -> dict[str, Any]:
    sender = message.get("from", {})
    service = next((words for name, words in _SERVICE.items() if name in message), None)
    left = message.get("left_chat_member", sender)
    if left.get("id") != sender.get("id"):
        service = f"removed {_name(left)}"
    topic = message.get("forum_topic_created", message.get("forum_topic_edited", {})).get("name")
    return {
        "id": message["message_id"],
        "from": {"id": sender.get("id"), "name": _name(sender), "bot": bool(sender.get("is_bot"))},
        "date": message["date"],
        "text": message.get("text", message.get("caption", "")),
        "entities": message.get("entities", message.get("caption_entities", [])),
        "media": next((name for name in _MEDIA if name in message), None),
        "service": f"{service} {topic}" if service and topic else service,
        "thread": message.get("message_thread_id"),
        "edited": "edit_date" in message,
        "reply": message.get("reply_to_message", {}).get("text"),
        "buttons": as_json(message.get("reply_markup", {}).get("inline_keyboard")),
    }


_INSIDE = ("member", "administrator", "creator", "restricted")


def _name(user: dict[str, Any]) -> str:
    return " ".join(str(user[part]) for part in ("first_name", "last_name") if part in user) or "Channel"
