"""The seven callbacks: a record per bot and key, whatever the backend."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from stepwell.codec import Seal, address_of, encode_key, encode_namespace
from stepwell.errors import CorruptRecord, EncodeError, InvalidOption
from stepwell.record import KEEP, QUARANTINE, RUNS, Address, Change, Head, Keep, Limits, Place, State, Stored
from stepwell.storage.operations import Applied, Apply, Get, Operation

__all__ = ["Callbacks"]

logger = logging.getLogger(__name__)


class Callbacks(ABC):
    """Reads and writes of whole records, without a claim."""

    def __init__(self, *, limits: Limits | None, ids: Callable[[], str] | None) -> None:
        self.limits = limits or Limits()
        #: Random and never repeated, in any process.
        self.ids = ids or _random_id
        self._ttls: dict[str, float] = {}

    @abstractmethod
    async def open(self) -> None:
        """Connect and prepare, if that is not done yet."""

    @abstractmethod
    async def perform(self, operation: Operation) -> Any:
        """Make one operation; its error is raised."""

    def address(self, namespace: str, key: Any) -> Address:
        """Where a key of a bot is kept, or the error that says why it cannot be a key."""
        return address_of(namespace, key, self.limits)

    def seal(self, address: Address) -> Seal:
        """The codec for what is kept at an address."""
        return Seal(address, self.limits, self.limit_of(address))

    def limit_of(self, address: Address) -> int:
        """How large a record at this address may be."""
        return self.limits.record if address.namespace not in (RUNS, QUARANTINE) else self.limits.run

    async def init(self, bot: str, *, ttl: float | Keep | None = KEEP, **unknown: Any) -> None:
        """Prepare the storage for a bot. May be called any number of times, or not at all.

        ``ttl``: a record that nobody writes for so many seconds expires; left out, it stays what it was.
        """
        if unknown:
            raise InvalidOption(f"init() has no option {', '.join(map(repr, sorted(unknown)))}; it takes ttl")
        if ttl is not None and ttl is not KEEP and not ttl > 0:
            raise InvalidOption(f"ttl is a positive number of seconds or None, not {ttl!r}")
        namespace = encode_namespace(bot, self.limits)
        if ttl is None:
            self._ttls.pop(namespace, None)
        elif ttl is not KEEP:
            self._ttls[namespace] = float(ttl)
        await self.open()

    async def get_state(self, bot: str, key: Any) -> State | None:
        """The record, or ``None`` if there is none."""
        address = self.address(bot, key)
        stored: Stored | None = await self.perform(Get(address))
        if stored is None:
            return None
        seal = self.seal(address)
        try:
            place = seal.head_back(stored.head)
            return State(place.flow, place.state, seal.data(stored.fields))
        except CorruptRecord:
            await self.quarantine(address, stored)
            raise

    async def set_state(self, bot: str, key: Any, state: State) -> None:
        """Make or replace the whole record."""
        address = self.address(bot, key)
        seal = self.seal(address)
        await self.perform(
            Apply(
                address,
                Change(
                    write=self.ids(),
                    replace=True,
                    head=_head(seal, state),
                    set=seal.fields(state.data),
                    deadline=None,
                    expiry=self._ttls.get(address.namespace),
                    limit=self.limit_of(address),
                ),
            )
        )

    async def get_data(self, bot: str, key: Any) -> dict[Any, Any] | None:
        """The data, or ``None`` if there is no record."""
        address = self.address(bot, key)
        stored: Stored | None = await self.perform(Get(address))
        return None if stored is None else await self._data(address, stored)

    async def set_data(self, bot: str, key: Any, data: Mapping[Any, Any]) -> None:
        """Replace the data; flow and state stay. Makes a record where there is none."""
        address = self.address(bot, key)
        await self.perform(
            Apply(
                address,
                Change(
                    write=self.ids(),
                    replace=True,
                    set=self.seal(address).fields(data),
                    expiry=self.expiry_of(address),
                    limit=self.limit_of(address),
                ),
            )
        )

    async def update_data(self, bot: str, key: Any, data: Mapping[Any, Any]) -> dict[Any, Any]:
        """Merge fields into the data, atomically, and return the merged data. Makes a record where there is none."""
        address = self.address(bot, key)
        applied: Applied = await self.perform(
            Apply(
                address,
                Change(
                    write=self.ids(),
                    set=self.seal(address).fields(data),
                    expiry=self.expiry_of(address),
                    limit=self.limit_of(address),
                ),
                returning=True,
            )
        )
        return {} if applied.record is None else await self._data(address, applied.record)

    async def clear(self, bot: str, key: Any) -> None:
        """Remove the record. On an unknown key it does nothing."""
        address = self.address(bot, key)
        await self.perform(Apply(address, Change(write=self.ids(), delete=True)))

    def expiry_of(self, address: Address) -> float | Keep:
        """What a write that changes a record does to its expiry."""
        return self._ttls.get(address.namespace, KEEP)

    async def quarantine(self, address: Address, stored: Stored) -> None:
        """Keep a copy of a damaged record as it was found, once per version."""
        place = _quarantine_of(address)
        seal = self.seal(place)
        version = list(stored.version)
        known: Stored | None = await self.perform(Get(place))
        if known is not None and known.fields.get("version") == seal.field("version", version):
            return
        # Sealed anew: the copy must come back as the damaged text that it is.
        found = {"version": version, "head": stored.head, "fields": stored.fields}
        await self.perform(
            Apply(place, Change(write=self.ids(), replace=True, set=seal.fields(found), limit=self.limit_of(place)))
        )
        logger.error("the record at %s is damaged; a copy is in quarantine", address.text)

    async def quarantined(self, bot: str, key: Any) -> dict[str, Any] | None:
        """The damaged texts of a record, as they were found: ``version``, ``head`` and ``fields``."""
        place = _quarantine_of(self.address(bot, key))
        stored: Stored | None = await self.perform(Get(place))
        return None if stored is None else self.seal(place).data(stored.fields)

    async def _data(self, address: Address, stored: Stored) -> dict[Any, Any]:
        try:
            return self.seal(address).data(stored.fields)
        except CorruptRecord:
            await self.quarantine(address, stored)
            raise


def _quarantine_of(address: Address) -> Address:
    return Address(QUARANTINE, encode_key((address.namespace, address.key)))


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


def _head(seal: Seal, state: State) -> Head:
    for name in (state.flow, state.state):
        if name is not None and not isinstance(name, str):
            raise EncodeError("$head", type(name).__qualname__, "cannot name a flow or state; names are str or None")
    flow = None if state.flow is None else str(state.flow)
    return seal.head(Place(flow, None if state.state is None else str(state.state)))
