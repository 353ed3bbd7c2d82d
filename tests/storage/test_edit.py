"""``storage.edit`` repeats a change that another writer has overtaken."""

from __future__ import annotations

import asyncio

import pytest

from stepwell import Storage
from stepwell.errors import CorruptRecord, KeyMissing
from stepwell.record import QUARANTINE, Change, Stored
from stepwell.storage import Get, MemoryStorage
from stepwell.storage.sealed import SealedStorage, new_key
from tests.backends import Backend


async def count(storage: Storage, key: int = 1) -> None:
    address = storage.address("counters", key)
    seal = storage.seal(address)

    def add(stored: Stored | None) -> Change:
        data = {} if stored is None else seal.data(stored.fields)
        return storage.change(address, set=seal.fields({"count": data.get("count", 0) + 1}))

    await storage.edit(address, add)


@pytest.mark.every_backend
async def test_no_edit_of_many_concurrent_ones_is_lost(backend: Backend) -> None:
    storage = backend.storage()
    await asyncio.gather(*(count(storage) for _ in range(20)))
    assert await storage.get_data("counters", 1) == {"count": 20}


async def test_an_edit_that_decides_on_nothing_writes_nothing(backend: Backend) -> None:
    storage = backend.storage()
    assert await storage.edit(storage.address("counters", 1), lambda stored: None) is None
    assert await storage.get_data("counters", 1) is None


async def test_an_edit_of_an_outdated_record_reads_it_again(backend: Backend) -> None:
    storage = backend.storage()
    address = storage.address("counters", 1)
    await count(storage)
    known = await storage.perform(Get(address))
    await count(storage)
    seen: list[Stored | None] = []

    def decide(stored: Stored | None) -> Change:
        seen.append(stored)
        return storage.change(address, delete=True)

    await storage.edit(address, decide, known=known)
    assert [each is known for each in seen] == [True, False]
    assert await storage.get_data("counters", 1) is None


async def test_a_change_has_the_expiry_and_the_limit_of_its_bot(backend: Backend) -> None:
    storage = backend.storage()
    await storage.init("counters", ttl=60)
    address = storage.address("counters", 1)
    assert storage.change(address).expiry == 60
    assert storage.change(address).limit == storage.limits.record
    await count(storage)
    stored = await storage.perform(Get(address))
    assert stored.expires_at is not None


async def test_an_edit_with_a_wrong_key_is_refused() -> None:
    inner = MemoryStorage()
    async with SealedStorage(inner, keys=[new_key()]) as owner, SealedStorage(inner, keys=[new_key()]) as other:
        await count(owner)
        address = other.address("counters", 1)
        with pytest.raises(KeyMissing):
            await other.edit(address, lambda stored: other.change(address, set={}))


async def test_reading_damaged_data_copies_the_record_to_quarantine(backend: Backend) -> None:
    storage = backend.storage()
    address = storage.address("counters", 1)
    await count(storage)
    stored = await storage.perform(Get(address))
    stored.fields["count"] = stored.fields["count"][:-1]
    with pytest.raises(CorruptRecord):
        await storage.read_data(address, stored)
    assert [entry.key async for entry in storage.scan(QUARANTINE)] != []
