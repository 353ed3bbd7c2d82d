"""Answers of handlers that change nothing else: stored before they are sent if the router remembers them."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepwell import State, Storage
from stepwell.errors import InvalidOption
from stepwell.fsm import FSM, Context, Router, text
from stepwell.storage import Apply
from stepwell.testing import Chat, Clock
from tests.backends import Backend
from tests.fsm.conftest import message

pytestmark = pytest.mark.every_backend

ROOT = Path(__file__).parents[2]
#: Handles one update, and is killed where it would send the answer, unless told not to be.
PROGRAM = """
import asyncio, json, os, signal, sys
from stepwell.fsm import FSM, Router, text

url, log, killed, remember, update = sys.argv[1:]

def report(*line):
    with open(log, "a") as file:
        print(json.dumps(line), file=file)

async def send(call):
    if killed == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    report("sent", call["text"])

router = Router(FSM("bot", storage=url, flows=[]), send=send, remember=remember)

@router.on(text())
async def ask_model(ctx):
    report("ran")
    ctx.answer("the answer of a model")

async def main():
    async with router.fsm:
        await router.handle(json.loads(update))

asyncio.run(main())
"""


async def run(*arguments: str) -> int:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, *arguments, cwd=ROOT)
    async with asyncio.timeout(60):
        return await process.wait()


@pytest.mark.parametrize(("remember", "runs"), [("answers", 1), ("changes", 2)])
async def test_a_process_killed_between_handler_and_send_runs_the_handler_again_only_if_answers_are_not_remembered(
    shared_backend: Backend, tmp_path: Path, remember: str, runs: int
) -> None:
    url, log, update = shared_backend.place(), tmp_path / "log", json.dumps(message(update_id=1))
    assert await run(url, str(log), "killed", remember, update) == -signal.SIGKILL
    assert await run(url, str(log), "alive", remember, update) == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert lines == [["ran"]] * runs + [["sent", "the answer of a model"]]


Make = Callable[..., Router]


@pytest.fixture
def ran() -> list[str]:
    return []


@pytest.fixture
def make(ran: list[str]) -> Make:
    def make(storage: Storage, **options: Any) -> Router:
        router = Router(FSM("bot", storage=storage, flows=[]), **options)

        @router.on(text("quiet"))
        async def quiet(ctx: Context) -> None:
            ran.append("quiet")

        @router.on(text("again"), remember="changes")
        async def again(ctx: Context) -> None:
            ran.append("again")
            ctx.answer("again")

        @router.on(text("once"), remember="answers")
        async def once(ctx: Context) -> None:
            ran.append("once")
            ctx.answer("once")

        @router.on(text())
        async def answer(ctx: Context) -> None:
            ran.append("default")
            ctx.answer("default")

        return router

    return make


async def test_a_handler_has_its_own_choice_or_that_of_its_router(backend: Backend, make: Make, ran: list[str]) -> None:
    remembering = Router(FSM("bot", storage=backend.storage(), flows=[]))
    remembering.include(make(backend.storage(), remember="answers"))
    for router, expected in (
        (remembering, ["quiet", "quiet", "again", "again", "once", "default"]),
        (make(backend.storage()), ["quiet", "quiet", "again", "again", "once", "default", "default"]),
    ):
        ran.clear()
        chat = Chat(router)
        for said in ("quiet", "again", "once", "other"):
            assert await chat.send(said) == await chat.redeliver()
        assert ran == expected


async def test_a_remembered_answer_leaves_no_record_and_is_forgotten_with_its_user(
    backend: Backend, make: Make, ran: list[str], clock: Clock
) -> None:
    storage = backend.storage(clock=clock)
    router = make(storage)
    assert router.fsm is not None
    chat = Chat(router)
    for _ in range(2):
        assert await chat.send("once") == await chat.redeliver() == ["once"]
    assert ran == ["once"] * 2
    assert await chat.record() is None
    assert [entry async for entry in storage.scan("bot")] == []
    assert await router.fsm.forget(user=42) == 1
    assert await chat.redeliver() == ["once"]
    assert ran == ["once"] * 3


@pytest.mark.parametrize("before", ["nothing", "a memo", "an empty record"])
async def test_a_remembered_answer_removes_nothing_that_another_process_writes_meanwhile(
    backend: Backend, before: str
) -> None:
    storage = backend.storage()
    router = Router(FSM("bot", storage=storage, flows=[]), remember="answers")
    ran = []

    @router.on(text("hello"))
    async def hello(ctx: Context) -> None:
        ctx.answer("hello")

    @router.on(text())
    async def answer(ctx: Context) -> None:
        ran.append(ctx.text)
        await storage.update_data("bot", (42, 42), {"from": "an operator"})
        ctx.answer("once")

    chat = Chat(router)
    if before == "a memo":
        await chat.send("hello")
    elif before == "an empty record":
        await storage.set_state("bot", (42, 42), State(None, None))
    assert await chat.send("hi") == await chat.redeliver() == ["once"]
    assert ran == ["hi"]
    assert await storage.get_data("bot", (42, 42)) == {"from": "an operator"}


async def test_an_update_that_changed_nothing_costs_no_write_by_default(backend: Backend, make: Make) -> None:
    storage = backend.storage()
    written = []
    perform = storage.perform

    async def counting(operation: Any) -> Any:
        written.extend([operation] if isinstance(operation, Apply) else [])
        return await perform(operation)

    storage.perform = counting  # type: ignore[method-assign]
    chat = Chat(make(storage))
    assert await chat.send("other") == ["default"]
    assert written == []
    assert await chat.send("once") == ["once"]
    assert written


def test_another_choice_is_refused() -> None:
    choice: Any = "all"
    with pytest.raises(InvalidOption, match='remember must be "changes" or "answers", got \'all\''):
        Router(remember=choice)
    with pytest.raises(InvalidOption, match="remember must be"):
        Router().on(text(), remember=choice)
