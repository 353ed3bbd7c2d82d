"""The suite detects each of these bugs, which are put into copies of the memory backend."""

from __future__ import annotations

import asyncio
import copy
import inspect
import math
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from examples.file_storage import FileStorage

from stepwell import MemoryStorage, Storage
from stepwell.codec.json import replaced
from stepwell.errors import RecordExists, StepwellError, StorageClosed, TooLarge
from stepwell.record import KEEP, Address, Queue, Version
from stepwell.storage import ANY, Due, Get, Page, Query, Range
from stepwell.storage.listing import Any_
from stepwell.storage.operations import Applied, Apply, Claim, Operation, Result, Taken
from stepwell.storage.reference import NEVER, Cell
from stepwell.testing import Clock, FaultyStorage, JournaledStorageContract, StorageContract
from stepwell.testing.contract.notices import NoticePromises
from stepwell.testing.contract.queues import SharedQueuePromises
from stepwell.testing.contract.reopening import ReopenPromises, SharingPromises
from tests.constants import Constants
from tests.storage import operator_bugs


class LosesMerges(FaultyStorage):
    class _cell(Cell):
        def _write(self, change: Any, held: bool, now: float) -> Any:
            return super()._write(replaced(change, unset=tuple(set(self.fields) - set(change.set))), held, now)


class ReusesVersions(FaultyStorage):
    class _cell(Cell):
        def _write(self, change: Any, held: bool, now: float) -> Any:
            made = not self.alive
            refused = super()._write(change, held, now)
            if made and refused is None:
                self.version = Version(1, change.write)
            return refused


class ReadsStale(FaultyStorage):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seen: dict[Address, Result] = {}

    def _do(self, operation: Operation) -> Result:
        if isinstance(operation, Get):
            if operation.address not in self.seen:
                self.seen[operation.address] = super()._do(operation)
            return self.seen[operation.address]
        return super()._do(operation)


class IgnoresTheLease(FaultyStorage):
    class _cell(Cell):
        def _refused(self, guard: Any, address: Address, now: float) -> Any:
            return super()._refused(replaced(guard, token=None), address, now)


class LeasesToEveryToken(FaultyStorage):
    class _cell(Cell):
        def leased(self, now: float) -> bool:
            return False


class WritesHalf(FaultyStorage):
    class _cell(Cell):
        def _write(self, change: Any, held: bool, now: float) -> Any:
            if change.head is not KEEP:
                self.head = change.head
            return super()._write(change, held, now)


class Aliases(FaultyStorage):
    class _cell(Cell):
        def stored(self, parts: Any) -> Any:
            record = super().stored(parts)
            record.fields = self.fields
            return record


class MixesUpKeys(FaultyStorage):
    def _do(self, operation: Operation) -> Result:
        address = operation.address
        return super()._do(replaced(operation, address=address._replace(key=address.key.replace('"', ""))))


class MixesUpBots(FaultyStorage):
    def _do(self, operation: Operation) -> Result:
        address = operation.address
        return super()._do(replaced(operation, address=address._replace(namespace=address.namespace.strip())))


class ReturnsExpired(FaultyStorage):
    class _cell(Cell):
        def visible(self, now: float) -> bool:
            return self.alive


class RevivesExpired(FaultyStorage):
    class _cell(Cell):
        def expired(self, now: float) -> bool:
            return False


class AppliesTwice(FaultyStorage):
    async def run(self, operations: Sequence[Operation]) -> list[Result]:
        return await MemoryStorage.run(self, operations)


class ForgetsTombstones(FaultyStorage):
    class _cell(Cell):
        def _delete(self, change: Any, held: bool, now: float) -> None:
            super()._delete(change, held, now)
            self.version, self.base = NEVER, ""


class ForgetsAfterAWhile(FaultyStorage):
    """As a store with a time to live of its own, which no clock of a test moves."""

    async def run(self, operations: Sequence[Operation]) -> list[Result]:
        results = await super().run(operations)
        for operation in operations:
            if isinstance(operation, Apply):
                asyncio.get_running_loop().call_later(0.1, self._cells.pop, operation.address, None)
        return results


class LosesTheMemoAtClear(FaultyStorage):
    class _cell(Cell):
        def _delete(self, change: Any, held: bool, now: float) -> None:
            super()._delete(change, held, now)
            self.memo = None


class LeavesPartsBehind(FaultyStorage):
    class _cell(Cell):
        def _delete(self, change: Any, held: bool, now: float) -> None:
            parts = self.parts
            super()._delete(change, held, now)
            self.parts = parts


class KeepsTheBase(FaultyStorage):
    class _cell(Cell):
        def _write(self, change: Any, held: bool, now: float) -> Any:
            base = self.base
            refused = super()._write(change, held, now)
            self.base = base
            return refused


class RenewsTooLate(FaultyStorage):
    class _cell(Cell):
        def _claim(self, claim: Claim, now: float) -> Result:
            return super()._claim(replaced(claim, renew=False), now)


class StopsAtTheFirstError(FaultyStorage):
    async def run(self, operations: Sequence[Operation]) -> list[Result]:
        results: list[Result] = []
        for operation in operations:
            failed = next((result for result in results if isinstance(result, StepwellError)), None)
            results.append(failed or self._do(operation))
        return results


class IgnoresTheLimit(FaultyStorage):
    class _cell(Cell):
        def _size_after(self, change: Any, dropped: bool) -> int:
            return 0


class SweepsHeldRecords(FaultyStorage):
    class _cell(Cell):
        def removable(self, now: float) -> bool:
            return self.alive and self.expired(now)


class RestoresForgottenRecords(FaultyStorage):
    class _cell(Cell):
        def _delete(self, change: Any, held: bool, now: float) -> None:
            super()._delete(change, held, now)
            if change.forget:
                self.base = ""


class LeavesATombstoneWithoutARecord(FaultyStorage):
    class _cell(Cell):
        def _delete(self, change: Any, held: bool, now: float) -> None:
            self.alive = True
            super()._delete(change, held, now)


class ReleasesAfterARefusal(FaultyStorage):
    class _cell(Cell):
        def _apply(self, apply: Apply, now: float) -> Result:
            result = super()._apply(apply, now)
            if isinstance(result, StepwellError):
                self.token = None
            return result


class RefusesToShrink(FaultyStorage):
    class _cell(Cell):
        def _write(self, change: Any, held: bool, now: float) -> Any:
            size = self._size_after(change, change.replace)
            return (
                TooLarge("the record", size, change.limit) if size > change.limit else super()._write(change, held, now)
            )


class ReordersWrites(FaultyStorage):
    writes = 0

    async def perform(self, operation: Operation) -> Any:
        if isinstance(operation, Apply):
            self.writes += 1
            await asyncio.sleep(0.001 * (self.writes % 2))
        return await super().perform(operation)


class AnswersLastWriteOnly(FaultyStorage):
    class _cell(Cell):
        def _apply(self, apply: Apply, now: float) -> Result:
            result = super()._apply(apply, now)
            return replaced(result, version=Version(7, "x")) if isinstance(result, Applied) else result


class ReopensItself(FaultyStorage):
    async def ensure_open(self) -> None:
        await self.open()


class DoesNotRenew(FaultyStorage):
    class _cell(Cell):
        def _claim(self, claim: Claim, now: float) -> Result:
            until = self.leased_until
            result = super()._claim(claim, now)
            if claim.renew:
                self.leased_until = until
            return result


class CutsLongKeys(FaultyStorage):
    def _do(self, operation: Operation) -> Result:
        address = operation.address
        return super()._do(replaced(operation, address=address._replace(key=address.key[:100])))


class CutsLongNames(FaultyStorage):
    def _do(self, operation: Operation) -> Result:
        address = operation.address
        return super()._do(replaced(operation, address=address._replace(namespace=address.namespace[:40])))


class KeepsTheDeadlineAtClear(FaultyStorage):
    class _cell(Cell):
        def _delete(self, change: Any, held: bool, now: float) -> None:
            deadline = self.deadline
            super()._delete(change, held, now)
            self.deadline = deadline


class CountsUnsetFields(FaultyStorage):
    class _cell(Cell):
        def _size_after(self, change: Any, dropped: bool) -> int:
            return super()._size_after(replaced(change, unset=()), dropped)


class SkipsEqualDeadlines(FaultyStorage):
    async def due(
        self,
        namespace: str,
        *,
        before: float | None = None,
        limit: int = 100,
        after: Due | None = None,
        flow: str | Any_ | Sequence[str] | None = ANY,
    ) -> list[Due]:
        found = await super().due(namespace, before=before, limit=10**9, flow=flow)
        return [entry for entry in found if after is None or entry.deadline > after.deadline][:limit]


class IsDueTooLate(FaultyStorage):
    async def due(
        self,
        namespace: str,
        *,
        before: float | None = None,
        limit: int = 100,
        after: Due | None = None,
        flow: str | Any_ | Sequence[str] | None = ANY,
    ) -> list[Due]:
        moment = self._now() if before is None else before
        found = await super().due(namespace, before=before, limit=limit, after=after, flow=flow)
        return [entry for entry in found if entry.deadline < moment]


class PagesByNumber(FaultyStorage):
    async def page(self, query: Query, after: Any, limit: int) -> Page:
        records = (await super().page(query, None, 10**9)).records
        end = (after or 0) + limit
        return Page(records[end - limit : end], end if end < len(records) else None)


class PagesByNumberToo(PagesByNumber):
    pass


class PagesByTimeOfWriting(FaultyStorage):
    newest_first = False

    async def page(self, query: Query, after: Any, limit: int) -> Page:
        sign = -1 if self.newest_first else 1
        records = (await super().page(query, None, 10**9)).records
        places = sorted((sign * stored.written_at, address) for address, stored in records)
        left = [place for place in places if after is None or place > after]
        known = dict(records)
        listed = [(address, known[address]) for _, address in left[:limit]]
        return Page(listed, left[limit - 1] if len(left) > limit else None)


class PagesByTimeOfWritingNewestFirst(PagesByTimeOfWriting):
    newest_first = True


class KeepsTheVersionWithoutFields(FaultyStorage):
    class _cell(Cell):
        def _write(self, change: Any, held: bool, now: float) -> Any:
            alive, version = self.alive, self.version
            refused = super()._write(change, held, now)
            if alive and not change.set:
                self.version = version
            return refused


class LosesTheMemoOfExpiredRecords(FaultyStorage):
    def _do(self, operation: Operation) -> Result:
        result = super()._do(operation)
        cell = self._cells.get(operation.address)
        if cell is not None and cell.alive and cell.removable(self._now()):
            del self._cells[operation.address]
        return result


class LosesEverythingAtReopen(FaultyStorage):
    @classmethod
    def reopened(cls, storage: Any) -> Storage:
        return cls(clock=storage.clock)


class WritesOnlyAtClose(FaultyStorage):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.store: dict[Address, Cell] = {}

    @classmethod
    def reopened(cls, storage: Any) -> Storage:
        later = cls(clock=storage.clock)
        later.store = storage.store
        later._cells = copy.deepcopy(storage.store)
        return later

    async def _close(self) -> None:
        self.store.update(self._cells)


class ForgetsAtClose(FaultyStorage):
    @classmethod
    def reopened(cls, storage: Any) -> Storage:
        later = cls(clock=storage.clock)
        later._cells = storage.store
        return later

    async def _close(self) -> None:
        self.store, self._cells = self._cells, {}


class CachesReads(FaultyStorage):
    """Correct for one object: its writes and the time invalidate the cache."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seen: dict[Address, tuple[float, Result]] = {}

    def _do(self, operation: Operation) -> Result:
        if not isinstance(operation, Get) or operation.parts:
            self.seen.pop(operation.address, None)
            return super()._do(operation)
        if self.seen.get(operation.address, (None,))[0] != self._now():
            self.seen[operation.address] = (self._now(), super()._do(operation))
        return copy.deepcopy(self.seen[operation.address][1])


class KeepsLeasesInTheObject(FaultyStorage):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.leases: dict[Address, tuple[str | None, float]] = {}

    def _do(self, operation: Operation) -> Result:
        address = operation.address
        if address in self._cells:
            cell = self._cells[address]
            cell.token, cell.leased_until = self.leases.get(address, (None, 0.0))
        result = super()._do(operation)
        if address in self._cells:
            self.leases[address] = (self._cells[address].token, self._cells[address].leased_until)
        return result


class KeepsVersionsInTheObject(FaultyStorage):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.known: dict[Address, tuple[Version, str]] = {}

    def _do(self, operation: Operation) -> Result:
        address = operation.address
        cell = self._cells.get(address)
        if cell is not None and address in self.known and isinstance(operation, Apply) and operation.guard:
            cell.version, cell.base = self.known[address]
        result = super()._do(operation)
        if address in self._cells:
            self.known[address] = (self._cells[address].version, self._cells[address].base)
        return result


class MergesByReadingFirst(FaultyStorage):
    """Correct for one object: its writes wait for each other."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.one_at_a_time = asyncio.Lock()
        self.read: dict[str, dict[str, str]] = {}

    async def perform(self, operation: Operation) -> Any:
        if not isinstance(operation, Apply):
            return await super().perform(operation)
        async with self.one_at_a_time:
            stored = await super().perform(Get(operation.address))
            if stored is not None:
                self.read[operation.change.write] = stored.fields
            return await super().perform(operation)

    def _do(self, operation: Operation) -> Result:
        if isinstance(operation, Apply) and operation.change.write in self.read and operation.address in self._cells:
            self._cells[operation.address].fields = self.read.pop(operation.change.write)
        return super()._do(operation)


class ClaimsByReadingFirst(FaultyStorage):
    """Correct for one object: its claims wait for each other."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.one_at_a_time = asyncio.Lock()
        self.found_free: set[str] = set()

    async def perform(self, operation: Operation) -> Any:
        if not isinstance(operation, Claim):
            return await super().perform(operation)
        async with self.one_at_a_time:
            cell = self._cells.get(operation.address)
            if cell is None or not cell.leased(self._now()):
                self.found_free.add(operation.token)
            return await super().perform(operation)

    def _do(self, operation: Operation) -> Result:
        if isinstance(operation, Claim) and operation.token in self.found_free:
            self.found_free.remove(operation.token)
            if operation.address in self._cells:
                self._cells[operation.address].token = None
        return super()._do(operation)


class KeepsDeadlinesInTheObject(FaultyStorage):
    @classmethod
    def reopened(cls, storage: Any) -> Storage:
        other = reopened(storage)
        other._deadlines = {}  # type: ignore[attr-defined]
        return other


class ListsLongerNames(FaultyStorage):
    async def page(self, query: Query, after: Any, limit: int) -> Page:
        records = []
        for name in await self.namespaces():
            if name.startswith(query.namespace):
                records += (await super().page(query._replace(namespace=name), None, 10**9)).records
        return Page(records, None)


class FindsDeadlinesOfLongerNames(FaultyStorage):
    async def due(
        self,
        namespace: str,
        *,
        before: float | None = None,
        limit: int = 100,
        after: Due | None = None,
        flow: str | Any_ | Sequence[str] | None = ANY,
    ) -> list[Due]:
        found = []
        for name in await self.namespaces():
            if name.startswith(namespace):
                found += await super().due(name, before=before, limit=limit, after=after, flow=flow)
        return found


class FindsTracesOfLongerNames(FaultyStorage):
    async def traces(self, namespace: str, tag: str, *, limit: int = 500) -> list[Address]:
        found = []
        for name in await self.namespaces():
            if name.startswith(namespace):
                found += await super().traces(name, tag, limit=limit)
        return found


class CreatesTwice(FaultyStorage):
    class _cell(Cell):
        def _refused(self, guard: Any, address: Address, now: float) -> Any:
            return super()._refused(replaced(guard, absent=False), address, now)


class FindsExpiredRecordsPresent(FaultyStorage):
    class _cell(Cell):
        def _refused(self, guard: Any, address: Address, now: float) -> Any:
            if guard.absent and self.alive:
                return RecordExists(address.text)
            return super()._refused(guard, address, now)


class CreatesOnlyFreeRecords(FaultyStorage):
    class _cell(Cell):
        def _refused(self, guard: Any, address: Address, now: float) -> Any:
            if guard.absent and self.leased(now):
                return RecordExists(address.text)
            return super()._refused(guard, address, now)


class CreatesByReadingFirst(FaultyStorage):
    async def perform(self, operation: Operation) -> Any:
        if isinstance(operation, Apply) and operation.guard is not None and operation.guard.absent:
            if await super().perform(Get(operation.address)) is not None:
                raise RecordExists(operation.address.text)
            operation = replaced(operation, guard=replaced(operation.guard, absent=False))
        return await super().perform(operation)


class QueuesByTime(FaultyStorage):
    async def queued(self, namespace: str, name: str | Sequence[str], *, limit: int = 100) -> list[Address]:
        found = await super().queued(namespace, name, limit=10**9)
        return sorted(found, key=lambda address: self._cells[address].queued_at)[:limit]


class QueuesByKey(FaultyStorage):
    async def queued(self, namespace: str, name: str | Sequence[str], *, limit: int = 100) -> list[Address]:
        return sorted(await super().queued(namespace, name, limit=10**9))[:limit]


class QueuesLowPrioritiesFirst(FaultyStorage):
    async def queued(self, namespace: str, name: str | Sequence[str], *, limit: int = 100) -> list[Address]:
        found = await super().queued(namespace, name, limit=10**9)
        return sorted(found, key=lambda address: getattr(self._cells[address].queue, "priority", 0))[:limit]


class QueuesByLastWrite(FaultyStorage):
    class _cell(Cell):
        def _write(self, change: Any, held: bool, now: float) -> Any:
            return super()._write(replaced(change, queue=self.queue) if change.queue is KEEP else change, held, now)


class StaysAtItsFirstPlace(FaultyStorage):
    class _cell(Cell):
        def _write(self, change: Any, held: bool, now: float) -> Any:
            return super()._write(replaced(change, queue=KEEP) if change.queue == self.queue else change, held, now)


class ReadsOneQueueAfterTheOther(FaultyStorage):
    async def queued(self, namespace: str, name: str | Sequence[str], *, limit: int = 100) -> list[Address]:
        names = (name,) if isinstance(name, str) else dict.fromkeys(name)
        return [each for one in names for each in await super(FaultyStorage, self).queued(namespace, one)][:limit]


class ReadsTheDeadlinesOfOneFlow(FaultyStorage):
    async def due(self, namespace: str, **options: Any) -> list[Due]:
        if isinstance(options.get("flow"), list):
            options["flow"] = next(iter(options["flow"]), "")
        return await super().due(namespace, **options)


class ReadsDeadlinesOneNamespaceAfterTheOther(FaultyStorage):
    async def due_in(self, wanted: Any, *, limit: int = 100) -> list[Due]:
        return [due for namespace, flow in wanted.items() for due in await self.due(namespace, flow=flow)][:limit]


class HidesClaimedRecordsInQueues(FaultyStorage):
    async def queued(self, namespace: str, name: str | Sequence[str], *, limit: int = 100) -> list[Address]:
        found = await super().queued(namespace, name, limit=limit)
        return [address for address in found if not self._cells[address].leased(self._now())]


class KeepsTheQueueOfExpiredRecords(FaultyStorage):
    class _cell(Cell):
        def _write(self, change: Any, held: bool, now: float) -> Any:
            queue = self.queue
            refused = super()._write(change, held, now)
            if change.queue is KEEP and refused is None:
                self.queue = queue
            return refused


class QueuesExpiredRecords(FaultyStorage):
    async def queued(self, namespace: str, name: str | Sequence[str], *, limit: int = 100) -> list[Address]:
        names = (name,) if isinstance(name, str) else name
        keys = [key for each in names for *_, key in self._queued.get((namespace, each), ())]
        return [Address(namespace, key) for key in keys[:limit]]


class QueuesRefusedRecords(FaultyStorage):
    class _cell(Cell):
        def _write(self, change: Any, held: bool, now: float) -> Any:
            if change.queue is not KEEP:
                self.queue = change.queue
            return super()._write(change, held, now)


class MatchesPrefixesAsPatterns(FaultyStorage):
    async def queues(self, namespace: str, *, prefix: str = "", after: str = "", limit: int = 100) -> list[str]:
        pattern = re.escape(prefix).replace("%", ".*").replace("_", ".")
        return [name for name in await super().queues(namespace, after=after) if re.match(pattern, name)][:limit]


class ListsTheLastQueueAgain(FaultyStorage):
    async def queues(self, namespace: str, *, prefix: str = "", after: str = "", limit: int = 100) -> list[str]:
        found = await super().queues(namespace, prefix=prefix, limit=10**9)
        return [name for name in found if name >= after][:limit]


class ListsQueuesWithoutCase(FaultyStorage):
    async def queues(self, namespace: str, *, prefix: str = "", after: str = "", limit: int = 100) -> list[str]:
        return sorted(await super().queues(namespace, prefix=prefix, after=after, limit=limit), key=str.lower)


class CutsNamesOfQueues(FaultyStorage):
    class _cell(Cell):
        def _write(self, change: Any, held: bool, now: float) -> Any:
            if isinstance(change.queue, Queue):
                change = replaced(change, queue=change.queue._replace(name=change.queue.name[:255]))
            return super()._write(change, held, now)


class TakesEveryQueue(FaultyStorage):
    async def perform(self, operation: Operation) -> Any:
        (result,) = await self.run([operation])
        if isinstance(result, StepwellError):
            raise result
        return result


class FindsDeadlinesOfAllFlows(FaultyStorage):
    async def due(self, namespace: str, **options: Any) -> list[Due]:
        return await super().due(namespace, **options | {"flow": ANY})


class FindsDeadlinesOfNoFlowInAll(FaultyStorage):
    async def due(self, namespace: str, **options: Any) -> list[Due]:
        return await super().due(
            namespace, **options | {"flow": ANY if options.get("flow") is None else options["flow"]}
        )


class SkipsEqualDeadlinesOfOneFlow(FaultyStorage):
    async def due(self, namespace: str, *, after: Due | None = None, **options: Any) -> list[Due]:
        found = await super().due(namespace, **options | {"limit": 10**9})
        return [each for each in found if after is None or each.deadline > after.deadline][: options.get("limit", 100)]


class KeepsTheFlowOfDeadlines(FaultyStorage):
    async def due(self, namespace: str, *, flow: Any = ANY, **options: Any) -> list[Due]:
        found = await super().due(namespace, **options)
        self.flows: dict[Address, Any] = getattr(self, "flows", {})
        for each in found:
            head = self._cells[each.address].head
            self.flows.setdefault(each.address, head and head.flow)
        return [each for each in found if flow is ANY or self.flows[each.address] == flow]


class NotifiesEveryTopic(FaultyStorage):
    async def notify(self, topic: str) -> None:
        for each in ("a", "b"):
            await super().notify(each)


class ListensForever(FaultyStorage):
    def listen(self, topic: str, callback: Any) -> Any:
        super().listen(topic, callback)
        return lambda: None


class ReadsQueuesOnlyIfOpen(FaultyStorage):
    async def queues(self, namespace: str, *, prefix: str = "", after: str = "", limit: int = 100) -> list[str]:
        if not self.is_open:
            raise StorageClosed
        return await super().queues(namespace, prefix=prefix, after=after, limit=limit)


class KeepsQueuesInTheObject(FaultyStorage):
    @classmethod
    def reopened(cls, storage: Any) -> Storage:
        other = reopened(storage)
        other._queued = {}  # type: ignore[attr-defined]
        return other


class NotifiesItsOwnObject(FaultyStorage):
    """Its ``wake_key`` is the object, as by default."""


class LeasesOneInstantTooLong(FaultyStorage):
    class _cell(Cell):
        def _claim(self, claim: Claim, now: float) -> Result:
            if self.token not in (None, claim.token) and self.leased_until == now and not claim.renew:
                return Taken(0.0)
            return super()._claim(claim, now)


class WritesOneInstantTooLong(FaultyStorage):
    class _cell(Cell):
        def _refused(self, guard: Any, address: Address, now: float) -> Any:
            return super()._refused(guard, address, now - 0.0625 if self.leased_until == now else now)


class RenewsOneInstantTooLong(FaultyStorage):
    class _cell(Cell):
        def _claim(self, claim: Claim, now: float) -> Result:
            return super()._claim(claim, now - 0.0625 if claim.renew and self.leased_until == now else now)


class ExpiresOneInstantTooLate(FaultyStorage):
    class _cell(Cell):
        def visible(self, now: float) -> bool:
            return self.alive and (self.expires_at is None or self.expires_at >= now)


class SweepsOneInstantTooLate(FaultyStorage):
    class _cell(Cell):
        def removable(self, now: float) -> bool:
            return super().removable(now) and not (self.alive and self.expires_at == now)


class CutsDeadlinesToSeconds(FaultyStorage):
    class _cell(Cell):
        def _write(self, change: Any, held: bool, now: float) -> Any:
            refused = super()._write(change, held, now)
            self.deadline = None if self.deadline is None else float(int(self.deadline))
            return refused


class CutsExpiriesToSeconds(FaultyStorage):
    class _cell(Cell):
        def _write(self, change: Any, held: bool, now: float) -> Any:
            refused = super()._write(change, held, now)
            self.expires_at = None if self.expires_at is None else float(int(self.expires_at))
            return refused


class RoundsLeasesUpToSeconds(FaultyStorage):
    class _cell(Cell):
        def _claim(self, claim: Claim, now: float) -> Result:
            return super()._claim(replaced(claim, lease=math.ceil(claim.lease)), now)


def ordered_by(key: Callable[[str], Any]) -> type[FaultyStorage]:
    """Return a storage that sorts the names of parts by this key."""

    class Ordered(FaultyStorage):
        class _cell(Cell):
            def _chosen(self, parts: Any) -> dict[str, str]:
                chosen = super()._chosen(parts)
                if not isinstance(parts, Range):
                    return chosen
                return {name: chosen[name] for name in sorted(chosen, key=key, reverse=parts.reverse)}

    return Ordered


class OrdersPartsWithoutCase(ordered_by(str.lower)):  # type: ignore[misc]
    pass


class OrdersPartsByNumber(ordered_by(lambda name: (name.rstrip("0123456789"), len(name), name))):  # type: ignore[misc]
    pass


class OrdersPartsByUtf16(ordered_by(lambda name: name.encode("utf-16-be"))):  # type: ignore[misc]
    pass


class OrdersPartsByEscapedNames(ordered_by(lambda name: name.replace("\0", "\\0"))):  # type: ignore[misc]
    pass


def read_as(change: Callable[[Range], Any]) -> type[FaultyStorage]:
    """Return a storage that reads another range than the given one."""

    class Reading(FaultyStorage):
        class _cell(Cell):
            def _chosen(self, parts: Any) -> dict[str, str]:
                return super()._chosen(change(parts) if isinstance(parts, Range) else parts)

    return Reading


class IgnoresTheLimitOfARange(read_as(lambda wanted: replace(wanted, limit=None))):  # type: ignore[misc]
    pass


class IgnoresTheOrderOfARange(read_as(lambda wanted: replace(wanted, reverse=False))):  # type: ignore[misc]
    pass


class LeavesTheLastNameOut(FaultyStorage):
    class _cell(Cell):
        def _chosen(self, parts: Any) -> dict[str, str]:
            chosen = super()._chosen(parts)
            if isinstance(parts, Range):
                chosen.pop(parts.last or "", None)
            return chosen


class LimitsARangeBeforeReversingIt(FaultyStorage):
    class _cell(Cell):
        def _chosen(self, parts: Any) -> dict[str, str]:
            if not isinstance(parts, Range):
                return super()._chosen(parts)
            chosen = super()._chosen(replace(parts, reverse=False))
            return dict(reversed(chosen.items())) if parts.reverse else chosen


class ReadsAllPartsForNames(FaultyStorage):
    class _cell(Cell):
        def _chosen(self, parts: Any) -> dict[str, str]:
            return super()._chosen(True if isinstance(parts, tuple) else parts)


class ReadsNoPartsForNoNames(FaultyStorage):
    class _cell(Cell):
        def stored(self, parts: Any) -> Any:
            return super().stored(parts or False)


class ReadsPartsAfterTheirRecord(FaultyStorage):
    async def perform(self, operation: Operation) -> Any:
        if not isinstance(operation, Get) or operation.parts is False:
            return await super().perform(operation)
        record = await super().perform(replaced(operation, parts=False))
        await asyncio.sleep(0)
        later = await super().perform(operation)
        if record is not None and later is not None:
            record.parts = later.parts
        return record


class KeepsTheOrderOfRemovedParts(FaultyStorage):
    class _cell(Cell):
        def _chosen(self, parts: Any) -> dict[str, str]:
            if not isinstance(parts, Range):
                return super()._chosen(parts)
            names = self.part_names = sorted({*(self.part_names or ()), *self.parts})
            return {name: self.parts.get(name, "") for name in names[parts.span(names)]}

        def _set_part(self, name: str, text: str | None) -> None:
            names = self.part_names
            self.part_names = None
            super()._set_part(name, text)
            self.part_names = names


class KeepsTheOrderWithoutNewParts(FaultyStorage):
    class _cell(Cell):
        def _set_part(self, name: str, text: str | None) -> None:
            names = self.part_names
            super()._set_part(name, text)
            self.part_names = names and [each for each in names if each in self.parts and each != name]


def dropping(change: Callable[[Any], Any]) -> type[FaultyStorage]:
    """Return a storage that drops another range than the given one."""

    class Dropping(FaultyStorage):
        class _cell(Cell):
            def _write(self, change_: Any, held: bool, now: float) -> Any:
                return super()._write(change(change_) if change_.drop is not None else change_, held, now)

    return Dropping


class DropsAllParts(dropping(lambda change: replaced(change, drop=Range()))):  # type: ignore[misc]
    pass


class DropsNothing(dropping(lambda change: replaced(change, drop=None))):  # type: ignore[misc]
    pass


class DropsFromTheStart(  # type: ignore[misc]
    dropping(lambda change: replaced(change, drop=replace(change.drop, reverse=False)))
):
    pass


class DropsWithoutTheLimit(  # type: ignore[misc]
    dropping(lambda change: replaced(change, drop=replace(change.drop, limit=None)))
):
    pass


class CountsDroppedParts(FaultyStorage):
    class _cell(Cell):
        def _size_after(self, change: Any, dropped: bool) -> int:
            return super()._size_after(replaced(change, drop=None), dropped)


class SubtractsDroppedPartsTwice(FaultyStorage):
    class _cell(Cell):
        def _size_after(self, change: Any, dropped: bool) -> int:
            both = super()._size_after(replaced(change, drop=None), dropped)
            return both + super()._size_after(replaced(change, parts={}), dropped) - self.size


class DropsPartsThatItSets(FaultyStorage):
    class _cell(Cell):
        def _write(self, change: Any, held: bool, now: float) -> Any:
            refused = super()._write(replaced(change, drop=None), held, now)
            if refused is None and change.drop is not None:
                names = sorted(self.parts)
                for name in names[change.drop.span(names)]:
                    self._set_part(name, None)
            return refused


class DropsDespiteTheGuard(FaultyStorage):
    class _cell(Cell):
        def _refused(self, guard: Any, address: Address, now: float) -> Any:
            refused = super()._refused(guard, address, now)
            if refused is not None and self.visible(now):
                self.parts, self.part_names = {}, None
            return refused


class LocksWithinItsProcess(FileStorage):
    """Two objects over one folder are safe in one process only."""

    shared_leases: ClassVar[dict[Any, Any]] = {}
    one_at_a_time = threading.Lock()

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(folder, **options)
        self._leases = self.shared_leases

    async def _do(self, operation: Operation) -> Result:
        while not self.one_at_a_time.acquire(blocking=False):
            await asyncio.sleep(0)
        try:
            return await super()._do(operation)
        finally:
            self.one_at_a_time.release()


#: They need a store that processes share, which the copies of the memory backend are not.
BY_TWO_PROCESSES = {
    "test_concurrent_merges_by_two_processes_are_all_kept",
    "test_a_notice_reaches_a_listener_in_another_process",
}

SUITE = {
    name: test
    for name, test in inspect.getmembers(JournaledStorageContract, inspect.iscoroutinefunction)
    if name.startswith("test_") and name not in BY_TWO_PROCESSES
}

CAUGHT_BY: dict[type[FaultyStorage], str] = {
    LosesMerges: "test_update_data_merges_shallowly_and_returns_the_merged_data",
    ReusesVersions: "test_a_version_is_never_reused_after_a_delete",
    ReadsStale: "test_set_data_replaces_the_data_and_keeps_flow_and_state",
    IgnoresTheLease: "test_a_holder_with_an_expired_lease_writes_nothing",
    LeasesToEveryToken: "test_a_claim_by_a_second_token_returns_taken_with_the_remaining_time",
    WritesHalf: "test_a_change_is_applied_completely_or_not_at_all",
    Aliases: "test_a_returned_record_shares_nothing_with_the_stored_one",
    MixesUpKeys: "test_keys_are_equal_only_if_type_and_value_are_equal",
    MixesUpBots: "test_bots_with_similar_names_never_share_records",
    ReturnsExpired: "test_a_record_is_invisible_from_its_expiry_time_on",
    RevivesExpired: "test_a_write_to_an_expired_record_creates_a_new_one",
    AppliesTwice: "test_a_repeated_batch_returns_its_results_and_is_not_applied_again",
    ForgetsAfterAWhile: "test_everything_is_kept_while_real_time_passes",
    ForgetsTombstones: "test_a_tombstone_remembers_that_a_record_was_cleared",
    LosesTheMemoAtClear: "test_a_memo_is_returned_by_the_next_claim_and_survives_clear",
    LeavesPartsBehind: "test_parts_are_deleted_with_their_record",
    KeepsTheBase: "test_a_holder_cannot_write_a_record_that_was_cleared_or_replaced",
    RenewsTooLate: "test_a_renewal_never_revives_an_expired_lease",
    StopsAtTheFirstError: "test_one_invalid_operation_of_a_batch_fails_alone",
    IgnoresTheLimit: "test_a_record_above_its_limit_is_refused_and_stays_unchanged",
    RestoresForgottenRecords: "test_a_holder_cannot_restore_a_forgotten_record",
    LeavesATombstoneWithoutARecord: "test_clearing_a_missing_record_does_not_affect_its_holder",
    ReleasesAfterARefusal: "test_a_refused_write_keeps_the_lease_and_the_memo",
    RefusesToShrink: "test_a_record_above_a_lowered_limit_may_still_shrink",
    SweepsHeldRecords: "test_a_sweep_keeps_held_records",
    ReordersWrites: "test_writes_to_one_key_are_applied_in_call_order",
    AnswersLastWriteOnly: "test_a_version_grows_by_one_with_each_write_only",
    ReopensItself: "test_a_closed_storage_is_reopened_only_by_open",
    DoesNotRenew: "test_a_renewal_extends_the_lease",
    CutsLongKeys: "test_long_keys_and_names_that_differ_only_at_the_end_are_kept_apart",
    CutsLongNames: "test_long_keys_and_names_that_differ_only_at_the_end_are_kept_apart",
    KeepsTheDeadlineAtClear: "test_a_record_created_after_clear_has_no_deadline",
    CountsUnsetFields: "test_fields_count_towards_the_limit_until_they_are_unset",
    SkipsEqualDeadlines: "test_due_deadlines_are_paged_even_if_some_are_equal",
    IsDueTooLate: "test_a_deadline_is_due_exactly_at_its_time",
    PagesByNumber: "test_a_scan_lists_remaining_records_once_while_others_are_cleared",
    PagesByNumberToo: "test_a_scan_lists_existing_records_once_while_others_are_added",
    PagesByTimeOfWriting: "test_a_scan_lists_every_record_once_while_they_are_written",
    PagesByTimeOfWritingNewestFirst: "test_a_scan_lists_every_record_once_while_they_are_written",
    KeepsTheVersionWithoutFields: "test_a_write_without_fields_creates_a_new_version",
    LosesTheMemoOfExpiredRecords: "test_a_memo_outlives_the_expiry_of_its_record_even_after_a_read",
    LosesEverythingAtReopen: "test_every_acknowledged_write_is_there_after_close_and_reopen",
    WritesOnlyAtClose: "test_a_write_is_stored_when_it_is_acknowledged_and_not_only_at_close",
    ForgetsAtClose: "test_a_closed_storage_can_be_opened_again",
    CachesReads: "test_a_write_is_seen_by_a_second_object_that_has_read_before",
    KeepsLeasesInTheObject: "test_a_lease_holds_against_a_second_object",
    KeepsVersionsInTheObject: "test_guards_detect_writes_of_a_second_object",
    MergesByReadingFirst: "test_concurrent_merges_by_two_objects_are_all_kept",
    ClaimsByReadingFirst: "test_of_many_claims_by_two_objects_one_succeeds",
    KeepsDeadlinesInTheObject: "test_deadlines_and_expiries_are_found_by_a_second_object",
    ListsLongerNames: "test_names_with_a_common_prefix_are_kept_apart_in_every_list",
    FindsDeadlinesOfLongerNames: "test_names_with_a_common_prefix_are_kept_apart_in_every_list",
    FindsTracesOfLongerNames: "test_names_with_a_common_prefix_are_kept_apart_in_every_list",
    LeasesOneInstantTooLong: "test_a_lease_ends_exactly_at_its_end_time",
    WritesOneInstantTooLong: "test_a_lease_ends_exactly_at_its_end_time",
    RenewsOneInstantTooLong: "test_a_lease_ends_exactly_at_its_end_time",
    RoundsLeasesUpToSeconds: "test_a_lease_ends_exactly_at_its_end_time",
    ExpiresOneInstantTooLate: "test_a_record_is_invisible_from_its_expiry_time_on",
    CutsExpiriesToSeconds: "test_a_record_is_invisible_from_its_expiry_time_on",
    SweepsOneInstantTooLate: "test_an_expired_record_is_in_no_list_from_its_expiry_time_on",
    CutsDeadlinesToSeconds: "test_deadlines_within_one_second_are_distinguished",
    CreatesTwice: "test_a_guard_on_absence_allows_only_to_create_a_record",
    FindsExpiredRecordsPresent: "test_a_guard_on_absence_replaces_an_expired_record",
    CreatesOnlyFreeRecords: "test_a_guard_on_absence_allows_a_write_to_a_claimed_address",
    CreatesByReadingFirst: "test_of_many_concurrent_creations_one_succeeds",
    QueuesByTime: "test_a_queue_is_ordered_by_priority_then_time_then_key",
    QueuesByKey: "test_a_queue_is_ordered_by_priority_then_time_then_key",
    QueuesLowPrioritiesFirst: "test_a_queue_is_ordered_by_priority_then_time_then_key",
    QueuesByLastWrite: "test_a_write_keeps_moves_or_removes_the_queue",
    StaysAtItsFirstPlace: "test_a_write_keeps_moves_or_removes_the_queue",
    ReadsOneQueueAfterTheOther: "test_several_queues_are_read_together_by_priority_then_time_then_key",
    ReadsTheDeadlinesOfOneFlow: "test_the_deadlines_of_several_flows_are_read_together",
    ReadsDeadlinesOneNamespaceAfterTheOther: "test_the_deadlines_of_several_namespaces_are_read_together",
    HidesClaimedRecordsInQueues: "test_the_holder_of_a_record_keeps_and_removes_its_queue",
    KeepsTheQueueOfExpiredRecords: "test_a_merge_into_an_expired_record_leaves_its_queue",
    QueuesExpiredRecords: "test_a_cleared_replaced_or_expired_record_is_in_no_queue",
    QueuesRefusedRecords: "test_a_queue_refused_with_its_write_does_not_change",
    MatchesPrefixesAsPatterns: "test_names_of_queues_are_listed_in_order_and_paged",
    ListsTheLastQueueAgain: "test_names_of_queues_are_listed_in_order_and_paged",
    ListsQueuesWithoutCase: "test_names_of_queues_are_listed_in_order_and_paged",
    CutsNamesOfQueues: "test_the_longest_names_and_priorities_are_kept",
    TakesEveryQueue: "test_a_queue_that_not_every_backend_can_store_is_refused",
    FindsDeadlinesOfAllFlows: "test_deadlines_of_one_flow_are_found",
    FindsDeadlinesOfNoFlowInAll: "test_deadlines_of_one_flow_are_found",
    SkipsEqualDeadlinesOfOneFlow: "test_equal_deadlines_of_one_flow_are_paged",
    KeepsTheFlowOfDeadlines: "test_a_deadline_moves_with_its_flow",
    NotifiesEveryTopic: "test_listeners_are_called_after_a_notice_of_their_topic",
    ListensForever: "test_listeners_are_called_after_a_notice_of_their_topic",
    ReadsQueuesOnlyIfOpen: "test_the_first_reading_of_a_queue_opens_a_new_storage",
    KeepsQueuesInTheObject: "test_queues_are_seen_by_a_second_object",
    OrdersPartsWithoutCase: "test_a_range_is_in_the_order_of_code_points",
    OrdersPartsByNumber: "test_a_range_is_in_the_order_of_code_points",
    OrdersPartsByUtf16: "test_a_range_is_in_the_order_of_code_points",
    OrdersPartsByEscapedNames: "test_a_range_is_in_the_order_of_code_points",
    IgnoresTheLimitOfARange: "test_the_limit_of_a_range_counts_from_its_start",
    IgnoresTheOrderOfARange: "test_both_ends_of_a_range_are_included_and_need_not_exist",
    LeavesTheLastNameOut: "test_both_ends_of_a_range_are_included_and_need_not_exist",
    LimitsARangeBeforeReversingIt: "test_the_limit_of_a_range_counts_from_its_start",
    ReadsAllPartsForNames: "test_parts_are_read_by_name",
    ReadsNoPartsForNoNames: "test_parts_are_read_by_name",
    ReadsPartsAfterTheirRecord: "test_a_range_belongs_to_the_version_that_is_returned_with_it",
    KeepsTheOrderOfRemovedParts: "test_a_range_has_the_parts_after_each_write",
    KeepsTheOrderWithoutNewParts: "test_a_range_has_the_parts_after_each_write",
    DropsAllParts: "test_a_write_can_delete_a_range",
    DropsNothing: "test_a_write_can_delete_a_range",
    DropsFromTheStart: "test_a_write_can_delete_a_range",
    DropsWithoutTheLimit: "test_a_write_can_delete_a_range",
    CountsDroppedParts: "test_parts_of_a_deleted_range_do_not_count_towards_the_limit",
    SubtractsDroppedPartsTwice: "test_parts_of_a_deleted_range_do_not_count_towards_the_limit",
    DropsPartsThatItSets: "test_a_range_is_deleted_before_parts_are_set",
    DropsDespiteTheGuard: "test_deleting_a_range_is_guarded_like_every_write",
    NotifiesItsOwnObject: "test_a_notice_reaches_a_listener_of_a_second_object",
}

CAUGHT_BY |= operator_bugs.CAUGHT_BY


def reopened(storage: Any) -> Storage:
    """Return a second object over the records of a copy of the memory backend."""
    other = type(storage)(clock=storage.clock)
    for name in ("_cells", "_deadlines", "_queued", "_tagged", "_journal"):
        setattr(other, name, getattr(storage, name))
    return other


class WithoutBugs(FaultyStorage):
    """Its objects over the same records get each other's notices."""

    @property
    def wake_key(self) -> int:
        return id(self._cells)


async def run_promise(name: str, storage_class: type[FaultyStorage]) -> None:
    """Run one test of the suite as pytest would."""
    clock = Clock()

    class Suite(JournaledStorageContract):
        def open_storage(self, clock: Clock) -> Storage:
            return storage_class(clock=clock)

        def reopen(self, storage: Storage) -> Storage:
            return getattr(storage_class, "reopened", reopened)(storage)

    suite = Suite()
    async with suite.open_storage(clock) as storage:
        wanted = inspect.signature(SUITE[name]).parameters
        given = {"storage": storage, "clock": clock, "real_seconds": 0.2}
        await SUITE[name](suite, **{key: value for key, value in given.items() if key in wanted})


@pytest.mark.parametrize("name", SUITE)
def test_a_copy_without_bugs_passes_every_test(name: str) -> None:
    asyncio.run(run_promise(name, WithoutBugs))


@pytest.mark.parametrize("mutant", CAUGHT_BY, ids=lambda cls: cls.__name__)
def test_a_bug_is_detected_by_its_test(mutant: type[FaultyStorage], constants: Constants) -> None:
    constants(notices_arrives_within=0.1)
    with pytest.raises((AssertionError, StepwellError, pytest.fail.Exception)):
        asyncio.run(run_promise(CAUGHT_BY[mutant], mutant))


class FileSuite(StorageContract):
    def __init__(self, storage_class: type[FileStorage], folder: Path) -> None:
        self.storage_class, self.folder = storage_class, folder

    def open_storage(self, clock: Clock) -> Storage:
        return self.storage_class(self.folder, clock=clock)


async def test_a_lock_within_one_process_is_detected_by_two_processes(tmp_path: Path) -> None:
    suite = FileSuite(LocksWithinItsProcess, tmp_path)
    async with suite.open_storage(Clock()) as storage:
        await suite.test_concurrent_merges_by_two_objects_are_all_kept(storage)
        await storage.clear("bot", (42, 42))
        with pytest.raises(AssertionError):
            await suite.test_concurrent_merges_by_two_processes_are_all_kept(storage)


async def test_notices_within_one_process_are_detected_by_two_processes(tmp_path: Path, constants: Constants) -> None:
    constants(notices_arrives_within=0.5)
    suite = FileSuite(FileStorage, tmp_path)
    async with suite.open_storage(Clock()) as storage:
        with pytest.raises(pytest.fail.Exception, match="notices = False"):
            await suite.test_a_notice_reaches_a_listener_in_another_process(storage)


def test_a_storage_in_memory_has_no_tests_of_reopening() -> None:
    class InMemory(StorageContract):
        persistent = False

    def tests(suite: type) -> set[str]:
        return {name for name in dir(suite) if name.startswith("test_") and getattr(suite, name) is not None}

    left_out = tests(StorageContract) - tests(InMemory)
    of_shared = (ReopenPromises, SharingPromises, SharedQueuePromises, NoticePromises)
    assert left_out == {name for cls in of_shared for name in tests(cls)}
    assert len(left_out) == 14
