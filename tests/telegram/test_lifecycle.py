"""What runs beside the handlers of a bot: functions at its start and stop, workers, and other blocks."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from asyncio import create_subprocess_exec as spawn
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from stepwell import MemoryStorage
from stepwell.botapi import Bot, BotAPI, Person
from stepwell.botfile import defines_main, workers_of
from stepwell.errors import InvalidOption
from stepwell.fsm import FSM, BotMethods, Context, Flow, Router, command, state, text
from stepwell.nodes import Node, NodeFlow, linear, worker
from stepwell.telegram import run_polling, webhook
from tests.backends import Backend
from tests.constants import Constants
from tests.until import until

DONE: list[str] = []


class Film(Node):
    def post(self, shared: Any, prep_res: Any, exec_res: Any) -> None:
        DONE.append(shared["title"])


class Waiting(Flow, name="waiting"):
    wait = state(timeout=0.01, on_timeout=lambda ctx: ctx.answer("Time is over"))
    default_state = wait


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    DONE.clear()


@pytest.fixture
def router(backend: Backend) -> Router:
    router = Router(FSM("my_bot", storage=backend.storage(), flows=[Waiting]))

    @router.on(command("wait"))
    async def wait(ctx: Context) -> None:
        ctx.start_flow(Waiting)

    return router


Run: TypeAlias = Callable[..., AbstractAsyncContextManager[None]]


@pytest.fixture
def polling(api: BotAPI, bot: Bot) -> Run:
    @asynccontextmanager
    async def run(router: Router, **options: Any) -> AsyncIterator[None]:
        task = asyncio.create_task(run_polling(router, bot.token, api=api.url, **options))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait((task,))

    return run


async def test_functions_are_called_at_the_start_and_the_stop_of_a_polling_bot(
    router: Router, polling: Run, chat: Person
) -> None:
    seen: list[str] = []
    included = Router()

    @router.on_startup
    async def start(bot: BotMethods) -> None:
        seen.append(f"start {(await bot.get_me())['username']}")

    @included.on_startup
    def start_included() -> None:
        seen.append("start included")

    @router.on_shutdown
    async def stop(bot: BotMethods) -> None:
        await bot.send_message(chat_id=42, text="Bye")

    @router.scope(text()).on_shutdown
    def stop_first() -> None:
        seen.append("stop")

    @router.on(text())
    async def hello(ctx: Context) -> None:
        seen.append("handle")
        ctx.answer("Hello")

    router.include(included)
    async with polling(router):
        assert await chat.ask("hi") == "Hello"
    assert seen == ["start my_bot", "start included", "handle", "stop"]
    assert await chat.answer() == "Bye"
    assert router.fsm is not None
    assert not router.fsm.storage.is_open


async def test_a_webhook_calls_the_functions_and_runs_the_workers_too(router: Router, api: BotAPI, bot: Bot) -> None:
    seen: list[str] = []
    router.on_startup(lambda: seen.append("start"))
    router.on_shutdown(lambda: seen.append("stop"))
    film = linear(Film, name="film")
    router.run_workers(film)
    assert router.fsm is not None
    async with webhook(router, secret_token="s3cret", token=bot.token, api=api.url):
        assert seen == ["start"]
        await film.submit({"title": "Alien"}, storage=router.fsm.storage)
        await until(lambda: DONE == ["Alien"])
    assert seen == ["start", "stop"]


async def test_functions_are_called_before_the_first_timer_and_after_the_last_one(
    router: Router, polling: Run, chat: Person
) -> None:
    seen: list[str] = []
    ready = asyncio.Event()

    @router.on_startup
    async def start() -> None:
        async with asyncio.timeout(30):
            await ready.wait()
        seen.append("start")

    fsm = router.fsm
    assert fsm is not None
    async with fsm.storage:
        await router.handle(
            {"update_id": 1, "message": {"from": {"id": 42}, "chat": {"id": 42}, "text": "/wait", "message_id": 1}}
        )

        async def send(call: dict[str, Any]) -> None:
            seen.append(call["text"])

        fsm.send = send
        async with polling(router):
            # Longer than the timeout of the state.
            await asyncio.sleep(0.1)
            ready.set()
            await until(lambda: len(seen) == 2)
        assert seen == ["start", "Time is over"]


async def test_a_bot_whose_function_at_the_start_raises_does_not_start(
    router: Router, api: BotAPI, bot: Bot, chat: Person
) -> None:
    @router.on_startup
    async def fail() -> None:
        raise LookupError("no database")

    with pytest.raises(LookupError, match="no database"):
        await run_polling(router, bot.token, api=api.url)
    assert router.fsm is not None
    assert not router.fsm.storage.is_open


async def test_an_error_of_a_function_at_the_stop_is_logged_and_the_others_are_called(
    router: Router, polling: Run, chat: Person, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []
    router.on_shutdown(lambda: seen.append("called"))

    @router.on_shutdown
    async def fail() -> None:
        raise LookupError("oh")

    router.on(text())(lambda ctx: ctx.answer("Hello"))
    async with polling(router):
        assert await chat.ask("hi") == "Hello"
    assert seen == ["called"]
    assert "LookupError: oh" in caplog.text


async def test_the_workers_of_a_router_run_what_its_handlers_submit(router: Router, polling: Run, chat: Person) -> None:
    film = linear(Film, name="film")
    router.run_workers(film, concurrency=2)

    @router.on(text())
    async def submit(ctx: Context) -> None:
        await film.submit({"title": ctx.text}, storage=ctx._fsm.storage)

    async with polling(router):
        await chat.send("Alien")
        await until(lambda: DONE == ["Alien"])
    # stepwell run starts no second worker of the flow.
    assert workers_of(router, {"film": film, "submit": submit}) == []


async def test_the_runs_can_be_left_to_other_processes(router: Router, polling: Run, chat: Person) -> None:
    film = linear(Film, name="film")
    router.run_workers(film)

    @router.on(text())
    async def submit(ctx: Context) -> None:
        await film.submit({"title": ctx.text}, storage=ctx._fsm.storage)
        ctx.answer("Submitted")

    async with polling(router, run_workers=False):
        assert await chat.ask("Alien") == "Submitted"
        assert DONE == []


async def test_a_block_beside_the_bot_is_entered_and_left(router: Router, polling: Run, chat: Person) -> None:
    seen: list[str] = []

    @asynccontextmanager
    async def block(bot: BotMethods) -> AsyncIterator[None]:
        seen.append("entered")
        try:
            yield
        finally:
            seen.append("left")

    router.run_beside(block)
    router.on(text())(lambda ctx: ctx.answer("Hello"))
    async with polling(router):
        assert await chat.ask("hi") == "Hello"
        assert seen == ["entered"]
    assert seen == ["entered", "left"]


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


async def test_a_submitted_run_that_no_worker_takes_is_warned_of_once(
    router: Router, polling: Run, chat: Person, caplog: pytest.LogCaptureFixture, constants: Constants
) -> None:
    constants(untaken=0.05)
    film = linear(Film, name="film")

    @router.on(text())
    async def submit(ctx: Context) -> None:
        await film.submit({"title": ctx.text}, storage=ctx._fsm.storage)
        ctx.answer("Submitted")

    async with polling(router):
        assert await chat.ask("Alien") == "Submitted"
        assert await chat.ask("Brazil") == "Submitted"
        await until(lambda: warnings_in(caplog))
    (warning,) = warnings_in(caplog)
    assert "of 'film' was submitted" in warning
    assert "router.run_workers(flow)" in warning


async def test_a_submitted_run_is_not_warned_of_if_a_worker_takes_it(
    router: Router, polling: Run, chat: Person, caplog: pytest.LogCaptureFixture, constants: Constants
) -> None:
    constants(untaken=0.3)
    film = linear(Film, name="film")
    assert router.fsm is not None

    @router.on(text())
    async def submit(ctx: Context) -> None:
        await film.submit({"title": ctx.text}, storage=ctx._fsm.storage)

    async with polling(router), worker([film], storage=router.fsm.storage):
        await chat.send("Alien")
        await until(lambda: DONE == ["Alien"])
        await asyncio.sleep(0.5)
    assert warnings_in(caplog) == []


def test_wrong_functions_and_flows_are_refused() -> None:
    router = Router()
    for decorate in (router.on_startup, router.on_shutdown):
        with pytest.raises(InvalidOption, match=r"write .*\(bot\)"):
            decorate(lambda one, two: None)
        with pytest.raises(InvalidOption, match="decorates a function"):
            decorate("start")  # type: ignore[type-var]
    with pytest.raises(InvalidOption, match="needs the node flows"):
        router.run_workers()
    with pytest.raises(InvalidOption, match="pass node flows"):
        router.run_workers("film")
    with pytest.raises(InvalidOption, match="takes a function"):
        router.run_beside("block")  # type: ignore[arg-type]


def test_a_worker_of_a_router_uses_the_storage_of_its_flow() -> None:
    storage = MemoryStorage()
    flow = NodeFlow(Film(), name="film", storage=storage)
    router = Router(FSM("my_bot", storage="memory://", flows=[]))
    router.run_workers(flow)
    (options,) = [each for lifecycle in router.lifecycles for each in lifecycle.beside]
    assert options.flows == (flow,)  # type: ignore[union-attr]


PROGRAM = """
import asyncio, os

async def main():
    print("main of", os.environ["BOT_TOKEN"], os.environ.get("STEPWELL_STORAGE"), flush=True)
    await asyncio.sleep({seconds})
    print("done", flush=True)
"""


@pytest.mark.parametrize("module", ["stepwell", "stepwell.playground.bot_process.runner"])
async def test_the_main_function_of_a_file_without_a_router_is_run(module: str, tmp_path: Path) -> None:
    (tmp_path / "bot.py").write_text(PROGRAM.format(seconds=0))
    arguments = ["run", "bot.py"] if module == "stepwell" else ["bot.py"]
    env = {**os.environ, "BOT_TOKEN": "42:token", "STEPWELL_STORAGE": "sqlite:///x.db"}
    process = await spawn(
        sys.executable, "-m", module, *arguments, cwd=tmp_path, env=env,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    output = (await process.stdout.read()).decode()
    assert await process.wait() == 0
    assert output.startswith("main of 42:token sqlite:///x.db\ndone\n")


async def test_sigterm_ends_a_main_function_with_0(tmp_path: Path) -> None:
    (tmp_path / "bot.py").write_text(PROGRAM.format(seconds=600))
    env = {**os.environ, "BOT_TOKEN": "42:token"}
    process = await spawn(
        sys.executable, "-m", "stepwell", "run", "bot.py", cwd=tmp_path, env=env, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert (await process.stdout.readline()).startswith(b"main of 42:token")
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0


@pytest.mark.parametrize(
    ("code", "imported", "as_program"),
    [
        ("def main(): pass", True, True),
        ("async def main(argument=1): pass", True, True),
        ("def main(argument): pass", False, False),
        ("def main(): pass\nmain()", False, False),
        ("def main(): pass\nif __name__ == '__main__':\n    main()", True, False),
        ("from bot import router\ndef main(): pass", False, False),
        ("router = make()\ndef main(): pass", False, False),
        ("def make_router(storage): pass\ndef main(): pass", False, False),
        ("def other(): main()", False, False),
    ],
)
def test_a_file_defines_main_unless_it_has_a_router_or_calls_it(
    code: str, imported: bool, as_program: bool, tmp_path: Path
) -> None:
    path = tmp_path / "bot.py"
    path.write_text(code)
    assert defines_main(path) is imported
    assert defines_main(path, as_program=True) is as_program
