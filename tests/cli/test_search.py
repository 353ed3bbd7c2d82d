"""``find`` and ``runs`` as searches: rows as they are found, how far they have looked, and Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stepwell import open_storage
from stepwell.cli.records import search
from stepwell.errors import StorageUnavailable
from stepwell.nodes import Node, NodeFlow, Parked, Wait, step
from tests.backends import Backend
from tests.cli.conftest import Command
from tests.constants import Constants

#: Interrupts the command after its first page of one record.
INTERRUPTED = """
import os, signal, sys
from stepwell.cli import main
from stepwell.cli.records.search import Search
from stepwell.operate import search
search.PAGE = 1
look = Search.look
def interrupted(self, looked):
    look(self, looked)
    if looked == 2:
        os.kill(os.getpid(), signal.SIGINT)
Search.look = interrupted
sys.exit(main())
"""


async def fill(url: str, records: int) -> None:
    async with open_storage(url) as storage:
        for number in range(records):
            await storage.set_data("shop", (number, number), {"name": f"user {number}", "city": "Rome"})


def interrupted(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", INTERRUPTED, *arguments, "--storage", url], capture_output=True, text=True, check=False
    )


async def test_ctrl_c_ends_a_search_with_what_was_found_and_exit_code_130(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    await fill(url, 4)
    done = interrupted(url, "find", "city=Rome")
    assert (done.returncode, done.stderr) == (130, "stopped; looked at 2 records, found 2\n")
    assert done.stdout.count("Rome") == 2
    done = interrupted(url, "find", "city=Rome", "--json")
    assert (done.returncode, done.stderr) == (130, "")
    found = json.loads(done.stdout)
    assert (len(found["records"]), found["looked"], found["complete"]) == (2, 2, False)


async def test_a_search_that_fails_shows_what_it_has_found(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch, constants: Constants
) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    await fill(url, 4)
    constants(search_page=1)
    look = search.Search.look

    def failing(self: search.Search, looked: int) -> None:
        look(self, looked)
        if looked == 2:
            raise StorageUnavailable("the server")

    monkeypatch.setattr(search.Search, "look", failing)
    done = await command("find", "city=Rome", "--storage", url)
    assert done.code == 1
    assert done.out.count("Rome") == 2


async def test_sigterm_ends_a_command_that_asks(tmp_path: Path) -> None:
    import pty

    url = f"sqlite:///{tmp_path}/a.db"
    await fill(url, 1)
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "stepwell", "clear", "shop", "0", "--storage", url]
    asking = subprocess.Popen(command, stdin=end, stdout=end, stderr=end)
    shown = b""
    while b"[y/N]" not in shown:
        shown += os.read(terminal, 10_000)
    asking.terminate()
    assert asking.wait(30) == -signal.SIGTERM
    os.close(end)
    os.close(terminal)


async def test_a_search_says_on_stderr_how_far_it_looked(tmp_path: Path, command: Command) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    await fill(url, 3)
    done = await command("find", "name=user 1", "--storage", url)
    assert (done.code, done.err) == (0, "looked at 3 records, found 1\n")
    done = await command("find", "city=Rome", "--limit", "1", "--storage", url)
    assert done.err == "looked at 2 records, found 1; there are more, raise --limit to go on\n"


async def test_a_terminal_shows_the_progress_of_a_search(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    await fill(url, 3)
    import pty

    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "stepwell", "find", "city=Rome", "--storage", url]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=end, text=True, check=True)
    shown = os.read(terminal, 10_000).decode()
    os.close(end)
    os.close(terminal)
    assert shown.startswith("\rlooked at 3 records, found 3\r")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["BOT", "shop", "shop", "shop"]


@pytest.mark.parametrize("hold", [0.0, 60.0])
async def test_the_rows_of_a_list_are_below_their_headers(
    tmp_path: Path, command: Command, constants: Constants, hold: float
) -> None:
    constants(search_hold=hold)
    url = f"sqlite:///{tmp_path}/a.db"
    async with open_storage(url) as storage:
        flow = NodeFlow(Ask("ask"), name="f", storage=storage)
        await flow.submit(flow_id="short")
        with pytest.raises(Parked):
            await flow.run(flow_id="a much longer id")
    lines = (await command("runs", "--storage", url)).out.splitlines()
    headers = [line for line in lines if line.startswith("RUN")]
    # A slow search prints the first rows before it knows the width of the later ones.
    assert len(headers) == (1 if hold else 2)
    header = lines[0]
    for line in lines:
        header = line if line.startswith("RUN") else header
        assert line[header.index("FLOW") :].split()[0] in ("FLOW", "f")


class Ask(Wait):
    def prep(self, shared: Any) -> Any:
        return "Really?"


class Parent(Node):
    async def exec(self, prep_res: Any) -> Any:
        return await (await step().child(NodeFlow(Wait("x"), name="child"), id="c")).result()


@pytest.mark.every_backend
async def test_runs_are_filtered_by_tag_and_by_shared_field_on_each_storage(
    shared_backend: Backend, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = shared_backend.place()
    monkeypatch.setenv("STEPWELL_STORAGE", url)
    storage = shared_backend.storage(url)
    for number, city in enumerate(("Rome", "Oslo", "Rome")):
        shared = {"to": {"city": city}, "number": number}
        with pytest.raises(Parked):
            await NodeFlow(Ask("ask"), name="refund").run(shared, storage=storage, flow_id=f"run-{number}")
    with pytest.raises(Parked):
        await NodeFlow(Parent).run(storage=storage, flow_id="parent")

    async def ids(*arguments: str) -> list[str]:
        found = (await command("runs", *arguments, "--json")).json
        assert found["complete"]
        return sorted(each["flow_id"] for each in found["runs"])

    assert await ids("--field", "to.city=Rome") == ["run-0", "run-2"]
    assert await ids("--field", "to.city=Rome", "--field", "number=2") == ["run-2"]
    assert await ids("--field", "to.city=Rome", "--status", "failed") == []
    (child,) = await ids("--tag", "parent:parent")
    assert child.endswith("/Parent/1/c")
    await NodeFlow(Ask("ask"), name="refund").submit(storage=storage, flow_id="tagged", tags={"customer": 7})
    assert await ids("--tag", "customer=7") == ["tagged"]
    assert await ids("--tag", "customer=77") == []
    shown = await command("runs", "tagged")
    assert "tags      customer=7\n" in shown.out
    assert await ids("--older-than", "1h") == []
    first = (await command("runs", "--limit", "2", "--json")).json
    assert (len(first["runs"]), first["complete"]) == (2, False)
    rest = await ids("--after", first["after"])
    assert sorted([each["flow_id"] for each in first["runs"]] + rest) == sorted(await ids())
    wrong = await command("runs", "--after", "nowhere")
    assert (wrong.code, wrong.err.count("\n")) == (2, 1)
