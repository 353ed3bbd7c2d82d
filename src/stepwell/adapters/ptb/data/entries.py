"""The entries of user, chat and bot data: records in the storage, and the objects that handlers change.

python-telegram-bot keeps one object for each entry, which handlers change in place. For each object this module
remembers the stored texts that it was last compared with. So it knows which items this process has changed and which
ones another process has.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, NamedTuple

from stepwell import Storage
from stepwell.adapters.ptb.data import fields
from stepwell.adapters.ptb.data.merging import MISSING, merge, replace
from stepwell.engine import (
    Address,
    Applied,
    Apply,
    Change,
    Get,
    Guard,
    Seal,
    Stored,
    Version,
    decode_key,
    fingerprint,
)
from stepwell.errors import RecordExists, VersionChanged

__all__ = ["BOT", "CHAT", "USER", "EntryRecords", "KnownFields", "tags_of"]

#: The kinds of entries. They are also the names of the fields that mark an entry.
USER: Final = "user_data"
CHAT: Final = "chat_data"
BOT: Final = "bot_data"


class KnownFields(NamedTuple):
    """The stored fields that an object was last compared with."""

    #: The version that had them; ``None`` if there was no record.
    version: Version | None
    #: The fields of the record, also those of other entries.
    texts: Mapping[str, str]
    #: The record has changes that are not in the object yet.
    behind: bool = False


class EntryRecords:
    """The entries in one namespace. The data of a user and of the private chat with that user are one record."""

    def __init__(self, storage: Storage, namespace: Callable[[], str]) -> None:
        self.storage: Storage = storage
        self._namespace = namespace
        self._known: dict[tuple[str, Any], KnownFields] = {}
        #: The fingerprints of objects that equal known fields. Comparing them is faster than encoding.
        self._equal: dict[tuple[str, Any], tuple[KnownFields, bytes]] = {}
        #: The kinds whose entries were all loaded.
        self._loaded: set[str] = set()

    @property
    def namespace(self) -> str:
        """The namespace of the records."""
        return self._namespace()

    def seal(self, key: Any) -> Seal:
        """Return what encodes and decodes the fields of a record."""
        return self.storage.seal(self.storage.address(self.namespace, key))

    def known(self, kind: str, key: Any) -> KnownFields | None:
        """Return the fields that the object of an entry was last compared with."""
        return self._known.get((kind, key))

    def remember(self, kind: str, key: Any, known: KnownFields) -> None:
        """Remember the fields that the object of an entry equals now."""
        self._known[kind, key] = known

    def is_equal(self, kind: str, key: Any, data: Any) -> bool:
        """Return whether an object is known to equal its known fields. If not, it may equal them too."""
        known, mark = self._equal.get((kind, key), (None, None))
        return known is not None and known is self.known(kind, key) and mark == fingerprint(fields.items_of(data))

    def note_equal(self, kind: str, key: Any, known: KnownFields, mark: bytes | None) -> None:
        """Note that an object with this fingerprint equals known fields."""
        if mark is not None:
            self._equal[kind, key] = known, mark

    def known_keys(self, kind: str) -> list[Any]:
        """Return the keys of all entries of a kind that were loaded or written."""
        return [key for each, key in self._known if each == kind]

    async def load_all(self, kind: str, make: Callable[[], Any]) -> dict[Any, Any]:
        """Return all entries of a kind as new objects."""
        self._loaded.add(kind)
        found: dict[Any, Any] = {}
        async for address, stored in self.records():
            if kind in stored.fields:
                key = decode_key(address.key)
                found[key] = await self._open(kind, key, address, stored, make)
        return found

    async def load(self, kind: str, key: Any, make: Callable[[], Any]) -> Any:
        """Return one entry as a new object; an empty one if there is none."""
        address = self.storage.address(self.namespace, key)
        stored: Stored | None = await self.storage.perform(Get(address))
        if stored is None or kind not in stored.fields:
            self.remember(kind, key, KnownFields(None if stored is None else stored.version, {}))
            return make()
        return await self._open(kind, key, address, stored, make)

    async def records(self) -> AsyncIterator[tuple[Address, Stored]]:
        """Yield all records of the namespace."""
        async for entry in self.storage.scan(self.namespace):
            yield entry.address, entry.stored

    async def refresh(self, kind: str, key: Any, live: Any) -> None:
        """Read an entry, and add the changes of other processes to its object."""
        address = self.storage.address(self.namespace, key)
        while True:
            known = self.known(kind, key)
            stored: Stored | None = await self.storage.perform(Get(address))
            # Another task may have written the entry after this read.
            if self.known(kind, key) is known:
                break
        version, texts = (None, {}) if stored is None else (stored.version, stored.fields)
        self.sync(kind, key, live, version, texts)

    def sync(self, kind: str, key: Any, live: Any, version: Version | None, texts: Mapping[str, str]) -> None:
        """Add the changes of other processes to the object of an entry, given the stored record."""
        known = self.known(kind, key)
        if known is not None and known.version == version and not known.behind:
            return
        base = {} if known is None else known.texts
        self.merge_into(kind, self.storage.address(self.namespace, key), live, base, texts)
        self.remember(kind, key, KnownFields(version, texts))

    def merge_into(
        self, kind: str, address: Address, live: Any, base: Mapping[str, str], stored: Mapping[str, str]
    ) -> None:
        """Add the changes from ``base`` to ``stored`` to an object; changes that it already has are kept."""
        items = fields.items_of(live)
        if items is None:
            # An int or a str cannot be changed in place.
            return
        seal = self.storage.seal(address)
        for name, key in fields.names_of(kind, {**base, **stored}):
            old, theirs = base.get(name), stored.get(name)
            if theirs == old:
                continue
            mine = seal.field(name, items[key]) if key in items else None
            if mine == theirs:
                continue
            merged = _value(seal, name, theirs)
            if mine != old:
                merged = merge(_value(seal, name, old), items.get(key, MISSING), merged)
            if merged is MISSING:
                fields.delete_item(live, key)
            else:
                fields.set_item(live, key, replace(items.get(key), merged))

    def is_changed(self, kind: str, key: Any, data: Any) -> bool:
        """Return whether this process has changed an entry that it has loaded and that is a record of its own.

        Raises ``EncodeError`` or ``TooLarge`` if the change cannot be written.
        """
        known = self.known(kind, key)
        if known is None or (not known.texts and not fields.items_of(data)) or self.is_equal(kind, key, data):
            return False
        seal = self.seal(key)
        texts = fields.seal_entry(seal, kind, key, data, self.storage.limits)
        before = fields.texts_of(kind, known.texts)
        if texts == before:
            return False
        fields.check_size(kind, before, texts, seal.limit)
        return True

    async def save(self, kind: str, key: Any, data: Any) -> bool:
        """Write the items of an entry that this process has changed, and return whether there were any.

        If another process has written the record since, its changes are merged into ``data`` first.
        """
        storage = self.storage
        address = storage.address(self.namespace, key)
        seal = storage.seal(address)
        base = self.known(kind, key)
        behind = base is not None and base.behind
        first: dict[str, str] | None = None
        if base is None:
            base = self._as_known(kind, await storage.perform(Get(address)))
            if kind in self._loaded and base.texts:
                # Another process created it, and its items are not in this process yet.
                first = fields.seal_entry(seal, kind, key, data, storage.limits)
                self.merge_into(kind, address, data, {}, base.texts)
                behind = True
        while True:
            texts = fields.seal_entry(seal, kind, key, data, storage.limits)
            first = first or texts
            changed = {name: text for name, text in texts.items() if base.texts.get(name) != text}
            gone = tuple([name for name in fields.texts_of(kind, base.texts) if name not in texts])
            if not changed and not gone:
                self.remember(kind, key, KnownFields(base.version, first, behind))
                return False
            change = storage.change(address, set=changed, unset=gone, tags=tags_of(key))
            guard = Guard(absent=True) if base.version is None else Guard(version=base.version)
            try:
                applied: Applied = await storage.perform(Apply(address, change, guard))
            except (VersionChanged, RecordExists):
                stored = self._as_known(kind, await storage.perform(Get(address)))
                self.merge_into(kind, address, data, base.texts, stored.texts)
                # The handlers' object is not ``data`` and does not have these changes yet.
                base, behind = stored, True
                continue
            self.remember(kind, key, KnownFields(applied.version, first, behind))
            return True

    async def drop(self, kind: str, key: Any, *, only_version: Version | None = None) -> None:
        """Delete an entry. ``only_version``: not if another process has written it since that version."""
        address = self.storage.address(self.namespace, key)

        def decide(stored: Stored | None) -> Change | None:
            entry = {} if stored is None else fields.texts_of(kind, stored.fields)
            if stored is None or not entry or (only_version is not None and stored.version != only_version):
                return None
            if len(entry) == len(stored.fields):
                return self.storage.change(address, delete=True)
            return self.storage.change(address, unset=tuple(entry))

        await self.storage.edit(address, decide)
        self._known.pop((kind, key), None)

    async def edit(self, key: Any, field: str, change: Callable[[dict[Any, Any]], None]) -> None:
        """Read a field that is a dict, let ``change`` change it, and write it. An empty one is deleted."""
        storage = self.storage
        address = storage.address(self.namespace, key)
        seal = storage.seal(address)

        def decide(stored: Stored | None) -> Change | None:
            text = None if stored is None else stored.fields.get(field)
            value: dict[Any, Any] = {} if text is None else seal.data({field: text})[field]
            change(value)
            wanted = seal.field(field, value) if value else None
            if wanted == text:
                return None
            if wanted is not None:
                return storage.change(address, set={field: wanted}, tags=tags_of(key))
            if stored is not None and len(stored.fields) == 1:
                return storage.change(address, delete=True)
            return storage.change(address, unset=(field,))

        await storage.edit(address, decide)

    def _as_known(self, kind: str, stored: Stored | None) -> KnownFields:
        return (
            KnownFields(None, {})
            if stored is None
            else KnownFields(stored.version, fields.texts_of(kind, stored.fields))
        )

    async def _open(self, kind: str, key: Any, address: Address, stored: Stored, make: Callable[[], Any]) -> Any:
        known = self._as_known(kind, stored)
        data = await self.storage.read_data(address, stored, known.texts)
        self.remember(kind, key, known)
        return fields.unpack(kind, data, make)


def _value(seal: Seal, name: str, text: str | None) -> Any:
    return MISSING if text is None else next(iter(seal.data({name: text}).values()))


def tags_of(key: Any) -> tuple[str, ...]:
    """Return the tags by which the record of a user or chat is found."""
    if type(key) is not int:
        return ()
    # The id of a private chat is that of its user.
    return (f"user:{key}", f"chat:{key}") if key > 0 else (f"chat:{key}",)
