"""Each method of the Bot API, over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging

import httpx
import pytest

from stepwell.botapi import Bot, BotAPI, NotPossible, Person
from tests.botapi.conftest import Client
from tests.until import until


async def test_send_message_reaches_the_user(call: Client, chat: Person) -> None:
    assert chat.last is None
    said = await chat.send("hi")
    sent = await call("sendMessage", chat_id=42, text="Hello!", reply_parameters={"message_id": said["message_id"]})
    assert await chat.answer() == "Hello!" == chat.last
    assert sent["reply_to_message"]["text"] == "hi"
    assert sent["from"]["is_bot"] is True
    assert str(chat) == "Alice: hi\nmy_bot: Hello!"


@pytest.mark.parametrize(
    ("mode", "text", "plain", "kinds"),
    [
        ("HTML", "<b>a</b> &lt; <a href='http://x'>y</a>", "a < y", ["bold", "text_link"]),
        ("HTML", '<pre><code class="language-python">x = 1</code></pre>', "x = 1", ["pre"]),
        ("MarkdownV2", r"*a* _b_ __c__ ~d~ ||e|| `f` \.", "a b c d e f .",
         ["bold", "italic", "underline", "strikethrough", "spoiler", "code"]),
        ("MarkdownV2", "[y *z*](http://x)", "y z", ["text_link", "bold"]),
        ("Markdown", "*a* _b_ `c`", "a b c", ["bold", "italic", "code"]),
        ("", "see https://x.org @somebody #tag a@b.cd", "see https://x.org @somebody #tag a@b.cd",
         ["url", "mention", "hashtag", "email"]),
    ],
)  # fmt: skip
async def test_formatted_text_is_parsed(
    call: Client, chat: Person, mode: str, text: str, plain: str, kinds: list[str]
) -> None:
    sent = await call("sendMessage", chat_id=42, text=text, parse_mode=mode)
    assert sent["text"] == plain
    assert [entity["type"] for entity in sent["entities"]] == kinds


async def test_a_link_ends_before_the_end_of_its_sentence(call: Client, chat: Person) -> None:
    sent = await call("sendMessage", chat_id=42, text="See https://x.org/a_b.html, and (https://x.org/?q=1).")
    links = [sent["text"][each["offset"] :][: each["length"]] for each in sent["entities"]]
    assert links == ["https://x.org/a_b.html", "https://x.org/?q=1"]


async def test_offsets_count_utf_16_units(call: Client, chat: Person) -> None:
    sent = await call("sendMessage", chat_id=42, text="😀 <b>😀</b>", parse_mode="HTML")
    assert sent["entities"] == [{"type": "bold", "offset": 3, "length": 2}]


@pytest.mark.parametrize(
    ("params", "error"),
    [
        ({"chat_id": 42}, "message text is empty"),
        ({"text": "x"}, "chat_id is empty"),
        ({"chat_id": "forty-two", "text": "x"}, "invalid chat_id specified"),
        ({"chat_id": 7, "text": "x"}, "chat not found"),
        ({"chat_id": "@nowhere", "text": "x"}, "chat not found"),
        ({"chat_id": 42, "text": "x" * 4097}, "message is too long"),
        ({"chat_id": 42, "text": "<b>x", "parse_mode": "HTML"}, "can't parse entities"),
        ({"chat_id": 42, "text": "a.b", "parse_mode": "MarkdownV2"}, "is reserved and must be escaped"),
        ({"chat_id": 42, "text": "*x", "parse_mode": "Markdown"}, "can't parse entities"),
        ({"chat_id": 42, "text": "x", "parse_mode": "RTF"}, "unsupported parse_mode"),
        ({"chat_id": 42, "text": "x", "reply_parameters": {"message_id": 99}}, "message to be replied not found"),
        ({"chat_id": 42, "text": "x", "message_thread_id": 99}, "message thread not found"),
        ({"chat_id": 42, "text": "x", "reply_markup": "{"}, "can't parse reply keyboard markup JSON object"),
        ({"chat_id": 42, "text": "x", "reply_markup": {"inline_keyboard": [[{"text": "y"}]]}}, "Text buttons"),
        (
            {"chat_id": 42, "text": "x",
             "reply_markup": {"inline_keyboard": [[{"text": "y", "callback_data": "z" * 65}]]}},
            "BUTTON_DATA_INVALID",
        ),
        (
            {"chat_id": 42, "text": "x", "reply_markup": {"inline_keyboard": [[{"text": "y", "callback_data": ""}]]}},
            "can't parse inline keyboard button: Text buttons are unallowed in the inline keyboard",
        ),
        ({"chat_id": 42, "text": "x", "reply_markup": {"keyboard": [1]}}, 'field "keyboard" must be'),
    ],
)  # fmt: skip
async def test_an_invalid_message_is_refused_with_telegrams_description(
    call: Client, chat: Person, params: dict[str, object], error: str
) -> None:
    code, why = await call("sendMessage", **params)
    assert code == 400
    assert why.startswith("Bad Request: ")
    assert error in why
    assert chat.messages == []


async def test_an_inline_button_is_pressed_and_answered(call: Client, chat: Person) -> None:
    keyboard = {"inline_keyboard": [[{"text": "Yes", "callback_data": "y"}, {"text": "Web", "url": "http://x"}]]}
    await call("sendMessage", chat_id=42, text="Sure?", reply_markup=json.dumps(keyboard))
    assert chat.buttons == ["Yes", "Web"]
    query_id = await chat.press("Yes")
    assert query_id is not None
    (update,) = await call("getUpdates")
    assert update["callback_query"]["data"] == "y"
    assert update["callback_query"]["message"]["text"] == "Sure?"
    waiting = asyncio.create_task(chat.notice(query_id))
    assert await call("answerCallbackQuery", callback_query_id=query_id, text="Noted") is True
    assert (await waiting)["text"] == "Noted"
    code, why = await call("answerCallbackQuery", callback_query_id=query_id)
    assert (code, "query is too old" in why) == (400, True)
    with pytest.raises(NotPossible, match="the buttons are: 'Yes', 'Web'"):
        await chat.press("No")
    with pytest.raises(NotPossible, match="opens a page"):
        await chat.press("Web")


async def test_a_reply_keyboard_sends_its_text(call: Client, chat: Person) -> None:
    keyboard = {"keyboard": [["A", {"text": "Phone", "request_contact": True}]], "one_time_keyboard": True}
    await call("sendMessage", chat_id=42, text="Which?", reply_markup=keyboard)
    assert chat.buttons == ["A", "Phone"]
    await chat.press("Phone")
    assert chat.updates[-1]["message"]["contact"]["user_id"] == 42
    await call("sendMessage", chat_id=42, text="And?", reply_markup=keyboard)
    # An empty keyboard is none.
    await call("sendMessage", chat_id=42, text="So?", reply_markup={"keyboard": [[]]})
    await chat.press("A")
    assert chat.updates[-1]["message"]["text"] == "A"
    assert chat.buttons == []
    await call("sendMessage", chat_id=42, text="And?", reply_markup=keyboard)
    await call("sendMessage", chat_id=42, text="Done", reply_markup={"remove_keyboard": True})
    assert chat.buttons == []


async def test_messages_are_edited_and_deleted(call: Client, chat: Person) -> None:
    keyboard = {"inline_keyboard": [[{"text": "Yes", "callback_data": "y"}]]}
    number = (await call("sendMessage", chat_id=42, text="one", reply_markup=keyboard))["message_id"]
    edited = await call("editMessageText", chat_id=42, message_id=number, text="two")
    assert (edited["text"], "reply_markup" in edited, "edit_date" in edited) == ("two", False, True)
    await call("editMessageReplyMarkup", chat_id=42, message_id=number, reply_markup=keyboard)
    assert chat.buttons == ["Yes"]
    code, why = await call("editMessageReplyMarkup", chat_id=42, message_id=number, reply_markup=keyboard)
    assert (code, "message is not modified" in why) == (400, True)
    mine = (await chat.send("mine"))["message_id"]
    assert await call("editMessageText", chat_id=42, message_id=mine, text="x") == (
        400, "Bad Request: message can't be edited")  # fmt: skip
    assert await call("editMessageText", chat_id=42, message_id=999, text="x") == (
        400, "Bad Request: message to edit not found")  # fmt: skip
    assert await call("deleteMessage", chat_id=42, message_id=number) is True
    assert await call("deleteMessage", chat_id=42, message_id=number) == (
        400, "Bad Request: message to delete not found")  # fmt: skip
    assert [message["text"] for message in chat.messages] == ["mine"]


async def test_a_user_edits_a_message(call: Client, chat: Person) -> None:
    await chat.send("helo")
    await chat.edit("/hello")
    assert [next(iter(set(each) - {"update_id"})) for each in await call("getUpdates")] == [
        "message", "edited_message"]  # fmt: skip
    assert chat.updates[0]["message"]["text"] == "helo"
    assert chat.updates[1]["edited_message"]["text"] == "/hello"


async def test_an_unknown_chat_action_is_refused(call: Client, chat: Person) -> None:
    assert await call("sendChatAction", chat_id=42, action="typing") is True
    for action in ("", "dancing"):
        assert await call("sendChatAction", chat_id=42, action=action) == (
            400, "Bad Request: wrong parameter action in request")  # fmt: skip


async def test_an_inline_query_is_answered(call: Client, chat: Person) -> None:
    query_id = await chat.inline("cats")
    (update,) = await call("getUpdates")
    assert update["inline_query"]["query"] == "cats"
    results = [{"type": "article", "id": "1", "title": "Cat"}]
    assert await call("answerInlineQuery", inline_query_id=query_id, results=results) is True
    assert (await chat.notice(query_id))["results"] == results


async def test_forms_multipart_and_queries_work_like_json(api: BotAPI, call: Client, bot: Bot, chat: Person) -> None:
    keyboard = json.dumps({"inline_keyboard": [[{"text": "Yes", "callback_data": "y"}]]})
    fields = {"chat_id": "42", "text": "Größe 😀", "reply_markup": keyboard, "disable_notification": "true"}
    by_form = (await call.http.post("sendmessage", data=fields)).json()["result"]
    by_parts = (await call.http.post("sendMessage", files={k: (None, v) for k, v in fields.items()})).json()["result"]
    by_query = (await call.http.get("sendMessage", params=fields)).json()["result"]
    assert by_form["text"] == by_parts["text"] == by_query["text"] == "Größe 😀"
    assert by_form["reply_markup"] == by_parts["reply_markup"] == by_query["reply_markup"]


async def test_files_are_accepted_listed_and_returned(api: BotAPI, call: Client, bot: Bot, chat: Person) -> None:
    content = bytes(range(256)) * 9
    files = {"photo": ("me.jpg", content, "image/jpeg")}
    body = (await call.http.post("sendPhoto", data={"chat_id": 42, "caption": "Me"}, files=files)).json()
    photo = body["result"]["photo"][-1]
    assert (photo["file_size"], chat.last) == (len(content), "Me")
    path = (await call("getFile", file_id=photo["file_id"]))["file_path"]
    got = await call.http.get(f"{api.url}/file/bot{bot.token}/{path}")
    assert got.content == content
    assert got.headers["content-disposition"] == "attachment"
    again = await call("sendPhoto", chat_id=42, photo=photo["file_id"])
    assert again["photo"][0]["file_id"] == photo["file_id"]
    assert await call("sendDocument", chat_id=42, document="nonsense") == (
        400, "Bad Request: wrong file identifier/HTTP URL specified")  # fmt: skip
    album = [{"type": "photo", "media": "attach://a"}, {"type": "document", "media": "https://x/y.pdf"}]
    sent = (
        await call.http.post(
            "sendMediaGroup", data={"chat_id": 42, "media": json.dumps(album)}, files={"a": ("a.png", b"1")}
        )
    ).json()["result"]
    assert sent[0]["media_group_id"] == sent[1]["media_group_id"]
    assert sent[1]["document"]["file_name"] == "y.pdf"


@pytest.mark.parametrize(
    ("method", "params", "field"),
    [
        ("sendLocation", {"latitude": 1.5, "longitude": "2"}, "location"),
        ("sendContact", {"phone_number": "+1", "first_name": "A"}, "contact"),
        ("sendVenue", {"latitude": 1, "longitude": 2, "title": "T", "address": "A"}, "venue"),
        ("sendDice", {}, "dice"),
        ("sendPoll", {"question": "?", "options": ["a", {"text": "b"}]}, "poll"),
    ],
)
async def test_other_kinds_of_messages_are_accepted(
    call: Client, chat: Person, method: str, params: dict[str, object], field: str
) -> None:
    assert field in await call(method, chat_id=42, **params)
    assert field in chat.messages[-1]


async def test_messages_are_forwarded_and_copied(call: Client, chat: Person) -> None:
    number = (await chat.send("original"))["message_id"]
    bob = chat.user(7, first_name="Bob")
    forwarded = await call("forwardMessage", chat_id=7, from_chat_id=42, message_id=number)
    assert forwarded["forward_origin"]["sender_user"]["first_name"] == "Alice"
    copied = await call("copyMessage", chat_id=7, from_chat_id=42, message_id=number)
    assert set(copied) == {"message_id"}
    assert [message["text"] for message in bob.messages] == ["original", "original"]


async def test_calls_fail_on_demand(call: Client, bot: Bot, chat: Person) -> None:
    bot.limit(3, method="sendMessage", times=2)
    for _ in range(2):
        answer = await call.http.post("sendMessage", json={"chat_id": 42, "text": "x"})
        assert answer.status_code == 429
        assert answer.headers["retry-after"] == "3"
        assert answer.json()["parameters"] == {"retry_after": 3}
    assert (await call("sendMessage", chat_id=42, text="x"))["text"] == "x"
    bot.refuse(500, "Internal Server Error")
    assert await call("getMe") == (500, "Internal Server Error")


async def test_a_wrong_token_or_method_is_refused(api: BotAPI, call: Client) -> None:
    assert await call("sendNonsense") == (404, "Not Found: method not found")
    async with httpx.AsyncClient(base_url=api.url, transport=httpx.ASGITransport(app=api.app)) as http:
        assert (await http.get("/bot123:wrong/getMe")).json() == {
            "ok": False, "error_code": 401, "description": "Unauthorized"}  # fmt: skip
        assert (await http.get("/botwrong/getMe")).status_code == 404
        assert (await http.get("/elsewhere")).status_code == 404
        assert (await http.get("/file/bot123:wrong/photo/x")).status_code == 401


async def test_a_foreign_host_name_is_refused(api: BotAPI, call: Client) -> None:
    answer = await call.http.get("getMe", headers={"Host": f"evil.example:{api.port}"})
    assert answer.status_code == 403
    assert (await call.http.get("getMe", headers={"Host": f"localhost:{api.port}"})).status_code == 200


async def test_an_unreadable_body_is_refused(call: Client) -> None:
    for kind, body in [
        ("application/json", b"{"),
        ("application/json", b"[1]"),
        ("multipart/form-data; boundary=x", b"--y\r\n\r\n"),
        ("multipart/form-data", b"--y\r\n\r\n"),
        ("text/plain", b"hello"),
    ]:
        answer = await call.http.post("getMe", content=body, headers={"Content-Type": kind})
        assert answer.status_code == 400, (kind, body)


async def test_a_token_is_never_logged_or_shown(
    api: BotAPI, bot: Bot, call: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="stepwell")
    caplog.set_level(logging.DEBUG, logger="uvicorn")
    await call("getMe")
    await call("nonsense")
    await call("setWebhook", url=f"http://127.0.0.1:9/{bot.token}")
    api.chat(bot)
    await api.chat(bot).send("x")
    webhook = api.webhooks.of(bot)
    assert webhook is not None
    await until(lambda: webhook.failed_with)
    secret = bot.token.partition(":")[2]
    said = [record.getMessage() for record in caplog.records if record.name.startswith(("stepwell", "uvicorn"))]
    assert secret not in "\n".join(said)
    assert secret not in repr(bot)
    assert secret not in str((await call("getWebhookInfo"))["last_error_message"])


async def test_it_listens_on_loopback_and_has_no_address_before_it_starts() -> None:
    api = BotAPI()
    with pytest.raises(NotPossible, match="async with"):
        _ = api.url
    async with api, httpx.AsyncClient(base_url=api.url, trust_env=False) as http:
        assert api.url.startswith("http://127.0.0.1:")
        assert (await http.get(f"/bot{api.bot('a').token}/getMe")).json()["ok"] is True
        poll = asyncio.create_task(http.get(f"/bot{api.bot('b').token}/getUpdates?timeout=20"))
        await asyncio.sleep(0.1)
    # A waiting poll does not delay the shutdown.
    with contextlib.suppress(httpx.HTTPError):
        await poll


async def test_invalid_arguments_raise_at_once(api: BotAPI, bot: Bot, chat: Person) -> None:
    with pytest.raises(ValueError, match="123456:secret"):
        api.bot("x", token="nonsense")
    with pytest.raises(ValueError, match="above 0"):
        chat.user(-1)
    with pytest.raises(ValueError, match="below 0"):
        chat.group(5)
    with pytest.raises(NotPossible, match="only groups have topics"):
        chat.topic("x")
    with pytest.raises(NotPossible, match="no message to edit"):
        await chat.edit("x")
    with pytest.raises(NotPossible, match="no update to repeat"):
        await chat.redeliver()
    with pytest.raises(TimeoutError, match="sent no message here"):
        await chat.answer(timeout=0.01)


async def test_a_watcher_gets_every_event(api: BotAPI, call: Client, chat: Person) -> None:
    seen: list[str] = []
    stop = api.world.watch(lambda event: seen.append(event.kind))
    await chat.send("hi")
    number = (await call("sendMessage", chat_id=42, text="x"))["message_id"]
    await call("editMessageText", chat_id=42, message_id=number, text="y")
    await call("deleteMessage", chat_id=42, message_id=number)
    assert seen == ["message", "update", "message", "call", "edited", "call", "deleted", "call"]
    stop()
    await chat.send("unseen")
    assert len(seen) == 8
    assert [each["method"] for each in chat.calls] == ["sendMessage", "editMessageText", "deleteMessage"]
