"""Notices by LISTEN and NOTIFY."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import Any

from stepwell.storage.postgres.client import Options, PostgresConnection, Source
from stepwell.storage.transport import notices

__all__ = ["PostgresChannel", "channel_of"]

#: The longest name of a channel, in bytes.
_LONGEST_NAME = 63
#: A notice needs no disk: without this, its transaction would wait for it.
_NOTIFY = "select set_config('synchronous_commit', 'off', true), pg_notify($1, $2)"


def channel_of(schema: str) -> str:
    """Return the name of the channel of a schema."""
    name = f"stepwell:{schema}"
    return name if len(name) <= _LONGEST_NAME else f"stepwell:{sha256(schema.encode()).hexdigest()[:32]}"


class PostgresChannel(notices.NoticeChannel):
    """Sends notices over a connection of the storage, and receives them over its own.

    It does not listen over a given pool, whose connections it must not keep, nor without prepared statements, which is
    the setting for PgBouncer.
    """

    def __init__(self, source: Source, options: Options, other: PostgresConnection, schema: str) -> None:
        super().__init__()
        self._source = source
        self._options = options
        self._other = other
        self._name = channel_of(schema)
        self._listens = source.keeps and options.prepared_statements

    def start(self) -> None:
        if self._listens:
            super().start()

    async def _send(self, payload: str) -> None:
        await self._other.fetch(_NOTIFY, self._name, payload)

    async def _receive(self) -> str:
        own = PostgresConnection(self._source, self._options)
        try:
            return await own.call(self._listen)
        finally:
            await own.close()

    async def _listen(self, connection: Any) -> str:
        timeout = self._options.timeout
        if await connection.fetchval("select pg_backend_pid()", timeout=timeout) != connection.get_server_pid():
            # A pooler would run LISTEN in a session that other clients use too.
            return f"{self._source.server} is behind a connection pooler"
        lost = asyncio.Event()
        connection.add_termination_listener(lambda _: lost.set())
        # Not wait_for(): before Python 3.12 it loses a cancellation that comes together with the result.
        async with asyncio.timeout(timeout):
            await connection.add_listener(self._name, self._notified)
        self._begin()
        while True:
            try:
                async with asyncio.timeout(notices.CHECK_EVERY):
                    await lost.wait()
            except TimeoutError:
                # Without a call, a connection that is broken without a trace would never be noticed.
                await connection.fetchval("select 1", timeout=timeout)
            else:
                raise ConnectionResetError

    def _notified(self, connection: object, process: int, channel: str, payload: object) -> None:
        self._received(str(payload))
