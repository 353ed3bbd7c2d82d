"""Promises of the methods for operators: counts, leases, positions in a list, and settings."""

from __future__ import annotations

import json
from typing import Any

from stepwell.record import DAY, Change, State
from stepwell.storage import Apply, Claimed, Query, Storage
from stepwell.testing.clock import Clock
from stepwell.testing.contract.suite import BOT, KEY, Suite, apply, claim, release

#: Queries for which a backend may use different indexes.
QUERIES: list[dict[str, Any]] = [{}, {"flow": "f"}, {"state": "s"}, {"flow": "f", "state": "s"}, {"tag": "user:1"}]


class CountPromises(Suite):
    async def test_counts_are_the_numbers_of_records_in_each_state(self, storage: Storage, clock: Clock) -> None:
        assert await storage.counts() == []
        places: list[tuple[Any, Any]] = [("f", "s"), ("f", "t"), ("g", "s"), ("f", None), (None, "s"), (None, None)]
        for number, place in enumerate(places):
            for key in range(number + 1):
                await storage.set_state(BOT, (number, key), State(*place))
        expected = {(BOT, *place): number + 1 for number, place in enumerate(places)}
        for name in ("bo", "bot2", 'odd:{%} "é\U0001f600'):
            await storage.set_state(name, 1, State("f", "s"))
            expected[storage.address(name, 1).namespace, "f", "s"] = 1
        for exact in (False, True):
            assert {row[:3]: row.records for row in await storage.counts(oldest=exact)} == expected

    async def test_counts_follow_a_record_from_state_to_state(self, storage: Storage, clock: Clock) -> None:
        await storage.set_state(BOT, "cleared", State("f", "s"))
        await storage.clear(BOT, "cleared")
        await storage.set_state(BOT, "cleared without a state", State(None, None, {"a": 1}))
        await storage.clear(BOT, "cleared without a state")
        await claim(storage, "A", "claimed", lease=100)
        await apply(storage, "expired", head=("f", "s"), expiry=10.0)
        await apply(storage, "held", head=("f", "s"), expiry=10.0)
        await storage.set_state(BOT, "moved", State("f", "s"))
        await apply(storage, "moved", head=("f", "t"))
        held = await claim(storage, "A", "held", lease=100)
        assert isinstance(held, Claimed)
        clock.advance(10)
        for exact in (False, True):
            found = {row[1:3]: row.records for row in await storage.counts(oldest=exact)}
            assert found == {("f", "t"): 1}, "expired records count although they are not removed yet"
        await apply(storage, "held", held=("A", held), head=("f", "s"), expiry=10.0)
        assert {row[1:3]: row.records for row in await storage.counts()} == {("f", "t"): 1, ("f", "s"): 1}
        clock.advance(10)
        await storage.sweep()
        assert {row[1:3]: row.records for row in await storage.counts()} == {("f", "t"): 1}

    async def test_counts_with_the_oldest_write_have_its_time(self, storage: Storage, clock: Clock) -> None:
        for key in range(3):
            await storage.set_state(BOT, key, State("f", "s"))
            clock.advance(10)
        await storage.set_state(BOT, 3, State("f", "t"))
        await apply(storage, 0, data={"a": 1})
        found = await storage.counts(oldest=True)
        assert {row.state: (row.records, row.more) for row in found} == {"s": (3, False), "t": (1, False)}
        assert {row.state: clock() - (row.oldest or 0) for row in found} == {"s": 20, "t": 0}


class InspectionPromises(Suite):
    async def test_a_list_continues_behind_any_address(self, storage: Storage) -> None:
        for key in range(12):
            await apply(storage, key, head=("f", "s" if key % 2 else "t"), tags=("user:1",) if key % 3 else ())
        for filters in QUERIES:
            query = Query(BOT, **filters)
            addresses = [address for address, _ in (await storage.page(query, None, 100)).records]
            assert len(addresses) in (6, 8, 12)
            for number, address in enumerate(addresses):
                records, _ = await storage.page(query, storage.position(address), 100)
                assert [found for found, _ in records] == addresses[number + 1 :], filters

    async def test_a_list_continues_behind_an_address_without_a_record(self, storage: Storage) -> None:
        for key in range(12):
            await storage.set_state(BOT, key, State("f", "s"))
        for filters in QUERIES[:-1]:
            addresses = [address for address, _ in (await storage.page(Query(BOT, **filters), None, 100)).records]
            middle = len(addresses) // 2
            gone = addresses.pop(middle)
            await storage.perform(Apply(gone, Change(write=storage.ids(), delete=True)))
            records, _ = await storage.page(Query(BOT, **filters), storage.position(gone), 100)
            assert [found for found, _ in records] == addresses[middle:], filters

    async def test_a_lease_is_read_with_its_holder_and_the_time_left(self, storage: Storage, clock: Clock) -> None:
        address = storage.address(BOT, KEY)
        assert await storage.beside(address) == (None, 0, None)
        await claim(storage, "A", lease=10)
        assert await storage.beside(address) == ("A", 10, None)
        assert await storage.beside(storage.address(BOT, "other")) == (None, 0, None)
        clock.advance(4.5)
        assert await storage.beside(address) == ("A", 5.5, None)
        await claim(storage, "A", lease=10, renew=True)
        assert await storage.beside(address) == ("A", 10, None)
        clock.advance(10)
        assert await storage.beside(address) == (None, 0, None)
        await claim(storage, "B", lease=10)
        await release(storage, "B")
        assert await storage.beside(address) == (None, 0, None)

    async def test_a_memo_is_read_without_a_claim(self, storage: Storage, clock: Clock) -> None:
        address = storage.address(BOT, KEY)
        await apply(storage, data={}, memo=["m"], held=("A", await claim(storage, "A")))
        memo = (await storage.beside(address)).memo
        assert memo is not None
        assert storage.seal(address).value("m", "", memo) == ["m"]
        await storage.clear(BOT, KEY)
        assert (await storage.beside(address)).memo == memo
        assert (await storage.beside(storage.address(BOT, "other"))).memo is None
        clock.advance(DAY)
        assert (await storage.beside(address)).memo is None

    async def test_settings_name_the_backend_and_can_be_printed(self, storage: Storage) -> None:
        settings = await storage.settings()
        assert isinstance(settings.get("backend"), str)
        # An object without a JSON form becomes a text here.
        assert json.loads(json.dumps(settings, default=str)) == settings
