"""Records that a framework keeps through us, read and written under the claim that the running handler holds.

Inside ``holding(...)`` reads come from what was claimed, and writes wait for its end: then all of them are one
write, fenced by the claim; if it raises, nothing is written. Outside, every call is one atomic operation.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from contextvars import ContextVar
from types import TracebackType
from typing import Any

from stepwell.adapters.aiogram.patience import patiently
from stepwell.errors import AlreadyHeld, Busy, VersionChanged
from stepwell.record import NOWHERE, Address, Change, Place
from stepwell.slot import Slot
from stepwell.storage import Applied, Apply, Get, Guard, Storage

__all__ = ["Claims"]

logger = logging.getLogger(__name__)

_SCALARS = frozenset({str, int, float, bool, type(None), bytes})
#: Seconds to wait for a further record of a family that the handler of another update holds.
SIBLING_WAIT = 5.0


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
        this claim, and is written at the end, also where that is an exception of the ``fine`` ones.

        Inside another ``holding`` of the same task and family, the record is added to that one and is
        written and released at its end.
        """
        return Held(self.storage, namespace, key, self._family(key), wait=wait, lease=lease, fine=fine)

    async def place(self, namespace: str, key: Any) -> Place:
        """Where a record stands."""
        slot = await self._slot(namespace, key)
        if slot is not None:
            return slot.place
        address = self.storage.address(namespace, key)
        stored = await self.storage.perform(Get(address))
        return NOWHERE if stored is None else await self.storage.read_place(address, stored)

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
        """The record as the running handler holds it; ``None`` if it is to be read and written directly."""
        held = self._held(namespace, key)
        if held is None:
            return None
        if tags is None and not held.has(key) and held.task is not asyncio.current_task():
            # A task that only reads must not make its handler hold one more record until it ends.
            return None
        return await held.slot(key, tags)

    def _held(self, namespace: str, key: Any) -> Held | None:
        """The holder in this update that has the record, else the innermost one that can claim it."""
        lineage = _held.get()
        family = (namespace, self._family(key))
        for held in lineage[-1].update if lineage else ():
            if held.storage is self.storage and held.family == family and held.has(key):
                return held
        candidates = [held for held in reversed(lineage) if not held.over and held.family == family]
        found = [held for held in candidates if held.storage is self.storage]
        if found:
            task = asyncio.current_task()
            return next((held for held in found if held.task is task), found[0])
        if candidates and not self._warned:
            self._warned = True
            warnings.warn(
                "this handler's key is held in one storage object and kept in another, so what it writes stays also "
                "if it raises; open one storage, and give it to both StepwellStorage and StepwellIsolation",
                UserWarning,
                stacklevel=4,
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
        if record is not None and not record.fields and storage.seal(address).open_head(record.head) == NOWHERE:
            try:
                # Only as it is now: somebody may be writing to it.
                nothing = Change(storage.ids(), delete=True)
                await storage.perform(Apply(address, nothing, Guard(version=record.version)))
            except VersionChanged:
                pass
        return applied


class Held:
    """A family of records while one handler has it."""

    __slots__ = ("_claiming", "_entering", "_fine", "_joined", "_key", "_lease", "_slots", "_tags", "_unclaimed",
                 "_wait", "ended", "family", "over", "storage", "task", "update")  # fmt: skip

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
        #: Set when everything is released.
        self.ended = asyncio.Event()
        #: The task that entered it; ``None`` if the record was added to another holder of that task.
        self.task: asyncio.Task[Any] | None = None
        #: The holders of the same update, in all of its tasks.
        self.update: list[Held] = []
        self._key = key
        self._wait, self._lease = wait, lease
        self._fine = fine
        self._slots: dict[Any, Slot] = {}
        self._tags: dict[Any, tuple[str, ...]] = {}
        self._claiming = asyncio.Lock()
        self._entering: set[Any] = set()
        #: Records that were held elsewhere for too long. They are claimed if they are free, and not waited for again.
        self._unclaimed: set[Any] = set()
        #: The holder that the record was added to.
        self._joined: Held | None = None

    async def __aenter__(self) -> None:
        lineage = tuple([held for held in _held.get() if not held.ended.is_set()])
        if lineage:
            self.update = lineage[-1].update
        task = asyncio.current_task()
        for held in reversed(lineage):
            if held.task is task and not held.over and (held.storage, held.family) == (self.storage, self.family):
                if await held.enter(self._key):
                    self._joined = held
                return
        await self.enter(self._key)
        self.task = task
        self.update.append(self)
        _held.set((*lineage, self))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.task is None:
            if self._joined is not None:
                await self._joined.leave(self._key)
            return
        self.over = True
        try:
            # Every slot is released, even if this task is cancelled while it waits for one of them. The first
            # record is the last to be released: it keeps the others free for its next holder.
            async with AsyncExitStack() as stack:
                for slot in self._slots.values():
                    stack.push_async_exit(slot)
                if kind is None or issubclass(kind, self._fine):
                    await self._commit()
        finally:
            self.update.remove(self)
            self.ended.set()
            _held.set(tuple([held for held in _held.get() if held is not self]))

    def has(self, key: Any) -> bool:
        """Whether this record is claimed here, and not yet being written."""
        return not self.over and key in self._slots

    async def slot(self, key: Any, tags: tuple[str, ...] | None = None) -> Slot | None:
        """One of its records; ``tags`` are given where it is going to be written.

        ``None`` if another update keeps holding it: waiting longer could be a deadlock.
        """
        found = self._slots.get(key)
        if found is None:
            found = await self._sibling(key)
        if found is not None and tags is not None:
            self._tags[key] = tags
        return found

    async def enter(self, key: Any) -> bool:
        """Claim a record, however long that takes; ``False`` if it is claimed here already."""
        async with self._claiming:
            if key in self._slots:
                return False
            self._entering.add(key)

        try:
            self._slots[key] = await patiently(lambda: self._claim(key, self._wait))
        finally:
            self._entering.discard(key)
        return True

    async def leave(self, key: Any) -> None:
        """Release a record before the end, unless it is going to be written."""
        if key not in self._tags and self.has(key):
            await self._slots.pop(key).__aexit__(None, None, None)

    async def _sibling(self, key: Any) -> Slot | None:
        async def enter() -> Slot | None:
            try:
                return await self._claim(key, 0 if key in self._unclaimed else SIBLING_WAIT)
            except (Busy, AlreadyHeld) as error:
                if key not in self._unclaimed:
                    self._unclaimed.add(key)
                    logger.warning("%s is held elsewhere; it is read and written without a claim", error.place)
                return None

        async with self._claiming:
            if key not in self._slots and key not in self._entering:
                slot = await patiently(enter)
                if slot is None:
                    return None
                if self.over:
                    # The handler ended before the task that it had started.
                    await slot.__aexit__(None, None, None)
                    return None
                self._slots[key] = slot
            return self._slots[key] if self.has(key) else None

    async def _claim(self, key: Any, wait: float) -> Slot:
        while True:
            try:
                return await Slot(self.storage, self.family[0], key, wait=wait, lease=self._lease).__aenter__()
            except AlreadyHeld:
                # A task that was started by the holder of this record. The holder may end before it.
                holders = [held for held in self.update if held.family == self.family and key in held._slots]
                if not holders:
                    raise
                try:
                    async with asyncio.timeout(wait):
                        await holders[0].ended.wait()
                except TimeoutError:
                    raise Busy(self.storage.address(self.family[0], key).text, wait) from None

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
