"""Bot API methods for the topics of forums."""

from __future__ import annotations

from functools import partial
from typing import Any

from stepwell.botapi.call import Call, Method
from stepwell.botapi.errors import bad_request
from stepwell.botapi.objects import Room, Topic
from stepwell.botapi.world import World

__all__ = ["METHODS", "open_topic"]

TOPIC_COLOUR = 7322096


def create_topic(call: Call) -> dict[str, Any]:
    room, name = call.room(), call.params.text("name")
    if not room.chat.get("is_forum"):
        raise bad_request("the chat is not a forum")
    if not name:
        raise bad_request("topic name is empty")
    icon = {**call.params.numbers("icon_color"), **call.params.strings("icon_custom_emoji_id")}
    return open_topic(call.world, room, call.bot.user, name, **icon)


def open_topic(world: World, room: Room, by: dict[str, Any], name: str, **icon: Any) -> dict[str, Any]:
    """Create a topic. Its id is the id of its service message."""
    about = {"name": name, "icon_color": TOPIC_COLOUR, **icon}
    thread = next(room.ids)
    room.topics[thread] = Topic(thread, name)
    world.post(room, by, message_id=thread, message_thread_id=thread, is_topic_message=True, forum_topic_created=about)
    return {"message_thread_id": thread, **about}


def edit_topic(call: Call) -> bool:
    topic = _topic(call)
    topic.name = call.params.text("name") or topic.name
    _post(call, topic, forum_topic_edited={"name": topic.name, **call.params.strings("icon_custom_emoji_id")})
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


def unpin_topic(call: Call) -> bool:
    topic, room = _topic(call), call.room()
    room.pins = [number for number in room.pins if room.messages[number].get("message_thread_id") != topic.id]
    return True


def _topic(call: Call) -> Topic:
    topic = call.room().topics.get(call.params.number("message_thread_id", 0))
    if topic is None:
        raise bad_request("message thread not found")
    return topic


def _post(call: Call, topic: Topic, **content: Any) -> None:
    call.world.post(call.room(), call.bot.user, message_thread_id=topic.id, is_topic_message=True, **content)


METHODS: dict[str, Method] = {
    "createForumTopic": create_topic,
    "editForumTopic": edit_topic,
    "closeForumTopic": close_topic,
    "reopenForumTopic": partial(close_topic, closed=False),
    "deleteForumTopic": delete_topic,
    "unpinAllForumTopicMessages": unpin_topic,
}
