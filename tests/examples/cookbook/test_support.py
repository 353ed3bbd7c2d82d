"""The support desk: what it knows, what it hands over, and that no question is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.cookbook import support
from stepwell.botapi import BotAPI
from stepwell.testing import Chat
from tests.examples.cookbook.running import running
from tests.until import until

UNKNOWN = "I do not know that."
HANDED = "The team has your question, and answers here."


def chat_with_a_team() -> tuple[Chat, Chat]:
    """A person, and a member of the team in the topic that the bot opens."""
    person = Chat(support.make_router)
    person.result("createForumTopic", {"message_thread_id": 7})
    return person, person.user(99).group(support.TEAM).topic(7)


async def test_it_answers_what_it_knows_and_offers_a_person_otherwise() -> None:
    chat, _ = chat_with_a_team()
    assert (await chat.send("/start"))[0].startswith("Ask me something.")
    assert await chat.send("What is the PRICE?") == ["A cup of tea is 3 EUR."]
    assert await chat.send("Is the tea hot?") == [UNKNOWN]
    assert chat.buttons == ["Ask a person"]


async def test_a_person_of_the_team_answers_in_a_topic_of_a_real_server(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/support.db"
    async with BotAPI() as api:
        bot = api.bot("support_bot")
        alice = api.chat(bot, first_name="Alice")
        team = alice.user(99, first_name="Tom").group(support.TEAM, is_forum=True)
        async with running(support.make_router(url), api, bot):
            assert await alice.ask("Is the tea hot?") == UNKNOWN
            await alice.press("Ask a person")
            await until(lambda: "Alice" in [topic.name for topic in team.room.topics.values()])
            desk = team.topic("Alice")
            await until(lambda: desk.last == "Alice asks: Is the tea hot?")
            await desk.send("Very hot.")
            assert await alice.answer() == "Very hot."
        async with running(support.make_router(url), api, bot):
            await alice.send("And the cake?")
            await until(lambda: desk.last == "And the cake?")
            await desk.send("/solved")
            assert (await alice.answer()).startswith("The team says that this is solved.")
            await until(lambda: desk.room.topics[desk.thread or 0].closed)
            assert await alice.ask("Where are you?") == "1 Main Street."
        assert list(desk.room.topics) == [desk.thread]


@pytest.mark.parametrize("after_commit", [False, True])
async def test_a_hand_over_that_is_killed_reaches_the_team_and_the_answer_reaches_the_person(
    after_commit: bool,
) -> None:
    chat, desk = chat_with_a_team()
    await chat.send("Is the tea hot?")
    chat.kill_next(after_commit=after_commit)
    await chat.press("Ask a person")
    assert desk.messages == []
    await chat.redeliver()
    assert (desk.last or "").endswith(" asks: Is the tea hot?")
    chat.kill_next(after_commit=after_commit)
    await desk.send("Very hot.")
    await desk.redeliver()
    copies = [call for call in chat.calls if call["method"] == "copyMessage"]
    assert [(each["chat_id"], each["message_id"]) for each in copies] == [(42, desk.messages[-1]["message_id"])]


async def test_a_message_that_is_delivered_again_is_passed_on_as_the_same_call_only() -> None:
    chat, _ = chat_with_a_team()
    await chat.send("Is the tea hot?")
    await chat.press("Ask a person")
    await chat.send("Hello?")
    await chat.send("Are you there?")
    first, second = chat.updates[-2:]
    await chat.deliver(first)
    copied = [call["message_id"] for call in chat.calls if call["method"] == "copyMessage"]
    assert copied == [first["message"]["message_id"], second["message"]["message_id"]]


async def test_another_group_and_the_topics_of_others_are_left_alone() -> None:
    chat, desk = chat_with_a_team()
    assert await chat.group(-5).send("Is the tea hot?") == []
    assert await desk.send("What is the price?") == []
    assert await desk.send("/solved") == []
    assert chat.calls == []
