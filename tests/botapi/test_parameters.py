"""No parameter of a method that sends is dropped silently: it changes the message, or the docs list it."""

from __future__ import annotations

import json
from typing import Any

import aiogram
import pytest
from aiogram.methods.base import TelegramMethod

from stepwell.botapi import Bot, BotAPI, Person
from stepwell.botapi.methods import METHODS
from stepwell.botapi.methods.messages.sending import UNUSED
from tests.botapi.conftest import Client

FORUM = -1001
KINDS = ("photo", "document", "video", "animation", "audio", "voice", "video_note", "sticker")
FILES = (*KINDS, "a", "thumbnail", "cover")
ITALIC = [{"type": "italic", "offset": 0, "length": 1}]
PHOTO = {"type": "photo", "media": "attach://a"}
BUTTON = {"inline_keyboard": [[{"text": "Yes", "callback_data": "y"}]]}

#: A valid call of each method.
CALLS: dict[str, dict[str, Any]] = {
    "sendMessage": {"text": "x http://x.org"},
    "sendRichMessage": {"rich_message": {"html": "<h1>x</h1>"}},
    "sendContact": {"phone_number": "+1", "first_name": "A"},
    "sendDice": {},
    "sendLocation": {"latitude": 1.5, "longitude": 2.5},
    "sendVenue": {"latitude": 1.5, "longitude": 2.5, "title": "T", "address": "A"},
    "sendMediaGroup": {"media": [PHOTO, PHOTO]},
    "sendPoll": {"question": "Which?", "options": ["a", "b"]},
    "sendInvoice": {"title": "T", "description": "D", "payload": "p", "currency": "EUR", "provider_token": "x",
                    "prices": [{"label": "Tea", "amount": 100}]},
    "copyMessage": {"from_chat_id": FORUM, "message_id": "@video"},
    "copyMessages": {"from_chat_id": FORUM, "message_ids": ["@video"]},
    "forwardMessage": {"from_chat_id": FORUM, "message_id": "@video"},
    "forwardMessages": {"from_chat_id": FORUM, "message_ids": ["@video"]},
    **{f"send{kind.title().replace('_', '')}": {kind: f"attach://{kind}"} for kind in KINDS},
}  # fmt: skip
#: A value of each parameter, and the other parameters that it needs.
VALUES: dict[str, Any] = {
    "message_thread_id": "@topic",
    "reply_parameters": {"message_id": 1},
    "reply_to_message_id": 1,
    "allow_sending_without_reply": (True, {"reply_to_message_id": 999}),
    "reply_markup": BUTTON,
    "protect_content": True,
    "message_effect_id": "5104841245755180586",
    "parse_mode": ("HTML", {"text": "<b>x</b>", "caption": "<b>x</b>"}),
    "entities": ITALIC,
    "link_preview_options": {"is_disabled": True},
    "disable_web_page_preview": True,
    "caption": "A caption",
    "caption_entities": (ITALIC, {"caption": "x"}),
    "show_caption_above_media": True,
    "has_spoiler": True,
    "duration": 5,
    "width": 6,
    "height": 7,
    "length": 8,
    "thumbnail": "attach://thumbnail",
    "cover": "attach://cover",
    "start_timestamp": 9,
    "video_start_timestamp": 9,
    "performer": "P",
    "title": "Another title",
    "emoji": "🎯",
    "last_name": "B",
    "vcard": "BEGIN:VCARD",
    "horizontal_accuracy": 3.5,
    "live_period": 60,
    "heading": 90,
    "proximity_alert_radius": 100,
    "foursquare_id": "1",
    "foursquare_type": "food",
    "google_place_id": "2",
    "google_place_type": "cafe",
    "remove_caption": True,
    "max_tip_amount": 50,
    "start_parameter": "tea",
    "need_name": True,
    "need_phone_number": True,
    "need_email": True,
    "need_shipping_address": True,
    "is_flexible": True,
    "question_parse_mode": ("HTML", {"question": "<b>x</b>"}),
    "question_entities": ITALIC,
    "is_anonymous": False,
    "type": ("quiz", {"correct_option_id": 1}),
    "allows_multiple_answers": True,
    "allows_revoting": False,
    "members_only": True,
    "country_codes": ["DE"],
    "correct_option_ids": ([0, 1], {"type": "quiz"}),
    "correct_option_id": (1, {"type": "quiz"}),
    "explanation": ("Because", {"type": "quiz", "correct_option_id": 1}),
    "explanation_parse_mode": ("HTML", {"type": "quiz", "correct_option_id": 1, "explanation": "<b>x</b>"}),
    "explanation_entities": (ITALIC, {"type": "quiz", "correct_option_id": 1, "explanation": "x"}),
    "explanation_media": (PHOTO, {"type": "quiz", "correct_option_id": 1}),
    "open_period": 60,
    "close_date": 2_000_000_000,
    "is_closed": True,
    "description": "More",
    "description_parse_mode": ("HTML", {"description": "<b>x</b>"}),
    "description_entities": (ITALIC, {"description": "x"}),
    "media": PHOTO,
    **dict.fromkeys(UNUSED, "1"),
}


def fields_of(method: str) -> list[str]:
    known = [each for each in vars(aiogram.methods).values() if isinstance(each, type)]
    of_methods = [each for each in known if issubclass(each, TelegramMethod) and each is not TelegramMethod]
    (found,) = (each for each in of_methods if each.__api_method__ == method)
    return list(found.model_fields)


SENDING = sorted(
    name
    for name in METHODS
    if name.startswith(("send", "copy", "forward")) and name != "sendChatAction" and not name.endswith("Draft")
)
#: They have no effect on the message: the limits have tests of their own.
OTHERWISE = frozenset({"chat_id", "allow_paid_broadcast"})


class Forum:
    """A forum with a topic, a message to reply to, and a video."""

    def __init__(self, call: Client, chat: Person) -> None:
        self.call = call
        self.person = chat.group(FORUM, is_forum=True)

    async def prepare(self) -> None:
        await self.person.send("x and y")
        video = await self.send("sendVideo", {"video": "attach://video", "caption": "x"})
        topic = await self.call("createForumTopic", chat_id=FORUM, name="Help")
        self.names = {'"@video"': str(video["message_id"]), '"@topic"': str(topic["message_thread_id"])}

    async def send(self, method: str, params: dict[str, Any]) -> Any:
        """Return the result of a call in a form, with all files."""
        if method == "sendInvoice" and "reply_markup" in params:
            params = {**params, "reply_markup": {"inline_keyboard": [[{"text": "Pay 1 €", "pay": True}]]}}
        data = {name: value if isinstance(value, str) else json.dumps(value) for name, value in params.items()}
        files = {name: (f"{name}.bin", name.encode()) for name in FILES if f"attach://{name}" in str(params)}
        body = (await self.call.http.post(method, data={"chat_id": FORUM, **data}, files=files or None)).json()
        return body["result"] if body["ok"] else body["description"]

    async def outcome(self, method: str, params: dict[str, Any]) -> tuple[Any, str]:
        """Send a message; return the result, and all that can be seen without ids and random values."""
        text = json.dumps(params)
        for name, number in self.names.items():
            text = text.replace(name, number)
        result = await self.send(method, json.loads(text))
        room = self.person.room
        number, message = next(reversed(room.messages.items()))
        return result, json.dumps(_anonymous([result, message, room.keyboard, repr(room.invoices.get(number))]))

    async def changes(self, method: str, base: dict[str, Any], more: dict[str, Any]) -> bool:
        """Return whether two calls have different outcomes. The second must be accepted."""
        _, plain = await self.outcome(method, base)
        result, changed = await self.outcome(method, more)
        assert not isinstance(result, str), result
        return plain != changed


def _anonymous(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: _anonymous(each)
            for name, each in value.items()
            if name not in ("message_id", "date", "file_id", "file_unique_id", "id", "value", "media_group_id")
        }
    return [_anonymous(each) for each in value] if isinstance(value, list) else value


@pytest.fixture
async def forum(call: Client, chat: Person) -> Forum:
    forum = Forum(call, chat)
    await forum.prepare()
    return forum


@pytest.mark.parametrize("method", SENDING)
async def test_each_parameter_changes_the_message_or_is_documented(forum: Forum, method: str) -> None:
    without_effect = []
    for name in fields_of(method):
        if name in CALLS[method] or name in OTHERWISE:
            continue
        value, others = VALUES[name] if isinstance(VALUES[name], tuple) else (VALUES[name], {})
        base = {**CALLS[method], **{key: each for key, each in others.items() if key in fields_of(method)}}
        if not await forum.changes(method, base, {**base, name: value}):
            without_effect.append(name)
    assert [name for name in without_effect if name not in UNUSED] == []


INPUT_MEDIA = {
    kind: getattr(aiogram.types, f"InputMedia{kind.title()}")
    for kind in ("photo", "video", "animation", "audio", "document")
}


@pytest.mark.parametrize("kind", INPUT_MEDIA)
async def test_each_field_of_input_media_changes_the_message(forum: Forum, kind: str) -> None:
    unchanged = []
    for name in INPUT_MEDIA[kind].model_fields:
        if name in ("type", "media"):
            continue
        value, others = VALUES[name] if isinstance(VALUES[name], tuple) else (VALUES[name], {})
        base = {"type": kind, "media": "attach://a", "caption": others.get("caption", "y")}
        number = (await forum.send("sendPhoto", {"photo": "attach://photo"}))["message_id"]
        calls = [{"message_id": number, "media": media} for media in (base, {**base, name: value})]
        if not await forum.changes("editMessageMedia", *calls):
            unchanged.append(name)
    assert [name for name in unchanged if name not in UNUSED] == []


async def test_each_field_of_a_poll_option_changes_the_poll(forum: Forum) -> None:
    values = {"text_parse_mode": "HTML", "text_entities": ITALIC, "media": PHOTO}
    assert values.keys() | {"text"} == aiogram.types.InputPollOption.model_fields.keys()
    for name, value in values.items():
        calls = [{"question": "?", "options": [{"text": "<b>x</b>", **more}]} for more in ({}, {name: value})]
        assert await forum.changes("sendPoll", *calls), name


async def test_each_field_of_reply_parameters_changes_the_message(
    forum: Forum, api: BotAPI, bot: Bot, call: Client, chat: Person
) -> None:
    elsewhere = await chat.send("somewhere else")
    values: dict[str, tuple[Any, dict[str, Any]]] = {
        "message_id": (1, {}),
        "chat_id": (42, {"message_id": elsewhere["message_id"]}),
        "allow_sending_without_reply": (True, {"message_id": 999}),
        "quote": ("and", {"message_id": 1}),
        "quote_parse_mode": ("HTML", {"message_id": 1, "quote": "<b>x</b>"}),
        "quote_entities": (ITALIC, {"message_id": 1, "quote": "x"}),
        "quote_position": (2, {"message_id": 1, "quote": "x"}),
        "checklist_task_id": (1, {"message_id": 1}),
        "poll_option_id": ("1", {"message_id": 1}),
    }
    # Ephemeral messages are not supported.
    assert values.keys() | {"ephemeral_message_id"} == aiogram.types.ReplyParameters.model_fields.keys()
    for name, (value, others) in values.items():
        calls = [{"text": "x", "reply_parameters": reply} for reply in (others, {**others, name: value})]
        assert await forum.changes("sendMessage", *calls), name
