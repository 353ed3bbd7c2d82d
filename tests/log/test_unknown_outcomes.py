"""Writes of a log whose answer is lost: they are found again, or written once more, never twice."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stepwell import Log, MemoryStorage
from stepwell.errors import OutcomeUnknown
from stepwell.log import tail
from stepwell.storage import Apply, Operation

#: What happens to the writes that get no answer.
Fate = Callable[["Unanswered", Operation], Awaitable[Any]]


class Unanswered(MemoryStorage):
    """Gives no answer to the next writes."""

    def __init__(self, *fates: Fate) -> None:
        super().__init__()
        self.fates = list(fates)
        self.late: list[Operation] = []
        #: Another process with the same store.
        self.other = MemoryStorage()
        self.other._cells = self._cells

    async def perform(self, operation: Operation) -> Any:
        while self.late and isinstance(operation, Apply):
            await self._ignored(self.late.pop())
        if isinstance(operation, Apply) and operation.change.parts and self.fates:
            await self.fates.pop(0)(self, operation)
            raise OutcomeUnknown(operation.address.text, "the connection was cut")
        return await super().perform(operation)

    async def _ignored(self, operation: Operation) -> None:
        await MemoryStorage.run(self, [operation])


async def lost(storage: Unanswered, operation: Operation) -> None:
    """It never arrives."""


async def applied(storage: Unanswered, operation: Operation) -> None:
    """It is applied."""
    await storage._ignored(operation)


async def late(storage: Unanswered, operation: Operation) -> None:
    """It is applied just before the next write."""
    storage.late.append(operation)


async def lost_to_another(storage: Unanswered, operation: Operation) -> None:
    """Another process uses its number, with the same value."""
    await Log(storage.other, "bot", 42).append("value")


async def applied_and_followed(storage: Unanswered, operation: Operation) -> None:
    """It is applied, and another process appends after it."""
    await storage._ignored(operation)
    await Log(storage.other, "bot", 42).append("other")


async def applied_and_removed(storage: Unanswered, operation: Operation) -> None:
    """It is applied, and another process removes it."""
    await storage._ignored(operation)
    await Log(storage.other, "bot", 42).clear()


async def deleted(storage: Unanswered, operation: Operation) -> None:
    """The log is deleted."""
    await Log(storage.other, "bot", 42).delete()


async def appended(storage: Unanswered, *, before: bool) -> list[Any]:
    """Append a value, and return all values."""
    log = Log(storage, "bot", 42)
    fates, storage.fates = storage.fates, []
    if before:
        await log.append("before")
    storage.fates = fates
    (number,) = await log.append("value")
    found = dict(await log.read())
    assert found[number] == "value"
    assert await log.append("after") == range(max(found) + 1, max(found) + 2)
    return list(found.values())


@pytest.mark.parametrize("before", [False, True], ids=["new log", "old log"])
@pytest.mark.parametrize("fate", [lost, applied, late], ids=lambda fate: fate.__name__)
async def test_a_value_is_appended_once(fate: Fate, before: bool) -> None:
    assert await appended(Unanswered(fate), before=before) == [*["before"] * before, "value"]


async def test_a_value_is_appended_once_although_another_process_wrote_too() -> None:
    assert await appended(Unanswered(applied_and_followed), before=True) == ["before", "value", "other"]
    # The first "value" is the one of the other process.
    assert await appended(Unanswered(lost_to_another), before=True) == ["before", "value", "value"]


@pytest.mark.parametrize("fate", [applied_and_removed, deleted], ids=lambda fate: fate.__name__)
async def test_the_error_is_raised_if_the_outcome_cannot_be_found_out(fate: Fate) -> None:
    with pytest.raises(OutcomeUnknown):
        await appended(Unanswered(fate), before=True)


async def test_the_error_is_raised_after_a_long_outage() -> None:
    storage = Unanswered(*[lost] * tail.MOST_TRIES)
    with pytest.raises(OutcomeUnknown):
        await appended(storage, before=True)


async def test_a_removed_entry_is_returned_by_pop_once() -> None:
    class Popping(Unanswered):
        async def perform(self, operation: Operation) -> Any:
            if isinstance(operation, Apply) and operation.change.drop is not None and self.fates:
                await self.fates.pop(0)(self, operation)
                raise OutcomeUnknown(operation.address.text, "the connection was cut")
            return await super().perform(operation)

    for fate in (lost, applied, late):
        storage = Popping()
        log = Log(storage, "bot", 42)
        await log.append("a", "b", "c")
        storage.fates = [fate]
        assert await log.pop() == (3, "c")
        assert await log.read() == [(1, "a"), (2, "b")], fate
        assert await log.append("d") == range(4, 5)
