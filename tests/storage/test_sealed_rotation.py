"""Encrypting records again with a newer key, while they are written."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell import MemoryStorage, SealedStorage, State, Storage
from stepwell.errors import InvalidOption, KeyMissing, NotEncrypted
from stepwell.record import Change
from stepwell.slot import Slot
from stepwell.storage import Apply, Claim, Get, Range
from stepwell.storage.sealed import new_key, rotate_keys
from stepwell.storage.sealed.rotation import Rotated
from tests.backends import Backend
from tests.constants import Constants

OLD, NEW, OTHER, NAMES = new_key(), new_key(), new_key(), new_key()


def sealed(inner: Storage, *keys: str, **options: Any) -> SealedStorage:
    return SealedStorage(inner, keys=keys, **options)


async def fill(storage: Storage, count: int) -> None:
    for number in range(count):
        async with Slot(storage, "bot", number) as slot:
            slot.flow, slot.state, slot.data["n"] = "form", f"s{number % 3}", number
            memo = [number] if number % 2 else None
            await slot.commit(
                parts={f"{n:03}": n for n in range(number % 5)}, deadline=100.0, **({"memo": memo} if memo else {})
            )


async def old_texts(storage: SealedStorage, key: str) -> int:
    """Return the number of stored texts that need a key."""
    mark = "~1" + sealed(MemoryStorage(), key).keyring.ids[0]
    found = 0
    async for entry in storage.inner.scan("bot"):
        stored = await storage.inner.perform(Get(entry.address, parts=True))
        memo = (await storage.inner.beside(entry.address)).memo or ""
        texts = [stored.head or "", memo, *stored.fields.values(), *stored.parts.values()]
        found += sum(text.startswith(mark) for text in texts)
    return found


async def test_all_texts_get_the_newest_key_while_records_are_written(backend: Backend) -> None:
    inner = backend.storage()
    async with sealed(inner, OLD, names_key=NAMES) as storage:
        await fill(storage, 40)
        assert await old_texts(storage, OLD) > 100
    await inner.open()
    async with sealed(inner, NEW, OLD, names_key=NAMES) as storage:
        ended = False
        merged = 0

        async def merge() -> None:
            nonlocal merged
            while not ended:
                await storage.update_data("bot", merged % 40, {f"m{merged}": merged})
                merged += 1
                await asyncio.sleep(0)

        async def converse(key: int) -> int:
            count = 0
            while not ended:
                async with Slot(storage, "bot", key) as slot:
                    slot.data["count"] = count = slot.data.get("count", 0) + 1
                    await slot.commit(memo=[count])
                await asyncio.sleep(0)
            return count

        tasks = [asyncio.create_task(merge()), *(asyncio.create_task(converse(key)) for key in (1, 2))]
        rotated = await rotate_keys(storage)
        ended = True
        _, *counts = await asyncio.gather(*tasks)
        assert (rotated.unreadable, rotated.busy) == ([], [])
        assert rotated.rewritten + rotated.current == 40
        again = await rotate_keys(storage)
        assert (again.rewritten, again.current) == (0, 40)
    await inner.open()
    async with sealed(inner, NEW, names_key=NAMES) as storage:
        for number in range(40):
            data = await storage.get_data("bot", number)
            assert data is not None and data["n"] == number
            assert all(data[f"m{m}"] == m for m in range(merged) if m % 40 == number)
        assert [(await storage.get_data("bot", key) or {})["count"] for key in (1, 2)] == counts
        assert await old_texts(storage, OLD) == 0
        assert len([entry async for entry in storage.scan("bot", state="s0")]) == 14
        async with Slot(storage, "bot", 3) as slot:
            assert slot.memo == [3] and slot.deadline is not None


async def test_records_in_clear_are_encrypted() -> None:
    inner = MemoryStorage()
    await fill(inner, 10)
    await inner.set_state("bot", "head only", State("form", "s1"))
    async with sealed(inner, NEW, allow_plaintext=True) as storage:
        seen: list[int] = []
        rotated = await rotate_keys(storage, progress=lambda so_far: seen.append(so_far.rewritten))
        assert rotated.rewritten == 11 and seen[-1] == 11
    await inner.open()
    async with sealed(inner, NEW) as storage:
        assert len([entry.state async for entry in storage.scan("bot")]) == 11
        assert await storage.get_data("bot", 9) == {"n": 9}


async def test_records_with_many_parts_are_rewritten_in_pages(constants: Constants) -> None:
    constants(rotation_parts_at_once=3)
    inner = MemoryStorage()
    async with sealed(inner, OLD) as storage:
        address = storage.address("bot", 1)
        seal = storage.seal(address)
        parts = {f"{n:03}": seal.seal("p", f"{n:03}", n) for n in range(10)}
        await storage.perform(Apply(address, Change(write="w", parts=parts)))
    await inner.open()
    async with sealed(inner, NEW, OLD) as storage:
        assert (await rotate_keys(storage, namespaces=["bot", "empty"])).rewritten == 1
        assert await old_texts(storage, OLD) == 0
        stored = await storage.perform(Get(address, Range()))
        assert stored.parts == parts


async def test_unreadable_and_held_records_are_listed() -> None:
    inner = MemoryStorage()
    async with sealed(inner, OTHER) as other:
        await other.set_data("bot", "other", {"a": 1})
        async with sealed(inner, OLD) as storage:
            await fill(storage, 4)
            await storage.perform(Claim(storage.address("bot", 1), "held", 60))
            both = sealed(inner, NEW, OLD)
            rotated: Rotated = await rotate_keys(both, wait=0.01)
            assert [address.key for address in rotated.unreadable] == ['"other"']
            assert [address.key for address in rotated.busy] == ["1"]
            assert rotated.rewritten == 3
            with pytest.raises(KeyMissing):
                await both.get_data("bot", "other")


async def test_only_an_encrypted_storage_has_keys() -> None:
    with pytest.raises(InvalidOption, match="takes a SealedStorage"):
        await rotate_keys(MemoryStorage())  # type: ignore[arg-type]


async def test_a_memo_in_clear_is_refused_and_not_dropped() -> None:
    inner = MemoryStorage()
    await fill(inner, 2)
    await inner.clear("bot", 1)
    async with sealed(inner, NEW) as storage, Slot(storage, "bot", 1) as slot:
        with pytest.raises(NotEncrypted, match="its memo of handled updates"):
            assert slot.memo
