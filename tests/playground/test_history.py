"""The history of a playground, in a file."""

from __future__ import annotations

import json
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from stepwell.playground.events.replay import replay
from stepwell.playground.events.undo import start_over, step_back
from stepwell.playground.play import Playground
from stepwell.telegram import BotClient
from tests.inboxes import inbox_emptied
from tests.playground.visit import CAFE
from tests.until import until


def playground(tmp_path: Path) -> Playground:
    return Playground(CAFE, storage=f"sqlite:///{tmp_path}/play.db", history=tmp_path / "play.json")


async def written(path: Path, text: str) -> dict[str, Any]:
    """Return the history when it contains a text."""
    await until(lambda: path.exists() and text in path.read_text())
    found: dict[str, Any] = json.loads(path.read_text())
    return found


async def test_chats_events_and_steps_survive_a_restart_of_the_playground(tmp_path: Path) -> None:
    path = tmp_path / "play.json"
    async with playground(tmp_path) as play:
        assert await play.ready()
        alice = play.person("42", 42)
        topic = alice.group(-1001, title="Tea house").topic("Orders")
        assert await topic.ask("/feedback") == "How many stars?"
        assert await alice.ask("/order") == "What will it be?"
        assert await alice.ask("Tea") == "Which size?"
        await written(path, "order / size")
        # As after kill -9: the file is there before the playground stops.
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        told = [message["text"] for message in alice.messages]
        assert play.bot.token not in path.read_text()
        # Otherwise the next process repeats the last answer.
        await inbox_emptied(f"sqlite:///{tmp_path}/play.db")
    async with playground(tmp_path) as play:
        assert await play.ready()
        alice = play.person("42", 42)
        assert [message["text"] for message in alice.messages] == told
        assert play.person("-1001", 42, 1).last == "How many stars?"
        sections = await anext(play.board.follow())
        assert [message["text"] for message in sections["room 42"]["messages"]] == told
        assert len(sections["timeline"]) == 4
        assert sections[f"event {sections['timeline'][-1]}"]["title"] == "Tea"
        # The records are read again after the start.
        assert await play.record(42) is not None
        assert (await step_back(play, "cafe", "(42,0,42)")).title == "Tea"
        assert alice.last == "What will it be?"
        assert await alice.ask("Coffee") == "Which size?"
        assert (await replay(play, 42)).differences == []
        assert "Which size?" in play.write_test(alice).text
        await start_over(play, alice.room)
        assert (alice.messages, await play.record(42)) == ([], None)
        assert play.person("-1001", 42, 1).last == "How many stars?"


async def test_an_update_that_the_bot_has_not_fetched_is_delivered_after_a_restart(tmp_path: Path) -> None:
    async with playground(tmp_path) as play:
        assert await play.ready()
        await play.process.stop()
        await play.person("42", 42).send("/order")
    async with playground(tmp_path) as play:
        assert await play.person("42", 42).answer(timeout=30) == "What will it be?"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 7}', '{"format": 1, "users": [{}]}'])
def test_a_history_that_cannot_be_read_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str) -> None:
    (tmp_path / "play.json").write_text(text)
    play = playground(tmp_path)
    assert play._history is not None
    play._history.load(play)
    assert play.world.rooms == {}
    assert "cannot be read and is ignored" in caplog.text


async def test_a_history_is_limited(tmp_path: Path) -> None:
    play = playground(tmp_path)
    chat = play.api.chat(play.bot, 42)
    play._unwatch = play.world.watch(play._on_event)
    for number in range(1200):
        await chat.send(str(number))
    assert play._history is not None
    await play._history.stop(play)
    found = json.loads((tmp_path / "play.json").read_text())
    assert (len(found["rooms"][0]["messages"]), len(found["updates"]), len(found["groups"])) == (500, 500, 200)


async def test_a_poll_whose_time_came_while_the_playground_was_stopped_closes_at_its_start(tmp_path: Path) -> None:
    async with playground(tmp_path) as play, BotClient(play.bot.token, api=play.api.url) as bot:
        await play.person("42", 42).send("/feedback")
        await bot.call("sendPoll", chat_id=42, question="Tea?", options=["Yes", "No"], open_period=3600)
        assert not play.person("42", 42).messages[-1]["poll"]["is_closed"]
    options = {"storage": f"sqlite:///{tmp_path}/play.db", "history": tmp_path / "play.json"}
    async with Playground(CAFE, clock=lambda: time.time() + 3600, **options) as play:
        alice = play.person("42", 42)
        await until(lambda: any(each.get("poll", {}).get("is_closed") for each in alice.updates))
        assert [each["poll"]["is_closed"] for each in alice.messages if "poll" in each] == [True]
