"""Bugs in the methods for operators, which the contract suite must detect."""

from __future__ import annotations

from collections import Counter
from typing import Any

from stepwell.record import Address
from stepwell.storage import Page, Query
from stepwell.storage.listing import Beside, StateCount
from stepwell.storage.reference import Cell
from stepwell.testing import FaultyStorage


def counting(*, expired: bool = False, tombstones: bool = False, columns: int = 3) -> type[FaultyStorage]:
    """Return a storage that counts too much, or by fewer columns."""

    class Counts(FaultyStorage):
        async def counts(self, *, oldest: bool = False) -> list[StateCount]:
            found: Counter[tuple[Any, ...]] = Counter()
            for address, cell in self._cells.items():
                if cell.visible(self._now()) or (expired and cell.alive) or (tombstones and not cell.alive):
                    head = cell.head
                    found[(address.namespace, head and head.flow, head and head.state)[:columns]] += 1
            return [StateCount(*(*at, None, None)[:3], number, 0.0) for at, number in found.items()]

    return Counts


class CountsExpiredRecords(counting(expired=True)):  # type: ignore[misc]
    pass


class CountsTombstones(counting(tombstones=True)):  # type: ignore[misc]
    pass


class CountsAllStatesOfAFlow(counting(columns=2)):  # type: ignore[misc]
    pass


class CountsOneNamespace(FaultyStorage):
    async def counts(self, *, oldest: bool = False) -> list[StateCount]:
        found = await super().counts(oldest=oldest)
        return [row for row in found if row.namespace == "bot"]


class CountsOnlyRecordsWithAFlow(FaultyStorage):
    async def counts(self, *, oldest: bool = False) -> list[StateCount]:
        return [row for row in await super().counts(oldest=oldest) if row.flow is not None]


class CountsEmptyStates(FaultyStorage):
    """It lists a state that it has seen once for ever."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seen: set[tuple[str, str | None, str | None]] = set()

    async def run(self, operations: Any) -> Any:
        results = await super().run(operations)
        self.seen |= {row[:3] for row in await super().counts()}
        return results

    async def counts(self, *, oldest: bool = False) -> list[StateCount]:
        found = {row[:3]: row for row in await super().counts(oldest=oldest)}
        return [found.get(place, StateCount(*place, 0, 0.0)) for place in self.seen]


class FindsTheNewestWrite(FaultyStorage):
    async def counts(self, *, oldest: bool = False) -> list[StateCount]:
        newest: dict[Any, float] = {}
        for address, cell in self._cells.items():
            if cell.head is not None:
                at = address.namespace, cell.head.flow, cell.head.state
                newest[at] = max(newest.get(at, 0.0), cell.written_at)
        return [row._replace(oldest=newest[row[:3]]) for row in await super().counts()]


class CountsAPartOnly(FaultyStorage):
    async def counts(self, *, oldest: bool = False) -> list[StateCount]:
        return [row._replace(more=True) for row in await super().counts(oldest=oldest)]


class ContinuesAtTheAddress(FaultyStorage):
    async def page(self, query: Query, after: Any, limit: int) -> Page:
        found = await super().page(query, None, 10**9)
        return Page([each for each in found.records if after is None or each[0] >= after][:limit], None)


class ContinuesInTheWholeList(FaultyStorage):
    """The position is the number of records before the address, in the list without a filter."""

    def position(self, address: Address) -> Any:
        return sum(each <= address for each, cell in self._cells.items() if cell.alive)

    async def page(self, query: Query, after: Any, limit: int) -> Page:
        records = (await super().page(query, None, 10**9)).records
        return Page(records[after or 0 :][:limit], None)


class ContinuesBehindRecordsOnly(FaultyStorage):
    async def page(self, query: Query, after: Any, limit: int) -> Page:
        if after is not None and not self._cells[after].alive:
            after = None
        return await super().page(query, after, limit)


class HoldsForEver(FaultyStorage):
    async def beside(self, address: Address) -> Beside:
        cell = self._cells.get(address) or Cell()
        return Beside(cell.token, cell.leased_until - self._now() if cell.token else 0.0, None)


class HoldsForItsWholeLength(FaultyStorage):
    async def beside(self, address: Address) -> Beside:
        found = await super().beside(address)
        return found._replace(remaining=10.0 if found.holder else 0.0)


class HoldsInWholeSeconds(FaultyStorage):
    async def beside(self, address: Address) -> Beside:
        found = await super().beside(address)
        return found._replace(remaining=round(found.remaining))


class HoldsEveryAddress(FaultyStorage):
    async def beside(self, address: Address) -> Beside:
        for each in self._cells:
            found = await super().beside(each)
            if found.holder is not None:
                return found
        return Beside()


class ReadsOldMemos(FaultyStorage):
    async def beside(self, address: Address) -> Beside:
        cell = self._cells.get(address) or Cell()
        return (await super().beside(address))._replace(memo=cell.memo)


class ReadsMemosOfRecordsOnly(FaultyStorage):
    async def beside(self, address: Address) -> Beside:
        found = await super().beside(address)
        return found if self._cells.get(address, Cell()).alive else found._replace(memo=None)


class IsOfNoBackend(FaultyStorage):
    async def settings(self) -> dict[str, Any]:
        return {"version": "1.0"}


class HasObjectsAsSettings(FaultyStorage):
    async def settings(self) -> dict[str, Any]:
        return {"backend": "memory", "clock": self.clock}


CAUGHT_BY: dict[type[FaultyStorage], str] = {
    CountsExpiredRecords: "test_counts_follow_a_record_from_state_to_state",
    CountsTombstones: "test_counts_follow_a_record_from_state_to_state",
    CountsAllStatesOfAFlow: "test_counts_are_the_numbers_of_records_in_each_state",
    CountsOneNamespace: "test_counts_are_the_numbers_of_records_in_each_state",
    CountsOnlyRecordsWithAFlow: "test_counts_are_the_numbers_of_records_in_each_state",
    CountsEmptyStates: "test_counts_follow_a_record_from_state_to_state",
    FindsTheNewestWrite: "test_counts_with_the_oldest_write_have_its_time",
    CountsAPartOnly: "test_counts_with_the_oldest_write_have_its_time",
    ContinuesAtTheAddress: "test_a_list_continues_behind_any_address",
    ContinuesInTheWholeList: "test_a_list_continues_behind_any_address",
    ContinuesBehindRecordsOnly: "test_a_list_continues_behind_an_address_without_a_record",
    HoldsForEver: "test_a_lease_is_read_with_its_holder_and_the_time_left",
    HoldsForItsWholeLength: "test_a_lease_is_read_with_its_holder_and_the_time_left",
    HoldsInWholeSeconds: "test_a_lease_is_read_with_its_holder_and_the_time_left",
    HoldsEveryAddress: "test_a_lease_is_read_with_its_holder_and_the_time_left",
    ReadsOldMemos: "test_a_memo_is_read_without_a_claim",
    ReadsMemosOfRecordsOnly: "test_a_memo_is_read_without_a_claim",
    IsOfNoBackend: "test_settings_name_the_backend_and_can_be_printed",
    HasObjectsAsSettings: "test_settings_name_the_backend_and_can_be_printed",
}
