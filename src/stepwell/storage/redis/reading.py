"""Reading the keys of another program from a Redis server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Self

from stepwell.errors import InvalidOption
from stepwell.storage.redis.client import Command, RedisConnection, Refused, Reply, configs_of_url
from stepwell.storage.redis.wire import failure

__all__ = ["RedisKeys"]

#: How many keys one ``SCAN`` looks at.
SCANNED = 1000
#: Seconds to wait for one answer. A page of large values takes long.
TIMEOUT = 30.0
_GLOB = str.maketrans({sign: f"\\{sign}" for sign in "\\*?[]^-"})


class RedisKeys:
    """The keys of one database, read in pages and never written. ``async with`` closes the connection."""

    def __init__(self, url: str) -> None:
        config, *_ = configs_of_url(url)
        if config.cluster:
            raise InvalidOption("keys of a Redis Cluster cannot be read; give the URL of a single server")
        self._connection = RedisConnection(config, TIMEOUT)

    @property
    def location(self) -> str:
        """The host and port, without credentials."""
        return f"Redis at {self._connection.location}"

    async def pages(self, prefix: str) -> AsyncIterator[list[str]]:
        """Yield all keys that begin with a prefix. A key may be repeated."""
        cursor = "0"
        while True:
            wanted = ("SCAN", cursor, "MATCH", prefix.translate(_GLOB) + "*", "COUNT", str(SCANNED))
            reply = await self._one(wanted)
            cursor = str(reply[0])
            yield reply[1]
            if cursor == "0":
                return

    async def values(self, keys: Sequence[str]) -> list[str | None]:
        """Return the texts of keys; ``None`` for a key that does not exist or has no text.

        Bytes that are not UTF-8 become lone surrogates.
        """
        return list(await self._one(("MGET", *keys))) if keys else []

    async def kinds(self, keys: Sequence[str]) -> list[str]:
        """Return the types of keys: ``string``, ``hash``, ``none``."""
        return [str(reply) for reply in await self._connection.exchange([("TYPE", key) for key in keys])]

    async def _one(self, command: Command) -> Reply:
        (reply,) = await self._connection.exchange([command])
        if type(reply) is Refused:
            raise failure(f"{reply.code} {reply.message}", self._connection.location)
        return reply

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._connection.close(wait=True)
