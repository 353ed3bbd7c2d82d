"""Promises of scans, deadlines and sweeping."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stepwell.record import DAY, RUNS, Change, OpenedHead, Place, State
from stepwell.storage import Apply, Claimed, Due, Storage, Taken
from stepwell.testing.clock import Clock
from stepwell.testing.contract.suite import BOT, KEY, Suite, apply, claim, found, listed, memo, release

#: Queries for which a backend may use different indexes. They list the same records in these tests.
QUERIES: list[dict[str, Any]] = [{}, {"flow": "f", "state": "s"}, {"tag": "user:1"}]


class ListingPromises(Suite):
    async def test_a_scan_lists_every_record_of_a_bot_once(self, storage: Storage) -> None:
        for key in range(25):
            await storage.set_state(BOT, (key, "é"), State("f", "s", {"key": key}))
        await storage.set_state("other", 1, State("f", "s"))
        for page in (1, 7, 25, 100):
            entries = [entry async for entry in storage.scan(BOT, page=page)]
            assert sorted(entry.key for entry in entries) == [(key, "é") for key in range(25)]
            assert all(entry.state == State("f", "s", {"key": entry.key[0]}) for entry in entries)
            assert {entry.namespace for entry in entries} == {BOT}

    async def test_a_scan_by_flow_and_state_lists_only_matching_records(self, storage: Storage) -> None:
        places: list[tuple[Any, Any]] = [("f", "s"), ("f", "t"), ("g", "s"), ("f", None), (None, "s"), (None, None)]
        for key, (flow, state) in enumerate(places):
            await storage.set_state(BOT, key, State(flow, state))
        await storage.update_data(BOT, 6, {"a": 1})
        assert sorted(await listed(storage, page=2, flow="f")) == [0, 1, 3]
        assert sorted(await listed(storage, page=2, state="s")) == [0, 2, 4]
        assert sorted(await listed(storage, page=2, flow="f", state="s")) == [0]
        assert sorted(await listed(storage, page=2, flow=None)) == [4, 5, 6]
        assert sorted(await listed(storage, page=2, flow=None, state=None)) == [5, 6]
        assert await listed(storage, page=2, flow="nowhere") == []

    async def test_a_scan_follows_a_record_from_state_to_state(self, storage: Storage) -> None:
        await storage.set_state(BOT, KEY, State("f", "s", {"a": 1}))
        await apply(storage, head=("f", "t"))
        assert await listed(storage, state="s") == []
        assert [entry.state async for entry in storage.scan(BOT, state="t")] == [State("f", "t", {"a": 1})]

    async def test_a_scan_by_tag_lists_only_matching_records(self, storage: Storage) -> None:
        await apply(storage, 1, data={}, tags=("user:1", "chat:1"))
        await apply(storage, 2, data={}, tags=("user:1",))
        await apply(storage, 3, data={}, tags=("user:10",))
        assert {entry.key async for entry in storage.scan(BOT, tag="user:1", page=1)} == {1, 2}
        await apply(storage, 2, data={"a": 1})
        await apply(storage, 1, tags=("chat:1",))
        assert [entry.tags async for entry in storage.scan(BOT, tag="user:1")] == [("user:1",)]
        await storage.clear(BOT, 2)
        assert await listed(storage, tag="user:1") == []

    async def test_names_with_a_common_prefix_are_kept_apart_in_every_list(
        self, storage: Storage, clock: Clock
    ) -> None:
        names = ["bot", "bot2", "bo", "bot:", "bot:2", "bot/2", "bot%", "bot_", "BOT"]
        for name in names:
            address = storage.address(name, name)
            seal = storage.seal(address)
            change = Change(
                write=storage.ids(),
                head=seal.head(OpenedHead(Place("f", "s"))),
                tags=("user:1",),
                deadline=10.0,
                expiry=20.0,
            )
            await storage.perform(Apply(address, change))
        clock.advance(10)
        for name in names:
            address = storage.address(name, name)
            for query in QUERIES:
                assert await listed(storage, name, **query) == [name], query
            assert [entry.address for entry in await storage.due(address.namespace)] == [address]
            assert await storage.traces(address.namespace, "user:1") == [address]
            for tag in ("user", "user:", "user:10"):
                assert await listed(storage, name, tag=tag) == []
                assert await storage.traces(address.namespace, tag) == []
        await storage.clear("bot", "bot")
        assert await listed(storage, "bot") == []
        assert await listed(storage, "bot2") == ["bot2"]

    async def test_every_namespace_with_a_record_is_listed(self, storage: Storage) -> None:
        assert await storage.namespaces() == []
        names = [BOT, "another", 'odd:{%} "é\U0001f600', RUNS]
        for name in names:
            for key in range(3):
                await storage.set_state(name, key, State())
        assert await storage.namespaces() == sorted(storage.address(name, 1).namespace for name in names)

    async def test_the_remains_of_a_cleared_or_expired_record_are_found_by_tag(
        self, storage: Storage, clock: Clock
    ) -> None:
        for key in ("there", "cleared", "expired", "forgotten"):
            held = await claim(storage, "A", key)
            expiry = 10.0 if key == "expired" else None
            await apply(storage, key, data={}, tags=("user:1",), memo=["m"], held=("A", held), expiry=expiry)
        await apply(storage, "other", data={}, tags=("user:2",))
        await storage.clear(BOT, "cleared")
        await apply(storage, "forgotten", delete=True, forget=True)
        clock.advance(11)
        for _ in range(2):
            traces = await storage.traces(BOT, "user:1")
            assert set(traces) == {storage.address(BOT, key) for key in ("there", "cleared", "expired")}
            await storage.sweep()
        assert len(await storage.traces(BOT, "user:1", limit=2)) == 2
        for address in await storage.traces(BOT, "user:1"):
            await storage.perform(Apply(address, Change(write=storage.ids(), delete=True, forget=True)))
        assert await storage.traces(BOT, "user:1") == []
        assert (await claim(storage, "B", "cleared")).memo is None
        await apply(storage, "other", data={}, tags=("user:2",))
        await storage.clear(BOT, "other")
        clock.advance(DAY + 1)
        await storage.sweep()
        assert await storage.traces(BOT, "user:2") == []

    async def test_a_scan_lists_no_tombstones_no_claims_and_no_expired_records(
        self, storage: Storage, clock: Clock
    ) -> None:
        await storage.set_state(BOT, "cleared", State("f", "s"))
        await storage.clear(BOT, "cleared")
        await claim(storage, "A", "claimed", lease=100)
        await apply(storage, "expired", head=("f", "s"), tags=("user:1",), expiry=10.0)
        await storage.set_state(BOT, "there", State("f", "s"))
        clock.advance(11)
        assert await listed(storage) == ["there"]
        assert await listed(storage, flow="f", state="s") == ["there"]
        assert await listed(storage, tag="user:1") == []

    async def test_a_scan_lists_remaining_records_once_while_others_are_cleared(self, storage: Storage) -> None:
        async def clear_the_even(key: int, waiting: list[int]) -> None:
            if key % 2 == 0:
                await storage.clear(BOT, key)

        for query in QUERIES:
            seen = await self._scan_while(storage, query, clear_the_even)
            assert sorted(key for key in seen if key % 2) == list(range(101, 120, 2)), query

    async def test_a_scan_lists_existing_records_once_while_others_are_added(self, storage: Storage) -> None:
        async def add_on_both_sides(key: int, waiting: list[int]) -> None:
            if 100 <= key < 120:
                for new in (key - 100, key + 100):
                    await apply(storage, new, head=("f", "s"), tags=("user:1",))

        for query in QUERIES:
            seen = await self._scan_while(storage, query, add_on_both_sides)
            assert sorted(key for key in seen if 100 <= key < 120) == list(range(100, 120)), query
            for key in (*range(20), *range(200, 220)):
                await storage.clear(BOT, key)

    async def test_a_scan_lists_every_record_once_while_they_are_written(self, storage: Storage, clock: Clock) -> None:
        async def write_one_listed_and_one_not_yet(key: int, waiting: list[int]) -> None:
            for each in (key, *waiting[-1:]):
                clock.advance(1)
                await storage.update_data(BOT, each, {"written": clock()})

        for query in QUERIES:
            seen = await self._scan_while(storage, query, write_one_listed_and_one_not_yet)
            assert sorted(seen) == list(range(100, 120)), query

    async def test_due_deadlines_are_returned_earliest_first(self, storage: Storage, clock: Clock) -> None:
        for key, seconds in ((1, 30.0), (2, 10.0), (3, 20.0), (4, 99.0)):
            await apply(storage, key, head=("f", "s"), deadline=seconds)
        await apply(storage, 5, data={"a": 1})
        assert await storage.due(BOT) == []
        clock.advance(31)
        due = await storage.due(BOT)
        assert [storage.address(BOT, key) for key in (2, 3, 1)] == [entry.address for entry in due]
        assert await storage.due("other") == []
        assert [entry.address for entry in await storage.due(BOT, before=clock() - 15)] == [due[0].address]

    async def test_a_deadline_is_due_exactly_at_its_time(self, storage: Storage, clock: Clock) -> None:
        await apply(storage, head=("f", "s"), deadline=10.0)
        (entry,) = await storage.due(BOT, before=clock() + 60)
        assert await storage.due(BOT, before=entry.deadline) == [entry]
        assert await storage.due(BOT, before=entry.deadline - 0.001) == []
        clock.advance(10)
        assert await storage.due(BOT) == [entry]

    async def test_deadlines_within_one_second_are_distinguished(self, storage: Storage, clock: Clock) -> None:
        clock.advance(0.125)
        start = clock()
        addresses = [storage.address(BOT, key) for key in range(3)]
        for key, seconds in ((2, 0.75), (0, 0.25), (1, 0.5)):
            await apply(storage, key, head=("f", "s"), deadline=seconds)
        for count in range(4):
            due = await storage.due(BOT)
            assert [entry.address for entry in due] == addresses[:count]
            assert [entry.deadline for entry in due] == pytest.approx(
                [start + 0.25 * (number + 1) for number in range(count)], abs=0.001
            )
            clock.advance(0.125)
            assert len(await storage.due(BOT)) == count
            clock.advance(0.125)

    async def test_an_expired_record_is_in_no_list_from_its_expiry_time_on(
        self, storage: Storage, clock: Clock
    ) -> None:
        await apply(storage, head=("f", "s"), tags=("user:1",), deadline=0.25, expiry=0.5)
        clock.advance(0.375)
        assert (await storage.sweep()).expired == []
        for query in QUERIES:
            assert await listed(storage, **query) == [KEY]
        assert len(await storage.due(BOT)) == 1
        clock.advance(0.125)
        for query in QUERIES:
            assert await listed(storage, **query) == []
        assert await storage.due(BOT) == []
        assert [address for address, _ in (await storage.sweep()).expired] == [storage.address(BOT, KEY)]

    async def test_due_deadlines_are_paged_even_if_some_are_equal(self, storage: Storage, clock: Clock) -> None:
        addresses = sorted(storage.address(BOT, key) for key in range(7))
        for distinct in (1, 4):
            for key in range(7):
                await apply(storage, key, head=("f", "s"), deadline=float(key % distinct))
            clock.advance(60)
            for limit in (1, 2, 3):
                seen: list[Due] = []
                # At most one page more than needed, so that a backend with an unstable order fails, not hangs.
                for _ in range(8):
                    page = await storage.due(BOT, limit=limit, after=seen[-1] if seen else None)
                    assert len(page) <= limit
                    seen.extend(page)
                assert sorted(entry.address for entry in seen) == addresses

    async def test_a_write_keeps_changes_or_removes_a_deadline(self, storage: Storage, clock: Clock) -> None:
        await apply(storage, data={}, deadline=10.0)
        await apply(storage, data={"a": 1})
        clock.advance(11)
        assert len(await storage.due(BOT)) == 1
        await apply(storage, data={"a": 2}, deadline=10.0)
        assert await storage.due(BOT) == []
        clock.advance(11)
        assert len(await storage.due(BOT)) == 1
        await apply(storage, data={"a": 3}, deadline=None)
        assert await storage.due(BOT) == []

    async def test_a_cleared_replaced_or_expired_record_is_never_due(self, storage: Storage, clock: Clock) -> None:
        for key in (1, 2, 3):
            await apply(storage, key, data={}, deadline=10.0, expiry=12.0 if key == 3 else None)
        await storage.clear(BOT, 1)
        await storage.set_state(BOT, 2, State("f", "s"))
        clock.advance(13)
        assert await storage.due(BOT) == []

    async def test_a_record_created_after_clear_has_no_deadline(self, storage: Storage, clock: Clock) -> None:
        await apply(storage, data={"a": 1}, deadline=10.0)
        await storage.clear(BOT, KEY)
        await apply(storage, data={"b": 2})
        clock.advance(11)
        assert await storage.due(BOT) == []
        assert (await found(storage)).deadline is None

    async def test_a_sweep_removes_expired_records_and_returns_them(self, storage: Storage, clock: Clock) -> None:
        await apply(
            storage, 1, data={"a": 1}, head=("f", "s"), tags=("user:1",), deadline=1.0, expiry=10.0, parts={"p": 1}
        )
        await apply(storage, 2, data={"a": 1})
        assert (await storage.sweep()).expired == []
        clock.advance(11)
        swept = await storage.sweep()
        address = storage.address(BOT, 1)
        assert [(entry, storage.seal(entry).open_head(head).place) for entry, head in swept.expired] == [
            (address, Place("f", "s"))
        ]
        assert (await storage.sweep()).removed == 0
        assert await storage.due(BOT) == []
        await apply(storage, 1, data={"b": 1})
        stored = await found(storage, 1, parts=True)
        assert (stored.parts, stored.tags, stored.head) == ({}, (), None)
        assert await storage.get_data(BOT, 2) == {"a": 1}

    async def test_a_sweep_keeps_held_records(self, storage: Storage, clock: Clock) -> None:
        await apply(storage, data={"a": 1}, expiry=10.0)
        held = await claim(storage, "A", lease=60)
        clock.advance(11)
        assert (await storage.sweep()).expired == []
        await apply(storage, data={"b": 2}, expiry=10.0, held=("A", held))
        assert await storage.get_data(BOT, KEY) == {"a": 1, "b": 2}

    async def test_a_sweep_keeps_memos_and_tombstones_for_a_day(self, storage: Storage, clock: Clock) -> None:
        held = await claim(storage, "A", 1)
        await apply(storage, 1, data={"a": 1}, memo=["m"], held=("A", held))
        await storage.clear(BOT, 1)
        held = await claim(storage, "A", 2)
        await apply(storage, 2, data={"a": 1}, memo=["m"], expiry=10.0, held=("A", held))
        clock.advance(DAY - 5)
        await storage.sweep()
        cleared = await claim(storage, "B", 1)
        assert cleared.base != ""
        assert memo(storage, cleared, 1) == ["m"]
        assert memo(storage, await claim(storage, "B", 2), 2) == ["m"]
        for key in (1, 2):
            await release(storage, "B", key)
        clock.advance(10)
        await storage.sweep()
        gone = await claim(storage, "C", 1)
        assert (gone.base, gone.memo) == ("", None)

    async def test_a_sweep_removes_claims_that_were_never_released(self, storage: Storage, clock: Clock) -> None:
        for key in range(5):
            await claim(storage, "A", key, lease=10)
        assert isinstance(await claim(storage, "B", 0), Taken)
        clock.advance(11)
        await storage.sweep()
        assert (await storage.sweep()).removed == 0
        assert isinstance(await claim(storage, "B", 0), Claimed)

    async def test_a_sweep_removes_no_more_than_its_limit(self, storage: Storage, clock: Clock) -> None:
        for key in range(10):
            await apply(storage, key, data={}, expiry=10.0)
        clock.advance(11)
        assert (await storage.sweep(4)).removed == 4
        assert (await storage.sweep(100)).removed == 6

    async def _scan_while(
        self, storage: Storage, query: dict[str, Any], happens: Callable[[int, list[int]], Awaitable[None]]
    ) -> list[int]:
        """Return the keys that a scan of 20 records lists while another task acts after each."""
        for key in range(100, 120):
            await apply(storage, key, head=("f", "s"), tags=("user:1",))
        seen: list[int] = []
        async for entry in storage.scan(BOT, page=3, **query):
            seen.append(entry.key)
            # Fail instead of hanging if the scan does not end.
            assert len(seen) <= 100, seen
            await happens(entry.key, [key for key in range(100, 120) if key not in seen])
        return seen
