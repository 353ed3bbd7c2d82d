"""The records of one update, held while its handlers run."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from stepwell import Storage
from stepwell.adapters.framework.retry import PATIENCE, retry_until_free
from stepwell.engine import Slot, quoted
from stepwell.options import check_number

__all__ = ["HeldRecords", "check_waiting"]


class HeldRecords:
    """The records that the handlers of one update hold.

    ``namespace``: that of the records. ``wait`` and ``lease``: as for a slot. ``patience``: the seconds after which an
    update that waits for a record fails.
    """

    def __init__(
        self, storage: Storage, namespace: str, *, wait: float, lease: float, patience: float = PATIENCE
    ) -> None:
        self.storage: Storage = storage
        self.namespace: str = namespace
        self.wait: float = wait
        self.lease: float = lease
        self.patience: float = patience
        #: The held records by key, in the order in which they were claimed.
        self.slots: dict[Any, Slot] = {}

    async def claim(self, key: Any) -> Slot:
        """Claim a record, and wait while it is held elsewhere or the storage is unavailable."""
        slot = await retry_until_free(partial(self.try_claim, key, self.wait), patience=self.patience)
        self.slots[key] = slot
        return slot

    async def try_claim(self, key: Any, wait: float) -> Slot:
        """Claim a record without adding it. Raises ``Busy`` after ``wait`` seconds."""
        return await Slot(self.storage, self.namespace, key, wait=wait, lease=self.lease).__aenter__()

    def releasing(self) -> AsyncExitStack:
        """Return an ``async with`` block that releases all records at its end, even if its task is cancelled meanwhile.

        The first record is released last: the next update waits for it, and then finds the others free.
        """
        stack = AsyncExitStack()
        for slot in self.slots.values():
            stack.push_async_exit(slot)
        return stack


def check_waiting(wait: float, lease: float) -> None:
    """Raise ``InvalidOption`` unless these can be the options of claims."""
    message = f"lease must be above 0 and wait not negative, got lease={quoted(lease)}, wait={quoted(wait)}"
    check_number(lease, message, above=0)
    check_number(wait, message, least=0)
