"""Promises that need real time, as the clock of the suite finds no store that forgets by itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell.record import State
from stepwell.storage import Storage, Taken
from stepwell.testing.contract.suite import BOT, Suite, apply, claim, found, get, memo, release

__all__ = ["RealTimePromises"]


class RealTimePromises(Suite):
    """What a store keeps while nobody reads or writes it: everything."""

    @pytest.fixture
    def real_seconds(self, request: pytest.FixtureRequest) -> float:
        """The seconds of ``--stepwell-real-time``, without which the test is skipped."""
        seconds: float | None = request.config.getoption("stepwell_real_time", default=None)
        if seconds is None:
            pytest.skip("it waits: pass --stepwell-real-time 90 to run it with a wait of 90 seconds")
        return seconds

    async def test_everything_is_kept_while_real_time_passes(self, storage: Storage, real_seconds: float) -> None:
        lease = 10 * real_seconds + 60
        times: dict[str, dict[str, Any]] = {"kept": {}, "with times": {"deadline": lease, "expiry": lease}}
        for key, change in times.items():
            await apply(
                storage, key, data={"a": 1}, head=("f", "s"), parts={"p": [1]}, tags=("user:1",), memo=["m"], **change
            )
        await storage.set_state(BOT, "claimed", State("f", "s", {"a": 1}))
        await claim(storage, "A", "claimed", lease=lease)
        await storage.set_state(BOT, "cleared", State("f", "s", {"a": 1}))
        await storage.clear(BOT, "cleared")
        base = (await claim(storage, "A", "cleared")).base
        await release(storage, "A", "cleared")
        before = {key: await found(storage, key, parts=True) for key in ("claimed", *times)}

        await asyncio.sleep(real_seconds)

        forgotten = f"the store has forgotten or changed %r within {real_seconds:g} s"
        for key, stored in before.items():
            assert await get(storage, key, parts=True) == stored, forgotten % key
        assert isinstance(await claim(storage, "B", "claimed"), Taken), f"the store ended a lease of {lease:g} s"
        if self.persistent:
            # The first object may have read them from its memory.
            async with self.reopen(storage) as later:
                for key, stored in before.items():
                    assert await get(later, key, parts=True) == stored, forgotten % key
                assert memo(later, await claim(later, "B", "kept"), "kept") == ["m"]
                assert (await claim(later, "B", "cleared")).base == base, forgotten % "cleared"
