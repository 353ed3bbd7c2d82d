"""Script calls to a Redis Cluster: each to the node that has its hash tag, all nodes at the same time."""

from __future__ import annotations

import asyncio
from binascii import crc_hqx
from collections.abc import Hashable, Sequence
from typing import Any, Final, NamedTuple

from stepwell.errors import StorageUnavailable
from stepwell.storage.redis.client import Door, Link, Refused
from stepwell.storage.redis.server import Answer, Request, ask, refused
from stepwell.storage.redis.wire import TAGS

__all__ = ["Cluster"]

#: The slot of each hash tag, by the Cluster's own checksum.
_SLOTS: Final = [crc_hqx(f"{tag:02}".encode(), 0) % 16384 for tag in range(TAGS)]
#: How often one call may be sent elsewhere before it is given back to its lane.
_REDIRECTIONS: Final = 5


class Node(NamedTuple):
    """A server of the Cluster."""

    host: str
    port: int


class Cluster:
    """Knows which node has which hash tag, and follows when that changes."""

    spread = True

    def __init__(self, doors: Sequence[Door], timeout: float) -> None:
        self._doors = doors
        self._timeout = timeout
        self._owners: list[Node | None] = [None] * TAGS
        #: Who may be asked for the map, replicas too; the last that answered is the last to be asked again.
        self._known: list[Node] = []
        self._links: dict[tuple[Hashable, Node], Link] = {}
        self._learning = asyncio.Lock()
        self._learned = 0

    @property
    def place(self) -> str:
        """Where it was first looked for, as it may be shown."""
        return ",".join(door.place for door in self._doors)

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
            groups: dict[tuple[Node, bool], list[int]] = {}
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
        links, self._links = self._links, {}
        for link in links.values():
            await link.close(wait=True)

    async def _exchange(
        self, lane: Hashable, groups: dict[tuple[Node, bool], list[int]], requests: Sequence[Request], wait: int
    ) -> list[list[Answer] | StorageUnavailable]:
        async def one(node: Node, asking: bool, places: list[int]) -> list[Answer] | StorageUnavailable:
            before = ("ASKING",) if asking else None
            try:
                return await ask(self._link(lane, node), [requests[n] for n in places], wait, before)
            except StorageUnavailable as error:
                return error

        calls = [one(node, asking, places) for (node, asking), places in groups.items()]
        # Usually a lane's node is the only one: a task for it would cost more than the call.
        return [await calls[0]] if len(calls) == 1 else await asyncio.gather(*calls)

    def _owner(self, tag: int) -> Node:
        node = self._owners[tag]
        if node is None:
            raise StorageUnavailable(f"no node of the Redis Cluster at {self.place} has slot {_SLOTS[tag]}", sent=False)
        return node

    def _link(self, lane: Hashable, node: Node) -> Link:
        link = self._links.get((lane, node))
        if link is None:
            link = self._links[lane, node] = Link(self._doors[0].at(*node), self._timeout)
        return link

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
                Node(str(door.arguments.get("host")), int(door.arguments.get("port", 6379))) for door in self._doors
            ]
            problem: StorageUnavailable | None = None
            for node in dict.fromkeys([*self._known, *seeds]):
                link = Link(self._doors[0].at(*node), min(self._timeout, 1.0))
                try:
                    (ranges,) = await link.exchange([("CLUSTER", "SLOTS")])
                except StorageUnavailable as error:
                    problem = error
                    if error.final:
                        break
                    continue
                finally:
                    await link.close()
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

    def _note(self, ranges: list[Any], told_by: Node) -> None:
        owners: list[Node | None] = [None] * TAGS
        known: dict[Node, None] = {}
        for first, last, *servers in ranges:
            nodes = [Node(server[0] or told_by.host, int(server[1])) for server in servers]
            known.update(dict.fromkeys(nodes))
            for tag, slot in enumerate(_SLOTS):
                if first <= slot <= last:
                    owners[tag] = nodes[0]
        known.pop(told_by, None)
        self._owners, self._known = owners, [*known, told_by]
        self._learned += 1


def _target(reply: Refused, told_by: Node) -> Node:
    host, _, port = reply.message.split()[-1].rpartition(":")
    return Node(host or told_by.host, int(port))
