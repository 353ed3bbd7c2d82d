"""The playground without a browser: bots of all kinds in their process, and the reports from them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from stepwell.botfile import defines_router
from stepwell.errors import UsageError
from stepwell.fsm import Flow, state
from stepwell.fsm.flows.description import describe
from stepwell.nodes import END, Node, NodeFlow
from stepwell.nodes.graph.plan import program_of
from stepwell.playground import report_server
from stepwell.playground.board import Board
from stepwell.playground.events.undo import step_back
from stepwell.playground.play import Playground
from stepwell.playground.records import Records
from stepwell.playground.runs import Runs
from stepwell.web.diagrams import describe_flow, describe_graph
from tests.playground.visit import CAFE
from tests.until import until

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
REGISTRATION = [
    ("/register", "What's your name?"),
    ("Alice", "Got it, Alice! What's your email?"),
    ("alice@example.com", "Please confirm."),
    ("yes", "Registered! Welcome, Alice!"),
]
#: A bot that uses neither Stepwell nor the playground.
ECHO = """
import json, os, sys, urllib.request

def call(method, **params):
    url = f"{os.environ['TELEGRAM_API_BASE']}/bot{os.environ['BOT_TOKEN']}/{method}"
    request = urllib.request.Request(url, json.dumps(params).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["result"]

print("echo runs", sys.argv[0], __name__, os.environ.get("STEPWELL_PLAYGROUND"))
offset = 0
while True:
    for update in call("getUpdates", offset=offset, timeout=20):
        offset = update["update_id"] + 1
        call("sendMessage", chat_id=update["message"]["chat"]["id"], text=update["message"]["text"].upper())
"""

#: A bot that prints the id of its child process, which ends long after it.
PARENT = "import subprocess, time; print(subprocess.Popen(['sleep', '600']).pid); time.sleep(600)"


async def wait_until_ended(pid: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        # A container may have no process that collects the exit code of an orphan.
        await until(lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


def playground(path: Path, tmp_path: Path, **options: Any) -> Playground:
    return Playground(path, storage=f"sqlite:///{tmp_path}/play.db", **options)


#: A bot whose handler submits a run. As a program it only defines its router.
SUBMITS = """
from stepwell.fsm import FSM, Router as Routes
from stepwell.nodes import Node, linear

ROUTER

class Tell(Node):
    async def post(self, shared, prep_res, exec_res):
        async with router.fsm.conversation(key=shared["key"]) as ctx:
            ctx.answer("Your film is ready.")

film = linear(Tell, name="film")

@router.on()
async def begin(ctx):
    await film.submit({"key": ctx.key}, storage=router.fsm.storage)
    ctx.answer("I am on it.")
"""


@pytest.mark.parametrize("line", ["router = Router(", "from stepwell.fsm import Router as R\nrouter = R("])
async def test_runs_that_handlers_submit_are_run(line: str, tmp_path: Path) -> None:
    path = tmp_path / "films.py"
    code = SUBMITS.replace(", Router as Routes", ", Router" if "Router as R" not in line else "")
    path.write_text(code.replace("ROUTER", f"{line}FSM('films', storage='memory://', flows=[]))"))
    assert defines_router(path) is ("Router as R" not in line)
    async with playground(path, tmp_path) as play:
        person = play.person("42", 42)
        assert await person.ask("/film", timeout=60) == "I am on it.", play.output
        assert await person.answer(timeout=60) == "Your film is ready.", play.output


@pytest.mark.parametrize("name", ["registration.py", "aiogram_registration.py"])
async def test_a_bot_runs_whether_it_or_the_runner_polls(name: str, tmp_path: Path) -> None:
    async with playground(EXAMPLES / name, tmp_path) as play:
        person = play.person("42", 42)
        for said, answer in REGISTRATION:
            assert await person.ask(said, timeout=60) == answer, play.output
            # aiogram's handlers answer before their state is written.
            await until(lambda: play.record(42), lambda record: (record is None) == (said == "yes"))
        assert [flow["name"] for flow in play.observer.machines.popitem()[1]["flows"]] == ["registration"]


async def test_records_and_errors_of_aiograms_own_fsm_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "bot.py"
    source = (EXAMPLES / "aiogram_states.py").read_text()
    path.write_text(source.replace('await state.clear()\n        await message.answer("Cancelled.")', "1 / 0"))
    async with playground(path, tmp_path) as play:
        observer, person = play.observer, play.person("42", 42)
        bot, key = f"aiogram:{play.bot.id}", '(42,42,None,None,"default")'

        async def reach(state: str | None) -> None:
            await until(
                lambda: observer.records.get(bot, key),
                lambda shown: shown is not None and (shown.record or {}).get("state") == state,
            )

        for said, answer in REGISTRATION[:2]:
            assert await person.ask(said, timeout=60) == answer, play.output
        await reach("get_email")
        assert await play.record(42) == observer.records.get(bot, key).record  # type: ignore[union-attr]
        assert observer.places.owner(bot, key) == (42, 42)
        (flow,) = observer.machines[bot]["flows"]
        assert (flow["name"], flow["states"], flow["edges"]) == (
            "Registration", ["get_name", "get_email"], [["get_name", "get_email"]],
        )  # fmt: skip
        await until(lambda: all(group.writes for group in observer.timeline.groups))
        assert [group.key for group in observer.timeline.groups] == [key, key]
        assert (await step_back(play, bot, key)).title == "Alice"
        await reach("get_name")
        assert (await step_back(play, bot, key)).title == "/register"
        await reach(None)
        assert await person.ask("/register", timeout=60) == "What's your name?"
        await reach("get_name")
        assert await person.ask("Bob", timeout=60) == "Got it, Bob! What's your email?"
        await reach("get_email")
        shown = observer.records.get(bot, key)
        assert shown is not None
        assert shown.record is not None
        await observer.edit(bot, key, version=shown.record["version"], state="confirm", data='{"name": "Carol"}')
        await person.send("/cancel")
        assert await person.ask("yes", timeout=60) == "Registered! Welcome, Carol!"
        await reach(None)
        (failed,) = [group for group in observer.timeline.groups if group.error is not None]
        assert (failed.title, failed.error) == ("/cancel", "ZeroDivisionError: division by zero")
        assert "1 / 0" in str(failed.json()["events"])


async def test_any_program_that_takes_its_bot_api_from_the_environment_runs(tmp_path: Path) -> None:
    path = tmp_path / "echo.py"
    path.write_text(ECHO)
    said: list[str] = []
    async with playground(path, tmp_path, output=said.append) as play:
        assert await play.person("43", 43).ask("hello") == "HELLO"
        assert play.output == said == [f"echo runs {path} __main__ None"]
        assert await play.record(43) is None


async def test_the_bot_of_the_readme_runs_as_it_is(tmp_path: Path) -> None:
    readme = (HERE.parents[1] / "README.md").read_text()
    path = tmp_path / "bot.py"
    path.write_text(readme.split('```python title="bot.py"\n', 1)[1].split("```", 1)[0])
    async with playground(path, tmp_path) as play:
        person = play.person("42", 42)
        assert await person.ask("/register", timeout=60) == "Name?", play.output
        assert await person.ask("Alice", timeout=60) == "Email?", play.output
        record = await play.record(42)
        assert record is not None
        assert record["state"] == "ask_email"
    assert not (tmp_path / "bot.db").exists(), "its own storage is left alone"


async def test_a_program_that_defines_a_router_may_look_up_its_own_types(tmp_path: Path) -> None:
    path = tmp_path / "bot.py"
    path.write_text("""
from __future__ import annotations
from dataclasses import dataclass
from stepwell import record_type
from stepwell.fsm import FSM, Flow, Router, state

@record_type
@dataclass
class Item:
    name: str

@dataclass
class Cart:
    item: Item

class Shop(Flow, name="shop", data=Cart):
    full = state()
    default_state = full

router = Router(FSM("bot", storage="memory://", flows=[Shop]))

@router.on()
async def fill(ctx):
    ctx.start_flow(Shop)
    ctx.update_data(item=Item(ctx.text))
    ctx.answer(f"{ctx.data_as(Cart)} in {__name__}")
""")
    async with playground(path, tmp_path) as play:
        assert await play.person("42", 42).ask("tea", timeout=60) == "Cart(item=Item(name='tea')) in bot"


async def test_a_program_that_ends_without_a_router_says_what_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "bot.py"
    for program in ("print('hello')", "import stepwell\nrouter = 'none'"):
        path.write_text(program)
        async with playground(path, tmp_path) as play:
            assert not await play.ready()
            assert play.process is not None
            assert (play.process.status, play.process.exit_code) == ("ended", 0)
            assert play.output[-1].startswith("bot.py has ended. stepwell play needs a file that defines router")


async def test_the_bots_process_ends_with_the_playground(tmp_path: Path) -> None:
    async with playground(EXAMPLES / "registration.py", tmp_path) as play:
        assert await play.ready()
        assert play.process is not None
        pid = play.process.pid
        assert pid is not None
    assert not psutil.pid_exists(pid)


async def test_the_bots_process_ends_when_the_playground_is_killed(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys\n"
        "from stepwell.playground.play import Playground\n"
        "async def main():\n"
        f"    async with Playground({str(EXAMPLES / 'registration.py')!r}, storage='memory://') as play:\n"
        "        await play.ready()\n"
        "        print(play.process.pid, flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    playing = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=subprocess.PIPE)
    assert playing.stdout is not None
    bot = psutil.Process(int(await playing.stdout.readline()))
    os.kill(playing.pid, signal.SIGKILL)
    await playing.communicate()
    await asyncio.to_thread(psutil.wait_procs, [bot], timeout=60)
    assert not bot.is_running() or bot.status() == psutil.STATUS_ZOMBIE


async def test_the_bots_children_end_when_the_playground_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "bot.py"
    path.write_text(PARENT)
    program = (
        "import asyncio\n"
        "from stepwell.playground.play import Playground\n"
        "async def main():\n"
        f"    async with Playground({str(path)!r}, storage='memory://', output=lambda line: print(line, flush=True)):\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    playing = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=subprocess.PIPE)
    assert playing.stdout is not None
    child = int(await playing.stdout.readline())
    os.kill(playing.pid, signal.SIGKILL)
    await playing.communicate()
    await wait_until_ended(child)


async def test_a_bot_that_exits_is_shown_with_its_exit_code(tmp_path: Path) -> None:
    path = tmp_path / "bot.py"
    path.write_text("print('no token'); raise SystemExit(3)")
    async with playground(path, tmp_path) as play:
        assert not await play.ready()
        assert play.process is not None
        assert (play.process.status, play.process.exit_code, play.output) == ("failed", 3, ["no token"])


async def test_a_bot_may_print_long_output(tmp_path: Path) -> None:
    path = tmp_path / "bot.py"
    path.write_text("print('x' * 300_000)\nfor n in range(1000): print(n)\nraise SystemExit(1)")
    async with playground(path, tmp_path) as play:
        assert not await play.ready()
        assert len(play.output) == 100
        assert play.output[-1] == "999"


async def test_neither_a_bot_nor_its_children_write_bytecode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    (tmp_path / "own.py").write_text("")
    (tmp_path / "other.py").write_text("")
    path = tmp_path / "bot.py"
    path.write_text(f"""
import own, subprocess, sys
subprocess.run([sys.executable, "-c", "import other"], cwd={str(tmp_path)!r}, check=True)
""")
    async with playground(path, tmp_path) as play:
        assert not await play.ready()
        assert (play.process.status, play.process.exit_code) == ("ended", 0), play.output
    assert not [*tmp_path.rglob("*.pyc")]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no process groups")
async def test_a_bots_children_end_with_it(tmp_path: Path) -> None:
    path = tmp_path / "bot.py"
    path.write_text(PARENT)
    children: list[str] = []
    async with asyncio.timeout(60), playground(path, tmp_path, output=children.append) as play:

        async def started(number: int) -> int:
            await until(lambda: len(children) >= number)
            return int(children[-1])

        child = await started(1)
        assert play.process.pid is not None
        os.kill(play.process.pid, signal.SIGKILL)
        await until(lambda: play.process.status != "running")
        assert (play.process.status, play.process.exit_code) == ("failed", -signal.SIGKILL)
        await wait_until_ended(child)
        await play.restart()
        child = await started(2)
        await play.restart()
        await wait_until_ended(child)
        child = await started(3)
        assert play.process.status == "running"
    await wait_until_ended(child)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no process groups")
async def test_a_child_that_leaves_the_process_group_blocks_neither_requests_nor_a_restart_nor_the_end(
    tmp_path: Path,
) -> None:
    path, ready = tmp_path / "bot.py", tmp_path / "ready"
    # The child holds the output and the connection to the playground.
    path.write_text(f"""
import asyncio, os, pathlib, time
from stepwell.fsm import FSM, Flow, state

class Form(Flow, name="form"):
    one = state()
    default_state = one

async def main():
    async with FSM("bot", storage="memory://", flows=[Form]):
        while not pathlib.Path({str(ready)!r}).exists():
            await asyncio.sleep(0.01)
        if os.fork() == 0:
            os.setsid()
            print(os.getpid())
            time.sleep(600)
        time.sleep(0.5)
        os._exit(0)

asyncio.run(main())
""")
    children: list[str] = []
    try:
        async with asyncio.timeout(60):
            async with playground(path, tmp_path, output=children.append) as play:
                assert await play.ready()
                await until(lambda: "43/43/0" in play.observer.places.json())
                ready.touch()
                await until(lambda: play.process.status != "running")
                assert (play.process.status, play.process.exit_code) == ("ended", 0)
                async with asyncio.timeout(report_server.TIMEOUT / 2):
                    assert await play.record(42) is None
                await play.restart()
                await until(lambda: len(children) >= 2)
    finally:
        for child in children:
            os.kill(int(child), signal.SIGKILL)


async def test_a_bot_that_changes_to_a_storage_with_older_records_is_shown_with_them(tmp_path: Path) -> None:
    path = tmp_path / "bot.py"

    def use(name: str) -> None:
        # In one step: a half-written file would restart the bot once more.
        written = tmp_path / "written"
        written.write_text(f"""
from stepwell.fsm import FSM, Flow, Router, state

class Form(Flow, name="form"):
    one = state()
    default_state = one

def make_router(_):
    router = Router(FSM("bot", storage="sqlite:///{tmp_path}/{name}.db", flows=[Form]))

    @router.on()
    async def fill(ctx):
        ctx.start_flow(Form)
        ctx.update_data(text=ctx.text)
        ctx.answer("{name}")

    return router
""")
        written.replace(path)

    async def shown() -> Any:
        return ((await play.record(42)) or {}).get("data")

    use("old")
    async with asyncio.timeout(60), playground(path, tmp_path) as play:
        person = play.person("42", 42)
        assert await person.ask("first", timeout=60) == "old", play.output
        for name in ("new", "old"):
            before = play.process.starts
            use(name)
            await until(lambda: play.process.starts != before)
            if name == "new":
                assert await person.ask("second", timeout=60) == "new", play.output
                assert await shown() == {"text": "second"}
        # A process that has just started may have no machine yet, so the page still shows the last record.
        await until(shown, lambda it: it == {"text": "first"})
        known = play.observer.records.get("bot", "(42,42)")
        assert known is not None
        assert known.record is not None
        await play.observer.edit("bot", "(42,42)", version=known.record["version"], state=None, data="{}")
        assert await shown() == {}


async def test_reports_without_the_secret_are_ignored(tmp_path: Path) -> None:
    async with playground(EXAMPLES / "registration.py", tmp_path) as play:
        assert await play.ready()
        host, port, _ = play.observer.reports.address.split(":")
        for secret in (b"", b"nonsense\n", b'{"secret": "wrong"}\n{"kind": "machine", "bot": "evil", "flows": []}\n'):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(secret)
            writer.write_eof()
            assert await reader.read() == b""
            writer.close()
        assert list(play.observer.machines) == ["registration_bot"]


def test_a_missing_file_raises_a_clear_error() -> None:
    with pytest.raises(UsageError, match=r"nowhere\.py' does not exist"):
        Playground("nowhere.py", storage="memory://")
    with pytest.raises(UsageError, match="is a directory; pass the bot's file"):
        Playground(".", storage="memory://")


def test_a_file_with_make_router_is_polled_for_and_any_other_is_a_program(tmp_path: Path) -> None:
    assert defines_router(EXAMPLES / "registration.py")
    assert defines_router(EXAMPLES / "shop.py")
    assert not defines_router(EXAMPLES / "aiogram_registration.py")


def test_a_flow_is_described_as_it_is_drawn() -> None:
    class Form(Flow, name="form"):
        one = state(to=["two"])
        two = state(to=[], timeout=60, on_timeout="one")
        default_state = one

    assert describe_flow(describe(Form)) == {
        "name": "form",
        "states": ["one", "two"],
        "start": "one",
        "edges": [["one", "two"]],
        "ends": ["two"],
        "open": False,
        "timeouts": {"two": {"seconds": 60.0, "to": "one"}},
    }


def test_a_record_has_its_path_and_the_changes_of_the_last_write() -> None:
    def record(at: str, *history: str, **data: Any) -> dict[str, Any]:
        return {"flow": "form", "state": at, "history": list(history), "deadline": None, "data": data}

    records = Records()
    records.found("bot", "key", record("one", a=1, b=2), {})
    shown = records.written("bot", "key", record("two", "one", b=3, c=4), {})
    assert (shown.changed, sorted(shown.fields), shown.path) == (["state"], ["a", "b", "c"], ["one", "two"])
    shown = records.written("bot", "key", None, {})
    assert (shown.record, shown.path, shown.flow) == (None, ["one", "two"], "form")
    for n in range(300):
        records.found("bot", f"key {n}", None, {})
    assert len(records.json()) == 200


def test_a_node_flow_is_described_as_it_is_drawn() -> None:
    class Step(Node):
        pass

    one, two, inner = Step(name="one"), Step(name="two"), NodeFlow(Step(name="deep"), name="inner")
    one >> two
    one - "skip" >> two
    one - "stop" >> END
    two >> inner
    flow = NodeFlow(one, name="outer")
    graph = describe_graph("outer", program_of(flow, without_loop=False).graph)
    assert graph["states"] == ["one", "two", "inner"]
    assert graph["edges"] == [["one", "two", "skip"], ["two", "inner", ""]]
    assert (graph["start"], graph["ends"]) == ("one", ["inner", "one"])


def test_a_run_is_followed_from_its_start_to_its_end() -> None:
    runs = Runs()
    runs.graph({"name": "f", "states": ["one", "inner"]})

    def event(kind: str, node: str = "f", run: str = "f-1", **more: Any) -> dict[str, Any]:
        said = {"event": kind, "flow": "f", "id": run, "node": node, "done": None, "total": None, "error": None}
        runs.event({**said, **more})
        newest: dict[str, Any] = runs.json()["runs"][0]
        return newest

    assert event("run.started")["status"] == "running"
    assert event("node.started", "one")["at"] == "one"
    assert event("node.progress", "one", done=3, total=7)["progress"] == {"done": 3, "total": 7}
    moved = event("node.started", "inner/deep")
    assert (moved["node"], moved["at"], moved["path"], moved["progress"]) == (
        "inner/deep", "inner", ["one", "inner"], None,
    )  # fmt: skip
    assert event("run.failed", error="ValueError")["error"] == "ValueError"
    assert (event("run.stuck", error="FlowChanged")["status"], runs.json()["runs"][0]["error"]) == (
        "stuck",
        "FlowChanged",
    )
    assert event("run.started")["error"] is None
    assert event("run.parked")["status"] == "waiting"
    runs.question({"id": "f-1", "node": "one", "question": "Well?", "deadline": None})
    assert runs.json()["runs"][0]["question"] == "Well?"
    ended = event("run.finished")
    assert (ended["status"], ended["at"]) == ("finished", None)
    for n in range(30):
        event("run.started", run=f"f-{n}")
    assert len(runs.json()["runs"]) == 12


async def test_a_page_gets_all_sections_first_and_then_the_changed_ones() -> None:
    board = Board()
    board.put("a", lambda: 1)
    board.put("b", lambda: 2)
    following = board.follow()
    assert await anext(following) == {"a": 1, "b": 2}
    for n in range(5):
        board.put("a", lambda n=n: n)  # type: ignore[misc]
    assert await anext(following) == {"a": 4}
    board.close()
    assert await anext(following, None) is None


async def test_with_limits_the_bot_is_refused_nothing_because_it_paces_its_messages(tmp_path: Path) -> None:
    async with Playground(CAFE, storage="memory://", limits=True) as play:
        alice = play.person("42", 42)
        assert await alice.ask("/feedback") == "How many stars?"
        await alice.send_at_once(*["/feedback"] * 5)
        for _ in range(5):
            assert await alice.answer() == "How many stars?"
        answers = [call["answer"] for call in alice.calls if call["method"] == "sendMessage"]
        assert [answer["ok"] for answer in answers] == [True] * 6
