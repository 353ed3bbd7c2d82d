"""Messages of a bot: files, edits, copies and polls."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stepwell.botapi import Bot, BotAPI, NotPossible, Person
from tests.botapi.conftest import Client
from tests.until import until


async def upload(call: Client, method: str, files: dict[str, bytes], **params: Any) -> Any:
    data = {name: value if isinstance(value, str) else json.dumps(value) for name, value in params.items()}
    parts = {name: (f"{name}.bin", content) for name, content in files.items()}
    body = (await call.http.post(method, data={"chat_id": 42, **data}, files=parts)).json()
    return body["result"] if body["ok"] else (body["error_code"], body["description"])


# Files


async def test_a_file_that_is_sent_again_by_its_id_is_the_same(call: Client, chat: Person) -> None:
    sent = await upload(call, "sendVideo", {"video": b"v", "thumbnail": b"t"}, duration=9, width=3, height=4)
    video = sent["video"]
    assert (video["duration"], video["width"], video["height"], video["file_size"]) == (9, 3, 4, 1)
    assert video["thumbnail"]["file_size"] == 1
    assert (await call("sendVideo", chat_id=42, video=video["file_id"]))["video"] == video
    # Telegram keeps the kind of the file.
    assert (await call("sendDocument", chat_id=42, document=video["file_id"]))["video"] == video
    assert (await call("getFile", file_id=video["thumbnail"]["file_id"]))["file_size"] == 1
    assert await call("sendPhoto", chat_id=42, photo=video["file_id"]) == (
        400, "Bad Request: can't use file of type Video as Photo")  # fmt: skip


async def test_an_empty_file_is_refused(call: Client, chat: Person) -> None:
    assert await upload(call, "sendDocument", {"document": b""}) == (400, "Bad Request: file must be non-empty")
    assert await call("sendDocument", chat_id=42) == (400, "Bad Request: there is no document in the request")


async def test_an_album_is_sent_whole_or_not_at_all(call: Client, chat: Person) -> None:
    photo = {"type": "photo", "media": "attach://a"}
    for media, why in [
        ([photo, {**photo, "media": "attach://b"}], "there is no photo in the request"),
        ([photo, {**photo, "type": "animation"}], 'type "animation" can\'t be used in sendMediaGroup'),
        ([photo, {**photo, "type": "sticker"}], 'type "sticker" is unsupported'),
        ([photo] * 11, "too many messages to send as an album"),
        ([], "there are no messages to send"),
    ]:
        code, description = await upload(call, "sendMediaGroup", {"a": b"x"}, media=media)
        assert (code, why in description) == (400, True), description
    assert chat.messages == []


# Edits


async def test_media_and_its_caption_are_edited(call: Client, chat: Person) -> None:
    sent = await upload(call, "sendPhoto", {"photo": b"p"}, caption="*a*", parse_mode="Markdown", has_spoiler=True)
    number = sent["message_id"]
    edited = await call("editMessageCaption", chat_id=42, message_id=number, caption="b", show_caption_above_media=True)
    assert (edited["caption"], "caption_entities" in edited, edited["show_caption_above_media"]) == ("b", False, True)
    media = {"type": "video", "media": "attach://v", "duration": 3, "caption": "c"}
    edited = await upload(call, "editMessageMedia", {"v": b"v"}, message_id=number, media=media)
    assert (edited["video"]["duration"], edited["caption"], "photo" in edited) == (3, "c", False)
    assert "has_media_spoiler" not in edited
    assert await call("editMessageText", chat_id=42, message_id=number, text="x") == (
        400, "Bad Request: there is no text in the message to edit")  # fmt: skip
    text = (await call("sendMessage", chat_id=42, text="x"))["message_id"]
    assert await call("editMessageCaption", chat_id=42, message_id=text, caption="x") == (
        400, "Bad Request: there is no caption in the message to edit")  # fmt: skip
    edited = await upload(call, "editMessageMedia", {"v": b"v"}, message_id=text, media=media)
    assert ("video" in edited, "text" in edited) == (True, False)
    dice = (await call("sendDice", chat_id=42))["message_id"]
    assert (await upload(call, "editMessageMedia", {"v": b"v"}, message_id=dice, media=media))[0] == 400
    assert await call("editMessageMedia", chat_id=42, message_id=text) == (
        400, 'Bad Request: parameter "media" is required')  # fmt: skip


async def test_a_live_location_moves_until_it_is_stopped(call: Client, chat: Person) -> None:
    sent = await call("sendLocation", chat_id=42, latitude=1, longitude=2, live_period=60)
    where = {"chat_id": 42, "message_id": sent["message_id"]}
    moved = await call("editMessageLiveLocation", **where, latitude=3, longitude=4, heading=90)
    assert moved["location"] == {"latitude": 3, "longitude": 4, "live_period": 60, "heading": 90}
    stopped = await call("stopMessageLiveLocation", **where)
    assert stopped["location"] == {"latitude": 3, "longitude": 4}
    assert await call("stopMessageLiveLocation", **where) == (400, "Bad Request: message can't be edited")


# Copies


async def test_several_messages_are_forwarded_and_copied(call: Client, chat: Person) -> None:
    media = [{"type": "photo", "media": "attach://a", "caption": "c"}, {"type": "photo", "media": "attach://a"}]
    album = await upload(call, "sendMediaGroup", {"a": b"x"}, media=media)
    text = await chat.send("text")
    numbers = [*(each["message_id"] for each in album), text["message_id"], 999]
    bob = chat.user(7)
    there = {"chat_id": 7, "from_chat_id": 42, "message_ids": numbers}
    assert [set(each) for each in await call("forwardMessages", **there)] == [{"message_id"}] * 3
    forwarded = bob.messages[-3:]
    assert forwarded[2]["forward_origin"]["sender_user"]["first_name"] == "Alice"
    assert forwarded[0]["media_group_id"] == forwarded[1]["media_group_id"] != album[0]["media_group_id"]
    await call("copyMessages", **there, remove_caption=True)
    assert ["caption" in each or "forward_origin" in each for each in bob.messages[-3:]] == [False] * 3
    for ids, why in [
        ([999], "there are no messages to forward"),
        ([], "message identifiers are not specified"),
        ([1] * 101, "too many message identifiers specified"),
        (["x"], "can't parse message identifier"),
    ]:
        code, description = await call("forwardMessages", chat_id=7, from_chat_id=42, message_ids=ids)
        assert (code, why in description) == (400, True), description


async def test_a_forward_names_its_first_origin(call: Client, chat: Person) -> None:
    channel = chat.group(-(10**12) - 7, type="channel", title="News")
    post = await channel.send("Extra!")
    first = await call("forwardMessage", chat_id=42, from_chat_id=channel.room.id, message_id=post["message_id"])
    assert (first["forward_origin"]["type"], first["forward_origin"]["chat"]["title"]) == ("channel", "News")
    second = await call("forwardMessage", chat_id=42, from_chat_id=42, message_id=first["message_id"])
    assert second["forward_origin"] == first["forward_origin"]
    assert await call("copyMessage", chat_id=42, from_chat_id=42, message_id=999) == (
        400, "Bad Request: message to copy not found")  # fmt: skip


async def test_a_service_message_is_not_copied(call: Client, chat: Person) -> None:
    group = chat.group(-5)
    await group.join()
    number = group.messages[-1]["message_id"]
    assert await call("copyMessage", chat_id=42, from_chat_id=-5, message_id=number) == (
        400, "Bad Request: message can't be copied")  # fmt: skip


async def test_a_quote_is_a_part_of_the_message(call: Client, chat: Person) -> None:
    number = (await chat.send("😀 one two"))["message_id"]
    reply = {"message_id": number, "quote": "two"}
    sent = await call("sendMessage", chat_id=42, text="x", reply_parameters=reply)
    assert sent["quote"] == {"text": "two", "position": 7, "is_manual": True}
    assert await call("sendMessage", chat_id=42, text="x", reply_parameters={**reply, "quote": "three"}) == (
        400, "Bad Request: QUOTE_TEXT_INVALID")  # fmt: skip


# Polls


async def test_users_vote_and_the_bot_stops_the_poll(call: Client, chat: Person) -> None:
    group = chat.group(-5)
    bob = group.user(7)
    sent = await call("sendPoll", chat_id=-5, question="Tea?", options=["Yes", "No"], is_anonymous=False)
    await group.vote("Yes")
    await bob.vote("Yes")
    await bob.vote("No")
    kinds = [next(iter(update.keys() - {"update_id"})) for update in chat.updates]
    assert kinds == ["poll", "poll_answer"] * 3
    assert chat.updates[-1]["poll_answer"]["option_ids"] == [1]
    assert [option["voter_count"] for option in chat.updates[-2]["poll"]["options"]] == [1, 1]
    await bob.vote()
    assert chat.updates[-1]["poll_answer"]["option_ids"] == []
    where = {"chat_id": -5, "message_id": sent["message_id"]}
    stopped = await call("stopPoll", **where)
    assert (stopped["is_closed"], stopped["total_voter_count"]) == (True, 1)
    assert chat.updates[-1]["poll"] == stopped == group.messages[-1]["poll"]
    assert await call("stopPoll", **where) == (400, "Bad Request: poll has already been closed")
    assert (await call("stopPoll", chat_id=-5, message_id=999))[1].endswith("message with poll to stop not found")
    with pytest.raises(NotPossible, match="closed"):
        await bob.vote("Yes")


@pytest.mark.parametrize("given", ["open_period", "close_date"])
async def test_a_poll_closes_at_its_time_and_its_bot_gets_the_update(
    given: str, api: BotAPI, call: Client, chat: Person
) -> None:
    group = chat.group(-5)
    now = 1_800_000_000.0
    api.world.clock = lambda: now
    closing = {"open_period": 1, "close_date": 1_800_000_001}
    sent = await call(
        "sendPoll", chat_id=-5, question="Tea?", options=["Yes", "No"], reply_markup={"inline_keyboard": []},
        **{given: closing[given]},
    )  # fmt: skip
    await group.vote("Yes")
    forwarded = await call("forwardMessage", chat_id=42, from_chat_id=-5, message_id=sent["message_id"])
    before = len(chat.updates)
    shown = group.messages[-1]
    assert not shown["poll"]["is_closed"]
    now += 1
    with pytest.raises(NotPossible, match="closed"):
        await group.vote("No")
    await until(lambda: shown["poll"]["is_closed"])
    (update,) = chat.updates[before:]
    closed = update["poll"]
    assert (closed["id"], closed["is_closed"], closed["total_voter_count"]) == (sent["poll"]["id"], True, 1)
    assert closed["close_date"] == closing["close_date"]
    assert shown["poll"] == closed
    # A forwarded poll is the same poll.
    assert chat.messages[-1]["message_id"] == forwarded["message_id"]
    assert chat.messages[-1]["poll"]["is_closed"]
    stop = await call("stopPoll", chat_id=-5, message_id=sent["message_id"])
    assert stop == (400, "Bad Request: poll has already been closed")


async def test_a_poll_that_was_stopped_or_deleted_gives_no_update_at_its_time(
    api: BotAPI, call: Client, chat: Person
) -> None:
    now = 1_800_000_000.0
    api.world.clock = lambda: now
    polls = [
        await call("sendPoll", chat_id=42, question=question, options=["Yes", "No"], open_period=1)
        for question in ("Stopped?", "Deleted?", "Open?")
    ]
    where = [{"chat_id": 42, "message_id": each["message_id"]} for each in polls]
    await call("stopPoll", **where[0])
    await call("deleteMessage", **where[1])
    now += 1
    await until(lambda: chat.messages[-1]["poll"]["is_closed"])
    asked = [update["poll"]["question"] for update in chat.updates]
    assert asked == ["Stopped?", "Open?"]


async def test_a_poll_may_close_at_any_date(call: Client, chat: Person) -> None:
    sent = await call("sendPoll", chat_id=42, question="?", options=["a"], close_date=10**400)
    assert not sent["poll"]["is_closed"]
    sent = await call("sendPoll", chat_id=42, question="?", options=["a"], close_date=1)
    await until(lambda: chat.messages[-1]["poll"]["is_closed"])
    assert not chat.messages[-2]["poll"]["is_closed"]


async def test_the_document_of_an_animation_has_the_fields_of_a_document_only(call: Client, chat: Person) -> None:
    where = {"animation": "https://example.com/cat.gif", "width": 20, "duration": 3}
    sent = await call("sendAnimation", chat_id=42, **where)
    document = {"file_id", "file_unique_id", "file_name", "mime_type", "file_size", "thumbnail"}
    assert sent["animation"]["width"] == 20
    assert set(sent["document"]) <= document
    assert sent["document"] == {name: value for name, value in sent["animation"].items() if name in document}


async def test_a_quiz_accepts_one_vote_and_an_anonymous_poll_names_no_user(call: Client, chat: Person) -> None:
    await call("sendPoll", chat_id=42, question="2 + 2", options=["3", "4"], type="quiz", correct_option_id=1)
    assert chat.messages[-1]["poll"]["correct_option_ids"] == [1]
    await chat.vote("4", on="2 + 2")
    assert "poll" in chat.updates[-1]
    for options, why in [(["3"], "one vote"), (["5"], "no option '5'"), (["3", "4"], "one option only")]:
        with pytest.raises(NotPossible, match=why):
            await chat.vote(*options)
    with pytest.raises(NotPossible, match="no such poll"):
        await chat.vote("x", on="Which?")


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({"question": ""}, "poll question must be non-empty"),
        ({"question": "x" * 301}, "poll question length must not exceed 300"),
        ({"options": []}, "poll must have at least 1 option"),
        ({"options": ["a"] * 13}, "poll can't have more than 12 options"),
        ({"options": ["x" * 101]}, "poll options length must not exceed 100"),
        ({"options": [""]}, "poll options must be non-empty"),
        ({"type": "other"}, "unsupported poll type specified"),
        ({"type": "quiz"}, "wrong correct option ID specified"),
        ({"media": {"type": "nothing"}}, 'type "nothing" is unsupported'),
    ],
)
async def test_an_invalid_poll_is_refused(call: Client, chat: Person, params: dict[str, Any], why: str) -> None:
    code, description = await call("sendPoll", chat_id=42, **{"question": "?", "options": ["a", "b"], **params})
    assert (code, why in description) == (400, True), description


async def test_the_media_of_a_poll_may_be_a_place_or_a_link(call: Client, chat: Person) -> None:
    place = {"latitude": 1.0, "longitude": 2.0}
    for media, shown in [
        ({"type": "location", **place}, {"location": place}),
        ({"type": "venue", **place, "title": "T", "address": "A"},
         {"venue": {"location": place, "title": "T", "address": "A"}}),
        ({"type": "link", "url": "http://x"}, {"link": {"url": "http://x"}}),
    ]:  # fmt: skip
        sent = await call("sendPoll", chat_id=42, question="?", options=["a"], media=media)
        assert sent["poll"]["media"] == shown


async def test_the_values_of_dice_depend_on_their_emoji(call: Client, chat: Person, bot: Bot, api: BotAPI) -> None:
    values = {(await call("sendDice", chat_id=42, emoji="🏀"))["dice"]["value"] for _ in range(60)}
    assert values <= {1, 2, 3, 4, 5}
    assert (await call("sendDice", chat_id=42))["dice"]["emoji"] == "🎲"
    assert (await call("sendDice", chat_id=42, emoji="x"))[0] == 400
