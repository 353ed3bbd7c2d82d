"""A layer that Stepwell does not know keeps its own extension and timers in a record, on every backend."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

from stepwell import Storage
from stepwell.codec.json import replaced
from stepwell.dispatch import serve_timers
from stepwell.slot import Slot
from stepwell.storage import Get
from stepwell.testing import Clock
from tests.backends import Backend
from tests.until import until

BOT, KEY = "kitchen", "egg"


async def boil(storage: Storage, seconds: float) -> None:
    """Put an egg on, with a timer and what this layer knows of it."""
    async with Slot(storage, BOT, KEY) as slot:
        slot.flow, slot.state = "egg", "boiling"
        slot.timers = {"done": slot.time() + seconds, "cold": slot.time() + 10 * seconds}
        slot.extension = json.dumps({"turns": 0, "notes": ["soft"]})
        slot.head = replaced(slot.head, indexed=("egg", "hot"))
        await slot.commit()


async def test_a_record_has_the_timers_and_the_extension_of_an_invented_layer(backend: Backend, clock: Clock) -> None:
    storage = backend.storage(clock=clock)
    await boil(storage, 180)
    address = storage.address(BOT, KEY)
    stored = await storage.perform(Get(address))
    opened = storage.seal(address).open_head(stored.head)
    assert (opened.place.flow, opened.place.state, json.loads(opened.extension)["notes"]) == (
        "egg",
        "boiling",
        ["soft"],
    )
    assert [entry.key async for entry in storage.scan(BOT, state="hot")] == [KEY]
    assert await storage.due(BOT) == []
    clock.advance(180)
    (due,) = await storage.due(BOT)
    async with Slot(storage, BOT, KEY) as slot:
        assert [name for name, at in slot.timers.items() if at <= slot.now] == ["done"]
        slot.state, slot.timers = "eaten", {"cold": slot.timers["cold"]}
        await slot.commit()
    assert await storage.due(BOT) == []
    clock.advance(10 * 180)
    assert [each.address for each in await storage.due(BOT)] == [due.address] == [address]


async def test_deleting_a_record_removes_timers_and_extension(backend: Backend, clock: Clock) -> None:
    storage = backend.storage(clock=clock)
    await boil(storage, 1)
    async with Slot(storage, BOT, KEY) as slot:
        slot.delete()
        await slot.commit()
    clock.advance(100)
    assert await storage.due(BOT) == []
    async with Slot(storage, BOT, KEY) as slot:
        assert (slot.found, dict(slot.timers), slot.extension) == (False, {}, "")


async def test_the_deadline_of_a_record_follows_its_timers_at_each_commit(backend: Backend, clock: Clock) -> None:
    storage = backend.storage(clock=clock)
    await boil(storage, 60)
    async with Slot(storage, BOT, KEY) as slot:
        slot.data["salt"] = True
        await slot.commit(keep=True)
        before = slot.deadline
        slot.timers = {**slot.timers, "look": slot.time() + 5}
        await slot.commit(keep=True)
        assert (before, slot.deadline) == (clock() + 60, clock() + 5)
        slot.timers = {}
        await slot.commit()
    clock.advance(1000)
    assert await storage.due(BOT) == []


async def test_the_owner_of_an_invented_timer_is_called_in_one_of_two_processes(backend: Backend, clock: Clock) -> None:
    storage = backend.storage(clock=clock)
    served: list[str] = []

    async def done(slot: Slot) -> Callable[[], Awaitable[object]]:
        slot.state, slot.timers = "eaten", {}
        await slot.commit()

        async def serve() -> None:
            served.append(slot.state or "")

        return serve

    await boil(storage, 180)
    async with serve_timers(storage, BOT, {"done": done}), serve_timers(storage, BOT, {"done": done}):
        clock.advance(180)
        await until(lambda: served)
    assert served == ["eaten"]
    assert await storage.due(BOT) == []
