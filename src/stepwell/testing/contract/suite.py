"""The base of the suite: the fixtures, and helpers for operations."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, ClassVar, cast

import pytest
import pytest_asyncio

from stepwell.record import Change, OpenedHead, Place, Stored
from stepwell.storage import Applied, Apply, Claim, Claimed, Get, Guard, Range, Release, Storage
from stepwell.testing.clock import Clock

__all__ = ["Suite", "apply", "claim", "fields", "found", "get", "listed", "memo", "part", "release"]

BOT = "bot"
KEY = (42, 42)


class Suite:
    """A storage for each test, opened before and closed after it."""

    pytestmark: ClassVar[pytest.MarkDecorator] = pytest.mark.asyncio

    #: Set it to ``False`` for a storage in memory. The suite then has no tests of reopening and sharing.
    persistent: ClassVar[bool] = True
    #: Set it to ``False`` for a storage without queues, deadlines of one flow and ``Guard(absent=True)``.
    queues: ClassVar[bool] = True
    #: Set it to ``False`` for a storage whose notices reach listeners of its own process only.
    notices: ClassVar[bool] = True
    #: Set it to ``False`` for a storage that cannot count its records.
    counts: ClassVar[bool] = True
    #: Set it to ``False`` for a storage without ``position`` and ``beside``.
    inspection: ClassVar[bool] = True

    def open_storage(self, clock: Clock) -> Storage:
        """Return an empty storage that uses this clock. The only method that a subclass must define."""
        raise NotImplementedError("define open_storage(clock) in the subclass")

    def reopen(self, storage: Storage) -> Storage:
        """Return a second storage object over the store of ``storage``, which may be open or closed.

        It uses the same clock, ``storage.clock``. The default calls ``open_storage`` again, which works
        if that opens the same store each time within a test, for example a file in ``tmp_path``.
        """
        return self.open_storage(cast(Clock, storage.clock))

    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest_asyncio.fixture
    async def storage(self, clock: Clock) -> AsyncIterator[Storage]:
        async with self.open_storage(clock) as storage:
            yield storage


async def get(storage: Storage, key: Any = KEY, *, parts: bool | Range | tuple[str, ...] = False) -> Stored | None:
    found: Stored | None = await storage.perform(Get(storage.address(BOT, key), parts))
    return found


async def found(storage: Storage, key: Any = KEY, *, parts: bool | Range | tuple[str, ...] = False) -> Stored:
    """Return a record that must exist."""
    stored = await get(storage, key, parts=parts)
    assert stored is not None, "there is no record"
    return stored


async def listed(storage: Storage, bot: str = BOT, **query: Any) -> list[Any]:
    """Return the keys that a scan lists."""
    return [entry.key async for entry in storage.scan(bot, **query)]


async def claim(storage: Storage, token: str, key: Any = KEY, *, lease: float = 10, renew: bool = False) -> Any:
    return await storage.perform(Claim(storage.address(BOT, key), token, lease, renew))


async def release(storage: Storage, token: str, key: Any = KEY) -> None:
    await storage.perform(Release(storage.address(BOT, key), token))


async def apply(
    storage: Storage,
    key: Any = KEY,
    *,
    data: dict[Any, Any] | None = None,
    head: tuple[str | None, str | None] | None = None,
    parts: dict[str, Any] | None = None,
    memo: Any = None,
    held: tuple[str, Claimed | Applied] | None = None,
    keep: bool = False,
    **change: Any,
) -> Applied:
    """Write a record; ``held`` is a token with the result of its claim or of its last write."""
    address = storage.address(BOT, key)
    seal = storage.seal(address)
    if data is not None:
        change["set"] = seal.fields(data)
    if head is not None:
        change["head"] = seal.head(OpenedHead(Place(*head)))
    if parts is not None:
        change["parts"] = {n: None if p is None else seal.seal("p", n, p) for n, p in parts.items()}
    if memo is not None:
        change["memo"] = seal.seal("m", "", memo)
    guard = change.pop("guard", None)
    if held is not None:
        guard = Guard(held[0], held[1].base)
    operation = Apply(address, Change(write=storage.ids(), **change), guard, "keep" if keep else "release", 10)
    applied: Applied = await storage.perform(operation)
    return applied


def fields(storage: Storage, stored: Stored | None, key: Any = KEY) -> dict[Any, Any]:
    """Return the data of a stored record."""
    assert stored is not None, "there is no record"
    return storage.seal(storage.address(BOT, key)).data(stored.fields)


def memo(storage: Storage, claimed: Claimed, key: Any = KEY) -> Any:
    """Return the memo of a claim."""
    return None if claimed.memo is None else storage.seal(storage.address(BOT, key)).value("m", "", claimed.memo)


def part(storage: Storage, stored: Stored | None, name: str, key: Any = KEY) -> Any:
    """Return a part of a stored record."""
    assert stored is not None and stored.parts is not None, "the record has no parts"
    return storage.seal(storage.address(BOT, key)).value("p", name, stored.parts[name])
