"""``stepwell schedules``, on each storage that several processes can use."""

from __future__ import annotations

import pytest

from stepwell.nodes import Node, Schedules, cron, every, linear
from tests.backends import Backend
from tests.cli.conftest import Command


async def test_schedules_are_listed_paused_and_resumed(
    shared_backend: Backend, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = shared_backend.place()
    monkeypatch.setenv("STEPWELL_STORAGE", url)
    known = Schedules(shared_backend.storage(url))
    flow = linear(Node(name="send", inline=True), name="mails")
    await known.add(every(300, flow, name="digest", shared={"user": 42, "token": "secret"}))
    await known.add(cron("0 9 * * 1-5", flow, tz="Europe/Berlin", name="morning"))

    table = await command("schedules")
    assert "every 300 s" in table.out
    assert "0 9 * * 1-5 Europe/Berlin" in table.out
    found = (await command("schedules", "--json")).json["schedules"]
    assert [(each["name"], each["paused"]) for each in found] == [("digest", False), ("morning", False)]
    assert found[0]["shared"] == {"user": 42, "token": "•••"}
    assert found[0]["next"] % 300 == 0

    assert (await command("schedules", "--pause", "digest")).code == 1
    assert (await command("schedules", "--pause", "digest", "--dry-run", "--json")).json["paused"] is False
    assert not (await known.get("digest")).paused
    assert (await command("schedules", "--pause", "digest", "--yes", "--json")).json["schedule"]["next"] is None
    assert (await known.get("digest")).paused
    assert "paused" in (await command("schedules")).out
    assert (await command("schedules", "--resume", "digest", "--yes", "--json")).json["resumed"] is True
    assert not (await known.get("digest")).paused

    missing = await command("schedules", "--pause", "nope", "--yes")
    assert missing.code == 3
    assert "there is no schedule 'nope'" in missing.err
