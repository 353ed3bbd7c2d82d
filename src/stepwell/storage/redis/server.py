"""Script calls to one Redis server, several at once in one round trip."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from stepwell.errors import StorageError, StorageUnavailable
from stepwell.storage.redis.client import Command, RedisConnection, Refused, Reply, ServerConfig
from stepwell.storage.redis.wire import Script

__all__ = ["Answer", "Request", "Server", "ask", "refused"]

#: Refusals that another try may not meet.
_AGAIN = frozenset({"READONLY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "BUSY", "MOVED", "ASK", "UNBLOCKED", "FENCED"})


class Request(NamedTuple):
    """One call of a script; all its keys have this hash tag, unless one server has them all."""

    tag: int
    script: Script
    keys: Sequence[str]
    arguments: Sequence[str]

    def command(self) -> Command:
        """The call as it is sent."""
        return ("EVALSHA", self.script.sha, str(len(self.keys)), *self.keys, *self.arguments)


class Answer(NamedTuple):
    """What a script gave, and if a replica has it too (where that was asked for)."""

    reply: Reply
    replicated: bool


async def ask(
    connection: RedisConnection, requests: Sequence[Request], wait: int = 0, before: Command | None = None
) -> list[Answer]:
    """Make these calls in one round trip, two if the server has to learn a script first.

    ``wait``: also wait so many milliseconds for a replica. ``before``: a command in front of each call.
    """
    replies = await connection.exchange(_commands(requests, wait, before))
    answers = _answers(replies, len(requests), wait, before)
    unknown = [n for n, answer in enumerate(answers) if _code(answer) == "NOSCRIPT"]
    if unknown:
        calls = [requests[n] for n in unknown]
        learn: list[Command] = [("SCRIPT", "LOAD", script.source) for script in {call.script for call in calls}]
        try:
            replies = await connection.exchange([*learn, *_commands(calls, wait, before)])
        except StorageUnavailable as error:
            # The other calls may be made already.
            error.sent = True
            raise
        for n, answer in zip(unknown, _answers(replies[len(learn) :], len(calls), wait, before), strict=True):
            answers[n] = answer
    return answers


def _commands(requests: Sequence[Request], wait: int, before: Command | None) -> list[Command]:
    commands: list[Command] = []
    for request in requests:
        if before is not None:
            commands.append(before)
        commands.append(request.command())
    if wait:
        commands.append(("WAIT", "1", str(wait)))
    return commands


def _answers(replies: list[Reply], count: int, wait: int, before: Command | None) -> list[Answer]:
    replicated = not wait or (isinstance(replies[-1], int) and replies[-1] > 0)
    step = 1 if before is None else 2
    return [Answer(reply, replicated) for reply in replies[step - 1 : count * step : step]]


def _code(answer: Answer) -> str:
    return answer.reply.code if isinstance(answer.reply, Refused) else ""


def refused(reply: Refused, place: str) -> StorageError:
    """The error for a call that a server refused as a whole."""
    code = reply.code
    if code in _AGAIN:
        return StorageUnavailable(f"Redis at {place} cannot take this now: {code} {reply.message}", sent=False)
    if code == "NOPERM":
        return StorageUnavailable(
            f"Redis at {place} does not let its user do this ({reply.message}); see the ACL line in docs/redis.md",
            sent=False,
            final=True,
        )
    return StorageError(f"Redis at {place} refused a call: {reply.message}")


class Server:
    """A server that has all keys, so that a batch is one call, whatever its hash tags."""

    #: A call for each hash tag.
    spread = False

    def __init__(self, config: ServerConfig, timeout: float) -> None:
        self._config = config
        self._timeout = timeout
        self._connections: dict[Hashable, RedisConnection] = {}

    @property
    def place(self) -> str:
        """Where it is, as it may be shown."""
        return self._config.place

    def node_of(self, tag: int) -> Hashable:
        """What the keys of a hash tag share their lanes with.

        Two halves: while the server works on one, this process works on the other.
        """
        return tag % 2

    async def open(self, lane: Hashable) -> None:
        """Find out if anybody is there, over the connection of a lane."""
        await self._connection(lane).exchange([("PING",)])

    async def call(self, lane: Hashable, requests: Sequence[Request], wait: int = 0) -> list[Answer]:
        """Make these calls over the lane's connection. Refusals of whole calls are raised."""
        connection = self._connection(lane)
        answers = await ask(connection, requests, wait)
        for reply, _ in answers:
            if isinstance(reply, Refused):
                if reply.code in {"MOVED", "CROSSSLOT", "ASK"}:
                    raise StorageUnavailable(
                        f"Redis at {self.place} is part of a Cluster; use redis+cluster:// in its URL",
                        sent=False,
                        final=True,
                    )
                if reply.code == "READONLY":
                    await self.lost(lane)
                error = refused(reply, self.place)
                if isinstance(error, StorageUnavailable) and len(answers) > 1:
                    error.sent = True
                raise error
        return answers

    async def lost(self, lane: Hashable) -> None:
        """The server at the other end is not the one it was: connect anew, its name may lead elsewhere now."""
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
