"""Which records of a storage belong to some bots: conversations, logs, turns, inboxes, and copies in quarantine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import suppress
from typing import Any

from stepwell._secrets import quoted
from stepwell.codec import decode_key, decode_namespace, encode_namespace
from stepwell.errors import InvalidOption, StoredDataError, Unsupported
from stepwell.record import BY_BOT, INBOX, PROCESSES, QUARANTINE, TURNS, Address, ReservedNamespace
from stepwell.storage.contract import Storage
from stepwell.storage.listing import Query

__all__ = ["OF_BOTS", "Selection", "belongs_to"]

#: Namespaces with records of all bots, whose keys name the bot.
OF_BOTS = (*BY_BOT, INBOX, QUARANTINE)
#: The number of records of a page.
AT_ONCE = 100


class Selection:
    """The records to copy: all of them, or those of some namespaces."""

    def __init__(self, names: list[str], given: list[str] | None) -> None:
        #: Encoded namespaces of the source.
        self.names: list[str] = names
        #: Those that the caller gave. Only the records of given bots are copied from the others, which are ``OF_BOTS``.
        self._given = given
        self._bots: set[str] = set(map(decode_namespace, given or ()))

    @classmethod
    async def of(cls, source: Storage, namespaces: Iterable[str] | None) -> Selection:
        """Return all namespaces, or these. Raises for a bot without records, but not for reserved namespaces."""
        if namespaces is None:
            return cls(await _all_names(source), None)
        given = [encode_namespace(name, source.limits) for name in namespaces]
        of_bots: list[str] = []
        with suppress(Unsupported):
            there = await source.namespaces()
            for name in given:
                if name not in there and type(name) is not ReservedNamespace:
                    if TURNS in there and await _has_turns(source, decode_namespace(name)):
                        # A bot of turns only keeps no conversations of its own.
                        continue
                    bots = ", ".join([repr(decode_namespace(each)) for each in there]) or "nothing"
                    raise InvalidOption(
                        f"the source has no records of the bot {quoted(decode_namespace(name))}; it has {bots}"
                    )
            of_bots = [name for name in OF_BOTS if name in there and name not in given]
        return cls(given + of_bots, given)

    async def names_in(self, target: Storage) -> list[str]:
        """Return the namespaces of the target that may have records which the source does not have."""
        there = await _all_names(target)
        return there if self._given is None else [name for name in there if name in (*self._given, *OF_BOTS)]

    async def pages(self, storage: Storage, namespace: str) -> AsyncIterator[list[Address]]:
        """Yield the addresses of the chosen records of a namespace."""
        after: Any = None
        while True:
            records, after = await storage.page(Query(namespace), after, AT_ONCE)
            yield [address for address, _ in records if self._has(address)]
            if after is None:
                return

    def _has(self, address: Address) -> bool:
        return self._given is None or address.namespace in self._given or belongs_to(address, self._bots)


async def _has_turns(storage: Storage, bot: str) -> bool:
    after: Any = None
    while True:
        records, after = await storage.page(Query(TURNS), after, AT_ONCE)
        if any(belongs_to(address, {bot}) for address, _ in records):
            return True
        if after is None:
            return False


def belongs_to(address: Address, bots: Collection[str]) -> bool:
    """Return whether a log, an inbox, a conversation of turns or a copy in quarantine is that of one of these bots."""
    try:
        key = decode_key(address.key)
    except StoredDataError:
        return False
    if address.namespace == INBOX:
        return key in bots
    if type(key) is not tuple or len(key) != 2:
        return False
    if address.namespace in BY_BOT:
        return key[0] in bots
    original = Address(*key)
    if original.namespace in (*BY_BOT, INBOX):
        return belongs_to(original, bots)
    return decode_namespace(original.namespace) in bots


async def _all_names(storage: Storage) -> list[str]:
    # The processes of the source do not use the target.
    return [name for name in await storage.namespaces() if name != PROCESSES]
