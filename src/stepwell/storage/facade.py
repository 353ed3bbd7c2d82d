"""The seven callbacks: a record per bot and key, whatever the backend."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from stepwell.codec import Seal, address_of, encode_key, encode_namespace
from stepwell.codec.large import open_data, seal_data
from stepwell.errors import CorruptRecord, InvalidOption, StepwellError
from stepwell.record import KEEP, QUARANTINE, RUNS, Address, Change, Damage, Keep, Limits, Place, State, Stored
from stepwell.storage.operations import Applied, Apply, Get, Operation

__all__ = ["Facade"]

logger = logging.getLogger(__name__)


class Facade(ABC):
    """Reads and writes of whole records, without a claim."""

    def __init__(self, *, limits: Limits | None, ids: Callable[[], str] | None) -> None:
        self.limits = limits or Limits()
        #: Random and never repeated, in any process.
        self.ids = ids or _random_id
        self._ttls: dict[str, float] = {}
        self._limits: dict[str, Limits] = {}

    @abstractmethod
    async def ensure_open(self) -> None:
        """Connect and prepare, if that is not done yet."""

    @abstractmethod
    async def perform(self, operation: Operation) -> Any:
        """Make one operation; its error is raised."""

    def address(self, namespace: str, key: Any) -> Address:
        """Where a key of a bot is kept, or the error that says why it cannot be a key."""
        return address_of(namespace, key, self.limits)

    def seal(self, address: Address) -> Seal:
        """The codec for what is kept at an address."""
        limits = self._limits.get(address.namespace, self.limits)
        if address.namespace not in _ROOMY:
            return Seal(address, limits, limits.record)
        # A run is at another node with every commit: an index by node would be written each time, and nobody asks it.
        return Seal(address, limits, limits.run, by_state=address.namespace != RUNS)

    async def init(
        self, bot: str, *, ttl: float | Keep | None = KEEP, limits: Limits | None = None, **unknown: Any
    ) -> None:
        """Prepare the storage for a bot. May be called any number of times, or not at all.

        ``ttl``: a record that nobody writes for so many seconds expires. ``limits``: for this bot's records.
        What is left out stays what it was.
        """
        if unknown:
            raise InvalidOption(
                f"init() has no option {', '.join(map(repr, sorted(unknown)))}; it takes ttl and limits"
            )
        if ttl is not None and ttl is not KEEP and not (isinstance(ttl, int | float) and ttl > 0):
            raise InvalidOption(f"ttl is a positive number of seconds or None, not {ttl!r}")
        if limits is not None and not isinstance(limits, Limits):
            raise InvalidOption(f"limits are given as Limits(...), not {limits!r}")
        namespace = encode_namespace(bot, self.limits)
        if ttl is None:
            self._ttls.pop(namespace, None)
        elif ttl is not KEEP:
            self._ttls[namespace] = float(ttl)
        if limits is not None:
            self._limits[namespace] = limits
        await self.ensure_open()

    async def get_state(self, bot: str, key: Any) -> State | None:
        """The record, or ``None`` if there is none."""
        address = self.address(bot, key)
        stored: Stored | None = await self.perform(Get(address))
        if stored is None:
            return None
        place = await self.read_place(address, stored)
        return State(place.flow, place.state, await self._data(self.seal(address), stored))

    async def set_state(self, bot: str, key: Any, state: State) -> None:
        """Make or replace the whole record."""
        if not isinstance(state, State):
            raise InvalidOption(f"set_state() takes a State(flow, state, data), not {type(state).__name__}")
        address = self.address(bot, key)
        seal = self.seal(address)
        await self.perform(
            Apply(
                address,
                Change(
                    write=self.ids(),
                    replace=True,
                    head=seal.head(Place(_name(state.flow), _name(state.state))),
                    set=await seal_data(seal, state.data),
                    deadline=None,
                    expiry=self._ttls.get(address.namespace),
                    limit=seal.limit,
                ),
            )
        )

    async def get_data(self, bot: str, key: Any) -> dict[Any, Any] | None:
        """The data, or ``None`` if there is no record."""
        address = self.address(bot, key)
        stored: Stored | None = await self.perform(Get(address))
        return None if stored is None else await self._data(self.seal(address), stored)

    async def set_data(self, bot: str, key: Any, data: Mapping[Any, Any]) -> None:
        """Replace the data; flow and state stay. Makes a record where there is none."""
        address = self.address(bot, key)
        seal = self.seal(address)
        await self.perform(
            Apply(
                address,
                Change(
                    write=self.ids(),
                    replace=True,
                    set=await seal_data(seal, data),
                    expiry=self.expiry_of(address),
                    limit=seal.limit,
                ),
            )
        )

    async def update_data(self, bot: str, key: Any, data: Mapping[Any, Any]) -> dict[Any, Any]:
        """Merge fields into the data, atomically, and return the merged data. Makes a record where there is none."""
        address = self.address(bot, key)
        seal = self.seal(address)
        applied: Applied = await self.perform(
            Apply(
                address,
                Change(
                    write=self.ids(),
                    set=await seal_data(seal, data),
                    expiry=self.expiry_of(address),
                    limit=seal.limit,
                ),
                returning=True,
            )
        )
        try:
            return {} if applied.record is None else await self._data(seal, applied.record)
        except StepwellError as error:
            error.add_note("the merge itself was made; only the merged data cannot be shown")
            raise

    async def clear(self, bot: str, key: Any) -> None:
        """Remove the record. On an unknown key it does nothing."""
        address = self.address(bot, key)
        await self.perform(Apply(address, Change(write=self.ids(), delete=True)))

    def expiry_of(self, address: Address) -> float | Keep:
        """What a write that changes a record does to its expiry."""
        return self._ttls.get(address.namespace, KEEP)

    async def quarantine(self, address: Address, stored: Stored, error: CorruptRecord) -> None:
        """Keep a copy of a damaged record as it was found, once per version. Never fails: the damage is the news."""
        place = _quarantine_of(address)
        try:
            known: Stored | None = await self.perform(Get(place))
            version = self.seal(place).field("version", list(stored.version))
            if known is not None and known.fields.get("version") == version:
                return
            await self.perform(self.copy_of_damage(address, stored))
        except Exception:
            logger.exception("the damaged record at %s could not be copied to quarantine", address.text)
        else:
            logger.error("%s", error)

    def copy_of_damage(self, address: Address, stored: Stored) -> Apply:
        """The write that puts a damaged record into quarantine."""
        place = _quarantine_of(address)
        seal = self.seal(place)
        # Sealed anew: the copy must come back as the damaged text that it is.
        head = stored.head.found if isinstance(stored.head, Damage) else stored.head
        damaged: dict[str, Any] = {
            "version": list(stored.version),
            "head": None if head is None else _bytes_if_torn(head),
            "fields": _torn(stored.fields),
        }
        if stored.parts:
            damaged["parts"] = _torn(stored.parts)
        fields = seal.fields(damaged)
        return Apply(place, Change(write=self.ids(), replace=True, set=fields, limit=seal.limit))

    async def forget(self, address: Address, *, tags: tuple[str, ...] = ()) -> None:
        """Remove all that is kept at an address, and its copy in quarantine: nothing is left.

        ``tags``: the tags that it was found by. They are taken out of the index even if the record's own are damaged.
        """
        for place in (address, _quarantine_of(address)):
            change = Change(write=self.ids(), delete=True, forget=True, tags=tags or KEEP)
            await self.perform(Apply(place, change))

    async def quarantined(self, bot: str, key: Any) -> dict[str, Any] | None:
        """The damaged texts of a record as found: ``version``, ``head``, ``fields``, and ``parts`` of a run."""
        place = _quarantine_of(self.address(bot, key))
        stored: Stored | None = await self.perform(Get(place))
        return None if stored is None else self.seal(place).data(stored.fields)

    async def read_place(self, address: Address, stored: Stored) -> Place:
        """Decode where a record stands; a damaged record is copied to quarantine and raises ``CorruptRecord``."""
        try:
            return self.seal(address).open_head(stored.head)
        except CorruptRecord as error:
            await self.quarantine(address, stored, error)
            raise

    async def _data(self, seal: Seal, stored: Stored) -> dict[Any, Any]:
        try:
            return await open_data(seal, stored.fields)
        except CorruptRecord as error:
            await self.quarantine(seal.address, stored, error)
            raise


#: Where records may be as large as those of runs.
_ROOMY = frozenset({RUNS, QUARANTINE})


def _quarantine_of(address: Address) -> Address:
    return Address(QUARANTINE, encode_key((str.__str__(address.namespace), address.key)))


_drawn: list[str] = []
if hasattr(os, "register_at_fork"):
    # A forked worker must not use the ids of its parent.
    os.register_at_fork(after_in_child=_drawn.clear)


def _random_id() -> str:
    try:
        return _drawn.pop()
    except IndexError:
        # One call to the system for many ids.
        drawn = os.urandom(8 * 64).hex()
        _drawn.extend(drawn[at : at + 16] for at in range(16, len(drawn), 16))
        return drawn[:16]


def _torn(texts: Mapping[str, str]) -> dict[str | bytes, str | bytes]:
    return {_bytes_if_torn(name): _bytes_if_torn(text) for name, text in texts.items() if not isinstance(text, Damage)}


def _bytes_if_torn(text: str) -> str | bytes:
    """A text that was not UTF-8 in the store (a backend then gives it with surrogate escapes), as it was there."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape")
    return text


def _name(name: Any) -> Any:
    # The text itself: str() of an Enum with str values would be another one.
    return str.__str__(name) if isinstance(name, str) else name
