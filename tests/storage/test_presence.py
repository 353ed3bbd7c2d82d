"""The records of the processes that run bots and workers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell.fsm import FSM, Flow, state
from stepwell.nodes import Node, NodeFlow, worker
from stepwell.operate.processes import ProcessView, processes
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


async def test_a_process_that_ended_is_forgotten(constants: Constants) -> None:
    constants(presence_kept=0.05)
    async with open_storage("memory://", sweep_every=0.02) as storage:
        async with FSM("shop", storage=storage, flows=[Order], run_timers=False):
            await seen(storage)
        await until(storage.namespaces, lambda it: PROCESSES not in it)


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
