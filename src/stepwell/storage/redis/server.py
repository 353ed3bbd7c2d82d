"""Calls of scripts to the servers that have the keys: one server here, the base of Sentinels and Clusters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias

from stepwell.errors import StorageError, StorageUnavailable
from stepwell.storage.redis.client import Command, RedisConnection, Refused, Reply, ServerConfig
from stepwell.storage.redis.wire import TAGS, Script, failure

__all__ = ["Answer", "RedisNode", "Server", "SlotMoves"]

#: How many keys one ``SCAN`` looks at.
SCANNED = 1000
#: Seconds without an answer after which the nodes are looked up again, to find out whether the node was replaced.
SLOW = 0.5
#: Seconds between two lookups that look for replicas.
REPLICAS_EVERY = 5.0
#: The longest wait for the answer of a server that is asked for the other servers, in seconds.
LOOKUP = 1.0
#: The name of the connections to replicas, instead of a lane.
READS: Final = "reads"

#: Words in the errors of a script whose slot is on another node or is being moved, or whose node has lost the others.
MISPLACED = ("non local key", "cluster is down")

#: The reply of a script, and whether enough replicas have the write (``True`` if that was not requested).
Answer: TypeAlias = tuple[Reply, bool]


class RedisNode(NamedTuple):
    """A server that has hash tags, or one half of those of the only master of a Cluster.

    Each half has its own lanes and connections, so that the server works on one while this process works on the other.
    """

    host: str
    port: int
    #: 0 or 1 for the halves of an only master, else 0.
    half: int = 0

    @property
    def server(self) -> RedisNode:
        """The server of a half."""
        return self._replace(half=0)


class SlotMoves(StorageUnavailable):
    """A call was refused because its slot is being moved or has moved. Nothing was written."""

    def __init__(self, message: str) -> None:
        super().__init__(message, sent=False)


class Server:
    """A server that has all keys."""

    #: Whether hash tags may be on different nodes.
    spread = False
    #: Whether other servers may take over, so that ``find`` has to be called again.
    follows = False

    def __init__(self, config: ServerConfig, timeout: float) -> None:
        self._config = config
        self._timeout = timeout
        #: The node of each hash tag, and its replicas.
        self.owners: list[RedisNode | None] = [RedisNode(*config.address)] * TAGS
        self.replicas: list[list[RedisNode]] = [[]] * TAGS
        #: When the nodes may be looked up again because some hash tags have no replicas.
        self._replicas_until = 0.0
        self._connections: dict[tuple[Hashable, RedisNode], RedisConnection] = {}
        self._finding = asyncio.Lock()
        #: How often the nodes were looked up.
        self._finds = 0
        #: The timer that looks for calls without an answer, while there are calls.
        self._watch: asyncio.TimerHandle | None = None
        #: The task that looks up the nodes for them.
        self._search: asyncio.Task[None] | None = None
        #: How many connections for messages were made.
        self._subscribers = 0

    @property
    def location(self) -> str:
        """The host and port, without credentials."""
        return self._config.location

    @property
    def masters(self) -> list[RedisNode]:
        """The servers that have hash tags."""
        return sorted({node.server for node in self.owners if node is not None})

    async def open(self, lane: Hashable) -> None:
        """Find the nodes, and check that the only one answers."""
        # A call that ended after the last close may have started them, perhaps in another event loop.
        self._watch = self._search = None
        await self.find()
        if not self.spread:
            await self._connection(lane, self.masters[0]).exchange([("PING",)])

    async def find(self) -> None:
        """Look up which nodes have the hash tags. Calls that wait for a lookup share it."""
        finds = self._finds
        async with self._finding:
            if self._finds == finds:
                await self._find()
                self._finds += 1

    async def _find(self) -> None:
        """Set ``owners`` and ``replicas``. Raises ``StorageUnavailable``."""

    async def lost(self, lane: Hashable = None, node: RedisNode | None = None) -> None:
        """Look up the nodes again. A lane's connection is closed: the host name may lead to another server now."""
        connection = None if node is None else self._connections.get((lane, node))
        if connection is not None:
            await connection.close()
        # The caller already has an error, and its lane retries.
        with suppress(StorageUnavailable):
            await self.find()

    async def evaluate(
        self,
        lane: Hashable,
        node: RedisNode | None,
        script: Script,
        argument: bytes,
        *,
        wait: int = 0,
        before: Sequence[Command] = (),
    ) -> Answer:
        """Call a script over the lane's connection to a node. It uses the keys of this node only.

        ``wait``: milliseconds to wait for replicas. ``before``: commands to send before, whose replies do not matter.
        """
        if node is None:
            raise StorageUnavailable(f"no node of Redis at {self.location} is known for some keys", sent=False)
        if self._watch is None and self.follows:
            self._watch = asyncio.get_running_loop().call_later(SLOW, self._look)
        connection = self._connections.get((lane, node)) or self._connection(lane, node)
        commands: list[Command] = [*before, ("EVALSHA", script.sha, "0", argument)]
        if wait:
            commands.append(("WAIT", str(connection.copies), str(wait)))
        at = len(before)
        replies = await connection.exchange(commands)
        if type(replies[at]) is Refused and replies[at].code == "NOSCRIPT":
            replies = (await connection.exchange([("SCRIPT", "LOAD", script.source), *commands]))[1:]
        reply = replies[at]
        if type(reply) is Refused:
            raise failure(f"{reply.code} {reply.message}", connection.location)
        return reply, not wait or (isinstance(replies[-1], int) and replies[-1] >= connection.copies)

    def problem(self, message: str, node: RedisNode | None) -> StorageError:
        """Return the error for a hash tag that a script could not use."""
        where = "" if node is None else self._config_of(node).location
        return self._misplaced(where) if any(words in message for words in MISPLACED) else failure(message, where)

    def _misplaced(self, where: str) -> StorageError:
        return StorageUnavailable(
            f"Redis at {where} is part of a Cluster; use redis+cluster:// in its URL", sent=False, final=True
        )

    async def ask(
        self,
        lane: Hashable,
        script: Script,
        tags: Iterable[int],
        pack: Callable[[list[int]], bytes],
        *,
        may_lag: bool = False,
        writes: bool = False,
    ) -> dict[int, list[Any] | StorageError]:
        """Call a script that answers for each of these hash tags; return the answer or the error for each.

        ``pack``: returns the argument for some hash tags. ``may_lag``: replicas may answer. What fails at once is
        called again, unless it ``writes``: the usual cause is a connection that the server has closed.
        """
        loop = asyncio.get_running_loop()
        begun = loop.time()
        found = await self._ask(READS, script, self.replicas, tags, pack) if may_lag else {}
        for _ in range(1 if writes else 2):
            left = [tag for tag in tags if not isinstance(found.get(tag), list)]
            if not left:
                break
            found |= await self._ask(lane, script, self.owners, left, pack)
            if loop.time() - begun > SLOW:
                break
        return found

    async def _ask(
        self,
        lane: Hashable,
        script: Script,
        places: Sequence[RedisNode | list[RedisNode] | None],
        tags: Iterable[int],
        pack: Callable[[list[int]], bytes],
    ) -> dict[int, list[Any] | StorageError]:
        found: dict[int, list[Any] | StorageError] = {}
        nodes: dict[RedisNode | None, list[int]] = {}
        reads = lane is READS
        if None in places if not reads else self._lacks_replicas():
            await self.lost()
            places = self.replicas if reads else self.owners
        for tag in tags:
            place = places[tag]
            if isinstance(place, list):
                place = place[0] if place else None
            nodes.setdefault(place, []).append(tag)

        async def one(node: RedisNode | None, its_tags: list[int]) -> None:
            try:
                # Without this command, a replica of a Cluster refuses all reads.
                before = (("READONLY",),) if reads else ()
                reply, _ = await self.evaluate(lane, node, script, pack(its_tags), before=before)
                answers = [self.problem(each, node) if isinstance(each, str) else each for each in reply]
            except StorageError as error:
                answers = [error] * len(its_tags)
                if reads:
                    # Do not wait for it again before the next lookup.
                    self.replicas = [[each for each in some if each != node] for some in self.replicas]
            found.update(zip(its_tags, answers, strict=True))

        await asyncio.gather(*(one(node, its_tags) for node, its_tags in nodes.items()))
        if not reads and any(isinstance(answer, StorageUnavailable) for answer in found.values()):
            await self.lost()
        return found

    def _lacks_replicas(self) -> bool:
        """Return whether to look up replicas again: one that has just joined, or did not answer, may be there now."""
        now = asyncio.get_running_loop().time()
        if all(self.replicas) or now < self._replicas_until:
            return False
        self._replicas_until = now + REPLICAS_EVERY
        return True

    async def exchange(self, lane: Hashable, tag: int, commands: Sequence[Command]) -> list[Reply]:
        """Send commands to the node of a hash tag; raise if it refuses one."""
        node = self.owners[tag]
        if node is None:
            await self.lost()
            raise StorageUnavailable(f"no node of Redis at {self.location} is known for some keys", sent=False)
        replies = await self._connection(lane, node).exchange(commands)
        for reply in replies:
            if type(reply) is Refused:
                await self.lost()
                raise failure(f"{reply.code} {reply.message}", self._config_of(node).location)
        return replies

    async def info(self, lane: Hashable) -> dict[str, tuple[Reply, Reply]]:
        """Return the replies of all masters to ``INFO`` and ``TIME`` by their location."""
        found = {}
        for node in self.masters:
            connection = self._connection(lane, node)
            facts, now = await connection.exchange([("INFO",), ("TIME",)])
            found[connection.location] = facts, now
        return found

    async def values_of(self, lane: Hashable, pattern: str, most: int) -> dict[str, str] | None:
        """Return the keys of all masters that match a pattern, and their texts; ``None`` if the user may not ``SCAN``.

        It looks at about ``most`` keys of each.
        """
        found: dict[str, str] = {}
        for node in self.masters:
            connection = self._connection(lane, node)
            cursor, looked = "", 0
            while cursor != "0" and looked < most:
                scan = "SCAN", cursor or "0", "MATCH", pattern, "COUNT", str(SCANNED)
                (reply,) = await connection.exchange([scan])
                if not isinstance(reply, list):
                    return None
                cursor, keys = str(reply[0]), reply[1]
                looked += SCANNED
                values = await connection.exchange([("GET", key) for key in keys]) if keys else []
                found |= {key: value for key, value in zip(keys, values, strict=True) if isinstance(value, str)}
        return found

    async def publish(self, lane: Hashable, channel: str, text: str) -> None:
        """Send a text to all connections that have subscribed to a channel, on all nodes."""
        problem: StorageError = StorageUnavailable(f"no node of Redis at {self.location} is known", sent=False)
        for node in self.masters:
            connection = self._connection(lane, node)
            try:
                (reply,) = await connection.exchange([("PUBLISH", channel, text)])
            except StorageUnavailable as error:
                problem = error
            else:
                if type(reply) is not Refused:
                    return
                problem = failure(f"{reply.code} {reply.message}", connection.location)
            if isinstance(problem, StorageUnavailable) and problem.final:
                break
        raise problem

    async def subscriber(self) -> RedisConnection:
        """Return a new connection for messages, each time to another node. The caller closes it."""
        if self.follows and self._subscribers:
            # The last one has failed.
            await self.lost()
        nodes = dict.fromkeys([*self.masters, *[node for some in self.replicas for node in some]])
        self._subscribers += 1
        known = [*nodes][: None if self.spread else 1]
        if not known:
            raise StorageUnavailable(f"no node of Redis at {self.location} is known", sent=False)
        node = known[self._subscribers % len(known)]
        return RedisConnection(self._config_of(node).for_messages(), self._timeout)

    async def close(self) -> None:
        """Close all connections."""
        # The next use may be in another event loop.
        self._finding = asyncio.Lock()
        if self._watch is not None:
            self._watch.cancel()
        search, self._watch, self._search = self._search, None, None
        if search is not None and not search.get_loop().is_closed():
            search.cancel()
            # It closes the connections of its lookup.
            await asyncio.wait([search])
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            await connection.close(wait=True)

    def _config_of(self, node: RedisNode) -> ServerConfig:
        return self._config.with_address(node.host, node.port) if self.follows else self._config

    def _connection(self, lane: Hashable, node: RedisNode) -> RedisConnection:
        connection = self._connections.get((lane, node))
        if connection is None:
            config = self._config_of(node)
            if lane is READS:
                config = config._replace(master="")
            connection = self._connections[lane, node] = RedisConnection(config, self._timeout)
        return connection

    def _look(self) -> None:
        """Look up the nodes if a call has no answer for long: its node may have been replaced."""
        self._watch = None
        loop = asyncio.get_running_loop()
        waits = [connection.waited for connection in self._connections.values()]
        if any(waited > SLOW for waited in waits) and self._search is None:
            self._search = loop.create_task(self._leave_replaced(), name="stepwell-redis-nodes")
        if any(waits):
            self._watch = loop.call_later(SLOW, self._look)

    async def _leave_replaced(self) -> None:
        """End the calls to nodes that were replaced; their lanes send them to the successors."""
        try:
            await self.lost()
            masters = self.masters
            for (lane, node), connection in list(self._connections.items()):
                if connection.waited > SLOW and node.server not in masters and lane is not READS:
                    await connection.abandon("was replaced by another node")
        finally:
            self._search = None
