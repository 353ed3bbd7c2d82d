"""Chats and users as JSON for the page."""

from __future__ import annotations

import re
from typing import Any

from stepwell.botapi import Bot, Draft, Room, World
from stepwell.web.display import as_json

__all__ = ["MEDIA", "PICTURES", "people_json", "picture_of", "room_json"]

#: The most messages of a chat that are shown.
MESSAGES = 200
#: The pictures that a browser shows, by how they start. Others, such as SVG, can contain scripts.
PICTURES: dict[str, re.Pattern[bytes]] = {
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "image/gif": re.compile(rb"GIF8[79]a"),
    "image/webp": re.compile(rb"RIFF.{4}WEBP", re.DOTALL),
}
#: The fields of a message for what it has beside its text.
MEDIA: tuple[str, ...] = (
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


def room_json(world: World, room: Room) -> dict[str, Any]:
    """Return the messages and the keyboard of a chat, and what the bot is writing in it."""
    return {
        "keyboard": as_json((room.keyboard or {}).get("keyboard")),
        "messages": [_message(world, message) for message in list(room.messages.values())[-MESSAGES:]],
        "drafts": [_draft(draft) for thread in room.drafts if (draft := world.draft(room, thread)) is not None],
    }


def _draft(draft: Draft) -> dict[str, Any]:
    text, entities = draft.content.get("text", ""), draft.content.get("entities", [])
    return {
        "id": draft.id,
        "thread": draft.thread or None,
        "text": text,
        "entities": entities,
        "rich": draft.content.get("rich_message"),
        "can_stop": draft.can_stop,
    }


def picture_of(world: World, file_id: str) -> tuple[bytes, str] | None:
    """Return a picture and its media type; ``None`` if it is no picture that a browser shows, or not kept any more."""
    file = world.files.get(file_id)
    content = file.content if file is not None else b""
    return next(((content, kind) for kind, start in PICTURES.items() if start.match(content)), None)


def _message(world: World, message: dict[str, Any]) -> dict[str, Any]:
    sender = message.get("from", {})
    service = next((words for name, words in _SERVICE.items() if name in message), None)
    left = message.get("left_chat_member", sender)
    if left.get("id") != sender.get("id"):
        service = f"removed {_name(left)}"
    picture = message["photo"][-1]["file_id"] if message.get("photo") else None
    topic = message.get("forum_topic_created", message.get("forum_topic_edited", {})).get("name")
    return {
        "id": message["message_id"],
        "from": {"id": sender.get("id"), "name": _name(sender), "bot": bool(sender.get("is_bot"))},
        "date": message["date"],
        "text": message.get("text", message.get("caption", "")),
        "entities": message.get("entities", message.get("caption_entities", [])),
        "rich": message.get("rich_message"),
        "media": next((_media(name, message[name]) for name in MEDIA if name in message), None),
        "picture": picture if picture and picture_of(world, picture) else None,
        "album": message.get("media_group_id"),
        "service": f"{service} {topic}" if service and topic else service,
        "thread": message.get("message_thread_id"),
        "edited": "edit_date" in message,
        "reply": message.get("reply_to_message", {}).get("text"),
        "buttons": as_json(message.get("reply_markup", {}).get("inline_keyboard")),
    }


def _media(name: str, media: Any) -> str:
    return f"{name} {media['file_name']}" if name == "document" and "file_name" in media else name


_INSIDE = ("member", "administrator", "creator", "restricted")


def _name(user: dict[str, Any]) -> str:
    return " ".join(str(user[part]) for part in ("first_name", "last_name") if part in user) or "Channel"
