"""Promises of parts: reading them by range and by name, and deleting a range."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from stepwell.errors import LeaseLost, TooLarge, VersionChanged
from stepwell.record import Change, State, Stored
from stepwell.storage import Apply, Get, Guard, Operation, Range, Storage
from stepwell.testing.clock import Clock
from stepwell.testing.contract.suite import BOT, KEY, Suite, apply, claim, fields, found, get, part

__all__ = ["PartPromises"]

#: In the order of their code points. Other orders differ: by length or case, by locale, and by UTF-16.
NAMES = [
    "",
    "\0",
    "\0\0",
    "\x01",
    "!",
    "A",
    "Z",
    "[",
    "\\",
    "\\0",
    "]",
    "a",
    "a\0",
    "a\0b",
    "a\x01",
    "a/1",
    "a1",
    "a10",
    "a9",
    "b",
    "z",
    "é",
    "ß",
    "\uffee",
    "\U0001f600",
    "\U0010ffff",
]
NAMES.sort()


async def names(storage: Storage, wanted: bool | Range | tuple[str, ...], key: object = KEY) -> list[str]:
    """Return the names of parts that a read returns, in its order."""
    parts = (await found(storage, key, parts=wanted)).parts
    assert parts is not None, "the record has no parts"
    return list(parts)


def numbered(numbers: Iterable[int]) -> list[str]:
    return [f"{number:04}" for number in numbers]


class PartPromises(Suite):
    async def test_a_range_is_in_the_order_of_code_points(self, storage: Storage) -> None:
        await apply(storage, data={"a": 1}, parts=dict.fromkeys(reversed(NAMES), 1))
        assert await names(storage, Range()) == NAMES
        assert await names(storage, Range(reverse=True)) == NAMES[::-1]
        stored = await found(storage, parts=Range(limit=3))
        assert fields(storage, stored) == {"a": 1}
        assert list(stored.parts or ()) == NAMES[:3]

    async def test_both_ends_of_a_range_are_included_and_need_not_exist(self, storage: Storage) -> None:
        await apply(storage, parts=dict.fromkeys(NAMES, 1))
        for first in ("", "\0", "\0\x01", "a", "a0", "a10", "\\", "é", "\U0010ffff\U0010ffff"):
            assert await names(storage, Range(first)) == [name for name in NAMES if name >= first], first
            assert await names(storage, Range(last=first)) == [name for name in NAMES if name <= first], first
        for first, last in (("A", "a10"), ("a0", "a2"), ("a", "a"), ("b", "a"), ("\0", "\x01"), ("aa", "ab")):
            within = [name for name in NAMES if first <= name <= last]
            assert await names(storage, Range(first, last)) == within, (first, last)
            assert await names(storage, Range(first, last, reverse=True)) == within[::-1], (first, last)

    async def test_the_limit_of_a_range_counts_from_its_start(self, storage: Storage) -> None:
        await apply(storage, parts=dict.fromkeys(numbered(range(20)), 1))
        for first, last in ((0, 20), (3, 17)):
            ends = f"{first:04}", f"{last - 1:04}"
            for limit in (0, 1, 5, 20, 21):
                within = numbered(range(first, last))
                assert await names(storage, Range(*ends, limit)) == within[:limit]
                assert await names(storage, Range(*ends, limit, reverse=True)) == within[::-1][:limit]

    async def test_a_range_can_be_paged(self, storage: Storage) -> None:
        await apply(storage, parts=dict.fromkeys(NAMES, 1))
        seen: list[str] = []
        while page := await names(storage, Range(seen[-1] + "\0" if seen else None, limit=4)):
            seen += page
        assert seen == NAMES

    async def test_a_prefix_is_a_range(self, storage: Storage) -> None:
        await apply(storage, parts=dict.fromkeys([*NAMES, "a\U0010ffff", "a\U0010ffffx"], 1))
        expected = [name for name in [*NAMES, "a\U0010ffff", "a\U0010ffffx"] if name.startswith("a")]
        assert await names(storage, Range.prefix("a")) == sorted(expected)
        assert await names(storage, Range.prefix("a", limit=2, reverse=True)) == ["a\U0010ffffx", "a\U0010ffff"]
        assert await names(storage, Range.prefix("never")) == []

    async def test_parts_are_read_by_name(self, storage: Storage) -> None:
        await apply(storage, parts={name: number for number, name in enumerate(NAMES)})
        wanted = ("a9", "never", "\0", "\\0", "é", "a9")
        stored = await found(storage, parts=wanted)
        assert {name: part(storage, stored, name) for name in stored.parts or ()} == {
            name: NAMES.index(name) for name in ("a9", "\0", "\\0", "é")
        }
        assert await names(storage, ()) == []
        assert await names(storage, ("never",)) == []
        many = numbered(range(1000))
        await apply(storage, parts=dict.fromkeys(many, 1))
        assert sorted(await names(storage, tuple(many[::3]))) == many[::3]

    async def test_a_range_without_a_record_or_parts_is_empty(self, storage: Storage, clock: Clock) -> None:
        for wanted in (Range(), Range(limit=1, reverse=True), ("a",), ()):
            assert await get(storage, "never", parts=wanted) is None
        await apply(storage, data={"a": 1}, expiry=10.0)
        assert await names(storage, Range()) == []
        await apply(storage, parts={"p": 1})
        clock.advance(11)
        assert await get(storage, parts=Range()) is None
        # This write starts a new record.
        await apply(storage, parts={"q": 1})
        assert await names(storage, Range()) == ["q"]

    async def test_a_range_has_the_parts_after_each_write(self, storage: Storage) -> None:
        expected: set[str] = set()
        for number in range(30):
            added, gone = f"{number * 7 % 30:04}", f"{number * 11 % 30:04}"
            await apply(storage, parts={gone: None, added: number})
            expected = expected - {gone} | {added}
            # A backend may have its own way for a range of all parts.
            assert await names(storage, Range("")) == await names(storage, Range()) == sorted(expected)
        for clear in (storage.clear(BOT, KEY), storage.set_state(BOT, KEY, State("f", "s"))):
            await clear
            await apply(storage, parts={"b": 1, "a": 1})
            assert await names(storage, Range("")) == ["a", "b"]
        await apply(storage, delete=True, forget=True)
        await apply(storage, parts={"c": 1})
        assert await names(storage, Range("")) == ["c"]

    async def test_a_write_can_delete_a_range(self, storage: Storage) -> None:
        every = numbered(range(20))
        await apply(storage, data={"a": 1}, parts=dict.fromkeys(every, 1))
        await apply(storage, drop=Range("0003", "0005"))
        left = every[:3] + every[6:]
        assert await names(storage, Range()) == left
        await apply(storage, drop=Range(limit=2))
        assert await names(storage, Range()) == left[2:]
        await apply(storage, drop=Range(limit=2, reverse=True))
        assert sorted(await names(storage, True)) == left[2:-2]
        for nothing in (Range("x"), Range("0009", "0008"), Range(limit=0), Range("00031", "00032")):
            await apply(storage, drop=nothing)
        assert await names(storage, Range()) == left[2:-2]
        await apply(storage, drop=Range("0010"))
        assert await names(storage, Range()) == ["0002", "0006", "0007", "0008", "0009"]
        assert fields(storage, await found(storage)) == {"a": 1}
        await apply(storage, drop=Range())
        assert await names(storage, Range()) == []
        await apply(storage, "new", parts={"p": 1}, drop=Range())
        assert await names(storage, Range(), "new") == ["p"]

    async def test_a_range_is_deleted_before_parts_are_set(self, storage: Storage) -> None:
        await apply(storage, parts={"a": 1, "b": 1, "c": 1})
        await apply(storage, parts={"b": 2, "d": 2, "a": None, "never": None}, drop=Range("a", "b"))
        stored = await found(storage, parts=Range())
        values = {name: part(storage, stored, name) for name in stored.parts or ()}
        assert values == {"b": 2, "c": 1, "d": 2}
        await apply(storage, replace=True, parts={"a": 3}, drop=Range())
        assert await names(storage, Range()) == ["a"]

    async def test_parts_of_a_deleted_range_do_not_count_towards_the_limit(self, storage: Storage) -> None:
        for _ in range(3):
            await apply(storage, parts={"a": "x" * 40, "b": "x" * 40}, limit=120)
            with pytest.raises(TooLarge):
                await apply(storage, parts={"c": "x" * 40}, limit=120)
            # The new text of "b" replaces none, because the old one is deleted.
            with pytest.raises(TooLarge):
                await apply(storage, parts={"b": "x" * 100, "c": "x" * 40}, drop=Range("b"), limit=120)
            assert await names(storage, Range()) == ["a", "b"]
            await apply(storage, parts={"b": "x" * 40}, drop=Range("a", "b"), limit=120)
            await apply(storage, parts={"c": "x" * 40}, limit=120)
            with pytest.raises(TooLarge):
                await apply(storage, data={"d": "x" * 40}, limit=120)
            await apply(storage, drop=Range(), limit=120)
        await apply(storage, data={"d": "x" * 100}, limit=120)

    async def test_deleting_a_range_is_guarded_like_every_write(self, storage: Storage, clock: Clock) -> None:
        old = await apply(storage, parts={"a": 1, "b": 1})
        new = await apply(storage, data={"x": 1})
        assert new.version.number == old.version.number + 1
        with pytest.raises(VersionChanged):
            await apply(storage, drop=Range(), guard=Guard(version=old.version))
        held = await claim(storage, "A", lease=10)
        clock.advance(11)
        with pytest.raises(LeaseLost):
            await apply(storage, drop=Range(), held=("A", held))
        assert await names(storage, Range()) == ["a", "b"]
        dropped = await apply(storage, drop=Range("b"), guard=Guard(version=new.version))
        assert dropped.version.number == new.version.number + 1
        assert await names(storage, Range()) == ["a"]

    async def test_a_range_belongs_to_the_version_that_is_returned_with_it(self, storage: Storage) -> None:
        address = storage.address(BOT, KEY)
        seal = storage.seal(address)
        await apply(storage, data={"n": 0}, parts={"a": 0, "b": 0})

        async def write() -> None:
            for number in range(1, 40):
                change = Change(
                    write=storage.ids(),
                    set=seal.fields({"n": number}),
                    parts={name: seal.seal("p", name, number) for name in ("a", "b")},
                    drop=Range() if number % 2 else None,
                )
                await storage.perform(Apply(address, change))

        async def read() -> None:
            for number in range(40):
                wanted = (Range(), Range(reverse=True, limit=2), ("a", "b"))[number % 3]
                stored: Stored | None = await storage.perform(Get(address, wanted))
                assert stored is not None and stored.parts is not None
                n = seal.data(stored.fields)["n"]
                assert {name: seal.value("p", name, text) for name, text in stored.parts.items()} == {"a": n, "b": n}

        await asyncio.gather(write(), read(), read())

    async def test_operations_of_a_batch_see_ranges_in_order(self, storage: Storage) -> None:
        address = storage.address(BOT, KEY)
        text = storage.seal(address).seal("p", "a", 1)
        batch: list[Operation] = [
            Apply(address, Change(write=storage.ids(), parts={"b": text, "a": text})),
            Get(address, Range()),
            Apply(address, Change(write=storage.ids(), parts={"c": text}, drop=Range(limit=1))),
            Get(address, Range(reverse=True)),
            Get(address, ("a", "c")),
            Get(address),
        ]
        records = [result for result in await storage.run(batch) if isinstance(result, Stored)]
        found = [None if record.parts is None else list(record.parts) for record in records]
        assert found == [["a", "b"], ["c", "b"], ["c"], None]
