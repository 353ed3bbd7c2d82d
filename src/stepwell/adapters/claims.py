"""Records that a framework keeps through us, read and written under the claim that the running handler holds.

Inside ``holding(...)`` reads come from what was claimed, and writes wait for its end: then all of them are one
write, fenced by the claim; if it raises, nothing is written. Outside, every call is one atomic operation.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Coroutine, Mapping
from contextvars import ContextVar, Token
from types import TracebackType
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
        self._warned = False

    def holding(
        self, namespace: str, key: Any, *, wait: float, lease: float, fine: tuple[type[BaseException], ...] = ()
    ) -> Held:
        """``async with`` claims a record, in the order of the calls; what is asked of its family inside goes by
        this claim, and is written at the end, also where that is an exception of the ``fine`` ones."""
        return Held(self.storage, namespace, key, self._family(key), wait=wait, lease=lease, fine=fine)

    async def place(self, namespace: str, key: Any) -> Place:
        """Where a record stands."""
        held = self._held(namespace, key)
        if held is not None:
            return (await held.slot(key)).place
        address = self.storage.address(namespace, key)
        stored = await self.storage.perform(Get(address))
        return NOWHERE if stored is None else await self.storage.read_place(address, stored)

    async def data(self, namespace: str, key: Any) -> dict[Any, Any]:
        """The data, which is the caller's to change; empty if there is no record."""
        held = self._held(namespace, key)
        if held is not None:
            return _copied(await held.slot(key))
        return await self.storage.get_data(namespace, key) or {}

    async def set_place(self, namespace: str, key: Any, place: Place, *, tags: tuple[str, ...]) -> None:
        """Move a record; its data stays. One that is nowhere and has no data is removed."""
        held = self._held(namespace, key)
        if held is not None:
            (await held.slot(key, tags)).place = place
            return
        address = self.storage.address(namespace, key)
        await self._apply(address, tags, head=self.storage.seal(address).head(place))

    async def set_data(self, namespace: str, key: Any, data: Mapping[Any, Any], *, tags: tuple[str, ...]) -> None:
        """Replace the data; the place stays."""
        held = self._held(namespace, key)
        if held is not None:
            slot = await held.slot(key, tags)
            slot.data = self._checked(slot.address, data)
            return
        address = self.storage.address(namespace, key)
        await self._apply(address, tags, replace=True, set=self.storage.seal(address).fields(data))

    async def update_data(
        self, namespace: str, key: Any, data: Mapping[Any, Any], *, tags: tuple[str, ...]
    ) -> dict[Any, Any]:
        """Merge fields into the data, atomically, and return it."""
        held = self._held(namespace, key)
        if held is not None:
            slot = await held.slot(key, tags)
            slot.data.update(self._checked(slot.address, data))
            return _copied(slot)
        address = self.storage.address(namespace, key)
        seal = self.storage.seal(address)
        applied = await self._apply(address, tags, set=seal.fields(data))
        return {} if applied.record is None else seal.data(applied.record.fields)

    def _held(self, namespace: str, key: Any) -> Held | None:
        elsewhere = False
        for held in _held.get():
            if not held.over and held.family == (namespace, self._family(key)):
                if held.storage is self.storage:
                    return held
                elsewhere = True
        if elsewhere and not self._warned:
            self._warned = True
            warnings.warn(
                "this handler's key is held in one storage object and kept in another, so what it writes stays also "
                "if it raises; open one storage, and give it to both StepwellStorage and StepwellIsolation",
                UserWarning,
                stacklevel=3,
            )
        return None

    def _checked(self, address: Address, data: Mapping[Any, Any]) -> dict[Any, Any]:
        """What cannot be kept is refused here, and not at the end; what is kept shares nothing with the caller's."""
        seal = self.storage.seal(address)
        fields = seal.fields(data)
        return dict(data) if _flat(data) else seal.data(fields)

    async def _apply(self, address: Address, tags: tuple[str, ...], **changes: Any) -> Applied:
        storage = self.storage
        limit = storage.seal(address).limit
        change = Change(storage.ids(), tags=tags, expiry=storage.expiry_of(address), limit=limit, **changes)
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


class Held:
    """A family of records while one handler has it."""

    __slots__ = ("_before", "_claiming", "_fine", "_key", "_lease", "_slots", "_tags", "_wait", "family", "over",
                 "storage")  # fmt: skip

    def __init__(
        self,
        storage: Storage,
        namespace: str,
        key: Any,
        family: Any,
        *,
        wait: float,
        lease: float,
        fine: tuple[type[BaseException], ...],
    ) -> None:
        self.storage = storage
        self.family = (namespace, family)
        #: A task that the handler started may outlive it; it goes without the claim then.
        self.over = False
        self._key = key
        self._wait, self._lease = wait, lease
        self._fine = fine
        self._slots: dict[Any, Slot] = {}
        self._tags: dict[Any, tuple[str, ...]] = {}
        self._claiming = asyncio.Lock()
        self._before: Token[tuple[Held, ...]] | None = None

    async def __aenter__(self) -> None:
        await self._claim(self._key)
        self._before = _held.set((*_held.get(), self))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._before is not None
        self.over = True
        _held.reset(self._before)
        try:
            if kind is None or issubclass(kind, self._fine):
                await self._commit()
        finally:
            for slot in self._slots.values():
                await slot.__aexit__(kind, error, trace)

    async def slot(self, key: Any, tags: tuple[str, ...] | None = None) -> Slot:
        """One of its records; ``tags`` are given where it is going to be written."""
        if tags is not None:
            self._tags[key] = tags
        found = self._slots.get(key)
        if found is not None:
            return found
        async with self._claiming:
            if key not in self._slots:
                await self._claim(key)
        return self._slots[key]

    async def _claim(self, key: Any) -> None:
        def enter() -> Coroutine[Any, Any, Slot]:
            return Slot(self.storage, self.family[0], key, wait=self._wait, lease=self._lease).__aenter__()

        self._slots[key] = await patiently(enter)

    async def _commit(self) -> None:
        """Write all that was changed, the first record first: if that is refused, nothing is written."""
        for key, slot in self._slots.items():
            tags = self._tags.get(key)
            if tags is not None:
                if slot.place == NOWHERE and not slot.data:
                    slot.delete()
                await slot.commit(tags=slot.tags or tags)


#: What the running handler holds. Tasks that it starts inherit it, other tasks of the process do not.
_held: ContextVar[tuple[Held, ...]] = ContextVar("stepwell_held", default=())


def _copied(slot: Slot) -> dict[Any, Any]:
    data = slot.data
    return data.copy() if _flat(data) else slot.copy_of_data()


def _flat(data: Mapping[Any, Any]) -> bool:
    return all(type(value) in _SCALARS for value in data.values())
