"""A storage behind a connection that breaks when it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any

from stepwell.errors import InvalidOption, StepwellError, StorageUnavailable
from stepwell.storage import MemoryStorage, Operation, Result, Storage
from stepwell.storage.lane import Batch

__all__ = ["FaultyStorage"]


class FaultyStorage(MemoryStorage):
    """Memory with batches, a journal and faults, as if there were a network in between.

    The n-th batch (counted from 1) fails: those in ``before`` without being applied, those in ``after``
    when they are applied and only the answer is lost.
    """

    def __init__(
        self, *, before: Collection[int] = (), after: Collection[int] = (), patience: float = 10.0, **options: Any
    ) -> None:
        for name, numbers in (("before", before), ("after", after)):
            if not isinstance(numbers, Collection) or not all(type(each) is int and each > 0 for each in numbers):
                raise InvalidOption(
                    f"{name}={numbers!r}: give the numbers of batches, counted from 1, as in {name}=[3]"
                )
        if not isinstance(patience, int | float) or not patience >= 0:
            raise InvalidOption(f"patience is a number of seconds, not {patience!r}")
        super().__init__(**options)
        self.before, self.after = before, after
        #: Every batch that was sent, failed ones included.
        self.batches: list[Sequence[Operation]] = []
        self._patience = patience
        self._journal: dict[str, tuple[int, list[Result]]] = {}

    async def perform(self, operation: Operation) -> Any:
        return await Storage.perform(self, operation)

    async def run(self, operations: Sequence[Operation]) -> list[Result]:
        self.batches.append(operations)
        call = len(self.batches)
        await asyncio.sleep(0)
        if call in self.before:
            raise StorageUnavailable("the connection broke before sending", sent=False)
        results = await self._once(operations)
        if call in self.after:
            raise StorageUnavailable("the connection broke before the answer came")
        return results

    async def _once(self, operations: Sequence[Operation]) -> list[Result]:
        if not isinstance(operations, Batch):
            return await super().run(operations)
        number, results = self._journal.get(operations.lane, (0, []))
        if operations.number < number:
            raise StepwellError("a batch came late and is refused")
        if operations.number > number:
            results = await super().run(operations)
            self._journal[operations.lane] = (operations.number, results)
        return results
