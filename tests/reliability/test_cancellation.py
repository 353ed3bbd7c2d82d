"""Cancellation leaves no open transaction, no mixed results, and no claim held beyond its lease."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from stepwell import State, Storage
from stepwell.errors import LeaseLost
from stepwell.record import Change
from stepwell.slot import Slot
from stepwell.storage import Apply, Guard, Release
from tests.backends import Backend
from tests.reliability.dose import dose, seeded
from tests.reliability.roles import BOT
from tests.until import yields

#: Long enough that it does not expire on a busy machine.
LEASE = 2.0


async def hold_and_commit(storage: Storage, key: int, number: int) -> None:
    async with Slot(storage, BOT, key, lease=LEASE) as slot:
        slot.data = {"number": number, "again": number}
        await slot.commit()


async def hold_and_leave(storage: Storage, key: int, number: int) -> None:
    async with Slot(storage, BOT, key, lease=LEASE):
        pass


async def replace(storage: Storage, key: int, number: int) -> None:
    await storage.set_state(BOT, key, State(data={"number": number, "again": number}))


async def merge(storage: Storage, key: int, number: int) -> None:
    await storage.update_data(BOT, key, {"number": number, "again": number})


async def read(storage: Storage, key: int, number: int) -> None:
    await storage.get_state(BOT, key)


async def clear(storage: Storage, key: int, number: int) -> None:
    await storage.clear(BOT, key)


async def scan(storage: Storage, key: int, number: int) -> None:
    async for _ in storage.scan(BOT):
        pass


CALLS: list[Callable[[Storage, int, int], Awaitable[None]]] = [
    hold_and_commit,
    hold_and_leave,
    replace,
    merge,
    read,
    clear,
    scan,
]


async def test_a_call_may_be_cancelled_at_any_point(shared_backend: Backend) -> None:
    choose = seeded()
    url = shared_backend.place()
    storage = shared_backend.storage(url, sweep_every=None)
    other = shared_backend.storage(url, sweep_every=None)
    await storage.set_state(BOT, "known", State("flow", "state", {"answer": 42}))
    await other.open()
    cancelled = finished = 0
    number = 0
    # Each call is cancelled a little later each time, until it ends before the cancellation.
    turns = dict.fromkeys(CALLS, 0)
    while cancelled < dose("CANCELLATIONS", 200, 5000):
        for call in CALLS:
            number += 1
            key = number % 10
            task = asyncio.ensure_future(call(storage, key, number))
            # Concurrent calls must get their own results.
            beside = asyncio.ensure_future(storage.get_state(BOT, "known"))
            writing = asyncio.ensure_future(storage.update_data(BOT, "beside", {"number": number}))
            await yields(turns[call] % 25)
            if choose.random() < 0.5:
                await asyncio.sleep(choose.uniform(0, 0.0008))
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                cancelled += 1
                turns[call] += 1
            else:
                finished += 1
                turns[call] = 0
            assert await beside == State("flow", "state", {"answer": 42})
            assert await writing == {"number": number}
            await settled(storage, key)
            await unharmed(storage, other, key)
    print(f"{cancelled} cancelled, {finished} finished before that")
    assert finished > 5


async def settled(storage: Storage, key: int) -> None:
    """Wait until every operation that was sent before the cancellation has been applied or refused.

    Claims and writes have separate queues, so one of each is sent after them. Neither changes anything.
    """
    address = storage.address(BOT, key)
    await storage.perform(Release(address, "no token"))
    with pytest.raises(LeaseLost):
        await storage.perform(Apply(address, Change(write=storage.ids()), Guard(token="no token", base="")))


async def unharmed(storage: Storage, other: Storage, key: int) -> None:
    # Another storage can write: no transaction is open, and no claim outlives its lease.
    async with Slot(other, BOT, key, wait=LEASE + 5) as slot:
        if slot.found:
            assert slot.data["number"] == slot.data["again"]
        slot.data = {"number": 0, "again": 0}
        await slot.commit()
    assert await storage.get_data(BOT, key) == {"number": 0, "again": 0}
    assert not storage.waiters
