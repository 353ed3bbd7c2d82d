"""Commands that messages suggest can be pasted into a shell, whatever the names in them are."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from stepwell import open_storage
from stepwell.fsm import FSM, Flow, state
from stepwell.nodes import Node, NodeFlow, Parked, RunFailed, Wait, linear
from tests.cli.conftest import Command

ID = "order 42; rm -rf $HOME's"


class Fails(Node):
    def exec(self, prep_res: Any) -> Any:
        raise RuntimeError("no stock")


class Ask(Wait):
    def prep(self, shared: Any) -> Any:
        return "Really?"


def suggested(text: str, command: str) -> list[str]:
    """Return the words of a suggested command, as a shell reads them."""
    found = re.search(rf"stepwell ({command} .*)", text)
    assert found, text
    return shlex.split(found[1])


@pytest.mark.parametrize(
    ("flow", "expected"),
    [
        (linear(Fails(), name="f"), ["resume", ID, "module:flow"]),
        (linear(Ask("answer"), name="f"), ["answer", ID, "VALUE"]),
    ],
)
async def test_the_next_command_for_a_run_has_its_id_in_quotes(
    tmp_path: Path, command: Command, flow: NodeFlow, expected: list[str]
) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    async with open_storage(url) as storage:
        with pytest.raises((RunFailed, Parked, RuntimeError)):
            await flow.run({}, storage=storage, flow_id=ID)
    shown = await command("runs", ID, "--storage", url)
    assert suggested(shown.err, expected[0]) == expected
    refused = await command("resume", ID, "--storage", url, "--yes")
    if expected[0] == "answer":
        assert suggested(refused.err, "resume") == ["resume", ID, "module:flow"]


async def test_the_next_command_for_a_paused_run_has_its_id_in_quotes(tmp_path: Path, command: Command) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    flow = linear(Fails(), name="f")
    async with open_storage(url) as storage:
        await flow.submit({}, storage=storage, flow_id=ID)
        await flow.pause(ID, storage=storage)
    shown = await command("runs", ID, "--storage", url)
    assert suggested(shown.err, "resume") == ["resume", ID]


class Order(Flow, name="my order"):
    item = state()
    default_state = item


async def test_the_commands_of_the_doctor_and_of_a_missing_record_have_names_in_quotes(
    tmp_path: Path, command: Command
) -> None:
    url, bot = f"sqlite:///{tmp_path}/a.db", "my shop"
    async with FSM(bot, storage=url, flows=[Order], run_timers=False) as fsm:
        async with fsm.conversation(key=1) as ctx:
            ctx.start_flow(Order)
    missing = await command("show", bot, "2", "--storage", url)
    assert suggested(missing.err, "ls")[:2] == ["ls", bot]
    file = tmp_path / "bot.py"
    file.write_text(
        "from stepwell.fsm import FSM, Router\n"
        f"def make_router(storage):\n    return Router(FSM({bot!r}, storage=storage, flows=[]))\n"
    )
    done = await command("doctor", str(file), "--storage", url)
    assert suggested(done.out, "ls")[:6] == ["ls", bot, "--flow", "my order", "--state", "item"]
