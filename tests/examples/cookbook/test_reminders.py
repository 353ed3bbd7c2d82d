"""Reminders: none is lost and none is sent twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from examples.cookbook import reminders
from stepwell.botapi import BotAPI
from stepwell.fsm import Router
from stepwell.nodes import NodeFlow
from stepwell.telegram.receiving.beside import flows_beside
from stepwell.testing import Chat, Clock
from tests.backends import Backend
from tests.examples.cookbook.running import running


@pytest.fixture
def chat(backend: Backend, clock: Clock) -> Chat:
    return Chat(reminders.make_router, storage=backend.storage(clock=clock))


async def test_a_reminder_is_sent_by_a_real_server_at_its_time_although_the_bot_was_down(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/reminders.db"
    async with BotAPI() as api:
        bot = api.bot("reminders_bot")
        alice = api.chat(bot)
        async with running(reminders.make_router(url), api, bot):
            assert await alice.ask("/remind 1s tea") == "In 1s: tea"
        async with running(reminders.make_router(url), api, bot):
            assert await alice.answer(timeout=60) == "Reminder: tea"
            assert await alice.ask("/list") == "You have no reminders."


async def test_each_reminder_has_its_own_time_and_survives_restarts(chat: Chat) -> None:
    await chat.send("/remind 20m tea")
    await chat.send("/remind 2d water the plants")
    await chat.restart()
    assert await chat.advance(20 * 60 - 1) == []
    await chat.restart()
    assert await chat.advance(1) == ["Reminder: tea"]
    assert await chat.advance(24 * 3600) == []
    assert await chat.advance(24 * 3600) == ["Reminder: water the plants"]
    assert await chat.send("/list") == ["You have no reminders."]


@pytest.mark.parametrize("after_commit", [False, True])
async def test_a_message_that_is_killed_or_delivered_again_makes_one_reminder(chat: Chat, after_commit: bool) -> None:
    chat.kill_next(after_commit=after_commit)
    await chat.send("/remind 20m tea")
    assert await chat.redeliver() == ["In 20m: tea"]
    await chat.redeliver()
    await chat.send("/list")
    assert chat.buttons == ["✕ tea"]
    assert await chat.advance(20 * 60) == ["Reminder: tea"]


async def test_a_reminder_whose_run_runs_again_after_a_crash_is_sent_once(backend: Backend, clock: Clock) -> None:
    storage, flows = backend.storage(clock=clock), list[NodeFlow]()

    def make_router(given: Any) -> Router:
        router = reminders.make_router(given)
        flows[:] = flows_beside(router)
        return router

    chat = Chat(make_router, storage=storage)
    await chat.send("/remind 20m tea")
    assert await chat.advance(20 * 60) == ["Reminder: tea"]
    reminder = f"reminder-{chat.updates[0]['update_id']}"
    await flows[0].submit({"key": (42, 42), "reminder": reminder}, flow_id=reminder, on_exists="restart")
    assert await chat.advance(0) == []
    assert (await flows[0].status(reminder)).status == "finished"


async def test_a_reminder_that_was_cancelled_is_not_sent(chat: Chat) -> None:
    await chat.send("/remind 1h tea")
    await chat.send("/list")
    assert await chat.press("✕ tea") == ["Cancelled: tea"]
    assert await chat.advance(3600) == []


async def test_what_is_no_time_is_explained(chat: Chat) -> None:
    for text in ("/remind", "/remind tea", "/remind 20 tea", "Hello"):
        assert await chat.send(text) == [reminders.HELP]
