"""Bot API methods for messages: send, edit, copy, delete."""

from __future__ import annotations

from typing import Any

from stepwell.playground.botapi.call import Call, Method
from stepwell.playground.botapi.keyboards import markup_of
from stepwell.playground.botapi.params import Params
from stepwell.playground.botapi.refusal import bad_request
from stepwell.playground.botapi.texts import text_of
from stepwell.playground.botapi.world import Room

__all__ = ["METHODS", "deliver"]

_ACTIONS = frozenset(
    {
        "cancel", "typing", "upload_photo", "record_video", "upload_video", "record_audio", "record_voice",
        "upload_audio", "upload_voice", "upload_document", "choose_sticker", "pick_up_location", "find_location",
        "record_video_note", "upload_video_note",
    }
)  # fmt: skip


def deliver(call: Call, **content: Any) -> dict[str, Any]:
    """Post a message to the chat of a call, with its thread, reply and keyboard."""
    params, room = call.params, call.room()
    markup = markup_of(params)
    reply = _replied(params, room)
    thread = params.number("message_thread_id", 0) or (reply or {}).get("message_thread_id", 0)
    if thread:
        topic = room.topics.get(thread)
        if topic is None:
            raise bad_request("message thread not found")
        if topic.closed:
            raise bad_request("TOPIC_CLOSED")
        content = {"message_thread_id": thread, "is_topic_message": True, **content}
    if reply is not None:
        content["reply_to_message"] = {name: value for name, value in reply.items() if name != "reply_to_message"}
    if params.flag("protect_content"):
        content["has_protected_content"] = True
    if markup is not None and "inline_keyboard" in markup:
        content["reply_markup"] = markup
    elif markup is not None:
        room.keyboard = None if markup.get("remove_keyboard") else markup
    return call.world.post(room, call.bot.user, **content)


def send_message(call: Call) -> dict[str, Any]:
    return deliver(call, **text_of(call.params))


def edit_text(call: Call) -> dict[str, Any] | bool:
    return _edit(call, {"entities": None, **text_of(call.params)})


def edit_caption(call: Call) -> dict[str, Any] | bool:
    content = text_of(call.params, "caption", "caption_entities")
    return _edit(call, {"caption": None, "caption_entities": None, **content})


def edit_markup(call: Call) -> dict[str, Any] | bool:
    return _edit(call, {})


def send_chat_action(call: Call) -> bool:
    if call.params.text("action").lower() not in _ACTIONS:
        raise bad_request("wrong parameter action in request")
    call.room()
    return True


def delete_message(call: Call) -> bool:
    room, number = call.room(), call.params.number("message_id")
    if number not in room.messages:
        raise bad_request("message to delete not found")
    call.world.delete(room, number)
    return True


def delete_messages(call: Call) -> bool:
    room = call.room()
    for number in call.params.json("message_ids", list) or []:
        if isinstance(number, int) and number in room.messages:
            call.world.delete(room, number)
    return True


def forward_message(call: Call) -> dict[str, Any]:
    source = _source(call)
    origin = {"type": "user", "date": source["date"], "sender_user": source.get("from", call.bot.user)}
    return deliver(call, **_content(source), forward_origin=origin)


def copy_message(call: Call) -> dict[str, Any]:
    caption = text_of(call.params, "caption", "caption_entities")
    return {"message_id": deliver(call, **{**_content(_source(call)), **caption})["message_id"]}


def _edit(call: Call, content: dict[str, Any]) -> dict[str, Any] | bool:
    if call.params.text("inline_message_id"):
        # The message was sent through an inline query to a chat outside this world.
        return True
    room, number = call.room(), call.params.number("message_id", 0)
    message = room.messages.get(number)
    if message is None:
        raise bad_request("message to edit not found")
    if message.get("from", call.bot.user)["id"] != call.bot.id:
        raise bad_request("message can't be edited")
    markup = markup_of(call.params)
    if markup is not None and "inline_keyboard" not in markup:
        raise bad_request("inline keyboard expected")
    # An edit without a keyboard, or with an empty one, removes the old one.
    content = {**content, "reply_markup": markup if markup and markup["inline_keyboard"] else None}
    if all(message.get(name) == value for name, value in content.items()):
        raise bad_request(
            "message is not modified: specified new message content and reply markup are exactly the same "
            "as a current content and reply markup of the message"
        )
    return call.world.edit(room, message, by_bot=True, **content)


def _replied(params: Params, room: Room) -> dict[str, Any] | None:
    if "reply_parameters" not in params.given and "reply_to_message_id" not in params.given:
        return None
    given = params.json("reply_parameters", dict) or {}
    number = Params(given).number("message_id", 0) or params.number("reply_to_message_id", 0)
    if not number:
        return None
    message = room.messages.get(number)
    if message is None and not (given.get("allow_sending_without_reply") or params.flag("allow_sending_without_reply")):
        raise bad_request("message to be replied not found")
    return message


def _source(call: Call) -> dict[str, Any]:
    room = call.world.room_for(call.bot, call.params.chat_id("from_chat_id"))
    message = room.messages.get(call.params.number("message_id", 0))
    if message is None:
        raise bad_request("message to forward not found")
    return message


def _content(message: dict[str, Any]) -> dict[str, Any]:
    about = {
        "message_id", "date", "chat", "from", "sender_chat", "reply_markup", "reply_to_message", "edit_date",
        "message_thread_id", "is_topic_message", "forward_origin",
    }  # fmt: skip
    return {name: value for name, value in message.items() if name not in about}


METHODS: dict[str, Method] = {
    "sendMessage": send_message,
    "sendChatAction": send_chat_action,
    "editMessageText": edit_text,
    "editMessageCaption": edit_caption,
    "editMessageReplyMarkup": edit_markup,
    "deleteMessage": delete_message,
    "deleteMessages": delete_messages,
    "forwardMessage": forward_message,
    "copyMessage": copy_message,
}
