"""The moderator: newcomers, and strikes that count once."""

from __future__ import annotations

from typing import Any

from examples.cookbook import moderation
from stepwell.testing import Chat

NEW = 77


async def joined() -> tuple[Chat, Chat]:
    """A member of a group, and a newcomer who has joined."""
    member = Chat(moderation.make_router).group(-100)
    newcomer = member.user(NEW)
    await newcomer.send(new_chat_members=[{"id": NEW, "is_bot": False, "first_name": "Nina"}])
    return member, newcomer


def calls(chat: Chat) -> list[dict[str, Any]]:
    seldom = ("banChatMember", "deleteMessage", "editMessageText")
    return [call for call in chat.calls if call["method"] in seldom]


async def test_a_newcomer_writes_after_the_press_of_a_button_that_is_theirs() -> None:
    member, newcomer = await joined()
    await newcomer.send("Hello")
    assert [call["method"] for call in calls(member)] == ["deleteMessage"]
    await member.press("I am a person")
    assert member.calls[-1]["text"] == "This button is for the newcomer."
    assert (await newcomer.press("I am a person"))[0].startswith("Welcome, ")
    await newcomer.send("Hello")
    assert [call["method"] for call in calls(member)] == ["deleteMessage", "editMessageText"]
    assert await member.advance(200) == []


async def test_a_newcomer_who_does_not_answer_is_removed_once_also_after_a_crash() -> None:
    member, _ = await joined()
    await member.restart()
    assert await member.advance(119) == []
    member.kill_next(after_commit=True)
    assert await member.advance(1) == []
    await member.advance(60)
    assert (member.last or "").endswith("did not answer, and was removed.")
    assert [call["method"] for call in calls(member)] == ["banChatMember"]


async def test_whom_a_member_adds_is_trusted() -> None:
    member = Chat(moderation.make_router).group(-100)
    assert await member.send(new_chat_members=[{"id": NEW, "is_bot": False, "first_name": "Nina"}]) == []


async def test_advertising_is_deleted_each_message_is_one_strike_and_the_third_silences_for_a_day() -> None:
    chat = Chat(moderation.make_router).group(-100)
    assert await chat.send("Hello") == []
    chat.kill_next()
    await chat.send("A CASINO for you")
    for _ in range(2):
        assert (await chat.redeliver())[0].endswith("Strike 1 of 3.")
    await chat.send("Hello again")
    assert (await chat.edit("See t.me/gifts"))[0].endswith("Strike 2 of 3.")
    assert await chat.send("/strikes") == ["You have 2 of 3 strikes."]
    assert (await chat.send("casino"))[0].endswith("is silent for a day.")
    await chat.restart()
    assert await chat.send("/strikes") == []
    assert [call["method"] for call in calls(chat)] == ["deleteMessage"] * 5
    await chat.advance(moderation.DAY)
    assert await chat.send("/strikes") == ["You have 0 of 3 strikes."]


async def test_admins_may_advertise() -> None:
    chat = Chat(moderation.make_router).group(-100)
    chat.result("getChatMember", {"status": "administrator"})
    assert await chat.send("casino") == []
    assert await chat.profile() == {}
