"""Lists of records, deadlines and queues in Redis, and the sweep.

Each hash tag has its own indexes. A call reads those of all tags of a node.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Coroutine, Hashable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, TypeVar

from stepwell.codec.json import to_msgpack
from stepwell.errors import StorageError
from stepwell.record import Address, Stored
from stepwell.storage.listing import Any_, Due, Page, Query, Swept
from stepwell.storage.queue_text import END, key_of
from stepwell.storage.redis.server import Server
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

__all__ = ["RedisListing"]

logger: logging.Logger = logging.getLogger(__name__)

_PAGE: Final = Script("page")
_NAMESPACES: Final = Script("namespaces")
_TRACES: Final = Script("traces")
_DUE: Final = Script("due")
_QUEUED: Final = Script("queued")
_QUEUES: Final = Script("queues")
_SWEEP: Final = Script("sweep")
#: No argument for any hash tag.
_EVERY: Final[dict[int, tuple[Any, ...]]] = dict.fromkeys(range(TAGS), ())


class RedisListing:
    """Queries the indexes of all hash tags.

    ``lane``: the name of its connections. ``now``: returns the time for scripts, or ``False`` for the server's.
    ``may_lag``: read lists that may lag from replicas.
    """

    def __init__(
        self, server: Server, keys: Keys, lane: Hashable, now: Callable[[], float | bool], *, may_lag: bool
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
        filters = _filter(query.flow), _filter(query.state), space_of(query.namespace), begins(query.tag)

        async def ask(limits: dict[int, int]) -> dict[int, list[Any]]:
            each = {tag: (last if tag == first and last is not None else False, most) for tag, most in limits.items()}
            return await self._read(_PAGE, each, *filters, may_lag=query.may_lag and self._may_lag)

        replies = await ask(dict.fromkeys(range(first, TAGS), -limit))
        counts = {tag: count for tag, (count,) in replies.items() if count}
        rooms: dict[int, int] = {}
        for tag, count in counts.items():
            rooms[tag] = limit
            limit -= count
            if limit <= 0:
                break
        records: list[tuple[Address, Stored]] = []
        for tag, (looked, *found) in (await ask(rooms)).items():
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
        found = await self._read(_NAMESPACES, _EVERY)
        return sorted({decode_space(space) for spaces in found.values() for space in spaces})

    async def traces(self, namespace: str, tag: str, limit: int) -> list[Address]:
        """Return the addresses of records, tombstones and memos with a tag."""
        found = await self._read(_TRACES, _EVERY, limit, space_of(namespace), begins(tag))
        return sorted(Address(namespace, key) for keys in found.values() for key in keys)[:limit]

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
        flows = flow if isinstance(flow, Any_) else (flow,) if flow is None or isinstance(flow, str) else flow
        wanted = _wanted({namespace: flows})
        latest = False if before is None else float(before)
        last = (False, "") if after is None else (float(after.deadline), after.address.key)

        async def ask(tags: Collection[int], most: int) -> dict[int, list[tuple[float, str]]]:
            found: dict[int, list[tuple[float, str]]] = {}
            for tag, replies in (await self._read_known(_DUE, tags, latest, most, *last, wanted)).items():
                # A lost node has no replies, the others have one for the namespace.
                pairs = [zip(map(float, reply[1::2]), reply[::2], strict=True) for reply in replies]
                found[tag] = sorted(chain(*pairs))[:most]
            return found

        if not wanted:
            return []
        return [Due(Address(namespace, key), deadline) for deadline, key in await _first_of(ask, limit)]

    async def due_in(self, wanted: Mapping[str, Sequence[str] | Any_], limit: int) -> list[Due]:
        """Return the first records of several namespaces whose deadline has passed."""
        asked = {namespace: flows for namespace, flows in wanted.items() if isinstance(flows, Any_) or flows}
        found: set[Due] = set()
        if asked:
            replies = await self._read_known(_DUE, range(TAGS), False, limit, False, "", _wanted(asked))
            for each in replies.values():
                for namespace, reply in zip(asked, each, strict=False):
                    pairs = zip(reply[::2], reply[1::2], strict=True)
                    found.update(Due(Address(namespace, key), float(deadline)) for key, deadline in pairs)
        return sorted(found, key=lambda due: due.deadline)[:limit]

    async def queued(self, namespace: str, name: str | Sequence[str], limit: int) -> list[Address]:
        """Return the first records of a queue, or of several together."""
        names = [name] if isinstance(name, str) else [*dict.fromkeys(name)]

        async def ask(tags: Collection[int], most: int) -> dict[int, list[str]]:
            replies = await self._read_known(_QUEUED, tags, most, space_of(namespace), names)
            return {tag: sorted(reply)[:most] for tag, reply in replies.items()}

        return [Address(namespace, key_of(entry)) for entry in await _first_of(ask, limit)]

    async def queues(self, namespace: str, prefix: str, after: str, limit: int) -> list[str]:
        """Return the names of queues that have records."""
        first = max(prefix, f"{after}{END}") if after else prefix

        async def ask(tags: Collection[int], most: int) -> dict[int, list[str]]:
            return await self._read_known(_QUEUES, tags, first, prefix, most, space_of(namespace))

        return await _first_of(ask, limit)

    async def sweep(self, limit: int) -> Swept:
        """Remove expired records and old tombstones."""
        counted = await self._read(_SWEEP, dict.fromkeys(range(TAGS), (0,)), writes=True)
        due = {tag: count for tag, (count, *_) in counted.items() if count}
        expired: list[tuple[Address, str | None]] = []
        removed = 0
        # Records that are held stay, so a tag may remove fewer than it counted; the others then may remove more.
        while due and removed < limit:
            rooms: dict[int, tuple[int]] = {}
            left = limit - removed
            for tag in [*due]:
                if left <= 0:
                    break
                rooms[tag] = (min(due.pop(tag), left),)
                left -= rooms[tag][0]
            for _, gone, *records in (await self._read(_SWEEP, rooms, writes=True)).values():
                removed += gone
                expired += [
                    (decode_address(name), head) for name, head in zip(records[::2], records[1::2], strict=True)
                ]
        return Swept(expired, removed)

    async def _read(
        self,
        script: Script,
        each: Mapping[int, tuple[Any, ...]],
        *arguments: Any,
        may_lag: bool = False,
        writes: bool = False,
    ) -> dict[int, list[Any]]:
        """Return the answers of a script by hash tag. ``each``: the arguments for each tag; the others are for all."""
        found = await self._ask(script, each, *arguments, may_lag=may_lag, writes=writes)
        return {tag: self._checked(found[tag]) for tag in each}

    async def _read_known(self, script: Script, tags: Collection[int], *arguments: Any) -> dict[int, list[Any]]:
        """Return the answers of a script by hash tag. Those of a lost node of a Cluster are empty."""
        found = await self._ask(script, dict.fromkeys(tags, ()), *arguments)
        problem = next((answer for answer in found.values() if isinstance(answer, StorageError)), None)
        if problem is None:
            self._lost_nodes.worked()
        elif getattr(problem, "final", True) or not any(isinstance(answer, list) for answer in found.values()):
            raise problem
        else:
            self._lost_nodes.failed(problem)
        return {tag: answer if isinstance(answer, list) else [] for tag, answer in found.items()}

    async def _ask(
        self,
        script: Script,
        each: Mapping[int, tuple[Any, ...]],
        *arguments: Any,
        may_lag: bool = False,
        writes: bool = False,
    ) -> dict[int, list[Any] | StorageError]:
        def pack(tags: list[int]) -> bytes:
            columns = zip(*[each[tag] for tag in tags], strict=True)
            names = [f"{tag:02}" for tag in tags]
            return to_msgpack([self._now(), self._keys.prefix, names, *columns, *arguments])

        return await self._server.ask(self._lane, script, each, pack, may_lag=may_lag, writes=writes)

    def _checked(self, answer: list[Any] | StorageError) -> list[Any]:
        if isinstance(answer, StorageError):
            raise answer
        return answer


#: A queued record or the name of a queue, or a deadline with its key.
_Entry = TypeVar("_Entry", str, tuple[float, str])


async def _first_of(
    ask: Callable[[Collection[int], int], Coroutine[Any, Any, dict[int, list[_Entry]]]], limit: int
) -> list[_Entry]:
    """Return the first ``limit`` distinct entries of sorted indexes, one for each hash tag.

    The entries are spread evenly, so a few of each index are usually enough. An index is read again if all of its
    entries that were read are among the first.
    """
    tags: Collection[int] = range(TAGS)
    most = min(limit, limit // (TAGS // 2) + 2)
    found: set[_Entry] = set()
    while True:
        replies = await ask(tags, most)
        found.update(chain(*replies.values()))
        first = sorted(found)[:limit]
        if most == limit:
            return first
        tags = [
            tag
            for tag, reply in replies.items()
            if len(reply) == most and (len(first) < limit or reply[-1] < first[-1])
        ]
        if not tags:
            return first
        most = limit


def _filter(name: str | Any_ | None) -> str:
    return "*" if isinstance(name, Any_) else "-" if name is None else "=" + name


def _wanted(asked: Mapping[str, Sequence[str | None] | Any_]) -> list[tuple[str, list[str] | bool]]:
    """Return the namespaces and their flows as the script takes them; ``False``: all flows."""
    return [
        (space_of(namespace), False if isinstance(flows, Any_) else [*dict.fromkeys(map(flow_part, flows))])
        for namespace, flows in asked.items()
        if isinstance(flows, Any_) or flows
    ]
