"""The methods that read and write whole records by bot and key, the same for all backends."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from stepwell._secrets import quoted
from stepwell.codec import Seal, address_of, check_name, encode_key, encode_namespace
from stepwell.codec.large import open_data, seal_data
from stepwell.errors import CorruptRecord, InvalidOption, KeyMissing, RecordExists, StepwellError, VersionChanged
from stepwell.options import check_instance, check_number
from stepwell.record import (
    AUDIT,
    INBOX,
    KEEP,
    LOGS,
    QUARANTINE,
    RUNS,
    STREAMS,
    TURNS,
    Address,
    Change,
    Damage,
    Keep,
    Limits,
    OpenedHead,
    Place,
    Range,
    State,
    Stored,
)
from stepwell.storage.operations import Applied, Apply, Get, Guard, Operation

__all__ = ["Facade"]

logger: logging.Logger = logging.getLogger(__name__)

#: How many absent records of a namespace ``check_keys`` reads before it stops.
MOST_ABSENT = 100


class Facade(ABC):
    """Reads and writes whole records without a claim."""

    def __init__(self, *, limits: Limits | None, ids: Callable[[], str] | None) -> None:
        self.limits: Limits = limits or Limits()
        #: Returns random ids that are unique across processes.
        self.ids: Callable[[], str] = ids or _random_id
        self._ttls: dict[str, float] = {}
        self._limits: dict[str, Limits] = {}
        #: The number of reads of each namespace by ``check_keys``; ``MOST_ABSENT``: it needs no more.
        self._key_checks: dict[str, int] = {}

    @abstractmethod
    async def ensure_open(self) -> None:
        """Open the storage if it is not open."""

    @abstractmethod
    async def perform(self, operation: Operation) -> Any:
        """Apply one operation, and return its result or raise its error."""

    def address(self, namespace: str, key: Any) -> Address:
        """Return the address of a bot's key. Raises ``InvalidKey`` or ``TooLarge``."""
        return address_of(namespace, key, self.limits)

    def seal(self, address: Address) -> Seal:
        """Return the codec for an address."""
        namespace = address.namespace
        limits = self._limits.get(namespace, self.limits)
        if namespace not in _LARGE_NAMESPACES:
            return Seal(address, limits, limits.record)
        return Seal(address, limits, limits.run)

    async def init(
        self, bot: str, *, ttl: float | Keep | None = KEEP, limits: Limits | None = None, **unknown: Any
    ) -> None:
        """Open the storage, and set options for a bot. Calling it is optional, and may be repeated.

        ``ttl``: records expire this many seconds after their last write. ``limits``: for this bot's records.
        Options that are not given stay unchanged.
        """
        if unknown:
            raise InvalidOption(
                f"init() has no option {', '.join(map(quoted, sorted(unknown)))}; it takes ttl and limits"
            )
        if ttl is not KEEP:
            check_number(ttl, "ttl must be a positive number of seconds or None, not {}", above=0, optional=True)
        check_instance(limits, Limits, "limits must be a Limits(...), not {}", optional=True)
        namespace = encode_namespace(bot, self.limits)
        if ttl is None:
            self._ttls.pop(namespace, None)
        elif ttl is not KEEP:
            self._ttls[namespace] = float(ttl)
        if limits is not None:
            self._limits[namespace] = limits
        await self.ensure_open()

    async def get_state(self, bot: str, key: Any) -> State | None:
        """Return the record, or ``None`` if there is none."""
        address = self.address(bot, key)
        stored: Stored | None = await self.perform(Get(address))
        if stored is None:
            return None
        place = (await self.read_head(address, stored)).place
        return State(place.flow, place.state, await self.read_data(address, stored))

    async def set_state(self, bot: str, key: Any, state: State) -> None:
        """Create or replace the whole record."""
        check_instance(state, State, "set_state() takes a State(flow, state, data), not {type}")
        address = self.address(bot, key)
        head = self.seal(address).head(OpenedHead(Place(_name(state.flow), _name(state.state))))
        expiry = self._ttls.get(address.namespace)
        await self._write_data(address, state.data, replace=True, head=head, deadline=None, expiry=expiry, queue=None)

    async def get_data(self, bot: str, key: Any) -> dict[Any, Any] | None:
        """Return the data, or ``None`` if there is no record."""
        address = self.address(bot, key)
        stored: Stored | None = await self.perform(Get(address))
        return None if stored is None else await self.read_data(address, stored)

    async def set_data(self, bot: str, key: Any, data: Mapping[Any, Any]) -> None:
        """Replace the data and keep flow and state. Creates the record if there is none."""
        address = self.address(bot, key)
        await self.check_keys(address)
        await self._write_data(address, data, replace=True)

    async def update_data(self, bot: str, key: Any, data: Mapping[Any, Any]) -> dict[Any, Any]:
        """Merge fields into the data atomically, and return the merged data. Creates the record if there is none."""
        address = self.address(bot, key)
        await self.check_keys(address)
        applied = await self._write_data(address, data, returning=True)
        try:
            return {} if applied.record is None else await self.read_data(address, applied.record)
        except StepwellError as error:
            error.add_note("the merge was written, but the merged data cannot be decoded")
            raise

    async def _write_data(
        self, address: Address, data: Mapping[Any, Any], *, returning: bool = False, **change: Any
    ) -> Applied:
        fields = await seal_data(self.seal(address), data)
        written = self.change(address, set=fields, **change)
        applied: Applied = await self.perform(Apply(address, written, returning=returning))
        return applied

    def change(self, address: Address, **parts: Any) -> Change:
        """Return a change of a record: ``Change`` with a new id, and with the expiry and the size limit of its bot.

        ``parts`` are arguments of ``Change``.

        Example::

            address = storage.address("my_bot", 42)
            fields = storage.seal(address).fields({"name": "Ann"})
            await storage.perform(Apply(address, storage.change(address, set=fields)))
        """
        if not parts.get("delete"):
            parts = {"expiry": self.expiry_of(address), "limit": self.seal(address).limit, **parts}
        return Change(self.ids(), **parts)

    async def edit(
        self,
        address: Address,
        decide: Callable[[Stored | None], Change | None],
        *,
        known: Stored | None = None,
        parts: bool | Range | tuple[str, ...] = False,
        apply: Callable[[Address, Change, Guard], Apply] = Apply,
    ) -> Applied | None:
        """Read a record, and write the change that ``decide`` returns for it, if it has not changed since.

        If another writer was faster, it reads the record and calls ``decide`` again. Return ``None`` if ``decide``
        does. ``known``: the record as it was read before, to save the first read. ``parts``: the parts to read, see
        ``Get``. ``apply``: returns the write, for further conditions.

        Example::

            def count(stored):
                data = {} if stored is None else seal.data(stored.fields)
                return storage.change(address, set=seal.fields({"count": data.get("count", 0) + 1}))

            address = storage.address("my_bot", 42)
            seal = storage.seal(address)
            await storage.edit(address, count)
        """
        stored = known
        while True:
            if stored is None:
                stored = await self.perform(Get(address, parts))
            change = decide(stored)
            if change is None:
                return None
            if stored is not None and not change.delete:
                self.seal(address).check_keys(stored)
            guard = Guard(absent=True) if stored is None else Guard(version=stored.version)
            try:
                applied: Applied = await self.perform(apply(address, change, guard))
            except (VersionChanged, RecordExists):
                stored = None
            else:
                return applied

    async def clear(self, bot: str, key: Any) -> None:
        """Remove the record, if there is one."""
        address = self.address(bot, key)
        await self.perform(Apply(address, Change(write=self.ids(), delete=True)))

    async def check_keys(self, address: Address) -> None:
        """Raise ``KeyMissing`` if a record is encrypted with a key that this storage does not have.

        For writes that do not read the record: they would mix texts of two keys. A process has the wrong keys for all
        records of a namespace or for none, so nothing is read any more after a record that needs no other key.
        """
        if self.must_check_keys(address):
            self.checked_keys(address, await self.perform(Get(address)))

    def must_check_keys(self, address: Address) -> bool:
        """Return whether ``check_keys`` would read the record."""
        return self._key_checks.get(address.namespace, 0) < MOST_ABSENT

    def checked_keys(self, address: Address, stored: Stored | None) -> None:
        """Do the check of ``check_keys`` on a record that was read."""
        namespace = address.namespace
        if stored is None:
            self._key_checks[namespace] = self._key_checks.get(namespace, 0) + 1
        else:
            self.seal(address).check_keys(stored)
            self._key_checks[namespace] = MOST_ABSENT

    def expiry_of(self, address: Address) -> float | Keep:
        """Return the expiry of a record after a write to it."""
        return self._ttls.get(address.namespace, KEEP)

    async def quarantine(self, address: Address, stored: Stored, error: CorruptRecord) -> None:
        """Keep a copy of a damaged record, once per version. Best effort: errors are logged, not raised."""
        copy = _quarantine_of(address)
        try:
            known: Stored | None = await self.perform(Get(copy))
            version = self.seal(copy).field("version", list(stored.version))
            is_known = known is not None and known.fields.get("version") == version
            if not is_known:
                await self.perform(self.copy_of_damage(address, stored))
        except Exception:
            logger.exception("the damaged record at %s could not be copied to quarantine", address.text)
        else:
            error.copied = True
            if not is_known:
                logger.error("%s", error)

    def copy_of_damage(self, address: Address, stored: Stored) -> Apply:
        """Return the write that copies a damaged record to quarantine."""
        copy = _quarantine_of(address)
        seal = self.seal(copy)
        # The damaged texts are sealed again, so that the copy itself is valid.
        head = stored.head.found if isinstance(stored.head, Damage) else stored.head
        damaged: dict[str, Any] = {
            "version": list(stored.version),
            "head": None if head is None else _raw(head),
            "fields": _raw_texts(stored.fields),
        }
        if stored.parts:
            damaged["parts"] = _raw_texts(stored.parts)
        fields = seal.fields(damaged)
        return Apply(copy, Change(write=self.ids(), replace=True, set=fields, limit=seal.limit))

    async def forget(self, address: Address, *, tags: tuple[str, ...] = ()) -> None:
        """Remove a record without a tombstone, with its memo, its tags and its copy in quarantine.

        ``tags``: the tags by which it was found. They are removed from the index even if the record's own are damaged.
        """
        for each in (address, _quarantine_of(address)):
            change = Change(write=self.ids(), delete=True, forget=True, tags=tags or KEEP)
            await self.perform(Apply(each, change))

    async def drop_quarantined(self, address: Address) -> None:
        """Remove the copy of a damaged record without a tombstone."""
        await self.perform(Apply(_quarantine_of(address), Change(write=self.ids(), delete=True, forget=True)))

    async def quarantined(self, bot: str, key: Any) -> dict[str, Any] | None:
        """Return the copy of a damaged record: ``version``, ``head``, ``fields``, and ``parts`` of a run."""
        copy = _quarantine_of(self.address(bot, key))
        stored: Stored | None = await self.perform(Get(copy))
        return None if stored is None else self.seal(copy).data(stored.fields)

    async def read_head(self, address: Address, stored: Stored) -> OpenedHead:
        """Decode the head of a record. A damaged one is copied to quarantine and raises ``CorruptRecord``."""
        try:
            return self.seal(address).open_head(stored.head)
        except CorruptRecord as error:
            await self.quarantine(address, stored, error)
            raise
        except KeyMissing:
            self._key_checks.pop(address.namespace, None)
            raise

    async def read_data(
        self, address: Address, stored: Stored, fields: Mapping[str, str] | None = None
    ) -> dict[Any, Any]:
        """Decode the data of a record. A damaged record is copied to quarantine and raises ``CorruptRecord``.

        ``fields``: only these fields of it.
        """
        try:
            return await open_data(self.seal(address), stored.fields if fields is None else fields)
        except CorruptRecord as error:
            await self.quarantine(address, stored, error)
            raise
        except KeyMissing:
            self._key_checks.pop(address.namespace, None)
            raise


#: Namespaces whose records may be as large as those of runs.
_LARGE_NAMESPACES = frozenset({AUDIT, INBOX, LOGS, RUNS, QUARANTINE, STREAMS, TURNS})


def _quarantine_of(address: Address) -> Address:
    return Address(QUARANTINE, encode_key((str.__str__(address.namespace), address.key)))


_unused_ids: list[str] = []
if hasattr(os, "register_at_fork"):
    # A forked child must not use the ids of its parent.
    os.register_at_fork(after_in_child=_unused_ids.clear)


def _random_id() -> str:
    try:
        return _unused_ids.pop()
    except IndexError:
        # One system call for many ids.
        drawn = os.urandom(8 * 64).hex()
        _unused_ids.extend([drawn[at : at + 16] for at in range(16, len(drawn), 16)])
        return drawn[:16]


def _raw_texts(texts: Mapping[str, str]) -> dict[str | bytes, str | bytes]:
    found = {name: text.found if isinstance(text, Damage) else text for name, text in texts.items()}
    return {_raw(name): _raw(text) for name, text in found.items() if text is not None}


def _raw(text: str) -> str | bytes:
    """Return the bytes of a text that is not valid UTF-8 in the backend, which returns it with surrogate escapes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape")
    return text


def _name(name: Any) -> Any:
    check_name("a flow or state", name)
    # str() of an Enum with str values would return another text.
    return str.__str__(name) if isinstance(name, str) else name
