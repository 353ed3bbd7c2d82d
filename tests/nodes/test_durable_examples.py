"""The examples of durable runs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from examples import both_halves, child_runs, durable_batch, human_in_the_loop
from stepwell import MemoryStorage, SQLiteStorage
from stepwell.testing import Chat
from tests.backends import Backend
from tests.constants import Constants
from tests.until import until

EXAMPLES = Path(__file__).parents[2] / "examples"


async def test_a_killed_batch_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, constants: Constants) -> None:
    path = str(tmp_path / "translate.db")
    code = "import sys; from stepwell.nodes.run import lease; lease.LEASE = 1; import runpy; sys.argv = sys.argv[1:]; "
    code += "runpy.run_path(sys.argv[0], run_name='__main__')"
    process = subprocess.Popen(
        [sys.executable, "-c", code, EXAMPLES / "durable_batch.py", "run", path], stderr=subprocess.DEVNULL
    )
    try:
        done = await until(lambda: durable_batch.done_so_far(path), lambda done: done >= 300)
    finally:
        process.kill()
        process.wait()
    translated = []
    work = durable_batch.Translate.exec

    async def counted(self: Any, sentence: str) -> str:
        translated.append(sentence)
        return await work(self, sentence)

    monkeypatch.setattr(durable_batch.Translate, "exec", counted)
    constants(lease=1)
    final = await durable_batch.run(path)
    assert final["report"] == "2000 sentences, the last one is 'SENTENCE 1999'"
    assert len(translated) <= 2000 - done


def test_a_person_answers_in_another_process(tmp_path: Path) -> None:
    def run(*words: str) -> list[str]:
        command = [sys.executable, EXAMPLES / "human_in_the_loop.py", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    drafting, question, wait = run("ask", "a steep price")
    assert drafting.startswith("drafting")
    assert question == "Send this letter? Dear customer, about a steep price: ..."
    assert run("answer", wait, "yes") == ["sent"]


async def test_a_letter_without_approval_is_dropped(backend: Backend, clock: Any) -> None:
    storage = backend.storage(clock=clock)
    await storage.open()
    flow = human_in_the_loop.flow
    with pytest.raises(human_in_the_loop.Parked):
        await flow.run({"subject": "x"}, storage=storage, flow_id="letter")
    clock.advance(7 * 86_400)
    assert (await flow.resume("letter", storage=storage))["outcome"] == "dropped"


async def test_a_trip_waits_for_the_bookings_that_it_has_started(tmp_path: Path) -> None:
    asked: list[str] = []

    def ask(question: str) -> str:
        asked.append(question)
        return "no" if "Stockholm" in question else "yes"

    async with asyncio.timeout(30):
        final = await child_runs.main(SQLiteStorage(tmp_path / "trips.db"), ask)
    assert final["booked"] == {"Bath": 80, "Lisbon": 120, "Oslo": 80}
    assert final["total"] == 280
    assert sorted(asked) == [
        "The hotel in Lisbon costs 120. Book it?",
        "The hotel in Stockholm costs 180. Book it?",
    ]


async def test_a_conversation_and_a_flow_together(tmp_path: Path) -> None:
    async with Chat(both_halves.make_router, storage=f"sqlite:///{tmp_path}/trips.db") as chat:
        assert await chat.send("/plan") == ["Which city?"]
        assert await chat.send("Bath") == ["Grand Hotel Bath: shall I book it?"]
        await chat.restart()
        assert await chat.send("no") == ["Plaza Hotel Bath: shall I book it?"]
        assert await chat.redeliver() == ["Plaza Hotel Bath: shall I book it?"]
        await chat.restart()
        assert await chat.send("yes") == ["Booked: Plaza Hotel Bath."]
        assert await chat.record() is None
    async with SQLiteStorage(f"{tmp_path}/trips.db") as storage:
        runs = [run async for run in both_halves.trip.runs("finished", storage=storage)]
        assert [run.path[-1] for run in runs] == ["Book"]


async def test_a_message_whose_handler_crashed_is_not_searched_or_answered_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched: list[str] = []
    find = both_halves.FindHotel.exec

    async def counted(self: Any, search: tuple[str, int]) -> str:
        searched.append(search[0])
        return await find(self, search)

    monkeypatch.setattr(both_halves.FindHotel, "exec", counted)
    answer, dies = both_halves.Context.answer, [True]

    def dying(self: Any, text: str, **params: Any) -> None:
        if dies and "Hotel" in text:
            dies.pop()
            raise ConnectionError
        answer(self, text, **params)

    monkeypatch.setattr(both_halves.Context, "answer", dying)
    chat = Chat(both_halves.make_router, storage=MemoryStorage())
    await chat.send("/plan")
    with pytest.raises(ConnectionError):
        await chat.send("Bath")
    assert await chat.redeliver() == ["Grand Hotel Bath: shall I book it?"]
    assert searched == ["Bath"]
    dies.append(True)
    with pytest.raises(ConnectionError):
        await chat.send("yes")
    assert await chat.redeliver() == ["Booked: Grand Hotel Bath."]
    assert searched == ["Bath"]
