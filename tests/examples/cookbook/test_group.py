"""The agent in a group: it answers those who address it, and has read the rest."""

from __future__ import annotations

from pathlib import Path

from examples.cookbook import group
from stepwell.botapi import BotAPI
from stepwell.testing import Chat
from tests.examples.cookbook.running import running


async def test_in_a_real_group_it_answers_its_name_and_replies_only(tmp_path: Path) -> None:
    async with BotAPI() as api:
        bot = api.bot("group_bot")
        alice = api.chat(bot, first_name="Alice").group(-100)
        bob = alice.user(43, first_name="Bob")
        async with running(group.make_router(f"sqlite:///{tmp_path}/group.db"), api, bot):
            await alice.send("Shall we meet at nine?")
            question = await bob.send("@group_bot what did she say?")
            answer = await bob.hear(timeout=60)
            assert answer["text"] == "Messages that I have read: 2, by Alice, Bob."
            assert answer["reply_to_message"]["message_id"] == question["message_id"]
            assert await alice.answer() == answer["text"]
            await alice.reply("And now?")
            assert await alice.answer(timeout=60) == "Messages that I have read: 4, by Alice, Bob."


async def test_a_reply_has_a_thread_in_an_ordinary_group_and_belongs_to_its_history() -> None:
    async with Chat(group.make_router) as chat:
        room = chat.group(-100)
        await room.send("Shall we meet at nine?")
        replied = {"reply_to_message": {"message_id": 1, "from": {"id": 1, "username": "test_bot"}}}
        await room.ask("And you?", message_thread_id=1, **replied)
        assert any("Messages that I have read: 2, by " in message["text"] for message in room.messages)


async def test_in_a_private_chat_it_answers_everything_but_commands() -> None:
    async with Chat(group.make_router) as chat:
        (answer,) = await chat.ask("Hello")
        assert answer.startswith("Messages that I have read: 1, by ")
        assert await chat.ask("/start") == []


async def test_killed_before_its_answer_it_answers_once_and_still_knows_the_group() -> None:
    async with Chat(group.make_router) as chat:
        room = chat.group(-100)
        assert await room.send("Shall we meet at nine?") == []
        await room.restart()
        room.kill_next("before end")
        await room.ask("@test_bot what did I say?")
        (answer,) = await room.advance(30)
        assert answer.startswith("Messages that I have read: 2, by ")
        assert await room.advance(60) == []
