"""Edits of a record, steps back, replays of a chat, and chats as tests."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from stepwell.botapi import Person
from stepwell.errors import UsageError
from stepwell.playground.events.group import EventGroup
from stepwell.playground.events.replay import replay
from stepwell.playground.events.undo import step_back
from stepwell.playground.play import Playground
from tests.playground.visit import CAFE, REGISTRATION
from tests.until import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cafe(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Playground]:
    """One bot for all tests; each has its own user."""
    async with Playground(CAFE, storage=f"sqlite:///{tmp_path_factory.mktemp('cafe')}/play.db") as play:
        assert await play.ready()
        yield play


class Guest:
    """A user at the café, in a private chat."""

    def __init__(self, play: Playground, user: int) -> None:
        self.play, self.id = play, user
        self.chat: Person = play.api.chat(play.bot, user, first_name="Alice")
        self.key = ("cafe", f"({user},0,{user})")

    @property
    def groups(self) -> list[EventGroup]:
        return self.play.observer.timeline.of_chat(self.id)

    @property
    def record(self) -> dict[str, Any] | None:
        shown = self.play.observer.records.get(*self.key)
        assert shown is not None
        return shown.record

    async def reported(self, count: int) -> None:
        """Wait until the page has this many groups of the chat, each with a written record or an error."""
        await reported(self.play, self.id, count)

    async def order(self) -> None:
        """Order a tea, up to the size."""
        assert await self.chat.ask("/order") == "What will it be?"
        assert await self.chat.ask("Tea") == "Which size?"
        await self.reported(2)

    async def edit(self, data: str, **changes: Any) -> None:
        assert self.record is not None
        given = {"version": self.record["version"], "state": None, **changes}
        await self.play.observer.edit(*self.key, data=data, **given)

    async def step_back(self) -> str:
        return (await step_back(self.play, *self.key)).title


async def reported(play: Playground, chat: int, count: int) -> None:
    def is_done(group: EventGroup) -> bool:
        # A new topic is an update that the bot does not handle.
        return group.writes or group.duplicate or group.error is not None or group.title == "message"

    await until(
        lambda: play.observer.timeline.of_chat(chat), lambda done: len(done) >= count and all(map(is_done, done))
    )


_users = count(1000)


@pytest_asyncio.fixture(loop_scope="module")
async def guest(cafe: Playground) -> Guest:
    guest = Guest(cafe, next(_users))
    await cafe.observer.places.locate()
    return guest


async def test_an_edit_changes_state_and_data_and_keeps_masked_values(guest: Guest) -> None:
    await guest.order()
    await guest.edit('{"api_key": "•••", "count": 41, "drink": {"$date": "2026-01-31"}}', state="note")
    shown = guest.record
    assert shown is not None
    assert (shown["state"], shown["data"]["count"], shown["data"]["drink"]) == ("note", 41, {"$date": "2026-01-31"})
    assert guest.groups[-1].kind == "edit"
    assert await guest.chat.ask("hot") == "Noted 42: hot"
    await guest.reported(4)
    await guest.edit("{}")
    assert guest.record is not None
    assert guest.record["data"] == {}


async def test_an_edit_of_an_older_version_is_refused(guest: Guest) -> None:
    await guest.order()
    assert guest.record is not None
    version = guest.record["version"]
    await guest.chat.press("Small")
    await guest.reported(3)
    with pytest.raises(UsageError, match="changed"):
        await guest.edit("{}", version=version, state="drink")
    assert guest.record["state"] == "note"


async def test_data_that_cannot_be_stored_is_refused(guest: Guest) -> None:
    await guest.order()
    for data in ("[]", '{"a": {"$date": "never"}}', "{", "null"):
        with pytest.raises(UsageError):
            await guest.edit(data)
    assert guest.record is not None
    assert guest.record["data"]["drink"] == "Tea"


async def test_a_conversation_can_be_ended(guest: Guest) -> None:
    await guest.order()
    assert guest.record is not None
    await guest.play.observer.clear(*guest.key, version=guest.record["version"])
    assert guest.record is None
    assert await guest.step_back() == "record edited on the page"
    assert guest.record is not None


async def test_a_step_back_restores_record_timer_messages_and_keyboard(guest: Guest) -> None:
    await guest.order()
    before, chat = guest.record, guest.chat
    assert before is not None
    await chat.press("Small")
    # An answer that is sent after the step back stays in the chat.
    assert await chat.answer() == "Anything else to say?"
    await guest.reported(3)
    assert await guest.step_back() == "callback_query: small"
    again = guest.record
    assert again is not None
    assert (again["state"], again["data"], again["history"]) == (before["state"], before["data"], before["history"])
    assert again["deadline"] == pytest.approx(before["deadline"], abs=60)
    assert chat.last == "Which size?"
    assert await guest.step_back() == "Tea"
    assert [message["text"] for message in chat.messages] == ["/order", "What will it be?"]
    assert chat.buttons == ["Tea", "Coffee"]
    assert await guest.step_back() == "/order"
    assert chat.messages == []
    assert guest.record is None
    with pytest.raises(UsageError, match="no update to undo"):
        await guest.step_back()
    # The conversation can begin again.
    await guest.order()


async def test_a_step_back_undoes_an_edit_first(guest: Guest) -> None:
    await guest.order()
    await guest.edit('{"count": 7}', state="note")
    await guest.step_back()
    assert guest.record is not None
    assert (guest.record["state"], guest.record["data"]["drink"]) == ("size", "Tea")
    assert guest.chat.last == "Which size?"


async def full_chat(guest: Guest) -> None:
    """Chat with buttons, a timer and a repeated update."""
    chat = guest.chat
    await guest.order()
    await guest.play.observer.time_out(*guest.key)
    await guest.reported(3)
    assert await chat.ask('Coffee "it\'s" \\ ☕') == "Which size?"
    await chat.press("Large")
    assert await chat.answer() == "Anything else to say?"
    assert await chat.ask("hot") == "Noted 1: hot"
    await chat.redeliver()
    assert await chat.answer() == "Noted 1: hot"
    await guest.reported(7)


async def test_a_replay_sends_a_chat_again_with_its_buttons_timers_and_repeats(guest: Guest) -> None:
    await full_chat(guest)
    said = [message["text"] for message in guest.chat.messages]
    done = await replay(guest.play, guest.id)
    assert (done.steps, done.differences) == (7, [])
    assert [message["text"] for message in guest.chat.messages] == said
    assert [group.kind for group in guest.groups].count("timer") == 1
    assert guest.record is not None
    assert (guest.record["state"], guest.record["data"]["count"]) == ("note", 1)


async def test_a_replay_shows_which_answers_a_change_of_the_bot_has_changed(tmp_path: Path) -> None:
    folder = tmp_path / "bot"
    folder.mkdir()
    path = Path(shutil.copy(REGISTRATION, folder / "registration.py"))
    async with Playground(path, storage=f"sqlite:///{tmp_path}/play.db") as play:
        assert await play.ready()
        alice = play.person("42", 42)
        assert await alice.ask("/register") == "What's your name?"
        assert await alice.ask("Alice") == "Got it, Alice! What's your email?"
        await reported(play, 42, 2)
        path.write_text(path.read_text().replace("What's your email?", "And your email?"))
        await until(lambda: play.process.starts >= 2)
        done = await replay(play, 42)
        assert done.differences == [
            ("Alice", ["Got it, Alice! What's your email?"], ["Got it, Alice! And your email?"])
        ]
        # The request of the killed process did not end that of the new one.
        assert not [group for group in play.observer.timeline.groups if group.failed]


async def pytest_run(folder: Path) -> None:
    """Run the tests in a folder, as a user would."""
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", ".",
        cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await running.communicate()
    assert running.returncode == 0, output.decode()


async def test_a_copied_chat_is_a_test_that_passes(guest: Guest, tmp_path: Path) -> None:
    play, chat = guest.play, guest.chat
    await full_chat(guest)
    await chat.send("/crash")
    await chat.ask("sweet")
    await guest.reported(9)
    test = play.write_test(chat)
    assert test.file == "test_order.py"
    assert 'assert await alice.press("Large") == ["Anything else to say?"]' in test.text
    (tmp_path / test.file).write_text(test.text)
    topic = chat.group(-guest.id, title="Tea house").topic("Orders")
    other_guest = topic.user(43, first_name="Alice")
    await play.observer.places.locate()
    await topic.ask("/order")
    await other_guest.ask("/feedback")
    await reported(play, -guest.id, 3)
    (tmp_path / "test_group.py").write_text(play.write_test(topic).text)
    shutil.copy(CAFE, tmp_path)
    async with Playground(REGISTRATION, storage="memory://") as other:
        assert await other.ready()
        bob = other.person("43", 43)
        for said in ("/register", "Bob", "bob@example.com", "yes"):
            await bob.ask(said)
        await reported(other, 43, 4)
        test = other.write_test(bob)
        assert test.text.splitlines()[-3].strip() == "assert await bob.record() is None"
        (tmp_path / test.file).write_text(test.text)
        # The same bot in a file that defines a router, and whose name is not a Python name.
        source = REGISTRATION.read_text().replace("make_router", "make")
        for name in ("own_router.py", "own-router.py"):
            path = tmp_path / name
            path.write_text(f"{source}\n\nrouter = make('sqlite:///own.db')\n")
            other.path = path
            (tmp_path / f"test_{len(name)}{name[3]}.py").write_text(other.write_test(bob).text)
    shutil.copy(REGISTRATION, tmp_path)
    await pytest_run(tmp_path)
    assert not (tmp_path / "own.db").exists()


async def test_a_chat_that_cannot_be_a_test_is_refused_with_a_reason(guest: Guest, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="send one first"):
        guest.play.write_test(guest.chat)
    await guest.order()
    await guest.edit('{"count": 7}')
    with pytest.raises(UsageError, match="edited"):
        guest.play.write_test(guest.chat)
    path = tmp_path / "program.py"
    path.write_text("print('no router')")
    other = Playground(path, storage="memory://")
    with pytest.raises(UsageError, match=r"program\.py defines neither"):
        other.write_test(other.api.chat(other.bot, 42))
