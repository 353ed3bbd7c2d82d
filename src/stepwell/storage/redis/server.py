"""Script calls to one Redis server, several of them in one round trip."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple, TypeAlias

from stepwell.errors import StorageError, StorageUnavailable
from stepwell.record import Address
from stepwell.storage.redis.client import Command, RedisConnection, Refused, Reply, ServerConfig
from stepwell.storage.redis.wire import Script

__all__ = ["Answer", "Request", "Server", "ask", "info", "publish", "refused", "values_of"]

#: How many keys one ``SCAN`` looks at.
SCANNED = 1000

#: Error codes of conditions that may pass.
_RETRYABLE = frozenset(
    {"READONLY", "NOREPLICAS", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "BUSY", "MOVED", "ASK", "UNBLOCKED", "FENCED"}
)


class Request(NamedTuple):
    """One call of a script. All its keys have this hash tag, unless one server has all keys."""

    tag: int
    script: Script
    command: Command


#: The reply of a script, and whether enough replicas have the write (``True`` if that was not requested).
Answer: TypeAlias = tuple[Reply, bool]


async def ask(
    connection: RedisConnection, requests: Sequence[Request], wait: int = 0, before: Command | None = None
) -> list[Answer]:
    """Send these calls in one round trip, or two if the server does not have a script yet.

    ``wait``: milliseconds to wait for replicas. ``before``: a command to send before each call.
    """
    answers: list[Answer] = [(None, False)] * len(requests)
    pending: Sequence[int] = range(len(requests))
    load: list[Command] = []
    while True:
        commands = load.copy()
        for n in pending:
            if before is not None:
                commands.append(before)
            commands.append(requests[n].command)
        if wait:
            commands.append(("WAIT", str(connection.copies), str(wait)))
        try:
            replies = await connection.exchange(commands)
        except StorageUnavailable as error:
            # With scripts to load this is the second round trip: the first one may have applied other calls.
            error.sent = error.sent or bool(load)
            raise
        replicated = not wait or (isinstance(replies[-1], int) and replies[-1] >= connection.copies)
        at, step = (len(load), 1) if before is None else (len(load) + 1, 2)
        missing = []
        for n in pending:
            reply = replies[at]
            answers[n] = reply, replicated
            if type(reply) is Refused and reply.code == "NOSCRIPT":
                missing.append(n)
            at += step
        if load or not missing:
            return answers
        pending = missing
        load = [("SCRIPT", "LOAD", script.source) for script in {requests[n].script for n in missing}]


def refused(reply: Refused, location: str) -> StorageError:
    """Return the error for a call that a server refused as a whole."""
    code = reply.code
    if code in _RETRYABLE:
        return StorageUnavailable(f"Redis at {location} cannot handle this now: {code} {reply.message}", sent=False)
    if code == "NOPERM":
        return StorageUnavailable(
            f"Redis at {location} does not permit its user to do this ({reply.message}); "
            "see the ACL line in docs/redis.md",
            sent=False,
            final=True,
        )
    return StorageError(f"Redis at {location} refused a call: {reply.message}")


async def info(connection: RedisConnection) -> tuple[Reply, Reply]:
    """Return the replies to ``INFO`` and ``TIME``."""
    facts, now = await connection.exchange([("INFO",), ("TIME",)])
    return facts, now


async def values_of(connection: RedisConnection, pattern: str, most: int) -> dict[str, str] | None:
    """Return the keys that match a pattern, and their texts; ``None`` if the user may not ``SCAN``.

    It looks at about ``most`` keys of the server.
    """
    found: dict[str, str] = {}
    cursor, looked = "0", 0
    while True:
        (reply,) = await connection.exchange([("SCAN", cursor, "MATCH", pattern, "COUNT", str(SCANNED))])
        if not isinstance(reply, list):
            return None
        cursor, keys = str(reply[0]), reply[1]
        looked += SCANNED
        values = await connection.exchange([("GET", key) for key in keys]) if keys else []
        found |= {key: value for key, value in zip(keys, values, strict=True) if isinstance(value, str)}
        if cursor == "0" or looked >= most:
            return found


async def publish(connection: RedisConnection, channel: str, text: str) -> None:
    """Send a text to all connections that have subscribed to a channel."""
    (reply,) = await connection.exchange([("PUBLISH", channel, text)])
    if type(reply) is Refused:
        raise refused(reply, connection.location)


class Server:
    """A server that has all keys, so that a batch is one call."""

    #: Whether each hash tag needs a call of its own.
    spread = False

    def __init__(self, config: ServerConfig, timeout: float) -> None:
        self._config = config
        self._timeout = timeout
        self._connections: dict[Hashable, RedisConnection] = {}

    @property
    def location(self) -> str:
        """The host and port, without credentials."""
        return self._config.location

    def node_of(self, address: Address) -> Hashable:
        """Return which of two lanes an address uses: while the server works on one, this process works on the other."""
        return hash(address) & 1

    async def open(self, lane: Hashable) -> None:
        """Check that the server answers."""
        await self._connection(lane).exchange([("PING",)])

    async def call(self, lane: Hashable, requests: Sequence[Request], wait: int = 0) -> list[Answer]:
        """Send these calls over the lane's connection, and raise if the server refused one as a whole."""
        answers = await ask(self._connections.get(lane) or self._connection(lane), requests, wait)
        for reply, _ in answers:
            if type(reply) is Refused:
                if reply.code in {"MOVED", "CROSSSLOT", "ASK"}:
                    raise StorageUnavailable(
                        f"Redis at {self.location} is part of a Cluster; use redis+cluster:// in its URL",
                        sent=False,
                        final=True,
                    )
                if reply.code == "READONLY":
                    await self.lost(lane)
                error = refused(reply, self.location)
                if isinstance(error, StorageUnavailable) and len(answers) > 1:
                    error.sent = True
                raise error
        return answers

    async def read(self, lane: Hashable, requests: Sequence[Request]) -> list[Answer]:
        """Send calls that write nothing, and whose answers may lag."""
        return await self.call(lane, requests)

    async def info(self, lane: Hashable) -> dict[str, tuple[Reply, Reply]]:
        """Return the replies to ``INFO`` and ``TIME`` by the location of the server."""
        return {self.location: await info(self._connection(lane))}

    async def values_of(self, lane: Hashable, pattern: str, most: int) -> dict[str, str] | None:
        """Return the keys that match a pattern, and their texts; see ``values_of``."""
        return await values_of(self._connection(lane), pattern, most)

    async def publish(self, lane: Hashable, channel: str, text: str) -> None:
        """Send a text to all connections that have subscribed to a channel."""
        await publish(self._connection(lane), channel, text)

    def subscriber(self) -> RedisConnection:
        """Return a new connection for messages, which the caller closes."""
        return RedisConnection(self._config.for_messages(), self._timeout)

    async def lost(self, lane: Hashable) -> None:
        """Reconnect before the next call: after a failover the host name may lead to another server."""
        await self._connection(lane).close()

    async def close(self) -> None:
        """Close all connections."""
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            await connection.close(wait=True)

    def _connection(self, lane: Hashable) -> RedisConnection:
        connection = self._connections.get(lane)
        if connection is None:
            connection = self._connections[lane] = RedisConnection(self._config, self._timeout)
        return connection
