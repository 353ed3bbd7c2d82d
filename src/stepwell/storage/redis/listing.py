"""Lists of records, deadlines and queues in Redis, and the sweep.

Each hash tag has its own indexes, so one round trip queries all 64.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Hashable, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final, TypeVar, cast

from stepwell.record import Address, Stored
from stepwell.storage.listing import Any_, Due, Page, Query, Swept
from stepwell.storage.queue_text import END, key_of
from stepwell.storage.redis.cluster import Cluster
from stepwell.storage.redis.server import Request, Server
from stepwell.storage.redis.wire import (
    TAGS,
    Keys,
    Script,
    begins,
    decode_address,
    decode_space,
    flow_part,
    paired,
    space_of,
    stored,
)
from stepwell.storage.transport.outage import OutageLog
from stepwell.storage.transport.reads import read_again

__all__ = ["RedisListing"]

logger: logging.Logger = logging.getLogger(__name__)

_PAGE: Final = Script("page")
_NAMESPACES: Final = Script("namespaces")
_TRACES: Final = Script("traces")
_DUE: Final = Script("due")
_QUEUED: Final = Script("queued")
_QUEUES: Final = Script("queues")
_SWEEP: Final = Script("sweep")


class RedisListing:
    """Queries the indexes of all hash tags.

    ``lane``: the name of its connections. ``now``: returns the time for scripts. ``may_lag``: read lists that may lag
    from replicas.
    """

    def __init__(
        self, server: Server | Cluster, keys: Keys, lane: Hashable, now: Callable[[], str], *, may_lag: bool
    ) -> None:
        self._server = server
        self._keys = keys
        self._lane = lane
        self._now = now
        self._may_lag = may_lag
        self._lost_nodes = OutageLog(
            logger,
            "deadlines and queues of a lost node of the Redis Cluster are not read: %s",
            "deadlines and queues of all nodes of the Redis Cluster are read again, after %.0f s",
        )

    async def page(self, query: Query, after: Any, limit: int) -> Page:
        """Return a page of records."""
        first, last = (0, None) if after is None else after
        space = space_of(query.namespace)
        wanted = (_filter(query.flow), _filter(query.state), space, begins(query.tag))

        async def ask(tags: Sequence[int], most: Sequence[int]) -> list[list[Any]]:
            lows = [f"({last}" if tag == first and last is not None else "-" for tag in tags]
            return await self._read(
                _PAGE,
                [(tag, self._keys.listing(tag, space, query.tag)) for tag in tags],
                [(low, str(room), *wanted) for low, room in zip(lows, most, strict=True)],
                may_lag=query.may_lag,
            )

        left = range(first, TAGS)
        replies = await ask(left, [-limit] * len(left))
        counts = {tag: reply[0] for tag, reply in zip(left, replies, strict=True) if reply[0]}
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
                record = stored(address, paired(flat), float("-inf"), None)
                if isinstance(record, Stored):
                    records.append((address, record))
            if looked is not None:
                return Page(records, (tag, looked))
        more = [tag for tag in counts if tag not in rooms]
        return Page(records, (more[0], None) if more else None)

    async def namespaces(self) -> list[str]:
        """Return the namespaces that have records."""
        indexes = [(number, self._keys.namespaces(number)) for number in range(TAGS)]
        found = await self._read(_NAMESPACES, indexes, [()] * TAGS)
        return sorted({decode_space(space) for spaces in found for space in spaces})

    async def traces(self, namespace: str, tag: str, limit: int) -> list[Address]:
        """Return the addresses of records, tombstones and memos with a tag."""
        space = space_of(namespace)
        indexes = [(number, self._keys.listing(number, space, tag)) for number in range(TAGS)]
        found = await self._read(_TRACES, indexes, [(str(limit), space, begins(tag))] * TAGS)
        return sorted(Address(namespace, key) for keys in found for key in keys)[:limit]

    async def due(
        self,
        namespace: str,
        *,
        before: float | None,
        limit: int,
        after: Due | None,
        flow: str | Any_ | Sequence[str] | None,
    ) -> list[Due]:
        """Return the records whose deadline has passed."""
        space, keys = space_of(namespace), self._keys
        latest = "" if before is None else repr(float(before))
        last = ("", "") if after is None else (repr(after.deadline), after.address.key)
        if isinstance(flow, Any_):
            flows = []
        else:
            flows = [flow_part(each) for each in ((flow,) if flow is None or isinstance(flow, str) else flow)]
            if not flows:
                return []
        indexes = [(tag, keys.deadlines(tag, space)) for tag in range(TAGS)]

        async def ask(indexes: Sequence[tuple[int, str]], most: int) -> list[list[tuple[float, str]]]:
            replies = await self._ask_same(_DUE, indexes, (latest, str(most), space, *last, *dict.fromkeys(flows)))
            pairs = [zip(map(float, reply[1::2]), reply[::2], strict=True) for reply in replies]
            return [sorted(each)[:most] for each in pairs]

        found = await _first_of(ask, indexes, limit)
        return [Due(Address(namespace, key), deadline) for deadline, key in found]

    async def queued(self, namespace: str, name: str | Sequence[str], limit: int) -> list[Address]:
        """Return the first records of a queue, or of several together."""
        space = space_of(namespace)
        names = (name,) if isinstance(name, str) else tuple(dict.fromkeys(name))

        async def ask(indexes: Sequence[tuple[int, str]], most: int) -> list[list[str]]:
            replies = await self._ask_same(_QUEUED, indexes, (str(most), space, *names))
            return [sorted(reply)[:most] for reply in replies]

        entries = await _first_of(ask, [(tag, self._keys.queues(tag, space)) for tag in range(TAGS)], limit)
        return [Address(namespace, key_of(entry)) for entry in entries]

    async def queues(self, namespace: str, prefix: str, after: str, limit: int) -> list[str]:
        """Return the names of queues that have records."""
        space = space_of(namespace)
        first = max(prefix, f"{after}{END}") if after else prefix

        async def ask(indexes: Sequence[tuple[int, str]], most: int) -> list[list[str]]:
            return await self._ask_same(_QUEUES, indexes, (first, prefix, str(most), space))

        return await _first_of(ask, [(tag, self._keys.queues(tag, space)) for tag in range(TAGS)], limit)

    async def sweep(self, limit: int) -> Swept:
        """Remove expired records and old tombstones."""
        indexes = [(tag, self._keys.sweepable(tag)) for tag in range(TAGS)]
        counted = await self._ask(_SWEEP, indexes, [("0",)] * TAGS)
        due = [(index, reply[0]) for index, reply in zip(indexes, counted, strict=True) if reply[0]]
        expired: list[tuple[Address, str | None]] = []
        removed = 0
        # Records that are held stay, so a tag may remove fewer than it counted; the others then may remove more.
        while due and removed < limit:
            rooms: list[int] = []
            for _, count in due:
                rooms.append(min(count, limit - removed - sum(rooms)))
            chosen = [(index, room) for (index, _), room in zip(due, rooms, strict=True) if room > 0]
            due = due[len(chosen) :]
            replies = await self._ask(_SWEEP, [index for index, _ in chosen], [(str(room),) for _, room in chosen])
            for _, gone, *records in replies:
                removed += gone
                expired += [
                    (decode_address(name), head) for name, head in zip(records[::2], records[1::2], strict=True)
                ]
        return Swept(expired, removed)

    async def _read(
        self,
        script: Script,
        indexes: Sequence[tuple[int, str]],
        rows: Sequence[tuple[str, ...]],
        *,
        may_lag: bool = False,
    ) -> list[list[Any]]:
        """Call a script on each of these indexes, twice if the connection is broken. Not for the sweep: it writes."""
        return await read_again(partial(self._ask, script, indexes, rows, may_lag=may_lag))

    async def _ask(
        self,
        script: Script,
        indexes: Sequence[tuple[int, str]],
        rows: Sequence[tuple[str, ...]],
        *,
        may_lag: bool = False,
    ) -> list[list[Any]]:
        """Call a script on each of these indexes in one round trip."""
        if not indexes:
            return []
        requests = self._requests(script, indexes, rows)
        read = self._server.read if may_lag and self._may_lag else self._server.call
        return [reply for reply, _ in await read(self._lane, requests)]

    def _requests(
        self, script: Script, indexes: Sequence[tuple[int, str]], rows: Sequence[tuple[str, ...]]
    ) -> list[Request]:
        call, basics = ("EVALSHA", script.sha, "2"), (self._now(), self._keys.width)
        return [
            Request(tag, script, (*call, f"{self._keys.prefixes[tag]}-", index, *basics, *row))
            for (tag, index), row in zip(indexes, rows, strict=True)
        ]

    async def _ask_same(
        self, script: Script, indexes: Sequence[tuple[int, str]], row: tuple[str, ...]
    ) -> list[list[Any]]:
        """Call a script that reads any number of indexes: once, or in a Cluster once for each of them.

        In a Cluster that has lost a node, the indexes of this node are empty.
        """
        if not indexes:
            return []
        if isinstance(self._server, Cluster):
            rows = [row] * len(indexes)
            answers, problem = await self._server.call_living(self._lane, self._requests(script, indexes, rows))
            if problem is None:
                self._lost_nodes.worked()
            else:
                self._lost_nodes.failed(problem)
            return [[] if answer is None else answer[0][0] for answer in answers]
        names = [f"{self._keys.prefixes[0]}-", *(index for _, index in indexes)]
        command = ("EVALSHA", script.sha, str(len(names)), *names, self._now(), self._keys.width, *row)
        ((reply, _),) = await read_again(partial(self._server.call, self._lane, [Request(0, script, command)]))
        return cast("list[list[Any]]", reply)


#: A queued record or the name of a queue, or a deadline with its key.
_Entry = TypeVar("_Entry", str, tuple[float, str])


async def _first_of(
    ask: Callable[[Sequence[tuple[int, str]], int], Coroutine[Any, Any, list[list[_Entry]]]],
    indexes: Sequence[tuple[int, str]],
    limit: int,
) -> list[_Entry]:
    """Return the first ``limit`` distinct entries of sorted indexes, one for each hash tag.

    The entries are spread evenly, so a few of each index are usually enough. An index is read again if all of its
    entries that were read are among the first.
    """
    most = min(limit, limit // (TAGS // 2) + 2)
    found: set[_Entry] = set()
    while True:
        replies = await ask(indexes, most)
        found.update(chain(*replies))
        first = sorted(found)[:limit]
        if most == limit:
            return first
        indexes = [
            index
            for index, reply in zip(indexes, replies, strict=True)
            if len(reply) == most and (len(first) < limit or reply[-1] < first[-1])
        ]
        if not indexes:
            return first
        most = limit


def _filter(name: str | Any_ | None) -> str:
    return "*" if isinstance(name, Any_) else "-" if name is None else "=" + name
