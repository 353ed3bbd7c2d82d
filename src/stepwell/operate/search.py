"""Searches of a storage: pages behind a key, and records by tags, age and the values of fields."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any

from stepwell import Storage
from stepwell.engine import Address, Query, Stored, from_json, quoted
from stepwell.errors import InvalidOption, StepwellError, Unsupported
from stepwell.operate.masking import MASK, is_secret, masked, masked_field

__all__ = ["PAGE", "check_searchable", "matches", "pages", "written_before"]

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
    hidden: Collection[str] | None = None,
) -> bool:
    """Return whether a record has these tags, was last written before a time, and has these values in its fields.

    The values are JSON of the codec. The name of a field may be a path: ``address.city``. If ``hidden`` is not None,
    the fields are compared as they are shown, with secrets masked: by their names, and in the fields ``hidden``.
    Raises ``InvalidOption`` if a path leads to a masked value.
    """
    if not set(tags) <= set(stored.tags) or (before is not None and stored.written_at > before):
        return False
    for path, value in (fields or {}).items():
        try:
            found = _value_at(storage, address, stored, path, hidden)
        except (StepwellError, ValueError, LookupError, TypeError):
            return False
        if hidden is not None and found == MASK:
            raise _masked(path)
        if found != value:
            return False
    return True


def check_searchable(fields: Mapping[str, Any]) -> None:
    """Raise ``InvalidOption`` if fields or values of a search are secret by their names.

    Who sees such a field masked could find out its value by searching for guesses.
    """
    for path, value in fields.items():
        if any(map(is_secret, path.split("."))) or masked(value) != value:
            raise _masked(path)


def _masked(path: str) -> InvalidOption:
    return InvalidOption(
        f"{quoted(path)} has a secret, which is masked here and cannot be searched for; search by another "
        "field, or with "
        "stepwell find or stepwell runs --field, which need the URL of the storage"
    )


def _value_at(
    storage: Storage, address: Address, stored: Stored, path: str, hidden: Collection[str] | None = None
) -> Any:
    name, *inside = (path,) if path in stored.fields else path.split(".")
    value = from_json(storage.seal(address).body("f", name, stored.fields[name]))
    if hidden is not None:
        value = masked_field(name, value, hidden)
    for step in inside:
        if hidden is not None and value == MASK:
            return MASK
        if isinstance(value, dict) and "$record" in value:
            value = value["$record"][1]
        value = value[int(step)] if isinstance(value, list) else value[step]
    return value
