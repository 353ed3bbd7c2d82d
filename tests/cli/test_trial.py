"""Three planted faults, found and repaired with the commands as an operator would."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from stepwell import open_storage
from stepwell.fsm import FSM, Flow, state
from stepwell.nodes import Node, linear
from stepwell.nodes.control import ending
from stepwell.storage import Storage
from tests.cli.conftest import Command, Done
from tests.servers.redis import RedisServer

#: The present release of the bot, which has no state ``voucher`` any more.
BOT = """
from stepwell.fsm import FSM, Flow, Router, state

class Order(Flow, name="order"):
    item = state()
    paid = state()

def make_router(storage):
    return Router(FSM("shop", storage=storage, flows=[Order]))
"""


class Order(Flow, name="order"):
    """The flow in the release before."""

    item = state()
    voucher = state()
    paid = state()
    default_state = item


class Render(Node):
    """Kills its process, which this test plays with a cancelled call that writes nothing."""

    entered: asyncio.Event

    async def exec(self, prepared: Any) -> None:
        self.entered.set()
        await asyncio.Event().wait()


async def plant_stuck_conversations(storage: Storage) -> None:
    fsm = FSM("shop", storage=storage, flows=[Order], run_timers=False)
    for user in range(20):
        async with fsm.conversation(key=(user, user)) as ctx:
            ctx.start_flow(Order)
            if user % 5 == 3:
                ctx.transition("voucher")


async def plant_poison_run(storage: Storage, deaths: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def killed(journal: Any, **options: Any) -> None:
        """A killed process writes nothing."""

    monkeypatch.setattr(ending, "_interrupt", killed)
    render = Render(name="render")
    flow = linear(render, name="invoice", storage=storage, max_recoveries=3)
    await flow.submit({"n": 1}, flow_id="innocent")
    for _ in range(deaths + 1):
        render.entered = asyncio.Event()
        running = asyncio.create_task(flow.run({"n": 7}, flow_id="invoice-7", if_exists="resume"))
        entering = asyncio.create_task(render.entered.wait())
        await asyncio.wait([running, entering], return_when=asyncio.FIRST_COMPLETED)
        running.cancel()
        entering.cancel()
        await asyncio.gather(running, entering, return_exceptions=True)


def problems(done: Done) -> list[str]:
    checks = json.loads(done.out)["checks"]
    # The folders of the tests may be in memory.
    bad = [each for each in checks if each["level"] != "ok" and "is in memory" not in each["what"]]
    return [f"{each['what']} -> {each['advice']}" for each in bad]


async def test_conversations_in_a_removed_state_are_found_and_moved(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPWELL_STORAGE", url := f"sqlite:///{tmp_path}/a.db")
    (tmp_path / "bot_of_trial.py").write_text(BOT)
    async with open_storage(url) as storage:
        await plant_stuck_conversations(storage)
    (problem,) = problems(await command("doctor", str(tmp_path / "bot_of_trial.py"), "--json"))
    assert "4 records of 'shop' are in order/voucher, which the code does not declare" in problem
    assert "stepwell ls shop --flow order --state voucher lists them" in problem
    assert "shop  order  voucher  4" in (await command("ls")).out
    listed = (await command("ls", "shop", "--flow", "order", "--state", "voucher", "--json")).json["records"]
    for record in listed:
        moved = await command("set", "shop", record["key"], "--state", "item", "--version", record["version"], "--yes")
        assert moved.code == 0
    assert problems(await command("doctor", str(tmp_path / "bot_of_trial.py"), "--json")) == []


@pytest.mark.parametrize(
    ("deaths", "found", "why"),
    [
        (2, "run invoice-7 has lost its runner 2 times at node render", "its runner died 2 times at this node"),
        (
            4,
            "1 run is stuck, the first is invoice-7 at node render: its runner died 4 times",
            "its runner died 4 tim",
        ),
    ],
    ids=["while workers die", "stuck"],
)
async def test_a_run_that_kills_its_workers_is_found_and_cancelled(
    deaths: int, found: str, why: str, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPWELL_STORAGE", url := f"sqlite:///{tmp_path}/a.db")
    async with open_storage(url) as storage:
        await plant_poison_run(storage, deaths, monkeypatch)
    (problem,) = problems(await command("doctor", "--json"))
    assert problem.startswith(found)
    (line,) = [line for line in (await command("runs")).out.splitlines() if "died" in line]
    assert line.startswith("invoice-7  invoice")
    assert why in line
    assert '"n": 7' in (await command("runs", "invoice-7")).out
    assert (await command("cancel", "invoice-7", "--reason", "kills its worker", "--yes")).code == 0
    assert problems(await command("doctor", "--json")) == []


async def test_a_redis_that_evicts_keys_is_found_and_repaired(command: Command) -> None:
    server = RedisServer("--maxmemory", "3mb", "--maxmemory-policy", "allkeys-lru", "--appendonly", "yes")
    try:
        async with open_storage(server.url()) as storage:
            await plant_stuck_conversations(storage)
            with server.client() as client:
                for number in range(40):
                    client.set(f"other {number}", "x" * 100_000)
                assert int(client.info()["evicted_keys"]) > 0
        policy, evicted = problems(await command("doctor", "--storage", server.url(), "--json"))
        assert "may evict records and claims: maxmemory-policy is allkeys-lru -> CONFIG SET maxmemory-policy" in policy
        assert "keys since its start -> some of them may have been records" in evicted
        with server.client() as client:
            client.config_set("maxmemory-policy", "noeviction")
            client.config_resetstat()
        assert problems(await command("doctor", "--storage", server.url(), "--json")) == []
    finally:
        server.stop()
