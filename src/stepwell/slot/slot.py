"""A held record: load it, change it, commit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any, Literal

from stepwell._secrets import quoted
from stepwell.codec import Seal, check_name
from stepwell.codec.json import replaced
from stepwell.codec.large import LARGE, in_thread, open_data, seal_data
from stepwell.errors import (
    CorruptRecord,
    InvalidOption,
    LeaseLost,
    RecordReplaced,
    StoredDataError,
    TooLarge,
    UsageError,
)
from stepwell.record import (
    KEEP,
    NO_HEAD,
    NOTHING,
    Address,
    Change,
    Head,
    Keep,
    OpenedHead,
    Place,
    Queue,
    Range,
    Stored,
    Version,
)
from stepwell.slot.encoded import Json, Sealed
from stepwell.slot.fields import Changes, StoredFields, decode_large
from stepwell.slot.lease import Lease
from stepwell.storage.contract import Storage
from stepwell.storage.operations import Applied, Apply, Claim, Claimed, Get, Guard

__all__ = ["Slot"]

logger: logging.Logger = logging.getLogger(__name__)


class Slot(Lease):
    """A record that this task holds within ``async with``.

    Change ``flow``, ``state`` (or the whole ``place``) and ``data``, then call ``commit()``. It writes only the fields
    that differ from the loaded ones. Uncommitted changes are lost.

    Example::

        from stepwell.engine import Slot

        async with Slot(storage, "counters", "visits") as slot:
            slot.data["count"] = slot.data.get("count", 0) + 1
            slot.timers = {"report": slot.time() + 60}
            await slot.commit()
    """

    __slots__ = (
        "_deleted", "_memo_json", "_seal", "_stored", "_stored_head", "data", "deadline", "decoded", "expires_at",
        "head", "memo_limit", "queue", "tags", "written_at",
    )  # fmt: skip

    def __init__(self, storage: Storage, namespace: str, key: Any, *, wait: float = 60.0, lease: float = 30.0) -> None:
        self.storage = storage
        self.address: Address = storage.address(namespace, key)
        self.now: float = 0.0
        self._now_at = 0.0
        self.base: str = ""
        self.on_version: Callable[[Version], None] | None = None
        self.on_wait: Callable[[], None] | None = None
        self._wait, self._lease = wait, lease
        self._token = ""
        self._memo = None
        self._holding = self._lost = self._committing = self._claiming = False
        self._renewal = None
        #: What the next commit writes beside the data.
        self.head: OpenedHead = NO_HEAD
        #: For the layer above: a text of its extension, and what it has decoded of that.
        self.decoded: tuple[str, Any] = ("", None)
        self.data: dict[Any, Any] = {}
        self.version: Version | None = None
        #: Times on the backend's clock, in seconds since 1970.
        self.expires_at: float | None = None
        self.deadline: float | None = None
        #: When the loaded record was written last.
        self.written_at: float = 0.0
        self.tags: tuple[str, ...] = ()
        self.queue: Queue | None = None
        self._seal: Seal = storage.seal(self.address)
        #: The maximum size of a memo, in bytes of JSON.
        self.memo_limit: int = self._seal.limit
        self._memo_json: str | None = None
        self._stored: StoredFields = StoredFields(seal=self._seal, texts={}, data={}, prints={})
        self._stored_head: OpenedHead = NO_HEAD
        self._deleted = False

    @property
    def found(self) -> bool:
        """Whether a record exists."""
        return self.version is not None

    @property
    def flow(self) -> str | None:
        """The name of the flow."""
        return self.head.place.flow

    @flow.setter
    def flow(self, flow: str | None) -> None:
        self.place = replaced(self.head.place, flow=flow)

    @property
    def state(self) -> str | None:
        """The name of the state in the flow."""
        return self.head.place.state

    @state.setter
    def state(self, state: str | None) -> None:
        self.place = replaced(self.head.place, state=state)

    @property
    def place(self) -> Place:
        """Flow, state and revision."""
        return self.head.place

    @place.setter
    def place(self, place: Place) -> None:
        self.head = replaced(self.head, place=place)

    @property
    def timers(self) -> Mapping[str, float]:
        """Times on the backend's clock, by name; the deadline of the record is the earliest."""
        return self.head.timers

    @timers.setter
    def timers(self, timers: Mapping[str, float]) -> None:
        self.head = replaced(self.head, timers=timers)

    @property
    def extension(self) -> str:
        """JSON that the layer above keeps beside the place, or an empty text."""
        return self.head.extension

    @extension.setter
    def extension(self, extension: str) -> None:
        self.head = replaced(self.head, extension=extension)

    @property
    def texts(self) -> Mapping[str, str]:
        """The stored fields as sealed texts, at the load or the last commit that kept the claim."""
        return self._stored.texts

    @property
    def memo(self) -> Any:
        """The value that the last commit stored as ``memo``. It outlives the record."""
        if self.memo_json is not None:
            try:
                return self._seal.value("m", "", self._memo or "")
            except StoredDataError as error:
                self.drop_memo(error)
        return None

    @property
    def memo_json(self) -> str | None:
        """The memo as stored JSON. Its checksum is checked, but it is not decoded."""
        if self._memo is not None and self._memo_json is None:
            try:
                self._memo_json = self._seal.body("m", "", self._memo)
            except (CorruptRecord, TooLarge) as error:
                self.drop_memo(error)
        return self._memo_json

    def drop_memo(self, error: Exception | None = None) -> None:
        """Log a damaged memo, and treat it as empty."""
        # Without the memo one update may be handled twice. An error would block the conversation for a day.
        logger.error("the memo at %s cannot be read and is treated as empty", self.address.text, exc_info=error)
        self._memo = self._memo_json = None

    def copy_of_data(self) -> dict[Any, Any]:
        """Return a deep copy of the data."""
        return self._seal.data(self._seal.fields(self.data))

    def memo_part(self, value: Any, *, beside: int) -> Json:
        """Return a part of a memo as JSON. ``beside``: the bytes of the rest of the memo.

        Raises the errors that a commit with it would raise.
        """
        return Json(self._seal.json(value, self.memo_limit - beside))

    def seal_part(self, name: str, value: Any, large: bool = False) -> Sealed:
        """Encode a part for a later commit. Raises ``TooLarge`` and ``EncodeError``, as the commit would.

        ``large``: encode in pieces, for calls in a thread.
        """
        text = self._seal.seal("p", name, value, large)
        limit = self.storage.limits.item
        if len(text) > limit and len(text.encode()) > limit:
            raise TooLarge(f"the part {quoted(name)}", len(text.encode()), limit)
        return Sealed(text)

    def delete(self) -> None:
        """Let the next commit delete the record. Changes after this call create a new one."""
        self._deleted = True
        self.head = NO_HEAD
        self.data = {}

    @property
    def deleted(self) -> bool:
        """Whether ``delete()`` was called since the load or the last commit."""
        return self._deleted

    async def rollback(self) -> None:
        """Discard all changes since the load or the last commit."""
        self.data = await open_data(self._seal, self._stored.texts)
        self.head = self._stored_head
        self._deleted = False
        self._stored = replaced(self._stored, data=self.data.copy())

    async def reload(self) -> bool:
        """Load the record again after a commit that was cancelled, since it may have been written.

        Discards all changes, and returns whether the record still exists. Raises ``LeaseLost``.
        """
        claimed: Claimed = await self.storage.perform(Claim(self.address, self._token, self._lease, renew=True))
        self.version, self._deleted = None, False
        if claimed.record is None:
            return False
        self._set_now(claimed.now)
        await self._load(claimed.record)
        return True

    async def changes(self) -> Changes:
        """Encode the fields that differ, for ``changed_data`` and one ``commit``; large ones in a thread."""
        changes = self._stored.compare(self.data, aside=True)
        if changes.large:
            await self._stored.encode_large(changes)
        return changes

    def changed_data(self, changes: Changes) -> dict[Any, Any]:
        """Return the fields of the data that a commit of these changes would write."""
        return {key: value for key, value in changes.data.items() if self._seal.name(key) in changes.set}

    @property
    def changed(self) -> bool:
        """Whether a commit would write anything."""
        if self.deletes:
            return self.found
        if self.head != self._stored_head:
            return True
        changes = self._stored.compare(self.data)
        return bool(changes.set or changes.unset)

    async def commit(
        self,
        *,
        keep: bool = False,
        memo: Any = KEEP,
        tags: tuple[str, ...] | Keep = KEEP,
        deadline: float | Keep | None = KEEP,
        timers: Mapping[str, float] | Keep = KEEP,
        expiry: float | Keep | None = KEEP,
        queue: Queue | Keep | None = KEEP,
        parts: Mapping[str, Any] | None = None,
        dropped_parts: Sequence[str] = (),
        force: bool = False,
        changes: Changes | None = None,
        only_version: Version | None = None,
        only_absent: bool = False,
    ) -> bool:
        """Write all changes in one operation, and return whether there were any.

        The write releases the claim, unless ``keep`` is true. ``deadline`` and ``expiry`` are seconds from now. Memo,
        tags, deadline, expiry and queue are written only together with a change or parts, or with ``force``.
        The deadline is that of the earliest timer, unless it is given. ``timers`` replaces the timers of this slot.
        ``changes`` is the result of ``changes()``, if it was called before. ``only_version``: raise ``VersionChanged``
        if the record has another version, because another writer has merged fields or added parts. ``only_absent``:
        raise ``RecordExists`` if there is a record. If ``LeaseLost``, ``RecordReplaced``, ``VersionChanged`` or
        ``RecordExists`` is raised, nothing was written. Raises ``UsageError`` if the slot is not held.
        """
        if not self._holding:
            raise UsageError("this slot is not held; a commit without keep=True has released it")
        if tags is not KEEP or not (deadline is KEEP or deadline is None) or not (expiry is KEEP or expiry is None):
            _check(tags, deadline, expiry)
        if timers is not KEEP:
            self.timers = timers
            deadline = self.head.next_timer(self.time()) if deadline is KEEP else deadline
        opened, seal = self.head, self._seal
        write = self.storage.ids()
        found = self.version is not None
        if memo is not KEEP:
            memo = seal.seal_body("m", "", memo.encode()) if type(memo) is Json else seal.seal("m", "", memo)
        if self._deleted and self.deletes:
            if not found and not force:
                return False
            change = Change(write, delete=True, memo=memo)
        else:
            if changes is None:
                changes = self._stored.compare(self.data, aside=True)
                if changes.large:
                    await self._stored.encode_large(changes)
            written, gone = changes.set, changes.unset
            head: Head | Keep = KEEP
            anew = self._deleted and found
            if anew:
                # Changes after delete() create a new record.
                written, gone = await seal_data(seal, changes.data), ()
                deadline = self.head.next_timer(self.time()) if deadline is KEEP else deadline
                queue = None if queue is KEEP else queue
            if anew or opened != self._stored_head:
                head = seal.head(opened)
                if deadline is KEEP and opened.timers != self._stored_head.timers:
                    deadline = self.head.next_timer(self.time())
            if head is KEEP and not written and not gone and not parts and not dropped_parts and not force:
                return False
            if expiry is KEEP:
                expiry = self.storage.expiry_of(self.address)
            sealed_parts = self._sealed_parts(parts or {}, dropped_parts) if parts or dropped_parts else NOTHING
            change = Change(
                write=write,
                replace=anew,
                fresh=not found,
                head=head,
                set=written,
                unset=gone,
                tags=tags,
                deadline=deadline,
                expiry=expiry,
                memo=memo,
                parts=sealed_parts,
                limit=seal.limit,
                queue=queue,
            )
        if self._claiming or self._lost:
            await self._check_lost()
        guard = Guard(token=self._token, base=self.base, version=only_version, absent=only_absent)
        then: Literal["keep", "release"] = "keep" if keep else "release"
        apply = Apply(address=self.address, change=change, guard=guard, then=then, lease=self._lease)
        self._committing = True
        try:
            try:
                applied: Applied = await self.storage.perform(apply)
            except LeaseLost:
                if not await self._claim_again():
                    raise
                applied = await self.storage.perform(apply)
        finally:
            self._committing = False
        self._holding = keep
        if keep:
            self._written(change, applied, opened, changes)
        else:
            self.version = None if change.delete else applied.version
        return True

    async def edit(
        self,
        decide: Callable[[Stored | None], Change | None],
        *,
        parts: bool | Range | tuple[str, ...] = False,
        keep: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Read the record, write the change that ``decide`` returns for it, and return whether there was one.

        For records that others write without a claim: ``decide`` gets what they have written meanwhile; see
        ``Storage.edit``. The write releases the claim, unless ``keep`` returns true after ``decide``. Raises
        ``LeaseLost`` or ``RecordReplaced`` if nothing was written, and ``UsageError`` if the slot is not held.
        """
        if not self._holding:
            raise UsageError("this slot is not held; a commit without keep=True has released it")
        if self._claiming or self._lost:
            await self._check_lost()
        written: Apply | None = None

        def apply(address: Address, change: Change, guard: Guard) -> Apply:
            nonlocal written
            held = replaced(guard, token=self._token, base=self.base)
            written = Apply(address, change, held, "keep" if keep() else "release", self._lease)
            return written

        self._committing = True
        try:
            applied = await self.storage.edit(self.address, decide, parts=parts, apply=apply)
        finally:
            self._committing = False
        if applied is None or written is None:
            return False
        self._holding = written.then == "keep"
        self._set_now(applied.now)
        self.base, self.version = applied.base, applied.version
        if written.change.head is not KEEP:
            self.head = self._stored_head = self._seal.open_head(written.change.head.text)
        return True

    async def _check_lost(self) -> None:
        """Raise ``LeaseLost`` if another holder has the claim, as far as this process knows."""
        if self._claiming and self._renewal is not None:
            await asyncio.wait([self._renewal])
        if self._lost:
            raise LeaseLost(self.address.text)

    @property
    def stored_data(self) -> dict[Any, Any]:
        """The data as of the load or the last commit, which nobody may change."""
        return self._stored.data

    @property
    def deletes(self) -> bool:
        """Whether the next commit would delete the record."""
        return self._deleted and self.head == NO_HEAD and not self.data

    def _sealed_parts(self, parts: Mapping[str, Any], dropped: Sequence[str]) -> dict[str, str | None]:
        sealed: dict[str, str | None] = dict.fromkeys(dropped)
        for name, value in parts.items():
            sealed[name] = value.text if type(value) is Sealed else self.seal_part(name, value).text
        return sealed

    def _written(self, change: Change, applied: Applied, head: OpenedHead, changes: Changes | None) -> None:
        """Remember this write, so that the next commit is compared with it."""
        self._set_now(applied.now)
        self.base, self._deleted = applied.base, change.delete
        self.version = None if change.delete else applied.version
        if change.delete or changes is None:
            self._stored = StoredFields(seal=self._seal, texts={}, data={}, prints={})
            self._stored_head = NO_HEAD
            self.deadline = self.expires_at = self.queue = None
        else:
            self._stored, self._stored_head = self._stored.after(change, changes), head
            if change.tags is not KEEP:
                self.tags = change.tags
            if change.deadline is not KEEP:
                self.deadline = None if change.deadline is None else applied.now + change.deadline
            if change.expiry is not KEEP:
                self.expires_at = None if change.expiry is None else applied.now + change.expiry
            if change.queue is not KEEP:
                self.queue = change.queue
        if change.memo is not KEEP:
            self._memo, self._memo_json = change.memo, None

    async def parts(self) -> dict[str, Any]:
        """Read and return the parts. Raises ``LeaseLost`` or ``RecordReplaced`` as a commit would.

        Raises ``UsageError`` if the slot is not held.
        """
        if not self._holding:
            raise UsageError("this slot is not held; read the parts before the commit that releases it")
        stored: Stored | None = await self.storage.perform(Get(self.address, parts=True))
        if (None if stored is None else stored.version) != self.version:
            # A merge without a claim does not change the parts. A delete or another holder may have.
            await self.storage.perform(Claim(self.address, self._token, self._lease, renew=True))
            if stored is None or stored.base != self.base:
                raise RecordReplaced(self.address.text)
        found = (stored.parts or {}) if stored is not None else {}
        try:
            if sum(map(len, found.values())) > LARGE:
                return await in_thread(_decode_parts, self._seal, found)
            return _decode_parts(self._seal, found)
        except CorruptRecord as error:
            await self.quarantine(error)
            raise

    async def parts_of_others(self, prefix: str) -> tuple[Version | None, dict[str, Any]]:
        """Read the parts with this prefix, which other writers may have added, and the version that has them.

        The version is ``None`` if the record was replaced or removed.
        """
        stored: Stored | None = await self.storage.perform(Get(self.address, parts=True))
        if stored is None or stored.base != self.base:
            return None, {}
        found = {name: text for name, text in (stored.parts or {}).items() if name.startswith(prefix)}
        return stored.version, _decode_parts(self._seal, found)

    async def merge_others(self) -> dict[Any, Any] | None:
        """Add the fields that other writers have merged to ``data``, and return them.

        Fields that were changed here since the load or the last commit stay. Returns ``None`` if the record was
        replaced or removed. No commit may run meanwhile.
        """
        mine = await self.changes()
        stored: Stored | None = await self.storage.perform(Get(self.address))
        if stored is None or stored.base != self.base:
            return None
        seal, texts, prints = self._seal, self._stored.texts, self._stored.prints
        others = {name: text for name, text in stored.fields.items() if texts.get(name) != text}
        try:
            merged = await open_data(seal, others)
        except CorruptRecord as error:
            await self.storage.quarantine(self.address, stored, error)
            raise
        known = {name: mark for name, mark in prints.items() if name not in others}
        self._stored = StoredFields(
            seal=seal, texts={**texts, **others}, data={**self._stored.data, **merged}, prints=known
        )
        changed = {*mine.set, *mine.unset}
        taken = {key: value for key, value in merged.items() if seal.name(key) not in changed}
        self.data.update(taken)
        return taken

    async def quarantine(self, error: CorruptRecord) -> None:
        """Copy the stored record with its parts to quarantine."""
        stored: Stored | None = await self.storage.perform(Get(self.address, parts=True))
        if stored is not None:
            await self.storage.quarantine(self.address, stored, error)

    async def _load(self, stored: Stored) -> None:
        texts = stored.fields
        prints: dict[str, bytes] = {}
        self.version, self.expires_at, self.deadline = stored.version, stored.expires_at, stored.deadline
        self.tags, self.queue, self.written_at = stored.tags, stored.queue, stored.written_at
        try:
            if stored.head is not None:
                self.head = self._stored_head = self._seal.open_head(stored.head)
            # Decoded here, so that no handler runs on a record that cannot be read.
            if sum(map(len, texts.values())) > LARGE:
                self.data, prints = await in_thread(decode_large, self._seal, texts)
            else:
                self.data = self._seal.data(texts)
            self._stored = StoredFields(seal=self._seal, texts=texts, data=self.data.copy(), prints=prints)
        except CorruptRecord as error:
            await self.storage.quarantine(self.address, stored, error)
            raise


def _decode_parts(seal: Seal, parts: Mapping[str, str]) -> dict[str, Any]:
    return {name: seal.value("p", name, text) for name, text in parts.items()}


def _check(tags: object, deadline: object, expiry: object) -> None:
    if tags is not KEEP and not (isinstance(tags, tuple) and all(type(tag) is str for tag in tags)):
        raise InvalidOption(f"tags must be a tuple of str, not {quoted(tags)}")
    for tag in () if tags is KEEP else tags:
        check_name("the tag", tag)
    for name, seconds in (("deadline", deadline), ("expiry", expiry)):
        if seconds is KEEP or seconds is None:
            continue
        if not isinstance(seconds, int | float) or not isfinite(seconds):
            raise InvalidOption(f"{name} must be a number of seconds from now or None, not {quoted(seconds)}")
