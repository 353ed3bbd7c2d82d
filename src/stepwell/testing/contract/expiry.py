"""Promises of expiry: one expiry time per record, and one clock."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell.errors import RecordReplaced
from stepwell.record import State
from stepwell.storage import Storage
from stepwell.testing.clock import Clock
from stepwell.testing.contract.suite import BOT, KEY, Suite, apply, claim, fields, found


class ExpiryPromises(Suite):
    async def test_a_record_is_invisible_from_its_expiry_time_on(self, storage: Storage, clock: Clock) -> None:
        clock.advance(0.25)
        for key, expiry in enumerate((10.0, 0.5)):
            await apply(storage, key, data={"a": 1}, head=("f", "s"), expiry=expiry)
            stored = await found(storage, key)
            assert stored.expires_at == pytest.approx(clock() + expiry, abs=0.001)
            clock.advance(expiry - 0.125)
            assert await storage.get_state(BOT, key) == State("f", "s", {"a": 1})
            clock.advance(0.125)
            assert await storage.get_state(BOT, key) is None
            assert await storage.get_data(BOT, key) is None
            assert (await claim(storage, "A", key)).record is None
            assert await storage.update_data(BOT, key, {"b": 2}) == {"b": 2}

    async def test_a_write_to_an_expired_record_creates_a_new_one(self, storage: Storage, clock: Clock) -> None:
        await apply(
            storage, data={"a": 1}, head=("f", "s"), parts={"p": 1}, tags=("user:1",), deadline=99.0, expiry=10.0
        )
        clock.advance(11)
        assert await storage.update_data(BOT, KEY, {"b": 2}) == {"b": 2}
        stored = await found(storage, parts=True)
        assert (stored.head, stored.parts, stored.tags) == (None, {}, ())
        assert stored.deadline is stored.expires_at is None
        assert await storage.get_state(BOT, KEY) == State(None, None, {"b": 2})

    async def test_a_holder_that_saw_no_record_creates_a_new_one_over_an_expired_one(
        self, storage: Storage, clock: Clock
    ) -> None:
        await apply(storage, data={"a": 1}, head=("f", "s"), expiry=10.0)
        clock.advance(11)
        held = await claim(storage, "A")
        await apply(storage, data={"b": 2}, fresh=True, held=("A", held))
        assert await storage.get_state(BOT, KEY) == State(None, None, {"b": 2})

    async def test_a_holders_commit_restores_its_expired_record_with_the_expiry_of_the_commit(
        self, storage: Storage, clock: Clock
    ) -> None:
        changes: dict[str, dict[str, Any]] = {"new expiry": {"expiry": 10.0}, "no expiry": {}}
        for key, change in changes.items():
            await apply(storage, key, data={"a": 1}, head=("f", "s"), expiry=10.0)
            held = await claim(storage, "A", key, lease=60)
            clock.advance(11)
            assert await storage.get_state(BOT, key) is None
            await apply(storage, key, data={"b": 2}, held=("A", held), **change)
            assert await storage.get_state(BOT, key) == State("f", "s", {"a": 1, "b": 2})
        clock.advance(11)
        assert await storage.get_state(BOT, "new expiry") is None
        assert await storage.get_data(BOT, "no expiry") == {"a": 1, "b": 2}

    async def test_another_writers_write_to_an_expired_record_replaces_it_for_its_holder(
        self, storage: Storage, clock: Clock
    ) -> None:
        await apply(storage, data={"a": 1}, expiry=10.0)
        held = await claim(storage, "A", lease=60)
        clock.advance(11)
        await storage.update_data(BOT, KEY, {"outside": 1})
        with pytest.raises(RecordReplaced):
            await apply(storage, data={"b": 2}, held=("A", held))
        assert await storage.get_data(BOT, KEY) == {"outside": 1}

    async def test_a_write_keeps_changes_or_removes_the_expiry(self, storage: Storage, clock: Clock) -> None:
        start = clock()
        await apply(storage, data={"a": 1}, expiry=10.0)
        clock.advance(5)
        await apply(storage, data={"a": 2})
        assert (await found(storage)).expires_at == pytest.approx(start + 10, abs=0.01)
        await apply(storage, data={"a": 3}, expiry=10.0)
        assert (await found(storage)).expires_at == pytest.approx(start + 15, abs=0.01)
        await apply(storage, data={"a": 4}, expiry=None)
        clock.advance(1000)
        assert fields(storage, await found(storage)) == {"a": 4}

    async def test_the_ttl_of_a_bot_counts_from_the_last_write(self, storage: Storage, clock: Clock) -> None:
        await storage.init(BOT, ttl=10)
        await storage.set_state(BOT, KEY, State("f", "s", {"a": 1}))
        await storage.set_state("other", KEY, State("f", "s", {"a": 1}))
        clock.advance(6)
        await storage.update_data(BOT, KEY, {"b": 2})
        clock.advance(6)
        assert await storage.get_data(BOT, KEY) == {"a": 1, "b": 2}
        clock.advance(6)
        assert await storage.get_data(BOT, KEY) is None
        assert await storage.get_data("other", KEY) == {"a": 1}

    async def test_an_expired_record_can_be_cleared(self, storage: Storage, clock: Clock) -> None:
        await apply(storage, data={"a": 1}, expiry=10.0)
        clock.advance(11)
        await storage.clear(BOT, KEY)
        assert await storage.get_state(BOT, KEY) is None
        assert await storage.update_data(BOT, KEY, {"b": 1}) == {"b": 1}
