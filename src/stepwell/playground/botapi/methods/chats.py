"""Bot API methods for chats, their members and forum topics."""

from __future__ import annotations

from functools import partial
from typing import Any

from stepwell.playground.botapi.call import Call, Method
from stepwell.playground.botapi.methods.rights import administrator_rights
from stepwell.playground.botapi.refusal import bad_request
from stepwell.playground.botapi.world import Room, Topic, World

__all__ = ["METHODS", "member_of"]

TOPIC_COLOUR = 7322096


def member_of(world: World, room: Room, user_id: int) -> dict[str, Any]:
    """Return a ChatMember object for the member's status."""
    status = room.members.get(user_id, "left")
    member: dict[str, Any] = {"status": status, "user": dict(world.users[user_id])}
    if status == "creator":
        member["is_anonymous"] = False
    elif status == "administrator":
        member |= {"can_be_edited": False, **administrator_rights(all_of_them=True)}
    elif status == "kicked":
        member["until_date"] = 0
    return member


def get_chat(call: Call) -> dict[str, Any]:
    gifts = dict.fromkeys(
        ("unlimited_gifts", "limited_gifts", "unique_gifts", "premium_subscription", "gifts_from_channels"), True
    )
    return {**call.room().chat, "accent_color_id": 0, "max_reaction_count": 11, "accepted_gift_types": gifts}


def get_chat_member(call: Call) -> dict[str, Any]:
    room, user_id = call.room(), call.params.number("user_id")
    if user_id not in call.world.users:
        raise bad_request("user not found")
    return member_of(call.world, room, user_id)


def get_administrators(call: Call) -> list[dict[str, Any]]:
    room = call.room()
    admins = [user_id for user_id, status in room.members.items() if status in ("creator", "administrator")]
    return [member_of(call.world, room, user_id) for user_id in admins]


def get_member_count(call: Call) -> int:
    return sum(status not in ("left", "kicked") for status in call.room().members.values())


def leave_chat(call: Call) -> bool:
    call.room().members[call.bot.id] = "left"
    return True


def create_topic(call: Call) -> dict[str, Any]:
    room, name = call.room(), call.params.text("name")
    if not room.chat.get("is_forum"):
        raise bad_request("the chat is not a forum")
    if not name:
        raise bad_request("topic name is empty")
    return open_topic(call.world, room, call.bot.user, name)


def open_topic(world: World, room: Room, by: dict[str, Any], name: str) -> dict[str, Any]:
    """Create a topic. Its id is the id of its service message."""
    about = {"name": name, "icon_color": TOPIC_COLOUR}
    thread = next(room.ids)
    room.topics[thread] = Topic(thread, name)
    world.post(room, by, message_id=thread, message_thread_id=thread, is_topic_message=True, forum_topic_created=about)
    return {"message_thread_id": thread, **about}


def edit_topic(call: Call) -> bool:
    topic = _topic(call)
    topic.name = call.params.text("name") or topic.name
    _post(call, topic, forum_topic_edited={"name": topic.name})
    return True


def close_topic(call: Call, *, closed: bool = True) -> bool:
    topic = _topic(call)
    if topic.closed is closed:
        raise bad_request("TOPIC_NOT_MODIFIED")
    topic.closed = closed
    _post(call, topic, **{"forum_topic_closed" if closed else "forum_topic_reopened": {}})
    return True


def delete_topic(call: Call) -> bool:
    topic, room = _topic(call), call.room()
    for message in [each for each in room.messages.values() if each.get("message_thread_id") == topic.id]:
        call.world.delete(room, message["message_id"])
    del room.topics[topic.id]
    return True


def _topic(call: Call) -> Topic:
    topic = call.room().topics.get(call.params.number("message_thread_id", 0))
    if topic is None:
        raise bad_request("message thread not found")
    return topic


def _post(call: Call, topic: Topic, **content: Any) -> None:
    call.world.post(call.room(), call.bot.user, message_thread_id=topic.id, is_topic_message=True, **content)


METHODS: dict[str, Method] = {
    "getChat": get_chat,
    "getChatMember": get_chat_member,
    "getChatAdministrators": get_administrators,
    "getChatMemberCount": get_member_count,
    "leaveChat": leave_chat,
    "createForumTopic": create_topic,
    "editForumTopic": edit_topic,
    "closeForumTopic": close_topic,
    "reopenForumTopic": partial(close_topic, closed=False),
    "deleteForumTopic": delete_topic,
}
