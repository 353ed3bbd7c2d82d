"""Chats: members, invite links, pinned messages, reactions."""

from __future__ import annotations

from typing import Any

import pytest
from telegram.constants import ReactionEmoji

from stepwell.botapi import BotAPI, NotPossible, Person
from stepwell.botapi.methods.messages.reactions import EMOJI
from tests.botapi.conftest import Client

GROUP = -(10**12) - 1


@pytest.fixture
def group(chat: Person) -> Person:
    chat.bot.updates.allow(["message", "channel_post", "chat_member", "my_chat_member", "chat_join_request",
                            "message_reaction", "message_reaction_count"])  # fmt: skip
    return chat.group(GROUP, title="Team")


@pytest.fixture
def bob(group: Person) -> Person:
    return group.user(7, first_name="Bob")


async def status(call: Client, user: int) -> str:
    return str((await call("getChatMember", chat_id=GROUP, user_id=user))["status"])


# Members


async def test_a_banned_user_leaves_and_cannot_write(call: Client, group: Person, bob: Person) -> None:
    await bob.send("spam")
    assert await call("banChatMember", chat_id=GROUP, user_id=7, revoke_messages=True) is True
    changed, left = group.updates[-2:]
    assert changed["chat_member"]["old_chat_member"]["status"] == "member"
    assert changed["chat_member"]["new_chat_member"]["status"] == "kicked"
    assert left["message"]["left_chat_member"]["id"] == 7
    assert "text" not in group.messages[0]
    assert await status(call, 7) == "kicked"
    assert await call("getChatMemberCount", chat_id=GROUP) == 2
    for action in (bob.send("x"), bob.join()):
        with pytest.raises(NotPossible, match="banned"):
            await action
    assert await call("unbanChatMember", chat_id=GROUP, user_id=7, only_if_banned=True) is True
    assert await status(call, 7) == "left"
    await bob.join()
    assert await call("unbanChatMember", chat_id=GROUP, user_id=7, only_if_banned=True) is True
    assert await status(call, 7) == "member"
    assert await call("kickChatMember", chat_id=GROUP, user_id=7) is True


async def test_a_ban_ends_at_its_date(call: Client, api: BotAPI, group: Person, bob: Person) -> None:
    now = 1_700_000_000.0
    api.world.clock = lambda: now
    await call("banChatMember", chat_id=GROUP, user_id=7, until_date=int(now) + 60)
    assert (await call("getChatMember", chat_id=GROUP, user_id=7))["until_date"] == int(now) + 60
    now += 61
    assert await status(call, 7) == "left"
    await call("banChatMember", chat_id=GROUP, user_id=7, until_date=int(now) + 10)
    assert (await call("getChatMember", chat_id=GROUP, user_id=7))["until_date"] == 0


async def test_a_member_is_restricted_and_promoted(call: Client, group: Person, bob: Person) -> None:
    where = {"chat_id": GROUP, "user_id": 7}
    assert await call("restrictChatMember", **where, permissions={"can_invite_users": True}) is True
    member = await call("getChatMember", **where)
    assert (member["status"], member["is_member"], member["can_invite_users"]) == ("restricted", True, True)
    with pytest.raises(NotPossible, match="restricted"):
        await bob.send("x")
    await call("restrictChatMember", **where, permissions={"can_send_polls": True})
    await bob.send("permitted")
    everything = {name: True for name in member if name.startswith("can_")}
    await call("restrictChatMember", **where, permissions=everything)
    assert await status(call, 7) == "member"
    assert await call("promoteChatMember", **where, can_pin_messages=True) is True
    assert await call("setChatAdministratorCustomTitle", **where, custom_title="Boss") is True
    member = await call("getChatMember", **where)
    assert (member["can_pin_messages"], member["can_delete_messages"], member["custom_title"]) == (True, False, "Boss")
    assert await call("banChatMember", **where) == (400, "Bad Request: user is an administrator of the chat")
    assert await call("promoteChatMember", **where) is True
    assert await status(call, 7) == "member"


@pytest.mark.parametrize(
    ("method", "params", "why"),
    [
        ("banChatMember", {"chat_id": 42, "user_id": 42}, "can't ban members in private chats"),
        ("banChatMember", {"chat_id": GROUP, "user_id": 999}, "user not found"),
        ("banChatMember", {"chat_id": GROUP}, "invalid user_id specified"),
        ("unbanChatMember", {"chat_id": -5, "user_id": 7}, "method is available for supergroup and channel chats only"),
        ("restrictChatMember", {"chat_id": -5, "user_id": 7}, "method is available only for supergroups"),
        ("restrictChatMember", {"chat_id": GROUP, "user_id": 7}, "can't parse permissions JSON object"),
        ("promoteChatMember", {"chat_id": 42, "user_id": 42}, "chat member status can't be changed in private chats"),
        ("createChatInviteLink", {"chat_id": 42}, "can't invite members to a private chat"),
        ("createChatInviteLink", {"chat_id": GROUP, "member_limit": 1, "creates_join_request": True},
         "member limit can't be specified for links requiring administrator approval"),
        ("revokeChatInviteLink", {"chat_id": GROUP, "invite_link": "https://t.me/+x"}, "INVITE_HASH_EXPIRED"),
        ("approveChatJoinRequest", {"chat_id": GROUP, "user_id": 7}, "HIDE_REQUESTER_MISSING"),
        ("pinChatMessage", {"chat_id": GROUP, "message_id": 99}, "message to pin not found"),
        ("unpinChatMessage", {"chat_id": GROUP}, "message to unpin not found"),
        ("setMessageReaction", {"chat_id": GROUP, "message_id": 99}, "message to react not found"),
        ("getUserProfilePhotos", {"user_id": 999}, "user not found"),
        ("setChatTitle", {"chat_id": GROUP}, "title can't be empty"),
    ],
)  # fmt: skip
async def test_an_invalid_call_is_refused_with_telegrams_description(
    call: Client, bob: Person, chat: Person, method: str, params: dict[str, Any], why: str
) -> None:
    chat.group(-5).user(7)
    assert await call(method, **params) == (400, f"Bad Request: {why}")


async def test_a_bot_cannot_ban_itself(call: Client, group: Person) -> None:
    where = {"chat_id": GROUP, "user_id": group.bot.id}
    assert await call("banChatMember", **where) == (400, "Bad Request: can't restrict self")


async def test_title_description_and_permissions_are_kept(call: Client, group: Person) -> None:
    assert await call("setChatTitle", chat_id=GROUP, title="Crew") is True
    assert group.messages[-1]["new_chat_title"] == "Crew"
    assert await call("setChatDescription", chat_id=GROUP, description="All hands") is True
    assert await call("setChatDescription", chat_id=GROUP, description="All hands") == (
        400, "Bad Request: chat description is not modified")  # fmt: skip
    assert await call("setChatPermissions", chat_id=GROUP, permissions={"can_send_messages": True}) is True
    full = await call("getChat", chat_id=GROUP)
    assert (full["title"], full["description"]) == ("Crew", "All hands")
    assert (full["permissions"]["can_send_messages"], full["permissions"]["can_send_polls"]) == (True, False)


# Invite links


async def test_a_user_joins_by_a_link(call: Client, group: Person) -> None:
    link = await call("createChatInviteLink", chat_id=GROUP, name="Friends", member_limit=1)
    assert (link["name"], link["member_limit"], link["is_primary"], link["is_revoked"]) == ("Friends", 1, False, False)
    carol = group.user(8)
    await carol.leave()
    await carol.join(link["invite_link"])
    assert group.updates[-2]["chat_member"]["invite_link"] == link
    assert group.updates[-1]["message"]["new_chat_members"][0]["id"] == 8
    with pytest.raises(NotPossible, match="its limit"):
        await group.user(9).join(link["invite_link"])
    edited = await call("editChatInviteLink", chat_id=GROUP, invite_link=link["invite_link"], expire_date=1)
    assert (edited["expire_date"], "name" in edited, "member_limit" in edited) == (1, False, False)
    with pytest.raises(NotPossible, match="expired"):
        await group.user(9).join(link["invite_link"])
    revoked = await call("revokeChatInviteLink", chat_id=GROUP, invite_link=link["invite_link"])
    assert revoked["is_revoked"] is True
    with pytest.raises(NotPossible, match="revoked"):
        await group.user(9).join(link["invite_link"])


async def test_the_primary_link_is_replaced(call: Client, group: Person) -> None:
    first = await call("exportChatInviteLink", chat_id=GROUP)
    second = await call("exportChatInviteLink", chat_id=GROUP)
    assert (await call("getChat", chat_id=GROUP))["invite_link"] == second != first
    revoked = await call("revokeChatInviteLink", chat_id=GROUP, invite_link=second)
    assert (revoked["is_primary"], revoked["is_revoked"]) == (True, True)
    assert (await call("getChat", chat_id=GROUP))["invite_link"] not in (first, second)


@pytest.mark.parametrize(
    ("method", "expected"), [("approveChatJoinRequest", "member"), ("declineChatJoinRequest", "left")]
)
async def test_a_join_request_is_answered(call: Client, group: Person, method: str, expected: str) -> None:
    link = await call("createChatInviteLink", chat_id=GROUP, creates_join_request=True)
    carol = group.user(8, first_name="Carol")
    await carol.leave()
    await carol.join(link["invite_link"])
    assert group.updates[-1]["chat_join_request"]["from"]["first_name"] == "Carol"
    assert await status(call, 8) == "left"
    assert await call(method, chat_id=GROUP, user_id=8) is True
    assert await status(call, 8) == expected
    assert (await call(method, chat_id=GROUP, user_id=8))[0] == 400


async def test_a_subscription_link_has_its_price(call: Client, chat: Person) -> None:
    channel = chat.group(-(10**12) - 7, type="channel")
    where = {"chat_id": channel.room.id}
    link = await call("createChatSubscriptionInviteLink", **where, subscription_period=2592000, subscription_price=5)
    edited = await call("editChatSubscriptionInviteLink", **where, invite_link=link["invite_link"], name="Fans")
    assert (edited["name"], edited["subscription_price"]) == ("Fans", 5)


# Pinned messages


async def test_messages_are_pinned_and_unpinned(call: Client, group: Person) -> None:
    one, two = [(await call("sendMessage", chat_id=GROUP, text=text))["message_id"] for text in ("one", "two")]
    assert await call("pinChatMessage", chat_id=GROUP, message_id=one) is True
    assert group.updates[-1]["message"]["pinned_message"]["text"] == "one"
    await call("pinChatMessage", chat_id=GROUP, message_id=two)
    assert (await call("getChat", chat_id=GROUP))["pinned_message"]["text"] == "two"
    await call("pinChatMessage", chat_id=GROUP, message_id=one)
    assert (await call("getChat", chat_id=GROUP))["pinned_message"]["text"] == "one"
    assert await call("unpinChatMessage", chat_id=GROUP) is True
    await call("deleteMessage", chat_id=GROUP, message_id=two)
    assert "pinned_message" not in await call("getChat", chat_id=GROUP)
    await call("pinChatMessage", chat_id=GROUP, message_id=one)
    assert await call("unpinAllChatMessages", chat_id=GROUP) is True
    assert "pinned_message" not in await call("getChat", chat_id=GROUP)


async def test_the_messages_of_a_topic_are_unpinned(call: Client, chat: Person) -> None:
    chat.group(-1001, is_forum=True)
    thread = (await call("createForumTopic", chat_id=-1001, name="Help", icon_color=1))["message_thread_id"]
    number = (await call("sendMessage", chat_id=-1001, message_thread_id=thread, text="x"))["message_id"]
    await call("pinChatMessage", chat_id=-1001, message_id=number)
    assert await call("unpinAllForumTopicMessages", chat_id=-1001, message_thread_id=thread) is True
    assert "pinned_message" not in await call("getChat", chat_id=-1001)


# Reactions


def test_the_emoji_of_reactions_are_complete() -> None:
    assert {each.value.replace("\ufe0f", "") for each in ReactionEmoji} == EMOJI


async def test_a_user_and_a_bot_react(call: Client, api: BotAPI, group: Person, bob: Person) -> None:
    seen: list[dict[str, Any]] = []
    api.world.watch(lambda event: seen.append(event.body) if event.kind == "reacted" else None)
    number = (await call("sendMessage", chat_id=GROUP, text="Tea?"))["message_id"]
    await bob.react("👍")
    update = group.updates[-1]["message_reaction"]
    assert (update["user"]["id"], update["message_id"], update["old_reaction"]) == (7, number, [])
    await bob.react("🔥", on="Tea?")
    update = group.updates[-1]["message_reaction"]
    assert (update["old_reaction"][0]["emoji"], update["new_reaction"][0]["emoji"]) == ("👍", "🔥")
    known = len(group.updates)
    fire = [{"type": "emoji", "emoji": "🔥"}]
    assert await call("setMessageReaction", chat_id=GROUP, message_id=number, reaction=fire, is_big=True) is True
    assert len(group.updates) == known
    assert seen[-1]["reactions"] == [{"type": fire[0], "total_count": 2}]
    await bob.react()
    assert group.updates[-1]["message_reaction"]["new_reaction"] == []
    for reaction, why in [
        ([{"type": "emoji", "emoji": "x"}], "REACTION_INVALID"),
        ([{"type": "paid"}], "can't parse ReactionType: invalid reaction type specified"),
        (fire * 2, "REACTIONS_TOO_MANY"),
    ]:
        answer = await call("setMessageReaction", chat_id=GROUP, message_id=number, reaction=reaction)
        assert answer == (400, f"Bad Request: {why}")


async def test_reactions_in_a_channel_are_counted(call: Client, chat: Person, group: Person) -> None:
    channel = chat.group(-(10**12) - 7, type="channel")
    number = (await channel.send("Extra!"))["message_id"]
    channel.room.messages[number]["from"] = chat.bot.user
    await channel.react("👍")
    assert group.updates[-1]["message_reaction_count"]["reactions"] == [
        {"type": {"type": "emoji", "emoji": "👍"}, "total_count": 1}]  # fmt: skip


async def test_profile_photos_are_listed(call: Client, chat: Person) -> None:
    assert await call("getUserProfilePhotos", user_id=42) == {"total_count": 0, "photos": []}
    await chat.add_photo(b"old")
    await chat.add_photo(b"newest")
    photos = await call("getUserProfilePhotos", user_id=42)
    assert (photos["total_count"], [each[0]["file_size"] for each in photos["photos"]]) == (2, [6, 3])
    assert len((await call("getUserProfilePhotos", user_id=42, offset=1, limit=5))["photos"]) == 1
