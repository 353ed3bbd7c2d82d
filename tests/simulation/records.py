"""Records: random operations of several processes, and counters under claims that must lose no increment."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from stepwell.errors import StepwellError
from stepwell.record import Address
from stepwell.slot import Slot
from stepwell.storage import Applied, Apply, Operation, Result, Storage
from stepwell.testing.simulated_loop import SimulatedProcess
from stepwell.testing.simulated_store import NETWORK_FAULTS
from tests.reliability import linear
from tests.reliability.roles import BOT, OPERATIONS
from tests.simulation.world import Life, World

__all__ = ["Records"]

KEYS = 2
#: The counters are at these keys.
COUNTERS = (100, 101)
LEASE = 3.0


class Records(World):
    """Two processes with a few tasks each."""

    places = dict.fromkeys(("one", "two"), ("kill", "pause", "stop", *NETWORK_FAULTS))
    span = 5.0
    steps = 200
    requests = 40

    def __init__(self, seed: int, faults: Any = None) -> None:
        super().__init__(seed, faults)
        #: What the processes know of their operations, and what the server knows of the writes.
        self.done: list[tuple[Any, ...]] = []
        self.written: dict[str, linear.Op] = {}
        self.attempts: dict[int, int] = defaultdict(int)
        self.counted: dict[int, list[int]] = defaultdict(list)
        self.addresses: dict[Address, int] = {}
        self.store.watchers.append(self._watch)

    async def live(self) -> None:
        for slot in self.places:
            self.keep(slot, self.work)
        await asyncio.wait(self._supervisors, timeout=300)
        self.calm()
        await asyncio.wait(self._supervisors, timeout=300)
        assert all(task.done() for task in self._supervisors), "the processes have not ended"
        storage = self.store.storage()
        async with storage:
            for key in COUNTERS:
                began = self.simulation.now
                async with Slot(storage, BOT, key, wait=LEASE + 60):
                    pass
                assert self.simulation.now - began < LEASE + 1, f"the key {key} stays stuck"
                data = await storage.get_data(BOT, key) or {}
                self.check_counter(data.get("n", 0), self.counted[key], self.attempts[key])
        self.check_history()

    async def work(self, life: Life) -> None:
        """Run operations, and increment counters, until all are done."""
        async with self.storage() as storage:
            number = len([each for each in self.lives if each.slot == life.slot])
            if number < 4:
                await asyncio.gather(
                    self.operate(storage, life), self.operate(storage, life), self.count(storage, life)
                )

    async def operate(self, storage: Storage, life: Life) -> None:
        for _ in range(6):
            key = self.choose.randrange(KEYS)
            kind = self.choose.choices(["get", "merge", "replace", "delete", "claim"], [4, 4, 1, 1, 3])[0]
            self.addresses[storage.address(BOT, key)] = key
            try:
                await OPERATIONS[kind](storage, self.done, key)
            except StepwellError as error:
                life.report("error", kind, key, type(error).__name__)
            await asyncio.sleep(self.choose.choice([0, 0, 0.01, 0.5]))

    async def count(self, storage: Storage, life: Life) -> None:
        for _ in range(5):
            key = self.choose.choice(COUNTERS)
            try:
                async with Slot(storage, BOT, key, wait=20, lease=LEASE) as slot:
                    number = slot.data.get("n", 0) + 1
                    await asyncio.sleep(self.choose.choice([0, 0.01, 1]))
                    slot.data["n"] = number
                    self.attempts[key] += 1
                    await slot.commit()
                self.counted[key].append(number)
                life.report("counted", key, number)
            except StepwellError as error:
                life.report("error", "count", key, type(error).__name__)

    def _watch(
        self, process: SimulatedProcess | None, operations: Sequence[Operation], results: Sequence[Result]
    ) -> None:
        for operation, result in zip(operations, results, strict=True):
            key = self.addresses.get(operation.address)
            if key is None or not isinstance(operation, Apply) or not isinstance(result, Applied):
                continue
            change = operation.change
            if result.version.write == change.write:
                kind = "delete" if change.delete else "replace" if change.replace else "merge"
                at = self.simulation.now
                self.written[change.write] = linear.Op(kind, key, at, math.inf, *result.version, None)

    @staticmethod
    def check_counter(found: int, counted: list[int], attempts: int) -> None:
        assert len(set(counted)) == len(counted), f"two increments gave the same number: {sorted(counted)}"
        assert max(counted, default=0) <= found <= attempts, f"{found} after {len(counted)} increments"

    def check_history(self) -> None:
        """Check that the operations are linearizable, with those of killed processes that the server has applied."""
        known = {entry[5] for entry in self.done if entry[0] in ("merge", "replace", "delete")}
        history = [linear.Op(*entry) for entry in self.done]
        history += [op for write, op in self.written.items() if write not in known]
        by_key: dict[int, list[linear.Op]] = defaultdict(list)
        for op in history:
            by_key[op.key].append(op)
        for ops in by_key.values():
            linear.check(ops)
