"""Reminders: none is lost and none is sent twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.cookbook import reminders
from stepwell.botapi import BotAPI
from stepwell.nodes import NodeFlow, worker
from stepwell.telegram.receiving.beside import flows_beside
from stepwell.testing import Chat, Clock
from tests.backends import Backend
from tests.examples.cookbook.running import running


class Reminded:
    """A chat with the bot, whose clock moves only by the test, and its runs."""

    def __init__(self, backend: Backend) -> None:
        self.clock = Clock()
        self.storage = backend.storage(clock=self.clock)
        self.chat = Chat(self.make_router, storage=self.storage)

    def make_router(self, storage: object) -> object:
        router = reminders.make_router(self.storage)
        self.flow: NodeFlow = next(iter(flows_beside(router)))
        return router

    async def run(self, **options: str) -> None:
        """Run the reminder of the last update, as a worker does when its time has come."""
        async with worker([self.flow]):
            number = f"reminder-{self.chat.updates[0]['update_id']}"
            shared = {"key": (42, 42), "reminder": number}
            await (await self.flow.submit(shared, flow_id=number, **options)).result(timeout=60)
            await self.chat.advance(0)


@pytest.fixture
def reminded(backend: Backend) -> Reminded:
    return Reminded(backend)


async def test_a_reminder_is_sent_at_its_time_although_the_bot_was_down(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/reminders.db"
    async with BotAPI() as api:
        bot = api.bot("reminders_bot")
        alice = api.chat(bot)
        async with running(reminders.make_router(url), api, bot):
            assert await alice.ask("/remind 1s tea") == "In 1s: tea"
        async with running(reminders.make_router(url), api, bot):
            assert await alice.answer(timeout=60) == "Reminder: tea"
            assert await alice.ask("/list") == "You have no reminders."


async def test_a_message_that_is_delivered_again_makes_one_reminder(reminded: Reminded) -> None:
    chat = reminded.chat
    chat.kill_next()
    await chat.send("/remind 20m tea")
    assert await chat.redeliver() == ["In 20m: tea"]
    await chat.redeliver()
    await chat.send("/list")
    assert chat.buttons == ["✕ tea"]
    assert [run.flow_id async for run in reminded.flow.runs()] == [f"reminder-{chat.updates[0]['update_id']}"]


async def test_a_reminder_that_runs_again_after_a_crash_is_sent_once(reminded: Reminded) -> None:
    chat = reminded.chat
    await chat.send("/remind 20m tea")
    reminded.clock.advance(20 * 60)
    await reminded.run()
    await reminded.run(on_exists="restart")
    assert [message["text"] for message in chat.messages[2:]] == ["Reminder: tea"]


async def test_a_reminder_that_was_cancelled_is_not_sent(reminded: Reminded) -> None:
    chat = reminded.chat
    await chat.send("/remind 1h tea")
    await chat.send("/list")
    assert await chat.press("✕ tea") == ["Cancelled: tea"]
    assert await chat.send("/list") == ["You have no reminders."]
    reminded.clock.advance(3600)
    await reminded.run()
    assert chat.last == "You have no reminders."


async def test_what_is_no_time_is_explained() -> None:
    chat = Chat(reminders.make_router)
    for text in ("/remind", "/remind tea", "/remind 20 tea", "Hello"):
        assert await chat.send(text) == [reminders.HELP]
