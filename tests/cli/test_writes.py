"""Every write of a command is logged with the user and the names of what changed, without values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepwell import open_storage
from stepwell.nodes import Node, NodeFlow, Parked, Wait, every
from tests.cli.conftest import Command, fill
from tests.cli.test_moving import OLD

FLOWS = """
from stepwell.nodes import Node, NodeFlow
order = NodeFlow(Node(name="stock"), name="order")
"""


class Fails(Node):
    def exec(self, prep_res: Any) -> Any:
        raise RuntimeError("no stock")


async def test_every_write_is_logged(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_STORAGE", url := f"sqlite:///{tmp_path}/a.db")
    monkeypatch.setenv("LOGNAME", "anna")
    monkeypatch.delenv("SUDO_USER", raising=False)
    flows, bot = tmp_path / "flows_of_writes.py", tmp_path / "bot_of_writes.py"
    flows.write_text(FLOWS)
    bot.write_text(OLD)
    async with open_storage(url) as storage:
        await fill(storage)
        for flow_id in ("bad", "worse"):
            with pytest.raises(RuntimeError):
                await NodeFlow(Fails(name="stock"), name="order").run({}, storage=storage, flow_id=flow_id)
        asks = NodeFlow(Wait("ask"), name="refund")
        for flow_id in ("asks", "more"):
            with pytest.raises(Parked):
                await asks.run({}, storage=storage, flow_id=flow_id)
        await every(60, asks, name="nightly").declare(storage)
    for arguments, logged in (
        (["set", "shop", "42", "--state", "item", "name=Zoe", "--unset", "to"],
         ["anna changed state to item, field name, field to of shop (42,42)"]),
        (["set", "shop", "42", "a\nb=1"], ["anna changed field a\\u000ab of shop (42,42)"]),
        (["set", "shop", "42", "name=Eve", "--dry-run"], []),
        (["clear", "shop", "42"], ["anna cleared shop (42,42)"]),
        (["forget", "shop", "43"], ["anna forgot shop (43,43)"]),
        (["migrate", str(bot)], ["anna migrated 1 record of shop"]),
        (["forget", "--user", "44"], ["anna forgot 1 record of user:44 in shop"]),
        (["forget", "--user", "44"], []),
        (["pause", "asks", "more"], ["anna paused run asks", "anna paused run more"]),
        (["resume", "--status", "paused"],
         ["anna put run asks into the queue again", "anna put run more into the queue again"]),
        (["resume", "bad"], ["anna put run bad into the queue again"]),
        (["resume", "bad", str(flows)], ["anna resumed run bad here"]),
        (["answer", "asks", "hunter2"], None),
        (["cancel", "worse", "--reason", "hunter2"], ["anna cancelled run worse"]),
        (["schedules", "--pause", "nightly"], ["anna paused schedule nightly"]),
        (["schedules", "--resume", "nightly"], ["anna resumed schedule nightly"]),
        (["copy", url, f"sqlite:///{tmp_path}/b.db"], None),
        (["runs"], []),
    ):  # fmt: skip
        done = await command(*arguments, *(["--yes"] if arguments[0] != "runs" else []))
        assert done.code == 0, done.err
        if logged is None:
            assert len(done.logged) == 1
            assert done.logged[0].startswith("anna answered wait:" if arguments[0] == "answer" else "anna copied ")
        else:
            assert done.logged == logged
        assert "hunter2" not in done.err


async def test_the_log_may_be_a_file(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_STORAGE", url := f"sqlite:///{tmp_path}/a.db")
    monkeypatch.setenv("LOGNAME", "root")
    monkeypatch.setenv("SUDO_USER", "anna")
    async with open_storage(url) as storage:
        await fill(storage)
    monkeypatch.setenv("STEPWELL_LOG", str(tmp_path / "writes.log"))
    for key in ("42", "43"):
        done = await command("clear", "shop", key, "--yes")
        assert (done.code, done.err) == (0, "")
    lines = (tmp_path / "writes.log").read_text().splitlines()
    assert [line.partition(",")[2][4:] for line in lines] == [
        "anna as root cleared shop (42,42)",
        "anna as root cleared shop (43,43)",
    ]
    monkeypatch.setenv("STEPWELL_LOG", str(tmp_path / "missing" / "writes.log"))
    done = await command("clear", "shop", "44", "--yes")
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert "nothing was changed: cannot write to the log" in done.err
    assert (await command("show", "shop", "44")).code == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
async def test_a_full_log_does_not_hide_that_a_record_was_changed(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPWELL_STORAGE", url := f"sqlite:///{tmp_path}/a.db")
    monkeypatch.setenv("STEPWELL_LOG", "/dev/full")
    monkeypatch.setenv("LOGNAME", "anna")
    monkeypatch.delenv("SUDO_USER", raising=False)
    async with open_storage(url) as storage:
        await fill(storage)
    done = await command("set", "shop", "42", "name=Zoe", "--yes")
    assert done.code == 1
    assert "changed; version" in done.out
    assert done.err.startswith("stepwell: cannot write to the log /dev/full (")
    assert done.err.count("\n") == 2
    assert done.logged == ["anna changed field name of shop (42,42)"]
    assert (await command("show", "shop", "42", "--json")).json["data"]["name"] == "Zoe"
