"""``stepwell turns``: lists of conversations, one conversation, and changes of its turns."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stepwell import State, open_storage
from stepwell.record import TURNS, Change, Head
from stepwell.storage import Apply, Storage
from stepwell.testing import Clock
from stepwell.turns import Budget, Turn, Turns
from tests.cli.conftest import Command
from tests.turns.people import People, state_of, working


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite:///{tmp_path / 'bot.db'}"
    monkeypatch.setenv("STEPWELL_STORAGE", url)
    return url


@pytest.fixture
async def storage(url: str) -> AsyncIterator[Storage]:
    async with open_storage(url) as storage:
        yield storage


def agent(storage: Storage, begun: asyncio.Event | None = None) -> Turns:
    turns = Turns("agent", storage=storage, collect=0.0)

    @turns.handler
    async def answer(turn: Turn) -> None:
        if turn.text == "long":
            assert begun is not None
            begun.set()
            await asyncio.sleep(600)
        if turn.text == "bad":
            raise ValueError("no model")
        if turn.text == "ask":
            turn.answer(f"{await turn.ask('Pay? token=abcdef123', approvers=[42])}")
        else:
            turn.answer(turn.text.upper())

    return turns


async def test_conversations_are_listed_by_state_and_shown_with_their_messages(
    command: Command, storage: Storage
) -> None:
    turns, people = Turns("agent", storage=storage, collect=60.0), People()
    await turns.admit(people.message("one password=hunter2"))
    await turns.admit(people.message("two", user=7, chat=-100, message_thread_id=5, is_topic_message=True))
    await Turns("other", storage=storage).admit(people.message("three"))
    listed = await command("turns", "agent")
    assert [line.split()[1:3] for line in listed.out.splitlines()[1:]] == [
        ["(-100,5)", "collecting"],
        ["(42,0)", "collecting"],
    ]
    everywhere = (await command("turns", "--json")).json
    assert [each["bot"] for each in everywhere["conversations"]] == ["agent", "agent", "other"]
    assert (await command("turns", "agent", "--state", "asking", "--json")).json["conversations"] == []
    for key in ("42", "(42,0)", "42,0"):
        shown = (await command("turns", "agent", key, "--json")).json
        assert (shown["conversation"], shown["state"], shown["turn"]) == ("(42,0)", "collecting", None)
        (waiting,) = shown["waiting"]
        assert waiting["user"] == 42 and "hunter2" not in waiting["text"] and waiting["text"].startswith("one")
    shown_text = await command("turns", "agent", "42")
    assert "waiting   one password=" in shown_text.out and "hunter2" not in shown_text.out
    assert (await command("turns", "agent", "43")).code == 3


async def test_a_question_is_answered_by_an_approver_once(command: Command, storage: Storage) -> None:
    turns, people = agent(storage), People()
    async with working(turns, people):
        await turns.admit(people.message("ask"))
        await state_of(turns, "asking")
        (asked,) = (await command("turns", "--state", "asking", "--json")).json["conversations"]
        assert asked["questions"][0]["options"] == ["Yes", "No"]
        shown = await command("turns", "agent", "42")
        assert "asks      1. Pay? token=" in shown.out and "abcdef123" not in shown.out
        assert "--decide ANSWER" in shown.err
        dry = await command("turns", "agent", "42", "--decide", "Yes", "--dry-run", "--json")
        assert dry.json == {"answered": False, "conversation": "(42,0)", "answer": "Yes"}
        stranger = await command("turns", "agent", "42", "--decide", "Yes", "--yes")
        assert (stranger.code, stranger.logged) == (3, [])
        assert "only its approvers may answer; pass the id of one: --by ID" in stranger.err
        odd = await command("turns", "agent", "42", "--decide", "Perhaps", "--yes")
        assert odd.code == 2 and "choose one of 'Yes', 'No'" in odd.err
        done = await command("turns", "agent", "42", "--decide", "Yes", "--by", "42", "--yes")
        assert (done.code, len(done.logged)) == (0, 1)
        assert (await people.answered(2))[1] == "Yes"
        await state_of(turns, "idle")
        late = await command("turns", "agent", "42", "--decide", "Yes", "--by", "42", "--yes")
        assert late.code == 3 and "there is no open question" in late.err


async def test_a_running_turn_is_stopped_from_another_program(command: Command, storage: Storage) -> None:
    begun = asyncio.Event()
    turns, people = agent(storage, begun), People()
    async with working(turns, people):
        await turns.admit(people.message("long"))
        await begun.wait()
        (running,) = (await command("turns", "agent", "--json")).json["conversations"]
        assert (running["state"], running["attempt"], running["messages"][0]["text"]) == ("running", 1, "long")
        done = await command("turns", "agent", "42", "--stop", "--yes")
        assert (done.code, len(done.logged)) == (0, 1)
        assert await people.answered() == ["Stopped."]
        await state_of(turns, "idle")
    again = await command("turns", "agent", "42", "--stop", "--yes")
    assert again.code == 3 and "no turn runs in (42,0)" in again.err


async def test_failed_turns_are_listed_retried_and_dropped(command: Command, url: str) -> None:
    async with open_storage(url) as storage:
        turns, people = agent(storage), People()
        async with working(turns, people):
            for chat in (-1, -2):
                await turns.admit(people.message("bad", chat=chat))
                await state_of(turns, "idle", (chat, 0))
                await people.answered(-chat)
    failed = (await command("turns", "--failed", "--json")).json["conversations"]
    assert [each["failed"][0]["error"] for each in failed] == ["ValueError: no model"] * 2
    shown = await command("turns", "agent", "(-1,0)")
    assert "ValueError: no model" in shown.out and "--retry" in shown.err
    ids = {each["conversation"]: each["failed"][0]["id"] for each in failed}
    dry = await command("turns", "agent", "--failed", "--retry", "--dry-run", "--json")
    assert (dry.json["retried"], set(dry.json["turns"])) == ([], set(ids.values()))
    one = await command("turns", "agent", "--drop", "--turn", ids["(-1,0)"], "--yes", "--json")
    assert (one.code, one.logged != []) == (0, True)
    assert (await command("turns", "agent", "--drop", "--turn", ids["(-1,0)"], "--yes")).code == 3
    done = await command("turns", "agent", "(-2,0)", "--retry", "--yes")
    assert done.out.splitlines()[-1] == "retried 1 failed turn"
    assert (await command("turns", "--failed", "--json")).json["conversations"] == []
    (waiting,) = (await command("turns", "--state", "collecting", "--json")).json["conversations"]
    assert waiting["conversation"] == "(-2,0)"


async def test_the_file_of_a_bot_with_turns_names_it(command: Command, tmp_path: Path, storage: Storage) -> None:
    file = tmp_path / "turns_bot.py"
    file.write_text(
        "from stepwell.turns import Turns\n"
        f"turns = Turns('agent', storage='sqlite:///{tmp_path / 'bot.db'}')\n"
        "@turns.handler\nasync def answer(turn):\n    turn.answer('x')\n"
    )
    await Turns("agent", storage=storage).admit(People().message("Hello"))
    (found,) = (await command("turns", str(file), "--json")).json["conversations"]
    assert found["waiting"][0]["text"] == "Hello"


async def test_doctor_finds_conversations_that_no_worker_serves_that_have_failed_and_that_are_damaged(
    command: Command, url: str
) -> None:
    async def found() -> list[tuple[str, str]]:
        done = await command("doctor", "--json")
        return [(each["level"], each["what"]) for each in json.loads(done.out)["checks"] if each["check"] == "turns"]

    people, clock = People(), Clock(time.time())
    async with open_storage(url) as storage:
        await storage.set_state("shop", 1, State("order", "item"))
    assert await found() == []
    async with open_storage(url) as storage:
        turns = agent(storage)
        async with working(turns, people):
            await turns.admit(people.message("fine"))
            await people.answered()
            await state_of(turns, "idle")
    assert await found() == [("ok", "1 conversation of turns, none of them failed or late")]
    async with open_storage(url) as storage:
        turns = agent(storage)
        async with working(turns, people):
            await turns.admit(people.message("bad"))
            await people.answered(2)
            await state_of(turns, "idle")
    clock.advance(-3600)
    async with open_storage(url, clock=clock) as storage:
        await Turns("agent", storage=storage).admit(people.message("early", chat=-1))
    (failed, late) = await found()
    assert failed == ("warn", '1 conversation has failed turns, the first is ("agent",(42,0))')
    assert late[1].startswith('1 conversation waits for a worker, ("agent",(-1,0)) for 3')
    async with open_storage(url) as storage:
        address = storage.address(TURNS, ("agent", (7, 0)))
        await storage.perform(Apply(address, Change(write="w", head=Head("turns", "idle", "00000000 [broken"))))
    assert (await found())[0] == ("fail", '1 conversation of turns cannot be read, the first is ("agent",(7,0))')
    listed = (await command("turns", "agent", "7", "--json")).json
    assert "damage" in listed
    assert "unreadable" in (await command("turns", "agent")).out


async def test_what_persons_have_spent_of_their_budget_is_listed(command: Command, storage: Storage) -> None:
    turns, people = Turns("agent", storage=storage, collect=0.0, budget=Budget(usd=2, reserve=0.5)), People()
    begun = asyncio.Event()

    @turns.handler
    async def answer(turn: Turn) -> None:
        await turn.spent(0.25)
        if turn.text == "long":
            begun.set()
            await asyncio.sleep(600)
        turn.answer("done")

    async with working(turns, people):
        await turns.admit(people.message("short"))
        await people.answered()
        await state_of(turns, "idle")
        await turns.admit(people.message("long", user=7))
        await begun.wait()
        listed = await command("turns", "agent", "--budgets")
        assert [line.split()[:4] for line in listed.out.splitlines()] == [
            ["PAYER", "SPENT", "RESERVED", "OF"],
            ["42", "0.2500", "0.0000", "2"],
            ["7", "0.0000", "0.5000", "2"],
        ]
        (first, _) = (await command("turns", "--budgets", "--json")).json["budgets"]
        assert (first["payer"], first["spent"], first["limit"]) == (42, 0.25, 2.0) and first["ends"] > time.time()
        assert "spent" in (shown := await command("turns", "agent", "7")).out and "0.2500 USD" in shown.out
        assert (await command("turns", "agent", "7", "--json")).json["spent"] == 0.25
