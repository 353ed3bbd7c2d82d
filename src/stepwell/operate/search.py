"""Searches of a storage: pages behind a key, and records by tags, age and the values of fields."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from stepwell.codec.json import MalformedJSON, from_json
from stepwell.errors import InvalidOption, StepwellError, Unsupported
from stepwell.record import Address, Stored
from stepwell.storage import Storage
from stepwell.storage.listing import Query

__all__ = ["PAGE", "matches", "pages", "written_before"]

#: How many records are read at once.
PAGE = 500


async def pages(
    storage: Storage, query: Query, after: str | None = None
) -> AsyncIterator[list[tuple[Address, Stored]]]:
    """Yield the records that an index finds, in pages. They begin behind the key ``after``, given as text."""
    position: Any = None
    skipping = False
    if after is not None:
        try:
            position = storage.position(Address(query.namespace, after))
        except Unsupported:
            skipping = True
    await storage.ensure_open()
    while True:
        records, position = await storage.page(query, position, PAGE)
        if skipping:
            keys = [address.key for address, _ in records]
            skipping = after not in keys
            records = [] if skipping else records[keys.index(str(after)) + 1 :]
        yield records
        if position is None:
            break
    if skipping:
        raise InvalidOption(f"no record of this list has the key {after}; start from its beginning")


def written_before(storage: Storage, age: float | None) -> float | None:
    """Return the time so many seconds ago on the storage's clock."""
    return None if age is None else (storage.clock or time.time)() - age


def matches(
    storage: Storage,
    address: Address,
    stored: Stored,
    *,
    tags: tuple[str, ...] = (),
    before: float | None = None,
    fields: Mapping[str, Any] | None = None,
) -> bool:
    """Return whether a record has these tags, was last written before a time, and has these values in its fields.

    The values are JSON of the codec. The name of a field may be a path: ``address.city``.
    """
    if not set(tags) <= set(stored.tags) or (before is not None and stored.written_at > before):
        return False
    for path, value in (fields or {}).items():
        try:
            if _value_at(storage, address, stored, path) != value:
                return False
        except (StepwellError, MalformedJSON, ValueError, LookupError, TypeError):
            return False
    return True


def _value_at(storage: Storage, address: Address, stored: Stored, path: str) -> Any:
    if path in stored.fields:
        return from_json(storage.seal(address).body("f", path, stored.fields[path]))
    name, *inside = path.split(".")
    value = from_json(storage.seal(address).body("f", name, stored.fields[name]))
    for step in inside:
        if isinstance(value, dict) and "$record" in value:
            value = value["$record"][1]
        value = value[int(step)] if isinstance(value, list) else value[step]
    return value
