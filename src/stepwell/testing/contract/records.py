"""Promises of versions, batches, memos and parts."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell.codec.json import replaced
from stepwell.errors import LeaseLost, StepwellError, TooLarge, VersionChanged
from stepwell.record import DAY, Change, State, Stored, Version
from stepwell.storage import Applied, Apply, Claim, Claimed, Get, Guard, Release, Storage, Taken
from stepwell.testing.clock import Clock
from stepwell.testing.contract.suite import BOT, KEY, Suite, apply, claim, fields, found, get, memo, part, release


class RecordPromises(Suite):
    async def test_a_version_grows_by_one_with_each_write_only(self, storage: Storage) -> None:
        first = (await apply(storage, data={"a": 1})).version
        await claim(storage, "A")
        await release(storage, "A")
        await get(storage)
        assert (await found(storage)).version == first
        second = (await apply(storage, data={"a": 1})).version
        assert second.number == first.number + 1
        assert second.write != first.write
        assert (await found(storage)).version == second

    async def test_a_write_without_fields_creates_a_new_version(self, storage: Storage) -> None:
        changes: list[dict[str, Any]] = [
            {"head": ("f", "t")},
            {"deadline": 10.0},
            {"expiry": 10.0},
            {"tags": ("user:1",)},
            {"parts": {"p": 1}},
            {"unset": ("never",)},
            {},
        ]
        last = (await apply(storage, data={"a": 1})).version
        for change in changes:
            version = (await apply(storage, **change)).version
            assert version.number == last.number + 1, change
            assert version.write != last.write, change
            assert (await found(storage)).version == version, change
            with pytest.raises(VersionChanged):
                await apply(storage, guard=Guard(version=last))
            last = version

    async def test_a_version_is_never_reused_after_a_delete(self, storage: Storage, clock: Clock) -> None:
        seen: list[Version] = []
        for forget in (False, True, False, True):
            seen.append((await apply(storage, data={"a": 1})).version)
            seen.append((await apply(storage, data={"a": 2})).version)
            await apply(storage, delete=True, forget=forget)
            clock.advance(0.001)
        numbers = [version.number for version in seen]
        assert numbers == sorted(set(numbers)), "they only grow"
        assert len({version.write for version in seen}) == len(seen)

    async def test_a_guard_on_a_version_allows_writing_only_that_version(self, storage: Storage) -> None:
        shown = (await apply(storage, data={"a": 1})).version
        await apply(storage, data={"a": 2}, guard=Guard(version=shown))
        for stale in (shown, Version(shown.number + 1, "forged")):
            with pytest.raises(VersionChanged):
                await apply(storage, data={"a": 3}, guard=Guard(version=stale))
        assert await storage.get_data(BOT, KEY) == {"a": 2}
        current = (await found(storage)).version
        await storage.clear(BOT, KEY)
        with pytest.raises(VersionChanged):
            await apply(storage, data={"a": 4}, guard=Guard(version=current))

    async def test_a_guard_on_a_version_does_not_match_an_expired_record(self, storage: Storage, clock: Clock) -> None:
        shown = (await apply(storage, data={"a": 1}, expiry=10.0)).version
        clock.advance(11)
        with pytest.raises(VersionChanged):
            await apply(storage, data={"a": 2}, guard=Guard(version=shown))
        assert await get(storage) is None

    async def test_a_record_above_a_lowered_limit_may_still_shrink(self, storage: Storage) -> None:
        await apply(storage, data={"a": "x" * 100, "b": "x" * 100}, limit=1000)
        with pytest.raises(TooLarge):
            await apply(storage, data={"c": 1}, limit=50)
        await apply(storage, data={"a": "x"}, limit=50)
        assert await storage.get_data(BOT, KEY) == {"a": "x", "b": "x" * 100}

    async def test_a_write_returns_its_time(self, storage: Storage, clock: Clock) -> None:
        await apply(storage, data={"a": 1})
        clock.advance(5)
        await apply(storage, data={"b": 1})
        assert (await found(storage)).written_at == pytest.approx(clock(), abs=0.001)

    async def test_a_returned_record_shares_nothing_with_the_stored_one(self, storage: Storage) -> None:
        await apply(storage, data={"a": 1}, parts={"p": 1})
        for given in (await get(storage, parts=True), (await claim(storage, "A")).record):
            assert given is not None
            given.fields.clear()
            if given.parts is not None:
                given.parts.clear()
        kept = await found(storage, parts=True)
        assert fields(storage, kept) == {"a": 1}
        assert part(storage, kept, "p") == 1

    async def test_operations_of_a_batch_on_one_key_are_applied_in_order(self, storage: Storage) -> None:
        address = storage.address(BOT, KEY)
        seal = storage.seal(address)
        writes = [
            Apply(address, Change(write=storage.ids(), set=seal.fields({"n": n})), returning=True) for n in range(3)
        ]
        results = await storage.run([writes[0], Get(address), writes[1], writes[2], Get(address)])
        assert all(not isinstance(result, StepwellError) for result in results)
        records = [result.record if isinstance(result, Applied) else result for result in results]
        assert [fields(storage, record)["n"] for record in records if isinstance(record, Stored)] == [0, 0, 1, 2, 2]

    async def test_one_invalid_operation_of_a_batch_fails_alone(self, storage: Storage) -> None:
        addresses = [storage.address(BOT, key) for key in range(4)]
        changes = [Change(write=storage.ids(), set=storage.seal(a).fields({"a": 1})) for a in addresses]
        await storage.run([Claim(addresses[3], "A", 10)])
        results = await storage.run(
            [
                Apply(addresses[0], changes[0]),
                Apply(addresses[1], changes[1], Guard(token="no token", base="")),
                Apply(addresses[2], replaced(changes[2], limit=1)),
                Claim(addresses[3], "B", 10),
                Apply(addresses[3], changes[3], Guard(token="A", base="")),
                Claim(addresses[3], "B", 10),
                Release(addresses[0], "no token"),
                Get(addresses[1]),
            ]
        )
        kinds = [type(result) for result in results]
        assert kinds == [Applied, LeaseLost, TooLarge, Taken, Applied, Claimed, type(None), type(None)]
        assert await storage.get_data(BOT, 0) == {"a": 1}
        assert await storage.get_data(BOT, 1) is None
        assert await storage.get_data(BOT, 2) is None
        assert await storage.get_data(BOT, 3) == {"a": 1}

    async def test_a_change_is_applied_completely_or_not_at_all(self, storage: Storage) -> None:
        await apply(storage, data={"a": 1, "b": 1}, head=("f", "s"), parts={"p": 1}, tags=("user:1",), deadline=5.0)
        before = await get(storage, parts=True)
        with pytest.raises(TooLarge):
            await apply(
                storage, data={"a": 2, "c": "x" * 50}, head=("f", "t"), parts={"q": 1}, tags=(), unset=("b",), limit=40
            )
        assert await get(storage, parts=True) == before

    async def test_fields_can_be_set_and_unset_in_one_write(self, storage: Storage) -> None:
        await apply(storage, data={"a": 1, "b": 2, "c": 3})
        await apply(storage, data={"a": 9, "d": 4}, unset=("b", "d", "never"))
        assert await storage.get_data(BOT, KEY) == {"a": 9, "c": 3, "d": 4}

    async def test_fields_count_towards_the_limit_until_they_are_unset(self, storage: Storage) -> None:
        for _ in range(3):
            await apply(storage, data={"a": "x" * 60}, limit=100)
            with pytest.raises(TooLarge):
                await apply(storage, data={"b": "x" * 60}, limit=100)
            await apply(storage, data={"b": "x" * 60}, unset=("a",), limit=100)
            await apply(storage, unset=("b", "never"), limit=100)
        assert await storage.get_data(BOT, KEY) == {}

    async def test_a_memo_is_returned_by_the_next_claim_and_survives_clear(self, storage: Storage) -> None:
        held = await claim(storage, "A")
        assert memo(storage, held) is None
        await apply(storage, data={"a": 1}, memo=[1, 2], held=("A", held))
        held = await claim(storage, "B")
        assert memo(storage, held) == [1, 2]
        await apply(storage, delete=True, memo=[1, 2, 3], held=("B", held))
        await storage.clear(BOT, KEY)
        held = await claim(storage, "C")
        assert (held.record, memo(storage, held)) == (None, [1, 2, 3])
        await release(storage, "C")
        await storage.set_state(BOT, KEY, State("f", "s"))
        assert memo(storage, await claim(storage, "D")) == [1, 2, 3]

    async def test_a_write_without_a_memo_keeps_the_old_one(self, storage: Storage) -> None:
        held = await claim(storage, "A")
        applied = await apply(storage, data={"a": 1}, memo=["m"], held=("A", held), keep=True)
        await apply(storage, data={"a": 2}, held=("A", applied))
        await storage.update_data(BOT, KEY, {"a": 3})
        assert memo(storage, await claim(storage, "B")) == ["m"]

    async def test_a_memo_expires_a_day_after_it_was_written(self, storage: Storage, clock: Clock) -> None:
        held = await claim(storage, "A")
        await apply(storage, data={"a": 1}, memo=["m"], held=("A", held))
        clock.advance(DAY - 1)
        assert memo(storage, await claim(storage, "B", lease=1)) == ["m"]
        clock.advance(2)
        assert memo(storage, await claim(storage, "C")) is None
        assert await storage.get_data(BOT, KEY) == {"a": 1}

    async def test_a_memo_outlives_the_expiry_of_its_record_even_after_a_read(
        self, storage: Storage, clock: Clock
    ) -> None:
        held = await claim(storage, "A")
        await apply(storage, data={"a": 1}, memo=["m"], expiry=10.0, held=("A", held))
        clock.advance(11)
        for token in ("B", "C"):
            assert await get(storage) is None
            held = await claim(storage, token)
            assert (held.record, memo(storage, held)) == (None, ["m"])
            await release(storage, token)
        await storage.update_data(BOT, KEY, {"b": 2})
        assert memo(storage, await claim(storage, "D")) == ["m"]

    async def test_forget_leaves_neither_memo_nor_tombstone(self, storage: Storage) -> None:
        for key in ("replaced", "cleared"):
            held = await claim(storage, "A", key)
            await apply(storage, key, data={"a": 1}, memo=["m"], held=("A", held))
            await (storage.clear(BOT, key) if key == "cleared" else storage.set_data(BOT, key, {"a": 2}))
            await apply(storage, key, delete=True, forget=True)
            held = await claim(storage, "B", key)
            assert (held.record, held.memo, held.base) == (None, None, ""), key

    async def test_parts_are_loaded_only_on_request(self, storage: Storage) -> None:
        await apply(storage, data={"a": 1}, parts={"items/0": [1, 2], "items/1": "é"})
        plain = await found(storage)
        assert plain.parts is None
        assert fields(storage, plain) == {"a": 1}
        full = await get(storage, parts=True)
        assert [part(storage, full, name) for name in ("items/0", "items/1")] == [[1, 2], "é"]
        assert await get(storage, 7, parts=True) is None

    async def test_parts_are_added_replaced_and_deleted_one_by_one(self, storage: Storage) -> None:
        await apply(storage, parts={"a": 1, "b": 1})
        await apply(storage, parts={"b": 2, "c": 2, "a": None, "never": None})
        stored = await found(storage, parts=True)
        assert {name: part(storage, stored, name) for name in stored.parts or ()} == {"b": 2, "c": 2}

    async def test_parts_are_fenced_by_the_claim(self, storage: Storage, clock: Clock) -> None:
        held = await claim(storage, "A", lease=10)
        clock.advance(11)
        with pytest.raises(LeaseLost):
            await apply(storage, parts={"a": 1}, held=("A", held))
        assert await get(storage, parts=True) is None

    async def test_parts_are_deleted_with_their_record(self, storage: Storage) -> None:
        await apply(storage, data={"a": 1}, parts={"p": 1})
        await storage.set_state(BOT, KEY, State("f", "s"))
        assert (await found(storage, parts=True)).parts == {}
        await apply(storage, data={"a": 1}, parts={"p": 1})
        await storage.clear(BOT, KEY)
        await storage.update_data(BOT, KEY, {"b": 1})
        assert (await found(storage, parts=True)).parts == {}

    async def test_parts_count_towards_the_limit_until_they_are_deleted(self, storage: Storage) -> None:
        await apply(storage, parts={"a": "x" * 60}, limit=100)
        with pytest.raises(TooLarge):
            await apply(storage, parts={"b": "x" * 60}, limit=100)
        await apply(storage, parts={"a": None}, limit=100)
        await apply(storage, parts={"b": "x" * 60}, limit=100)
        with pytest.raises(TooLarge):
            await apply(storage, data={"c": "x" * 60}, limit=100)
