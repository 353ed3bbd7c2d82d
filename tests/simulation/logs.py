"""Logs that several processes append to, follow and compact, and timers that several processes serve."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import aclosing
from typing import Any

import pytest

from stepwell import Log
from stepwell.fsm import FSM
from stepwell.log import tail
from stepwell.testing.simulated_store import NETWORK_FAULTS
from tests.reliability.log_roles import KEY, append
from tests.reliability.test_logs import check
from tests.reliability.timer_roles import Timed, run_timers
from tests.simulation.world import Life, World

__all__ = ["Logs", "Timers"]


class Logs(World):
    """Two processes append, one follows, and in every second seed one compacts."""

    places = dict.fromkeys(("one", "two", "reader"), ("kill", "kill", "pause", *NETWORK_FAULTS))
    span = 3.0
    steps = 150
    requests = 30

    def run(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tail, "LEASE", tail.LEASE)
            super().run()

    async def live(self) -> None:
        self.followed: list[Any] = []
        for slot in ("one", "two"):
            self.keep(slot, self.append)
        writers = self._supervisors[:]
        self.keep("reader", self.compact if self.seed % 2 else self.follow)
        await asyncio.wait(writers, timeout=300)
        self.calm()
        async with self.storage() as storage:
            await asyncio.wait(writers)
            found = await Log(storage, "bot", KEY).read()
            if self.seed % 2:
                self.check_compacted([entry.value for entry in found])
            else:
                check(found, self.lives)  # type: ignore[arg-type]
                await self.until(lambda: len(self.followed) >= len(found), "the follower has all entries")
                assert self.followed == found

    async def append(self, life: Life) -> None:
        async with self.storage() as storage:
            await append(storage, life.report, name=life.pid, tasks=2, each=3, lease=3.0)

    async def follow(self, life: Life) -> None:
        async with self.storage() as storage:
            last = self.followed[-1].number if self.followed else 0
            async with aclosing(Log(storage, "bot", KEY).follow(after=last)) as entries:
                async for entry in entries:
                    self.followed.append(entry)

    async def compact(self, life: Life) -> None:
        async with self.storage() as storage:
            log = Log(storage, "bot", KEY)
            while True:
                await asyncio.sleep(self.choose.choice([0, 0.01, 0.3]))
                entries = await log.read(limit=self.choose.randint(2, 6))
                if len(entries) > 1:
                    await log.compact(entries[-1], [["sum", [entry.value for entry in entries]]])

    def check_compacted(self, values: list[Any]) -> None:
        """Check that all acknowledged values are there once and in order, whatever has become a part of a sum."""
        kept: list[tuple[Any, ...]] = []

        def expand(some: list[Any]) -> None:
            for value in some:
                if value[0] == "sum":
                    expand(value[1])
                else:
                    kept.append(tuple(value))

        expand(values)
        assert len(set(kept)) == len(kept), f"a value is there twice: {kept}"
        missing = {tuple(value) for _, _, value in self.reports("appended")} - set(kept)
        assert not missing, f"{missing} are lost"
        orders: dict[Any, list[int]] = defaultdict(list)
        for *writer, number in kept:
            orders[tuple(writer)].append(number)
        assert all(order == list(range(len(order))) for order in orders.values()), orders


class Timers(World):
    """Two processes serve the timers of conversations."""

    places = dict.fromkeys(("one", "two"), ("kill", "kill", "pause", "stop", *NETWORK_FAULTS))
    span = 5.0
    steps = 150
    requests = 30

    async def live(self) -> None:
        for slot in self.places:
            self.keep(slot, self.serve)
        storage = self.store.storage()
        fsm = FSM("bot", storage=storage, flows=[Timed], run_timers=False)
        async with storage:
            for key in range(4):
                await asyncio.sleep(self.choose.random())
                async with fsm.conversation(key=key) as ctx:
                    ctx.start_flow(Timed)
            deadlines = {entry.key: entry.deadline or 0 async for entry in storage.scan("bot")}
            await asyncio.sleep(self.span)
            self.calm()

            async def fired() -> bool:
                return len([entry async for entry in storage.scan("bot", state="late")]) == len(deadlines)

            await self.until(fired, "all timers have fired", seconds=60)
            found = [entry async for entry in storage.scan("bot")]
            assert [entry.state.data["fired"] for entry in found] == [1] * len(found)
            assert all(entry.written_at >= deadlines[entry.key] for entry in found), "a timer has fired too early"

    async def serve(self, life: Life) -> None:
        await run_timers(self.storage(), life.report)
