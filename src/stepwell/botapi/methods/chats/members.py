"""Bot API methods for the members of chats."""

from __future__ import annotations

from typing import Any

from stepwell.botapi.call import Call, Method
from stepwell.botapi.errors import bad_request
from stepwell.botapi.methods.chats.rights import RIGHTS, administrator_rights, permissions_of
from stepwell.botapi.objects import Room
from stepwell.botapi.world import World

__all__ = ["METHODS", "change_member", "member_of"]

#: Seconds from now; a ban or restriction for a shorter or longer time never ends.
SHORTEST, LONGEST = 30, 366 * 24 * 3600
_ADMINS = ("creator", "administrator")
_OUTSIDE = ("left", "kicked")


def member_of(world: World, room: Room, user_id: int) -> dict[str, Any]:
    """Return a ChatMember object for the member's status."""
    _end_expired(world, room, user_id)
    status = room.members.get(user_id, "left")
    details: dict[str, Any] = {}
    if status == "creator":
        details = {"is_anonymous": False}
    elif status == "administrator":
        details = {"can_be_edited": False, **administrator_rights(all_of_them=True)}
    elif status == "kicked":
        details = {"until_date": 0}
    return {"status": status, "user": dict(world.users[user_id]), **details, **room.details.get(user_id, {})}


def _end_expired(world: World, room: Room, user_id: int) -> None:
    until = room.details.get(user_id, {}).get("until_date", 0)
    if 0 < until <= world.clock():
        room.members[user_id] = "left" if room.members[user_id] == "kicked" else "member"
        del room.details[user_id]


def change_member(
    world: World, room: Room, user_id: int, status: str, *, by: dict[str, Any], details: dict[str, Any] | None = None,
    **more: Any,
) -> None:  # fmt: skip
    """Set the status of a member. The member itself, if it is a bot, and the bots in the chat get updates."""
    old = member_of(world, room, user_id)
    room.members[user_id] = status
    room.details.pop(user_id, None)
    if details:
        room.details[user_id] = details
    change = {
        "chat": dict(room.chat),
        "from": dict(by),
        "date": int(world.clock()),
        "old_chat_member": old,
        "new_chat_member": member_of(world, room, user_id),
        **more,
    }
    for bot in world.bots.values():
        if bot.id == user_id:
            world.update(bot, "my_chat_member", change)
        elif room.members.get(bot.id) in ("member", "administrator"):
            world.update(bot, "chat_member", change)


def get_chat_member(call: Call) -> dict[str, Any]:
    return member_of(call.world, call.room(), call.user_id())


def get_administrators(call: Call) -> list[dict[str, Any]]:
    room = call.room()
    return [member_of(call.world, room, user_id) for user_id, status in room.members.items() if status in _ADMINS]


def get_member_count(call: Call) -> int:
    room = call.room()
    return sum(_is_inside(member_of(call.world, room, user_id)) for user_id in list(room.members))


def _is_inside(member: dict[str, Any]) -> bool:
    return bool(member.get("is_member", member["status"] not in _OUTSIDE))


def ban(call: Call) -> bool:
    room, user_id = call.room(), call.user_id()
    if room.type == "private":
        raise bad_request("can't ban members in private chats")
    _check_target(call, room, user_id)
    was_inside = _is_inside(member_of(call.world, room, user_id))
    _change(call, user_id, "kicked", {"until_date": _until(call)})
    if call.params.flag("revoke_messages"):
        theirs = [each for each in room.messages.values() if each.get("from", {}).get("id") == user_id]
        for message in theirs:
            call.world.delete(room, message["message_id"])
    if was_inside and room.type != "channel":
        call.world.post(room, call.bot.user, left_chat_member=dict(call.world.users[user_id]))
    return True


def unban(call: Call) -> bool:
    room, user_id = call.room(), call.user_id()
    if room.type not in ("supergroup", "channel"):
        raise bad_request("method is available for supergroup and channel chats only")
    status = member_of(call.world, room, user_id)["status"]
    if status == "kicked" or (status != "left" and not call.params.flag("only_if_banned")):
        _change(call, user_id, "left", None)
    return True


def restrict(call: Call) -> bool:
    room, user_id = call.room(), call.user_id()
    if room.type != "supergroup":
        raise bad_request("method is available only for supergroups")
    _check_target(call, room, user_id)
    allowed = permissions_of(call.params)
    if all(allowed.values()):
        _change(call, user_id, "member", None)
    else:
        inside = _is_inside(member_of(call.world, room, user_id))
        _change(call, user_id, "restricted", {"is_member": inside, **allowed, "until_date": _until(call)})
    return True


def promote(call: Call) -> bool:
    room, user_id = call.room(), call.user_id()
    if room.type == "private":
        raise bad_request("chat member status can't be changed in private chats")
    if room.members.get(user_id) == "creator":
        raise bad_request("can't remove chat owner")
    names = {*RIGHTS, *(name for name in call.params.given if name.startswith("can_"))}
    rights = {name: call.params.flag(name) for name in sorted(names)}
    if any(rights.values()):
        _change(call, user_id, "administrator", {**rights, "can_be_edited": True, "can_manage_chat": True})
    else:
        _change(call, user_id, "member", None)
    return True


def set_custom_title(call: Call) -> bool:
    room, user_id = call.room(), call.user_id()
    if room.members.get(user_id) != "administrator":
        raise bad_request("user is not an administrator")
    room.details[user_id] = {**room.details.get(user_id, {}), "custom_title": call.params.text("custom_title")}
    return True


def _check_target(call: Call, room: Room, user_id: int) -> None:
    if user_id == call.bot.id:
        raise bad_request("can't restrict self")
    if room.members.get(user_id) == "creator":
        raise bad_request("can't remove chat owner")
    if room.members.get(user_id) == "administrator":
        raise bad_request("user is an administrator of the chat")


def _until(call: Call) -> int:
    until = call.params.number("until_date", 0)
    return until if SHORTEST <= until - int(call.world.clock()) <= LONGEST else 0


def _change(call: Call, user_id: int, status: str, details: dict[str, Any] | None) -> None:
    change_member(call.world, call.room(), user_id, status, by=call.bot.user, details=details)


METHODS: dict[str, Method] = {
    "getChatMember": get_chat_member,
    "getChatAdministrators": get_administrators,
    "getChatMemberCount": get_member_count,
    "banChatMember": ban,
    "unbanChatMember": unban,
    "restrictChatMember": restrict,
    "promoteChatMember": promote,
    "setChatAdministratorCustomTitle": set_custom_title,
}
