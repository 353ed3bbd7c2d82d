"""One address, held by one holder at a time: claim, load, change, commit.

Tasks of one process get an address in the order of their calls, processes in the order of their claims.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from math import isfinite
from time import monotonic
from types import TracebackType
from typing import Any, NamedTuple, Self

from stepwell.codec import Seal
from stepwell.codec.keys import decode_name
from stepwell.codec.large import LARGE, fingerprint, in_thread, is_large, open_data, seal_data
from stepwell.errors import (
    Busy,
    Conflict,
    CorruptRecord,
    InvalidOption,
    LeaseLost,
    RecordReplaced,
    StorageClosed,
    StoredDataError,
    TooLarge,
    UsageError,
)
from stepwell.record import KEEP, NOTHING, NOWHERE, Address, Change, Head, Keep, Place, Stored, Version
from stepwell.slot.waiters import Turn, WaiterQueue, held_tokens, join_queue, leave_queue, must_check_turn
from stepwell.storage.contract import Storage
from stepwell.storage.operations import Applied, Apply, Claim, Claimed, Get, Guard, Release

__all__ = ["Changes", "Sealed", "Slot"]

logger: logging.Logger = logging.getLogger(__name__)

#: Seconds between two attempts to claim: the first pause, and the longest.
FIRST_POLL, LONGEST_POLL = 0.005, 0.1

#: How many entered slots a task remembers, for itself and for the tasks that it starts.
MOST_NESTED = 64

#: Makes a NamedTuple without a call of its constructor, which is a Python function.
_new = tuple.__new__
_IMMUTABLE = frozenset({str, int, float, bool, type(None), bytes})


class Sealed(NamedTuple):
    """A part that was encoded ahead of its commit."""

    text: str


class Changes(NamedTuple):
    """The fields that differ from what is stored."""

    #: The data as it was when it was compared.
    data: dict[Any, Any]
    #: Field name to sealed text.
    set: dict[str, str]
    unset: tuple[str, ...]
    #: Large fields, which are compared in a thread.
    large: dict[str, Any]
    #: Their fingerprints.
    prints: dict[str, bytes | None]


class Json(str):
    """A value that is JSON text already."""

    __slots__ = ()


class Slot:
    """A record that this task holds, from ``async with`` to its end.

    Change ``flow``, ``state`` (or ``place`` as a whole) and ``data``, then ``commit()``; changes that are not committed
    are lost. A commit writes only the fields that differ from the loaded ones.
    """

    __slots__ = (
        "_deleted", "_fields", "_holding", "_lease", "_loaded", "_lost", "_memo", "_memo_json", "_prints", "_renewal",
        "_seal", "_stored_place", "_token", "_wait", "address", "base", "data", "deadline", "expires_at",
        "memo_limit", "now", "place", "storage", "tags", "version",
    )  # fmt: skip

    def __init__(self, storage: Storage, namespace: str, key: Any, *, wait: float = 60.0, lease: float = 30.0) -> None:
        self.storage: Storage = storage
        self.address: Address = storage.address(namespace, key)
        #: Flow and state with what belongs to them.
        self.place: Place = NOWHERE
        self.data: dict[Any, Any] = {}
        #: The last write, or ``None`` if there is no record.
        self.version: Version | None = None
        #: Times on the backend's clock, in seconds since 1970.
        self.now: float = 0.0
        self.expires_at: float | None = None
        self.deadline: float | None = None
        self.tags: tuple[str, ...] = ()
        self._wait = wait
        self._lease = lease
        self._seal: Seal = storage.seal(self.address)
        #: The most bytes that the JSON of a memo may take.
        self.memo_limit: int = self._seal.limit
        self._token = ""
        #: The write that last replaced or deleted the record. If it has changed, somebody else did that.
        self.base: str = ""
        self._memo: str | None = None
        self._memo_json: str | None = None
        self._fields: dict[str, str] = {}
        self._stored_place: Place = NOWHERE
        #: The data as it was decoded, to know what is still the same object.
        self._loaded: dict[Any, Any] = {}
        #: Of large fields: a fingerprint of the value whose text is stored.
        self._prints: dict[str, bytes] = {}
        self._deleted = False
        self._holding = False
        self._lost = False
        self._renewal: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._token:
            raise UsageError("a slot is held once; make a new one")
        loop = asyncio.get_running_loop()
        asked_at = monotonic()
        storage, address = self.storage, self.address
        if storage.loop is not loop:
            # First: if it was open in a loop that is closed, opening it anew ends all lines.
            await storage.ensure_open()
        token = storage.ids()
        if address in storage.queues:
            await join_queue(storage, address, token, self._wait)
            hot = storage.shared
        else:
            storage.queues[address] = WaiterQueue(asyncio.current_task(), token)
            hot = address in storage.recently_left
        self._token = token
        try:
            if hot and must_check_turn(storage, address):
                claimed = await self._claim(0.0, asked_at + self._wait)
            else:
                claimed = await storage.perform(_new(Claim, (address, token, self._lease, False)))
                if type(claimed) is not Claimed:
                    claimed = await self._claim(max(claimed.remaining, 0.001), asked_at + self._wait)
            self._holding = True
            self.now, self.base, self._memo = claimed.now, claimed.base, claimed.memo
            # Before the load: decoding a large record may take longer than the lease.
            storage.renewals.add(self, loop, self._lease / 3)
            if claimed.record is not None:
                await self._load(claimed.record)
        except BaseException:
            await self._let_go()
            raise
        held_tokens.set((*held_tokens.get()[-MOST_NESTED:], token))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        held = held_tokens.get()
        if held and held[-1] == self._token:
            held_tokens.set(held[:-1])
        elif self._token in held:
            held_tokens.set(tuple([token for token in held if token != self._token]))
        if self._holding or self._renewal is not None:
            await self._let_go()
        else:
            # As usual, the commit has ended the claim.
            self.storage.renewals.discard(self)
            leave_queue(self.storage, self.address)

    @property
    def found(self) -> bool:
        """Whether there is a record."""
        return self.version is not None

    @property
    def flow(self) -> str | None:
        """The name of the flow."""
        return self.place.flow

    @flow.setter
    def flow(self, flow: str | None) -> None:
        self.place = self.place._replace(flow=flow)

    @property
    def state(self) -> str | None:
        """The name of the state in that flow."""
        return self.place.state

    @state.setter
    def state(self, state: str | None) -> None:
        self.place = self.place._replace(state=state)

    @property
    def memo(self) -> Any:
        """What the last commits noted beside the record; it survives the record."""
        if self.memo_json is not None:
            try:
                return self._seal.value("m", "", self._memo or "")
            except StoredDataError as error:
                self.drop_memo(error)
        return None

    @property
    def memo_json(self) -> str | None:
        """The memo as the JSON that is stored, checked and not decoded."""
        if self._memo is not None and self._memo_json is None:
            try:
                self._memo_json = self._seal.body("m", "", self._memo)
            except (CorruptRecord, TooLarge) as error:
                self.drop_memo(error)
        return self._memo_json

    def drop_memo(self, error: Exception | None = None) -> None:
        """Take a damaged memo for empty."""
        # Without the memo an update may be handled twice; an error would block the conversation for a day.
        logger.error("the memo at %s cannot be read, and is taken for empty", self.address.text, exc_info=error)
        self._memo = self._memo_json = None

    def copy_of_data(self) -> dict[Any, Any]:
        """Return a deep copy of the data."""
        return self._seal.data(self._seal.fields(self.data))

    def memo_part(self, value: Any) -> Json:
        """A part of a memo as JSON, or what a commit with it would raise."""
        return Json(self._seal.seal("m", "", value)[9:])

    def seal_part(self, name: str, value: Any, large: bool = False) -> Sealed:
        """Encode a part now, to be given to a later commit; raises what that commit would raise.

        A ``large`` one is encoded in pieces, for calls from a thread.
        """
        text = self._seal.seal("p", name, value, large)
        limit = self.storage.limits.item
        if len(text) > limit and len(text.encode()) > limit:
            raise TooLarge(f"the part {name!r}", len(text.encode()), limit)
        return Sealed(text)

    def delete(self) -> None:
        """Let the next commit remove the record. What is set after this makes a new one.

        Expired conversations that were not handed over yet stay.
        """
        self._deleted = True
        self.place, self.data = Place(None, None, expired=self.place.expired), {}

    @property
    def deleted(self) -> bool:
        """``delete()`` was called since the load or the last commit."""
        return self._deleted

    async def rollback(self) -> None:
        """Take back what was changed since the load or the last commit."""
        self.data = await open_data(self._seal, self._fields)
        self.place, self._deleted = self._stored_place, False
        self._loaded = self.data.copy()

    async def changes(self) -> Changes:
        """Encode the fields that differ, for ``changed_data`` and one ``commit``; large ones in a thread."""
        changes = self._compared(aside=True)
        if changes.large:
            await self._encode_large(changes)
        return changes

    async def _encode_large(self, changes: Changes) -> None:
        work = self._seal, changes.large, {name: self._prints.get(name) for name in changes.large}
        try:
            encoded = await in_thread(_encode, *work)
        except RuntimeError:
            # Another task changed a value meanwhile. On the event loop that cannot happen.
            encoded = _encode(*work)
        for name, (text, mark) in encoded.items():
            if text is not None and self._fields.get(name) != text:
                changes.set[name] = text
            changes.prints[name] = mark

    def changed_data(self, changes: Changes) -> dict[Any, Any]:
        """The fields of the data that a commit of these changes would write."""
        return {key: value for key, value in changes.data.items() if self._seal.name(key) in changes.set}

    @property
    def changed(self) -> bool:
        """A commit would write something."""
        if self.deletes:
            return self.found
        if self.place != self._stored_place:
            return True
        changes = self._compared()
        return bool(changes.set or changes.unset)

    async def commit(
        self,
        *,
        keep: bool = False,
        memo: Any = KEEP,
        tags: tuple[str, ...] | Keep = KEEP,
        deadline: float | Keep | None = KEEP,
        expiry: float | Keep | None = KEEP,
        parts: Mapping[str, Any] | None = None,
        dropped_parts: Sequence[str] = (),
        force: bool = False,
        changes: Changes | None = None,
    ) -> bool:
        """Write what differs in one operation that also checks the claim; ``False`` if nothing differs.

        ``keep`` holds on after the write, otherwise the claim ends with it. ``deadline`` and ``expiry`` are
        seconds from now. Memo, tags, deadline, expiry are written only along with a change, with parts, or
        with ``force``. ``changes`` are those of ``changes()``, if they were needed before. Raises ``LeaseLost`` or
        ``RecordReplaced`` with nothing written.
        """
        if not self._holding:
            raise UsageError("this slot is not held; a commit without keep=True was its last")
        if tags is not KEEP or not (deadline is KEEP or deadline is None) or not (expiry is KEEP or expiry is None):
            _check(tags, deadline, expiry)
        place, seal = self.place, self._seal
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
                changes = self._compared(aside=True)
                if changes.large:
                    await self._encode_large(changes)
            written, gone = changes.set, changes.unset
            head: Head | Keep = KEEP
            anew = self._deleted and found
            if anew:
                # What was set after delete() is a record of its own.
                written, gone = await seal_data(seal, changes.data), ()
                deadline = None if deadline is KEEP else deadline
            if anew or place != self._stored_place:
                head = seal.head(place)
            if head is KEEP and not written and not gone and not parts and not dropped_parts and not force:
                return False
            if expiry is KEEP:
                expiry = self.storage.expiry_of(self.address)
            sealed_parts = self._sealed_parts(parts or {}, dropped_parts) if parts or dropped_parts else NOTHING
            change = _new(
                Change,
                (
                    write, anew, False, False, not found, head, written, gone, tags, deadline, expiry, memo,
                    sealed_parts, seal.limit,
                ),
            )  # fmt: skip
        if self._lost:
            raise LeaseLost(self.address.text)
        guard = _new(Guard, (self._token, self.base, None))
        then = "keep" if keep else "release"
        applied: Applied = await self.storage.perform(
            _new(Apply, (self.address, change, guard, then, self._lease, False))
        )
        self._holding = keep
        if keep:
            self._written(change, applied, place, changes)
        return True

    @property
    def deletes(self) -> bool:
        """The next commit would remove the record."""
        place = self.place
        return self._deleted and place.flow is None and place.state is None and not self.data and not place.expired

    def _compared(self, *, aside: bool = False) -> Changes:
        """Compare the data with what was loaded; large fields are put ``aside``, or encoded here."""
        data, old, loaded, seal = self.data, self._fields, self._loaded, self._seal
        written: dict[str, str] = {}
        large: dict[str, Any] = {}
        kept = 0
        for key, value in data.items():
            # What cannot be mutated, and is what was loaded, needs no second look. Equal floats may differ: 0.0, -0.0.
            kind = type(value)
            if kind in _IMMUTABLE and type(key) is str:
                known = loaded.get(key, loaded)
                if known is value or (type(known) is kind and kind is not float and known == value):
                    kept += 1
                    continue
            # A name that is stored, and is not an escaped one, is the key itself.
            name = key if type(key) is str and key in old and key[0] != "$" else seal.name(key)
            text = old.get(name)
            if text is not None:
                kept += 1
            if aside and ((text is not None and len(text) > LARGE) or (kind is not int and is_large(value))):
                large[name] = value
            elif (now := seal.field(name, value)) != text:
                written[name] = now
        unset: tuple[str, ...] = ()
        if kept != len(old):
            names = {seal.name(key) for key in data}
            unset = tuple([name for name in old if name not in names])
        return _new(Changes, (data.copy(), written, unset, large, {}))

    def _sealed_parts(self, parts: Mapping[str, Any], dropped: Sequence[str]) -> dict[str, str | None]:
        sealed: dict[str, str | None] = dict.fromkeys(dropped)
        for name, value in parts.items():
            sealed[name] = value.text if type(value) is Sealed else self.seal_part(name, value).text
        return sealed

    def _written(self, change: Change, applied: Applied, place: Place, changes: Changes | None) -> None:
        """Let the next commit compare with this write."""
        self.now, self.base, self._deleted = applied.now, applied.base, change.delete
        self.version = None if change.delete else applied.version
        if change.delete:
            self._fields, self._loaded, self._stored_place, self._prints = {}, {}, NOWHERE, {}
            self.deadline = self.expires_at = None
        else:
            if change.replace:
                self._fields = {}
            elif change.unset:
                self._fields = {name: text for name, text in self._fields.items() if name not in change.unset}
            self._fields = {**self._fields, **change.set}
            if changes is not None:
                # As they were when they were encoded, which may be some time ago.
                self._loaded = changes.data
            if changes is not None and (self._prints or changes.prints):
                kept = {} if change.replace else self._prints
                known = {name: mark for name, mark in kept.items() if name not in change.set} | changes.prints
                self._prints = {name: mark for name, mark in known.items() if mark is not None and name in self._fields}
            self._stored_place = place
            if change.tags is not KEEP:
                self.tags = change.tags
            if change.deadline is not KEEP:
                self.deadline = None if change.deadline is None else applied.now + change.deadline
            if change.expiry is not KEEP:
                self.expires_at = None if change.expiry is None else applied.now + change.expiry
        if change.memo is not KEEP:
            self._memo, self._memo_json = change.memo, None

    async def confirm(self) -> None:
        """Return once everything that was loaded is as durable as an acknowledged write; see ``Storage.confirm``."""
        await self.storage.confirm(Claim(self.address, self._token, self._lease, renew=True))

    async def parts(self) -> dict[str, Any]:
        """The parts beside the record, read now. Raises if they are another holder's by now, or another record's."""
        if not self._holding:
            raise UsageError("this slot is not held; read the parts before its last commit")
        stored: Stored | None = await self.storage.perform(Get(self.address, parts=True))
        if (None if stored is None else stored.version) != self.version:
            # A merge by somebody who holds nothing leaves the parts alone; a removal or another holder may not.
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

    async def quarantine(self, error: CorruptRecord) -> None:
        """Keep a copy of this record, with its parts, as it is stored now."""
        stored: Stored | None = await self.storage.perform(Get(self.address, parts=True))
        if stored is not None:
            await self.storage.quarantine(self.address, stored, error)

    async def _claim(self, remaining: float, give_up: float) -> Claimed:
        """Poll until the address is free and it is this waiter's turn, or ``wait`` is over.

        ``remaining`` is for how many seconds another holder has it, as far as is known.
        """
        storage = self.storage
        turn = Turn(storage, self.address, self._token) if storage.shared else None
        pause = FIRST_POLL
        try:
            while True:
                if remaining:
                    left = give_up - monotonic()
                    if left <= 0:
                        raise Busy(self.address.text, self._wait)
                    # Jitter, so that waiting workers do not ask in step.
                    await asyncio.sleep(min(pause * storage.rng.uniform(0.7, 1.3), remaining, left))
                    pause = min(pause * 2, LONGEST_POLL)
                remaining = 0.0 if turn is None else await turn.take()
                if not remaining:
                    result = await storage.perform(Claim(self.address, self._token, self._lease))
                    if type(result) is Claimed:
                        self._holding = True
                        return result
                    remaining = max(result.remaining, 0.001)
        finally:
            if turn is not None:
                await turn.end()

    async def _load(self, stored: Stored) -> None:
        self.version, self._fields = stored.version, stored.fields
        self.expires_at, self.deadline, self.tags = stored.expires_at, stored.deadline, stored.tags
        try:
            if stored.head is not None:
                self.place = self._stored_place = self._seal.open_head(stored.head)
            # Decoding later would let a handler run on a record that cannot be read.
            if sum(map(len, stored.fields.values())) > LARGE:
                self.data, self._prints = await in_thread(_decode, self._seal, stored.fields)
            else:
                self.data = self._seal.data(stored.fields)
            self._loaded = self.data.copy()
        except CorruptRecord as error:
            await self.storage.quarantine(self.address, stored, error)
            raise

    def renew_soon(self) -> None:
        """Renew the lease in the background."""
        self._renewal = asyncio.get_running_loop().create_task(self._renew(), name="stepwell-renewal")

    async def _renew(self) -> None:
        try:
            if not self.storage.is_open:
                # A renewal never opens a storage, also where its next use may.
                raise StorageClosed
            await self.storage.perform(Claim(self.address, self._token, self._lease, renew=True))
        except Conflict:
            self._lost = True
            return
        except Exception as error:  # noqa: BLE001 the lease runs on for a while, and the commit checks it in any case
            logger.warning("a claim could not be renewed (%s); it is tried again", error)
        self.storage.renewals.add(self, asyncio.get_running_loop(), self._lease / 3)

    async def _let_go(self) -> None:
        self.storage.renewals.discard(self)
        if self._renewal is not None:
            self._renewal.cancel()
        try:
            if self._holding:
                self._holding = False
                await self.storage.perform(Release(self.address, self._token))
        except Exception as error:  # noqa: BLE001 what the caller did must not fail because of this
            logger.warning("a claim could not be released (%s); it ends with its lease", error)
        finally:
            leave_queue(self.storage, self.address)


def _encode(
    seal: Seal, values: Mapping[str, Any], prints: Mapping[str, bytes | None]
) -> dict[str, tuple[str | None, bytes | None]]:
    """Encode large fields; no text for those that still have their fingerprint."""
    encoded: dict[str, tuple[str | None, bytes | None]] = {}
    for name, value in values.items():
        mark = fingerprint(value)
        if mark is not None and mark == prints[name]:
            encoded[name] = None, mark
            continue
        text = seal.field(name, value, large=True)
        # A value that was changed meanwhile, by another task, is encoded again the next time.
        encoded[name] = text, mark if mark == fingerprint(value) else None
    return encoded


def _decode(seal: Seal, fields: Mapping[str, str]) -> tuple[dict[Any, Any], dict[str, bytes]]:
    """Decode all fields, and take the fingerprints of large ones."""
    data = seal.data(fields)
    large = {name: fingerprint(data[decode_name(name)]) for name, text in fields.items() if len(text) > LARGE}
    return data, {name: mark for name, mark in large.items() if mark is not None}


def _decode_parts(seal: Seal, parts: Mapping[str, str]) -> dict[str, Any]:
    return {name: seal.value("p", name, text) for name, text in parts.items()}


def _check(tags: object, deadline: object, expiry: object) -> None:
    if tags is not KEEP and not (isinstance(tags, tuple) and all(type(tag) is str for tag in tags)):
        raise InvalidOption(f"tags are a tuple of str, not {tags!r}")
    for name, seconds in (("deadline", deadline), ("expiry", expiry)):
        if seconds is KEEP or seconds is None:
            continue
        if not isinstance(seconds, int | float) or not isfinite(seconds):
            raise InvalidOption(f"{name} is a number of seconds from now, or None, not {seconds!r}")
