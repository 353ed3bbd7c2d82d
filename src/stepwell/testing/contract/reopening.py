"""Promises of one store with several storage objects: after a restart, in parallel, and in other processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import traceback
import warnings
from collections.abc import Coroutine
from typing import Any

import pytest

from stepwell.errors import LeaseLost, RecordReplaced, VersionChanged
from stepwell.record import State
from stepwell.storage import Claimed, Guard, Storage, Taken
from stepwell.testing.clock import Clock
from stepwell.testing.contract.suite import BOT, KEY, Suite, apply, claim, fields, get, memo, part, release

__all__ = ["ReopenPromises", "SharingPromises", "forked"]

NOTHING_LEFT = (
    "the second storage object does not see the record. reopen(storage) must open the same store; "
    "if records end with their storage object, set persistent = False"
)


class ReopenPromises(Suite):
    """What a new storage object over the same store finds."""

    async def test_every_acknowledged_write_is_there_after_close_and_reopen(self, storage: Storage) -> None:
        held = await claim(storage, "A")
        await apply(
            storage,
            data={"a": 1, "b": (2, "é")},
            head=("f", "s"),
            tags=("user:1",),
            parts={"p": [1]},
            memo=["m"],
            deadline=50.0,
            expiry=100.0,
            held=("A", held),
        )
        before = await get(storage, parts=True)
        await storage.set_state(BOT, "cleared", State("f", "s", {"a": 1}))
        await storage.clear(BOT, "cleared")
        base = (await claim(storage, "A", "cleared")).base
        await release(storage, "A", "cleared")
        await storage.close()
        async with self.reopen(storage) as later:
            after = await get(later, parts=True)
            assert after is not None, NOTHING_LEFT
            assert after == before
            assert fields(later, after) == {"a": 1, "b": (2, "é")}
            assert part(later, after, "p") == [1]
            assert memo(later, await claim(later, "B")) == ["m"]
            assert await later.get_state(BOT, "cleared") is None
            assert (await claim(later, "B", "cleared")).base == base
            written = await apply(later, data={"a": 2})
            assert written.version.number == after.version.number + 1

    async def test_a_write_is_stored_when_it_is_acknowledged_and_not_only_at_close(self, storage: Storage) -> None:
        await storage.set_state(BOT, KEY, State("f", "s", {"a": 1}))
        await storage.set_state(BOT, "cleared", State("f", "s"))
        await storage.clear(BOT, "cleared")
        async with self.reopen(storage) as other:
            assert await other.get_state(BOT, KEY) == State("f", "s", {"a": 1}), NOTHING_LEFT
            assert await other.get_state(BOT, "cleared") is None

    async def test_a_closed_storage_can_be_opened_again(self, storage: Storage) -> None:
        await storage.set_state(BOT, KEY, State("f", "s", {"a": 1}))
        await storage.close()
        await storage.open()
        assert await storage.get_state(BOT, KEY) == State("f", "s", {"a": 1})
        assert await storage.update_data(BOT, KEY, {"b": 2}) == {"a": 1, "b": 2}


class SharingPromises(Suite):
    """Promises for several storage objects over the same store at the same time."""

    async def test_a_write_is_seen_by_a_second_object_that_has_read_before(self, storage: Storage) -> None:
        async with self.reopen(storage) as other:
            assert await other.get_state(BOT, KEY) is None
            for number in range(3):
                await storage.set_state(BOT, KEY, State("f", "s", {"n": number}))
                assert await other.get_state(BOT, KEY) == State("f", "s", {"n": number}), NOTHING_LEFT
                assert [entry.state.data async for entry in other.scan(BOT)] == [{"n": number}]
                await other.update_data(BOT, KEY, {"other": number})
                claimed = await claim(storage, "A")
                assert fields(storage, claimed.record) == {"n": number, "other": number}
                await release(storage, "A")
            await other.clear(BOT, KEY)
            assert await storage.get_state(BOT, KEY) is None

    async def test_a_lease_holds_against_a_second_object(self, storage: Storage, clock: Clock) -> None:
        async with self.reopen(storage) as other:
            held = await claim(storage, "A", lease=10)
            assert isinstance(await claim(other, "B"), Taken)
            with pytest.raises(LeaseLost):
                await apply(other, data={"a": "B"}, held=("B", held))
            clock.advance(10)
            taken_over = await claim(other, "B", lease=10)
            assert isinstance(taken_over, Claimed)
            with pytest.raises(LeaseLost):
                await apply(storage, data={"a": "A"}, held=("A", held))
            await apply(other, data={"a": "B"}, held=("B", taken_over))
            assert await storage.get_data(BOT, KEY) == {"a": "B"}
            assert isinstance(await claim(storage, "A"), Claimed)

    async def test_guards_detect_writes_of_a_second_object(self, storage: Storage) -> None:
        async with self.reopen(storage) as other:
            first = await apply(storage, data={"a": 1})
            await other.update_data(BOT, KEY, {"b": 2})
            with pytest.raises(VersionChanged):
                await apply(storage, data={"a": 2}, guard=Guard(version=first.version))
            held = await claim(storage, "A")
            await other.clear(BOT, KEY)
            with pytest.raises(RecordReplaced):
                await apply(storage, data={"a": 3}, held=("A", held))
            assert await storage.get_data(BOT, KEY) is None

    async def test_concurrent_merges_by_two_objects_are_all_kept(self, storage: Storage) -> None:
        async with self.reopen(storage) as other:
            await asyncio.gather(
                *(_merge(each, f"{name}{n}") for n in range(25) for name, each in (("a", storage), ("b", other)))
            )
            expected = {f"{name}{n}": 1 for n in range(25) for name in "ab"}
            assert await storage.get_data(BOT, KEY) == await other.get_data(BOT, KEY) == expected

    async def test_of_many_claims_by_two_objects_one_succeeds(self, storage: Storage) -> None:
        async with self.reopen(storage) as other:
            for key in range(5):
                results = await asyncio.gather(
                    *(claim(each, f"{name}{n}", key) for n in range(5) for name, each in (("a", storage), ("b", other)))
                )
                assert sum(isinstance(result, Claimed) for result in results) == 1

    async def test_deadlines_and_expiries_are_found_by_a_second_object(self, storage: Storage, clock: Clock) -> None:
        async with self.reopen(storage) as other:
            assert await other.due(BOT) == []
            await apply(storage, 1, data={}, deadline=10.0)
            await apply(storage, 2, data={}, expiry=10.0)
            clock.advance(10)
            assert [entry.address for entry in await other.due(BOT)] == [storage.address(BOT, 1)]
            assert [address for address, _ in (await other.sweep()).expired] == [storage.address(BOT, 2)]
            await apply(other, 1, data={}, deadline=None)
            assert await storage.due(BOT) == []
            assert (await storage.sweep()).removed == 0

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork()")
    async def test_concurrent_merges_by_two_processes_are_all_kept(self, storage: Storage) -> None:
        await storage.update_data(BOT, KEY, {"parent": 1})
        # The storage is closed before the fork, so that none of its threads runs.
        await storage.close()
        ready, go = os.pipe(), os.pipe()
        children = [forked(self._merge_in_a_process(storage, name, ready[1], go[0])) for name in "ab"]
        # Closed here, so that a read ends when the children end.
        os.close(ready[1])
        os.close(go[0])
        for _ in children:
            await asyncio.to_thread(os.read, ready[0], 1)
        with contextlib.suppress(BrokenPipeError):
            os.write(go[1], b"go")
        ended = [await asyncio.to_thread(os.waitpid, child, 0) for child in children]
        os.close(ready[0])
        os.close(go[1])
        assert [status for _, status in ended] == [0, 0], "a process failed; its traceback is in the captured output"
        async with self.reopen(storage) as later:
            expected = {f"{name}{n}": 1 for n in range(25) for name in "ab"}
            assert await later.get_data(BOT, KEY) == {"parent": 1, **expected}, NOTHING_LEFT

    async def _merge_in_a_process(self, storage: Storage, name: str, ready: int, go: int) -> None:
        async with self.reopen(storage) as own:
            os.write(ready, b".")
            await asyncio.to_thread(os.read, go, 1)
            for n in range(25):
                await _merge(own, f"{name}{n}")


async def _merge(storage: Storage, field: str) -> None:
    await storage.update_data(BOT, KEY, {field: 1})


def forked(work: Coroutine[Any, Any, None]) -> int:
    """Run a coroutine in a child process and return its process id."""
    with warnings.catch_warnings():
        # Python 3.12 warns if any thread is alive, idle ones included.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child:
        work.close()
        return child
    status = 1
    try:
        signal.alarm(60)
        asyncio.run(work)
        status = 0
    except BaseException:  # noqa: BLE001 the parent checks the exit status
        traceback.print_exc()
    finally:
        os._exit(status)
