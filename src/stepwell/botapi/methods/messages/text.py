"""Bot API methods that send texts, contacts, dice and chat actions."""

from __future__ import annotations

import secrets
from typing import Any

from stepwell.botapi.call import Call, Method
from stepwell.botapi.errors import bad_request
from stepwell.botapi.formatting.texts import link_preview, text_of
from stepwell.botapi.methods.messages.sending import deliver

__all__ = ["METHODS"]

_ACTIONS = frozenset(
    {
        "cancel", "typing", "upload_photo", "record_video", "upload_video", "record_audio", "record_voice",
        "upload_audio", "upload_voice", "upload_document", "choose_sticker", "pick_up_location", "find_location",
        "record_video_note", "upload_video_note",
    }
)  # fmt: skip
#: The highest value of each kind of dice.
_DICE = {"🎲": 6, "🎯": 6, "🎳": 6, "🏀": 5, "⚽": 5, "🎰": 64}


def send_message(call: Call) -> dict[str, Any]:
    return deliver(call, **text_of(call.params), **link_preview(call.params))


def send_contact(call: Call) -> dict[str, Any]:
    params = call.params
    contact = {"phone_number": params.required("phone_number"), "first_name": params.required("first_name")}
    return deliver(call, contact={**contact, **params.strings("last_name", "vcard")})


def send_dice(call: Call) -> dict[str, Any]:
    emoji = call.params.text("emoji").removesuffix("\ufe0f") or "🎲"
    if emoji not in _DICE:
        raise bad_request("EMOTICON_INVALID")
    return deliver(call, dice={"emoji": emoji, "value": secrets.randbelow(_DICE[emoji]) + 1})


def send_chat_action(call: Call) -> bool:
    if call.params.text("action").lower() not in _ACTIONS:
        raise bad_request("wrong parameter action in request")
    call.room()
    return True


METHODS: dict[str, Method] = {
    "sendMessage": send_message,
    "sendContact": send_contact,
    "sendDice": send_dice,
    "sendChatAction": send_chat_action,
}
