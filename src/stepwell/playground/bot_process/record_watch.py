"""In the bot's process: follows the operations of all storages, to know each record before it is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from stepwell import Storage
from stepwell.engine import Address, Apply, Claimed, Operation, Result, Stored, observe_storages
from stepwell.playground.bot_process.records import snapshot_of

__all__ = ["RecordWatch", "watch_storages"]

#: Called with a storage, an operation that it has performed, and the result.
Performed: TypeAlias = Callable[[Storage, Operation, Result], None]
#: The most records that are remembered.
MAX_RECORDS = 1000


def watch_storages(performed: Performed) -> None:
    """Follow every storage that is made in this process from now on."""

    def watch(storage: Storage) -> None:
        perform = storage.perform

        async def observed(operation: Operation) -> Any:
            result = await perform(operation)
            performed(storage, operation, result)
            return result

        # Only in this process: observers of operations in every backend would slow down all bots.
        storage.perform = observed  # type: ignore[method-assign]

    observe_storages(watch)


class RecordWatch:
    """The record of each address when it was claimed, and before its last write."""

    def __init__(self) -> None:
        self._claimed: dict[Address, Stored | None] = {}
        self._before: dict[Address, dict[str, Any] | None] = {}

    def performed(self, operation: Operation, result: Result) -> None:
        """Note an operation and its result."""
        address = operation.address
        if isinstance(result, Claimed):
            _put(self._claimed, address, result.record)
        elif isinstance(operation, Apply):
            known = address in self._claimed and operation.guard is not None and operation.guard.token is not None
            fresh: dict[str, Any] | None = {} if operation.change.fresh else None
            _put(self._before, address, snapshot_of(self._claimed[address]) if known else fresh)

    def before(self, address: Address) -> dict[str, Any] | None:
        """Return the snapshot of a record before its last write; ``None`` if it is not known."""
        return self._before.get(address)


def _put(kept: dict[Address, Any], address: Address, value: Any) -> None:
    kept.pop(address, None)
    kept[address] = value
    while len(kept) > MAX_RECORDS:
        del kept[next(iter(kept))]
