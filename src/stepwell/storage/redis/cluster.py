"""Script calls to a Redis Cluster: each to the node that has its hash tag, to all nodes concurrently."""

from __future__ import annotations

import asyncio
from binascii import crc_hqx
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, cast

from stepwell.errors import StorageError, StorageUnavailable
from stepwell.record import Address
from stepwell.storage.redis.client import Command, RedisConnection, Refused, Reply, ServerConfig
from stepwell.storage.redis.joined import Group
from stepwell.storage.redis.server import Answer, Request, ask, info, publish, refused, values_of
from stepwell.storage.redis.wire import TAGS, tag_of

__all__ = ["Cluster"]

#: The slot of each hash tag, computed as the Cluster does.
_SLOTS: Final = [crc_hqx(f"{tag:02}".encode(), 0) % 16384 for tag in range(TAGS)]
#: Seconds between two loads of the map that look for replicas.
_REPLICAS_EVERY: Final = 5.0
#: How often one call is redirected before its lane retries it.
_REDIRECTIONS: Final = 5
#: Seconds without an answer after which the map of slots is loaded again, to find out whether the node was replaced.
_SLOW: Final = 0.5
#: Seconds after a failed call in which other nodes are asked first for the map of slots.
_DOUBTFUL: Final = 5.0
#: The name of the connections to replicas, instead of a lane.
_READS: Final = "reads"


class ClusterNode(NamedTuple):
    """A server of the Cluster, or one half of the hash tags of its only master.

    Each half has its own lanes and connections, so that the server works on one while this process works on the other.
    """

    host: str
    port: int
    #: 0 or 1 for the halves of an only master, else 0.
    half: int = 0

    @property
    def server(self) -> ClusterNode:
        """The server of a half."""
        return self._replace(half=0)


class SlotMoves(StorageUnavailable):
    """A call was refused because its slot is being moved or has moved. Nothing was written."""

    def __init__(self, message: str) -> None:
        super().__init__(message, sent=False)


#: The indexes of calls by their node, and whether to send ``ASKING`` before each.
_Groups: TypeAlias = Mapping[tuple[ClusterNode | None, bool], Sequence[int]]


class Cluster:
    """Keeps a map from hash tags to nodes, and updates it when slots move."""

    spread = True

    def __init__(self, configs: Sequence[ServerConfig], timeout: float) -> None:
        self._configs = configs
        self._timeout = timeout
        #: The node of each hash tag.
        self.owners: list[ClusterNode | None] = [None] * TAGS
        self._replicas: list[list[ClusterNode]] = [[]] * TAGS
        #: When the map may be loaded again because it has no replicas of some hash tags.
        self._replicas_until = 0.0
        #: All nodes, replicas included, in the order in which to query them for the map of slots.
        self._known: list[ClusterNode] = []
        self._connections: dict[tuple[Hashable, ClusterNode], RedisConnection] = {}
        self._loading = asyncio.Lock()
        #: How often the map was loaded.
        self._loads = 0
        #: When a call to a node failed last.
        self._lost: dict[ClusterNode, float] = {}
        #: Whether a slot has moved since the map was loaded.
        self._moved = False
        #: The timer that looks for moved slots and for calls without an answer, while there are calls.
        self._watch: asyncio.TimerHandle | None = None
        #: The task that reloads the map for them.
        self._search: asyncio.Task[None] | None = None
        #: How many connections for messages were made.
        self._subscribers = 0

    @property
    def location(self) -> str:
        """The nodes of the URL, without credentials."""
        return ",".join(config.location for config in self._configs)

    def node_of(self, address: Address) -> Hashable:
        """Return the node that has an address. Addresses of one node, or of one half of it, share their lanes."""
        return self.owners[tag_of(address)]

    def node_of_all(self, groups: Collection[Group]) -> ClusterNode | None:
        """Return the node that has the hash tags of all these calls, if there is one."""
        owners = self.owners
        nodes = [owners[tag] for _, tag, _ in groups]
        return nodes[0] if nodes.count(nodes[0]) == len(nodes) else None

    def _start_watch(self) -> None:
        if self._watch is None:
            self._watch = asyncio.get_running_loop().call_later(_SLOW, self._look)

    def _look(self) -> None:
        """Reload the map if a slot has moved, or if a call has no answer for long: its node may have been replaced."""
        self._watch = None
        loop = asyncio.get_running_loop()
        waits = [connection.waited for connection in self._connections.values()]
        if (self._moved or any(waited > _SLOW for waited in waits)) and self._search is None:
            self._search = loop.create_task(self._leave_replaced(), name="stepwell-slots")
        if any(waits):
            self._watch = loop.call_later(_SLOW, self._look)

    async def _leave_replaced(self) -> None:
        """End the calls to nodes that have no slots any more; their lanes send them to the successors."""
        try:
            await self._reload_slots()
            masters = self._masters()
            for (lane, node), connection in list(self._connections.items()):
                if connection.waited > _SLOW and node.server not in masters and lane != _READS:
                    await connection.abandon("has lost its slots to another node")
        finally:
            self._search = None

    async def open(self, lane: Hashable) -> None:
        """Load the map of slots."""
        # A call that ended after the last close may have started them, perhaps in another event loop.
        self._watch = self._search = None
        await self._load_slots()

    async def call(self, lane: Hashable, requests: Sequence[Request], wait: int = 0) -> list[Answer]:
        """Send these calls over the lane's connections, and follow redirections.

        Raises ``StorageUnavailable`` with ``sent=True`` if some of them may have been applied.
        """
        if any(self.owners[request.tag] is None for request in requests):
            await self._load_slots()
        answers: list[Answer] = []
        for outcome in await self._twice(lane, requests, wait):
            if isinstance(outcome, StorageError):
                if isinstance(outcome, StorageUnavailable):
                    outcome.sent = outcome.sent or len(requests) > 1
                raise outcome
            answers.append(outcome)
        return answers

    async def call_living(
        self, lane: Hashable, requests: Sequence[Request]
    ) -> tuple[list[Answer | None], StorageUnavailable | None]:
        """Send calls that only read. Those to lost nodes have no answer; return the error of one of them, too.

        Raises ``StorageUnavailable`` if no call has an answer.
        """
        answers: list[Answer | None] = []
        problem: StorageUnavailable | None = None
        for outcome in await self._twice(lane, requests, 0):
            if isinstance(outcome, StorageUnavailable):
                problem = outcome
                answers.append(None)
            elif isinstance(outcome, StorageError):
                raise outcome
            else:
                answers.append(outcome)
        if problem is not None and (problem.final or not any(answers)):
            raise problem
        return answers, problem

    async def _twice(self, lane: Hashable, requests: Sequence[Request], wait: int) -> list[Answer | StorageError]:
        """Return the outcomes of calls. Those that fail at once are sent again with the new map of slots.

        The usual cause is a connection that the server has closed.
        """
        begun = asyncio.get_running_loop().time()
        outcomes = await self._settle(lane, requests, wait, self._grouped(requests), follow=True)
        failed = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, StorageUnavailable)]
        if failed and asyncio.get_running_loop().time() - begun < _SLOW:
            again = [requests[n] for n in failed]
            repeated = await self._settle(lane, again, wait, self._grouped(again), follow=True)
            for n, outcome in zip(failed, repeated, strict=True):
                outcomes[n] = outcome
        return outcomes

    async def outcomes(
        self, lane: Hashable, requests: Sequence[Request], wait: int = 0
    ) -> Sequence[Answer | StorageUnavailable]:
        """Send these calls over the lane's connections; each has its own answer or error.

        Raises the error if all calls failed because a node is lost, or if there is one call only and it was refused.
        """
        self._start_watch()
        nodes = {self.owners[request.tag] for request in requests}
        node = nodes.pop()
        if nodes or node is None:
            if node is None or None in nodes:
                await self._reload_slots()
            return _separated(await self._settle(lane, requests, wait, self._grouped(requests)))
        # The calls of a lane usually have one node.
        connection = self._connections.get((lane, node)) or self._connection(lane, node)
        commands = [request.command for request in requests]
        if wait:
            commands.append(("WAIT", str(connection.copies), str(wait)))
        first: list[Answer] | StorageUnavailable
        replies: list[Reply] | None = None
        try:
            replies = await connection.exchange(commands)
            replicated = True
            if wait:
                copies = replies.pop()
                replicated = isinstance(copies, int) and copies >= connection.copies
            first = [(reply, replicated) for reply in replies]
            if Refused not in map(type, replies):
                return first
            if any(type(reply) is Refused and reply.code == "NOSCRIPT" for reply in replies):
                # Calls that were applied are not applied again: writes have a number, claims a token.
                first = await ask(connection, requests, wait)
        except StorageUnavailable as error:
            # After an answer this is the second attempt.
            error.sent = error.sent or replies is not None
            first = error
        settled = await self._settle(lane, requests, wait, {(node, False): range(len(requests))}, [first])
        return _separated(settled)

    async def call_node(self, lane: Hashable, node: ClusterNode, command: Command, wait: int) -> Answer:
        """Send a call that names no keys to a node, over the lane's connection."""
        self._start_watch()
        connection = self._connections.get((lane, node)) or self._connection(lane, node)
        try:
            if not wait:
                (reply,) = await connection.exchange([command])
                return reply, True
            reply, copies = await connection.exchange([command, ("WAIT", str(connection.copies), str(wait))])
            return reply, isinstance(copies, int) and copies >= connection.copies
        except StorageUnavailable as error:
            self._lost[node.server] = asyncio.get_running_loop().time()
            if not error.final:
                await self._reload_slots()
            raise

    def _grouped(self, requests: Sequence[Request]) -> _Groups:
        groups: dict[tuple[ClusterNode | None, bool], list[int]] = {}
        for n, request in enumerate(requests):
            groups.setdefault((self.owners[request.tag], False), []).append(n)
        return groups

    async def _settle(
        self,
        lane: Hashable,
        requests: Sequence[Request],
        wait: int,
        groups: _Groups,
        outcomes: list[list[Answer] | StorageUnavailable] | None = None,
        *,
        follow: bool = False,
    ) -> list[Answer | StorageError]:
        """Return an answer or an error for each call. ``outcomes``: those of the first round, if it was made.

        Redirections are followed if no call has an answer yet, or always with ``follow``.
        """
        found: list[Answer | StorageError | None] = [None] * len(requests)
        answered = False
        for _ in range(_REDIRECTIONS):
            outcomes = await self._exchange(lane, groups, requests, wait) if outcomes is None else outcomes
            redirected: dict[tuple[ClusterNode | None, bool], list[int]] = {}
            reload = False
            for (node, _), indexes, outcome in zip(groups, groups.values(), outcomes, strict=True):
                if isinstance(outcome, StorageUnavailable):
                    reload = reload or not outcome.final
                    if node is not None:
                        self._lost[node.server] = asyncio.get_running_loop().time()
                    for n in indexes:
                        found[n] = StorageUnavailable(str(outcome), sent=outcome.sent, final=outcome.final)
                    continue
                assert node is not None
                for n, answer in zip(indexes, outcome, strict=True):
                    reply, _ = answer
                    if not isinstance(reply, Refused):
                        found[n] = answer
                        answered = True
                    elif reply.code in ("MOVED", "ASK"):
                        target = _target(reply, node)
                        found[n] = SlotMoves(
                            f"Redis at {node.host}:{node.port} has moved slot {_SLOTS[requests[n].tag]}"
                        )
                        if reply.code == "MOVED":
                            self.owners[requests[n].tag] = target
                            # Others may have moved with it. A node may be the only master now, or not any more.
                            self._moved = True
                            self._start_watch()
                        redirected.setdefault((target, reply.code == "ASK"), []).append(n)
                    else:
                        found[n] = _refused(reply, node)
                        reload = reload or reply.code in ("CLUSTERDOWN", "MASTERDOWN", "READONLY")
            if reload:
                await self._reload_slots()
            if not redirected or (answered and not follow):
                break
            groups, outcomes = redirected, None
        return cast("list[Answer | StorageError]", found)

    async def read(self, lane: Hashable, requests: Sequence[Request]) -> list[Answer]:
        """Send calls that write nothing to replicas, and to the masters those that no replica answers."""
        now = asyncio.get_running_loop().time()
        if now >= self._replicas_until and not all(self._replicas):
            # A replica that has just joined, or that did not answer, may be there now.
            self._replicas_until = now + _REPLICAS_EVERY
            await self._reload_slots()
        groups: dict[ClusterNode, list[int]] = {}
        for n, request in enumerate(requests):
            replicas = self._replicas[request.tag]
            if replicas:
                groups.setdefault(replicas[0], []).append(n)
        found: dict[int, Answer] = {}

        async def one(node: ClusterNode, indexes: list[int]) -> None:
            try:
                # Without this command, a replica redirects to its master.
                answers = await ask(self._connection(_READS, node), [requests[n] for n in indexes], 0, ("READONLY",))
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
        return sorted({node.server for node in self.owners if node is not None})

    async def publish(self, lane: Hashable, channel: str, text: str) -> None:
        """Send a text to all connections that have subscribed to a channel, on all nodes."""
        problem = StorageUnavailable(f"no node of the Redis Cluster at {self.location} is known", sent=False)
        for node in self._masters():
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
        return RedisConnection(self._configs[0].with_address(node.host, node.port).for_messages(), self._timeout)

    async def lost(self, lane: Hashable) -> None:
        """Reload the map of slots after a node was lost or replaced."""
        await self._reload_slots()

    async def close(self) -> None:
        """Close all connections."""
        # The next use may be in another event loop.
        self._loading = asyncio.Lock()
        if self._watch is not None:
            self._watch.cancel()
        if self._search is not None and not self._search.get_loop().is_closed():
            self._search.cancel()
        self._watch = self._search = None
        self._lost.clear()
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            await connection.close(wait=True)

    async def _exchange(
        self, lane: Hashable, groups: _Groups, requests: Sequence[Request], wait: int
    ) -> list[list[Answer] | StorageUnavailable]:
        async def one(
            node: ClusterNode | None, asking: bool, indexes: Sequence[int]
        ) -> list[Answer] | StorageUnavailable:
            if node is None:
                slot = _SLOTS[requests[indexes[0]].tag]
                return StorageUnavailable(
                    f"no node of the Redis Cluster at {self.location} has slot {slot}", sent=False
                )
            before = ("ASKING",) if asking else None
            try:
                return await ask(self._connection(lane, node), [requests[n] for n in indexes], wait, before)
            except StorageUnavailable as error:
                return error

        calls = [one(node, asking, indexes) for (node, asking), indexes in groups.items()]
        # A lane usually has one node. A task for a single call would cost more than the call.
        return [await calls[0]] if len(calls) == 1 else await asyncio.gather(*calls)

    def _connection(self, lane: Hashable, node: ClusterNode) -> RedisConnection:
        connection = self._connections.get((lane, node))
        if connection is None:
            connection = self._connections[lane, node] = self._new_connection(node, self._timeout)
        return connection

    def _new_connection(self, node: ClusterNode, timeout: float) -> RedisConnection:
        return RedisConnection(self._configs[0].with_address(node.host, node.port), timeout)

    async def _reload_slots(self) -> None:
        try:
            await self._load_slots()
        except StorageUnavailable:
            # The caller already has an error to raise, and its lane retries.
            return

    async def _load_slots(self) -> None:
        """Load the map of slots from the first node that knows all of them, or else the one that knows most."""
        loads = self._loads
        async with self._loading:
            if self._loads != loads:
                # Another task loaded it meanwhile.
                return
            # A slot may move after the node has answered.
            moved, self._moved = self._moved, False
            seeds = [
                ClusterNode(str(config.arguments.get("host")), int(config.arguments.get("port", 6379)))
                for config in self._configs
            ]
            problem: StorageUnavailable | None = None
            best: tuple[int, list[Any], ClusterNode] | None = None
            since = asyncio.get_running_loop().time() - _DOUBTFUL
            doubtful = {node for node, lost_at in self._lost.items() if lost_at > since}
            doubtful |= {
                node.server for (_, node), connection in self._connections.items() if connection.waited > _SLOW
            }
            # A node that does not answer, or did not until now, comes last: it may not know that it was replaced.
            for node in sorted(dict.fromkeys([*self._known, *seeds]), key=doubtful.__contains__):
                connection = self._new_connection(node, min(self._timeout, 1.0))
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
                covered = sum(any(first <= slot <= last for first, last, *_ in ranges) for slot in _SLOTS)
                if covered and (best is None or covered > best[0]):
                    best = covered, ranges, node
                if covered == TAGS:
                    break
                # It may have been removed from the Cluster, or be new in it.
                problem = StorageUnavailable(
                    f"Redis at {node.host}:{node.port} knows no node for some slots", sent=False
                )
            if best is None:
                assert problem is not None
                self._moved = moved or self._moved
                problem.sent = False
                raise problem
            self._set_slots(*best[1:])

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
        owner = owners[0]
        if owner is not None and len({*owners}) == 1:
            halves = owner, owner._replace(half=1)
            owners = [halves[tag & 1] for tag in range(TAGS)]
        # Each load asks another node first.
        order = [node for node in dict.fromkeys([*self._known, *known]) if node in known and node != source]
        self.owners, self._replicas, self._known = owners, replicas, [*order, source]
        self._loads += 1


def _separated(settled: list[Answer | StorageError]) -> list[Answer | StorageUnavailable]:
    """Return the outcomes of a batch, or raise the one error of all."""
    errors = [outcome for outcome in settled if isinstance(outcome, StorageError)]
    if len(settled) == 1 and errors and not isinstance(errors[0], StorageUnavailable):
        raise errors[0]
    lost = [error for error in errors if isinstance(error, StorageUnavailable) and not isinstance(error, SlotMoves)]
    if len(lost) == len(settled):
        final = [error for error in lost if error.final]
        problem = (final or lost)[0]
        problem.sent = any(error.sent for error in lost)
        raise problem
    # A call that was refused for another reason is sent again alone, so that its error concerns no other call.
    return [
        StorageUnavailable(str(outcome), sent=False)
        if isinstance(outcome, StorageError) and not isinstance(outcome, StorageUnavailable)
        else outcome
        for outcome in settled
    ]


def _refused(reply: Refused, node: ClusterNode) -> StorageError:
    error = refused(reply, f"{node.host}:{node.port}")
    return SlotMoves(str(error)) if reply.code == "TRYAGAIN" else error


def _target(reply: Refused, source: ClusterNode) -> ClusterNode:
    host, _, port = reply.message.split()[-1].rpartition(":")
    return ClusterNode(host or source.host, int(port), source.half)
