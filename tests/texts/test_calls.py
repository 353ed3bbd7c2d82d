"""Calls have the defaults of the bot, and as many messages as their texts need."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell.botapi import check_call
from stepwell.errors import BotApiError, InvalidOption
from stepwell.texts import Formatting, fit, make_call, units

Call = dict[str, Any]
FENCED = (
    "# Report 🎉\n\n"
    + "".join(f"Paragraph {number} with **bold** words and emoji 🎉👨‍👩‍👧. " * 6 + "\n\n" for number in range(13))
    + "```python\n"
    + "".join(f"print({number}, '<&> 🎉')\n" for number in range(255))
    + "```\n\nThe end."
)


def send(text: str, **params: Any) -> Call:
    return {"method": "sendMessage", "chat_id": 42, "text": text, **params}


def check_all(calls: list[Call]) -> None:
    for call in calls:
        check_call(call)


def test_calls_that_fit_are_the_same_objects() -> None:
    calls = [send("Hello"), {"method": "sendPhoto", "chat_id": 1, "photo": "x", "caption": "Hi"}, send("🎉" * 2048)]
    calls += [
        {"method": "sendPoll", "chat_id": 1},
        {"method": "editMessageReplyMarkup"},
        send("<b>" + "x" * 4096 + "</b>", parse_mode="HTML"),
    ]
    assert all(fitted is call for fitted, call in zip(fit(calls), calls, strict=True))


def test_nine_thousand_characters_with_fences_and_emoji_are_three_valid_messages() -> None:
    assert 8900 < len(FENCED) < 9500
    calls = fit([send(FENCED, parse_mode="CommonMark", message_thread_id=7, reply_markup={"inline_keyboard": []})])
    assert len(calls) == 3
    check_all(calls)
    assert {call["message_thread_id"] for call in calls} == {7}
    assert ["reply_markup" in call for call in calls] == [False, False, True]
    whole = fit([send(FENCED[:100], parse_mode="CommonMark")])[0]["text"]
    assert calls[0]["text"].startswith(whole[:80])
    codes = [each for call in calls for each in call["entities"] if each["type"] == "pre"]
    assert {each["language"] for each in codes} == {"python"}
    printed = "".join(call["text"] for call in calls)
    assert all(f"print({number}, '<&> 🎉')\n" in printed for number in range(254))
    assert printed.endswith("The end.")


def test_html_is_split_with_its_tags_and_broken_html_as_it_is() -> None:
    calls = fit([send("<b>" + "word & " * 700 + "</b>", parse_mode="HTML")])
    assert [call.get("parse_mode") for call in calls] == [None, None]
    assert [call["entities"][0]["type"] for call in calls] == ["bold", "bold"]
    check_all(calls)
    calls = fit([send("<b>" + "word " * 1000, parse_mode="HTML")])
    assert "".join(call["text"] for call in calls) == "<b>" + "word " * 1000
    assert not any("parse_mode" in call or "entities" in call for call in calls)


def test_the_rest_of_a_caption_follows_as_messages_and_its_keyboard_stays_with_the_picture() -> None:
    keyboard = {"inline_keyboard": [[{"text": "Yes", "callback_data": "yes"}]]}
    calls = fit(
        [
            {
                "method": "sendPhoto",
                "chat_id": 42,
                "photo": "id",
                "caption": "word " * 1500,
                "reply_markup": keyboard,
                "disable_notification": True,
                "reply_parameters": {"message_id": 3},
            }
        ]
    )
    assert [call["method"] for call in calls] == ["sendPhoto", "sendMessage", "sendMessage"]
    assert units(calls[0]["caption"]) <= 1024
    assert ["reply_markup" in call for call in calls] == [True, False, False]
    assert ["reply_parameters" in call for call in calls] == [True, False, False]
    assert all(call["disable_notification"] for call in calls)
    assert "".join(call.get("caption", "") + call.get("text", "") for call in calls) == "word " * 1500


def test_an_album_keeps_the_beginnings_of_its_captions() -> None:
    media = [{"type": "photo", "media": "a", "caption": "word " * 400}, {"type": "photo", "media": "b"}]
    album, rest = fit([{"method": "sendMediaGroup", "chat_id": 42, "media": media}])
    assert album["media"][0]["caption"] + rest["text"] == "word " * 400
    assert album["media"][1] is media[1] and set(album["media"][0]) == {"type", "media", "caption"}
    assert rest == {"method": "sendMessage", "chat_id": 42, "text": rest["text"]}


def test_the_rest_of_an_edit_answers_the_edited_message() -> None:
    edit, rest = fit([{"method": "editMessageText", "chat_id": 42, "message_id": 7, "text": "word " * 1000}])
    assert (edit["method"], edit["message_id"]) == ("editMessageText", 7)
    assert rest["method"] == "sendMessage" and rest["reply_parameters"]["message_id"] == 7


def test_a_message_that_was_sent_inline_is_not_split() -> None:
    call = {"method": "editMessageText", "inline_message_id": "x", "text": "word " * 1000}
    assert fit([call]) == [call]


def test_entities_that_are_none_are_left_out_of_a_text_that_is_split() -> None:
    bold = {"type": "bold", "offset": 0, "length": 5}
    first, second = fit([send("word " * 1000, entities=[bold, {"type": "bold"}, "x", {**bold, "offset": 9999}])])
    assert first["entities"] == [bold] and "entities" not in second


def test_spaces_are_no_message() -> None:
    calls = fit([send("Hello" + "\n" * 9000 + "world")])
    assert [call["text"].strip() for call in calls] == ["Hello", "world"]
    assert len(fit([send(" " * 9000)])) == 1


def test_texts_have_the_defaults_of_the_bot_unless_they_say_otherwise() -> None:
    defaults = Formatting("HTML", {"is_disabled": True})
    (call,) = fit([send("Hello")], defaults)
    assert call == send("Hello", parse_mode="HTML", link_preview_options={"is_disabled": True})
    (call,) = fit([send("Hello", parse_mode=None, disable_web_page_preview=False)], defaults)
    assert call == send("Hello", parse_mode=None, disable_web_page_preview=False)
    (call,) = fit([send("Hello", entities=[])], defaults)
    assert "parse_mode" not in call
    photo = {"method": "sendPhoto", "chat_id": 1, "photo": "x"}
    assert fit([photo], defaults) == [photo]
    (call,) = fit([{**photo, "caption": "<i>Hi</i>"}], defaults)
    assert call["parse_mode"] == "HTML" and "link_preview_options" not in call
    media = [{"type": "photo", "media": "a", "caption": "<i>Hi</i>"}]
    (call,) = fit([{"method": "sendMediaGroup", "chat_id": 1, "media": media}], defaults)
    assert call["media"][0]["parse_mode"] == "HTML"


def test_commonmark_is_sent_as_entities() -> None:
    (call,) = fit([send("Hello **world**", parse_mode="CommonMark")])
    assert call == send("Hello world", entities=[{"type": "bold", "offset": 6, "length": 5}])
    assert fit([send("Hello", parse_mode="CommonMark")]) == [send("Hello")]


@pytest.mark.parametrize(
    ("options", "message"),
    [((("bbcode", None)), "HTML, MarkdownV2, Markdown, CommonMark"), ((None, True), "is_disabled")],
)
def test_defaults_that_telegram_does_not_know_are_refused(options: tuple[Any, Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        Formatting.of(*options, "FSM")


async def test_broken_markup_is_sent_as_text_however_long_it_is() -> None:
    made: list[Call] = []

    async def make(method: str, /, **params: Any) -> int:
        made.append({"method": method, **params})
        if params.get("parse_mode"):
            raise BotApiError(method, 400, "Bad Request: can't parse entities: Unclosed start tag")
        return len(made)

    assert await make_call(make, send("<b>" * 1400, parse_mode="HTML")) == 2
    assert made[1:] == [send("<b>" * 1365 + "<"), send("b>" + "<b>" * 34)]


async def test_other_refusals_are_raised_and_an_edit_without_a_change_counts_as_made() -> None:
    async def make(method: str, /, **params: Any) -> int:
        what = "message is not modified" if method == "editMessageText" else "chat not found"
        raise BotApiError(method, 400, f"Bad Request: {what}")

    assert await make_call(make, {"method": "editMessageText", "text": "x"}) is None
    with pytest.raises(BotApiError, match="chat not found"):
        await make_call(make, send("Hello", parse_mode="HTML"))
