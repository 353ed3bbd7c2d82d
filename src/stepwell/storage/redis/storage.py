"""Records in Redis or Valkey, on a single server, the master of Sentinels, or a Cluster, shared by many workers.

``record.lua`` documents the keys. A batch is one call of ``batch.lua``; in a Cluster it is one call for
each node, to all nodes concurrently.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Coroutine, Hashable, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar, cast

from stepwell.errors import InvalidOption, NotReplicated, StorageClosed, StorageUnavailable
from stepwell.record import Address, Limits, Stored
from stepwell.storage.contract import Storage
from stepwell.storage.lane import Batch, Entry, Lane, Remainder, check_patience
from stepwell.storage.listing import ANY, Any_, Beside, Due, Page, Query, Swept
from stepwell.storage.operations import Applied, Apply, Claim, Claimed, Get, Operation, Result
from stepwell.storage.outage import OutageLog
from stepwell.storage.queue_text import END, key_of
from stepwell.storage.redis.client import Refused, ServerConfig, configs_of_client, configs_of_url
from stepwell.storage.redis.cluster import Cluster
from stepwell.storage.redis.joined import Group, joined_arguments, joined_results, separate_answers
from stepwell.storage.redis.notices import RedisChannel
from stepwell.storage.redis.sentinel import SentinelServer, is_sentinel_url, sentinel_config
from stepwell.storage.redis.server import Answer, Request, Server
from stepwell.storage.redis.wire import (
    TAGS,
    Keys,
    Script,
    arguments,
    begins,
    decode_address,
    decode_space,
    paired,
    result,
    space_of,
    stored,
    tag_of,
)
from stepwell.storage.urls import check_url, take_options, truth

if TYPE_CHECKING:
    from redis.asyncio import Redis, RedisCluster

__all__ = ["RedisStorage"]

logger: logging.Logger = logging.getLogger(__name__)

Durability = Literal["fast", "wait"]
Replicas = Literal["none", "scan"]

_BATCH: Final = Script("batch")
_PAGE: Final = Script("page")
_NAMESPACES: Final = Script("namespaces")
_TRACES: Final = Script("traces")
_DUE: Final = Script("due")
_QUEUED: Final = Script("queued")
_QUEUES: Final = Script("queues")
_SWEEP: Final = Script("sweep")

#: Options that may be given in a URL, and how they are parsed.
URL_OPTIONS: Final[dict[str, Callable[[str], Any]]] = {
    "prefix": str,
    "durability": str,
    "wait_for": int,
    "timeout": float,
    "patience": float,
    "sweep_every": float,
    "notices": truth,
    "replicas": str,
}
#: Lanes: for writes, for other operations, and for confirmations by replicas. Each has its own connection.
_WRITES, _REST, _CONFIRM = "writes", "rest", "confirm"
#: The connection for calls outside of lanes.
_ASIDE = "aside"
#: How many keys of each server ``settings`` looks at for leases.
_SCANNED = 200_000
#: How a batch uses the key of its journal, see ``batch.lua``.
_JOURNAL, _CHECK, _RAISE = "journal", "check", "raise"


class RedisStorage(Storage):
    """Keeps records in Redis 6.2 or newer, or in Valkey.

    ``client``: a ``redis.asyncio.Redis`` or ``RedisCluster``. The storage takes the address and credentials from it,
    opens connections of its own, and never closes the client.

    ``prefix``: the beginning of all keys. ``timeout``: seconds to wait for one answer. ``patience``: seconds for which
    calls over a broken connection are retried. ``durability="wait"``: acknowledge a write when ``wait_for``
    replicas have it. ``notices=False``: send and receive no notices about new runs; workers poll. ``replicas="scan"``:
    read lists that may lag from replicas, such as those of the inspector and ``scan(may_lag=True)``.

    Example::

        async with RedisStorage(redis.asyncio.Redis(), prefix="my_bot") as storage:
            await storage.set_data("my_bot", (42, 42), {"name": "Alice"})
    """

    def __init__(
        self,
        client: Redis | RedisCluster | list[ServerConfig],
        *,
        prefix: str = "stepwell",
        durability: Durability = "fast",
        wait_for: int = 1,
        timeout: float = 5.0,
        notices: bool = True,
        replicas: Replicas = "none",
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
        if replicas not in ("none", "scan"):
            raise InvalidOption(f"replicas is 'none' or 'scan', not {replicas!r}")
        if wait_for < 1:
            raise InvalidOption(f"wait_for is a positive number of replicas, not {wait_for!r}")
        check_patience(patience, timeout)
        configs, cluster = configs_of_client(client)
        configs = [config._replace(copies=wait_for) for config in configs]
        self._wait_for = wait_for
        self._server: Server | Cluster
        if cluster:
            self._server = Cluster(configs, timeout)
        else:
            self._server = (SentinelServer if configs[0].sentinels else Server)(configs[0], timeout)
        if replicas == "scan" and type(self._server) is Server:
            raise InvalidOption("replicas='scan' needs redis+sentinel:// or redis+cluster://, which know the replicas")
        self._reads_replicas = replicas == "scan"
        self._send: Callable[..., Awaitable[Sequence[Answer | StorageUnavailable]]] = (
            self._server.outcomes if isinstance(self._server, Cluster) else self._server.call
        )
        self._keys = Keys(prefix)
        # The databases of a server share its channels.
        database = configs[0].arguments.get("db") or 0
        self._wake_key = ("redis", self._server.location, database, prefix)
        if notices:
            self._channel = RedisChannel(self._server, _ASIDE, f"{prefix}:notices:{database}")
        # Half of the timeout, so that the answer to WAIT itself arrives in time.
        self._wait = max(1, int(timeout * 500)) if durability == "wait" else 0
        # Claims may be sent more than once, and each attempt has a number. After an attempt without an answer, the
        # lane's next one for that hash tag raises the fence: the server refuses the earlier one if it arrives late.
        self._sent = 0
        self._unsure: set[tuple[str, int]] = set()
        # In a Cluster, lanes of one kind share an id and their numbers, so that the journal and the fence of a hash tag
        # hold for all lanes that it uses one after the other: those of its nodes, and its own (see ``_park``). Each
        # opening makes new ids, because forked processes must not share them.
        self._lane_ids: dict[str, str] = {}
        self._numbers = itertools.count(1)
        #: The node whose lane has the writes of each hash tag; the tag itself for its own lane.
        self._write_nodes: list[Hashable] = [None] * TAGS
        self._lost_nodes = OutageLog(
            logger,
            "deadlines and queues of a lost node of the Redis Cluster are not read: %s",
            "deadlines and queues of all nodes of the Redis Cluster are read again, after %.0f s",
        )
        #: Hash tags whose other operations are in their own lane.
        self._parked: set[int] = set()

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """Return a storage for ``redis://``, ``rediss://`` or ``unix://``.

        ``redis+cluster://host:port,host:port`` is a Cluster, ``redis+sentinel://host:port,host:port/name`` the master
        that Sentinels know by this name.
        The query may contain options of the storage, and options of redis-py's connections.
        """
        if "client" in options:
            raise InvalidOption("pass a client to RedisStorage(client), without a URL")
        check_url(url)
        rest, ours = take_options(url, URL_OPTIONS, "a Redis URL")
        configs = [sentinel_config(rest)] if is_sentinel_url(rest) else configs_of_url(rest)
        return cls(configs, **(ours | options))

    def __repr__(self) -> str:
        return f"<RedisStorage at {self._server.location}>"

    @property
    def location(self) -> str:
        return f"Redis at {self._server.location}"

    @property
    def wake_key(self) -> Hashable:
        return self._wake_key

    async def _open(self) -> None:
        self._lane_ids.clear()
        self._parked.clear()
        give_up = asyncio.get_running_loop().time() + self._patience
        try:
            while True:
                try:
                    return await self._server.open(_ASIDE)
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
        server = self._server
        if not isinstance(server, Cluster):
            # The same as node_of(), without a call.
            return _WRITES if type(operation) is Apply else _REST, hash(operation.address) & 1
        tag = tag_of(operation.address)
        node: Hashable = server.owners[tag]
        # Claims share the lane and so the round trips of writes. With "wait" they would wait for replicas, and reads of
        # parts may be large.
        kind = type(operation)
        if kind is not Apply and (self._wait or (kind is Get and operation.parts)):  # type: ignore[union-attr]
            if self._parked and tag in self._parked:
                if not self._lanes[_REST, tag].idle:
                    return _REST, tag
                self._parked.discard(tag)
            return _REST, node
        before = self._write_nodes[tag]
        if node != before:
            # Writes to one address keep their order, so they stay in their lane until it has sent what it is sending.
            lane = self._lanes.get((_WRITES, before))
            if lane is not None and not lane.idle:
                lane.before_next = self._hand_over
                return _WRITES, before
            self._write_nodes[tag] = node
        return _WRITES, node

    def _new_lane(self, name: Hashable, run: Callable[[Batch], Awaitable[list[Result]]]) -> Lane:
        if not self._server.spread:
            return super()._new_lane(name, run)
        kind, node = cast("tuple[str, Hashable]", name)
        own = isinstance(node, int)
        lane = self._lanes[name] = Lane(
            self._run_parked if own else run,
            ids=lambda: self._lane_ids.setdefault(kind, self.ids()),
            patience=self._patience,
            numbers=self._numbers,
            park=None if own or kind == _CONFIRM else partial(self._park, kind),
        )
        return lane

    def _park(
        self,
        kind: str,
        lane: Lane,
        batch: Batch,
        deadline: float,
        unsettled: list[tuple[Entry, StorageUnavailable]],
    ) -> None:
        """Retry the operations of hash tags that were refused or not answered, without delaying the rest of a lane.

        Each such tag gets its own lane. Its later operations follow there until that lane is idle.
        """
        groups: dict[int, list[tuple[Entry, StorageUnavailable]]] = {}
        for entry, error in unsettled:
            groups.setdefault(tag_of(entry[0].address), []).append((entry, error))
        for tag, group in groups.items():
            entries = [entry for entry, _ in group]
            if kind == _WRITES:
                self._write_nodes[tag] = tag
            else:
                self._parked.add(tag)
            own = self._lanes.get((kind, tag)) or self._new_lane((kind, tag), self.run)
            part = Batch.of([operation for operation, _ in entries], batch.lane, batch.number)
            own.adopt(Remainder(entries, part, deadline, any(error.sent for _, error in group)))
            own.push(lane.pull(partial(_has_tag, tag)))

    async def _run_parked(self, batch: Batch) -> list[Result]:
        """Run the batch of one hash tag, which succeeds or fails as a whole."""
        return _whole(await self.run(batch))

    def _hand_over(self, lane: Lane) -> None:
        """Pass on the queued writes of a lane to the lanes of the nodes that have their hash tags now."""
        for entry in lane.pull(lambda _: True):
            tag = tag_of(entry[0].address)
            node = self._write_nodes[tag] = self._server.node_of(entry[0].address)
            (self._lanes.get((_WRITES, node)) or self._new_lane((_WRITES, node), self.run)).push([entry])

    async def confirm(self, claim: Claim) -> None:
        if not self._wait:
            return
        if self._loop is not asyncio.get_running_loop():
            raise StorageClosed
        # After a failover, a server that still has the claim also has all earlier writes. Renewing the claim checks
        # this, and is a write that WAIT can wait for.
        name = _CONFIRM, self._server.node_of(claim.address)
        lane = self._lanes.get(name) or self._new_lane(name, self._run_confirm)
        await lane.submit(claim._replace(renew=True))

    async def _run_confirm(self, batch: Batch) -> list[Result]:
        return _whole(await self._make(batch, batch.lane, wait=self._wait))

    def run(self, operations: Sequence[Operation]) -> Coroutine[Any, Any, list[Result]]:
        kinds = {*map(type, operations)}
        wait = self._wait if Apply in kinds else 0
        if not isinstance(operations, Batch):
            return self._make(operations, _ASIDE, wait=wait)
        fence = 0
        if not kinds <= {Apply, Get}:
            self._sent += 1
            fence = self._sent
        return self._make(operations, operations.lane, operations.number, wait=wait, fence=fence)

    async def _make(
        self, operations: Sequence[Operation], lane: str, number: int = 0, *, wait: int = 0, fence: int = 0
    ) -> list[Result]:
        """Run a batch over the connection of a lane.

        With a number the journal of the lane is used for writes, with a ``fence`` its fence for other operations.
        """
        groups = self._grouped(operations, split=bool(fence))
        uses = []
        fences: set[tuple[str, int]] = set()
        for writes, tag, _ in groups:
            if writes or not fence:
                uses.append(_JOURNAL)
            else:
                fences.add((lane, tag))
                uses.append(_RAISE if (lane, tag) in self._unsure else _CHECK)
        try:
            joined = None
            if len(groups) > 1:
                joined = await self._join(operations, groups, uses, lane, number=number, fence=fence, wait=wait)
            if joined is not None:
                found = joined_results(operations, groups, joined)
                if found is not None:
                    self._unsure -= fences
                    return found
                answers: Sequence[Answer | StorageUnavailable] = separate_answers(groups, joined)
            else:
                requests = []
                for (writes, tag, indexes), use in zip(groups, uses, strict=True):
                    its_number = number if writes else fence
                    requests.append(self._batch(tag, operations, indexes, lane=lane, number=its_number, use=use))
                answers = await self._send(lane, requests, wait)
        except BaseException:
            self._unsure |= fences
            raise
        self._unsure -= fences
        results: list[Result] = [None] * len(operations)
        for (writes, tag, indexes), answer in zip(groups, answers, strict=True):
            try:
                if type(answer) is not tuple:
                    raise cast("StorageUnavailable", answer)
                reply, replicated = answer
                now = float(reply[0])
                for n, one in zip(indexes, reply[1:], strict=True):
                    outcome = result(operations[n], one, now)
                    if not replicated and type(outcome) in (Applied, Claimed):
                        outcome = NotReplicated(operations[n].address.text)
                    results[n] = outcome
            except StorageUnavailable as error:
                if answer is not error:
                    await self._server.lost(lane)
                if len(groups) == 1:
                    raise
                # The other calls have their own results.
                if not writes and fence:
                    self._unsure.add((lane, tag))
                for n in indexes:
                    results[n] = StorageUnavailable(str(error), sent=error.sent, final=error.final)
        return results

    async def _join(
        self,
        operations: Sequence[Operation],
        groups: Collection[Group],
        uses: Sequence[str],
        lane: str,
        *,
        number: int,
        fence: int,
        wait: int,
    ) -> Answer | None:
        """Return the answer to one call for all groups, or ``None`` if this call is not possible."""
        assert isinstance(self._server, Cluster)
        node = self._server.node_of_all(groups)
        if node is None:
            return None
        basics = "EVALSHA", _BATCH.sha, "0", self._now(), self._keys.width, lane, str(number), str(fence)
        row = joined_arguments(operations, groups, uses, self._keys.record)
        answer = await self._server.call_node(lane, node, (*basics, *row), wait)
        # A refused call was not run. The node may not have the script yet, or is not ready: separate calls handle this.
        return None if type(answer[0]) is Refused else answer

    def _grouped(self, operations: Sequence[Operation], *, split: bool) -> Collection[Group]:
        """Return the calls of a batch: whether it is for writes, its hash tag, and the indexes of its operations.

        ``split``: writes and other operations of a hash tag, which are from different tasks, have different calls.
        """
        if not self._server.spread:
            return [(Apply in {*map(type, operations)}, 0, range(len(operations)))]
        groups: dict[int, tuple[bool, int, list[int]]] = {}
        for n, operation in enumerate(operations):
            tag = tag_of(operation.address)
            writes = not split or type(operation) is Apply
            found = groups.get(tag if writes else ~tag)
            if found is None:
                groups[tag if writes else ~tag] = writes, tag, [n]
            else:
                found[2].append(n)
        return groups.values()

    def _batch(
        self, tag: int, operations: Sequence[Operation], indexes: Sequence[int], *, lane: str, number: int, use: str
    ) -> Request:
        keys = self._keys
        prefix = keys.prefixes[tag]
        journal = f"{prefix}j:{lane}" if use is _JOURNAL else f"{prefix}j:{lane}-"
        now = "" if self.clock is None else self._now()
        if len(indexes) == 1:
            # Usual in a Cluster.
            operation = operations[indexes[0]]
            names, row = [keys.record(operation.address)], [*arguments(operation)]
        else:
            names, row = [], []
            for n in indexes:
                names.append(keys.record(operations[n].address))
                row += arguments(operations[n])
        count = str(len(names) + 2)
        command = "EVALSHA", _BATCH.sha, count, f"{prefix}-", journal, *names, now, keys.width, str(number), use, *row
        # Without a call of the constructor, which is a Python function.
        return tuple.__new__(Request, (tag, _BATCH, command))

    def _now(self) -> str:
        return "" if self.clock is None else repr(float(self.clock()))

    # Listing, deadlines, sweeping: each hash tag has its own indexes, so one round trip queries all 64.

    async def page(self, query: Query, after: Any, limit: int) -> Page:
        first, last = (0, None) if after is None else after
        space = space_of(query.namespace)
        wanted = (_filter(query.flow), _filter(query.state), space, begins(query.tag))

        async def ask(tags: Sequence[int], most: Sequence[int]) -> list[list[Any]]:
            lows = [f"({last}" if tag == first and last is not None else "-" for tag in tags]
            return await self._ask(
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

    def position(self, address: Address) -> Any:
        return tag_of(address), address.key

    async def beside(self, address: Address) -> Beside:
        if self._loop is not asyncio.get_running_loop():
            await self.ensure_open()
        record, tag = self._keys.record(address), tag_of(address)
        keys = [record.replace("}:r:", f"}}:{kind}:", 1) for kind in "lm"]
        requests = [Request(tag, _BATCH, command) for command in (*[("GET", key) for key in keys], ("TIME",))]
        *kept, time = [reply for reply, _ in await self._server.call(_ASIDE, requests)]
        now = int(time[0]) + int(time[1]) / 1e6 if self.clock is None else self.clock()
        # Both are "<until> <text>".
        (lease_until, _, holder), (memo_until, _, memo) = [
            (each if isinstance(each, str) else "0").partition(" ") for each in kept
        ]
        remaining = float(lease_until) - now
        is_held, is_remembered = remaining > 0, float(memo_until) > now
        return Beside(holder if is_held else None, remaining if is_held else 0.0, memo if is_remembered else None)

    async def namespaces(self) -> list[str]:
        indexes = [(number, self._keys.namespaces(number)) for number in range(TAGS)]
        found = await self._ask(_NAMESPACES, indexes, [()] * TAGS)
        return sorted({decode_space(space) for spaces in found for space in spaces})

    async def traces(self, namespace: str, tag: str, *, limit: int = 500) -> list[Address]:
        space = space_of(namespace)
        indexes = [(number, self._keys.listing(number, space, tag)) for number in range(TAGS)]
        found = await self._ask(_TRACES, indexes, [(str(limit), space, begins(tag))] * TAGS)
        return sorted(Address(namespace, key) for keys in found for key in keys)[:limit]

    async def due(
        self,
        namespace: str,
        *,
        before: float | None = None,
        limit: int = 100,
        after: Due | None = None,
        flow: str | Any_ | None = ANY,
    ) -> list[Due]:
        space, keys = space_of(namespace), self._keys
        latest = "" if before is None else repr(float(before))
        last = ("", "") if after is None else (repr(after.deadline), after.address.key)
        if isinstance(flow, Any_):
            indexes = [(tag, keys.deadlines(tag, space)) for tag in range(TAGS)]
        else:
            indexes = [(tag, keys.flow_deadlines(tag, space, flow)) for tag in range(TAGS)]

        async def ask(indexes: Sequence[tuple[int, str]], most: int) -> list[list[tuple[float, str]]]:
            replies = await self._ask_same(_DUE, indexes, (latest, str(most), space, *last))
            return [list(zip(map(float, reply[1::2]), reply[::2], strict=True)) for reply in replies]

        found = await _first_of(ask, indexes, limit)
        return [Due(Address(namespace, key), deadline) for deadline, key in found]

    async def queued(self, namespace: str, name: str, *, limit: int = 100) -> list[Address]:
        space = space_of(namespace)

        async def ask(indexes: Sequence[tuple[int, str]], most: int) -> list[list[str]]:
            return await self._ask_same(_QUEUED, indexes, (name, str(most), space))

        entries = await _first_of(ask, [(tag, self._keys.queues(tag, space)) for tag in range(TAGS)], limit)
        return [Address(namespace, key_of(entry)) for entry in entries]

    async def queues(self, namespace: str, *, prefix: str = "", after: str = "", limit: int = 100) -> list[str]:
        space = space_of(namespace)
        first = max(prefix, f"{after}{END}") if after else prefix

        async def ask(indexes: Sequence[tuple[int, str]], most: int) -> list[list[str]]:
            return await self._ask_same(_QUEUES, indexes, (first, prefix, str(most), space))

        return await _first_of(ask, [(tag, self._keys.queues(tag, space)) for tag in range(TAGS)], limit)

    async def sweep(self, limit: int = 1000) -> Swept:
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

    async def settings(self) -> dict[str, Any]:
        if self._loop is not asyncio.get_running_loop():
            await self.ensure_open()
        leases = await self._leases()
        sentinels = await self._server.sentinels() if isinstance(self._server, SentinelServer) else {}
        nodes = {}
        # Last, because the check of the clock compares its time with the time of this machine after the call.
        for location, (facts, now) in (await self._server.info(_ASIDE)).items():
            lines = facts.splitlines() if isinstance(facts, str) else []
            node: dict[str, Any] = dict(line.split(":", 1) for line in lines if ":" in line)
            if isinstance(now, list):
                node["now"] = int(now[0]) + int(now[1]) / 1e6
            nodes[location] = node
        return {
            "backend": "redis",
            "longest_lease": self._longest(leases, [node["now"] for node in nodes.values() if "now" in node]),
            "cluster": self._server.spread,
            "durability": "wait" if self._wait else "fast",
            "wait_for": self._wait_for,
            "nodes": nodes,
            "patience": self._patience,
            "sentinels": sentinels,
        }

    async def _leases(self) -> dict[str, str] | None:
        """Return the leases among about ``_SCANNED`` keys of each server."""
        pattern = re.sub(r"([][*?\\])", r"\\\1", self._keys.prefix) + ":{*}:l:*"
        return await self._server.values_of(_ASIDE, pattern, _SCANNED)

    def _longest(self, leases: dict[str, str] | None, times: list[float]) -> dict[str, Any] | None:
        """Return the lease that ends last."""
        if not leases or (self.clock is None and not times):
            return None
        until, key = max((float(text.partition(" ")[0]), key) for key, text in leases.items())
        remaining = until - (times[0] if self.clock is None else self.clock())
        return {"seconds": remaining, **decode_address(key.partition("}:l:")[2])._asdict()} if remaining > 0 else None

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
        if self._loop is not asyncio.get_running_loop():
            await self.ensure_open()
        requests = self._requests(script, indexes, rows)
        read = self._server.read if may_lag and self._reads_replicas else self._server.call
        return [reply for reply, _ in await read(_ASIDE, requests)]

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
        if self._loop is not asyncio.get_running_loop():
            await self.ensure_open()
        if isinstance(self._server, Cluster):
            rows = [row] * len(indexes)
            answers, problem = await self._server.call_living(_ASIDE, self._requests(script, indexes, rows))
            if problem is None:
                self._lost_nodes.worked()
            else:
                self._lost_nodes.failed(problem)
            return [[] if answer is None else answer[0][0] for answer in answers]
        names = [f"{self._keys.prefixes[0]}-", *(index for _, index in indexes)]
        command = ("EVALSHA", script.sha, str(len(names)), *names, self._now(), self._keys.width, *row)
        ((reply, _),) = await self._server.call(_ASIDE, [Request(0, script, command)])
        return cast("list[list[Any]]", reply)


def _has_tag(tag: int, operation: Operation) -> bool:
    return tag_of(operation.address) == tag


def _whole(results: list[Result]) -> list[Result]:
    """Return the results of a batch that is retried as a whole, or raise the error of an operation without a result."""
    for outcome in results:
        if isinstance(outcome, StorageUnavailable):
            raise outcome
    return results


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
