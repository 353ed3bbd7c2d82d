"""The stored data of a held record: finding and encoding the fields that differ from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepwell.codec import Seal
from stepwell.codec.json import Struct
from stepwell.codec.keys import decode_name
from stepwell.codec.large import LARGE, fingerprint, in_thread, is_large
from stepwell.record import Change

__all__ = ["Changes", "StoredFields", "decode_large"]

_IMMUTABLE = frozenset({str, int, float, bool, type(None), bytes})


class Changes(Struct, frozen=True):
    """The fields that differ from the stored ones.

    Example::

        from stepwell.engine import Changes, Slot

        async with Slot(storage, "counters", "visits") as slot:
            slot.data["count"] = 1
            changes: Changes = await slot.changes()
            assert list(changes.set) == ["count"]
            await slot.commit(changes=changes)
    """

    #: A shallow copy of the compared data.
    data: dict[Any, Any]
    #: Field name to sealed text.
    set: dict[str, str]
    unset: tuple[str, ...]
    #: Large fields, which ``encode_large`` compares in a thread.
    large: dict[str, Any]
    #: The fingerprints of the large fields; ``None`` if there is none.
    prints: dict[str, bytes | None]


class StoredFields(Struct, frozen=True):
    """The data of a record as it is stored."""

    seal: Seal
    #: Field name to sealed text.
    texts: dict[str, str]
    #: The values of these texts. A value that is still the same immutable object is unchanged.
    data: dict[Any, Any]
    #: Field name to the fingerprint of its value, for large fields.
    prints: dict[str, bytes]

    def compare(self, data: dict[Any, Any], *, aside: bool = False) -> Changes:
        """Return the fields that differ, encoded. ``aside``: return large ones in ``Changes.large``, not encoded."""
        seal, old, loaded = self.seal, self.texts, self.data
        written: dict[str, str] = {}
        large: dict[str, Any] = {}
        kept = 0
        for key, value in data.items():
            # Equal floats may differ: 0.0 and -0.0.
            kind = type(value)
            if kind in _IMMUTABLE and type(key) is str:
                known = loaded.get(key, loaded)
                if known is value or (type(known) is kind and kind is not float and known == value):
                    kept += 1
                    continue
            # A stored name that is not escaped is the key itself.
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
        return Changes(data=data.copy(), set=written, unset=unset, large=large, prints={})

    async def encode_large(self, changes: Changes) -> None:
        """Add the large fields that differ to ``changes.set``. They are encoded in a thread."""
        work = self.seal, changes.large, {name: self.prints.get(name) for name in changes.large}
        try:
            encoded = await in_thread(_encode, *work)
        except RuntimeError:
            # Another task changed a value meanwhile. On the event loop that cannot happen.
            encoded = _encode(*work)
        for name, (text, mark) in encoded.items():
            if text is not None and self.texts.get(name) != text:
                changes.set[name] = text
            changes.prints[name] = mark

    def after(self, change: Change, changes: Changes) -> StoredFields:
        """Return the stored fields after a write of these changes."""
        texts, prints = self.texts, self.prints
        if change.replace:
            texts, prints = {}, {}
        elif change.unset:
            texts = {name: text for name, text in texts.items() if name not in change.unset}
        texts = {**texts, **change.set}
        if prints or changes.prints:
            known = {name: mark for name, mark in prints.items() if name not in change.set} | changes.prints
            prints = {name: mark for name, mark in known.items() if mark is not None and name in texts}
        # The values at the time of their encoding, which may be some time ago.
        return StoredFields(seal=self.seal, texts=texts, data=changes.data, prints=prints)


def _encode(
    seal: Seal, values: Mapping[str, Any], prints: Mapping[str, bytes | None]
) -> dict[str, tuple[str | None, bytes | None]]:
    """Return text and fingerprint of each field; no text if the fingerprint is unchanged."""
    encoded: dict[str, tuple[str | None, bytes | None]] = {}
    for name, value in values.items():
        mark = fingerprint(value)
        if mark is not None and mark == prints[name]:
            encoded[name] = None, mark
            continue
        text = seal.field(name, value, large=True)
        # If another task changed the value meanwhile, the next commit encodes it again.
        encoded[name] = text, mark if mark == fingerprint(value) else None
    return encoded


def decode_large(seal: Seal, texts: Mapping[str, str]) -> tuple[dict[Any, Any], dict[str, bytes]]:
    """Return the data of sealed fields, and the fingerprints of large ones."""
    data = seal.data(texts)
    large = {name: fingerprint(data[decode_name(name)]) for name, text in texts.items() if len(text) > LARGE}
    return data, {name: mark for name, mark in large.items() if mark is not None}
