"""A bot and a flow that are killed at each of their steps, in a simulation."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from stepwell.cli import main
from stepwell.errors import UsageError
from stepwell.testing import CrashReport, crash_test
from tests.docs.page import ROOT

HEAD = """
import asyncio
import time

from stepwell.fsm import FSM, Flow, Router, button, callback, command, fsm_state, keyboard, state, text


class Order(Flow, name="order"):
    item = state(to=["sure"])
    sure = state(to=[])
    default_state = item


router = Router(FSM("shop", storage="memory://", flows=[Order]))
ORDERS = []


def charge(item):
    pass


@router.on(command("order"))
async def order(ctx):
    ctx.start_flow(Order)
    ctx.answer("What?")


@router.on(fsm_state(Order.item), text())
async def item(ctx):
    {item}
    ctx.update_data(item=ctx.text)
    ctx.transition("sure")
    ctx.answer("Sure?", reply_markup=keyboard([["yes", "no"]]))


@router.on(callback("yes"))
async def yes(ctx):
    {yes}
    ctx.clear_flow()
    ctx.edit("Thank you.")
"""
SCRIPT = ["/order", "tea", "yes"]


def bot(folder: Path, *, item: str = "pass", yes: str = "pass") -> Path:
    file = folder / "bot.py"
    file.write_text(HEAD.replace("{item}", item).replace("{yes}", yes))
    return file


def line_of(file: Path, text: str) -> str:
    number = next(number for number, line in enumerate(file.read_text().splitlines(), 1) if text in line)
    return f"{file}:{number}"


def kinds(report: CrashReport) -> list[str]:
    return [fault.kind for fault in report.faults]


def test_a_bot_whose_state_is_in_its_context_has_no_fault(tmp_path: Path) -> None:
    report = crash_test(bot(tmp_path), script=SCRIPT)
    assert report.faults == []
    assert report.kills == report.steps > 10
    assert report.script == ["person 1 says '/order'", "person 1 says 'tea'", "person 1 presses 'yes'"]


def test_state_in_a_global_is_found_by_other_answers(tmp_path: Path) -> None:
    file = bot(tmp_path, yes="ORDERS.append(1); ctx.answer(f'Order {len(ORDERS)}')")
    report = crash_test(file, script=SCRIPT * 2, most=40)
    assert kinds(report) == ["answers"]
    fault = report.faults[0]
    assert fault.what == "person 1 is answered 'Order 1' instead of 'Order 2'"
    assert fault.kills and fault.first
    assert "depends on something that a kill loses, such as a global" in str(report)


@pytest.mark.parametrize(
    ("item", "what"),
    [
        ("charge(ctx.text); await asyncio.sleep(0.1)", "charge('tea')"),
        ("open('log.txt', 'a').close()", "open('log.txt', 'a')"),
    ],
)
def test_an_effect_before_the_commit_is_found_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, item: str, what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file = bot(tmp_path, item=item)
    report = crash_test(file, script=SCRIPT, effects=["charge"])
    assert kinds(report) == ["effect"]
    assert report.faults[0].line == line_of(file, item)
    assert report.faults[0].what == f"{what} ran 2 times instead of 1"


def test_tasks_that_outlive_their_handler_and_blocking_calls_need_no_kill(tmp_path: Path) -> None:
    file = bot(
        tmp_path, item="asyncio.get_running_loop().task = asyncio.create_task(asyncio.sleep(9))", yes="time.sleep(1)"
    )
    report = crash_test(file, script=SCRIPT, most=1)
    assert {(fault.kind, fault.line) for fault in report.faults} == {
        ("task", line_of(file, "create_task")),
        ("blocking", line_of(file, "time.sleep")),
    }
    assert "a task outlives the handler of 'tea'" in str(report)


def test_a_handler_that_raises_and_a_coroutine_that_is_not_awaited_are_reported(tmp_path: Path) -> None:
    report = crash_test(bot(tmp_path, item="asyncio.sleep(1)", yes="1 / 0"), script=SCRIPT, most=1)
    assert kinds(report) == ["error", "error"]
    assert "the handler of 'yes' raises ZeroDivisionError: division by zero" in str(report)
    assert "coroutine 'sleep' was never awaited" in str(report)


def test_without_a_script_two_people_say_what_the_seed_chooses(tmp_path: Path) -> None:
    reports = [crash_test(bot(tmp_path), messages=4, seed=seed, most=1) for seed in (1, 1, 2)]
    assert reports[0].script == reports[1].script != reports[2].script
    assert len(reports[0].script) == 4
    assert reports[0].faults == []


AGENT = """
import asyncio

from stepwell.turns import Turns, UnknownOutcome

turns = Turns("agent", storage="memory://")


async def pay(amount):
    for _ in range(20):
        await asyncio.sleep(0.01)


@turns.handler
async def answer(turn):
    try:
        await turn.tool(pay, 3, replay="{replay}")
    except UnknownOutcome:
        pass
    if await turn.ask("Really?"):
        turn.answer("Paid.")
"""


@pytest.mark.parametrize(("replay", "expected"), [("never", []), ("safe", ["effect"])])
def test_a_tool_of_a_turn_runs_once_unless_it_is_safe(tmp_path: Path, replay: str, expected: list[str]) -> None:
    file = tmp_path / "agent.py"
    file.write_text(AGENT.replace("{replay}", replay))
    report = crash_test(file, script=["pay", "Yes"], effects=["pay"], most=40)
    assert kinds(report) == expected, str(report)


FLOW = """
from stepwell.nodes import Node, linear


def charge(order):
    return f"paid {order}"


class Pay(Node):
    {replay}

    def exec(self, prep_res):
        return charge(42)

    def post(self, shared, prep_res, exec_res):
        shared["receipt"] = exec_res


flow = linear(Pay(), Node(name="send"), name="orders")
"""


def test_an_effect_of_a_node_is_found_and_one_that_is_never_repeated_needs_an_edge(tmp_path: Path) -> None:
    file = tmp_path / "orders.py"
    file.write_text(FLOW.replace("{replay}", ""))
    report = crash_test(file, flow="flow", effects=["charge"])
    assert kinds(report) == ["effect"]
    file.write_text(FLOW.replace("{replay}", 'replay = "never"'))
    report = crash_test(file, flow="flow", effects=["charge"])
    assert kinds(report) == ["unknown"]
    assert "Add an edge 'unknown' to the node" in str(report)


def test_the_command_prints_the_report_and_ends_with_1_if_there_is_a_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bot(tmp_path, item="charge(ctx.text)")
    (tmp_path / "script.txt").write_text("\n".join(SCRIPT))
    arguments = ["crashtest", "--script", "script.txt", "--most", "30"]
    assert main(arguments) == 0
    assert "No fault was found." in capsys.readouterr().out
    assert main([*arguments, "--effect", "charge", "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert [fault["kind"] for fault in printed["faults"]] == ["effect"]
    assert main(["crashtest", "--flow", "flow", "--shared", "[1]"]) == 1
    assert "--shared is a JSON object" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("x = 1", "bot.py has no router"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_file_that_cannot_be_tested_is_refused_with_the_reason(tmp_path: Path, code: str, problem: str) -> None:
    file = tmp_path / "bot.py"
    with pytest.raises(UsageError, match="does not exist"):
        crash_test(file)
    file.write_text(code)
    with pytest.raises(UsageError, match=f"bot.py cannot be tested: .*{problem}"):
        crash_test(file)
    with pytest.raises(UsageError, match="has no function 'nothing'"):
        crash_test(bot(tmp_path), effects=["nothing"])
    with pytest.raises(UsageError, match="has no node flow 'nothing'"):
        crash_test(bot(tmp_path), flow="nothing")


@pytest.mark.parametrize("name", ["registration", "shop", "agent"])
def test_bots_of_the_cookbook_have_no_fault(tmp_path: Path, name: str) -> None:
    shutil.copy(ROOT / "examples" / "cookbook" / f"{name}.py", tmp_path)
    report = crash_test(tmp_path / f"{name}.py", messages=6, most=25)
    assert report.faults == [], str(report)
    assert report.kills
