"""Bot API methods for invite links and join requests."""

from __future__ import annotations

import secrets
from typing import Any

from stepwell.botapi.call import Call, Method
from stepwell.botapi.errors import NotPossible, bad_request, quoted
from stepwell.botapi.methods.chats.members import change_member
from stepwell.botapi.objects import Invite, Room
from stepwell.botapi.world import World

__all__ = ["METHODS", "join_by_link"]

MAX_MEMBERS = 99_999


def create_link(call: Call) -> dict[str, Any]:
    return _add(call, **_fields(call)).json


def create_subscription_link(call: Call) -> dict[str, Any]:
    return _add(call, **_fields(call), **call.params.numbers("subscription_period", "subscription_price")).json


def edit_link(call: Call) -> dict[str, Any]:
    invite = _invite(call)
    kept = {"invite_link", "creator", "is_primary", "is_revoked", "subscription_period", "subscription_price"}
    invite.json = {name: value for name, value in invite.json.items() if name in kept} | _fields(call)
    return invite.json


def revoke_link(call: Call) -> dict[str, Any]:
    invite = _invite(call)
    invite.json["is_revoked"] = True
    if invite.json["is_primary"]:
        export_link(call)
    return invite.json


def export_link(call: Call) -> str:
    room = _room(call)
    old = room.invites.get(room.full.get("invite_link", ""))
    if old is not None:
        old.json["is_revoked"] = True
    link: str = _add(call, creates_join_request=False, is_primary=True).json["invite_link"]
    room.full["invite_link"] = link
    return link


def _add(call: Call, **fields: Any) -> Invite:
    link = f"https://t.me/+{secrets.token_urlsafe(12)}"
    about = {"invite_link": link, "creator": dict(call.bot.user), "is_primary": False, "is_revoked": False}
    invite = _room(call).invites[link] = Invite({**about, **fields})
    return invite


def _fields(call: Call) -> dict[str, Any]:
    params = call.params
    limit, by_request = params.number("member_limit", 0), params.flag("creates_join_request")
    if limit and by_request:
        raise bad_request("member limit can't be specified for links requiring administrator approval")
    if not 0 <= limit <= MAX_MEMBERS:
        raise bad_request(f"member_limit is from 1 to {MAX_MEMBERS}")
    fields = {**params.strings("name"), **params.numbers("expire_date", "member_limit")}
    return {**fields, "creates_join_request": by_request}


def _room(call: Call) -> Room:
    room = call.room()
    if room.type == "private":
        raise bad_request("can't invite members to a private chat")
    return room


def _invite(call: Call) -> Invite:
    invite = _room(call).invites.get(call.params.text("invite_link"))
    if invite is None:
        raise bad_request("INVITE_HASH_EXPIRED")
    return invite


def join_by_link(world: World, room: Room, user: dict[str, Any], link: str) -> None:
    """Join a chat by an invite link, or send a join request. Raises ``NotPossible`` if the link is not valid."""
    invite = room.invites.get(link)
    if invite is None or invite.json["is_revoked"]:
        raise NotPossible(f"the invite link {quoted(link)} does not exist or was revoked")
    if 0 < invite.json.get("expire_date", 0) <= world.clock():
        raise NotPossible(f"the invite link {quoted(link)} has expired")
    if 0 < invite.json.get("member_limit", 0) <= invite.uses:
        raise NotPossible(f"the invite link {quoted(link)} was used by {invite.uses} users, its limit")
    if not invite.json["creates_join_request"]:
        _join(world, room, user, invite)
        return
    invite.requests.add(user["id"])
    request = {"chat": dict(room.chat), "from": dict(user), "user_chat_id": user["id"], "date": int(world.clock())}
    world.broadcast(room, "chat_join_request", {**request, "invite_link": dict(invite.json)})


def approve_request(call: Call) -> bool:
    invite, user = _request(call)
    _join(call.world, call.room(), user, invite, via_join_request=True)
    return True


def decline_request(call: Call) -> bool:
    _request(call)
    return True


def _request(call: Call) -> tuple[Invite, dict[str, Any]]:
    user_id = call.params.number("user_id", 0)
    invite = next((each for each in _room(call).invites.values() if user_id in each.requests), None)
    if invite is None:
        raise bad_request("HIDE_REQUESTER_MISSING")
    invite.requests.discard(user_id)
    return invite, call.world.users[user_id]


def _join(world: World, room: Room, user: dict[str, Any], invite: Invite, **how: Any) -> None:
    invite.uses += 1
    change_member(world, room, user["id"], "member", by=user, invite_link=dict(invite.json), **how)
    if room.type != "channel":
        world.post(room, user, new_chat_members=[dict(user)])


METHODS: dict[str, Method] = {
    "createChatInviteLink": create_link,
    "editChatInviteLink": edit_link,
    "createChatSubscriptionInviteLink": create_subscription_link,
    "editChatSubscriptionInviteLink": edit_link,
    "revokeChatInviteLink": revoke_link,
    "exportChatInviteLink": export_link,
    "approveChatJoinRequest": approve_request,
    "declineChatJoinRequest": decline_request,
}
