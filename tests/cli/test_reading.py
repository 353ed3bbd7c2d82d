"""``ls``, ``show``, ``find``, ``timers`` and ``runs``, on each storage that several processes can use."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stepwell import open_storage, sync
from stepwell.nodes import BatchNode, Node, NodeFlow, Parked, Wait, linear, parallel, step
from tests.backends import Backend
from tests.cli.conftest import Command


@pytest.mark.every_backend
async def test_ls_counts_the_records_in_each_state(url: str, command: Command) -> None:
    done = await command("ls", "--json")
    found = [(each["bot"], each["flow"], each["state"], each["records"]) for each in done.json["states"]]
    assert found == [("shop", "order", "address", 2), ("shop", "order", "item", 1)]
    assert done.json["complete"] is True
    table = await command("ls")
    assert table.code == 0
    assert "shop  order  address  2" in table.out


async def test_ls_lists_the_records_of_a_bot_by_state_user_and_age(url: str, command: Command) -> None:
    def keys(done: Any) -> list[str]:
        return sorted(each["key"] for each in done.json["records"])

    assert keys(await command("ls", "shop", "--json")) == ["(42,42)", "(43,43)", "(44,44)"]
    assert keys(await command("ls", "shop", "--state", "address", "--flow", "order", "--json")) == [
        "(42,42)",
        "(43,43)",
    ]
    assert keys(await command("ls", "shop", "--user", "43", "--chat", "43", "--json")) == ["(43,43)"]
    assert keys(await command("ls", "shop", "--older-than", "1h", "--json")) == []
    assert keys(await command("ls", "shop", "--flow", "", "--json")) == []


async def test_a_long_list_continues_behind_a_record(url: str, command: Command) -> None:
    first = await command("ls", "shop", "--limit", "2", "--json")
    assert len(first.json["records"]) == 2
    rest = await command("ls", "shop", "--limit", "2", "--after", first.json["after"], "--json")
    assert rest.json["after"] is None
    both = first.json["records"] + rest.json["records"]
    assert sorted(each["key"] for each in both) == ["(42,42)", "(43,43)", "(44,44)"]


@pytest.mark.parametrize("key", ["42", "42,42", "(42,42)"])
async def test_show_finds_a_record_by_the_ids_in_its_key(url: str, command: Command, key: str) -> None:
    record = (await command("show", "shop", key, "--json")).json
    assert (record["key"], record["flow"], record["state"]) == ("(42,42)", "order", "address")
    assert record["history"] == ["item"]
    assert record["deadline"] - record["written_at"] == pytest.approx(600, abs=5)


async def test_secrets_are_masked(url: str, command: Command) -> None:
    for arguments in (["show", "shop", "42"], ["ls", "shop"], ["find", "name=Anna"]):
        for form in ([], ["--json"]):
            done = await command(*arguments, *form)
            assert done.code == 0
            assert "Anna" in done.out
            assert "hunter2" not in done.out


async def test_find_searches_fields_and_fields_within_them(url: str, command: Command) -> None:
    found = (await command("find", "to.city=Rome", "--json")).json
    assert sorted(each["data"]["name"] for each in found["records"]) == ["Anna", "Cleo"]
    assert (found["looked"], found["complete"]) == (3, True)
    found = (await command("find", "to.city=Rome", "--state", "item", "--bot", "shop", "--json")).json
    assert [each["key"] for each in found["records"]] == ["(44,44)"]
    found = (await command("find", "to.city=Rome", "--limit", "1", "--json")).json
    assert (len(found["records"]), found["complete"]) == (1, False)


@pytest.mark.every_backend
async def test_timers_are_listed_by_time(url: str, command: Command) -> None:
    found = (await command("timers", "--json")).json["timers"]
    assert [(each["key"], each["state"], each["overdue"]) for each in found] == [
        ("(42,42)", "address", False),
        ("(43,43)", "address", False),
    ]
    assert (await command("timers", "shop", "--overdue", "--json")).json == {"timers": []}
    assert len((await command("timers", "--within", "1h", "--json")).json["timers"]) == 2


class Ask(Wait):
    def prep(self, shared: Any) -> Any:
        return "Really?"


class Fails(Node):
    def exec(self, prep_res: Any) -> Any:
        raise RuntimeError("no stock")


@pytest.mark.every_backend
async def test_runs_lists_runs_by_status_and_shows_one(
    shared_backend: Backend, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = shared_backend.place()
    monkeypatch.setenv("STEPWELL_STORAGE", url)
    storage = shared_backend.storage(url)
    with pytest.raises(RuntimeError):
        await NodeFlow(Fails(name="stock"), name="order").run({"api_key": "k", "n": 1}, storage=storage, flow_id="bad")
    with pytest.raises(Parked):
        await NodeFlow(Ask("ask"), name="refund").run({}, storage=storage, flow_id="asks")
    found = (await command("runs", "--json")).json
    assert {each["flow_id"]: each["status"] for each in found["runs"]} == {"bad": "failed", "asks": "parked"}
    failed = (await command("runs", "--status", "failed", "--json")).json["runs"]
    assert [each["flow_id"] for each in failed] == ["bad"]
    assert (await command("runs", "--flow", "refund", "--status", "failed", "--json")).json["runs"] == []
    table = await command("runs")
    assert "no stock" in table.out
    assert "Really?" in table.out
    one = (await command("runs", "bad", "--json")).json
    assert one["errors"][0]["message"] == "no stock"
    assert one["shared"] == {"api_key": "•••", "n": 1}
    shown = await command("runs", "asks")
    assert "Really?" in shown.out
    assert "stepwell answer asks" in shown.err


async def test_runs_shows_the_history_of_a_run(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Careful(Node):
        def exec(self, prep_res: Any) -> None:
            raise ValueError("wrong password=abcdef1")

    url = f"sqlite:///{tmp_path}/runs.db"
    monkeypatch.setenv("STEPWELL_STORAGE", url)
    careful, ask = Careful(max_retries=2, name="careful"), Ask("ask")
    careful - "error" >> ask >> Node(name="last")
    async with open_storage(url) as storage:
        flow = NodeFlow(careful, name="asking", storage=storage, keep=True)
        await flow.run(flow_id="r", on_park="return")
        assert " since 20" in (await command("runs", "r")).out
        await flow.answer("r", "yes", run=True, by="ann")
    shown = (await command("runs", "r")).out
    assert "2 attempts, ValueError: wrong password=•••" in shown
    assert "answered by ann" in shown
    entries = (await command("runs", "r", "--json")).json["history"]
    assert [(each["node"], each["action"]) for each in entries] == [
        ("careful", "error"),
        ("ask", "default"),
        ("last", "default"),
    ]
    assert entries[1]["waited"] > 0


async def test_runs_shows_the_progress_of_a_batch_with_a_long_name(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Download(BatchNode):
        def prep(self, shared: Any) -> list[int]:
            return [1, 0]

        def exec(self, item: int) -> float:
            return 1 / item

    url = f"sqlite:///{tmp_path}/runs.db"
    monkeypatch.setenv("STEPWELL_STORAGE", url)
    async with open_storage(url) as storage:
        with pytest.raises(ZeroDivisionError):
            await linear(Download(name="attachments"), name="mail").run({}, storage=storage, flow_id="r")
    assert "\nbatch attachments 1 of 2\n" in (await command("runs", "r")).out


async def test_runs_shows_the_children_and_the_ids_of_several_waits(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STEPWELL_STORAGE", url := f"sqlite:///{tmp_path}/a.db")
    async with open_storage(url) as storage:
        with pytest.raises(Parked):
            await NodeFlow(parallel(Wait("left"), Wait("right"))).run(storage=storage, flow_id="two")
        child = NodeFlow(Wait("x"), name="child")

        class Parent(Node):
            async def exec(self, prep_res: Any) -> Any:
                return await (await step().child(child, id="c")).result()

        with pytest.raises(Parked):
            await NodeFlow(Parent).run(storage=storage, flow_id="parent")
    table = (await command("runs")).out
    assert "null" not in table
    assert "waits for parent:" in table
    assert "stepwell answer WAIT_ID VALUE" in (await command("runs", "two")).err
    assert "Parent/1/c" in (await command("runs", "parent")).out


async def test_every_help_has_an_example(command: Command) -> None:
    listed = re.findall(r"^    ([\w-]+)", (await command("--help")).out, re.MULTILINE)
    assert {"run", "ls", "completion"} < set(listed)
    for name in listed:
        done = await command(name, "--help")
        assert done.code == 0
        example = done.out.partition("example:")[2]
        assert f"stepwell {name}" in example.replace('eval "$(', "")


def test_a_terminal_without_unicode_shows_escapes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    sync(open_storage(url).set_data("shop", (1, 1), {"name": "Žofie", "pin": 1}))
    done = subprocess.run(
        [sys.executable, "-m", "stepwell", "show", "shop", "1", "--storage", url],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b'"name": "\\u017dofie"' in done.stdout


async def test_control_characters_of_stored_text_do_not_reach_the_terminal(tmp_path: Path, command: Command) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    async with open_storage(url) as storage:
        await storage.set_data("shop", (1, 1), {"name": "\x1b[31mred\x1b[0m\u202e"})
    for arguments in (["show", "shop", "1"], ["ls", "shop"]):
        done = await command(*arguments, "--storage", url)
        assert done.code == 0
        assert "red" in done.out
        assert "\x1b" not in done.out
        assert "\u202e" not in done.out


async def test_a_list_continues_behind_a_key_only(url: str, command: Command) -> None:
    done = await command("ls", "shop", "--after", "garbage")
    assert (done.code, done.out) == (2, "")
    assert "--after" in done.err
    # The record need not exist any more.
    found = (await command("ls", "shop", "--after", "(42,99)", "--json")).json["records"]
    assert [each["key"] for each in found] == ["(43,43)", "(44,44)"]


@pytest.mark.parametrize("arguments", [["ls"], ["doctor"], ["show", "shop", "42"]])
async def test_an_empty_file_is_no_storage_and_stays_empty(
    arguments: list[str], command: Command, tmp_path: Path
) -> None:
    (tmp_path / "empty.db").touch()
    done = await command(*arguments, "--storage", f"sqlite:///{tmp_path}/empty.db")
    assert (done.code, done.out) == (1, "")
    assert "is empty" in done.err
    assert (tmp_path / "empty.db").stat().st_size == 0
