"""Bot API methods that forward and copy messages."""

from __future__ import annotations

import secrets
from typing import Any

from stepwell.botapi.call import Call, Method
from stepwell.botapi.errors import bad_request
from stepwell.botapi.formatting.texts import text_of
from stepwell.botapi.methods.messages.replies import origin_of
from stepwell.botapi.methods.messages.sending import deliver
from stepwell.botapi.world import SERVICE

__all__ = ["METHODS"]

#: The fields of a message that its copies do not have.
_OWN = frozenset(
    {
        "message_id", "date", "chat", "from", "sender_chat", "reply_markup", "reply_to_message", "external_reply",
        "quote", "reply_to_poll_option_id", "reply_to_checklist_task_id", "edit_date", "message_thread_id",
        "is_topic_message", "forward_origin", "has_protected_content", "effect_id", "media_group_id",
    }
)  # fmt: skip
_CAPTION = frozenset({"caption", "caption_entities"})


def forward_message(call: Call) -> dict[str, Any]:
    return deliver(call, **_forwarded(call, _source(call, "forward")))


def forward_messages(call: Call) -> list[dict[str, Any]]:
    return _send_all(call, [{**_forwarded(call, source), **album} for source, album in _sources(call)])


def copy_message(call: Call) -> dict[str, Any]:
    content = _content(call, _source(call, "copy"))
    if "caption" in call.params.given:
        content = {name: value for name, value in content.items() if name not in _CAPTION}
        content |= text_of(call.params, "caption", "caption_entities")
    if call.params.flag("show_caption_above_media"):
        content["show_caption_above_media"] = True
    return _send_all(call, [content])[0]


def copy_messages(call: Call) -> list[dict[str, Any]]:
    dropped = _CAPTION if call.params.flag("remove_caption") else frozenset()
    return _send_all(call, [{**_content(call, source, dropped), **album} for source, album in _sources(call)])


def _send_all(call: Call, contents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Send messages; return their ids as MessageId objects."""
    return [{"message_id": deliver(call, **content)["message_id"]} for content in contents]


def _forwarded(call: Call, source: dict[str, Any]) -> dict[str, Any]:
    return {**_content(call, source), "forward_origin": origin_of(source)}


def _source(call: Call, verb: str) -> dict[str, Any]:
    room = call.world.room_for(call.bot, call.params.chat_id("from_chat_id"))
    message = room.messages.get(call.params.number("message_id", 0))
    if message is None:
        raise bad_request(f"message to {verb} not found")
    if not SERVICE.isdisjoint(message):
        raise bad_request(f"message can't be {'forwarded' if verb == 'forward' else 'copied'}")
    return message


def _sources(call: Call) -> list[tuple[dict[str, Any], dict[str, str]]]:
    """Return the named messages that exist, each with its new album, if it is of one."""
    call.room()
    room = call.world.room_for(call.bot, call.params.chat_id("from_chat_id"))
    named = [room.messages[number] for number in call.params.message_ids() if number in room.messages]
    messages = [message for message in named if SERVICE.isdisjoint(message)]
    if not messages:
        raise bad_request("there are no messages to forward")
    albums: dict[str, dict[str, str]] = {}
    return [
        (message, albums.setdefault(album, {"media_group_id": secrets.token_urlsafe(8)}) if album else {})
        for message, album in ((message, message.get("media_group_id")) for message in messages)
    ]


def _content(call: Call, message: dict[str, Any], dropped: frozenset[str] = frozenset()) -> dict[str, Any]:
    content = {name: value for name, value in message.items() if name not in _OWN | dropped}
    if "video" in content and call.params.has("video_start_timestamp"):
        content["video"] = {**content["video"], "start_timestamp": call.params.number("video_start_timestamp")}
    return content


METHODS: dict[str, Method] = {
    "forwardMessage": forward_message,
    "forwardMessages": forward_messages,
    "copyMessage": copy_message,
    "copyMessages": copy_messages,
}
