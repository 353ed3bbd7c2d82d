"""Records in Redis or Valkey, single server or Cluster: many workers, one state.

What is kept where is in ``record.lua``. A batch is one call of ``batch.lua``; in a Cluster one for
each hash tag, all nodes at the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from stepwell.errors import InvalidOption, NotReplicated, StorageClosed, StorageUnavailable
from stepwell.record import Address, Limits, Stored
from stepwell.storage.contract import Any_, Due, Page, Query, Storage, Swept
from stepwell.storage.lane import Batch, check_patience
from stepwell.storage.operations import Applied, Apply, Claim, Claimed, Get, Operation, Result
from stepwell.storage.redis.client import ServerConfig, configs_of_client, configs_of_url, split_url
from stepwell.storage.redis.cluster import Cluster
from stepwell.storage.redis.server import Request, Server
from stepwell.storage.redis.wire import (
    TAGS,
    Keys,
    Script,
    address_back,
    arguments,
    namespace_back,
    result,
    space_of,
    stored,
)

if TYPE_CHECKING:
    from redis.asyncio import Redis, RedisCluster

__all__ = ["RedisStorage"]

Durability = Literal["fast", "wait"]

_BATCH: Final = Script("batch")
_PAGE: Final = Script("page")
_NAMESPACES: Final = Script("namespaces")
_TRACES: Final = Script("traces")
_DUE: Final = Script("due")
_SWEEP: Final = Script("sweep")

#: Options that may stand in a URL, and what they are read as.
_IN_URL: Final[dict[str, Callable[[str], Any]]] = {
    "prefix": str,
    "durability": str,
    "timeout": float,
    "patience": float,
    "sweep_every": float,
}
#: Connections: for writes, for the rest, to wait for replicas, and for calls that are not gathered.
_WRITES, _REST, _CONFIRM, _ASIDE = "writes", "rest", "confirm", "aside"
#: What a batch does with the key of its journal, see ``batch.lua``.
_JOURNAL, _CHECK, _RAISE = "journal", "check", "raise"


class RedisStorage(Storage):
    """Keeps records in Redis 6.2 or newer, or in Valkey.

    ``client``: of redis-py's asyncio part, plain or Cluster. Its address and credentials are used, over
    connections of our own; it is never closed.

    ``prefix``: what all keys begin with. ``timeout``: how long one answer may take. ``patience``: how long a
    broken connection is tried again. ``durability``: ``"wait"`` acknowledges a write when a replica has it.
    """

    def __init__(
        self,
        client: Redis | RedisCluster | list[ServerConfig],
        *,
        prefix: str = "stepwell",
        durability: Durability = "fast",
        timeout: float = 5.0,
        limits: Limits | None = None,
        clock: Callable[[], float] | None = None,
        ids: Callable[[], str] | None = None,
        sweep_every: float | None = 60.0,
        patience: float = 10.0,
    ) -> None:
        super().__init__(limits=limits, clock=clock, ids=ids, sweep_every=sweep_every, patience=patience)
        if not prefix or not prefix.isprintable() or "{" in prefix or "}" in prefix or len(prefix) > 64:
            raise InvalidOption(f"prefix is 1 to 64 printable characters without braces, not {prefix!r}")
        if durability not in ("fast", "wait"):
            raise InvalidOption(f"durability is 'fast' or 'wait', not {durability!r}")
        if not timeout > 0:
            raise InvalidOption(f"timeout is a positive number of seconds, not {timeout!r}")
        check_patience(patience, timeout)
        configs, cluster = configs_of_client(client)
        self._server: Server | Cluster = Cluster(configs, timeout) if cluster else Server(configs[0], timeout)
        self._keys = Keys(prefix)
        # Half of the timeout: the answer to WAIT itself must still come in time.
        self._wait = max(1, int(timeout * 500)) if durability == "wait" else 0
        # Claims may be sent more than once. Each sending has a number. After a sending without an answer, the lane's
        # next one for that hash tag raises the fence: the server then refuses the earlier one if it arrives later.
        self._sent = 0
        self._unsure: set[tuple[str, int]] = set()
        #: The node in whose lane the writes of each hash tag are.
        self._write_nodes: list[Hashable] = [None] * TAGS

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """``redis://``, ``rediss://``, ``unix://``, ``redis+cluster://host:port,host:port``.

        Options may stand in its query; what is not ours is the driver's.
        """
        if "client" in options:
            raise InvalidOption("a client goes to RedisStorage(client) itself, in place of a URL")
        rest, ours = split_url(url, frozenset(_IN_URL))
        for name, text in ours.items():
            try:
                options.setdefault(name, _IN_URL[name](text))
            except ValueError:
                raise InvalidOption(f"{name} in a Redis URL is a number of seconds") from None
        return cls(configs_of_url(rest), **options)

    def __repr__(self) -> str:
        return f"<RedisStorage at {self._server.place}>"

    async def _open(self) -> None:
        give_up = asyncio.get_running_loop().time() + self._patience
        try:
            while True:
                try:
                    return await self._server.open((_REST, 0))
                except StorageUnavailable as error:
                    if error.final or asyncio.get_running_loop().time() + 0.1 >= give_up:
                        raise
                await asyncio.sleep(0.1)
        except BaseException:
            await self._server.close()
            raise

    async def _close(self) -> None:
        self._unsure.clear()
        await self._server.close()

    def lane_of(self, operation: Operation) -> tuple[str, Hashable]:
        tag = self._keys.tag(operation.address)
        node = self._server.node_of(tag)
        if type(operation) is not Apply:
            return _REST, node
        before = self._write_nodes[tag]
        if node != before:
            # Another node has the tag now. Writes to one address keep their order, so they stay in their lane until it
            # has sent everything.
            lane = self._lanes.get((_WRITES, before))
            if lane is not None and not lane.idle:
                return _WRITES, before
            self._write_nodes[tag] = node
        return _WRITES, node

    async def confirm(self, claim: Claim) -> None:
        if not self._wait:
            return
        if self._loop is not asyncio.get_running_loop():
            raise StorageClosed
        # A failed-over server that still has the claim also has everything that was written before it. To renew the
        # claim checks that, and is a write for WAIT to wait for.
        name = _CONFIRM, self._server.node_of(self._keys.tag(claim.address))
        lane = self._lanes.get(name) or self._new_lane(name, self._run_confirm)
        await lane.submit(claim._replace(renew=True))

    async def _run_confirm(self, batch: Batch) -> list[Result]:
        node = self._server.node_of(self._keys.tag(batch[0].address))
        return await self._make(batch, (_CONFIRM, node), wait=self._wait)

    async def run(self, operations: Sequence[Operation]) -> list[Result]:
        writes = any(type(operation) is Apply for operation in operations)
        wait = self._wait if writes else 0
        if not isinstance(operations, Batch):
            return await self._make(operations, _ASIDE, wait=wait)
        lane = self.lane_of(operations[0])
        if writes:
            return await self._make(operations, lane, operations.lane, operations.number, wait=wait)
        if all(type(operation) is Get for operation in operations):
            return await self._make(operations, lane)
        self._sent += 1
        return await self._make(operations, lane, operations.lane, self._sent, fenced=True)

    async def _make(
        self,
        operations: Sequence[Operation],
        lane: Hashable,
        journal: str = "",
        number: int = 0,
        *,
        wait: int = 0,
        fenced: bool = False,
    ) -> list[Result]:
        groups = self._grouped(operations)
        fences = {(journal, tag) for tag, _ in groups} if fenced else frozenset()
        unsure = self._unsure & fences
        requests = []
        for tag, places in groups:
            use = _JOURNAL if not fenced else _RAISE if (journal, tag) in unsure else _CHECK
            requests.append(self._batch(tag, [operations[n] for n in places], journal, number, use))
        try:
            answers = await self._server.call(lane, requests, wait)
        except BaseException:
            self._unsure |= fences
            raise
        self._unsure -= unsure
        results: list[Result] = [None] * len(operations)
        try:
            for (_, places), (reply, replicated) in zip(groups, answers, strict=True):
                now = float(reply[0])
                for n, answer in zip(places, reply[1:], strict=True):
                    outcome = result(operations[n], answer, now)
                    if not replicated and type(outcome) in (Applied, Claimed):
                        outcome = NotReplicated(operations[n].address.text)
                    results[n] = outcome
        except StorageUnavailable as error:
            # The calls of other hash tags were made.
            error.sent = len(groups) > 1
            await self._server.lost(lane)
            raise
        return results

    def _grouped(self, operations: Sequence[Operation]) -> list[tuple[int, list[int]]]:
        """The places of the operations that go into one call, with its hash tag."""
        if not self._server.spread:
            return [(0, list(range(len(operations))))]
        groups: dict[int, list[int]] = {}
        for n, operation in enumerate(operations):
            groups.setdefault(self._keys.tag(operation.address), []).append(n)
        return list(groups.items())

    def _batch(self, tag: int, operations: Sequence[Operation], journal: str, number: int, use: str) -> Request:
        keys = self._keys
        names = [keys.never(tag), keys.journal(tag, journal)]
        row = [*self._basics(), str(number), use]
        for operation in operations:
            names.append(keys.record(operation.address))
            row += arguments(operation)
        return Request(tag, _BATCH, names, row)

    def _basics(self) -> tuple[str, str]:
        return "" if self.clock is None else repr(float(self.clock())), self._keys.width

    # Listing, deadlines, sweeping: indexed by hash tag, so all 64 are asked at once.

    async def page(self, query: Query, after: Any, limit: int) -> Page:
        first, last = (0, None) if after is None else after
        space = space_of(query.namespace)
        wanted = (_filter(query.flow), _filter(query.state), space)

        async def ask(tags: Sequence[int], most: Sequence[int]) -> list[list[Any]]:
            begins = [f"({last}" if tag == first and last is not None else "-" for tag in tags]
            return await self._ask(
                _PAGE,
                [(tag, self._keys.listing(tag, space, query.tag)) for tag in tags],
                [(begin, str(room), *wanted) for begin, room in zip(begins, most, strict=True)],
            )

        left = range(first, TAGS)
        counts = {tag: reply[0] for tag, reply in zip(left, await ask(left, [0] * len(left)), strict=True) if reply[0]}
        rooms: dict[int, int] = {}
        for tag, count in counts.items():
            rooms[tag] = limit
            limit -= count
            if limit <= 0:
                break
        records: list[tuple[Address, Stored]] = []
        for tag, (looked, *found) in zip(rooms, await ask(list(rooms), list(rooms.values())), strict=True):
            for key, flat in zip(found[::2], found[1::2], strict=True):
                address = Address(query.namespace, key)
                record = stored(address, flat, float("-inf"), None)
                if isinstance(record, Stored):
                    records.append((address, record))
            if looked is not None:
                return Page(records, (tag, looked))
        more = [tag for tag in counts if tag not in rooms]
        return Page(records, (more[0], None) if more else None)

    async def namespaces(self) -> list[str]:
        indexes = [(number, self._keys.namespaces(number)) for number in range(TAGS)]
        found = await self._ask(_NAMESPACES, indexes, [()] * TAGS)
        return sorted({namespace_back(space) for spaces in found for space in spaces})

    async def traces(self, namespace: str, tag: str, *, limit: int = 500) -> list[Address]:
        space = space_of(namespace)
        indexes = [(number, self._keys.listing(number, space, tag)) for number in range(TAGS)]
        found = await self._ask(_TRACES, indexes, [(str(limit),)] * TAGS)
        return sorted(Address(namespace, key) for keys in found for key in keys)[:limit]

    async def due(
        self, namespace: str, *, before: float | None = None, limit: int = 100, after: Due | None = None
    ) -> list[Due]:
        space = space_of(namespace)
        row = ("" if before is None else repr(float(before)), str(limit), space)
        last = ("", "") if after is None else (repr(after.deadline), after.address.key)
        replies = await self._ask(
            _DUE,
            [(tag, self._keys.deadlines(tag, space)) for tag in range(TAGS)],
            [(*row, *last)] * TAGS,
        )
        found = [
            Due(Address(namespace, key), float(deadline))
            for reply in replies
            for key, deadline in zip(reply[::2], reply[1::2], strict=True)
        ]
        return sorted(found, key=lambda due: (due.deadline, due.address))[:limit]

    async def sweep(self, limit: int = 1000) -> Swept:
        indexes = [(tag, self._keys.leaving(tag)) for tag in range(TAGS)]
        counted = await self._ask(_SWEEP, indexes, [("0",)] * TAGS)
        due = [(index, reply[0]) for index, reply in zip(indexes, counted, strict=True) if reply[0]]
        expired: list[tuple[Address, str | None]] = []
        removed = 0
        # What is held stays, so that a tag may give less than it has; then the others may give more.
        while due and removed < limit:
            rooms: list[int] = []
            for _, count in due:
                rooms.append(min(count, limit - removed - sum(rooms)))
            chosen = [(index, room) for (index, _), room in zip(due, rooms, strict=True) if room > 0]
            due = due[len(chosen) :]
            replies = await self._ask(_SWEEP, [index for index, _ in chosen], [(str(room),) for _, room in chosen])
            for _, gone, *records in replies:
                removed += gone
                expired += [(address_back(name), head) for name, head in zip(records[::2], records[1::2], strict=True)]
        return Swept(expired, removed)

    async def _ask(
        self, script: Script, indexes: Sequence[tuple[int, str]], rows: Sequence[tuple[str, ...]]
    ) -> list[list[Any]]:
        """Call a script on each of these indexes, in one round trip."""
        if not indexes:
            return []
        if self._loop is not asyncio.get_running_loop():
            await self.ensure_open()
        basics = self._basics()
        requests = [
            Request(tag, script, (self._keys.never(tag), index), (*basics, *row))
            for (tag, index), row in zip(indexes, rows, strict=True)
        ]
        return [answer.reply for answer in await self._server.call(_ASIDE, requests)]


def _filter(name: str | Any_ | None) -> str:
    return "*" if isinstance(name, Any_) else "-" if name is None else "=" + name
