"""aiogram's records, read and written under the claim of the running handler.

Inside a ``HandlerClaim`` reads return the claimed record with the handler's own changes, and all changes become one
write when the block ends, fenced by the claim. If the block raises, nothing is written. Outside such a block,
every call is one atomic operation.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Mapping
from contextvars import ContextVar
from functools import partial
from types import TracebackType
from typing import Any

from aiogram.dispatcher.event.bases import CancelHandler, SkipHandler

from stepwell import Storage
from stepwell.adapters.framework.claims import HeldRecords
from stepwell.adapters.framework.retry import retry_until_free
from stepwell.engine import NO_HEAD, NOWHERE, Address, Applied, Apply, Change, Get, OpenedHead, Place, Slot, Stored
from stepwell.errors import AlreadyHeld, Busy

__all__ = ["ClaimedRecords", "HandlerClaim"]

logger: logging.Logger = logging.getLogger(__name__)

_SCALARS = frozenset({str, int, float, bool, type(None), bytes})
#: A handler that raises one of these has not failed, so its writes are kept.
NOT_FAILED = (SkipHandler, CancelHandler)
#: Seconds to wait for another record of the family while the handler of another update holds it.
SIBLING_WAIT = 5.0


def family_of(namespace: str, key: Any) -> tuple[str, Any]:
    """Return the namespace, and the part of a key that all its destinies share, such as the history of scenes.

    One handler claims all keys of a family, each on first use. Other handlers wait for the key that was claimed first,
    so the other keys are normally free.
    """
    return namespace, key[:-1]


class ClaimedRecords:
    """The records in one storage; state and data of a key are one record."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._warned = False

    async def place(self, namespace: str, key: Any) -> Place:
        """Return the flow and state of a record."""
        slot = await self._slot(namespace, key)
        if slot is not None:
            return slot.place
        address = self.storage.address(namespace, key)
        stored: Stored | None = await self.storage.perform(Get(address))
        return NOWHERE if stored is None else (await self.storage.read_head(address, stored)).place

    async def data(self, namespace: str, key: Any) -> dict[Any, Any]:
        """Return a copy of the data; empty if there is no record."""
        slot = await self._slot(namespace, key)
        if slot is not None:
            return _copy_data(slot)
        return await self.storage.get_data(namespace, key) or {}

    async def set_place(self, namespace: str, key: Any, place: Place, *, tags: tuple[str, ...]) -> None:
        """Set flow and state, and keep the data. A record with neither state nor data is deleted."""
        slot = await self._slot(namespace, key, tags)
        if slot is not None:
            slot.place = place
            return
        address = self.storage.address(namespace, key)
        await self._write(address, tags, head=self.storage.seal(address).head(OpenedHead(place)))

    async def set_data(self, namespace: str, key: Any, data: Mapping[Any, Any], *, tags: tuple[str, ...]) -> None:
        """Replace the data, and keep flow and state."""
        slot = await self._slot(namespace, key, tags)
        if slot is not None:
            slot.data = dict(self._checked(slot.address, data))
            return
        address = self.storage.address(namespace, key)
        await self._write(address, tags, replace=True, set=self.storage.seal(address).fields(data))

    async def update_data(
        self, namespace: str, key: Any, data: Mapping[Any, Any], *, tags: tuple[str, ...]
    ) -> dict[Any, Any]:
        """Merge fields into the data atomically, and return all of it."""
        slot = await self._slot(namespace, key, tags)
        if slot is not None:
            slot.data.update(self._checked(slot.address, data))
            return _copy_data(slot)
        address = self.storage.address(namespace, key)
        record = await self._write(address, tags, set=self.storage.seal(address).fields(data))
        return {} if record is None else await self.storage.read_data(address, record)

    async def _slot(self, namespace: str, key: Any, tags: tuple[str, ...] | None = None) -> Slot | None:
        """Return the record that the running handler has claimed; ``None`` if it must be accessed directly."""
        claim = self._find_claim(namespace, key)
        if claim is None:
            return None
        if tags is None and not claim.has(key) and claim.task is not asyncio.current_task():
            # A task that only reads must not add a record to the claim of its handler.
            return None
        return await claim.slot(key, tags)

    def _find_claim(self, namespace: str, key: Any) -> HandlerClaim | None:
        """Return the claim in this update that has the record, else the innermost one that can add it."""
        enclosing = _active_claims.get()
        family = family_of(namespace, key)
        for claim in enclosing[-1].claims_of_update if enclosing else ():
            if claim.storage is self.storage and claim.family == family and claim.has(key):
                return claim
        candidates = [claim for claim in reversed(enclosing) if not claim.handler_ended and claim.family == family]
        found = [claim for claim in candidates if claim.storage is self.storage]
        if found:
            task = asyncio.current_task()
            return next((claim for claim in found if claim.task is task), found[0])
        if candidates and not self._warned:
            self._warned = True
            warnings.warn(
                "StepwellStorage and StepwellIsolation use different storage objects, so a handler's writes are kept "
                "even if it raises; open one storage and pass it to both",
                UserWarning,
                stacklevel=4,
            )
        return None

    def _checked(self, address: Address, data: Mapping[Any, Any]) -> dict[Any, Any]:
        """Return a copy of the data; raise now, not at commit, for a value that cannot be stored."""
        seal = self.storage.seal(address)
        fields = seal.fields(data)
        return dict(data) if _has_only_scalars(data) else seal.data(fields)

    async def _write(self, address: Address, tags: tuple[str, ...], **parts: Any) -> Stored | None:
        """Write a record without a claim, and return it. Delete it if it has neither state nor data."""
        storage = self.storage
        await storage.check_keys(address)
        change = storage.change(address, tags=tags, **parts)
        applied: Applied = await storage.perform(Apply(address, change, returning=True))
        if applied.record is not None and self._is_empty(address, applied.record):
            await storage.edit(address, partial(self._deletion, address), known=applied.record)
        return applied.record

    def _deletion(self, address: Address, record: Stored | None) -> Change | None:
        # Another writer may have changed the record since.
        is_empty = record is not None and self._is_empty(address, record)
        return self.storage.change(address, delete=True) if is_empty else None

    def _is_empty(self, address: Address, record: Stored) -> bool:
        return not record.fields and self.storage.seal(address).open_head(record.head) == NO_HEAD


class HandlerClaim(HeldRecords):
    """The claims of one handler on the records of a family.

    ``async with`` claims the first record; others are claimed on first use. Changes are written at the end. A block
    inside another one of the same task and family adds its record to the outer block, which writes and releases it.
    """

    def __init__(self, storage: Storage, namespace: str, key: Any, *, wait: float, lease: float, patience: float):
        super().__init__(storage, namespace, wait=wait, lease=lease, patience=patience)
        #: The key of the first record.
        self.key: Any = key
        self.family: tuple[str, Any] = family_of(namespace, key)
        #: The handler has ended. Tasks that it started may still run, and then access records without a claim.
        self.handler_ended: bool = False
        #: Set when all records are released.
        self.released: asyncio.Event = asyncio.Event()
        #: The task that entered the block; ``None`` if the record was added to another block of that task.
        self.task: asyncio.Task[Any] | None = None
        #: All claims of the same update, across its tasks.
        self.claims_of_update: list[HandlerClaim] = []
        self._tags: dict[Any, tuple[str, ...]] = {}
        self._claiming = asyncio.Lock()
        #: Keys that ``enter`` is claiming. Meanwhile other tasks access them without the claim.
        self._entering: set[Any] = set()
        #: Records that another holder kept for too long. They are claimed only if they are free immediately.
        self._unclaimed: set[Any] = set()
        #: The outer block that the record was added to.
        self._joined: HandlerClaim | None = None

    async def __aenter__(self) -> None:
        enclosing = tuple([claim for claim in _active_claims.get() if not claim.released.is_set()])
        if enclosing:
            self.claims_of_update = enclosing[-1].claims_of_update
        task = asyncio.current_task()
        for claim in reversed(enclosing):
            if (
                claim.task is task
                and not claim.handler_ended
                and (claim.storage, claim.family) == (self.storage, self.family)
            ):
                if await claim.enter(self.key):
                    self._joined = claim
                return
        await self.enter(self.key)
        self.task = task
        self.claims_of_update.append(self)
        _active_claims.set((*enclosing, self))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.task is None:
            if self._joined is not None:
                await self._joined.leave(self.key)
            return
        self.handler_ended = True
        try:
            async with self.releasing():
                if kind is None or issubclass(kind, NOT_FAILED):
                    await self._commit()
        finally:
            self.claims_of_update.remove(self)
            self.released.set()
            _active_claims.set(tuple([claim for claim in _active_claims.get() if claim is not self]))

    def has(self, key: Any) -> bool:
        """Return whether this record is claimed here and the commit has not begun."""
        return not self.handler_ended and key in self.slots

    async def slot(self, key: Any, tags: tuple[str, ...] | None = None) -> Slot | None:
        """Return one of its records, claiming it if needed; pass ``tags`` if it will be written.

        ``None`` if another holder does not release it in time: waiting longer could be a deadlock.
        """
        found = self.slots.get(key)
        if found is None:
            found = await self._claim_sibling(key)
        if found is not None and tags is not None:
            self._tags[key] = tags
        return found

    async def enter(self, key: Any) -> bool:
        """Claim a record; return ``False`` if it is already claimed here."""
        async with self._claiming:
            if key in self.slots:
                return False
            self._entering.add(key)
        try:
            await self.claim(key)
        finally:
            self._entering.discard(key)
        return True

    async def leave(self, key: Any) -> None:
        """Release a record early, unless it will be written."""
        if key not in self._tags and self.has(key):
            await self.slots.pop(key).__aexit__(None, None, None)

    async def _claim_sibling(self, key: Any) -> Slot | None:
        async def claim_or_none() -> Slot | None:
            try:
                return await self.try_claim(key, 0 if key in self._unclaimed else SIBLING_WAIT)
            except (Busy, AlreadyHeld) as error:
                if key not in self._unclaimed:
                    self._unclaimed.add(key)
                    logger.warning("%s is held elsewhere; reading and writing it without a claim", error.place)
                return None

        async with self._claiming:
            if key not in self.slots and key not in self._entering:
                slot = await retry_until_free(claim_or_none, patience=self.patience)
                if slot is None:
                    return None
                if self.handler_ended:
                    # The handler ended before this task, which it had started.
                    await slot.__aexit__(None, None, None)
                    return None
                self.slots[key] = slot
            return self.slots[key] if self.has(key) else None

    async def try_claim(self, key: Any, wait: float) -> Slot:
        """Claim a record. If another claim of this update holds it, wait for that claim to end."""
        while True:
            try:
                return await super().try_claim(key, wait)
            except AlreadyHeld:
                # The holder started this task, and may end before it.
                holders = [
                    claim for claim in self.claims_of_update if claim.family == self.family and key in claim.slots
                ]
                if not holders:
                    raise
                try:
                    async with asyncio.timeout(wait):
                        await holders[0].released.wait()
                except TimeoutError:
                    raise Busy(self.storage.address(self.namespace, key).text, wait) from None

    async def _commit(self) -> None:
        """Write the changed records, the first one first: if that write is refused, nothing is written."""
        for key, slot in self.slots.items():
            tags = self._tags.get(key)
            if tags is not None:
                if slot.place == NOWHERE and not slot.data:
                    slot.delete()
                await slot.commit(tags=slot.tags or tags)


#: The claims of the running handler. Tasks that it starts inherit them.
_active_claims: ContextVar[tuple[HandlerClaim, ...]] = ContextVar("stepwell_claims", default=())


def _copy_data(slot: Slot) -> dict[Any, Any]:
    data = slot.data
    return data.copy() if _has_only_scalars(data) else slot.copy_of_data()


def _has_only_scalars(data: Mapping[Any, Any]) -> bool:
    return all(type(value) in _SCALARS for value in data.values())
