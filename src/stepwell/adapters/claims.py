"""Records that a framework keeps through us, read and written under the claim that the running handler holds.

Inside ``holding(...)`` reads come from what was claimed, and writes wait for its end: then all of them are one
write, fenced by the claim; if it raises, nothing is written. Outside, every call is one atomic operation.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from typing import Any

from stepwell.adapters.patience import patiently
from stepwell.errors import VersionChanged
from stepwell.record import NOWHERE, Address, Change, Place
from stepwell.slot import Slot
from stepwell.storage import Applied, Apply, Get, Guard, Storage

__all__ = ["Claims"]

_SCALARS = frozenset({str, int, float, bool, type(None), bytes})


class Claims:
    """The records of one framework in one storage; state and data of a key are one record.

    ``family`` gives what the keys have in common that one holder claims together, each when it is first
    needed: the first key of a family is claimed by ``holding``, and keeps the others free for it.
    """

    def __init__(self, storage: Storage, *, family: Callable[[Any], Any]) -> None:
        self.storage = storage
        self._family = family

    @asynccontextmanager
    async def holding(self, namespace: str, key: Any, *, wait: float, lease: float) -> AsyncIterator[_Held]:
        """Claim a record, in the order of the calls; what is asked of its family inside goes by this claim."""
        async with AsyncExitStack() as stack:
            held = _Held(self.storage, stack, (namespace, self._family(key)), wait=wait, lease=lease)
            await held.slot(namespace, key)
            before = _held.set((*_held.get(), held))
            try:
                yield held
                await held.commit()
            finally:
                held.over = True
                _held.reset(before)

    async def place(self, namespace: str, key: Any) -> Place:
        """Where a record stands."""
        slot = await self._slot(namespace, key)
        if slot is not None:
            return slot.place
        address = self.storage.address(namespace, key)
        stored = await self.storage.perform(Get(address))
        return NOWHERE if stored is None else self.storage.seal(address).head_back(stored.head)

    async def data(self, namespace: str, key: Any) -> dict[Any, Any]:
        """The data, which is the caller's to change; empty if there is no record."""
        slot = await self._slot(namespace, key)
        if slot is not None:
            return _copied(slot)
        return await self.storage.get_data(namespace, key) or {}

    async def set_place(self, namespace: str, key: Any, place: Place, *, tags: tuple[str, ...]) -> None:
        """Move a record; its data stays. One that is nowhere and has no data is removed."""
        slot = await self._slot(namespace, key, tags)
        if slot is not None:
            slot.place = place
            return
        address = self.storage.address(namespace, key)
        await self._apply(address, tags, head=self.storage.seal(address).head(place))

    async def set_data(self, namespace: str, key: Any, data: Mapping[Any, Any], *, tags: tuple[str, ...]) -> None:
        """Replace the data; the place stays."""
        slot = await self._slot(namespace, key, tags)
        if slot is not None:
            slot.data = self._checked(slot.address, data)
            return
        address = self.storage.address(namespace, key)
        await self._apply(address, tags, replace=True, set=self.storage.seal(address).fields(data))

    async def update_data(
        self, namespace: str, key: Any, data: Mapping[Any, Any], *, tags: tuple[str, ...]
    ) -> dict[Any, Any]:
        """Merge fields into the data, atomically, and return it."""
        slot = await self._slot(namespace, key, tags)
        if slot is not None:
            slot.data.update(self._checked(slot.address, data))
            return _copied(slot)
        address = self.storage.address(namespace, key)
        seal = self.storage.seal(address)
        applied = await self._apply(address, tags, set=seal.fields(data))
        return {} if applied.record is None else seal.data(applied.record.fields)

    async def _slot(self, namespace: str, key: Any, tags: tuple[str, ...] | None = None) -> Slot | None:
        for held in _held.get():
            if not held.over and held.storage is self.storage and held.family == (namespace, self._family(key)):
                return await held.slot(namespace, key, tags)
        return None

    def _checked(self, address: Address, data: Mapping[Any, Any]) -> dict[Any, Any]:
        """What cannot be kept is refused here, and not at the end; what is kept shares nothing with the caller's."""
        seal = self.storage.seal(address)
        return seal.data(seal.fields(data))

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


class _Held:
    """A family of records while one handler has it."""

    def __init__(
        self, storage: Storage, stack: AsyncExitStack, family: tuple[str, Any], *, wait: float, lease: float
    ) -> None:
        self.storage = storage
        self.family = family
        #: A task that the handler started may outlive it; it goes without the claim then.
        self.over = False
        self._stack = stack
        self._wait, self._lease = wait, lease
        self._slots: dict[Any, Slot] = {}
        self._tags: dict[Any, tuple[str, ...]] = {}
        self._claiming = asyncio.Lock()

    async def slot(self, namespace: str, key: Any, tags: tuple[str, ...] | None = None) -> Slot:
        """One of its records; ``tags`` are given where it is going to be written."""
        if tags is not None:
            self._tags[key] = tags
        found = self._slots.get(key)
        if found is not None:
            return found
        async with self._claiming:
            if key not in self._slots:
                self._slots[key] = await patiently(
                    lambda: self._stack.enter_async_context(
                        Slot(self.storage, namespace, key, wait=self._wait, lease=self._lease)
                    )
                )
        return self._slots[key]

    async def commit(self) -> None:
        """Write all that was changed, the first record first: if that is refused, nothing is written."""
        for key, slot in self._slots.items():
            if key not in self._tags:
                continue
            if slot.place == NOWHERE and not slot.data:
                slot.delete()
            await slot.commit(tags=slot.tags or self._tags[key])


#: What the running handler holds. Tasks that it starts inherit it, other tasks of the process do not.
_held: ContextVar[tuple[_Held, ...]] = ContextVar("stepwell_held", default=())


def _copied(slot: Slot) -> dict[Any, Any]:
    data = slot.data
    if all(type(value) in _SCALARS for value in data.values()):
        return data.copy()
    return slot.copy_of_data()
