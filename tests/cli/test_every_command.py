"""All of the operator's commands: good input on each storage, and bad input with one clear line."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stepwell import open_storage
from stepwell.cli import _parser
from stepwell.fsm import FSM
from stepwell.fsm.refusals import keep_refused
from stepwell.nodes import Node, NodeFlow, Parked, RunStuck, Wait, every
from stepwell.storage import Storage
from stepwell.telegram.receiving.aside import set_aside
from stepwell.turns import Turns
from tests.backends import Backend
from tests.cli.conftest import LOGGED, Command, fill
from tests.turns.people import People

ROOT = Path(__file__).parents[2]
SQLITE = "sqlite:///{folder}/a.db"
#: Calls that work, in this order, on the storage that ``prepare`` fills.
GOOD = [
    ["ls"],
    ["ls", "shop", "--state", "address"],
    ["show", "shop", "42"],
    ["find", "to.city=Rome", "--user", "42"],
    ["timers", "--within", "1h"],
    ["runs"],
    ["runs", "bad"],
    ["schedules"],
    ["doctor"],
    ["outbox", "shop", "--refused"],
    ["inbox", "shop"],
    ["turns"],
    ["turns", "shop", "42"],
    ["turns", "shop", "42", "--retry", "--yes"],
    ["set", "shop", "42", "name=Zoe", "--state", "item"],
    ["clear", "shop", "43"],
    ["forget", "shop", "42"],
    ["forget", "--user", "44"],
    ["resume", "--status", "failed"],
    ["pause", "asks"],
    ["resume", "asks"],
    ["answer", "asks", "yes"],
    ["complete", "pays", "Pay", "--result", "paid"],
    ["cancel", "bad", "asks"],
    ["schedules", "--pause", "nightly"],
    ["migrate"],
    ["copy", "{url}", "{target}"],
]
WRITERS = {"set", "clear", "forget", "resume", "pause", "answer", "complete", "cancel", "migrate", "copy"}
#: Commands that start something, or that need no storage.
OTHERS = {
    "botapi",
    "crashtest",
    "run",
    "play",
    "demo",
    "inspect",
    "diagram",
    "new",
    "completion",
    "new-key",
    "rotate-keys",
    "webhook",
}
#: Commands that read a file or server of another framework, and create their storage.
IMPORTS = {"import-aiogram", "import-ptb"}
COMMANDS = set(_parser()._subparsers._group_actions[0].choices) - OTHERS - IMPORTS  # type: ignore[union-attr, call-overload]


class Fails(Node):
    def exec(self, prep_res: Any) -> Any:
        raise RuntimeError("no stock")


class Pays(Node):
    replay = "never"

    async def exec(self, prep_res: Any) -> Any:
        await asyncio.sleep(600)


async def prepare(storage: Storage) -> None:
    """Write conversations, runs in several states, a schedule, an update that was set aside, and a refused call."""
    await fill(storage)
    with pytest.raises(RuntimeError):
        await NodeFlow(Fails(name="stock"), name="order").run({}, storage=storage, flow_id="bad")
    asks = NodeFlow(Wait("ask"), name="refund")
    with pytest.raises(Parked):
        await asks.run({}, storage=storage, flow_id="asks")
    pays = NodeFlow(Pays(name="Pay", timeout=0.01), name="pay")
    with pytest.raises(RunStuck):
        await pays.run({}, storage=storage, flow_id="pays")
    await every(3600, asks, name="nightly").declare(storage)
    shop = FSM("shop", storage=storage, flows=[])
    await set_aside(shop, "no JSON", why="it cannot be read")
    about = {"update_id": 7, "handler": None, "code": 400, "description": "Bad Request"}
    await Turns("shop", storage=storage).admit(People().message("Hello"))
    await keep_refused(storage, "shop", {"method": "sendMessage"}, method="sendMessage", chat=45, **about)


@pytest.mark.every_backend
async def test_every_command_works_on_each_storage(
    shared_backend: Backend, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url, target = shared_backend.place(), f"sqlite:///{tmp_path}/target.db"
    monkeypatch.setenv("STEPWELL_STORAGE", url)
    await prepare(shared_backend.storage(url))
    assert {arguments[0] for arguments in GOOD} == COMMANDS
    documented = (ROOT / "docs" / "command-line.md").read_text()
    assert {name for name in COMMANDS if f"`stepwell {name}" not in documented} == set()
    for given in GOOD:
        arguments = [each.format(url=url, target=target) for each in given]
        writes = given[0] in WRITERS or "--pause" in given
        done = await command(*arguments, "--json", *(["--yes"] if writes else []))
        # The PostgreSQL of the tests runs without fsync, which doctor reports.
        code = 1 if given == ["doctor"] and "fsync is off" in done.out else 0
        assert (given, done.code) == (given, code), done.err
        assert isinstance(json.loads(done.out), dict)
        assert LOGGED.sub("", done.err) == ""
        assert bool(done.logged) == (writes and given[0] != "migrate"), given


async def test_every_command_prints_text_without_colours_unless_in_a_terminal(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url, target = SQLITE.format(folder=tmp_path), f"sqlite:///{tmp_path}/target.db"
    monkeypatch.setenv("STEPWELL_STORAGE", url)
    async with open_storage(url) as storage:
        await prepare(storage)
    for given in GOOD:
        arguments = [each.format(url=url, target=target) for each in given]
        writes = given[0] in WRITERS or "--pause" in given
        if given != ["resume", "asks"]:
            done = await command(*arguments, *(["--dry-run"] if writes else []))
            assert (given, done.code, done.logged) == (given, 0, []), done.err
            assert done.out
            assert "\x1b" not in done.out + done.err


DOWN = {
    "memory": ("memory://", "in the memory of one process"),
    "unknown": ("nosuch://x", "nosuch"),
    "missing": ("sqlite:///{folder}/no.db", "there is no file"),
    "folder": ("sqlite:///{folder}", "is a folder"),
    "text": ("sqlite:///{folder}/text.db", "is not an SQLite database"),
    "option": ("sqlite:///{folder}/a.db?nope=1", "has no option 'nope'"),
    "redis": ("redis://localhost:1?patience=0", "localhost:1"),
    "redis-cluster": ("redis+cluster://localhost:1?patience=0", "localhost:1"),
    "redis-sentinel": ("redis+sentinel://localhost:1/mymaster?patience=0", "localhost:1"),
    "postgres": ("postgresql://localhost:1/x?patience=0", "localhost:1"),
    "port": ("redis://localhost:x", "port"),
}


@pytest.mark.parametrize(("url", "message"), DOWN.values(), ids=list(DOWN))
async def test_a_storage_that_cannot_be_used_gives_one_line(
    url: str, message: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = url.format(folder=tmp_path)
    (tmp_path / "text.db").write_text("This is not a database.\n" * 50)
    async with open_storage(f"sqlite:///{tmp_path}/a.db"):
        pass
    monkeypatch.setenv("STEPWELL_STORAGE", url)
    for arguments in {each[0]: each for each in GOOD}.values():
        given = [each.format(url=url, target=f"sqlite:///{tmp_path}/target.db") for each in arguments]
        done = await command(*given, *(["--yes"] if given[0] in WRITERS else []), "--json")
        assert done.code == (2 if message in ("nosuch", "has no option 'nope'", "port") else 1)
        if given == ["doctor"] and done.out:
            assert message in json.loads(done.out)["checks"][0]["what"]
        else:
            assert (given, done.out, done.err.count("\n")) == (given, "", 1)
            assert done.err.startswith("stepwell: ")
            assert message in done.err
    assert not (tmp_path / "no.db").exists()


STALE = "1.aaaa"
BAD: list[tuple[list[str], int, str]] = [
    (["nope"], 2, "invalid choice: 'nope'"),
    (["paly", "bot.py"], 2, "invalid choice: 'paly'; did you mean play? see stepwell --help"),
    (["play", "bot.py", "--prot", "1"], 2, "arguments: --prot 1; did you mean --port? see stepwell play --help"),
    ([], 2, "the following arguments are required: command"),
    (["ls", "shpo"], 3, "has no records of the bot 'shpo'; it has those of 'shop'"),
    (["ls", "--state", "x"], 2, "a filter needs a bot"),
    (["ls", "shop", "--limit", "0"], 2, "above 0"),
    (["ls", "shop", "--user", "anna"], 2, "invalid int value: 'anna'"),
    (["ls", "shop", "--older-than", "soon"], 2, "a duration like"),
    (["ls", "--import", "no_such_module"], 1, "cannot import"),
    (["ls", "--import", "{folder}/broken.py"], 1, "cannot import"),
    (["ls", "--import", "{folder}/raises.py"], 1, "make_router() of {folder}/raises.py failed: ValueError: no token"),
    (["show", "shop"], 2, "required: key"),
    (["show", "shpo", "1"], 3, "has no records of the bot 'shpo'"),
    (["show", "shop", "99"], 3, "bot 'shop' has no record at (99,99)"),
    (["show", "shop", "(42"], 2, "is not a key"),
    (["find"], 2, "give a field=value"),
    (["find", "name"], 2, "'name' is not field=value"),
    (["find", "name=" + "[" * 20_000], 2, "the value of 'name' is nested too deep"),
    (["find", "name=Anna", "--bot", "shpo"], 3, "has no records of the bot 'shpo'"),
    (["timers", "shpo"], 3, "has no records of the bot 'shpo'"),
    (["timers", "--overdue", "--within", "1h"], 2, "not both"),
    (["runs", "nope"], 3, "nope"),
    (["runs", "--status", "odd"], 2, "'odd' is not a status"),
    (["runs", "bad", "--flow", "order"], 2, "give the id of a run, or"),
    (["runs", "--field", "name"], 2, "'name' is not field=value"),
    (["runs", "--after", "x"], 2, "is not a position in this list"),
    (["outbox", "shpo"], 3, "has no records of the bot 'shpo'"),
    (["outbox", "shop", "--resend", "--drop"], 2, "not allowed with"),
    (["inbox", "shpo"], 3, "has no records of the bot 'shpo'"),
    (["turns", "shpo"], 3, "has no records of the bot 'shpo'"),
    (["turns", "shop", "99"], 3, "bot 'shop' has no turns in the conversation 99"),
    (["turns", "--state", "odd"], 2, "invalid choice"),
    (["turns", "--stop"], 2, "need a bot and a conversation"),
    (["turns", "shop", "42", "--failed"], 2, "give a conversation, or --state and --failed"),
    (["turns", "--failed", "--retry"], 2, "need a bot"),
    (["turns", "shop", "--by", "42"], 2, "--question and --by need --decide"),
    (["turns", "shop", "--turn", "a"], 2, "--turn needs --retry or --drop"),
    (["turns", "shop", "42", "--stop", "--drop"], 2, "not allowed with"),
    (["schedules", "--pause", "nope"], 3, "there is no schedule 'nope'"),
    (["schedules", "--pause", "a", "--resume", "a"], 2, "not allowed with"),
    (["doctor", "no_such_module"], 1, "cannot import"),
    (["doctor", "{folder}/empty.py"], 1, "has no router, FSM or NodeFlow"),
    (["doctor", "{folder}/raises.py"], 1, "failed: ValueError: no token"),
    (["set", "shop", "42"], 2, "nothing to change"),
    (["set", "shop", "42", "name"], 2, "'name' is not field=value"),
    (["set", "shop", "42", "--state", "x", "name"], 2, "'name' is not field=value"),
    (["set", "shop", "42", "--flow", "order"], 2, "--flow needs --state"),
    (["set", "shop", "42", "a=1", "--version", "7"], 2, "'7' is not a version"),
    (["set", "shop", "42", "a=1", "--version", STALE], 3, "has changed since it was read"),
    (["set", "shop", "42", 'a={"$nope": 1}'], 2, "$nope"),
    (["set", "shop", "42", "a=1e999"], 2, "the value of 'a' is not valid"),
    (["set", "shop", "42", "a=" + "[" * 20_000], 2, "the value of 'a' is not valid: it is nested deeper"),
    (["set", "shop", "99", "a=1"], 3, "no record at (99,99)"),
    (["set", "shop", "42", "a=1", "--nope"], 2, "unrecognized arguments: --nope; see stepwell set --help"),
    (["clear", "shop", "99"], 3, "no record at (99,99)"),
    (["clear", "shop", "42", "more"], 2, "unrecognized arguments: more"),
    (["clear", "shop", "42", "--version", STALE], 3, "has changed since it was read"),
    (["clear", "shop", "42", "--wait", "long"], 2, "a duration like"),
    (["forget"], 2, "give a bot and a key"),
    (["forget", "shop", "99"], 3, "no record at (99,99)"),
    (["forget", "shop", "42", "--user", "1"], 2, "give a bot and a key"),
    (["forget", "--user", "1", "--version", STALE], 2, "--version needs a bot and a key"),
    (["forget", "shop", "42", "--version", STALE], 3, "has changed since it was read"),
    (["resume"], 2, "give the id of a run"),
    (["resume", "bad", "--status", "failed"], 2, "give the id of a run"),
    (["resume", "bad", "--limit", "3"], 2, "need --status"),
    (["resume", "nope"], 3, "nope"),
    (["resume", "asks"], 1, "is parked; only failed, stuck and paused runs"),
    (["resume", "bad", "no_such_module"], 1, "cannot import"),
    (["resume", "bad", "{folder}/empty.py"], 1, "has no NodeFlow"),
    (["resume", "bad", "json:loads"], 1, "loads"),
    (["cancel"], 2, "required: id"),
    (["cancel", "nope"], 3, "nope"),
    (["pause", "nope"], 3, "nope"),
    (["answer", "asks"], 2, "required: value"),
    (["answer", "nope", "1"], 3, "nope"),
    (["complete", "asks", "Pay"], 2, "required: --result"),
    (["complete", "nope", "Pay", "--result", "1"], 3, "nope"),
    (["complete", "bad", "Pay", "--result", "1"], 1, "only a run that is stuck"),
    (["answer", "bad", "1"], 1, "does not wait for this answer"),
    (["answer", "asks", '{"$nope": 1}'], 2, "$nope"),
    (["migrate", "no_such_module"], 1, "cannot import"),
    (["copy", SQLITE], 2, "required: target"),
    (["copy", SQLITE, SQLITE], 2, "the same storage"),
    (["copy", SQLITE, "sqlite:///{folder}/b.db", "--bot", "nobody"], 3, "no records of the bot 'nobody'"),
    (["copy", SQLITE, "sqlite:///{folder}/b.db", "--runs"], 2, "--runs needs --bot"),
    (["copy", SQLITE, "sqlite:///{folder}/no/b.db"], 1, "does not exist"),
    (["import-aiogram", "redis+cluster://localhost", "--bot-id", "7"], 2, "give the URL of aiogram's Redis"),
    (["import-aiogram", "redis://localhost:1"], 2, "give bot_id (--bot-id)"),
    (["import-aiogram", "redis://localhost:1", "--keys", "fsm:{part}"], 2, "a pattern needs {chat_id}, {user_id}"),
    (["import-aiogram", "redis://localhost:1", "--bot-id", "7"], 1, "Redis at localhost:1 cannot be reached"),
    (["import-ptb", "{folder}/empty.py", "--bot-id", "7"], 2, "can run any code"),
    (["import-ptb", "{folder}/empty.py", "--trust-pickle"], 2, "give bot_id (--bot-id)"),
    (["import-ptb", "{folder}/no.py", "--trust-pickle", "--bot-id", "7"], 1, "there is no file"),
    (["import-ptb", "{folder}/empty.py", "--trust-pickle", "--bot-id", "7"], 1, "cannot be unpickled: EOFError"),
    (["diagram", "{folder}/no.py"], 1, "does not exist"),
    (["diagram", "{folder}/empty.py"], 1, "has no flows"),
    (["diagram", "{folder}/broken.py"], 1, "cannot import"),
    (["diagram", "{folder}/raises.py"], 1, "failed: ValueError: no token"),
    (["new", "cat", "tom"], 2, "invalid choice: 'cat'"),
    (["new", "bot", "../shop"], 2, "is not a name for a project"),
    (["new", "bot", "stepwell"], 2, "a project cannot have the name of the package that it uses"),
    (["new", "agent", "openai"], 2, "a project cannot have the name of the package that it uses"),
    (["new", "agent", "tom", "--framework", "cat"], 2, "invalid choice: 'cat' (choose from "),
    (["new", "agent", "tom", "--provider", "cat"], 2, "invalid choice: 'cat' (choose from "),
    (
        ["new", "bot", "tom", "--framework", "langgraph"],
        2,
        "a bot has no framework; use --framework with: stepwell new",
    ),
    (["crashtest", "{folder}/no.py"], 1, "does not exist"),
    (["crashtest", "{folder}/empty.py"], 1, "cannot be tested: empty.py has no router"),
    (["crashtest", "{folder}/empty.py", "--shared", "{"], 1, "--shared is not JSON"),
    (["completion", "powershell"], 2, "invalid choice: 'powershell'"),
    (["inspect", "--port", "http"], 2, "a port must be a number"),
    (["inspect", SQLITE, SQLITE], 1, "give one storage"),
    (["inspect", SQLITE, "{folder}/empty.py"], 1, "has no flows"),
    (["run", "{folder}/no.py"], 1, "does not exist"),
    (["run", "{folder}/bot.py", "--workers", "2"], 1, "need --webhook"),
    (["play", "{folder}/no.py"], 1, "does not exist"),
    (["demo", "--port", "x"], 2, "a port must be a number"),
]


async def test_bad_input_gives_one_clear_line_and_a_non_zero_exit(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPWELL_STORAGE", url := SQLITE.format(folder=tmp_path))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "broken.py").write_text("import (")
    (tmp_path / "raises.py").write_text("def make_router(storage):\n    raise ValueError('no token')\n")
    async with open_storage(url) as storage:
        await prepare(storage)
    assert {arguments[0] for arguments, *_ in BAD if arguments} >= COMMANDS
    before = (await command("ls", "shop", "--json")).out
    for given, code, message in BAD:
        arguments = [each.replace("{folder}", str(tmp_path)) for each in given]
        writes = bool(given) and given[0] in WRITERS | IMPORTS
        done = await command(*arguments, *(["--yes"] if writes else []))
        assert (given, done.code, done.out, done.err.count("\n")) == (given, code, "", 1), done.err
        assert done.err.startswith("stepwell")
        assert message.replace("{folder}", str(tmp_path)) in done.err
    assert (await command("ls", "shop", "--json")).out == before
    assert not (tmp_path / "b.db").exists()


async def test_without_yes_and_without_a_terminal_nothing_changes(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPWELL_STORAGE", url := SQLITE.format(folder=tmp_path))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    async with open_storage(url) as storage:
        await prepare(storage)
    for given in GOOD:
        if (given[0] in WRITERS and given[0] != "migrate") or "--pause" in given:
            if given == ["resume", "asks"]:
                continue
            arguments = [each.format(url=url, target=f"sqlite:///{tmp_path}/target.db") for each in given]
            done = await command(*arguments)
            assert (given, done.code) == (given, 1)
            assert "nothing was changed: there is no terminal to ask; pass --yes" in done.err
            assert done.err.count("\n") == 1
            assert not done.logged


async def test_a_reader_that_exits_and_a_narrow_terminal(tmp_path: Path) -> None:
    url = SQLITE.format(folder=tmp_path)
    async with open_storage(url) as storage:
        for number in range(20):
            await storage.set_data("shop", (number, number), {"text": "x" * 10_000})
    program = f"{sys.executable} -m stepwell"
    piped = f"{program} ls shop --limit 2000 --storage {url} | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", piped], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, done.stdout.split()[0]) == (1, "", "KEY")
    import pty
    import termios

    terminal, end = pty.openpty()
    termios.tcsetwinsize(end, (24, 40))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    listing = [*program.split(), "ls", "shop", "--limit", "3", "--storage", url]
    subprocess.run(listing, stdout=end, stderr=subprocess.DEVNULL, env=environment, check=True)
    os.close(end)
    lines = os.read(terminal, 100_000).decode().splitlines()
    os.close(terminal)
    assert len(lines) == 4
    assert max(map(len, lines)) == 40
    terminal, end = pty.openpty()
    termios.tcsetwinsize(end, (24, 60))
    checking = [*program.split(), "doctor", "--storage", url]
    subprocess.run(checking, stdout=end, stderr=subprocess.DEVNULL, env={**environment, "NO_COLOR": "1"}, check=True)
    os.close(end)
    lines = os.read(terminal, 100_000).decode().splitlines()
    os.close(terminal)
    # A word, such as a path, may be longer than the room.
    assert [line for line in lines if len(line) > 60 and len(line[18:].split()) > 1] == []
    assert any(line.startswith(" " * 18) and not line.strip().startswith("->") for line in lines)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
async def test_output_that_cannot_be_written_gives_one_line(tmp_path: Path) -> None:
    url = SQLITE.format(folder=tmp_path)
    async with open_storage(url) as storage:
        await fill(storage)
    (tmp_path / "bot.py").write_text(
        "from stepwell.fsm import Flow, state\n\nclass Order(Flow, name='order'):\n    item = state()\n"
    )
    program = f"{sys.executable} -m stepwell"
    for command in (
        f"ls --storage {url}",
        f"ls shop --storage {url}",
        f"ls shop --json --storage {url}",
        f"doctor --storage {url}",
        f"diagram {tmp_path}/bot.py",
        "new-key",
    ):
        for stdout, message in (("/dev/full", "cannot write the output"), ("&-", "stdout is closed")):
            given = f"{program} {command} >{stdout}"
            done = subprocess.run(["bash", "-c", given], capture_output=True, text=True, check=False, cwd=tmp_path)
            assert (given, done.returncode) == (given, 1), done.stderr
            assert message in done.stderr
            assert "Traceback" not in done.stderr
            assert done.stderr.count("\n") == 1
    # With stderr closed, errors are not printed to stdout.
    closed = subprocess.run(
        ["bash", "-c", f"{program} show shop 99 --storage {url} 2>&-"], capture_output=True, text=True, check=False
    )
    assert (closed.returncode, closed.stdout) == (3, "")
