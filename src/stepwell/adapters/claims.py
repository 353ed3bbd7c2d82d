"""Records that a framework keeps through us, read and written under the claim that the running task holds.

Inside ``holding(...)`` every write is fenced by its claim: a holder that overslept its lease writes nothing.
Outside of it every write is one atomic operation by itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from typing import Any

from stepwell.adapters.patience import patiently
from stepwell.errors import VersionChanged
from stepwell.record import NOWHERE, Address, Change, Place
from stepwell.slot import Slot
from stepwell.storage import Applied, Apply, Get, Guard, Storage

__all__ = ["Claims"]

#: What the running task holds. Tasks that a handler starts inherit it, other tasks of the process do not.
_held: ContextVar[tuple[Slot, ...]] = ContextVar("stepwell_held", default=())


class Claims:
    """The records of one framework in one storage; state and data of a key are one record."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    @asynccontextmanager
    async def holding(self, namespace: str, key: Any, *, wait: float, lease: float) -> AsyncIterator[None]:
        """Claim a record, in the order of the calls; what is asked of it inside goes by this claim."""
        async with AsyncExitStack() as stack:
            slot = await patiently(
                lambda: stack.enter_async_context(Slot(self.storage, namespace, key, wait=wait, lease=lease))
            )
            before = _held.set((*_held.get(), slot))
            try:
                yield
            finally:
                _held.reset(before)

    async def place(self, namespace: str, key: Any) -> Place | None:
        """Where a record stands, or ``None`` if there is none."""
        address = self.storage.address(namespace, key)
        slot = self._slot(address)
        if slot is not None:
            return slot.place if slot.found else None
        stored = await self.storage.perform(Get(address))
        return None if stored is None else self.storage.seal(address).head_back(stored.head)

    async def data(self, namespace: str, key: Any) -> dict[Any, Any]:
        """The data, which is the caller's to change; empty if there is no record."""
        slot = self._slot(self.storage.address(namespace, key))
        if slot is not None:
            return _given_away(slot)
        return await self.storage.get_data(namespace, key) or {}

    async def set_place(self, namespace: str, key: Any, place: Place, *, tags: tuple[str, ...]) -> None:
        """Move a record; its data stays. One that is nowhere and has no data is removed."""
        address = self.storage.address(namespace, key)
        slot = self._slot(address)
        if slot is not None:
            slot.place = place
            await self._commit(slot, tags)
        else:
            await self._apply(address, tags, head=self.storage.seal(address).head(place))

    async def set_data(self, namespace: str, key: Any, data: Mapping[Any, Any], *, tags: tuple[str, ...]) -> None:
        """Replace the data; the place stays."""
        address = self.storage.address(namespace, key)
        slot = self._slot(address)
        if slot is not None:
            slot.data = data
            await self._commit(slot, tags)
        else:
            await self._apply(address, tags, replace=True, set=self.storage.seal(address).fields(data))

    async def update_data(
        self, namespace: str, key: Any, data: Mapping[Any, Any], *, tags: tuple[str, ...]
    ) -> dict[Any, Any]:
        """Merge fields into the data, atomically, and return it."""
        address = self.storage.address(namespace, key)
        slot = self._slot(address)
        if slot is not None:
            slot.data = {**slot.data, **data}
            await self._commit(slot, tags)
            return _given_away(slot)
        seal = self.storage.seal(address)
        applied = await self._apply(address, tags, set=seal.fields(data))
        return {} if applied.record is None else seal.data(applied.record.fields)

    def _slot(self, address: Address) -> Slot | None:
        for slot in _held.get():
            if slot.address == address and slot.storage is self.storage:
                return slot
        return None

    async def _commit(self, slot: Slot, tags: tuple[str, ...]) -> None:
        if slot.place == NOWHERE and not slot.data:
            slot.delete()
        try:
            await slot.commit(keep=True, tags=tags if not slot.tags else slot.tags)
        finally:
            # Also forgets the caller's own objects, which may change later.
            slot.rollback()

    async def _apply(self, address: Address, tags: tuple[str, ...], **changes: Any) -> Applied:
        storage = self.storage
        change = Change(
            storage.ids(), tags=tags, expiry=storage.expiry_of(address), limit=storage.limit_of(address), **changes
        )
        applied: Applied = await storage.perform(Apply(address, change, returning=True))
        record = applied.record
        if record is not None and not record.fields and storage.seal(address).head_back(record.head) == NOWHERE:
            try:
                # Only as it is now: somebody may be writing to it.
                nothing = Change(storage.ids(), delete=True)
                await storage.perform(Apply(address, nothing, Guard(version=record.version)))
            except VersionChanged:
                pass
        return applied


def _given_away(slot: Slot) -> dict[Any, Any]:
    data = slot.data
    # Decoded anew when it is next asked for.
    slot.rollback()
    return data
