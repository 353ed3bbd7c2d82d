"""Script calls to a Redis Cluster: each to the node that has its hash tag, all nodes at the same time."""

from __future__ import annotations

import asyncio
from binascii import crc_hqx
from collections.abc import Hashable, Sequence
from typing import Any, Final, NamedTuple

from stepwell.errors import StorageUnavailable
from stepwell.storage.redis.client import RedisConnection, Refused, ServerConfig
from stepwell.storage.redis.server import Answer, Request, ask, refused
from stepwell.storage.redis.wire import TAGS

__all__ = ["Cluster"]

#: The slot of each hash tag, by the Cluster's own checksum.
_SLOTS: Final = [crc_hqx(f"{tag:02}".encode(), 0) % 16384 for tag in range(TAGS)]
#: How often one call may be sent elsewhere before it is given back to its lane.
_REDIRECTIONS: Final = 5


class ClusterNode(NamedTuple):
    """A server of the Cluster."""

    host: str
    port: int


class Cluster:
    """Knows which node has which hash tag, and follows when that changes."""

    spread = True

    def __init__(self, configs: Sequence[ServerConfig], timeout: float) -> None:
        self._configs = configs
        self._timeout = timeout
        self._owners: list[ClusterNode | None] = [None] * TAGS
        #: Who may be asked for the map, replicas too; the last that answered is the last to be asked again.
        self._known: list[ClusterNode] = []
        self._connections: dict[tuple[Hashable, ClusterNode], RedisConnection] = {}
        self._learning = asyncio.Lock()
        self._learned = 0

    @property
    def place(self) -> str:
        """Where it was first looked for, as it may be shown."""
        return ",".join(config.place for config in self._configs)

    def node_of(self, tag: int) -> Hashable:
        """What the keys of a hash tag share their lanes with."""
        return self._owners[tag]

    async def open(self, lane: Hashable) -> None:
        """Find out which node has what."""
        await self._learn()

    async def call(self, lane: Hashable, requests: Sequence[Request], wait: int = 0) -> list[Answer]:
        """Make these calls over the lane's connections, redirected as often as need be.

        Raises ``StorageUnavailable`` with ``sent`` if some of them may be made.
        """
        if any(self._owners[request.tag] is None for request in requests):
            await self._learn()
        answers: dict[int, Answer] = {}
        open_calls = [(n, self._owner(request.tag), False) for n, request in enumerate(requests)]
        for _ in range(_REDIRECTIONS):
            groups: dict[tuple[ClusterNode, bool], list[int]] = {}
            for n, node, asking in open_calls:
                groups.setdefault((node, asking), []).append(n)
            outcomes = await self._exchange(lane, groups, requests, wait)
            open_calls = []
            for (node, _), places, outcome in zip(groups, groups.values(), outcomes, strict=True):
                if isinstance(outcome, StorageUnavailable):
                    await self._relearn()
                    outcome.sent = outcome.sent or bool(answers) or len(outcomes) > 1
                    raise outcome
                for n, answer in zip(places, outcome, strict=True):
                    reply = answer.reply
                    if not isinstance(reply, Refused):
                        answers[n] = answer
                    elif reply.code in ("MOVED", "ASK"):
                        target = _target(reply, node)
                        if reply.code == "MOVED":
                            self._owners[requests[n].tag] = target
                        open_calls.append((n, target, reply.code == "ASK"))
                    else:
                        error = refused(reply, f"{node.host}:{node.port}")
                        if isinstance(error, StorageUnavailable):
                            error.sent = len(requests) > 1
                            if reply.code != "TRYAGAIN":
                                await self._relearn()
                        raise error
            if not open_calls:
                return [answers[n] for n in range(len(requests))]
        raise StorageUnavailable(f"Redis Cluster at {self.place} sends a call from node to node", sent=bool(answers))

    async def lost(self, lane: Hashable) -> None:
        """A node is not what it was: look who has its slots now."""
        await self._relearn()

    async def close(self) -> None:
        """Close all connections."""
        # The next use may be from another loop.
        self._learning = asyncio.Lock()
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            await connection.close(wait=True)

    async def _exchange(
        self, lane: Hashable, groups: dict[tuple[ClusterNode, bool], list[int]], requests: Sequence[Request], wait: int
    ) -> list[list[Answer] | StorageUnavailable]:
        async def one(node: ClusterNode, asking: bool, places: list[int]) -> list[Answer] | StorageUnavailable:
            before = ("ASKING",) if asking else None
            try:
                return await ask(self._connection(lane, node), [requests[n] for n in places], wait, before)
            except StorageUnavailable as error:
                return error

        calls = [one(node, asking, places) for (node, asking), places in groups.items()]
        # Usually a lane's node is the only one: a task for it would cost more than the call.
        return [await calls[0]] if len(calls) == 1 else await asyncio.gather(*calls)

    def _owner(self, tag: int) -> ClusterNode:
        node = self._owners[tag]
        if node is None:
            raise StorageUnavailable(f"no node of the Redis Cluster at {self.place} has slot {_SLOTS[tag]}", sent=False)
        return node

    def _connection(self, lane: Hashable, node: ClusterNode) -> RedisConnection:
        connection = self._connections.get((lane, node))
        if connection is None:
            connection = self._connections[lane, node] = RedisConnection(self._configs[0].at(*node), self._timeout)
        return connection

    async def _relearn(self) -> None:
        try:
            await self._learn()
        except StorageUnavailable:
            # The caller has an error to raise already, and its lane tries again.
            return

    async def _learn(self) -> None:
        """Ask one node after the other which node has which slots, until one answers."""
        learned = self._learned
        async with self._learning:
            if self._learned != learned:
                # Somebody else did while we waited.
                return
            seeds = [
                ClusterNode(str(config.arguments.get("host")), int(config.arguments.get("port", 6379)))
                for config in self._configs
            ]
            problem: StorageUnavailable | None = None
            for node in dict.fromkeys([*self._known, *seeds]):
                connection = RedisConnection(self._configs[0].at(*node), min(self._timeout, 1.0))
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
                        f"Redis at {node.host}:{node.port} does not tell of a Cluster ({ranges.message}); "
                        "use redis:// for a single server",
                        sent=False,
                        final=ranges.code == "ERR",
                    )
                    continue
                self._note(ranges, node)
                return
            assert problem is not None
            problem.sent = False
            raise problem

    def _note(self, ranges: list[Any], told_by: ClusterNode) -> None:
        owners: list[ClusterNode | None] = [None] * TAGS
        known: dict[ClusterNode, None] = {}
        for first, last, *servers in ranges:
            nodes = [ClusterNode(server[0] or told_by.host, int(server[1])) for server in servers]
            known.update(dict.fromkeys(nodes))
            for tag, slot in enumerate(_SLOTS):
                if first <= slot <= last:
                    owners[tag] = nodes[0]
        known.pop(told_by, None)
        self._owners, self._known = owners, [*known, told_by]
        self._learned += 1


def _target(reply: Refused, told_by: ClusterNode) -> ClusterNode:
    host, _, port = reply.message.split()[-1].rpartition(":")
    return ClusterNode(host or told_by.host, int(port))
