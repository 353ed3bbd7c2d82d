"""Script calls to a Redis Cluster: each to the node that has its hash tag, to all nodes concurrently."""

from __future__ import annotations

import asyncio
from binascii import crc_hqx
from collections.abc import Hashable, Sequence
from typing import Any, Final, NamedTuple

from stepwell.errors import StorageUnavailable
from stepwell.record import Address
from stepwell.storage.redis.client import RedisConnection, Refused, Reply, ServerConfig
from stepwell.storage.redis.server import Answer, Request, ask, info, publish, refused, values_of
from stepwell.storage.redis.wire import TAGS, tag_of

__all__ = ["Cluster"]

#: The slot of each hash tag, computed as the Cluster does.
_SLOTS: Final = [crc_hqx(f"{tag:02}".encode(), 0) % 16384 for tag in range(TAGS)]
#: How often one call is redirected before its lane retries it.
_REDIRECTIONS: Final = 5


class ClusterNode(NamedTuple):
    """The address of a server of the Cluster."""

    host: str
    port: int


class Cluster:
    """Keeps a map from hash tags to nodes, and updates it when slots move."""

    spread = True

    def __init__(self, configs: Sequence[ServerConfig], timeout: float) -> None:
        self._configs = configs
        self._timeout = timeout
        self._owners: list[ClusterNode | None] = [None] * TAGS
        self._replicas: list[list[ClusterNode]] = [[]] * TAGS
        #: All nodes, replicas included, in the order in which to query them for the map of slots.
        self._known: list[ClusterNode] = []
        self._connections: dict[tuple[Hashable, ClusterNode], RedisConnection] = {}
        self._loading = asyncio.Lock()
        #: How often the map was loaded.
        self._loads = 0
        #: How many connections for messages were made.
        self._subscribers = 0

    @property
    def location(self) -> str:
        """The nodes of the URL, without credentials."""
        return ",".join(config.location for config in self._configs)

    def node_of(self, address: Address) -> Hashable:
        """Return the node that has an address. Addresses of one node share their lanes."""
        return self._owners[tag_of(address)]

    async def open(self, lane: Hashable) -> None:
        """Load the map of slots."""
        await self._load_slots()

    async def call(self, lane: Hashable, requests: Sequence[Request], wait: int = 0) -> list[Answer]:
        """Send these calls over the lane's connections, and follow redirections.

        Raises ``StorageUnavailable`` with ``sent=True`` if some of them may have been applied.
        """
        if any(self._owners[request.tag] is None for request in requests):
            await self._load_slots()
        answers: dict[int, Answer] = {}
        pending = [(n, self._owner(request.tag), False) for n, request in enumerate(requests)]
        for _ in range(_REDIRECTIONS):
            groups: dict[tuple[ClusterNode, bool], list[int]] = {}
            for n, node, asking in pending:
                groups.setdefault((node, asking), []).append(n)
            outcomes = await self._exchange(lane, groups, requests, wait)
            pending = []
            for (node, _), indexes, outcome in zip(groups, groups.values(), outcomes, strict=True):
                if isinstance(outcome, StorageUnavailable):
                    await self._reload_slots()
                    outcome.sent = outcome.sent or bool(answers) or len(outcomes) > 1
                    raise outcome
                for n, answer in zip(indexes, outcome, strict=True):
                    reply, _ = answer
                    if not isinstance(reply, Refused):
                        answers[n] = answer
                    elif reply.code in ("MOVED", "ASK"):
                        target = _target(reply, node)
                        if reply.code == "MOVED":
                            self._owners[requests[n].tag] = target
                        pending.append((n, target, reply.code == "ASK"))
                    else:
                        error = refused(reply, f"{node.host}:{node.port}")
                        if isinstance(error, StorageUnavailable):
                            error.sent = len(requests) > 1
                            if reply.code != "TRYAGAIN":
                                await self._reload_slots()
                        raise error
            if not pending:
                return [answers[n] for n in range(len(requests))]
        raise StorageUnavailable(
            f"the Redis Cluster at {self.location} redirects a call from node to node", sent=bool(answers)
        )

    async def read(self, lane: Hashable, requests: Sequence[Request]) -> list[Answer]:
        """Send calls that write nothing to replicas, and to the masters those that no replica answers."""
        groups: dict[ClusterNode, list[int]] = {}
        for n, request in enumerate(requests):
            replicas = self._replicas[request.tag]
            if replicas:
                groups.setdefault(replicas[0], []).append(n)
        found: dict[int, Answer] = {}

        async def one(node: ClusterNode, indexes: list[int]) -> None:
            try:
                # Without this command, a replica redirects to its master.
                answers = await ask(self._connection(lane, node), [requests[n] for n in indexes], 0, ("READONLY",))
            except StorageUnavailable:
                # Do not wait for it again before the map of slots is loaded again.
                self._replicas = [[each for each in nodes if each != node] for nodes in self._replicas]
                return
            found.update((n, each) for n, each in zip(indexes, answers, strict=True) if type(each[0]) is not Refused)

        await asyncio.gather(*(one(node, indexes) for node, indexes in groups.items()))
        missing = [n for n in range(len(requests)) if n not in found]
        if missing:
            found.update(zip(missing, await self.call(lane, [requests[n] for n in missing]), strict=True))
        return [found[n] for n in range(len(requests))]

    async def info(self, lane: Hashable) -> dict[str, tuple[Reply, Reply]]:
        """Return the replies of all masters to ``INFO`` and ``TIME`` by their location."""
        return {f"{node.host}:{node.port}": await info(self._connection(lane, node)) for node in self._masters()}

    async def values_of(self, lane: Hashable, pattern: str, most: int) -> dict[str, str] | None:
        """Return the keys of all masters that match a pattern, and their texts; see ``server.values_of``."""
        found: dict[str, str] = {}
        for node in self._masters():
            values = await values_of(self._connection(lane, node), pattern, most)
            if values is None:
                return None
            found |= values
        return found

    def _masters(self) -> list[ClusterNode]:
        return sorted({node for node in self._owners if node is not None})

    async def publish(self, lane: Hashable, channel: str, text: str) -> None:
        """Send a text to all connections that have subscribed to a channel, on all nodes."""
        nodes = dict.fromkeys(node for node in self._owners if node is not None)
        problem = StorageUnavailable(f"no node of the Redis Cluster at {self.location} is known", sent=False)
        for node in nodes:
            try:
                return await publish(self._connection(lane, node), channel, text)
            except StorageUnavailable as error:
                problem = error
                if error.final:
                    break
        raise problem

    def subscriber(self) -> RedisConnection:
        """Return a new connection for messages, each time to another node. The caller closes it."""
        known = self._known or [ClusterNode(*config.address) for config in self._configs]
        self._subscribers += 1
        node = known[self._subscribers % len(known)]
        return RedisConnection(self._configs[0].with_address(*node).for_messages(), self._timeout)

    async def lost(self, lane: Hashable) -> None:
        """Reload the map of slots after a node was lost or replaced."""
        await self._reload_slots()

    async def close(self) -> None:
        """Close all connections."""
        # The next use may be in another event loop.
        self._loading = asyncio.Lock()
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            await connection.close(wait=True)

    async def _exchange(
        self, lane: Hashable, groups: dict[tuple[ClusterNode, bool], list[int]], requests: Sequence[Request], wait: int
    ) -> list[list[Answer] | StorageUnavailable]:
        async def one(node: ClusterNode, asking: bool, indexes: list[int]) -> list[Answer] | StorageUnavailable:
            before = ("ASKING",) if asking else None
            try:
                return await ask(self._connection(lane, node), [requests[n] for n in indexes], wait, before)
            except StorageUnavailable as error:
                return error

        calls = [one(node, asking, indexes) for (node, asking), indexes in groups.items()]
        # A lane usually has one node. A task for a single call would cost more than the call.
        return [await calls[0]] if len(calls) == 1 else await asyncio.gather(*calls)

    def _owner(self, tag: int) -> ClusterNode:
        node = self._owners[tag]
        if node is None:
            raise StorageUnavailable(
                f"no node of the Redis Cluster at {self.location} has slot {_SLOTS[tag]}", sent=False
            )
        return node

    def _connection(self, lane: Hashable, node: ClusterNode) -> RedisConnection:
        connection = self._connections.get((lane, node))
        if connection is None:
            connection = self._connections[lane, node] = RedisConnection(
                self._configs[0].with_address(*node), self._timeout
            )
        return connection

    async def _reload_slots(self) -> None:
        try:
            await self._load_slots()
        except StorageUnavailable:
            # The caller already has an error to raise, and its lane retries.
            return

    async def _load_slots(self) -> None:
        """Load the map of slots from the first node that answers."""
        loads = self._loads
        async with self._loading:
            if self._loads != loads:
                # Another task loaded it meanwhile.
                return
            seeds = [
                ClusterNode(str(config.arguments.get("host")), int(config.arguments.get("port", 6379)))
                for config in self._configs
            ]
            problem: StorageUnavailable | None = None
            for node in dict.fromkeys([*self._known, *seeds]):
                connection = RedisConnection(self._configs[0].with_address(*node), min(self._timeout, 1.0))
                try:
                    (ranges,) = await connection.exchange([("CLUSTER", "SLOTS")])
                except StorageUnavailable as error:
                    problem = error
                    if error.final:
                        break
                    continue
                finally:
                    await connection.close()
                if isinstance(ranges, Refused):
                    problem = StorageUnavailable(
                        f"Redis at {node.host}:{node.port} is not part of a Cluster ({ranges.message}); "
                        "use redis:// for a single server",
                        sent=False,
                        final=ranges.code == "ERR",
                    )
                    continue
                self._set_slots(ranges, node)
                return
            assert problem is not None
            problem.sent = False
            raise problem

    def _set_slots(self, ranges: list[Any], source: ClusterNode) -> None:
        owners: list[ClusterNode | None] = [None] * TAGS
        replicas: list[list[ClusterNode]] = [[]] * TAGS
        known: dict[ClusterNode, None] = {}
        for first, last, *servers in ranges:
            nodes = [ClusterNode(server[0] or source.host, int(server[1])) for server in servers]
            known.update(dict.fromkeys(nodes))
            for tag, slot in enumerate(_SLOTS):
                if first <= slot <= last:
                    owners[tag], replicas[tag] = nodes[0], nodes[1:]
        known.pop(source, None)
        self._owners, self._replicas, self._known = owners, replicas, [*known, source]
        self._loads += 1


def _target(reply: Refused, source: ClusterNode) -> ClusterNode:
    host, _, port = reply.message.split()[-1].rpartition(":")
    return ClusterNode(host or source.host, int(port))
