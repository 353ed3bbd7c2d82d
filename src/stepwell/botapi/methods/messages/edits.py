"""Bot API methods that edit and delete messages."""

from __future__ import annotations

from typing import Any

from stepwell.botapi.call import Call, Method
from stepwell.botapi.errors import bad_request
from stepwell.botapi.formatting.texts import link_preview, text_of
from stepwell.botapi.keyboards import markup_of
from stepwell.botapi.methods.messages.locations import LIVE, live_location
from stepwell.botapi.methods.messages.media import KINDS, input_media
from stepwell.botapi.methods.messages.rich import rich_message_of

__all__ = ["METHODS", "editable"]

#: The fields of media and their captions.
_MEDIA = (
    *KINDS, "caption", "caption_entities", "show_caption_above_media", "has_media_spoiler",
)  # fmt: skip
_TEXT = ("text", "entities", "link_preview_options", "rich_message")


def edit_text(call: Call) -> dict[str, Any] | bool:
    content = rich_message_of(call) or {**text_of(call.params, edits=True), **link_preview(call.params)}
    return _edit(call, "text", {**dict.fromkeys(_TEXT), **content})


def edit_caption(call: Call) -> dict[str, Any] | bool:
    above = call.params.flag("show_caption_above_media") or None
    caption = text_of(call.params, "caption", "caption_entities", edits=True)
    content = {"caption": None, "caption_entities": None, "show_caption_above_media": above, **caption}
    return _edit(call, "caption", content)


def edit_media(call: Call) -> dict[str, Any] | bool:
    content = input_media(call, call.params.json("media", dict, "input media"))
    return _edit(call, "media", {**dict.fromkeys((*_TEXT, *_MEDIA)), **content})


def edit_markup(call: Call) -> dict[str, Any] | bool:
    return _edit(call, None, {})


def edit_live_location(call: Call) -> dict[str, Any] | bool:
    location = live_location(call)
    return _edit(call, "location", {"location": {**_location(call), **location}})


def stop_live_location(call: Call) -> dict[str, Any] | bool:
    ended = {name: value for name, value in _location(call).items() if name not in LIVE}
    return _edit(call, "location", {"location": ended})


def _location(call: Call) -> dict[str, Any]:
    if call.params.text("inline_message_id"):
        return {}
    location: dict[str, Any] = editable(call).get("location", {})
    return location


def delete_message(call: Call) -> bool:
    room, number = call.room(), call.params.number("message_id")
    if number not in room.messages:
        raise bad_request("message to delete not found")
    call.world.delete(room, number)
    return True


def delete_messages(call: Call) -> bool:
    room = call.room()
    for number in call.params.message_ids():
        if number in room.messages:
            call.world.delete(room, number)
    return True


def editable(call: Call, what: str = "message to edit") -> dict[str, Any]:
    """Return the bot's own message that a call names."""
    message = call.room().messages.get(call.params.number("message_id", 0))
    if message is None:
        raise bad_request(f"{what} not found")
    if message.get("from", call.bot.user)["id"] != call.bot.id:
        raise bad_request("message can't be edited")
    return message


def _edit(call: Call, part: str | None, content: dict[str, Any]) -> dict[str, Any] | bool:
    markup = markup_of(call.params)
    if markup is not None and "inline_keyboard" not in markup:
        raise bad_request("inline keyboard expected")
    if call.params.text("inline_message_id"):
        # The message was sent through an inline query to a chat outside this world.
        return True
    message = editable(call)
    _check_part(message, part)
    # An edit without a keyboard, or with an empty one, removes the old one.
    content = {**content, "reply_markup": markup if markup and markup["inline_keyboard"] else None}
    if part != "location" and all(message.get(name) == value for name, value in content.items()):
        raise bad_request(
            "message is not modified: specified new message content and reply markup are exactly the same "
            "as a current content and reply markup of the message"
        )
    return call.world.edit(call.room(), message, by_bot=True, **content)


def _check_part(message: dict[str, Any], part: str | None) -> None:
    """Raise the error for a message that does not have the part to edit."""
    has_media = not message.keys().isdisjoint(KINDS)
    has_text = "text" in message or "rich_message" in message
    if part == "text" and not has_text:
        raise bad_request("there is no text in the message to edit")
    if part == "caption" and not has_media:
        raise bad_request("there is no caption in the message to edit")
    if part == "media" and not has_media and not has_text:
        raise bad_request("there is no media in the message to edit")
    if part == "location" and "live_period" not in message.get("location", {}):
        raise bad_request("message can't be edited")


METHODS: dict[str, Method] = {
    "editMessageText": edit_text,
    "editMessageCaption": edit_caption,
    "editMessageMedia": edit_media,
    "editMessageReplyMarkup": edit_markup,
    "editMessageLiveLocation": edit_live_location,
    "stopMessageLiveLocation": stop_live_location,
    "deleteMessage": delete_message,
    "deleteMessages": delete_messages,
}
