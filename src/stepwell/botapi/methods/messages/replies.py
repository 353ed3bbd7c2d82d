"""The message that a bot replies to, and the quote from it."""

from __future__ import annotations

from typing import Any

from stepwell.botapi.call import Call
from stepwell.botapi.errors import bad_request
from stepwell.botapi.formatting.entities import utf16_length
from stepwell.botapi.formatting.texts import formatted_text
from stepwell.botapi.params import Params
from stepwell.botapi.world import Room

__all__ = ["origin_of", "reply_of"]

MAX_QUOTE = 1024
#: The fields of a message that a reply from another chat shows.
_SHOWN = (
    "link_preview_options", "animation", "audio", "document", "photo", "sticker", "video", "video_note", "voice",
    "has_media_spoiler", "contact", "dice", "invoice", "location", "poll", "venue",
)  # fmt: skip


def reply_of(call: Call, room: Room) -> dict[str, Any]:
    """Return the fields of a message for the reply of a call; empty if it is no reply."""
    params = call.params
    if "reply_parameters" not in params.given and "reply_to_message_id" not in params.given:
        return {}
    given = Params(params.json("reply_parameters", dict) or {})
    number = given.number("message_id", 0) or params.number("reply_to_message_id", 0)
    if not number:
        return {}
    source = call.world.room_for(call.bot, given.chat_id()) if given.has("chat_id") else room
    message = source.messages.get(number)
    if message is None:
        if given.flag("allow_sending_without_reply") or params.flag("allow_sending_without_reply"):
            return {}
        raise bad_request("message to be replied not found")
    if source is room:
        reply = {"reply_to_message": {name: value for name, value in message.items() if name != "reply_to_message"}}
    else:
        shown = {name: message[name] for name in _SHOWN if name in message}
        chat = {} if source.type == "private" else {"chat": dict(source.chat), "message_id": number}
        reply = {"external_reply": {"origin": origin_of(message), **chat, **shown}}
    return {**reply, **_quote(given, message), **_part(given)}


def _quote(given: Params, message: dict[str, Any]) -> dict[str, Any]:
    if not given.has("quote"):
        return {}
    quote, entities = formatted_text(
        given, "quote", "quote_entities", "quote_parse_mode", limit=MAX_QUOTE, too_long="QUOTE_TEXT_INVALID"
    )
    text = str(message.get("text", message.get("caption", "")))
    if quote not in text:
        raise bad_request("QUOTE_TEXT_INVALID")
    position = given.number("quote_position", utf16_length(text[: text.index(quote)]))
    listed = {"entities": entities} if entities else {}
    return {"quote": {"text": quote, "position": position, "is_manual": True, **listed}}


def _part(given: Params) -> dict[str, Any]:
    """Return the poll option or the task of a checklist that is replied to."""
    options = given.strings("poll_option_id")
    tasks = given.numbers("checklist_task_id")
    return {f"reply_to_{name}": value for name, value in (*options.items(), *tasks.items())}


def origin_of(message: dict[str, Any]) -> dict[str, Any]:
    """Return the origin of a message, as a forwarded one has it."""
    if "forward_origin" in message:
        origin: dict[str, Any] = message["forward_origin"]
        return origin
    if "from" in message:
        return {"type": "user", "date": message["date"], "sender_user": message["from"]}
    where = {"chat": message["chat"], "message_id": message["message_id"]}
    return {"type": "channel", "date": message["date"], **where}
