"""The registration bot: the whole conversation, and separate users. tests/reliability kills it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from examples.registration import make_router

from examples import registration
from stepwell import State
from stepwell.testing import Chat
from tests.backends import Backend

CONVERSATION = [
    ("/register", "What's your name?"),
    ("Alice", "Got it, Alice! What's your email?"),
    ("alice@example.com", "Please confirm."),
    ("yes", "Registered! Welcome, Alice!"),
]


@pytest.fixture
def chat(backend: Backend) -> Chat:
    return Chat(make_router, storage=backend.storage())


async def test_the_whole_conversation(chat: Chat) -> None:
    for said, answer in CONVERSATION:
        assert await chat.send(said) == [answer]
    assert await chat.record() is None


@pytest.mark.parametrize("said", range(1, 4))
async def test_cancel_leaves_no_visible_record(backend: Backend, said: int) -> None:
    storage = backend.storage()
    chat = Chat(make_router, storage=storage)
    for text, _ in CONVERSATION[:said]:
        await chat.send(text)
    assert [entry.key async for entry in storage.scan("registration_bot")] == [(42, 42)]
    assert await chat.send("/cancel") == ["Cancelled."]
    assert await storage.get_state("registration_bot", (42, 42)) is None
    assert [entry async for entry in storage.scan("registration_bot")] == []
    assert await chat.send("Alice") == ["Say /register to begin."]


async def test_starting_again_clears_the_data(chat: Chat) -> None:
    await chat.send("/register")
    await chat.send("Alice")
    assert await chat.send("/register") == ["What's your name?"]
    assert await chat.record() == State("registration", "get_name")


async def test_only_yes_confirms(chat: Chat) -> None:
    for said, _ in CONVERSATION[:3]:
        await chat.send(said)
    assert await chat.send("no") == ["Say yes, or /cancel."]
    assert await chat.send("yes") == ["Registered! Welcome, Alice!"]


async def test_an_answer_without_an_at_sign_is_no_email(chat: Chat) -> None:
    for said, _ in CONVERSATION[:2]:
        await chat.send(said)
    assert await chat.send("bad") == ["Please send an email address, such as alice@example.com."]
    assert await chat.record() == State("registration", "get_email", {"name": "Alice"})
    assert await chat.send("alice@example.com") == ["Please confirm."]


async def test_two_users_in_one_chat_and_one_user_in_two_chats_never_mix(chat: Chat) -> None:
    group, other = chat.group(-100), chat.group(-200)
    people = {"Alice": group, "Bob": group.user(43), "Carol": other, "Dora": chat, "Eve": chat.user(43)}
    for person in people.values():
        assert await person.send("/register") == ["What's your name?"]
    for name, person in people.items():
        assert await person.send(name) == [f"Got it, {name}! What's your email?"]
    assert await people["Bob"].send("/cancel") == ["Cancelled."]
    del people["Bob"]
    for name, person in people.items():
        assert await person.send(f"{name}@example.com") == ["Please confirm."]
        assert (await person.record() or State()).data == {"name": name, "email": f"{name}@example.com"}
    for name, person in people.items():
        assert await person.send("yes") == [f"Registered! Welcome, {name}!"]


async def test_restarted_and_redelivered_between_any_two_messages_on_two_workers(backend: Backend) -> None:
    chat = Chat(make_router, storage=backend.storage(), workers=2)
    for said, answer in CONVERSATION:
        assert await chat.send(said) == [answer]
        await chat.restart()
        assert await chat.redeliver() == [answer]


def test_run_as_a_program_it_continues_after_a_restart(tmp_path: Path) -> None:
    for said, answer in CONVERSATION:
        done = subprocess.run(
            [sys.executable, registration.__file__],
            input=said,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            check=True,
        )
        assert (done.stdout, done.stderr) == (answer + "\n", "")
