"""Updates of runs: a signal whose sender waits for the run's reply."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell import Storage
from stepwell.errors import InvalidAnswer, InvalidOption, RunCancelled, RunFailed, RunFinished, UsageError
from stepwell.nodes import Node, NodeFlow, RunHandle, Wait, linear, parallel, step, worker
from stepwell.record import RUNS
from stepwell.storage.operations import Get
from tests.backends import Backend
from tests.constants import Constants
from tests.nodes.test_submit import parked
from tests.until import until


@pytest.fixture
async def storage(backend: Backend) -> Storage:
    storage = backend.storage()
    await storage.open()
    return storage


class Add(Wait):
    """Adds the lines of updates to a cart, until one is empty."""

    def __init__(self, **options: Any) -> None:
        super().__init__("add", signal="add", **options)

    def post(self, shared: dict[str, Any], question: Any, line: Any) -> str:
        if line == "refused":
            raise ValueError("not this one")
        lines = shared.setdefault("lines", [])
        if not line:
            return "done"
        lines.append(line)
        step().reply({"lines": len(lines)})
        return "more"


def cart(storage: Storage, **options: Any) -> NodeFlow:
    add, pay = Add(**options), Node(name="pay", inline=True)
    add - "more" >> add
    add - "done" >> pay
    return NodeFlow(add, name="cart", storage=storage)


async def submitted(flow: NodeFlow) -> RunHandle:
    handle = await flow.submit({}, flow_id="r")
    await parked(handle)
    return handle


@pytest.mark.every_backend
async def test_an_update_returns_the_reply_of_the_run(storage: Storage) -> None:
    flow = cart(storage)
    async with worker([flow]):
        handle = await submitted(flow)
        assert await flow.update("r", "add", "pen") == {"lines": 1}
        assert await flow.update("r", "add", "ink", timeout=60) == {"lines": 2}
        assert await flow.update("r", "add", "") is None
        assert await handle.result(timeout=60) == {"lines": ["pen", "ink"]}
        with pytest.raises(RunFinished):
            await flow.update("r", "add", "late")


async def test_updates_at_once_are_applied_in_turn_and_each_gets_its_own_reply(storage: Storage) -> None:
    flow = cart(storage)
    async with worker([flow]):
        await submitted(flow)
        replies = await asyncio.gather(*(flow.update("r", "add", str(number)) for number in range(8)))
    assert sorted(reply["lines"] for reply in replies) == list(range(1, 9))


async def test_an_update_is_stored_until_the_run_gets_to_its_wait(storage: Storage) -> None:
    flow = cart(storage)
    await flow.submit({}, flow_id="r")
    with pytest.raises(TimeoutError, match=r"the update 'add' of run 'r' has no reply after 0.05 s; it is stored"):
        await flow.update("r", "add", "early", timeout=0.05)
    update = asyncio.create_task(flow.update("r", "add", "pen"))
    async with worker([flow]):
        assert await update == {"lines": 2}


async def test_the_last_update_of_a_run_has_a_reply_too(storage: Storage) -> None:
    class Close(Wait):
        async def post(self, shared: dict[str, Any], question: Any, value: Any) -> None:
            await asyncio.sleep(0)
            step().reply("closed")

    flow = linear(Close("close", signal="close"), name="closing", storage=storage)
    async with worker([flow]):
        handle = await submitted(flow)
        assert await flow.update("r", "close") == "closed"
        await handle.result(timeout=60)


async def test_an_update_in_a_branch_has_a_reply_while_the_other_branch_waits(storage: Storage) -> None:
    flow = linear(parallel(Add(), Wait("other")), name="branches", storage=storage)
    async with worker([flow]):
        await submitted(flow)
        update = asyncio.create_task(flow.update("r", "add", ""))
        assert await asyncio.wait_for(update, 60) is None
        assert [wait.node for wait in (await flow.status("r")).waits] == ["Parallel/1/other"]


async def test_only_the_last_replies_are_kept(storage: Storage, constants: Constants) -> None:
    constants(replies=3)
    flow = cart(storage)
    async with worker([flow]):
        await submitted(flow)
        for number in range(6):
            await flow.update("r", "add", str(number))
    stored = await storage.perform(Get(storage.address(RUNS, "r"), parts=True))
    assert sum(name.startswith("reply::") for name in stored.parts) == 3


async def test_an_update_raises_what_happens_to_the_run_instead_of_a_reply(storage: Storage) -> None:
    flow = cart(storage)
    async with worker([flow]):
        handle = await submitted(flow)
        with pytest.raises(RunFailed, match="not this one"):
            await flow.update("r", "add", "refused")
        with pytest.raises(InvalidOption, match="did you mean 'add'"):
            await flow.update("r", "ad", "pen")
        await until(lambda: _cancelled(flow))
        with pytest.raises(RunCancelled):
            await flow.update("r", "add", "pen")
    assert (await handle.status()).status == "cancelled"


async def _cancelled(flow: NodeFlow) -> bool:
    await flow.cancel("r")
    return (await flow.status("r")).status == "cancelled"


async def test_an_update_that_its_wait_does_not_accept_is_refused(storage: Storage) -> None:
    flow = cart(storage, accepts=str)
    async with worker([flow]):
        await submitted(flow)
        with pytest.raises(InvalidAnswer):
            await flow.update("r", "add", 7)
        assert await flow.update("r", "add", "pen") == {"lines": 1}


async def test_an_answer_in_place_of_an_update_needs_no_reply(storage: Storage) -> None:
    flow = cart(storage)
    async with worker([flow]):
        handle = await submitted(flow)
        assert await handle.answer("pen")
        assert await flow.update("r", "add", "ink") == {"lines": 2}


async def test_a_reply_needs_a_step_of_a_stored_run(storage: Storage) -> None:
    class Reply(Node):
        def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> None:
            step().reply("x")

    with pytest.raises(UsageError, match="outside its step"):
        await linear(Reply, name="plain").run({})
