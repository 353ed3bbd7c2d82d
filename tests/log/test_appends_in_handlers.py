"""Appends to a log in a handler belong to its update: however often it is delivered, they are made once."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from stepwell import Log, MemoryStorage, Storage, sync
from stepwell.errors import TooLarge
from stepwell.fsm import FSM, Context, Router, command, text
from stepwell.testing import Chat
from tests.backends import Backend
from tests.constants import Constants
from tests.fsm.conftest import message

ROOT = Path(__file__).parents[2]
#: Handles one update, and is killed between its append and its commit, unless told not to be.
PROGRAM = """
import asyncio, json, os, signal, sys
from stepwell import Log
from stepwell.fsm import FSM, Router, text

url, killed, update = sys.argv[1:]
# Short, because the next process waits for the claim of a killed one.
router = Router(FSM("bot", storage=url, flows=[], lease=1.0))

@router.on(text())
async def keep(ctx):
    log = Log(router.fsm.storage, "chats", 42)
    await log.append(ctx.text)
    if killed == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    await log.append("the answer")

async def main():
    async with router.fsm:
        await router.handle(json.loads(update))

asyncio.run(main())
"""


def log_of(storage: Storage, **options: Any) -> Log:
    return Log(storage, "chats", 42, **options)


async def entries(storage: Storage) -> list[Any]:
    return [entry.value for entry in await log_of(storage).read()]


def make_router(storage: Storage) -> Router:
    router = Router(FSM("bot", storage=storage, flows=[]))

    @router.on(command("clear"))
    async def clear(ctx: Context) -> None:
        await log_of(storage).clear()
        await log_of(storage).append("cleared")

    @router.on(command("pop"))
    async def pop(ctx: Context) -> None:
        await log_of(storage).append("wrong")
        await log_of(storage).pop()
        await log_of(storage).append("right")

    @router.on(command("twice"))
    async def twice(ctx: Context) -> None:
        numbers = await asyncio.gather(*(log_of(storage).append("same", "value") for _ in range(2)))
        ctx.answer(str([(each.start, each.stop) for each in numbers]))

    @router.on(command("claim"))
    async def claim(ctx: Context) -> None:
        async with log_of(storage).claim():
            await log_of(storage).append("claimed")

    @router.on(text())
    async def keep(ctx: Context) -> None:
        await log_of(storage).append(ctx.text)

    return router


async def test_an_update_that_is_delivered_again_appends_nothing_twice(backend: Backend) -> None:
    storage = backend.storage()
    chat = Chat(make_router, storage=storage)
    for said in ("one", "two", "two"):
        await chat.send(said)
        await chat.redeliver()
    assert await entries(storage) == ["one", "two", "two"]
    assert [entry async for entry in storage.scan("bot")] == []


async def test_a_handler_that_runs_again_after_a_kill_appends_nothing_twice(backend: Backend) -> None:
    storage = backend.storage()
    chat = Chat(make_router, storage=storage)
    for said in ("one", "/twice", "/claim", "two"):
        chat.kill_next()
        await chat.send(said)
        # Another writer between the two deliveries.
        await log_of(storage).append("other")
        answers = await chat.redeliver()
        assert answers == (["[(3, 5), (5, 7)]"] if said == "/twice" else [])
    expected = ["one", "other", "same", "value", "same", "value", "other", "claimed", "other", "two", "other"]
    assert await entries(storage) == expected


async def test_an_append_that_was_removed_again_is_repeated(backend: Backend) -> None:
    storage = backend.storage()
    chat = Chat(make_router, storage=storage)
    for said, expected in (("/clear", ["cleared"]), ("/pop", ["cleared", "right"])):
        chat.kill_next()
        await chat.send(said)
        await chat.redeliver()
        assert await entries(storage) == expected


async def test_a_process_killed_between_its_append_and_its_commit_appends_once(shared_backend: Backend) -> None:
    url, update = shared_backend.place(), json.dumps(message("hello", update_id=1))
    for killed, code in (("killed", -signal.SIGKILL), ("alive", 0), ("alive", 0)):
        arguments = (sys.executable, "-c", PROGRAM, url, killed, update)
        process = await asyncio.create_subprocess_exec(*arguments, cwd=ROOT)
        async with asyncio.timeout(60):
            assert await process.wait() == code
    assert await entries(shared_backend.storage(url)) == ["hello", "the answer"]


async def test_attempts_and_the_error_handler_of_an_update_append_nothing_twice(
    constants: Constants,
) -> None:
    constants(router_pause=0.001)
    storage = MemoryStorage()
    router = Router(FSM("bot", storage=storage, flows=[]))

    @router.on(text(), attempts=3)
    async def fail(ctx: Context) -> None:
        await log_of(storage).append(ctx.text)
        raise ConnectionError

    @router.on_error
    async def failed(ctx: Context, error: Exception) -> None:
        await log_of(storage).append("failed")

    chat = Chat(router)
    await chat.send("one")
    await chat.redeliver()
    assert await entries(storage) == ["one", "failed"]


async def test_a_handler_that_raises_appends_once_over_all_deliveries() -> None:
    storage = MemoryStorage()
    router = Router(FSM("bot", storage=storage, flows=[]))

    @router.on(text())
    async def fail(ctx: Context) -> None:
        await log_of(storage).append(ctx.text)
        raise ConnectionError

    for number in (1, 1, 2, 2):
        with pytest.raises(ConnectionError):
            await router.handle(message("same", update_id=number))
    assert await entries(storage) == ["same", "same"]


def test_a_def_handler_appends_once_in_the_thread_of_handle_sync() -> None:
    storage = MemoryStorage()
    router = Router(FSM("bot", storage=storage, flows=[]))
    runs = []

    @router.on(text())
    def fail(ctx: Context) -> None:
        sync(log_of(storage).append("in a thread"))
        runs.append(1)
        raise ConnectionError

    for _ in range(2):
        with pytest.raises(ConnectionError):
            router.handle_sync(message(update_id=1))
    assert runs == [1, 1]
    assert sync(entries(storage)) == ["in a thread"]


async def test_appends_outside_of_updates_and_of_tasks_that_go_on_are_all_made() -> None:
    storage = MemoryStorage()
    fsm = FSM("bot", storage=storage, flows=[])
    proceed = asyncio.Event()
    tasks = []

    async def later() -> None:
        await proceed.wait()
        await log_of(storage).append("later")

    async def handler(ctx: Context) -> None:
        tasks.append(asyncio.create_task(later()))
        await log_of(storage).append("now")
        raise ConnectionError

    for update in (message(), message(update_id=1)):
        for _ in range(2):
            with pytest.raises(ConnectionError):
                await fsm.handle(update, handler)
    proceed.set()
    await asyncio.gather(*tasks)
    await log_of(storage).append("now")
    # Twice without an id, once with an id, and once outside.
    assert sorted(await entries(storage)) == ["later"] * 4 + ["now"] * 4


async def test_the_marks_of_updates_are_bounded_and_take_nothing_of_the_limit(constants: Constants) -> None:
    constants(most_marks=3)
    storage = MemoryStorage()
    fsm = FSM("bot", storage=storage, flows=[])
    log = log_of(storage, limit=1000)

    async def handler(ctx: Context) -> None:
        await log.append("x" * 90)

    async def raising(ctx: Context) -> None:
        await handler(ctx)
        raise ConnectionError

    for number in range(7):
        with pytest.raises(ConnectionError):
            await fsm.handle(message(update_id=number), raising)
    for number in (4, 5, 6):
        await fsm.handle(message(update_id=number), handler)
    assert await log.last() == 7
    with pytest.raises(TooLarge):
        await fsm.handle(message(update_id=7), handler)
    async with log.claim():
        await log.trim(keep=1)
    await fsm.handle(message(update_id=0), handler)
    assert len(await log.read()) == 2
