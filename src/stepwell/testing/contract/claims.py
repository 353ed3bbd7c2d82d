"""Promises of claims: one holder at a time, fenced writes, and no lost writes of others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from stepwell.errors import LeaseLost, RecordReplaced, TooLarge
from stepwell.record import State
from stepwell.storage import Claimed, Storage, Taken
from stepwell.testing.clock import Clock
from stepwell.testing.contract.suite import BOT, KEY, Suite, apply, claim, fields, get, release


class ClaimPromises(Suite):
    async def test_a_claim_returns_the_record_with_the_lease(self, storage: Storage) -> None:
        await storage.set_state(BOT, KEY, State("f", "s", {"a": 1}))
        claimed = await claim(storage, "A")
        assert isinstance(claimed, Claimed)
        assert fields(storage, claimed.record) == {"a": 1}

    async def test_an_address_without_a_record_can_be_claimed_and_stays_without_one(self, storage: Storage) -> None:
        claimed = await claim(storage, "A")
        assert isinstance(claimed, Claimed)
        assert claimed.record is None
        assert await get(storage) is None
        await release(storage, "A")
        assert await get(storage) is None

    async def test_a_claim_by_a_second_token_returns_taken_with_the_remaining_time(
        self, storage: Storage, clock: Clock
    ) -> None:
        await claim(storage, "A", lease=10)
        clock.advance(4)
        taken = await claim(storage, "B")
        assert isinstance(taken, Taken)
        assert taken.remaining == pytest.approx(6, abs=0.01)

    async def test_the_same_token_extends_its_lease(self, storage: Storage, clock: Clock) -> None:
        await claim(storage, "A", lease=10)
        clock.advance(8)
        assert isinstance(await claim(storage, "A", lease=10), Claimed)
        clock.advance(8)
        assert isinstance(await claim(storage, "B"), Taken)

    async def test_a_lease_ends_exactly_at_its_end_time(self, storage: Storage, clock: Clock) -> None:
        for lease in (10, 0.5):
            claimed, renewed, written = (f"{what} {lease}" for what in ("claimed", "renewed", "written"))
            for key in (claimed, renewed, written):
                held = await claim(storage, "A", key, lease=lease)
            clock.advance(lease - 0.125)
            taken = await claim(storage, "B", claimed)
            assert isinstance(taken, Taken)
            assert taken.remaining == pytest.approx(0.125, abs=0.01)
            clock.advance(0.125)
            assert isinstance(await claim(storage, "B", claimed), Claimed)
            with pytest.raises(LeaseLost):
                await claim(storage, "A", renewed, renew=True)
            with pytest.raises(LeaseLost):
                await apply(storage, written, data={"a": 1}, held=("A", held))
            assert await get(storage, written) is None

    async def test_a_release_frees_at_once_and_only_by_its_own_token(self, storage: Storage) -> None:
        await claim(storage, "A")
        await release(storage, "B")
        assert isinstance(await claim(storage, "B"), Taken)
        await release(storage, "A")
        assert isinstance(await claim(storage, "B"), Claimed)

    async def test_a_claim_does_not_block_other_keys(self, storage: Storage) -> None:
        await claim(storage, "A", 1)
        assert isinstance(await claim(storage, "B", 2), Claimed)

    async def test_of_many_concurrent_claims_one_succeeds(self, storage: Storage) -> None:
        results = await asyncio.gather(*(claim(storage, f"T{n}") for n in range(20)))
        assert sum(isinstance(result, Claimed) for result in results) == 1

    async def test_a_renewal_never_revives_an_expired_lease(self, storage: Storage, clock: Clock) -> None:
        await claim(storage, "A", lease=10)
        assert isinstance(await claim(storage, "A", lease=10, renew=True), Claimed)
        clock.advance(10.01)
        with pytest.raises(LeaseLost):
            await claim(storage, "A", renew=True)
        await claim(storage, "B")
        with pytest.raises(LeaseLost):
            await claim(storage, "A", renew=True)
        with pytest.raises(LeaseLost):
            await claim(storage, "A", "never claimed", renew=True)

    async def test_a_renewal_extends_the_lease(self, storage: Storage, clock: Clock) -> None:
        held = await claim(storage, "A", lease=10)
        clock.advance(8)
        await claim(storage, "A", lease=10, renew=True)
        clock.advance(8)
        taken = await claim(storage, "B")
        assert isinstance(taken, Taken)
        assert taken.remaining == pytest.approx(2, abs=0.01)
        await apply(storage, data={"a": 1}, held=("A", held))
        assert await storage.get_data(BOT, KEY) == {"a": 1}

    async def test_a_commit_writes_and_releases_in_one_operation(self, storage: Storage) -> None:
        held = await claim(storage, "A")
        await apply(storage, data={"a": 1}, head=("f", "s"), held=("A", held))
        assert await storage.get_state(BOT, KEY) == State("f", "s", {"a": 1})
        assert isinstance(await claim(storage, "B"), Claimed)

    async def test_a_commit_that_keeps_the_claim_extends_the_lease(self, storage: Storage, clock: Clock) -> None:
        held = await claim(storage, "A", lease=10)
        clock.advance(8)
        applied = await apply(storage, data={"a": 1}, held=("A", held), keep=True)
        clock.advance(8)
        assert isinstance(await claim(storage, "B"), Taken)
        await apply(storage, data={"b": 2}, held=("A", applied))
        assert await storage.get_data(BOT, KEY) == {"a": 1, "b": 2}

    async def test_a_holder_with_an_expired_lease_writes_nothing(self, storage: Storage, clock: Clock) -> None:
        await storage.set_data(BOT, KEY, {"a": 1})
        before = await get(storage)
        held = await claim(storage, "A", lease=10)
        clock.advance(10.01)
        with pytest.raises(LeaseLost):
            await apply(storage, data={"a": 2}, head=("f", "s"), memo=[1], held=("A", held))
        after = await get(storage)
        assert before == after

    async def test_a_holder_whose_claim_was_taken_over_writes_nothing(self, storage: Storage, clock: Clock) -> None:
        held = await claim(storage, "A", lease=10)
        clock.advance(10.01)
        other = await claim(storage, "B", lease=10)
        with pytest.raises(LeaseLost):
            await apply(storage, data={"a": "A"}, held=("A", held))
        await apply(storage, data={"a": "B"}, held=("B", other))
        assert await storage.get_data(BOT, KEY) == {"a": "B"}
        with pytest.raises(LeaseLost):
            await apply(storage, data={"a": "A"}, held=("A", held))

    async def test_a_released_token_cannot_write(self, storage: Storage) -> None:
        held = await claim(storage, "A")
        await release(storage, "A")
        with pytest.raises(LeaseLost):
            await apply(storage, data={"a": 1}, held=("A", held))
        assert await get(storage) is None

    async def test_writes_of_the_holder_and_of_others_are_both_kept(self, storage: Storage) -> None:
        await storage.set_state(BOT, KEY, State("f", "s", {"a": 1, "b": 1, "c": 1}))
        held = await claim(storage, "A")
        assert await storage.update_data(BOT, KEY, {"b": "outside", "d": "outside"}) == {
            "a": 1,
            "b": "outside",
            "c": 1,
            "d": "outside",
        }
        await apply(storage, data={"a": "holder"}, unset=("c",), head=("f", "t"), held=("A", held))
        assert await storage.get_state(BOT, KEY) == State("f", "t", {"a": "holder", "b": "outside", "d": "outside"})

    async def test_a_first_write_of_the_holder_and_of_another_are_both_kept(self, storage: Storage) -> None:
        held = await claim(storage, "A")
        await storage.update_data(BOT, KEY, {"outside": 1})
        await apply(storage, data={"holder": 2}, fresh=True, held=("A", held))
        assert await storage.get_data(BOT, KEY) == {"outside": 1, "holder": 2}

    async def test_the_later_commit_wins_for_a_field_that_both_wrote(self, storage: Storage) -> None:
        held = await claim(storage, "A")
        await storage.update_data(BOT, KEY, {"a": "outside"})
        await apply(storage, data={"a": "holder"}, held=("A", held))
        assert await storage.get_data(BOT, KEY) == {"a": "holder"}

    async def test_a_holder_cannot_write_a_record_that_was_cleared_or_replaced(self, storage: Storage) -> None:
        writes: list[list[Callable[[], Awaitable[object]]]] = [
            [lambda: storage.clear(BOT, KEY)],
            [lambda: storage.set_state(BOT, KEY, State("f", "new", {"n": 1}))],
            [lambda: storage.set_data(BOT, KEY, {"n": 2})],
            [lambda: storage.clear(BOT, KEY), lambda: storage.update_data(BOT, KEY, {"n": 3})],
        ]
        for number, others in enumerate(writes):
            await storage.set_state(BOT, KEY, State("f", "s", {"a": 1}))
            held = await claim(storage, f"T{number}")
            for write in others:
                await write()
            now = await storage.get_state(BOT, KEY)
            with pytest.raises(RecordReplaced):
                await apply(storage, data={"a": 2}, head=("f", "t"), held=(f"T{number}", held))
            assert await storage.get_state(BOT, KEY) == now
            assert isinstance(await claim(storage, "other"), Taken), "the holder keeps its lease"
            await release(storage, f"T{number}")

    async def test_a_tombstone_remembers_that_a_record_was_cleared(self, storage: Storage) -> None:
        await storage.set_data(BOT, KEY, {"a": 1})
        await storage.clear(BOT, KEY)
        held = await claim(storage, "A")
        assert held.record is None
        await storage.set_data(BOT, KEY, {"b": 1})
        await storage.clear(BOT, KEY)
        with pytest.raises(RecordReplaced):
            await apply(storage, data={"a": 2}, held=("A", held))

    async def test_a_holder_may_write_again_after_its_own_delete(self, storage: Storage) -> None:
        await storage.set_state(BOT, KEY, State("f", "s", {"a": 1}))
        held = await claim(storage, "A")
        deleted = await apply(storage, delete=True, held=("A", held), keep=True)
        assert await get(storage) is None
        await apply(storage, data={"b": 2}, held=("A", deleted))
        assert await storage.get_state(BOT, KEY) == State(None, None, {"b": 2})

    async def test_a_holder_cannot_restore_a_forgotten_record(self, storage: Storage) -> None:
        await storage.update_data(BOT, KEY, {"secret": 1})
        held = await claim(storage, "A")
        await apply(storage, delete=True, forget=True)
        assert await get(storage) is None
        with pytest.raises(RecordReplaced):
            await apply(storage, data={"secret": 2}, held=("A", held))
        assert await get(storage) is None
        assert isinstance(await claim(storage, "B"), Taken)
        await release(storage, "A")
        again = await claim(storage, "B")
        assert (again.record, again.memo) == (None, None)
        await apply(storage, data={"new": 1}, fresh=True, held=("B", again))
        assert await storage.get_data(BOT, KEY) == {"new": 1}

    async def test_clearing_a_missing_record_does_not_affect_its_holder(self, storage: Storage) -> None:
        held = await claim(storage, "A")
        await storage.clear(BOT, KEY)
        await apply(storage, data={"a": 1}, held=("A", held))
        assert await storage.get_data(BOT, KEY) == {"a": 1}

    async def test_a_refused_write_keeps_the_lease_and_the_memo(self, storage: Storage) -> None:
        held = await claim(storage, "A")
        with pytest.raises(TooLarge):
            await apply(storage, data={"a": "x" * 100}, memo=["no"], held=("A", held), limit=50)
        await storage.set_data(BOT, KEY, {"b": 1})
        with pytest.raises(RecordReplaced):
            await apply(storage, data={"a": 1}, memo=["no"], held=("A", held))
        assert isinstance(await claim(storage, "B"), Taken)
        await release(storage, "A")
        assert (await claim(storage, "B")).memo is None

    async def test_clear_keeps_the_lease_of_the_holder(self, storage: Storage) -> None:
        await storage.set_data(BOT, KEY, {"a": 1})
        await claim(storage, "A")
        await storage.clear(BOT, KEY)
        assert isinstance(await claim(storage, "B"), Taken)
