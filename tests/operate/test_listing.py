"""Counts, positions of lists and leases, on every backend."""

from __future__ import annotations

import pytest

from stepwell.errors import Unsupported
from stepwell.fsm import FSM, Flow, state
from stepwell.operate.counts import all_counts, state_counts
from stepwell.operate.record import show
from stepwell.operate.records import RecordFilter, listed
from stepwell.record import Place, State
from stepwell.slot import Slot
from stepwell.storage.listing import Beside
from stepwell.testing import Clock
from tests.backends import Backend

pytestmark = pytest.mark.every_backend


class Order(Flow, name="order"):
    item = state(to=[])
    default_state = item


async def test_counts_are_those_of_a_scan_without_expired_records(backend: Backend, clock: Clock) -> None:
    storage = backend.storage(clock=clock)
    await storage.init("gone", ttl=10)
    await storage.set_state("gone", 1, State("a", "x"))
    await storage.set_state("shop", 1, State("a", "x"))
    clock.advance(100)
    await storage.set_state("shop", 2, State("a", "x"))
    await storage.set_state("shop", 3, State("a", None))
    # A storage keeps every name. Only the public functions refuse control characters.
    async with Slot(storage, "shop", 4) as slot:
        slot.place = Place("b\\n", "x\0")
        await slot.commit()
    await storage.set_state("shop", 5, State())
    await storage.set_state("shop", 6, State("a", "x"))
    await storage.clear("shop", 6)
    found, whole = await state_counts(storage, limit=100)
    start = clock() - 100
    assert whole
    assert {each.bot for each in found} == {"shop"}
    assert [(each.flow, each.state, each.records, each.oldest - start) for each in found] == [
        (None, None, 1, 100),
        ("a", None, 1, 100),
        ("a", "x", 2, 0),
        ("b\\n", "x\0", 1, 100),
    ]
    quick = await all_counts(storage, limit=100)
    assert [each[:4] for each in quick.states] == [each[:4] for each in found]


async def test_a_list_continues_behind_a_key_that_need_not_exist(backend: Backend) -> None:
    storage = backend.storage()
    for number in range(20):
        await storage.set_state("shop", number, State("a", "x", {"n": number}))
    for wanted in (RecordFilter(), RecordFilter(state="x"), RecordFilter(flow="a")):
        keys = [each.record.key async for each in listed(storage, "shop", wanted)]
        assert sorted(map(int, keys)) == list(range(20))
        rest = [each.record.key async for each in listed(storage, "shop", wanted, after=keys[9])]
        assert rest == keys[10:]
    await storage.clear("shop", int(keys[9]))
    assert [each.record.key async for each in listed(storage, "shop", RecordFilter(), after=keys[9])] == keys[10:]


async def test_a_held_record_shows_how_long_its_lease_lasts(backend: Backend) -> None:
    storage = backend.storage()
    await storage.set_state("shop", 1, State("a", "x"))
    assert (await show(storage, "shop", 1)).held is None
    async with Slot(storage, "shop", 1, lease=30.0):
        held = (await show(storage, "shop", 1)).held
        assert held is not None
        assert 20 < held <= 30
        assert (await storage.beside(storage.address("shop", 2))) == Beside()
    assert (await show(storage, "shop", 1)).held is None


async def test_a_record_shows_its_holder_and_how_many_handled_updates_it_remembers(backend: Backend) -> None:
    storage = backend.storage()
    fsm = FSM("shop", storage=storage, flows=[Order], run_timers=False, key=lambda update: 1)
    for update_id in (101, "a b", 102):
        async with fsm.conversation({"update_id": 1}, update_id=update_id) as ctx:
            ctx.start_flow(Order)
    found = await show(storage, "shop", 1)
    assert (found.handled, found.last_handled, found.holder) == (3, "102", None)
    async with Slot(storage, "shop", 1), Slot(storage, "shop", 2):
        beside = await storage.beside(storage.address("shop", 1))
        assert (beside.holder, bool(beside.memo)) == ((await show(storage, "shop", 1)).holder, True)
        other = await storage.beside(storage.address("shop", 2))
        assert (other.memo, other.holder not in (None, beside.holder)) == (None, True)


async def test_a_storage_without_these_methods_is_read_in_pages(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*arguments: object, **options: object) -> object:
        raise Unsupported("Custom", "do this")

    storage = backend.storage()
    for name in ("counts", "position", "beside"):
        monkeypatch.setattr(type(storage), name, unsupported)
    for number in range(3):
        await storage.set_state("shop", number, State("a", "x"))
    found, whole = await state_counts(storage, limit=100)
    assert ([each.records for each in found], whole) == ([3], True)
    found, whole = await state_counts(storage, limit=2)
    assert ([each.records for each in found], whole) == ([2], False)
    keys = [each.record.key async for each in listed(storage, "shop", RecordFilter())]
    assert [each.record.key async for each in listed(storage, "shop", RecordFilter(), after=keys[0])] == keys[1:]
    assert (await show(storage, "shop", 1)).held is None
