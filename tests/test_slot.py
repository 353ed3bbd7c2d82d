from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stepwell import Limits, MemoryStorage, State, StateStorage, Storage
from stepwell.errors import (
    AlreadyHeld,
    Busy,
    CorruptRecord,
    EncodeError,
    InvalidOption,
    LeaseLost,
    RecordReplaced,
    StorageClosed,
    StorageUnavailable,
    TooLarge,
    UsageError,
)
from stepwell.record import RUNS, Change, Queue
from stepwell.slot import Slot, lease
from stepwell.slot.waiters import held_tokens
from stepwell.storage import Apply, Claim, Claimed, Get, Guard, Release
from stepwell.testing import FaultyStorage
from tests.backends import Backend
from tests.constants import Constants
from tests.insides import cell_at, cells_of
from tests.until import until, yields


@pytest.fixture
async def storage(backend: Backend) -> Storage:
    storage = backend.storage()
    await storage.open()
    return storage


async def test_only_changed_fields_are_written(storage: Storage) -> None:
    await storage.set_state("bot", 1, State("f", "s", {"a": 1, "list": [1], "gone": 1}))
    async with Slot(storage, "bot", 1) as slot:
        assert (slot.found, slot.flow, slot.state, slot.data) == (True, "f", "s", {"a": 1, "list": [1], "gone": 1})
        slot.state = "t"
        slot.data["list"].append(2)
        del slot.data["gone"]
        await storage.update_data("bot", 1, {"a": "outside", "b": "outside"})
        assert await slot.commit()
    assert await storage.get_state("bot", 1) == State("f", "t", {"a": "outside", "b": "outside", "list": [1, 2]})


async def test_a_commit_without_changes_writes_nothing(storage: Storage) -> None:
    await storage.set_state("bot", 1, State("f", "s", {"a": [1]}))
    before = await storage.perform(Get(storage.address("bot", 1)))
    async with Slot(storage, "bot", 1) as slot:
        slot.data["a"] = [1]
        slot.state = "s"
        assert not await slot.commit()
    async with Slot(storage, "bot", 2) as slot:
        assert not slot.found
        assert not await slot.commit()
    assert await storage.perform(Get(storage.address("bot", 1))) == before
    assert await storage.get_state("bot", 2) is None


async def test_uncommitted_changes_are_dropped_and_the_key_is_free(storage: Storage) -> None:
    with pytest.raises(ZeroDivisionError):
        async with Slot(storage, "bot", 1) as slot:
            slot.data["a"] = 1
            raise ZeroDivisionError
    assert await storage.get_state("bot", 1) is None
    async with Slot(storage, "bot", 1, wait=0) as slot:
        assert slot.data == {}


async def test_one_update_is_one_claim_and_one_write() -> None:
    async with FaultyStorage() as storage:
        async with Slot(storage, "bot", 1) as slot:
            slot.flow, slot.state, slot.data = "f", "s", {"a": 1}
            await slot.commit()
        kinds = [type(operation) for batch in storage.batches for operation in batch]
        assert kinds == [Claim, Apply]


async def test_a_commit_that_keeps_can_be_followed_by_another(storage: Storage) -> None:
    async with Slot(storage, "bot", 1) as slot:
        slot.data["a"] = 1
        assert await slot.commit(keep=True)
        assert await storage.get_data("bot", 1) == {"a": 1}
        assert not await slot.commit(keep=True)
        slot.data["b"] = [1]
        await slot.commit(keep=True)
        slot.delete()
        await slot.commit(keep=True)
        assert await storage.get_state("bot", 1) is None
        slot.state, slot.data = "again", {"c": 1}
        await slot.commit()
    assert await storage.get_state("bot", 1) == State(None, "again", {"c": 1})


async def test_a_rollback_drops_uncommitted_changes(storage: Storage) -> None:
    await storage.set_state("bot", 1, State("f", "s", {"list": [1]}))
    async with Slot(storage, "bot", 1) as slot:
        slot.state = "t"
        await slot.commit(keep=True)
        slot.data["list"].append(2)
        slot.delete()
        await slot.rollback()
        assert (slot.state, slot.data) == ("t", {"list": [1]})
        assert not await slot.commit()


async def test_deleting_nothing_writes_nothing(storage: Storage) -> None:
    async with Slot(storage, "bot", 1) as slot:
        slot.delete()
        assert not await slot.commit()


async def test_a_part_may_be_encoded_ahead_of_its_commit(storage: Storage) -> None:
    async with Slot(storage, "bot", 1) as slot:
        part = slot.seal_part("p", [1, (2,)])
        with pytest.raises(EncodeError, match="object"):
            slot.seal_part("q", [object()])
        await slot.commit(parts={"p": part}, keep=True)
        assert await slot.parts() == {"p": [1, (2,)]}


async def test_memo_tags_deadline_and_parts_are_written_with_a_commit(storage: Storage) -> None:
    async with Slot(storage, "bot", 1) as slot:
        assert slot.memo is None
        slot.data["a"] = 1
        await slot.commit(memo={"ids": [1]}, tags=("user:1",), deadline=60.0, expiry=600.0, parts={"p": [1, 2]})
    async with Slot(storage, "bot", 1) as slot:
        assert slot.memo == {"ids": [1]}
        assert slot.tags == ("user:1",)
        assert slot.deadline == pytest.approx(slot.now + 60, abs=5)
        assert slot.expires_at == pytest.approx(slot.now + 600, abs=5)
        slot.delete()
        await slot.commit(memo={"ids": [1, 2]})
    async with Slot(storage, "bot", 1) as slot:
        assert (slot.found, slot.memo) == (False, {"ids": [1, 2]})


async def test_waiters_of_one_key_enter_in_the_order_of_their_calls(storage: Storage) -> None:
    order: list[int] = []

    async def hold(number: int) -> None:
        async with Slot(storage, "bot", 1) as slot:
            order.append(number)
            slot.data["count"] = slot.data.get("count", 0) + 1
            await asyncio.sleep(0)
            await slot.commit()

    await asyncio.gather(*(hold(number) for number in range(30)))
    assert order == list(range(30))
    assert await storage.get_data("bot", 1) == {"count": 30}
    assert storage.waiters == {}


async def test_waiting_ends_with_busy_in_the_same_process(storage: Storage) -> None:
    held = asyncio.Event()

    async def second() -> None:
        await held.wait()
        async with Slot(storage, "bot", 1, wait=0.05):
            pytest.fail("it was held")

    waiting = asyncio.create_task(second())
    async with Slot(storage, "bot", 1):
        held.set()
        with pytest.raises(Busy, match="503"):
            await waiting
        assert len(storage.waiters) == 1
    assert storage.waiters == {}


async def test_waiting_for_another_process_ends_with_busy_or_when_its_lease_does(storage: Storage) -> None:
    address = storage.address("bot", 1)
    await storage.perform(Claim(address, "another token", 0.5))
    with pytest.raises(Busy):
        async with Slot(storage, "bot", 1, wait=0.05):
            pytest.fail("it was held")
    async with Slot(storage, "bot", 1, wait=10) as slot:
        assert not slot.found


async def test_a_long_wait_for_another_process_logs_the_key_the_holder_and_the_time_left_once(
    storage: Storage, constants: Constants, caplog: pytest.LogCaptureFixture
) -> None:
    assert lease.LONG_WAIT == 2
    constants(long_wait=0.02)
    address = storage.address("bot", (42, 7))
    assert isinstance(await storage.perform(Claim(address, "another", 30)), Claimed)

    async def release_after_the_line() -> None:
        await until(lambda: caplog.messages)
        # The waiter polls several times after its line.
        await asyncio.sleep(0.3)
        await storage.perform(Release(address, "another"))

    releasing = asyncio.create_task(release_after_the_line())
    async with Slot(storage, "bot", (42, 7), wait=60):
        assert re.search(
            r"the claim on bot/\(42,7\), which the holder another has for (2\d|30)\.\d s more", caplog.text
        )
    await releasing
    assert [record.levelname for record in caplog.records if record.name == "stepwell.slot.lease"] == ["WARNING"]


async def test_waiters_of_one_process_log_no_wait_for_each_other(
    storage: Storage, constants: Constants, caplog: pytest.LogCaptureFixture
) -> None:
    constants(long_wait=0.0)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(3):
            tasks.create_task(_hold_for_a_moment(storage))
    assert caplog.messages == []


async def _hold_for_a_moment(storage: Storage) -> None:
    async with Slot(storage, "bot", 1):
        await asyncio.sleep(0.01)


async def test_a_task_that_holds_a_key_cannot_wait_for_itself(storage: Storage) -> None:
    async with Slot(storage, "bot", 1):
        with pytest.raises(AlreadyHeld):
            async with Slot(storage, "bot", 1):
                pytest.fail("it was held")
        async with Slot(storage, "bot", 2):
            pass


async def enter_again(storage: Storage) -> None:
    async with Slot(storage, "bot", 1):
        pytest.fail("it was held")


async def enter_by_gather(storage: Storage) -> None:
    await asyncio.gather(enter_again(storage), asyncio.sleep(0))


async def enter_by_wait_for(storage: Storage) -> None:
    await asyncio.wait_for(enter_again(storage), 30)


async def enter_by_a_task(storage: Storage) -> None:
    await asyncio.create_task(enter_again(storage))


async def enter_by_a_task_of_a_task(storage: Storage) -> None:
    await asyncio.create_task(enter_by_a_task(storage))


async def enter_by_a_thread(storage: Storage) -> None:
    loop = asyncio.get_running_loop()
    await asyncio.to_thread(lambda: asyncio.run_coroutine_threadsafe(enter_again(storage), loop).result())


@pytest.mark.parametrize(
    "enter", [enter_by_a_task, enter_by_a_task_of_a_task, enter_by_gather, enter_by_wait_for, enter_by_a_thread]
)
async def test_a_task_started_by_the_holder_of_a_key_cannot_enter_it(
    enter: Callable[[Storage], Awaitable[None]],
) -> None:
    async with asyncio.timeout(20), MemoryStorage() as storage:
        async with Slot(storage, "bot", 2), Slot(storage, "bot", 1), Slot(storage, "bot", 3):
            for key in range(100, 300):
                async with Slot(storage, "bot", key):
                    pass
            with pytest.raises(AlreadyHeld, match="after that block"):
                await enter(storage)
        assert storage.waiters == {}
        assert held_tokens.get() == ()


async def test_a_task_started_by_a_holder_may_enter_the_key_later(storage: Storage) -> None:
    left = asyncio.Event()

    async def later(number: int) -> None:
        await left.wait()
        async with Slot(storage, "bot", 1) as slot:
            slot.data[number] = True
            await asyncio.sleep(0.001)
            await slot.commit()

    async with Slot(storage, "bot", 1):
        tasks = [asyncio.create_task(later(number)) for number in range(5)]
        await asyncio.sleep(0)
    left.set()
    async with asyncio.timeout(20):
        await asyncio.gather(*tasks)
    assert await storage.get_data("bot", 1) == dict.fromkeys(range(5), True)


async def test_slots_may_be_left_in_any_order_and_in_another_task() -> None:
    async with MemoryStorage() as storage:
        first, second, third = (Slot(storage, "bot", key) for key in (1, 2, 3))
        await first.__aenter__()
        await second.__aenter__()
        await asyncio.create_task(third.__aenter__())
        await first.__aexit__(None, None, None)
        with pytest.raises(AlreadyHeld):
            await Slot(storage, "bot", 2).__aenter__()
        await third.__aexit__(None, None, None)
        await asyncio.create_task(second.__aexit__(None, None, None))
        for key in range(200):
            slot = Slot(storage, "bot", key)
            await slot.__aenter__()
            await asyncio.create_task(slot.__aexit__(None, None, None))
        assert storage.waiters == {}
        assert len(held_tokens.get()) < 100


async def test_two_tasks_that_claim_two_keys_in_opposite_orders_get_an_error(storage: Storage) -> None:
    entered = asyncio.Barrier(2)

    async def both(one: int, other: int) -> None:
        async with Slot(storage, "bot", one, wait=0.1):
            await entered.wait()
            async with Slot(storage, "bot", other, wait=0.1):
                pass

    results = await asyncio.gather(both(1, 2), both(2, 1), return_exceptions=True)
    assert any(isinstance(result, Busy) for result in results)
    assert storage.waiters == {}


async def test_a_long_holder_is_renewed(storage: Storage) -> None:
    async with Slot(storage, "bot", 1, lease=1.2) as slot:
        slot.data["a"] = 1
        await asyncio.sleep(1.5)
        await slot.commit()
    assert await storage.get_data("bot", 1) == {"a": 1}


async def test_a_holder_does_not_reopen_a_closed_storage(storage: Storage, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(StorageClosed, match=r"open\(\)"):
        async with Slot(storage, "bot", 1, lease=0.3) as slot:
            slot.data["a"] = 1
            await storage.close()
            await until(lambda: "could not be renewed" in caplog.text)
            assert not storage.is_open
            await slot.commit()
    assert not storage.is_open
    assert storage.waiters == {}
    assert "could not be released" in caplog.text
    await storage.open()
    assert await storage.update_data("bot", 2, {"a": 1}) == {"a": 1}


async def test_a_holder_that_blocks_the_loop_past_its_lease_goes_on_if_nobody_took_it(storage: Storage) -> None:
    async with Slot(storage, "bot", 1, lease=0.2) as slot:
        slot.data["a"] = 1
        time.sleep(0.4)
        await slot.commit(keep=True)
        time.sleep(0.4)
        # The renewal, which is late, claims it again too.
        await asyncio.sleep(0.1)
        slot.data["a"] = 2
        await slot.commit()
    assert await storage.get_data("bot", 1) == {"a": 2}
    async with Slot(storage, "bot", 1, wait=0) as slot:
        assert slot.data == {"a": 2}


async def test_a_holder_that_blocks_the_loop_while_another_one_writes_the_record_writes_nothing(
    storage: Storage,
) -> None:
    address = storage.address("bot", 1)
    with pytest.raises(LeaseLost):
        async with Slot(storage, "bot", 1, lease=0.1) as slot:
            slot.data["a"] = 1
            time.sleep(0.15)
            claimed = await storage.perform(Claim(address, "another", 10))
            change = Change(storage.ids(), set=storage.seal(address).fields({"b": 1}))
            await storage.perform(Apply(address, change, Guard("another", claimed.base)))
            await slot.commit()
    assert await storage.get_data("bot", 1) == {"b": 1}
    async with Slot(storage, "bot", 1, wait=0) as slot:
        assert slot.data == {"b": 1}


async def test_a_commit_after_the_claim_was_taken_over_raises() -> None:
    async with MemoryStorage() as storage:
        with pytest.raises(LeaseLost):
            async with Slot(storage, "bot", 1, lease=0.1) as slot:
                slot.data["a"] = 1
                time.sleep(0.15)
                await storage.perform(Claim(storage.address("bot", 1), "other", 10))
                await asyncio.sleep(0.1)
                await slot.commit()


async def test_a_record_replaced_under_its_holder_is_not_written(storage: Storage) -> None:
    await storage.set_data("bot", 1, {"a": 1})
    with pytest.raises(RecordReplaced):
        async with Slot(storage, "bot", 1) as slot:
            slot.data["a"] = 2
            await storage.set_data("bot", 1, {"b": 1})
            await slot.commit()
    assert await storage.get_data("bot", 1) == {"b": 1}
    async with Slot(storage, "bot", 1, wait=0) as slot:
        assert slot.data == {"b": 1}


async def test_a_cancellation_at_any_point_leaves_no_queue_no_task_and_no_claim() -> None:
    for steps in range(40):
        async with FaultyStorage() as storage:

            async def hold(storage: Storage, name: str) -> None:
                async with Slot(storage, "bot", 1) as slot:
                    slot.data[name] = slot.data[f"twin of {name}"] = 1
                    await asyncio.sleep(0)
                    await slot.commit()

            tasks = [asyncio.create_task(hold(storage, name)) for name in "abc"]
            await yields(steps)
            tasks[steps % 3].cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert [r for r in results if not (r is None or isinstance(r, asyncio.CancelledError))] == []
            assert storage.waiters == {}
            async with Slot(storage, "bot", 1, wait=10) as slot:
                for name in "abc":
                    assert (name in slot.data) == (f"twin of {name}" in slot.data)
                for name, result in zip("abc", results, strict=True):
                    assert result is not None or name in slot.data
        await asyncio.sleep(0)
        assert [task for task in asyncio.all_tasks() if "stepwell" in task.get_name()] == []


async def test_many_different_keys_leave_nothing_behind() -> None:
    async with MemoryStorage() as storage:
        for key in range(20_000):
            async with Slot(storage, "bot", key):
                pass
        assert storage.waiters == {}
        assert cells_of(storage) == {}
        assert [task for task in asyncio.all_tasks() if "stepwell" in task.get_name()] == []


async def test_a_damaged_record_raises_is_copied_to_quarantine_and_can_be_replaced() -> None:
    async with MemoryStorage() as storage:
        await storage.set_state("bot", 1, State("f", "s", {"a": 1, "b": 2}))
        await storage.set_state("bot", 2, State("f", "s", {"a": 1}))
        cell = cell_at(storage, "bot", 1)
        cell.fields["a"] = cell.fields["a"].replace("1", "2")

        async def enter() -> None:
            async with Slot(storage, "bot", 1):
                pytest.fail("a damaged record was handed out")

        for read in (lambda: storage.get_state("bot", 1), lambda: storage.get_data("bot", 1), enter):
            with pytest.raises(CorruptRecord, match=r"bot/1.*field 'a'.*clear"):
                await read()
        copy: Any = await storage.quarantined("bot", 1)
        assert copy["fields"] == cell.fields
        assert await storage.quarantined("bot", 2) is None
        assert await storage.get_data("bot", 2) == {"a": 1}
        assert storage.waiters == {}
        await storage.clear("bot", 1)
        async with Slot(storage, "bot", 1, wait=0) as slot:
            assert slot.data == {}


async def test_a_storage_that_fails_at_the_release_does_not_fail_the_caller(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "stepwell.slot.lease")
    async with FaultyStorage(before=range(2, 99), patience=0) as storage:
        async with Slot(storage, "bot", 1):
            pass
        assert "is released after the outage" in caplog.text
        assert storage.waiters == {}
        storage.before = ()


async def test_a_storage_that_is_unavailable_at_the_claim_raises_and_leaves_no_queue() -> None:
    async with FaultyStorage(before=range(1, 99), patience=0) as storage:
        with pytest.raises(StorageUnavailable):
            async with Slot(storage, "bot", 1):
                pytest.fail("there was no claim")
        assert storage.waiters == {}
        storage.before = ()


async def test_cancelled_waiters_leave_the_queue_in_order(backend: Backend) -> None:
    storage = backend.storage()
    done: list[int] = []

    async def hold(number: int) -> None:
        async with Slot(storage, "bot", 1) as slot:
            slot.data[number] = True
            await slot.commit()
            done.append(number)

    for victims in ({9}, {8, 9, 10}, set(range(5, 20, 2))):
        done.clear()
        tasks = {number: asyncio.create_task(hold(number)) for number in range(25)}
        while len(done) < min(victims) - 1:
            await asyncio.sleep(0)
        for _ in range(3):
            await asyncio.sleep(0.001)
            for number in victims:
                tasks[number].cancel()
        async with asyncio.timeout(20):
            results = await asyncio.gather(*tasks.values(), return_exceptions=True)
        assert [r for r in results if r is not None and not isinstance(r, asyncio.CancelledError)] == []
        assert done == sorted(done)
        assert set(range(25)) - set(done) <= victims
        assert storage.waiters == {}


async def test_a_slot_is_held_once_and_says_so(storage: Storage) -> None:
    slot = Slot(storage, "bot", 1)
    with pytest.raises(UsageError, match="not held"):
        await slot.commit()
    async with slot:
        slot.data["a"] = 1
        await slot.commit()
        with pytest.raises(UsageError, match="released"):
            await slot.commit()
    with pytest.raises(UsageError, match="new one"):
        async with slot:
            pass
    with pytest.raises(UsageError):
        await slot.commit()


async def test_values_set_after_a_delete_are_a_new_record(storage: Storage) -> None:
    async with Slot(storage, "bot", 1) as slot:
        slot.flow, slot.state, slot.data = "f", "s", {"a": 1}
        await slot.commit(deadline=60.0, parts={"p": None, "q": 1})
    async with Slot(storage, "bot", 1) as slot:
        assert await slot.parts() == {"p": None, "q": 1}
        slot.delete()
        slot.data["b"] = 2
        await slot.commit()
    async with Slot(storage, "bot", 1) as slot:
        assert (slot.flow, slot.data, slot.deadline) == (None, {"b": 2}, None)
        assert await slot.parts() == {}


async def test_parts_of_a_replaced_record_are_not_read(storage: Storage) -> None:
    address = storage.address("bot", 1)
    async with Slot(storage, "bot", 1) as slot:
        await slot.commit(parts={"p": 1})
    async with Slot(storage, "bot", 1) as slot:
        await storage.update_data("bot", 1, {"merged": "by a caller without a claim"})
        assert await slot.parts() == {"p": 1}
        await storage.perform(Release(address, slot._token))
        claimed = await storage.perform(Claim(address, "another", 30.0))
        assert isinstance(claimed, Claimed)
        change = Change("w" * 16, parts={"p": None})
        await storage.perform(Apply(address, change, Guard("another", claimed.base), "release"))
        with pytest.raises(LeaseLost):
            await slot.parts()
    for remove in (storage.clear("bot", 1), storage.set_data("bot", 1, {"a": 1})):
        async with Slot(storage, "bot", 1) as slot:
            await slot.commit(keep=True, parts={"p": 1})
            await remove
            with pytest.raises(RecordReplaced):
                await slot.parts()


async def test_parts_are_added_and_dropped_and_each_has_its_limit(storage: Storage) -> None:
    storage.limits = Limits(item=50)
    async with Slot(storage, "bot", 1) as slot:
        await slot.commit(keep=True, parts={"a": [1], "b": 2})
        await slot.commit(keep=True, dropped_parts=["a"])
        assert await slot.parts() == {"b": 2}
        with pytest.raises(TooLarge, match="'c'"):
            await slot.commit(parts={"c": "x" * 60})


@pytest.mark.parametrize(
    "wrong", [{"deadline": "60"}, {"deadline": float("nan")}, {"expiry": float("inf")}, {"tags": "ab"}, {"tags": (5,)}]
)
async def test_wrong_arguments_of_a_commit_are_refused_before_anything_is_written(
    storage: Storage, wrong: dict[str, Any]
) -> None:
    async with Slot(storage, "bot", 1) as slot:
        slot.data["a"] = 1
        with pytest.raises(InvalidOption):
            await slot.commit(**wrong)
    async with Slot(storage, "bot", 1) as slot:
        slot.flow = 5  # type: ignore[assignment]
        with pytest.raises(EncodeError, match="name a flow"):
            await slot.commit()
    assert await storage.get_state("bot", 1) is None


async def test_a_damaged_memo_is_treated_as_empty(caplog: pytest.LogCaptureFixture) -> None:
    async with MemoryStorage() as storage:
        async with Slot(storage, "bot", 1) as slot:
            slot.data["a"] = 1
            await slot.commit(memo=["m"])
        cell_at(storage, "bot", 1).memo = "damaged"
        async with Slot(storage, "bot", 1) as slot:
            assert slot.memo is None
            slot.data["a"] = 2
            await slot.commit(memo=["new"])
        async with Slot(storage, "bot", 1) as slot:
            assert slot.memo == ["new"]
    assert "damaged" in caplog.text


async def test_a_claim_whose_answer_was_lost_does_not_block_its_key() -> None:
    async with FaultyStorage(after=[1], patience=0) as storage:
        with pytest.raises(StorageUnavailable):
            async with Slot(storage, "bot", 1):
                pytest.fail("there was no answer")
        async with Slot(storage, "bot", 1, wait=1.0):
            pass


async def test_a_damaged_run_raises_corrupt_record() -> None:
    async with MemoryStorage() as storage:
        states = StateStorage(storage)
        await states.update_state("r1", {"a": 1})
        cell = cell_at(storage, RUNS, "r1")
        cell.fields["a"] = cell.fields["a"].replace("1", "2")
        with pytest.raises(CorruptRecord):
            await states.get_state("r1")
        assert await storage.quarantined(RUNS, "r1") is not None
        await storage.forget(storage.address(RUNS, "r1"))
        assert await storage.quarantined(RUNS, "r1") is None


async def test_a_merge_into_a_damaged_record_says_that_it_was_made() -> None:
    async with MemoryStorage() as storage:
        await storage.set_data("bot", 1, {"a": 1})
        cell = cell_at(storage, "bot", 1)
        cell.fields["a"] = "damaged"
        with pytest.raises(CorruptRecord) as caught:
            await storage.update_data("bot", 1, {"b": 2})
        assert "the merge was written" in caught.value.__notes__[0]
        assert "b" in cell.fields


async def test_equal_keys_of_different_types_are_different_keys(storage: Storage) -> None:
    await storage.set_state("bot", 1, State("f", "s", {1: "one thing"}))
    async with Slot(storage, "bot", 1) as slot:
        slot.data = {True: " ".join(["one", "thing"])}
        assert await slot.commit()
    assert list(await storage.get_data("bot", 1) or {}) == [True]
    assert [type(key) for key in await storage.get_data("bot", 1) or {}] == [bool]


async def test_a_commit_sets_keeps_and_removes_the_queue() -> None:
    storage = MemoryStorage()
    async with Slot(storage, RUNS, "r") as slot:
        slot.data = {"a": 1}
        await slot.commit(keep=True, queue=Queue("q", 2))
        assert slot.queue == Queue("q", 2)
        slot.data = {"a": 2}
        await slot.commit()
    async with Slot(storage, RUNS, "r") as slot:
        assert slot.queue == Queue("q", 2)
        await slot.commit(queue=None, force=True, keep=True)
        assert slot.queue is None
        assert await storage.queued(RUNS, "q") == []
        for queue in ("q", Queue(""), Queue("x" * 501), Queue("a\nb"), Queue("\ud800"), Queue("q", 1 << 31), ("q", 1)):
            with pytest.raises(InvalidOption, match="queue"):
                await slot.commit(queue=queue, force=True)  # type: ignore[arg-type]
