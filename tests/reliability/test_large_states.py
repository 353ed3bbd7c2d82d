"""Large states: the loop is not blocked, leases are renewed, and unchanged fields are not encoded again.

The tests compare the longest callback of the loop with the encoding of the same state, both in processor time of one
thread, so that neither the load nor the speed of the machine matters.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from typing import Any

import pytest

from stepwell import MemoryStorage, StateStorage
from stepwell.codec import large, values
from stepwell.errors import Unstorable
from stepwell.fsm import FSM, Flow
from stepwell.nodes import Node, linear
from stepwell.nodes.run import lease
from stepwell.record import Limits
from stepwell.slot import Slot
from stepwell.storage import Claim
from tests.constants import Constants


class Callbacks:
    """The longest callback of the loop, in seconds of processor time."""

    longest = 0.0

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        run = asyncio.Handle._run

        def timed(handle: asyncio.Handle) -> None:
            begun = time.thread_time()
            run(handle)
            self.longest = max(self.longest, time.thread_time() - begun)

        monkeypatch.setattr(asyncio.Handle, "_run", timed)


def time_of_encoding(value: Any) -> float:
    begun = time.thread_time()
    values.encode(value, Limits())
    return time.thread_time() - begun


@pytest.fixture(autouse=True)
def no_collections() -> Iterator[None]:
    # A garbage collection may happen at any time, and takes long with many objects.
    gc.disable()
    yield
    gc.enable()


def records(size: int) -> list[Any]:
    return [{"id": n, "name": f"Ann {n}", "tags": ["a", "b"], "pair": (n, 1.5)} for n in range(size // 80)]


class Count(Node):
    def post(self, shared: Any, prep_res: Any, exec_res: Any) -> None:
        shared["n"] = shared.get("n", 0) + 1


class Fail(Node):
    def post(self, shared: Any, prep_res: Any, exec_res: Any) -> None:
        raise LookupError


async def test_a_large_run_does_not_block_the_loop_and_keeps_its_lease(
    monkeypatch: pytest.MonkeyPatch, constants: Constants
) -> None:
    # Long enough for a machine that does not run this process for a second.
    constants(lease=3.0)
    storage = MemoryStorage(sweep_every=None)
    perform, renewals = storage.perform, 0

    def counted(operation: Any) -> Any:
        nonlocal renewals
        renewals += isinstance(operation, Claim) and operation.renew
        return perform(operation)

    monkeypatch.setattr(storage, "perform", counted)
    flow = linear(Count(name="a"), Count(name="b"), Fail(name="c"), name="large", storage=storage)
    shared = {"records": records(8_000_000), "text": "x" * 2_000_000}
    whole = time_of_encoding(shared)
    # Later callbacks are timed: this one has just created the state.
    await asyncio.sleep(0)
    seen = Callbacks(monkeypatch)
    begun = time.monotonic()
    with pytest.raises(LookupError):
        await flow.run(shared, flow_id="r")
    assert renewals or time.monotonic() - begun < lease.LEASE / 2, "the lease was not renewed in time"
    with pytest.raises(LookupError):
        await flow.resume("r")
    state = await StateStorage(storage).get_state("r")
    await StateStorage(storage).update_state("copy", state)
    assert len(state["records"]) == 100_000
    # A state that nobody uses any more is freed in one call, which takes a twentieth.
    assert seen.longest < whole / 6


class Notes(Flow, name="notes"):
    pass


async def test_a_conversation_within_its_limit_does_not_block_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = MemoryStorage(sweep_every=None)
    fsm = FSM("bot", storage=storage, flows=[Notes], run_timers=False)
    given = [records(200_000) for _ in range(4)]
    whole = min(map(time_of_encoding, given))
    seen = Callbacks(monkeypatch)
    longest: list[list[float]] = [[] for _ in given]
    for key in range(3):
        for update, each in enumerate(given):
            await asyncio.sleep(0)
            seen.longest = 0.0
            async with fsm.conversation(key=key, update_id=update) as ctx:
                ctx.start_flow(Notes)
                ctx.update_data({"records": each, "update": update})
            await storage.get_data("bot", key)
            longest[update].append(seen.longest)
    # The least of three conversations: processor time includes time that the host of a virtual machine takes away.
    assert max(map(min, longest)) < whole / 3


async def test_an_unchanged_large_field_is_not_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = 0
    encode = values.encode

    def counted(value: Any, *args: Any, **options: Any) -> bytes:
        nonlocal encoded
        encoded += large.is_large(value)
        return encode(value, *args, **options)

    monkeypatch.setattr(values, "encode", counted)
    storage = MemoryStorage(sweep_every=None)
    async with Slot(storage, "bot", 1) as slot:
        slot.data = {"records": records(200_000), "n": 0}
        await slot.commit(keep=True)
        for n in range(3):
            slot.data["n"] = n
            await slot.commit(keep=True)
    async with Slot(storage, "bot", 1) as slot:
        slot.data["n"] = "loaded"
        await slot.commit(keep=True)
    assert encoded == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["records"][1999]["tags"].append("c"),
        lambda data: data["records"][0].update(id=False),
        lambda data: data["records"][1].update(id=1.0),
        lambda data: data["records"][0]["tags"].reverse(),
        lambda data: data["records"][0].update(pair=[0, 1.5]),
        lambda data: data["records"].__setitem__(0, {"tags": ["a", "b"], "id": 0}),
        lambda data: data["records"].clear(),
        lambda data: data.pop("records"),
    ],
)
async def test_every_change_inside_a_large_field_is_written(change: Any) -> None:
    storage = MemoryStorage(sweep_every=None)
    async with Slot(storage, "bot", 1) as slot:
        slot.data = {"records": records(200_000)}
        await slot.commit(keep=True)
        change(slot.data)
        assert await slot.commit(keep=True)
        again = slot.data
    stored = await storage.get_data("bot", 1)
    assert repr(stored) == repr(again)
    async with Slot(storage, "bot", 1) as slot:
        assert not await slot.commit()


async def test_a_field_that_another_task_changes_during_commits_is_stored_by_the_last_one() -> None:
    storage = MemoryStorage(sweep_every=None)
    async with Slot(storage, "bot", 1) as slot:
        slot.data = {"table": {str(n): [n] for n in range(15_000)}, "n": 0}
        done = False

        async def change() -> None:
            number = 0
            while not done:
                number += 1
                slot.data["table"][f"x{number % 50}"] = [number]
                slot.data["n"] = number
                await asyncio.sleep(0)

        changing = asyncio.create_task(change())
        for _ in range(5):
            await slot.commit(keep=True)
        done = True
        await changing
        await slot.commit(keep=True)
        assert await storage.get_data("bot", 1) == slot.data


async def test_an_unsupported_value_in_a_large_field_is_refused_with_its_path() -> None:
    storage = MemoryStorage(sweep_every=None)
    state = {"records": [*records(200_000), {"odd": object()}]}
    with pytest.raises(Unstorable, match=r"records\[2500\]\.odd"):
        await linear(Count(), Count(name="b"), name="odd", storage=storage).run(state)
