from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from stepwell import SQLiteStorage, open_storage
from stepwell.errors import InvalidOption, OutcomeUnknown, StorageClosed, StorageError, StorageFull, StorageUnavailable
from stepwell.record import Address, Change
from stepwell.slot import Slot
from stepwell.storage.operations import Applied, Apply, Claim, Claimed, Get, Operation, Release, Result
from stepwell.storage.transport.batch import JOURNAL_LIFE, Batch
from stepwell.storage.transport.lane import Lane
from stepwell.testing import Clock, FaultyStorage
from tests.constants import Constants
from tests.storage.key_checks import skip_key_checks
from tests.until import yields


class Recorder:
    """A backend whose batches end when the test lets them."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.bad: list[Operation] = []

    async def __call__(self, batch: Batch) -> list[Result]:
        self.batches.append(batch)
        await asyncio.sleep(0)
        await self.gate.wait()
        if any(operation in self.bad for operation in batch):
            raise ValueError("this operation fails the batch")
        return [Claimed(None, "", None, 0.0) if isinstance(operation, Claim) else None for operation in batch]

    def lane(self, **options: Any) -> Lane:
        return Lane(self, ids=iter("abcdefgh").__next__, **options)


def get(number: int) -> Get:
    return Get(Address("bot", str(number)))


def put(number: int) -> Apply:
    return Apply(Address("bot", str(number)), Change("w"))


async def start(lane: Lane, operations: Sequence[Operation]) -> list[asyncio.Task[Result]]:
    tasks = [asyncio.create_task(lane.submit(operation)) for operation in operations]
    await asyncio.sleep(0)
    return tasks


async def settle() -> None:
    await yields(10)


async def test_operations_that_arrive_during_a_batch_form_the_next_batch() -> None:
    run = Recorder()
    lane = run.lane()
    run.gate.clear()
    first = await start(lane, [get(0)])
    await settle()
    rest = await start(lane, [get(number) for number in range(1, 6)])
    await settle()
    run.gate.set()
    await asyncio.gather(*first, *rest)
    assert [list(batch) for batch in run.batches] == [[get(0)], [get(number) for number in range(1, 6)]]
    assert [batch.number for batch in run.batches] == [1, 2]
    assert {batch.lane for batch in run.batches} == {"a"}


async def test_a_queued_batch_does_not_wait_for_the_tasks_that_got_results() -> None:
    run = Recorder()
    lane = run.lane()
    run.gate.clear()

    async def both() -> None:
        await lane.submit(get(0))
        await lane.submit(get(2))

    first = asyncio.create_task(both())
    await settle()
    second = await start(lane, [get(1)])
    run.gate.set()
    await asyncio.gather(first, *second)
    assert [list(batch) for batch in run.batches] == [[get(0)], [get(1)], [get(2)]]


async def test_a_single_operation_is_sent_at_once() -> None:
    run = Recorder()
    lane = run.lane()
    for number in range(3):
        await lane.submit(get(number))
    assert [len(batch) for batch in run.batches] == [1, 1, 1]


async def test_concurrent_calls_share_a_batch_in_call_order() -> None:
    run = Recorder()
    await asyncio.gather(*await start(run.lane(), [get(number) for number in range(50)]))
    assert [list(batch) for batch in run.batches] == [[get(number) for number in range(50)]]


async def test_a_batch_has_at_most_a_hundred_operations_or_a_mebibyte() -> None:
    run = Recorder()
    await asyncio.gather(*await start(run.lane(), [get(number) for number in range(250)]))
    assert [len(batch) for batch in run.batches] == [100, 100, 50]
    run.batches.clear()
    big = Change(write="w", set={"a": "x" * 600_000})
    await asyncio.gather(*await start(run.lane(), [Apply(Address("bot", str(n)), big) for n in range(5)]))
    assert [len(batch) for batch in run.batches] == [2, 2, 1]


async def test_one_failing_operation_does_not_affect_the_others() -> None:
    run = Recorder()
    run.bad = [get(7)]
    tasks = await start(run.lane(), [get(number) for number in range(20)])
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results].count(ValueError) == 1
    assert isinstance(results[7], ValueError)


async def test_the_operation_of_a_waiter_cancelled_before_sending_is_not_sent() -> None:
    run = Recorder()
    lane = run.lane()
    run.gate.clear()
    first = await start(lane, [get(0)])
    await settle()
    rest = await start(lane, [get(1), get(2), get(3)])
    rest[1].cancel()
    await settle()
    run.gate.set()
    results = await asyncio.gather(*first, *rest, return_exceptions=True)
    assert [list(batch) for batch in run.batches] == [[get(0)], [get(1), get(3)]]
    assert isinstance(results[2], asyncio.CancelledError)


async def test_a_waiter_cancelled_after_sending_does_not_disturb_its_batch() -> None:
    run = Recorder()
    lane = run.lane()
    run.gate.clear()
    tasks = await start(lane, [get(0), get(1), get(2)])
    await settle()
    tasks[1].cancel()
    await settle()
    run.gate.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [type(None), asyncio.CancelledError, type(None)]
    await lane.submit(get(3))


async def test_a_claim_whose_waiter_was_cancelled_is_released_at_once() -> None:
    run = Recorder()
    lane = run.lane()
    run.gate.clear()
    tasks = await start(lane, [Claim(Address("bot", "1"), "T", 10)])
    await settle()
    tasks[0].cancel()
    await settle()
    run.gate.set()
    await settle()
    assert list(run.batches[-1]) == [Release(Address("bot", "1"), "T")]


async def test_a_release_is_sent_even_if_its_waiter_is_cancelled() -> None:
    run = Recorder()
    lane = run.lane()
    run.gate.clear()
    await start(lane, [get(0)])
    await settle()
    tasks = await start(lane, [Release(Address("bot", "1"), "T")])
    tasks[0].cancel()
    await settle()
    run.gate.set()
    await settle()
    assert list(run.batches[-1]) == [Release(Address("bot", "1"), "T")]


async def test_many_operations_are_sent_in_order(constants: Constants) -> None:
    constants(batch_operations=3)
    run = Recorder()
    lane = run.lane()
    run.gate.clear()
    tasks = await start(lane, [get(number) for number in range(30)])
    await settle()
    tasks[20].cancel()
    run.gate.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    sent = [operation.address.key for batch in run.batches for operation in batch]
    assert sent == [str(number) for number in range(30) if number != 20]
    assert max(map(len, run.batches)) == 3


async def test_a_closed_lane_finishes_its_operations_and_refuses_new_ones() -> None:
    run = Recorder()
    lane = run.lane()
    tasks = await start(lane, [get(0)])
    await lane.close()
    assert tasks[0].done() or await tasks[0] is None
    with pytest.raises(StorageClosed):
        await lane.submit(get(1))


async def test_an_idle_lane_leaves_no_task_behind() -> None:
    run = Recorder()
    await asyncio.gather(*await start(run.lane(), [get(number) for number in range(5)]))
    await settle()
    assert [task.get_name() for task in asyncio.all_tasks() if "stepwell" in task.get_name()] == []


async def test_a_write_whose_answer_was_lost_is_applied_once() -> None:
    for after in (1, 2, 3):
        async with skip_key_checks(FaultyStorage(after=[after])) as storage:
            for number in range(4):
                await storage.update_data("bot", 1, {f"f{number}": number})
            stored = await storage.perform(Get(storage.address("bot", 1)))
            first = int(stored.written_at * 1e6)
            assert stored.version.number - first < 4
            assert await storage.get_data("bot", 1) == {f"f{n}": n for n in range(4)}
            again = [(b.lane, b.number) for b in storage.batches if isinstance(b, Batch)]
            assert len(again) - len(set(again)) == 1, "the repeated batch has the same number"


async def test_a_write_that_was_never_sent_is_sent_again() -> None:
    async with skip_key_checks(FaultyStorage(before=[1, 2, 4])) as storage:
        assert await storage.update_data("bot", 1, {"a": 1}) == {"a": 1}
        assert await storage.update_data("bot", 1, {"b": 1}) == {"a": 1, "b": 1}


async def test_the_final_error_says_whether_the_write_may_have_been_applied() -> None:
    async with skip_key_checks(FaultyStorage(before=range(1, 100), patience=0.01)) as storage:
        with pytest.raises(StorageUnavailable):
            await storage.update_data("bot", 1, {"a": 1})
    async with skip_key_checks(FaultyStorage(after=range(1, 100), patience=0.01)) as storage:
        with pytest.raises(OutcomeUnknown, match="read the record"):
            await storage.update_data("bot", 1, {"a": 1})
        with pytest.raises(StorageUnavailable):
            await storage.get_data("bot", 1)
        storage.after = ()
        assert await storage.update_data("bot", 1, {"b": 1}) == {"a": 1, "b": 1}
    numbers = [batch.number for batch in storage.batches if isinstance(batch, Batch)]
    assert len({batch.lane for batch in storage.batches if isinstance(batch, Batch)}) == 1
    assert numbers == sorted(numbers), "a late copy of the write has a lower number than later batches"
    assert numbers[-1] > numbers[0]


@pytest.mark.parametrize("when", ["in the call", "in the pause"])
async def test_a_write_is_not_sent_again_after_the_process_was_suspended(when: str, clock: Clock) -> None:
    sent: list[Batch] = []

    async def run(batch: Batch) -> list[Result]:
        sent.append(batch)
        if when == "in the call":
            clock.advance(JOURNAL_LIFE + 1)
        else:
            asyncio.get_running_loop().call_soon(clock.advance, JOURNAL_LIFE + 1)
        raise StorageUnavailable("the connection broke", sent=True)

    lane = Lane(run, ids=iter("abcd").__next__, clock=clock)
    with pytest.raises(OutcomeUnknown):
        await lane.submit(Apply(Address("bot", "1"), Change(write="w")))
    assert len(sent) == 1


async def test_no_patience_is_longer_than_the_life_of_a_journal(clock: Clock) -> None:
    started = clock()
    last = started

    async def run(batch: Batch) -> list[Result]:
        nonlocal last
        last = clock()
        clock.advance(10)
        raise StorageUnavailable("the connection broke", sent=True)

    lane = Lane(run, ids=iter("abcd").__next__, clock=clock, patience=3600, pauses=(0.0, 0.0))
    with pytest.raises(OutcomeUnknown):
        await lane.submit(Apply(Address("bot", "1"), Change(write="w")))
    assert 200 < last - started < JOURNAL_LIFE


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("redis://localhost", {"patience": 601}),
        ("redis://localhost", {"patience": 300}),
        ("redis://localhost?patience=1e9", {}),
        ("redis://localhost", {"patience": 10, "timeout": 600}),
        ("redis+cluster://localhost?patience=3600", {}),
        ("postgresql://localhost/db", {"patience": 601}),
        ("postgresql://localhost/db", {"patience": 200, "connect_timeout": 400}),
    ],
)
def test_a_patience_longer_than_the_journal_of_a_server_is_refused(url: str, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match="a server remembers its last writes for 600 s"):
        open_storage(url, **options)


@pytest.mark.parametrize("url", ["redis://localhost", "postgresql://localhost/db"])
def test_a_patience_of_minutes_is_accepted(url: str) -> None:
    open_storage(url, patience=240)


async def test_every_call_that_fails_leaves_all_or_nothing() -> None:
    """The n-th batch fails, for every n: acknowledged writes are stored, and no write is stored in part."""
    for fault in range(1, 12):
        async with skip_key_checks(FaultyStorage(after=[fault], patience=0)) as storage:
            acknowledged: dict[str, int] = {}
            for number in range(10):
                try:
                    await storage.update_data("bot", 1, {f"a{number}": number, f"b{number}": number})
                    acknowledged |= {f"a{number}": number, f"b{number}": number}
                except OutcomeUnknown:
                    pass
            storage.after = ()
            data = await storage.get_data("bot", 1) or {}
            assert acknowledged.items() <= data.items()
            assert all(data.get(f"b{name[1:]}") == value for name, value in data.items())


async def test_cancelling_at_any_point_does_not_affect_other_callers() -> None:
    """One of two writers is cancelled after n steps of the loop, for every n."""
    for steps in range(25):
        async with skip_key_checks(FaultyStorage()) as storage:
            victim = asyncio.create_task(storage.update_data("bot", 1, {"victim": 1, "twin": 1}))
            other = asyncio.create_task(storage.update_data("bot", 1, {"other": 1}))
            await yields(steps)
            victim.cancel()
            await asyncio.wait([victim])
            assert (await other)["other"] == 1
            data = await storage.get_data("bot", 1) or {}
            assert ("victim" in data) == ("twin" in data)
            assert isinstance(await storage.perform(Claim(storage.address("bot", 1), "T", 1)), Claimed)
            assert isinstance(await storage.perform(Apply(storage.address("bot", 1), Change(write="w"))), Applied)


async def test_a_retry_that_fails_after_a_lost_result_raises_outcome_unknown() -> None:
    class Odd(FaultyStorage):
        async def run(self, operations: Sequence[Operation]) -> list[Result]:
            if len(self.batches) == 1:
                self.batches.append(operations)
                raise RuntimeError("odd")
            return await super().run(operations)

    async with skip_key_checks(Odd(after=[1])) as storage:
        results = await asyncio.gather(
            *(storage.update_data("bot", key, {"a": 1}) for key in range(3)), return_exceptions=True
        )
        assert [type(result) for result in results] == [OutcomeUnknown] * 3
        for key in range(3):
            assert await storage.get_data("bot", key) == {"a": 1}
            stored = await storage.perform(Get(storage.address("bot", key)))
            assert stored.version.number - int(stored.written_at * 1e6) <= 1, "applied once"


async def test_every_waiter_gets_an_error_if_a_backend_returns_too_few_results() -> None:
    class Short(FaultyStorage):
        async def run(self, operations: Sequence[Operation]) -> list[Result]:
            return (await super().run(operations))[:-1]

    async with asyncio.timeout(10), Short() as storage:
        results = await asyncio.gather(*(storage.get_data("bot", key) for key in range(5)), return_exceptions=True)
        assert {type(result) for result in results} == {StorageUnavailable}
        assert len({id(result) for result in results}) == 5, "each waiter gets a separate error object"


async def test_a_cancellation_inside_the_backend_does_not_cancel_the_waiters() -> None:
    class Cancelling(FaultyStorage):
        async def run(self, operations: Sequence[Operation]) -> list[Result]:
            raise asyncio.CancelledError

    async with Cancelling() as storage:
        with pytest.raises(StorageUnavailable):
            await storage.get_data("bot", 1)


async def test_a_lane_continues_after_a_whole_batch_of_waiters_was_cancelled(constants: Constants) -> None:
    constants(batch_operations=5)
    run = Recorder()
    lane = run.lane()
    run.gate.clear()
    tasks = await start(lane, [get(number) for number in range(40)])
    await settle()
    for task in tasks[5:16]:
        task.cancel()
    run.gate.set()
    async with asyncio.timeout(10):
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(result, asyncio.CancelledError) for result in results) == 11
    sent = [operation.address.key for batch in run.batches for operation in batch]
    assert sent == [str(number) for number in range(40) if not 5 <= number < 16]


async def test_operations_that_fail_their_batches_are_found_in_few_batches_and_in_order() -> None:
    run = Recorder()
    lane = run.lane()
    run.bad = [get(number) for number in (0, 41, 42, 99)]
    tasks = await start(lane, [get(number) for number in range(100)])
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [n for n, result in enumerate(results) if isinstance(result, ValueError)] == [0, 41, 42, 99]
    good = [batch for batch in run.batches if not set(batch) & set(run.bad)]
    sent = [operation.address.key for batch in good for operation in batch]
    assert sent == [str(number) for number in range(100) if number not in (0, 41, 42, 99)]
    assert len(run.batches) < 50
    assert await lane.submit(get(100)) is None


class KeywordOnly(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


class NoCopy(Exception):
    def __copy__(self) -> NoCopy:
        raise RuntimeError("cannot be copied")


class NoReduce(Exception):
    def __reduce__(self) -> Any:
        raise RuntimeError("cannot be reduced")


class OtherCopy(Exception):
    def __copy__(self) -> Any:
        return "not an error"


class Slotted(Exception):
    __slots__ = ("code",)

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code


class NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("has no text")


class OddFull(StorageFull):
    def __new__(cls, *, code: int) -> OddFull:
        return super().__new__(cls)

    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")


class OddUnavailable(StorageUnavailable):
    def __new__(cls, *, code: int) -> OddUnavailable:
        return super().__new__(cls)

    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}", final=True)


class NotAnException(BaseException):
    pass


ODD_ERRORS: list[tuple[BaseException, type[Exception]]] = [
    (KeywordOnly(code=1), KeywordOnly),
    (NoCopy(), NoCopy),
    (NoReduce(), NoReduce),
    (OtherCopy(), OtherCopy),
    (Slotted(1), Slotted),
    (NoText(), NoText),
    (StopAsyncIteration(), StopAsyncIteration),
    (OddFull(code=1), StorageError),
    (OddUnavailable(code=1), StorageError),
    (ExceptionGroup("several", [ValueError()]), ExceptionGroup),
    (BaseExceptionGroup("several", [asyncio.CancelledError()]), StorageUnavailable),
    (NotAnException(), StorageUnavailable),
]


@pytest.mark.parametrize("operations", [1, 5])
@pytest.mark.parametrize(("error", "expected"), ODD_ERRORS, ids=[type(error).__name__ for error, _ in ODD_ERRORS])
async def test_any_error_of_a_backend_reaches_every_waiter_and_the_lane_continues(
    error: BaseException, expected: type[Exception], operations: int
) -> None:
    fails = True

    async def run(batch: Batch) -> list[Result]:
        if fails:
            raise error
        return [None] * len(batch)

    lane = Lane(run, ids=iter("abcdefgh").__next__)
    results = await asyncio.gather(*await start(lane, list(map(get, range(operations)))), return_exceptions=True)
    assert [isinstance(result, expected) for result in results] == [True] * operations, results
    fails = False
    assert await lane.submit(get(0)) is None


async def test_an_error_of_any_type_as_a_result_is_raised() -> None:
    async def run(batch: Batch) -> list[Any]:
        return [KeywordOnly(code=1) for _ in batch]

    with pytest.raises(KeywordOnly):
        await Lane(run, ids=iter("abcdefgh").__next__).submit(get(0))


async def test_a_claim_of_an_outage_is_released_after_the_outage() -> None:
    away = True
    batches: list[Batch] = []

    async def run(batch: Batch) -> list[Result]:
        batches.append(batch)
        if away:
            raise StorageUnavailable("the server does not answer", sent=True)
        return [None for _ in batch]

    lane = Lane(run, ids=iter("abcd").__next__, patience=0.0)
    claim = Claim(Address("bot", "1"), "T", 30.0)
    with pytest.raises(StorageUnavailable):
        await lane.submit(claim)
    while len(batches) < 2:
        await asyncio.sleep(0)
    assert [list(batch) for batch in batches] == [[claim], [Release(claim.address, "T")]]
    away = False
    await lane.submit(get(2))
    await lane.close()
    assert [list(batch) for batch in batches[2:]] == [[get(2)], [Release(claim.address, "T")]]


async def test_a_release_that_fails_on_a_full_disk_is_sent_again() -> None:
    full = True
    batches: list[Batch] = []

    async def run(batch: Batch) -> list[Result]:
        batches.append(batch)
        if full:
            raise StorageFull("the disk is full")
        return [None for _ in batch]

    lane = Lane(run, ids=iter("abcd").__next__)
    release = Release(Address("bot", "1"), "T")
    with pytest.raises(StorageFull):
        await lane.submit(release)
    # A storage with a path beside the lane must use the lane now.
    assert not lane.idle
    full = False
    await lane.submit(get(2))
    await lane.close()
    assert [list(batch) for batch in batches] == [[release], [get(2)], [release]]
    assert lane.idle


class Full(SQLiteStorage):
    full = False

    async def run(self, operations: Sequence[Operation]) -> list[Result]:
        if self.full:
            raise StorageFull("the disk is full")
        return await super().run(operations)


async def test_a_claim_can_be_taken_at_once_after_its_release_failed_on_a_full_disk() -> None:
    async with Full(":memory:") as storage:
        slot = Slot(storage, "bot", 1)
        async with slot:
            storage.full = True
            slot.data["name"] = "Alice"
            with pytest.raises(StorageFull):
                await slot.commit()
        storage.full = False
        async with asyncio.timeout(5), Slot(storage, "bot", 1):
            pass
