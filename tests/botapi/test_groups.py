"""Private chats, groups, forums and channels."""

from __future__ import annotations

from stepwell.botapi import BotAPI, Person
from tests.botapi.conftest import Client


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
    assert chat.updates[-1]["my_chat_member"]["new_chat_member"]["status"] == "left"
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
