"""Bot API methods for chats: their title, description, permissions and pinned messages."""

from __future__ import annotations

from typing import Any

from stepwell.botapi.call import Call, Method
from stepwell.botapi.errors import bad_request
from stepwell.botapi.methods.chats.members import change_member
from stepwell.botapi.methods.chats.rights import PERMISSIONS, permissions_of
from stepwell.botapi.objects import Room

__all__ = ["METHODS"]

MAX_TITLE, MAX_DESCRIPTION = 128, 255
_GIFTS = ("unlimited_gifts", "limited_gifts", "unique_gifts", "premium_subscription", "gifts_from_channels")


def get_chat(call: Call) -> dict[str, Any]:
    room = call.room()
    permissions = {} if room.type in ("private", "channel") else {"permissions": dict.fromkeys(PERMISSIONS, True)}
    pinned = {"pinned_message": room.messages[room.pins[-1]]} if room.pins else {}
    return {
        **room.chat,
        "accent_color_id": 0,
        "max_reaction_count": 11,
        "accepted_gift_types": dict.fromkeys(_GIFTS, True),
        **permissions,
        **room.full,
        **pinned,
    }


def leave_chat(call: Call) -> bool:
    change_member(call.world, call.room(), call.bot.id, "left", by=call.bot.user)
    return True


def set_title(call: Call) -> bool:
    room, title = _group(call), call.params.text("title").strip()
    if not title:
        raise bad_request("title can't be empty")
    room.chat["title"] = title[:MAX_TITLE]
    call.world.post(room, call.bot.user, new_chat_title=room.chat["title"])
    return True


def set_description(call: Call) -> bool:
    room, description = _group(call), call.params.text("description")[:MAX_DESCRIPTION]
    if description == room.full.get("description", ""):
        raise bad_request("chat description is not modified")
    room.full["description"] = description
    return True


def set_permissions(call: Call) -> bool:
    _group(call).full["permissions"] = permissions_of(call.params)
    return True


def _group(call: Call) -> Room:
    room = call.room()
    if room.type == "private":
        raise bad_request("method is available only for groups, supergroups and channels")
    return room


def pin_message(call: Call) -> bool:
    room, number = call.room(), call.params.number("message_id", 0)
    message = room.messages.get(number)
    if message is None:
        raise bad_request("message to pin not found")
    if number not in room.pins:
        shown = {name: value for name, value in message.items() if name != "reply_to_message"}
        call.world.post(room, call.bot.user, pinned_message=shown)
    else:
        room.pins.remove(number)
    room.pins.append(number)
    return True


def unpin_message(call: Call) -> bool:
    room = call.room()
    number = call.params.number("message_id", room.pins[-1] if room.pins else 0)
    if number not in room.pins:
        raise bad_request("message to unpin not found")
    room.pins.remove(number)
    return True


def unpin_all(call: Call) -> bool:
    call.room().pins.clear()
    return True


METHODS: dict[str, Method] = {
    "getChat": get_chat,
    "leaveChat": leave_chat,
    "setChatTitle": set_title,
    "setChatDescription": set_description,
    "setChatPermissions": set_permissions,
    "pinChatMessage": pin_message,
    "unpinChatMessage": unpin_message,
    "unpinAllChatMessages": unpin_all,
}
