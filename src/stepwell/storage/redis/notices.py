"""Notices by PUBLISH and SUBSCRIBE."""

from __future__ import annotations

from collections.abc import Hashable

from stepwell.errors import StorageUnavailable
from stepwell.storage.redis.client import Refused, Reply
from stepwell.storage.redis.server import Server
from stepwell.storage.redis.wire import failure
from stepwell.storage.transport import notices

__all__ = ["RedisChannel"]


class RedisChannel(notices.NoticeChannel):
    """Sends notices over a connection of the storage, and receives them over its own: in a Cluster, of any node."""

    def __init__(self, server: Server, lane: Hashable, name: str) -> None:
        super().__init__()
        self._server = server
        self._lane = lane
        self._name = name

    async def _send(self, payload: str) -> None:
        await self._server.publish(self._lane, self._name, payload)

    async def _receive(self) -> str:
        connection = await self._server.subscriber()
        try:
            (reply,) = await connection.exchange([("SUBSCRIBE", self._name)])
            if type(reply) is Refused:
                error = failure(f"{reply.code} {reply.message}", connection.location)
                if isinstance(error, StorageUnavailable) and error.final:
                    return str(error)
                raise error
            self._begin()
            while True:
                message = await connection.receive(notices.CHECK_EVERY)
                if message is None:
                    # Without a call, a connection that is broken without a trace would never be noticed. The reply is
                    # the answer, or a notice that arrives before it.
                    (message,) = await connection.exchange([("PING",)])
                self._handle(message)
        finally:
            await connection.close(wait=True)

    def _handle(self, message: Reply) -> None:
        if isinstance(message, list) and message[0] == "message":
            self._received(str(message[2]))
