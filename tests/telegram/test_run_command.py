"""``stepwell run`` as a process, with the local Bot API."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from asyncio import create_subprocess_exec as spawn
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from stepwell import open_storage
from stepwell.botapi import BotAPI
from stepwell.botfile import defines_router, load_router, workers_of
from stepwell.cli import main
from stepwell.errors import UsageError
from stepwell.record import RUNS
from stepwell.telegram import BotClient
from tests.reliability.raw_telegram import PAGES, RawTelegram
from tests.until import until

ROOT = Path(__file__).parents[2]
README = re.search(
    r"^```python title=\"bot.py\"\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE
)
assert README is not None
BOT = Path(__file__).with_name("registration_bot.py").read_text()


class Command:
    """A running command, and its output."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.output = ""

    async def until(self, text: str) -> None:
        assert self.process.stdout is not None
        async with asyncio.timeout(60):
            while text not in self.output:
                line = await self.process.stdout.readline()
                assert line, f"the command ended without {text!r}: {self.output}"
                self.output += line.decode()

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        async with asyncio.timeout(60):
            self.output += (await self.process.communicate())[0].decode()
        assert self.process.returncode is not None
        return self.process.returncode


@asynccontextmanager
async def command(*arguments: str, folder: Path, **env: str) -> AsyncIterator[Command]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("BOT_", "STEPWELL_"))}
    process = await spawn(
        sys.executable, "-m", "stepwell", *arguments, cwd=folder, env={**clean, "COLUMNS": "1000", **env},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        yield Command(process)
    finally:
        if process.returncode is None:
            # Its workers too: they keep the pipe of its output open, and wait() waits for the end of the pipe.
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def test_a_bot_that_polls_has_a_health_endpoint(tmp_path: Path) -> None:
    (tmp_path / "bot.py").write_text(BOT)
    async with BotAPI() as api:
        bot, port = api.bot("my_bot"), free_port()
        (tmp_path / ".env").write_text(f"BOT_TOKEN={bot.token}\n")
        async with command("run", "bot.py", "--api", api.url, "--health", str(port), folder=tmp_path) as run:
            await run.until("Ctrl-C stops it.")
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
                ready = await until(lambda: client.get("/health/ready"), lambda answer: answer.status_code == 200)
                assert ready.json()["problems"] == []
                answer = await client.get("/health/live")
                assert (answer.status_code, answer.json()["live"]) == (200, True)
                assert set(answer.json()["seconds_since"]) == {"request for updates", "poll", "write"}
            assert await run.stop() == 0
    assert main(["run", "bot.py", "--webhook", "https://bot.example.com/hook", "--health", "8081"]) == 1


async def test_the_wizard_of_the_readme_runs(tmp_path: Path) -> None:
    assert README is not None
    (tmp_path / "bot.py").write_text(README[1])
    async with BotAPI() as api:
        bot = api.bot("my_bot")
        (tmp_path / ".env").write_text(f"BOT_TOKEN={bot.token}\n")
        async with command("run", "bot.py", "--api", api.url, folder=tmp_path) as run:
            await run.until("Ctrl-C stops it.")
            shown = " ".join(run.output.split())
            assert f"@my_bot is running. Storage: {tmp_path / 'bot.db'}. Flows: register." in shown
            alice = api.chat(bot)
            assert await alice.ask("/register") == "Name?"
            assert await run.stop() == 0
            assert run.output.endswith("Stopped.\n")
            assert bot.token not in run.output
        async with command("run", "bot.py", "--api", api.url, folder=tmp_path) as run:
            await run.until("is running")
            assert await alice.ask("Alice") == "Email?"


async def test_the_error_of_a_handler_is_logged_with_its_traceback_only(tmp_path: Path) -> None:
    (tmp_path / "bot.py").write_text(f"{BOT}\n\n@router.on()\nasync def fail(ctx):\n    raise LookupError('oh')\n")
    async with BotAPI() as api:
        bot = api.bot("my_bot")
        async with command("run", "bot.py", "--api", api.url, folder=tmp_path, BOT_TOKEN=bot.token) as run:
            await api.chat(bot).send("Hi")
            await run.until("LookupError: oh")
            assert run.output.count("Traceback") == 1
            assert await run.stop() == 0


async def test_a_second_signal_ends_a_bot_whose_handler_never_ends(tmp_path: Path) -> None:
    (tmp_path / "bot.py").write_text(
        "import time\n"
        "from stepwell.fsm import FSM, Router\n"
        "router = Router(FSM('my_bot', storage='memory://', flows=[]))\n"
        "@router.on()\n"
        "def sleep(ctx):\n"
        "    print('sleeping', flush=True)\n"
        "    time.sleep(3600)\n"
    )
    async with BotAPI() as api:
        bot = api.bot("my_bot")
        async with command("run", "bot.py", "--api", api.url, folder=tmp_path, BOT_TOKEN=bot.token) as run:
            await run.until("Ctrl-C stops it.")
            await api.chat(bot).send("hi")
            await run.until("sleeping")
            run.process.send_signal(signal.SIGTERM)
            # Two signals at once could be seen as one.
            await asyncio.sleep(0.3)
            assert await run.stop() == 0


async def test_a_changed_file_restarts_the_bot(tmp_path: Path) -> None:
    file = tmp_path / "bot.py"
    file.write_text(BOT)
    async with BotAPI() as api:
        bot = api.bot("my_bot")
        async with command(
            "run", "bot.py", "--reload", "--api", api.url, folder=tmp_path, BOT_TOKEN=bot.token,
            STEPWELL_STORAGE="sqlite:///other.db",
        ) as run:  # fmt: skip
            await run.until("Ctrl-C stops it.")
            assert str(tmp_path / "other.db") in "".join(run.output.split())
            alice = api.chat(bot)
            assert await alice.ask("/register") == "What's your name?"
            file.write_text(BOT.replace("Got it, ", "Thank you, "))
            await run.until("restarting")
            assert await alice.ask("Alice") == "Thank you, Alice! What's your email?"
            run.process.send_signal(signal.SIGINT)
            async with asyncio.timeout(60):
                assert await run.process.wait() == 0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


async def test_a_webhook_with_two_workers(tmp_path: Path) -> None:
    (tmp_path / "bot.py").write_text(BOT)
    port = free_port()
    url = f"http://127.0.0.1:{port}/hook"
    async with BotAPI(webhook_pause=0.1) as api:
        bot = api.bot("my_bot")
        async with command(
            "run", "bot.py", "--webhook", url, "--port", str(port), "--workers", "2", "--api", api.url,
            folder=tmp_path, BOT_TOKEN=bot.token,
        ) as run:  # fmt: skip
            await run.until("Ctrl-C stops it.")
            alice = api.chat(bot)
            await alice.send("/register")
            # Until a worker listens, deliveries are repeated.
            assert await alice.answer(timeout=60) == "What's your name?"
            assert await alice.ask("Alice") == "Got it, Alice! What's your email?"
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
                ready, live, other = [await client.get(f"/health/{name}") for name in ("ready", "live", "other")]
                assert (ready.status_code, ready.json()["problems"]) == (200, [])
                assert (live.json()["live"], set(live.json()["seconds_since"])) == (True, {"poll", "write"})
                assert (other.status_code, (await client.post("/health/live")).status_code) == (404, 405)
            await run.stop()
            assert bot.token not in run.output
        async with command("run", "bot.py", "--api", api.url, folder=tmp_path, BOT_TOKEN=bot.token) as run:
            assert b"has a webhook" in (await run.process.communicate())[0]
            assert run.process.returncode == 1


#: A bot with timers that answer, and whose timeout is far away.
WAITING = """
from stepwell.fsm import FSM, Flow, Router, command, state

async def remind(ctx):
    ctx.answer("Are you still there?")

class Order(Flow, name="order"):
    item = state(timeout=3600, on_timeout=remind)
    default_state = item

def make_router(storage):
    router = Router(FSM("shop", storage=storage, flows=[Order]))

    @router.on(command("order"))
    async def order(ctx):
        ctx.start_flow(Order)
        ctx.answer("What?")

    return router
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_webhook_of_a_bot_with_timers_logs_no_warning_and_ends_with_0_at_a_signal(
    tmp_path: Path, workers: str, number: signal.Signals
) -> None:
    (tmp_path / "bot.py").write_text(WAITING)
    port = free_port()
    async with BotAPI(webhook_pause=0.1) as api:
        bot = api.bot("shop")
        async with command(
            "run", "bot.py", "--webhook", f"http://127.0.0.1:{port}/hook", "--port", str(port), "--workers", workers,
            "--api", api.url, folder=tmp_path, BOT_TOKEN=bot.token,
        ) as run:  # fmt: skip
            alice = api.chat(bot)
            await alice.send("/order")
            assert await alice.answer(timeout=60) == "What?"
            assert await run.stop(number) == 0, run.output
    assert "WARNING" not in run.output
    assert "Traceback" not in run.output


#: A bot whose handler submits a run, which answers at its end.
FILMS = """
from stepwell.fsm import FSM, Router, command
from stepwell.nodes import Node, linear{names}

fsm = FSM("films", storage="sqlite:///bot.db", flows=[])
router = Router(fsm)

class Tell(Node):
    async def post(self, shared, prep_res, exec_res):
        async with fsm.conversation(key=shared["key"]) as ctx:
            ctx.answer('Your film is ready.')

film = linear(Tell, name="film", storage={storage})
{more}

@router.on(command("film"))
async def begin(ctx):
    {submit}
    ctx.answer("I am on it.")
"""


def films(**parts: str) -> str:
    code = FILMS
    for name, part in parts.items():
        code = code.replace(f"{{{name}}}", part)
    return code


SUBMIT = "await film.submit({'key': ctx.key}, flow_id=f'film-{ctx.update_id}'STORAGE)"
OWN = {"names": "", "storage": "fsm.storage", "more": "", "submit": SUBMIT.replace("STORAGE", "")}
OF_THE_CALL = {**OWN, "storage": "None", "submit": SUBMIT.replace("STORAGE", ", storage=fsm.storage")}
IN_A_HELPER = {
    **OWN,
    "more": f"async def start_film(ctx):\n    {SUBMIT.replace('STORAGE', '')}",
    "submit": "await start_film(ctx)",
}
WITH_A_WORKER = {**OWN, "names": ", worker", "more": "jobs = worker([film], concurrency=2)"}


@pytest.mark.parametrize(
    "parts", [OWN, OF_THE_CALL, IN_A_HELPER, WITH_A_WORKER], ids=["own", "of the call", "in a helper", "with a worker"]
)
@pytest.mark.parametrize("webhook", [False, True], ids=["polling", "webhook"])
async def test_runs_that_handlers_submit_are_run(parts: dict[str, str], webhook: bool, tmp_path: Path) -> None:
    (tmp_path / "bot.py").write_text(films(**parts))
    port = free_port()
    served = ("--webhook", f"http://127.0.0.1:{port}/hook", "--port", str(port)) if webhook else ()
    async with BotAPI(webhook_pause=0.1) as api:
        bot = api.bot("films")
        async with command("run", "bot.py", *served, "--api", api.url, folder=tmp_path, BOT_TOKEN=bot.token) as run:
            await run.until("Runs: film. Ctrl-C stops it.")
            alice = api.chat(bot)
            await alice.send("/film")
            assert await alice.answer(timeout=60) == "I am on it."
            assert await alice.answer(timeout=60) == "Your film is ready."
            assert await run.stop() == 0, run.output
    assert run.output.count("started a worker of 'film'") == 1
    assert "WARNING" not in run.output


#: A node that needs a while to end when it is cancelled.
SLOW_TO_END = """
import asyncio

class Slow(Node):
    async def exec(self, prep_res):
        try:
            print("the node has begun", flush=True)
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(1)
            print("the node has ended", flush=True)

film = linear(Slow, name="film", storage=fsm.storage)
"""


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_webhook_ends_after_the_runs_of_its_workers(tmp_path: Path, workers: str) -> None:
    (tmp_path / "bot.py").write_text(films(**OWN | {"more": SLOW_TO_END}))
    port = free_port()
    async with BotAPI(webhook_pause=0.1) as api:
        bot = api.bot("films")
        async with command(
            "run", "bot.py", "--webhook", f"http://127.0.0.1:{port}/hook", "--port", str(port), "--workers", workers,
            "--api", api.url, folder=tmp_path, BOT_TOKEN=bot.token,
        ) as run:  # fmt: skip
            await run.until("Ctrl-C stops it.")
            await api.chat(bot).send("/film")
            await run.until("the node has begun")
            assert await run.stop() == 0, run.output
    assert "the node has ended" in run.output
    assert "Traceback" not in run.output


async def test_submitted_runs_can_be_left_to_other_processes(tmp_path: Path) -> None:
    (tmp_path / "bot.py").write_text(films(**OWN))
    async with BotAPI() as api:
        bot = api.bot("films")
        async with command("run", "bot.py", "--no-runs", "--api", api.url, folder=tmp_path, BOT_TOKEN=bot.token) as run:
            await run.until("Ctrl-C stops it.")
            alice = api.chat(bot)
            assert await alice.ask("/film") == "I am on it."
            assert await run.stop() == 0
    assert "started a worker" not in run.output
    assert "Runs:" not in run.output
    async with open_storage(f"sqlite:///{tmp_path}/bot.db") as storage:
        assert len(await storage.queued(RUNS, "film", limit=10)) == 1


#: Handlers that reach their flows in several ways; one has a variable that never got a value.
REACHED = """
from types import SimpleNamespace

import jobs_of_films
from stepwell.fsm import FSM, Router, command
from stepwell.nodes import Node, NodeFlow, linear

other = linear(Node, name="other")
unused = linear(Node, name="unused")


class Handlers:
    async def submit_other(self, ctx):
        await other.submit({})


def make_router(storage):
    router = Router(FSM("films", storage=storage, flows=[]))
    inner = linear(Node, name="inner")

    @router.on(command("a"))
    async def by_closure(ctx):
        await inner.submit(missing)

    @router.on(command("b"))
    def by_module(ctx):
        return [jobs_of_films.film.submit_sync() for _ in range(2)]

    router.on()(Handlers().submit_other)
    if storage is None:
        missing = {}
    return router
"""


def test_flows_are_found_in_closures_modules_and_methods(tmp_path: Path) -> None:
    (tmp_path / "reached_bot.py").write_text(REACHED)
    code = "from stepwell.nodes import Node, linear\nfilm = linear(Node, name='film', storage='memory://')\n"
    (tmp_path / "jobs_of_films.py").write_text(code)
    router = load_router(tmp_path / "reached_bot.py", "memory://")
    workers = workers_of(router, vars(sys.modules["reached_bot"]))
    assert sorted(sorted(flow.name or "" for flow in each.flows) for each in workers) == [["film"], ["inner", "other"]]


async def test_flows_that_no_handler_submits_get_no_worker(tmp_path: Path) -> None:
    (tmp_path / "bot.py").write_text(films(**{**OWN, "submit": "await film.run({'key': 'x', 'film': 1})"}))
    router = load_router(tmp_path / "bot.py")
    assert workers_of(router, vars(sys.modules["bot"])) == []


async def test_port_0_of_a_webhook_is_a_free_port(tmp_path: Path) -> None:
    (tmp_path / "bot.py").write_text(BOT)
    async with BotAPI() as api:
        bot = api.bot("my_bot")
        arguments = ("run", "bot.py", "--webhook", "http://127.0.0.1:1/hook", "--port", "0", "--api", api.url)
        async with command(*arguments, folder=tmp_path, BOT_TOKEN=bot.token) as run:
            await run.until("Ctrl-C stops it.")
            found = re.search(r"on 127\.0\.0\.1 port (\d+)\.", run.output)
            assert found is not None
            async with asyncio.timeout(60):
                while True:
                    try:
                        _, writer = await asyncio.open_connection("127.0.0.1", int(found[1]))
                    except ConnectionRefusedError:
                        await asyncio.sleep(0.05)
                    else:
                        writer.close()
                        break
            await run.stop()


async def test_workers_end_with_their_killed_parent(tmp_path: Path) -> None:
    (tmp_path / "bot.py").write_text(BOT)
    port = free_port()
    async with BotAPI(webhook_pause=0.1) as api:
        bot = api.bot("my_bot")
        async with command(
            "run", "bot.py", "--webhook", f"http://127.0.0.1:{port}/hook", "--port", str(port), "--workers", "2",
            "--api", api.url, folder=tmp_path, BOT_TOKEN=bot.token,
        ) as run:  # fmt: skip
            alice = api.chat(bot)
            await alice.send("/register")
            assert await alice.answer(timeout=60) == "What's your name?"
            run.process.kill()
            async with asyncio.timeout(60):
                # The output ends when the last worker has ended.
                await run.process.communicate()
        with socket.create_server(("127.0.0.1", port)):
            pass


async def test_a_webhook_is_registered_after_a_proxy_has_answered_in_place_of_telegram(tmp_path: Path) -> None:
    (tmp_path / "bot.py").write_text(BOT)
    async with RawTelegram() as telegram:
        for page in ("404", "403", "200"):
            telegram.block(PAGES[page], 1, "getMe", "setWebhook")
        arguments = ("run", "bot.py", "--webhook", "https://example.com/", "--port", "0", "--api", telegram.url)
        async with command(*arguments, folder=tmp_path, BOT_TOKEN="1:x") as run:
            await run.until("serves the webhook https://example.com/")
        assert telegram.given == 6


async def test_a_taken_port_is_reported_before_the_webhook_is_registered(tmp_path: Path) -> None:
    (tmp_path / "bot.py").write_text(BOT)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        arguments = ("run", "bot.py", "--webhook", "https://example.com/", "--port", str(port))
        async with command(*arguments, folder=tmp_path, BOT_TOKEN="1:a") as run:
            output = (await run.process.communicate())[0].decode()
    assert run.process.returncode == 1
    assert output.startswith(f"stepwell: cannot listen on 127.0.0.1 port {port}: Address already in use; choose")
    assert output.count("\n") == 1


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_storage_that_cannot_be_opened_is_reported_before_the_webhook_is_registered(
    tmp_path: Path, workers: str
) -> None:
    (tmp_path / "bot.py").write_text(BOT)
    async with BotAPI() as api:
        bot = api.bot("my_bot")
        arguments = ("run", "bot.py", "--webhook", "https://example.com/", "--port", "0", "--workers", workers)
        async with command(
            *arguments, "--storage", "sqlite:////nonexistent/bot.db", "--api", api.url,
            folder=tmp_path, BOT_TOKEN=bot.token,
        ) as run:  # fmt: skip
            output = (await run.process.communicate())[0].decode()
        assert run.process.returncode == 1
        assert output.startswith("stepwell: ")
        assert "/nonexistent" in output
        assert output.count("\n") == 1
        async with BotClient(bot.token, api=api.url) as client:
            assert not (await client.call("getWebhookInfo"))["url"]


async def test_a_webhook_gets_reactions_if_a_handler_waits_for_them(tmp_path: Path) -> None:
    handler = "from stepwell.fsm import kind\n@router.on(kind('message_reaction'))\nasync def reacted(ctx): ...\n"
    (tmp_path / "bot.py").write_text(f"{BOT}\n{handler}")
    async with BotAPI() as api:
        bot = api.bot("my_bot")
        arguments = ("run", "bot.py", "--webhook", "http://127.0.0.1:1/hook", "--port", "0", "--api", api.url)
        async with command(*arguments, folder=tmp_path, BOT_TOKEN=bot.token) as run:
            await run.until("Ctrl-C stops it.")
            async with BotClient(bot.token, api=api.url) as client:
                kinds = (await client.call("getWebhookInfo"))["allowed_updates"]
            await run.stop()
    assert "message_reaction" in kinds
    assert "message" in kinds


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (("--workers", "2"), 1, "--host, --port and --workers need --webhook"),
        (("--port", "0"), 1, "--host, --port and --workers need --webhook"),
        (
            ("--webhook", "example.com/hook"),
            2,
            "argument --webhook: must be an address like https://bot.example.com/hook",
        ),
    ],
)
def test_options_of_a_webhook_are_checked(
    arguments: tuple[str, ...], code: int, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ended: object
    try:
        ended = main(["run", "bot.py", *arguments])
    except SystemExit as error_exit:
        ended = error_exit.code
    assert ended == code
    assert error in capsys.readouterr().err


async def test_several_workers_need_a_shared_storage(tmp_path: Path) -> None:
    (tmp_path / "bot.py").write_text(BOT)
    arguments = ("run", "bot.py", "--webhook", "https://example.com/", "--workers", "2", "--storage", "memory://")
    async with command(*arguments, folder=tmp_path, BOT_TOKEN="1:a") as run:
        assert b"several workers need a storage that they can share" in (await run.process.communicate())[0]


@pytest.mark.parametrize(
    ("code", "env", "error"),
    [
        ("x = 1", {"BOT_TOKEN": "1:a"}, "bot.py has no router; define router = Router(fsm), make_router(storage)"),
        ("router = 1", {"BOT_TOKEN": "1:a"}, "bot.py: router is a int, not a Router"),
        ("def make_router(storage): return 1", {}, "bot.py: make_router(storage) returned a int, not a Router"),
        ("def make_router(): return 1", {}, "bot.py: make_router must be a def function of the storage"),
        ("async def make_router(storage): return 1", {}, "bot.py: make_router must be a def function of the storage"),
        ("from stepwell.fsm import Router\nrouter = Router()", {}, "the router of bot.py has no machine"),
        (BOT, {}, "no bot token was found"),
        (BOT, {"BOT_TOKEN": "secret"}, "does not have the form of a bot token"),
    ],
)
async def test_a_wrong_file_or_token_gives_one_sentence(
    tmp_path: Path, code: str, env: dict[str, str], error: str
) -> None:
    (tmp_path / "bot.py").write_text(code)
    async with command("run", "bot.py", folder=tmp_path, **env) as run:
        output = (await run.process.communicate())[0].decode()
    assert run.process.returncode == 1
    assert output.startswith("stepwell: ")
    assert output.count("\n") == 1
    assert error in output
    assert "secret" not in output


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"bot\.py' does not exist"):
        load_router(tmp_path / "bot.py")
    with pytest.raises(UsageError, match="is a directory; pass the file"):
        load_router(tmp_path)
    (tmp_path / "bot.txt").write_text("")
    with pytest.raises(UsageError, match=r"bot\.txt is not a Python file"):
        load_router(tmp_path / "bot.txt")


BOTS = sorted(path for path in (ROOT / "examples").glob("*.py") if defines_router(path))


def test_some_examples_are_bots() -> None:
    assert {"registration.py", "shop.py", "both_halves.py"} <= {path.name for path in BOTS}


@pytest.mark.parametrize("path", BOTS, ids=lambda path: path.stem)
async def test_an_example_runs(path: Path, tmp_path: Path) -> None:
    async with BotAPI() as api:
        bot = api.bot("my_bot")
        arguments = ("run", str(path), "--api", api.url, "--storage", f"sqlite:///{tmp_path}/bot.db")
        async with command(*arguments, folder=tmp_path, BOT_TOKEN=bot.token, PYTHONPATH=f"{ROOT}:{ROOT}/src") as run:
            await run.until("Ctrl-C stops it.")
            assert await run.stop() == 0


@pytest.mark.parametrize(
    ("wrong", "first", "last"),
    [
        ("import re\nimport nowhere\n", "line 2, in <module>", "ModuleNotFoundError: No module named 'nowhere'"),
        ("import re\ndef make_router(storage)\n", "line 2", "SyntaxError: expected ':'"),
    ],
)
async def test_a_faulty_file_is_shown_without_frames_of_the_package(
    wrong: str, first: str, last: str, tmp_path: Path
) -> None:
    (tmp_path / "bot.py").write_text(wrong)
    async with command("run", "bot.py", folder=tmp_path, BOT_TOKEN="123456:ABC") as running:
        await running.until(last)
    assert running.output.count("File ") == 1
    assert f'File "{(tmp_path / "bot.py").resolve()}", {first}' in running.output
