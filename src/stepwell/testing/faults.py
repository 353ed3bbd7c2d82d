"""A storage whose connection breaks on request."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any

from stepwell._secrets import quoted
from stepwell.errors import InvalidOption, StepwellError, StorageUnavailable
from stepwell.options import check_number
from stepwell.storage import MemoryStorage, Operation, Result, Storage
from stepwell.storage.transport.batch import Batch

__all__ = ["FaultyStorage"]


class FaultyStorage(MemoryStorage):
    """A memory storage with batches, a journal and faults, as behind a network.

    Batches are counted from 1. Those in ``before`` fail without being applied; those in ``after`` are
    applied, and only the result is lost.

    Example::

        storage = FaultyStorage(after=[1])
        await storage.set_state("my_bot", 42, State("registration", "get_name"))
        assert await storage.get_state("my_bot", 42) == State("registration", "get_name")
    """

    def __init__(
        self, *, before: Collection[int] = (), after: Collection[int] = (), patience: float = 10.0, **options: Any
    ) -> None:
        for name, numbers in (("before", before), ("after", after)):
            if not isinstance(numbers, Collection) or not all(type(each) is int and each > 0 for each in numbers):
                raise InvalidOption(
                    f"{name} takes numbers of batches, counted from 1, as in {name}=[3]; got {quoted(numbers)}"
                )
        check_number(patience, "patience must be a number of seconds, got {}", least=0)
        super().__init__(**options)
        self.before: Collection[int] = before
        self.after: Collection[int] = after
        #: All batches that were sent, including failed ones.
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
            raise StorageUnavailable("the connection broke before the result arrived")
        return results

    async def _once(self, operations: Sequence[Operation]) -> list[Result]:
        if not isinstance(operations, Batch):
            return await super().run(operations)
        number, results = self._journal.get(operations.lane, (0, []))
        if operations.number < number:
            raise StepwellError("a batch arrived late and was refused")
        if operations.number > number:
            results = await super().run(operations)
            self._journal[operations.lane] = (operations.number, results)
        return results
