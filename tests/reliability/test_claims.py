"""A stale holder cannot write, and no key stays stuck."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from pathlib import Path

import pytest

from stepwell import Storage, open_storage
from stepwell.errors import Busy, LeaseLost
from stepwell.slot import Slot
from stepwell.storage import Claim, Claimed, Release
from tests.backends import Backend
from tests.reliability.dose import LARGE, dose
from tests.reliability.roles import BOT
from tests.reliability.workers import Workers


async def test_a_holder_stopped_past_its_lease_is_refused_and_writes_nothing(
    shared_backend: Backend, workers: Workers, tmp_path: Path
) -> None:
    url = shared_backend.place()
    storage = shared_backend.storage(url)
    await storage.open()
    lease = 0.6

    async def pause(key: int) -> None:
        # A file for each holder, so that a holder that is not suspended yet does not continue.
        go = tmp_path / f"go-{key}"
        holder = workers.start("hold", url, key=key, lease=lease, go=str(go))
        await holder.wait_for("holds")
        holder.signal(signal.SIGSTOP)
        # Waits until the lease of the suspended holder has expired.
        async with Slot(storage, BOT, key, wait=30) as slot:
            assert slot.data == {}
            slot.data["by"] = "the waiter"
            await slot.commit()
        go.touch()
        holder.signal(signal.SIGCONT)
        await holder.wait_for("done")
        assert holder.reported("refused") == [["refused", "LeaseLost"]]
        assert not holder.reported("committed")
        assert await storage.get_data(BOT, key) == {"by": "the waiter"}

    pauses = dose("PAUSES", 5, 200)
    for first in range(0, pauses, 5):
        await asyncio.gather(*(pause(key) for key in range(first, min(first + 5, pauses))))


async def test_a_holder_whose_loop_was_blocked_past_its_lease_is_refused_if_another_one_wrote(
    shared_backend: Backend,
) -> None:
    url = shared_backend.place()
    storage = shared_backend.storage(url)

    async def write() -> None:
        async with open_storage(url) as other, Slot(other, BOT, 1) as slot:
            slot.data["by"] = "the other one"
            await slot.commit()

    with pytest.raises(LeaseLost):
        async with Slot(storage, BOT, 1, lease=0.2) as slot:
            slot.data["by"] = "the blocked one"
            another = threading.Thread(target=asyncio.run, args=(write(),))
            another.start()
            another.join()
            await slot.commit()
    assert await storage.get_data(BOT, 1) == {"by": "the other one"}


async def test_a_holder_whose_loop_was_blocked_past_its_lease_goes_on_if_nobody_wanted_it(
    shared_backend: Backend,
) -> None:
    storage = shared_backend.storage()
    async with Slot(storage, BOT, 1, lease=0.2) as slot:
        time.sleep(0.3)
        slot.data["by"] = "the blocked one"
        await slot.commit()
    assert await storage.get_data(BOT, 1) == {"by": "the blocked one"}


async def test_a_killed_holder_frees_its_key_within_its_lease_and_a_second(
    shared_backend: Backend, workers: Workers, tmp_path: Path
) -> None:
    url = shared_backend.place()
    storage = shared_backend.storage(url)
    await storage.open()
    lease = 1.0

    async def death(key: int) -> None:
        holder = workers.start("hold", url, key=key, lease=lease, go=str(tmp_path / "never"))
        await holder.wait_for("holds")
        await holder.kill()
        killed = time.monotonic()
        async with Slot(storage, BOT, key, wait=30):
            # A machine that also runs other tests needs more time.
            assert time.monotonic() - killed < lease + (1 if LARGE else 15)

    holders = dose("HOLDERS", 5, 200)
    for first in range(0, holders, 5):
        await asyncio.gather(*(death(key) for key in range(first, min(first + 5, holders))))


async def test_claims_in_opposite_order_raise_instead_of_hanging(
    shared_backend: Backend, workers: Workers, tmp_path: Path
) -> None:
    url = shared_backend.place()
    storage = shared_backend.storage(url)
    for number in range(dose("CROSSINGS", 1, 100)):
        meet = tmp_path / str(number)
        meet.mkdir()
        one = workers.start("cross", url, first=1, second=2, wait=0.6, meet=str(meet))
        other = workers.start("cross", url, first=2, second=1, wait=0.6, meet=str(meet))
        await one.wait_for("done", timeout=40)
        await other.wait_for("done", timeout=40)
        assert one.reported("busy") or other.reported("busy")
        await free(storage, 1)
        await free(storage, 2)


async def test_tasks_that_claim_in_opposite_order_raise_instead_of_hanging(shared_backend: Backend) -> None:
    storage = shared_backend.storage()
    both = asyncio.Barrier(2)

    async def cross(first: int, second: int) -> None:
        async with Slot(storage, BOT, first, wait=0.3):
            await both.wait()
            async with Slot(storage, BOT, second, wait=0.3):
                pass

    ends = await asyncio.gather(cross(1, 2), cross(2, 1), return_exceptions=True)
    assert any(isinstance(end, Busy) for end in ends)
    await free(storage, 1)
    await free(storage, 2)
    assert not storage.waiters


async def free(storage: Storage, key: int) -> None:
    address = storage.address(BOT, key)
    assert isinstance(await storage.perform(Claim(address, "another token", 1.0)), Claimed)
    await storage.perform(Release(address, "another token"))
