"""Each method of the Bot API, over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging

import httpx
import pytest

from stepwell.errors import InvalidOption, UsageError
from stepwell.playground.botapi import Bot, BotAPI, Person
from tests.playground.conftest import Client


async def test_get_me_is_the_bot(call: Client, bot: Bot) -> None:
    me = await call("getMe")
    assert me["id"] == bot.id == int(bot.token.partition(":")[0])
    assert (me["is_bot"], me["username"]) == (True, "my_bot")


async def test_an_update_is_returned_until_it_is_confirmed(call: Client, chat: Person) -> None:
    await chat.send("/start now")
    (update,) = await call("getUpdates")
    message = update["message"]
    assert message["text"] == "/start now"
    assert message["entities"] == [{"type": "bot_command", "offset": 0, "length": 6}]
    assert message["chat"] == {"id": 42, "first_name": "Alice", "type": "private"}
    assert message["from"]["first_name"] == "Alice"
    assert await call("getUpdates") == [update]
    assert await call("getUpdates", offset=update["update_id"] + 1) == []
    assert await call("getUpdates") == []


async def test_a_negative_offset_keeps_only_the_last_updates(call: Client, chat: Person) -> None:
    await chat.send_at_once("a", "b", "c")
    assert [each["message"]["text"] for each in await call("getUpdates", offset=-1)] == ["c"]
    assert len(await call("getUpdates")) == 1


async def test_get_updates_returns_at_most_its_limit(call: Client, chat: Person) -> None:
    await chat.send_at_once(*map(str, range(7)))
    assert [each["message"]["text"] for each in await call("getUpdates", limit=3)] == ["0", "1", "2"]


async def test_a_long_poll_waits_for_the_next_update(call: Client, chat: Person) -> None:
    poll = asyncio.create_task(call("getUpdates", timeout=20))
    await asyncio.sleep(0.1)
    assert not poll.done()
    await chat.send("hello")
    assert (await poll)[0]["message"]["text"] == "hello"


async def test_a_second_poller_ends_the_first_with_409(call: Client, chat: Person) -> None:
    first = asyncio.create_task(call("getUpdates", timeout=20))
    await asyncio.sleep(0.1)
    second = asyncio.create_task(call("getUpdates", timeout=20))
    code, why = await first
    assert code == 409
    assert "make sure that only one bot instance is running" in why
    await chat.send("for the second")
    assert len(await second) == 1


async def test_only_allowed_updates_are_delivered(call: Client, chat: Person) -> None:
    await call("getUpdates", allowed_updates=["callback_query"])
    await chat.send("unheard")
    assert await call("getUpdates") == []
    await call("getUpdates", allowed_updates=[])
    await chat.send("heard")
    assert len(await call("getUpdates")) == 1


async def test_update_ids_grow_after_a_restart_of_the_world(bot: Bot, chat: Person) -> None:
    await chat.send("before")
    later = BotAPI(clock=lambda: chat.world.clock() + 1)
    after = later.chat(later.bot("my_bot"))
    await after.send("after")
    assert after.updates[0]["update_id"] > chat.updates[-1]["update_id"]


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
    with pytest.raises(UsageError, match="the buttons are: 'Yes', 'Web'"):
        await chat.press("No")
    with pytest.raises(UsageError, match="opens a page"):
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


async def test_commands_are_kept_by_scope_and_language(call: Client) -> None:
    commands = [{"command": "start", "description": "Begin"}]
    assert await call("setMyCommands", commands=commands) is True
    assert await call("getMyCommands") == commands
    assert await call("getMyCommands", language_code="de") == []
    assert await call("setMyCommands", commands=[{"command": "No!", "description": "x"}]) == (
        400, "Bad Request: BOT_COMMAND_INVALID")  # fmt: skip
    assert await call("deleteMyCommands") is True
    assert await call("getMyCommands") == []


async def test_the_getters_return_what_the_bot_has_set(call: Client, chat: Person) -> None:
    assert await call("getMyName") == {"name": "my_bot"}
    for name in ("name", "description", "short_description"):
        method = "".join(word.title() for word in name.split("_"))
        assert await call(f"setMy{method}", **{name: "Tea house"}) is True
        assert await call(f"setMy{method}", **{name: "Teehaus"}, language_code="de") is True
        assert await call(f"getMy{method}") == {name: "Tea house"}
        assert await call(f"getMy{method}", language_code="de") == {name: "Teehaus"}
        assert await call(f"getMy{method}", language_code="fr") == {name: "Tea house"}
        assert await call(f"setMy{method}", language_code="de") is True
        assert await call(f"getMy{method}", language_code="de") == {name: "Tea house"}
    assert (await call("getMe"))["first_name"] == "Tea house"


async def test_the_menu_button_is_kept_for_a_chat_or_for_all(call: Client, chat: Person) -> None:
    button = {"type": "web_app", "text": "Shop", "web_app": {"url": "https://x.org"}}
    assert await call("getChatMenuButton") == {"type": "commands"}
    assert await call("setChatMenuButton", chat_id=42, menu_button=button) is True
    assert await call("getChatMenuButton", chat_id=42) == button
    assert await call("getChatMenuButton") == {"type": "commands"}
    assert await call("setChatMenuButton", menu_button={"type": "default"}) is True
    assert await call("getChatMenuButton") == {"type": "default"}
    assert (await call("setChatMenuButton", menu_button={"type": "x"}))[0] == 400


async def test_the_default_rights_are_kept_for_groups_and_channels(call: Client) -> None:
    assert not any((await call("getMyDefaultAdministratorRights")).values())
    assert await call("setMyDefaultAdministratorRights", rights={"can_pin_messages": True}) is True
    assert (await call("getMyDefaultAdministratorRights"))["can_pin_messages"] is True
    assert (await call("getMyDefaultAdministratorRights", for_channels=True))["can_pin_messages"] is False


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


async def test_two_bots_have_two_private_chats_with_one_user(api: BotAPI, chat: Person, call: Client) -> None:
    other = api.bot("other_bot")
    there = api.chat(other)
    await there.send("only for the other")
    assert await call("getUpdates") == []
    assert chat.messages == []
    await call("sendMessage", chat_id=42, text="from mine")
    assert there.last is None
    assert other.token != chat.bot.token


async def test_a_group_has_users_and_bots(api: BotAPI, call: Client, chat: Person) -> None:
    group = chat.group(-5, title="Team")
    bob = group.user(7, first_name="Bob")
    await bob.send("hello all")
    (update,) = await call("getUpdates")
    assert update["message"]["chat"] == {"id": -5, "title": "Team", "type": "group"}
    assert update["message"]["from"]["first_name"] == "Bob"
    await call("sendMessage", chat_id=-5, text="hello Bob")
    assert group.last == bob.last == "hello Bob"
    assert (await call("getChat", chat_id=-5))["title"] == "Team"
    assert (await call("getChatMember", chat_id=-5, user_id=7))["status"] == "member"
    assert (await call("getChatMemberCount", chat_id=-5)) == 3
    assert [each["user"]["id"] for each in await call("getChatAdministrators", chat_id=-5)] == [chat.bot.id]
    assert await call("getChatMember", chat_id=-5, user_id=999) == (400, "Bad Request: user not found")
    await bob.leave()
    assert (await call("getChatMember", chat_id=-5, user_id=7))["status"] == "left"
    await bob.join()
    assert chat.updates[-1]["message"]["new_chat_members"][0]["id"] == 7
    assert await call("leaveChat", chat_id=-5) is True
    code, why = await call("sendMessage", chat_id=-5, text="x")
    assert (code, why) == (403, "Forbidden: bot is not a member of the group chat")


async def test_a_forum_has_topics(call: Client, chat: Person) -> None:
    group = chat.group(-1001, type="supergroup", is_forum=True)
    topic = await call("createForumTopic", chat_id=-1001, name="Help")
    thread = topic["message_thread_id"]
    there = group.topic("Help")
    assert there.thread == thread
    await there.send("in the topic")
    assert chat.updates[-1]["message"]["message_thread_id"] == thread
    assert chat.updates[-1]["message"]["is_topic_message"] is True
    sent = await call("sendMessage", chat_id=-1001, message_thread_id=thread, text="answer")
    assert sent["is_topic_message"] is True
    assert there.last == "answer"
    assert group.last is None
    assert await call("closeForumTopic", chat_id=-1001, message_thread_id=thread) is True
    assert await call("sendMessage", chat_id=-1001, message_thread_id=thread, text="x") == (
        400, "Bad Request: TOPIC_CLOSED")  # fmt: skip
    assert await call("reopenForumTopic", chat_id=-1001, message_thread_id=thread) is True
    assert await call("editForumTopic", chat_id=-1001, message_thread_id=thread, name="Aid") is True
    assert group.topic("Aid").thread == thread
    assert await call("deleteForumTopic", chat_id=-1001, message_thread_id=thread) is True
    assert there.messages == []


async def test_a_channel_posts_without_a_user(call: Client, chat: Person) -> None:
    channel = chat.group(-(10**12) - 7, type="channel", title="News", username="the_news")
    await channel.send("Extra!")
    (update,) = await call("getUpdates")
    assert update["channel_post"]["text"] == "Extra!"
    assert "from" not in update["channel_post"]
    assert (await call("sendMessage", chat_id="@the_news", text="More!"))["chat"]["title"] == "News"


async def test_a_group_becomes_a_supergroup(call: Client, api: BotAPI, chat: Person) -> None:
    group = chat.group(-5, title="Team")
    await group.send("before")
    new = await group.migrate()
    to, from_ = (update["message"] for update in chat.updates[-2:])
    assert (to["chat"]["id"], to["migrate_to_chat_id"]) == (-5, new.room.id)
    assert (from_["chat"]["id"], from_["migrate_from_chat_id"]) == (new.room.id, -5)
    assert from_["chat"]["type"] == "supergroup"
    body = (await call.http.post("sendMessage", json={"chat_id": -5, "text": "x"})).json()
    assert body["parameters"] == {"migrate_to_chat_id": new.room.id}
    await call("sendMessage", chat_id=new.room.id, text="after")
    assert new.last == "after"


async def test_a_blocked_bot_gets_an_update_and_is_refused(call: Client, chat: Person) -> None:
    await chat.send("hi")
    await chat.block()
    assert chat.updates[-1]["my_chat_member"]["new_chat_member"]["status"] == "kicked"
    assert await call("sendMessage", chat_id=42, text="x") == (403, "Forbidden: bot was blocked by the user")
    await chat.unblock()
    assert (await call("sendMessage", chat_id=42, text="x"))["text"] == "x"


async def test_a_confirmed_update_can_be_redelivered(call: Client, chat: Person) -> None:
    await chat.send("once")
    (update,) = await call("getUpdates")
    assert await call("getUpdates", offset=update["update_id"] + 1) == []
    await chat.redeliver()
    assert await call("getUpdates", offset=update["update_id"] + 1) == [update]
    assert await call("getUpdates", offset=update["update_id"] + 1) == []


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
    async with asyncio.timeout(60):
        while not webhook.failed_with:
            await asyncio.sleep(0.01)
    secret = bot.token.partition(":")[2]
    said = [record.getMessage() for record in caplog.records if record.name.startswith(("stepwell", "uvicorn"))]
    assert secret not in "\n".join(said)
    assert secret not in repr(bot)
    assert secret not in str((await call("getWebhookInfo"))["last_error_message"])


async def test_it_listens_on_loopback_and_has_no_address_before_it_starts() -> None:
    api = BotAPI()
    with pytest.raises(UsageError, match="async with"):
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
    with pytest.raises(InvalidOption, match="123456:secret"):
        api.bot("x", token="nonsense")
    with pytest.raises(InvalidOption, match="above 0"):
        chat.user(-1)
    with pytest.raises(InvalidOption, match="below 0"):
        chat.group(5)
    with pytest.raises(UsageError, match="only groups have topics"):
        chat.topic("x")
    with pytest.raises(UsageError, match="no message to edit"):
        await chat.edit("x")
    with pytest.raises(UsageError, match="no update to repeat"):
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
