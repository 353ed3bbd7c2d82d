"""The dispatcher finds what is due in one process, and calls its owner."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stepwell import MemoryStorage, Storage
from stepwell.dispatch import WAKE, QueueSource, TaskLimit, TimerSource, dispatcher_of, polling, serve_timers
from stepwell.errors import Conflict, CorruptRecord, StorageUnavailable
from stepwell.record import Address, Change, Queue
from stepwell.slot import Slot
from stepwell.storage import Apply
from stepwell.storage.transport import outage
from stepwell.testing import Clock
from tests.backends import Backend
from tests.constants import Constants
from tests.until import until

BOT = "bot"


async def overdue(storage: Storage, count: int, namespace: str = BOT, *, flow: str | None = None) -> list[Address]:
    """Write records with the timer ``ring`` in the past."""
    for key in range(count):
        async with Slot(storage, namespace, key) as slot:
            slot.flow, slot.timers = flow, {"ring": slot.time()}
            await slot.commit(force=True)
    return [storage.address(namespace, key) for key in range(count)]


def source_of(
    storage: Storage, ring: Callable[[Slot], Awaitable[Any]], *, name: str = "ring", tasks: int = 32, **options: Any
) -> TimerSource:
    return TimerSource(storage, BOT, {name: ring}, limits=[TaskLimit(tasks)], **options)


async def clear(slot: Slot) -> None:
    slot.timers = {}
    await slot.commit(force=True)


async def test_each_due_timer_calls_its_owner_once_with_the_record_held(backend: Backend) -> None:
    storage = backend.storage()
    called: list[Any] = []

    async def ring(slot: Slot) -> Callable[[], Awaitable[object]]:
        assert slot.holding
        await clear(slot)
        key = slot.address.key

        async def afterwards() -> None:
            async with Slot(storage, BOT, int(key), wait=0):
                called.append(int(key))

        return afterwards

    await overdue(storage, 20)
    async with source_of(storage, ring), source_of(storage, ring):
        await until(lambda: len(called) >= 20)
    assert sorted(called) == list(range(20))
    assert await storage.due(BOT) == []


async def test_the_owners_of_due_timers_are_asked_in_their_order_until_one_serves(clock: Clock) -> None:
    asked: list[str] = []

    async def refuse(slot: Slot) -> bool:
        asked.append("first")
        return False

    async def serve(slot: Slot) -> None:
        asked.append("second")
        slot.timers = {"first": slot.timers["first"]}
        await slot.commit()

    async with MemoryStorage(clock=clock) as storage:
        async with Slot(storage, BOT, 1) as slot:
            slot.timers = {"second": clock() + 2, "first": clock() + 1, "later": clock() + 9, "strange": clock()}
            await slot.commit(force=True)
        clock.advance(3)
        source = TimerSource(storage, BOT, {"first": refuse, "second": serve, "later": serve}, limits=[TaskLimit(1)])
        assert await source.tick() == 1
        assert asked == ["first", "second"]


async def test_a_deadline_without_a_timer_calls_the_owner_of_wake(clock: Clock) -> None:
    called: list[str] = []

    async def wake(slot: Slot) -> None:
        called.append(slot.address.key)
        await slot.commit(deadline=None, force=True)

    async with MemoryStorage(clock=clock) as storage:
        address = storage.address(BOT, 1)
        await storage.perform(Apply(address, Change(storage.ids(), set={}, deadline=0.0)))
        assert await source_of(storage, wake, name=WAKE).tick() == 1
        assert called == [address.key]
        assert await source_of(storage, wake, name=WAKE).tick() == 0


@pytest.mark.parametrize("outcome", ["nobody", "refused", "raised", "unmoved"])
async def test_a_timer_that_stays_due_is_tried_at_growing_intervals(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    now = 0.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    tried: list[float] = []

    class Watched(TimerSource):
        async def serve(self, address: Address) -> bool:
            tried.append(now)
            return await super().serve(address)

    async def ring(slot: Slot) -> bool | None:
        if outcome == "raised":
            raise ZeroDivisionError
        return False if outcome == "refused" else None

    async with MemoryStorage(clock=clock, sweep_every=None) as storage:
        await overdue(storage, 1)
        owners = {} if outcome == "nobody" else {"ring": ring}
        source = Watched(storage, BOT, owners, limits=[TaskLimit(1)], pauses=(1.0, 4.0))
        for _ in range(30):
            await source.tick()
            now += 0.5
        assert tried == [0.0, 1.0, 3.0, 7.0, 11.0]
        source.owners = {"ring": clear}
        now = 20.0
        assert await source.tick() == 1
        await overdue(storage, 1)
        assert await source.tick() == 1, "it does not pause any more"


async def test_a_record_is_served_by_one_task_at_a_time(clock: Clock) -> None:
    busy: set[Address] = set()
    most = served = 0

    async def ring(slot: Slot) -> None:
        nonlocal most, served
        assert slot.address not in busy
        busy.add(slot.address)
        most = max(most, len(busy))
        await asyncio.sleep(0.001)
        busy.remove(slot.address)
        served += 1
        await clear(slot)

    async with MemoryStorage(clock=clock) as storage:
        await overdue(storage, 9)
        source = source_of(storage, ring, tasks=2)
        async with source:
            await asyncio.gather(*(source.tick() for _ in range(3)))
            await until(lambda: served == 9)
        assert most == 2


async def test_records_that_nobody_owns_do_not_hide_others(clock: Clock, constants: Constants) -> None:
    constants(timers_a_page=3)
    rung: list[str] = []

    async def ring(slot: Slot) -> bool:
        if slot.flow != "mine":
            return False
        rung.append(slot.address.key)
        await clear(slot)
        return True

    async with MemoryStorage(clock=clock) as storage:
        await overdue(storage, 20, flow="strange")
        clock.advance(1)
        async with Slot(storage, BOT, "last") as slot:
            slot.flow, slot.timers = "mine", {"ring": clock()}
            await slot.commit()
        async with source_of(storage, ring, tasks=1):
            await until(lambda: rung)
        assert len(rung) == 1


async def test_the_number_of_remembered_pauses_is_bounded(clock: Clock, constants: Constants) -> None:
    constants(polling_most_pauses=5)
    refused = 0

    async def ring(slot: Slot) -> bool:
        nonlocal refused
        refused += 1
        return False

    async with MemoryStorage(clock=clock) as storage:
        await overdue(storage, 20)
        source = source_of(storage, ring, pauses=(60.0, 300.0))
        await source.tick()
        await source.tick()
        assert (len(source.pauses), refused) == (5, 35)


def test_a_pause_never_exceeds_the_longest() -> None:
    async def pause() -> None:
        pauses, address = polling.Pauses(1.0, 300.0), Address("a", "1")
        for _ in range(2000):
            pauses.add(address)
        assert pauses._ends[address][1] <= asyncio.get_running_loop().time() + 300.0

    asyncio.run(pause())


async def test_a_skipped_record_takes_the_place_of_no_other(clock: Clock) -> None:
    rung: list[Address] = []

    async def ring(slot: Slot) -> None:
        rung.append(slot.address)
        await clear(slot)

    async with MemoryStorage(clock=clock) as storage:
        addresses = await overdue(storage, 6)
        source = source_of(storage, ring, tasks=1)
        source.skip = set(addresses[:5]).__contains__
        async with source:
            await until(lambda: rung)
        assert rung == addresses[5:]


async def test_every_error_is_logged_and_polling_continues(
    clock: Clock, constants: Constants, caplog: pytest.LogCaptureFixture
) -> None:
    constants(tick=0.001)
    rung = asyncio.Event()
    failures = [
        ZeroDivisionError("of the backend"),
        asyncio.CancelledError("by the driver"),
        CorruptRecord("bot/1", "a field", "is damaged"),
        Conflict("held elsewhere"),
        StorageUnavailable("unreachable"),
    ]

    class Failing(MemoryStorage):
        async def due(self, *args: Any, **options: Any) -> Any:
            if failures:
                raise failures.pop()
            return await super().due(*args, **options)

    async def ring(slot: Slot) -> None:
        rung.set()
        raise ZeroDivisionError("of the owner")

    async with Failing(clock=clock) as storage, asyncio.timeout(10):
        (address,) = await overdue(storage, 1)
        source = source_of(storage, ring)
        async with source:
            await rung.wait()
            await until(lambda: address in source.pauses)
        words = ("of the backend", "by the driver", "is damaged", "held elsewhere", "unreachable", "of the owner")
        for each in words:
            assert each in caplog.text


async def test_a_read_that_always_fails_stops_no_other_source(clock: Clock, constants: Constants) -> None:
    constants(tick=0.001, longest_tick=0.01)

    class Failing(MemoryStorage):
        async def due_in(self, *args: Any, **options: Any) -> Any:
            raise ZeroDivisionError

        async def due(self, namespace: str, **options: Any) -> Any:
            if namespace == "broken":
                raise ZeroDivisionError
            return await super().due(namespace, **options)

    served: Counter[str] = Counter()
    async with Failing(clock=clock) as storage, serve_timers(storage, "broken", {}), source_of(storage, clear):
        queues = [
            Counted(storage, BOT, [f"queue{number}"], limits=[TaskLimit(1)], pauses=(1, 2), what="task")
            for number in range(2)
        ]
        for queue in queues:
            queue.served = served
            dispatcher_of(storage).start(queue)
        for turn in range(1, 4):
            await overdue(storage, 1)
            await storage.perform(
                Apply(storage.address(BOT, "job"), Change(write=storage.ids(), queue=Queue("queue1")))
            )
            await until(lambda turn=turn: served.total() == turn)  # type: ignore[misc]
            await until(lambda: storage.due(BOT), lambda due: not due)
        await dispatcher_of(storage).stop(*queues)


async def test_polling_is_retried_after_unexpected_errors_at_growing_intervals(
    clock: Clock, constants: Constants, caplog: pytest.LogCaptureFixture
) -> None:
    constants(tick=0.001, longest_tick=0.02)
    failures = 9

    class Failing(MemoryStorage):
        async def due(self, *args: Any, **options: Any) -> Any:
            nonlocal failures
            if failures:
                failures -= 1
                raise CorruptRecord("bot/1", "a field", "is damaged")
            read.set()
            return []

    read = asyncio.Event()
    async with Failing(clock=clock) as storage, source_of(storage, clear), asyncio.timeout(10):
        await read.wait()
    pauses = [record.args[1] for record in caplog.records if isinstance(record.args, tuple)]
    assert pauses == [0.002, 0.004, 0.008, 0.016, 0.02, 0.02, 0.02, 0.02, 0.02]
    assert all(record.exc_info for record in caplog.records)


async def test_stopping_one_source_cancels_its_tasks_and_the_others_go_on(clock: Clock, constants: Constants) -> None:
    constants(tick=0.001)
    begun = cancelled = 0

    async def ring(slot: Slot) -> None:
        nonlocal begun, cancelled
        begun += 1
        try:
            await asyncio.sleep(60)
        finally:
            cancelled += 1

    rung: list[Slot] = []

    async def other(slot: Slot) -> None:
        rung.append(slot)
        await clear(slot)

    async with MemoryStorage(clock=clock) as storage, serve_timers(storage, "other", {"ring": other}):
        await overdue(storage, 1)
        for turn in range(1, 3):
            async with source_of(storage, ring):
                await until(lambda turn=turn: begun == turn)  # type: ignore[misc]
            assert (begun, cancelled) == (turn, turn)
        await overdue(storage, 1, "other")
        await until(lambda: rung)
    assert [task for task in asyncio.all_tasks() if task.get_name().startswith("stepwell-dispatcher")] == []


async def test_a_source_can_be_stopped_while_it_is_read(clock: Clock, constants: Constants) -> None:
    constants(timers_a_page=1)
    reading, go = asyncio.Event(), asyncio.Event()

    class Slow(MemoryStorage):
        async def due(self, namespace: str, **options: Any) -> Any:
            if namespace == BOT and options.get("after") is not None:
                reading.set()
                await go.wait()
            return await super().due(namespace, **options)

    async def ring(slot: Slot) -> bool:
        return False

    rung: list[Slot] = []

    async def other(slot: Slot) -> None:
        rung.append(slot)
        await clear(slot)

    async with Slow(clock=clock) as storage, serve_timers(storage, "other", {"ring": other}), asyncio.timeout(20):
        await overdue(storage, 3)
        async with source_of(storage, ring):
            await reading.wait()
        go.set()
        await overdue(storage, 1, "other")
        await until(lambda: rung)


def test_a_source_can_be_started_again_in_another_event_loop(clock: Clock) -> None:
    storage = MemoryStorage(clock=clock)
    rung: list[int] = []

    async def ring(slot: Slot) -> None:
        rung.append(1)
        await asyncio.sleep(60 if len(rung) == 1 else 0)
        await clear(slot)

    source = source_of(storage, ring, tasks=1)

    async def leave() -> None:
        await overdue(storage, 1)
        await source.__aenter__()
        await until(lambda: rung)

    async def serve() -> None:
        clock.advance(60)
        async with source:
            await until(lambda: len(rung) == 2)

    asyncio.run(leave())
    asyncio.run(serve())


async def test_an_unavailable_storage_is_logged_at_growing_intervals_and_once_it_is_back(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, constants: Constants, caplog: pytest.LogCaptureFixture
) -> None:
    constants(tick=0.001, outage_warn_every=(0.05, 0.1), outage_calm=0.05)
    # The clock of the log advances with each look, so that the number of warnings does not depend on the machine.
    looks, now = 0, 0.0
    monkeypatch.setattr(outage, "monotonic", lambda: now)

    class Unreachable(MemoryStorage):
        unreachable = True

        async def due(self, *args: Any, **options: Any) -> Any:
            nonlocal looks, now
            looks += 1
            now += 0.002
            if self.unreachable:
                raise StorageUnavailable("no connection")
            return await super().due(*args, **options)

    async with Unreachable(clock=clock) as storage, source_of(storage, clear):
        await until(lambda: caplog.text.count("timers and queues cannot be read: no connection") >= 3)
        assert looks > 20
        storage.unreachable = False
        now += 1.0
        await until(lambda: "timers and queues can be read again" in caplog.text)
    assert len(caplog.records) < looks / 5


class Counted(QueueSource):
    """A queue whose records leave it when they are served."""

    served: Counter[str]

    async def serve(self, address: Address) -> bool:
        await self.storage.perform(Apply(address, Change(self.storage.ids(), queue=None)))
        self.served[self.queues[0]] += 1
        return True


@pytest.mark.parametrize("count", [2, 12])
async def test_an_idle_process_reads_the_same_whatever_the_number_of_its_sources(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, constants: Constants, count: int
) -> None:
    constants(tick=0.02)
    storage, served = backend.storage(), Counter[str]()
    await storage.open()
    calls: Counter[str] = Counter()
    inside = 0

    def count_calls(name: str) -> None:
        original = getattr(storage, name)

        async def counted(*args: Any, **options: Any) -> Any:
            nonlocal inside
            # A memory reads one namespace after the other.
            calls[name] += not inside
            inside += 1
            try:
                return await original(*args, **options)
            finally:
                inside -= 1

        monkeypatch.setattr(storage, name, counted)

    for name in ("due", "due_in", "queued", "page", "queues"):
        count_calls(name)
    tasks, dispatcher = TaskLimit(4), dispatcher_of(storage)
    timers = [TimerSource(storage, f"bot{number}", {"ring": clear}, limits=[tasks]) for number in range(count)]
    queues = [
        Counted(storage, BOT, [f"queue{number}"], limits=[tasks], pauses=(1, 2), what="task") for number in range(count)
    ]
    for queue in queues:
        queue.served = served
    for source in (*timers, *queues):
        dispatcher.start(source)
    await until(lambda: not any(source.hot for source in (*timers, *queues)))
    calls.clear()
    probes = 0
    original = dispatcher._probe

    async def probe() -> None:
        nonlocal probes
        probes += 1
        await original()

    monkeypatch.setattr(dispatcher, "_probe", probe)
    await until(lambda: probes > 6)
    assert calls["due_in"] <= probes
    assert calls["queued"] <= probes
    assert set(+calls) == {"due_in", "queued"}
    # A few records are found without a notice.
    await overdue(storage, 3, f"bot{count - 1}")
    for number in range(3):
        change = Change(storage.ids(), queue=Queue(f"queue{number % 2}"))
        await storage.perform(Apply(storage.address(BOT, number), change))
    await until(lambda: served.total() == 3)
    await until(lambda: storage.due(f"bot{count - 1}"), lambda due: not due)
    await dispatcher.stop(*timers, *queues)
