"""Promises of the journal: a batch that is sent again is applied once."""

from __future__ import annotations

import pytest

from stepwell.errors import LeaseLost, StepwellError
from stepwell.record import Change
from stepwell.storage import Applied, Apply, Guard, Storage
from stepwell.storage.transport.batch import Batch
from stepwell.testing.contract.suite import BOT, KEY, Suite


class JournalPromises(Suite):
    async def test_a_repeated_batch_returns_its_results_and_is_not_applied_again(self, storage: Storage) -> None:
        batch = Batch.of([self._write(storage, KEY, 1), self._write(storage, 2, 1)], "lane", 1)
        first = await storage.run(batch)
        await storage.update_data(BOT, KEY, {"between": 1})
        second = await storage.run(batch)
        assert [self._version(result) for result in first] == [self._version(result) for result in second]
        assert await storage.get_data(BOT, KEY) == {"n": 1, "between": 1}
        stored = (await storage.update_data(BOT, KEY, {"n": 2}), await storage.run(batch))[0]
        assert stored == {"n": 2, "between": 1}
        assert await storage.get_data(BOT, KEY) == {"n": 2, "between": 1}

    async def test_a_repeated_batch_with_a_refused_write_is_not_applied_again(self, storage: Storage) -> None:
        refused = Apply(storage.address(BOT, 3), Change(write=storage.ids()), Guard(token="no token", base=""))
        batch = Batch.of([self._write(storage, KEY, 1), refused], "lane", 1)
        first = await storage.run(batch)
        second = await storage.run(batch)
        assert [type(result) for result in first] == [type(result) for result in second] == [Applied, LeaseLost]
        assert self._version(first[0]) == self._version(second[0])

    async def test_the_next_batch_of_a_lane_is_applied(self, storage: Storage) -> None:
        await storage.run(Batch.of([self._write(storage, KEY, 1)], "lane", 1))
        await storage.run(Batch.of([self._write(storage, KEY, 2)], "lane", 2))
        await storage.run(Batch.of([self._write(storage, KEY, 3)], "other lane", 2))
        assert await storage.get_data(BOT, KEY) == {"n": 3}

    async def test_a_late_batch_is_refused(self, storage: Storage) -> None:
        early = Batch.of([self._write(storage, KEY, 1)], "lane", 1)
        await storage.run(Batch.of([self._write(storage, KEY, 2)], "lane", 2))
        with pytest.raises(StepwellError):
            result = (await storage.run(early))[0]
            if isinstance(result, StepwellError):
                raise result
        assert await storage.get_data(BOT, KEY) == {"n": 2}

    def _write(self, storage: Storage, key: object, value: int) -> Apply:
        address = storage.address(BOT, key)
        return Apply(address, Change(write=storage.ids(), set=storage.seal(address).fields({"n": value})))

    def _version(self, result: object) -> object:
        assert isinstance(result, Applied)
        return result.version
