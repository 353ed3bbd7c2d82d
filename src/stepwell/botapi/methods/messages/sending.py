"""Send a message for a call, with the parameters that all kinds of messages have."""

from __future__ import annotations

from typing import Any

from stepwell.botapi.call import Call
from stepwell.botapi.errors import bad_request
from stepwell.botapi.keyboards import markup_of
from stepwell.botapi.methods.messages.replies import reply_of
from stepwell.botapi.world import Room

__all__ = ["UNUSED", "deliver", "topic_of"]

#: Parameters that are accepted without effect, and the subject that the local Bot API does not have.
UNUSED: dict[str, str] = {
    "disable_notification": "notifications",
    "business_connection_id": "business accounts",
    "direct_messages_topic_id": "direct messages of channels",
    "suggested_post_parameters": "suggested posts",
    "ephemeral_message_parameters": "ephemeral messages",
    "receiver_user_id": "ephemeral messages",
    "callback_query_id": "ephemeral messages",
    "disable_content_type_detection": "inspection of files",
    "supports_streaming": "inspection of files",
    "shuffle_options": "the display of polls",
    "allow_adding_options": "the display of polls",
    "hide_results_until_closes": "the display of polls",
    "provider_token": "payment providers",
    "provider_data": "payment providers",
    "send_phone_number_to_provider": "payment providers",
    "send_email_to_provider": "payment providers",
    "suggested_tip_amounts": "the display of invoices",
    "photo_url": "the display of invoices",
    "photo_size": "the display of invoices",
    "photo_width": "the display of invoices",
    "photo_height": "the display of invoices",
}


def deliver(call: Call, **content: Any) -> dict[str, Any]:
    """Post a message to the chat of a call, with its thread, reply, effect and keyboard."""
    params, room = call.params, call.room()
    markup = markup_of(params)
    reply = reply_of(call, room)
    thread = params.number("message_thread_id", 0) or reply.get("reply_to_message", {}).get("message_thread_id", 0)
    content = {**(topic_of(room, thread) if thread else {}), **reply, **content}
    if params.flag("protect_content"):
        content["has_protected_content"] = True
    if params.given.get("message_effect_id"):
        content["effect_id"] = params.text("message_effect_id")
    if markup is not None and "inline_keyboard" in markup:
        content["reply_markup"] = markup
    elif markup is not None:
        room.keyboard = None if markup.get("remove_keyboard") else markup
    return call.world.post(room, call.bot.user, **content)


def topic_of(room: Room, thread: int) -> dict[str, Any]:
    """Return the fields of a message in a topic that is open."""
    topic = room.topics.get(thread)
    if topic is None:
        raise bad_request("message thread not found")
    if topic.closed:
        raise bad_request("TOPIC_CLOSED")
    return {"message_thread_id": thread, "is_topic_message": True}
