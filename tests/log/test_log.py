"""Logs: appending, reading, removing, claiming and following."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextvars import Context
from typing import Any

import pytest

from stepwell import Limits, Log, LogEntry, MemoryStorage, Storage, copy_records, sync
from stepwell.errors import AlreadyHeld, Busy, CorruptRecord, EncodeError, InvalidOption, LeaseLost, TooLarge
from stepwell.fsm import FSM
from stepwell.log import tail
from stepwell.log.appends import MOST_VALUES
from stepwell.record import LOGS, Change, Range, State
from stepwell.storage import Apply, Get, Operation
from stepwell.testing import Clock
from tests.backends import Backend
from tests.backends.sqlite import SQLite


class Counted(MemoryStorage):
    """Counts its operations."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.operations: list[Operation] = []

    async def perform(self, operation: Operation) -> Any:
        self.operations.append(operation)
        # As on a server, other tasks run meanwhile.
        await asyncio.sleep(0)
        return await super().perform(operation)


@pytest.fixture
async def storage() -> AsyncIterator[Counted]:
    async with Counted() as storage:
        yield storage


@pytest.fixture
def log(storage: Counted) -> Log:
    return Log(storage, "bot", 42)


def values(found: list[LogEntry]) -> list[Any]:
    return [entry.value for entry in found]


async def test_a_log_on_every_backend(backend: Backend) -> None:
    url = backend.place()
    storage, other = backend.storage(url), backend.storage(url)
    if not backend.shared:
        other = storage
    log, same = Log(storage, "bot", ("a", 1)), Log(other, "bot", ("a", 1))
    assert await log.read() == [] and await log.last() == 0 and await log.pop() is None
    assert await log.append("é", {"n": 1}, (1, 2)) == range(1, 4)
    assert await same.append(None) == range(4, 5)
    assert await log.append(5) == range(5, 6)
    assert await same.read() == [LogEntry(1, "é"), (2, {"n": 1}), (3, (1, 2)), (4, None), (5, 5)]
    assert await log.read(after=2, limit=2) == [(3, (1, 2)), (4, None)]
    assert await log.read(reverse=True, limit=2) == [(5, 5), (4, None)]
    assert await log.read(after=1, before=4, reverse=True) == [(3, (1, 2)), (2, {"n": 1})]
    assert await same.pop() == (5, 5)
    assert await log.append(6) == range(6, 7)
    await same.trim(keep=2)
    assert await log.read() == [(4, None), (6, 6)]
    async with log.claim():
        writing = asyncio.create_task(same.append("later"))
        assert await log.append("first") == range(7, 8)
    assert await writing == range(8, 9)
    follower = same.follow(after=6)
    assert [await anext(follower), await anext(follower)] == [(7, "first"), (8, "later")]
    waiting = asyncio.ensure_future(anext(follower))
    await log.clear()
    assert await same.read() == [] and await same.last() == 8
    await log.append("new")
    async with asyncio.timeout(30):
        assert await waiting == (9, "new")
    await follower.aclose()
    await log.delete()
    assert await same.append("again") == range(1, 2)


async def test_an_append_is_one_write_if_the_process_appended_last(log: Log, storage: Counted) -> None:
    await log.append(1)
    for number in range(2, 5):
        storage.operations.clear()
        # Another object for the same log.
        assert await Log(storage, "bot", 42).append("a", "b") == range(2 * number - 2, 2 * number)
        assert [type(operation) for operation in storage.operations] == [Apply]
    storage.operations.clear()
    await log.read(after=3, limit=1)
    assert len(storage.operations) == 1


async def test_appends_of_many_tasks_share_writes(log: Log, storage: Counted) -> None:
    await log.append("first")
    storage.operations.clear()
    numbers = await asyncio.gather(*(log.append(f"{n}a", f"{n}b") for n in range(100)))
    assert len(storage.operations) == 1
    assert [number for each in numbers for number in each] == list(range(2, 202))
    assert values(await log.read(after=1)) == [f"{n}{letter}" for n in range(100) for letter in "ab"]
    storage.operations.clear()
    await asyncio.gather(*(log.append(*range(100)) for _ in range(25)))
    assert len(storage.operations) == 3, f"{MOST_VALUES} values a write"


async def test_a_cancelled_append_does_not_affect_the_others(log: Log) -> None:
    tasks = [asyncio.create_task(log.append(n)) for n in range(10)]
    await asyncio.sleep(0)
    tasks[3].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    found = await log.read()
    assert {*values(found)} >= {*range(10)} - {3}
    assert [entry.number for entry in found] == list(range(1, len(found) + 1))


async def test_nothing_is_appended_by_an_invalid_append(log: Log) -> None:
    with pytest.raises(EncodeError):
        await log.append(1, object())
    assert await log.append() == range(0)
    assert await log.read() == []


async def test_a_log_at_its_limit_refuses_appends_until_it_is_trimmed(storage: Counted) -> None:
    log = Log(storage, "bot", 42, limit=1000)
    first = [log.append("x" * 100) for _ in range(5)]
    too_large, fits = log.append("x" * 900), log.append("y")
    *written, refused, small = await asyncio.gather(*first, too_large, fits, return_exceptions=True)
    assert [each.start for each in written] == [1, 2, 3, 4, 5]
    assert isinstance(refused, TooLarge) and "the log" in str(refused)
    assert small == range(6, 7)
    with pytest.raises(TooLarge):
        await log.append("x" * 900)
    async with log.claim():
        await log.trim(keep=1)
    assert await log.append("x" * 500) == range(7, 8)
    async with Counted(limits=Limits(item=100)) as small_items:
        with pytest.raises(TooLarge):
            await Log(small_items, "bot", 42).append("x" * 100)


async def test_numbers_are_never_reused(log: Log) -> None:
    await log.append(*range(5))
    await log.trim(keep=0)
    assert await log.append("a") == range(6, 7)
    await log.clear()
    await log.clear()
    assert await log.last() == 6
    assert await log.append("b", "c") == range(7, 9)
    assert [await log.pop(), await log.pop(), await log.pop()] == [(8, "c"), (7, "b"), None]
    assert await Log(log.storage, "bot", 42).append("d") == range(9, 10)
    assert await log.read() == [(9, "d")]


async def test_trim_keeps_the_last_entries_even_if_numbers_are_missing(log: Log) -> None:
    await log.append(*"abcdef")
    await log.pop()
    await log.pop()
    await log.append("g")
    await log.trim(keep=3)
    assert await log.read() == [(3, "c"), (4, "d"), (7, "g")]
    await log.trim(keep=3)
    await log.trim(keep=10)
    assert len(await log.read()) == 3
    await log.append(*"hijkl")
    await log.trim(keep=2)
    assert values(await log.read()) == ["k", "l"]
    with pytest.raises(InvalidOption):
        await log.trim(keep=-1)


async def test_many_entries_are_removed_in_several_writes(log: Log, storage: Counted) -> None:
    await log.append(*range(MOST_VALUES * 2 + 10))
    storage.operations.clear()
    await log.trim(keep=5)
    assert sum(type(operation) is Apply for operation in storage.operations) == 3
    assert values(await log.read()) == list(range(MOST_VALUES * 2 + 5, MOST_VALUES * 2 + 10))
    storage.operations.clear()
    await log.trim(keep=5)
    assert Apply not in map(type, storage.operations)


async def test_a_log_is_no_record_of_its_bot(log: Log, storage: Counted) -> None:
    await log.append(1)
    assert await storage.get_state("bot", 42) is None
    await storage.set_state("bot", 42, State("flow"))
    await storage.clear("bot", 42)
    assert values(await log.read()) == [1]
    assert values(await Log(storage, "other", 42).read()) == []


async def test_a_log_with_a_tag_is_forgotten_with_its_user(storage: Counted) -> None:
    mine, of_other_bot, of_other_user = (
        Log(storage, bot, user, tags=(f"user:{user}",)) for bot, user in (("bot", 1), ("bot2", 1), ("bot", 2))
    )
    for each in (mine, of_other_bot, of_other_user):
        await each.append("secret")
    async with FSM("bot", storage=storage, flows=[], run_timers=False) as fsm:
        assert await fsm.forget(user=1) == 1
    assert [len(await each.read()) for each in (mine, of_other_bot, of_other_user)] == [0, 1, 1]
    assert await storage.perform(Get(mine.address)) is None


async def test_a_log_expires_after_its_last_write() -> None:
    clock = Clock()
    async with MemoryStorage(clock=clock) as storage:
        log = Log(storage, "bot", 42, ttl=60.0)
        await log.append(1)
        clock.advance(50)
        await log.append(2)
        clock.advance(50)
        assert values(await log.read()) == [1, 2]
        clock.advance(11)
        assert await log.read() == []
        assert await log.append(3) == range(1, 2)
        assert values(await log.read()) == [3]


async def test_a_copy_has_the_log(log: Log, tmp_path: Any) -> None:
    await log.append(*range(3000))
    await log.pop()
    async with SQLite(tmp_path).storage() as target:
        copied = await copy_records(log.storage, target)
        assert copied.written == copied.verified == 1
        copy = Log(target, "bot", 42)
        assert values(await copy.read()) == list(range(2999))
        assert await copy.append("new") == range(3001, 3002)


async def test_only_the_claimer_writes_to_a_claimed_log(log: Log, storage: Counted) -> None:
    other = Log(storage, "bot", 42, wait=0.05)
    await log.append(0)
    async with log.claim():
        for write in (other.append("no"), other.pop(), other.trim(keep=0)):
            with pytest.raises(Busy):
                await asyncio.create_task(write, context=Context())
        with pytest.raises(AlreadyHeld):
            async with log.claim():
                pass
        # Tasks that the claimer starts write within its claim.
        await asyncio.gather(*(log.append(n) for n in range(1, 6)))
        assert await log.pop() == (6, 5)
        assert values(await other.read()) == [0, 1, 2, 3, 4]
        await log.trim(keep=3)
    await other.append("yes")
    assert values(await log.read()) == [2, 3, 4, "yes"]
    assert (await storage.perform(Get(log.address))).fields.keys() <= {"next", "gap"}


async def test_a_claimer_whose_lease_has_ended_writes_nothing() -> None:
    clock = Clock()
    async with MemoryStorage(clock=clock) as storage:
        log = Log(storage, "bot", 42)
        async with log.claim():
            await log.append(1)
            # The process was stopped, and its lease ended before a renewal.
            clock.advance(tail.LEASE + 1)
            with pytest.raises(LeaseLost):
                await log.append(2)
        assert await log.append(3) == range(2, 3)
        assert values(await log.read()) == [1, 3]


async def test_a_writer_that_is_refused_often_claims_the_log(storage: Counted) -> None:
    log = Log(storage, "bot", 42)
    await log.append("mine")
    others = 0

    async def write_first(operation: Operation) -> None:
        # Another process is always faster, until it has to wait for the claim.
        nonlocal others
        change = getattr(operation, "change", None)
        if change is None or not change.parts or (operation.guard is not None and operation.guard.token):
            return
        others += 1
        name = f"{others + 1:016}"
        text = storage.seal(log.address).seal("p", name, "other")
        await MemoryStorage.perform(storage, Apply(log.address, Change(storage.ids(), parts={name: text})))

    class Racing(Counted):
        async def perform(self, operation: Operation) -> Any:
            await write_first(operation)
            return await super().perform(operation)

    storage.__class__ = Racing
    try:
        assert await log.append("mine") == range(tail.MOST_REFUSALS + 2, tail.MOST_REFUSALS + 3)
    finally:
        storage.__class__ = Counted
    assert values(await log.read()) == ["mine", *["other"] * tail.MOST_REFUSALS, "mine"]
    storage.operations.clear()
    await log.append("quick")
    assert [type(operation) for operation in storage.operations] == [Apply]


async def test_the_turn_of_a_killed_writer_is_removed_by_the_next_one(log: Log, storage: Counted) -> None:
    await log.append(1)
    turn = storage.seal(log.address).fields({"turn": True})
    await storage.perform(Apply(log.address, Change(storage.ids(), set=turn)))
    assert await log.append(2) == range(2, 3)
    assert (await storage.perform(Get(log.address))).fields == {}


async def test_a_damaged_entry_is_reported_and_kept_in_quarantine(log: Log, storage: Counted) -> None:
    await log.append("a", "b")
    name = next(iter((await storage.perform(Get(log.address, Range(reverse=True, limit=1)))).parts))
    await storage.perform(Apply(log.address, Change(storage.ids(), parts={name: "00000000 1"})))
    assert values(await log.read(limit=1)) == ["a"]
    with pytest.raises(CorruptRecord):
        await log.read()
    assert await storage.quarantined(LOGS, ("bot", 42)) is not None


def test_a_log_without_an_event_loop() -> None:
    storage = MemoryStorage()
    log = Log(storage, "bot", 42)
    assert sync(log.append(1, 2)) == range(1, 3)
    assert sync(log.append(3)) == range(3, 4)
    assert values(sync(log.read())) == [1, 2, 3]
    sync(storage.close())


@pytest.mark.parametrize("options", [{"limit": 0}, {"limit": 1.5}, {"ttl": 0}, {"tags": "user:1"}], ids=str)
def test_invalid_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        Log(MemoryStorage(), "bot", 42, **options)


async def followed(log: Log, count: int, *, after: int = 0) -> list[int]:
    """Return the numbers of this many entries."""
    numbers: list[int] = []
    async for entry in log.follow(after=after):
        numbers.append(entry.number)
        if len(numbers) == count:
            break
    return numbers


async def test_a_follower_gets_each_entry_once_in_order(log: Log) -> None:
    await log.append(*range(500))
    followers = [asyncio.create_task(followed(log, 1000 - after, after=after)) for after in (0, 250, 999)]
    for n in range(500, 1000, 10):
        await log.append(*range(n, n + 10))
        await asyncio.sleep(0)
    async with asyncio.timeout(30):
        for after, numbers in zip((0, 250, 999), await asyncio.gather(*followers), strict=True):
            assert numbers == list(range(after + 1, 1001))


async def test_a_follower_reads_again_only_after_a_notice_or_a_pause(log: Log, storage: Storage) -> None:
    assert isinstance(storage, Counted)
    await log.append(1)
    follower = log.follow()
    assert await anext(follower) == (1, 1)
    waiting = asyncio.ensure_future(anext(follower))
    await asyncio.sleep(0.3)
    reads = sum(type(operation) is Get for operation in storage.operations)
    assert reads < 10
    await log.append(2)
    assert await waiting == (2, 2)
    await follower.aclose()
