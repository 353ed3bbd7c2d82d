"""The promises about queues, deadlines of one flow, wake-ups, and writes that create a record."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from stepwell.codec import decode_key
from stepwell.errors import InvalidOption, RecordExists, StepwellError
from stepwell.record import KEEP, Change, OpenedHead, Place, Queue, State
from stepwell.storage import ANY, Applied, Apply, Due, Guard, Storage
from stepwell.storage.listing import Any_
from stepwell.testing.clock import Clock
from stepwell.testing.contract.suite import BOT, KEY, Suite, apply, claim, fields, found, get, release

__all__ = ["QueuePromises", "SharedQueuePromises"]


class QueuePromises(Suite):
    """Queues, deadlines of one flow, wake-ups, and writes that create a record."""

    async def test_a_guard_on_absence_allows_only_to_create_a_record(self, storage: Storage) -> None:
        await apply(storage, data={"a": 1}, guard=Guard(absent=True))
        with pytest.raises(RecordExists):
            await apply(storage, data={"a": 2}, guard=Guard(absent=True))
        assert await storage.get_data(BOT, KEY) == {"a": 1}
        await storage.clear(BOT, KEY)
        await apply(storage, data={"a": 3}, guard=Guard(absent=True))
        assert await storage.get_data(BOT, KEY) == {"a": 3}

    async def test_a_guard_on_absence_replaces_an_expired_record(self, storage: Storage, clock: Clock) -> None:
        await apply(storage, data={"a": 1}, expiry=10.0, queue=Queue("q"))
        clock.advance(9.75)
        with pytest.raises(RecordExists):
            await apply(storage, data={"b": 2}, guard=Guard(absent=True))
        clock.advance(0.25)
        await apply(storage, data={"b": 2}, guard=Guard(absent=True))
        record = await found(storage)
        assert fields(storage, record) == {"b": 2}
        assert record.queue is None

    async def test_a_guard_on_absence_allows_a_write_to_a_claimed_address(self, storage: Storage) -> None:
        held = await claim(storage, "A")
        await apply(storage, data={"a": 1}, held=None, guard=Guard("A", held.base, absent=True), keep=True)
        with pytest.raises(RecordExists):
            await apply(storage, data={"a": 2}, guard=Guard("A", held.base, absent=True), keep=True)
        assert await storage.get_data(BOT, KEY) == {"a": 1}
        await release(storage, "A")

    async def test_of_many_concurrent_creations_one_succeeds(self, storage: Storage) -> None:
        for key in range(5):
            creations = [apply(storage, key, data={"n": n}, guard=Guard(absent=True)) for n in range(10)]
            results = await asyncio.gather(*creations, return_exceptions=True)
            created = [n for n, result in enumerate(results) if isinstance(result, Applied)]
            assert len(created) == 1
            assert sum(isinstance(result, RecordExists) for result in results) == 9
            assert await storage.get_data(BOT, key) == {"n": created[0]}

    async def test_a_queue_is_ordered_by_priority_then_time_then_key(self, storage: Storage, clock: Clock) -> None:
        for key, priority in ((1, 0), (5, 0), (2, 7), (3, -7), (4, 7)):
            await apply(storage, key, data={}, queue=Queue("q", priority))
            clock.advance(0.001)
        for key in (9, 8):
            await apply(storage, key, data={}, queue=Queue("q"))
        await apply(storage, 10, data={}, queue=Queue("q2"))
        await apply(storage, 11, data={})
        assert await self._queued(storage) == [2, 4, 1, 5, 8, 9, 3]
        assert await self._queued(storage, limit=3) == [2, 4, 1]
        assert await self._queued(storage, "q2") == [10]
        assert await self._queued(storage, "none") == []
        assert await storage.queued("other", "q", limit=10) == []

    async def test_a_write_keeps_moves_or_removes_the_queue(self, storage: Storage, clock: Clock) -> None:
        await apply(storage, 1, data={}, queue=Queue("q", 3))
        clock.advance(1)
        await apply(storage, 2, data={}, queue=Queue("q", 3))
        clock.advance(1)
        await apply(storage, 1, data={"a": 1}, head=("f", "s"), deadline=1.0)
        assert await self._queued(storage) == [1, 2], "a write without a queue keeps the place"
        assert (await found(storage, 1)).queue == Queue("q", 3)
        await apply(storage, 1, data={"a": 2}, queue=Queue("q", 3))
        assert await self._queued(storage) == [2, 1], "a write with a queue enters it again"
        await apply(storage, 2, data={}, queue=Queue("other", -1))
        assert await self._queued(storage) == [1]
        assert await self._queued(storage, "other") == [2]
        await apply(storage, 1, data={}, queue=None)
        assert await self._queued(storage) == []
        assert (await found(storage, 1)).queue is None
        assert await storage.queues(BOT) == ["other"]

    async def test_several_queues_are_read_together_by_priority_then_time_then_key(
        self, storage: Storage, clock: Clock
    ) -> None:
        for key, (name, priority) in enumerate((("q", 0), ("a", 5), ("日本", 0), ("q", 9), ("other", 9), ("a", 0))):
            await apply(storage, key, data={}, queue=Queue(name, priority))
            clock.advance(1)
        for key in (8, 7):
            await apply(storage, key, data={}, queue=Queue("q" if key == 8 else "a", -1))
        names = ["a", "none", "q", "日本", "a"]
        assert await self._queued(storage, names) == [3, 1, 0, 2, 5, 7, 8]
        assert await self._queued(storage, names, limit=3) == [3, 1, 0]
        assert await self._queued(storage, ["q"]) == [3, 0, 8]
        assert await self._queued(storage, []) == []

    async def test_the_deadlines_of_several_flows_are_read_together(self, storage: Storage) -> None:
        for key, flow in enumerate(("f", "g", "f", "日本", "other")):
            await apply(storage, key, data={}, head=(flow, "s"), deadline=-10.0 + key)
        flows = ["f", "none", "g", "日本", "f"]
        found = await storage.due(BOT, flow=flows)
        assert [entry.address for entry in found] == [storage.address(BOT, key) for key in range(4)]
        assert await storage.due(BOT, flow=flows, limit=2) == found[:2]
        assert await storage.due(BOT, flow=flows, limit=2, after=found[1]) == found[2:]
        assert await storage.due(BOT, flow=["f"]) == [found[0], found[2]]
        assert await storage.due(BOT, flow=[]) == []

    async def test_the_deadlines_of_several_namespaces_are_read_together(self, storage: Storage) -> None:
        for key in range(9):
            address, flow = storage.address((BOT, "other", "日本")[key % 3], key), ("f", "g", None)[key // 3]
            head = storage.seal(address).head(OpenedHead(place=Place(flow, "s"))) if flow else KEEP
            change = Change(storage.ids(), head=head, deadline=100.0 if key == 8 else -10.0 + key)
            await storage.perform(Apply(address, change))
        encoded = {name: storage.address(name, 0).namespace for name in (BOT, "other", "日本", "none")}
        wanted: dict[str, Sequence[str] | Any_] = {
            encoded[BOT]: ANY,
            encoded["other"]: ["g", "none", "f"],
            encoded["日本"]: ANY,
            encoded["none"]: ANY,
        }
        found = await storage.due_in(wanted)
        assert [decode_key(due.address.key) for due in found] == [0, 1, 2, 3, 4, 5, 6]
        assert await storage.due_in(wanted, limit=3) == found[:3]
        assert await storage.due_in({encoded["other"]: []}) == await storage.due_in({}) == []

    async def test_the_holder_of_a_record_keeps_and_removes_its_queue(self, storage: Storage) -> None:
        await apply(storage, data={}, queue=Queue("q", 1))
        held = await claim(storage, "A")
        assert held.record.queue == Queue("q", 1)
        assert await self._queued(storage) == [KEY], "a claimed record stays in its queue"
        held = await apply(storage, data={"a": 1}, held=("A", held), keep=True)
        assert await self._queued(storage) == [KEY]
        held = await apply(storage, data={"a": 2}, held=("A", held), keep=True, queue=None)
        assert await self._queued(storage) == []
        held = await apply(storage, data={"a": 3}, held=("A", held), keep=True, queue=Queue("r"))
        assert await self._queued(storage, "r") == [KEY]
        await apply(storage, data={"a": 4}, held=("A", held))
        assert (await found(storage)).queue == Queue("r")

    async def test_a_cleared_replaced_or_expired_record_is_in_no_queue(self, storage: Storage, clock: Clock) -> None:
        for key in (1, 2, 3, 4):
            await apply(storage, key, data={}, queue=Queue("q"), expiry=0.5 if key == 3 else None)
        await apply(storage, 5, data={}, queue=Queue("r"), expiry=0.5)
        await storage.clear(BOT, 1)
        await storage.set_state(BOT, 2, State("f", "s"))
        clock.advance(0.375)
        assert await self._queued(storage) == [3, 4]
        assert await storage.queues(BOT) == ["q", "r"]
        clock.advance(0.125)
        assert await self._queued(storage) == [4]
        assert await storage.queues(BOT) == ["q"]
        await storage.sweep()
        await apply(storage, 4, delete=True, forget=True)
        for key in (1, 2, 3, 4, 5):
            await apply(storage, key, data={"a": 1})
            assert (await found(storage, key)).queue is None
        assert await storage.queues(BOT) == []

    async def test_a_merge_into_an_expired_record_leaves_its_queue(self, storage: Storage, clock: Clock) -> None:
        await apply(storage, data={}, queue=Queue("q"), expiry=1.0)
        clock.advance(1)
        await apply(storage, data={"a": 1})
        assert await self._queued(storage) == []
        await apply(storage, data={}, queue=Queue("q"), expiry=1.0)
        held = await claim(storage, "A")
        clock.advance(1)
        await apply(storage, data={"a": 2}, held=("A", held))
        assert await self._queued(storage) == [KEY], "a holder restores its record as it was"

    async def test_names_of_queues_are_listed_in_order_and_paged(self, storage: Storage) -> None:
        names = ["a", "a/1", "a/10", "a/2", "a@2", "a@2/x", "b", "Z", "ä", "a%", "a_", "日本", "a\\", "a'\"`"]
        for number, name in enumerate(names):
            for key in range(3):
                await apply(storage, (number, key), data={}, queue=Queue(name, key))
        assert await storage.queues(BOT) == sorted(names)
        assert await storage.queues(BOT, prefix="a/") == ["a/1", "a/10", "a/2"]
        assert await storage.queues(BOT, prefix="a@2") == ["a@2", "a@2/x"]
        assert await storage.queues(BOT, prefix="a%") == ["a%"]
        assert await storage.queues(BOT, prefix="日") == ["日本"]
        assert await storage.queues(BOT, prefix="a/", after="a/1") == ["a/10", "a/2"]
        assert await storage.queues(BOT, prefix="a/", after="Z") == ["a/1", "a/10", "a/2"]
        assert await storage.queues(BOT, prefix="a/", after="b") == []
        assert await storage.queues(BOT, after="a\\", limit=2) == ["a_", "b"]
        assert await storage.queues("other") == []
        seen: list[str] = []
        for _ in names:
            seen += await storage.queues(BOT, after=seen[-1] if seen else "", limit=1)
        assert seen == sorted(names)
        for number, name in enumerate(names):
            assert await storage.queued(BOT, name, limit=9) == [
                storage.address(BOT, (number, key)) for key in (2, 1, 0)
            ]

    async def test_the_longest_names_and_priorities_are_kept(self, storage: Storage) -> None:
        queues = [Queue("x" * 499 + "a", (1 << 31) - 1), Queue("x" * 499 + "b", -(1 << 31)), Queue("é" * 250)]
        for key, queue in enumerate(queues):
            await apply(storage, key, data={}, queue=queue)
            assert (await found(storage, key)).queue == queue
            assert await self._queued(storage, queue.name) == [key]
        assert await storage.queues(BOT) == [queue.name for queue in queues]

    async def test_a_queue_that_not_every_backend_can_store_is_refused(self, storage: Storage) -> None:
        """A write with such a queue raises ``InvalidOption`` and changes nothing."""
        longer = Queue("x" * 501)
        for queue in (Queue("q\n"), Queue(""), longer, Queue("\ud800"), Queue("q", 1 << 31), "q", Queue("q", True)):
            with pytest.raises(InvalidOption):
                await apply(storage, data={"a": 1}, queue=queue)
        assert await storage.get_data(BOT, KEY) is None
        assert await storage.queues(BOT) == []

    async def test_a_queue_refused_with_its_write_does_not_change(self, storage: Storage) -> None:
        await apply(storage, data={"a": 1}, queue=Queue("q"))
        with pytest.raises(StepwellError):
            await apply(storage, data={"a": "x" * 1000}, queue=Queue("r"), limit=100)
        with pytest.raises(RecordExists):
            await apply(storage, data={}, queue=Queue("r"), guard=Guard(absent=True))
        assert await self._queued(storage) == [KEY]
        assert await self._queued(storage, "r") == []

    async def test_deadlines_of_one_flow_are_found(self, storage: Storage, clock: Clock) -> None:
        flows = ["f", "f@2", "g", None]
        for key in range(20):
            flow = flows[key % 4]
            await apply(storage, key, head=None if flow is None else (flow, f"s{key}"), data={}, deadline=20.0 - key)
        assert await storage.due(BOT, flow="f") == []
        clock.advance(16)
        assert [entry.address for entry in await storage.due(BOT, flow="f")] == [
            storage.address(BOT, key) for key in (16, 12, 8, 4)
        ]
        assert [entry.address for entry in await storage.due(BOT, flow=None)] == [
            storage.address(BOT, key) for key in (19, 15, 11, 7)
        ]
        assert await storage.due(BOT, flow="h") == await storage.due("other", flow="f") == []
        first = await storage.due(BOT, flow="g", limit=2)
        later = await storage.due(BOT, flow="g", limit=2, after=first[-1])
        assert [storage.address(BOT, key) for key in (18, 14, 10, 6)] == [entry.address for entry in first + later]
        assert await storage.due(BOT, flow="g", before=first[0].deadline) == first[:1]
        assert len(await storage.due(BOT, limit=99)) == 16

    async def test_equal_deadlines_of_one_flow_are_paged(self, storage: Storage, clock: Clock) -> None:
        for key in range(6):
            await apply(storage, key, head=("fg"[key % 2], "s"), deadline=1.0)
        clock.advance(1)
        seen: list[Due] = []
        for _ in range(4):
            seen += await storage.due(BOT, flow="f", limit=1, after=seen[-1] if seen else None)
        assert [entry.address for entry in seen] == [storage.address(BOT, key) for key in (0, 2, 4)]

    async def test_a_deadline_moves_with_its_flow(self, storage: Storage, clock: Clock) -> None:
        await apply(storage, head=("f", "s"), deadline=1.0, expiry=10.0)
        clock.advance(2)
        await apply(storage, head=("g", "s"))
        assert await storage.due(BOT, flow="f") == []
        (entry,) = await storage.due(BOT, flow="g")
        held = await claim(storage, "A")
        await apply(storage, head=("f", "s"), held=("A", held), deadline=0.5)
        assert await storage.due(BOT, flow="g") == await storage.due(BOT, flow="f") == []
        clock.advance(0.5)
        assert [due.address for due in await storage.due(BOT, flow="f")] == [entry.address]
        clock.advance(8)
        assert await storage.due(BOT, flow="f") == [], "it has expired"
        await storage.clear(BOT, KEY)
        assert await get(storage) is None

    async def test_listeners_are_called_after_a_notice_of_their_topic(self, storage: Storage) -> None:
        woken: dict[str, asyncio.Event] = {name: asyncio.Event() for name in ("a", "b")}
        ends = [storage.listen(name, event.set) for name, event in woken.items()]
        await self._notified(storage, "a", woken["a"])
        assert not woken["b"].is_set()
        ends[0]()
        woken["a"].clear()
        await self._notified(storage, "b", woken["b"])
        await storage.notify("a")
        woken["b"].clear()
        await self._notified(storage, "b", woken["b"])
        assert not woken["a"].is_set(), "this listener was removed"
        ends[1]()

    async def _notified(self, storage: Storage, topic: str, event: asyncio.Event) -> None:
        """Notify until the notice arrives: one may be lost while the storage connects."""
        async with asyncio.timeout(10):
            while not event.is_set():
                await storage.notify(topic)
                try:
                    await asyncio.wait_for(event.wait(), 0.2)
                except TimeoutError:
                    continue

    async def _queued(self, storage: Storage, name: str | Sequence[str] = "q", limit: int = 100) -> list[Any]:
        addresses = await storage.queued(BOT, name, limit=limit)
        by_address = {storage.address(BOT, key): key for key in (*range(20), KEY)}
        return [by_address[address] for address in addresses]


class SharedQueuePromises(Suite):
    """Queues of one store with several storage objects."""

    async def test_the_first_reading_of_a_queue_opens_a_new_storage(self, storage: Storage) -> None:
        await apply(storage, data={}, head=("f", "s"), queue=Queue("q"), deadline=-1.0)
        address = storage.address(BOT, KEY)
        new = [self.reopen(storage) for _ in range(3)]
        try:
            assert await new[0].queued(BOT, "q") == [address]
            assert await new[1].queues(BOT) == ["q"]
            assert [due.address for due in await new[2].due(BOT, flow="f")] == [address]
        finally:
            for each in new:
                await each.close()

    async def test_queues_are_seen_by_a_second_object(self, storage: Storage, clock: Clock) -> None:
        async with self.reopen(storage) as other:
            await apply(storage, 1, data={}, queue=Queue("q", 1))
            clock.advance(1)
            await apply(other, 2, data={}, queue=Queue("q", 2))
            addresses = [storage.address(BOT, key) for key in (2, 1)]
            assert await storage.queued(BOT, "q") == await other.queued(BOT, "q") == addresses
            await apply(other, 1, data={}, queue=None)
            assert await storage.queued(BOT, "q") == addresses[:1]
            assert await other.queues(BOT) == ["q"]
