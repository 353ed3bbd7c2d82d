"""The records of the processes that run bots and workers."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from stepwell.fsm import FSM, Flow, state
from stepwell.nodes import Node, NodeFlow, worker
from stepwell.operate.processes import ProcessView, last_hour, processes
from stepwell.record import PROCESSES, Address
from stepwell.storage import KeyValueStorage, Storage, copy_records, open_storage
from tests.backends import Backend
from tests.constants import Constants
from tests.until import until


class Order(Flow, name="order"):
    item = state(to=[])
    default_state = item


class DictStorage(KeyValueStorage):
    """Keeps its texts in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[Address, str] = {}

    async def read(self, address: Address) -> str | None:
        return self.texts.get(address)

    async def write(self, address: Address, text: str) -> None:
        self.texts[address] = text

    async def delete(self, address: Address) -> None:
        self.texts.pop(address, None)


@pytest.fixture(autouse=True)
def quick(constants: Constants) -> None:
    constants(presence_first=0.01, presence_every=0.02)


async def seen(storage: Storage, wanted: Any = lambda found: True) -> ProcessView:
    """Wait for a process."""

    async def found() -> list[ProcessView]:
        return [each for each in await processes(storage, limit=10) if wanted(each)]

    return (await until(found))[0]


async def test_a_bot_that_runs_is_seen_with_its_updates_and_errors(backend: Backend) -> None:
    storage = backend.storage()
    fsm = FSM("shop", storage=storage, flows=[Order], run_timers=False, key=lambda update: 1)
    async with fsm:
        found = await seen(storage)
        assert (found.kind, found.names, found.pid > 0, bool(found.host)) == ("bot", ["shop"], True, True)
        assert found.started_at <= found.seen_at
        busy = asyncio.create_task(seen(storage, lambda found: found.done > 0 and found.failed > 0))
        while not busy.done():
            with pytest.raises(ZeroDivisionError):
                async with fsm.conversation({"update_id": 1}):
                    raise ZeroDivisionError
            await asyncio.sleep(0)
        found = await busy
        assert found.retried == 0
        async with fsm.conversation(key=2) as ctx:
            ctx.start_flow(Order)


async def test_a_worker_that_runs_is_seen_with_its_runs(backend: Backend) -> None:
    storage = backend.storage()
    flow = NodeFlow(Node(), name="packing")
    async with worker([flow], storage=storage):
        assert (await seen(storage)).names == ["packing"]
        busy = asyncio.create_task(seen(storage, lambda found: found.done > 0))
        while not busy.done():
            await (await flow.submit({}, storage=storage)).result(timeout=30)
        assert (await busy).kind == "worker"


async def test_a_process_is_seen_only_if_it_writes_its_presence() -> None:
    async with open_storage("memory://") as storage:
        flow = NodeFlow(Node(), name="packing")
        shop = FSM("shop", storage=storage, flows=[Order], run_timers=False, presence=False)
        async with shop, worker([flow], storage=storage, presence=False):
            async with FSM("seen", storage=storage, flows=[Order], run_timers=False):
                await seen(storage)
                assert {name for each in await processes(storage, limit=10) for name in each.names} == {"seen"}
            # A process that stops is not seen any more.
            assert await processes(storage, limit=10) == []


async def test_a_process_that_ended_is_forgotten(constants: Constants) -> None:
    constants(presence_kept=0.05, presence_history_kept=0.05)
    async with open_storage("memory://", sweep_every=0.02) as storage:
        async with FSM("shop", storage=storage, flows=[Order], run_timers=False):
            await seen(storage)
        await until(storage.namespaces, lambda it: PROCESSES not in it)


@pytest.mark.every_backend
async def test_what_processes_have_done_is_kept_by_minute(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000_000_020.0
    async with backend.storage() as storage:
        monkeypatch.setattr(storage, "clock", lambda: now)

        async def minutes() -> list[tuple[float, float, float]]:
            found = (await last_hour(storage, limit=10)).minutes.get("bot", [])
            return [(each.at - 1_000_000_000, each.done, each.failed) for each in found]

        async with FSM("shop", storage=storage, flows=[Order], run_timers=False, key=lambda update: 1) as fsm:
            await until(minutes, lambda found: found == [(20, 0, 0)])
            async with fsm.conversation({"update_id": 1}) as ctx:
                ctx.start_flow(Order)
            now += 120
            with pytest.raises(ZeroDivisionError):
                async with fsm.conversation({"update_id": 2}):
                    raise ZeroDivisionError
            await until(minutes, lambda found: len(found) == 2)
        # The last write of a process has all that it has done.
        hour = await last_hour(storage, limit=10)
        assert sum(each.done for each in hour.minutes["bot"]) == 2
        assert [each.failed for each in hour.minutes["bot"]] == [0, 1]
        assert hour.minutes["bot"][-1].took is not None
        now += 3600
        assert await minutes() == []


@pytest.mark.every_backend
async def test_a_process_that_died_is_told_from_one_that_was_stopped(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, constants: Constants
) -> None:
    async with backend.storage() as storage:
        async with worker([NodeFlow(Node(), name="packing")], storage=storage):
            await seen(storage)
            assert (await last_hour(storage, limit=10)).stopped == []
        (stopped,) = (await last_hour(storage, limit=10)).stopped
        assert (stopped.kind, stopped.names, stopped.ended) == ("worker", ["packing"], True)
        constants(presence_kept=0.05, presence_every=60)
        died = worker([NodeFlow(Node(), name="mailing")], storage=storage)
        async with died:
            await seen(storage)
            # As a process that is killed: it writes nothing any more.
            assert died._presence._task is not None
            died._presence._task.cancel()
            later = time.time() + 3000
            monkeypatch.setattr(storage, "clock", lambda: later)
            found = await until(lambda: last_hour(storage, limit=10), lambda found: len(found.stopped) == 2)
            assert [(each.names, each.ended) for each in found.stopped] == [(["mailing"], False), (["packing"], True)]


async def test_nothing_is_written_to_a_storage_that_cannot_remove_it() -> None:
    storage = DictStorage()
    async with FSM("shop", storage=storage, flows=[Order], run_timers=False):
        await asyncio.sleep(0.05)
    assert not [address for address in storage.texts if address.namespace == PROCESSES]


async def test_processes_are_not_copied() -> None:
    async with open_storage("memory://") as source, open_storage("memory://") as target:
        async with FSM("shop", storage=source, flows=[Order], run_timers=False) as fsm:
            await seen(source)
            async with fsm.conversation(key=1) as ctx:
                ctx.start_flow(Order)
            await copy_records(source, target)
        assert await target.namespaces() == ["shop"]
