"""Several servers in one URL: a primary and its standbys, one of which may be promoted at any time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeAlias
from urllib.parse import parse_qsl, unquote
from weakref import WeakKeyDictionary

from stepwell.errors import InvalidOption, StepwellError, StorageUnavailable
from stepwell.storage.postgres.client import (
    DRIVER_ERRORS,
    DriverConnection,
    Options,
    ServerError,
    UrlSource,
    split_url,
    translated,
)

__all__ = ["Host", "PrimarySource", "hosts_of"]

#: Seconds to wait for the other servers after one of them accepts writes: perhaps it is a primary that was replaced.
OTHERS = 0.25
#: Seconds between two looks for a server that was promoted while the old primary goes on.
CHECK_EVERY = 10.0
#: Values of target_session_attrs that a storage supports.
_WRITABLE = (None, "read-write", "primary")

#: A server that has been promoted has a higher timeline, which begins the name of a file of its log.
_ROLE = "select pg_is_in_recovery(), current_setting('transaction_read_only') = 'on'"
_TIMELINE = "select ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer"

#: The timeline of a server that accepts writes, and a connection to it.
_Attempt: TypeAlias = "asyncio.Task[tuple[int, DriverConnection]]"


class Host(NamedTuple):
    """One server of a URL."""

    name: str
    port: int

    def __str__(self) -> str:
        return f"{self.name}:{self.port}"


def hosts_of(url: str) -> list[Host]:
    """Return the servers that a URL names, in its netloc or in its options ``host`` and ``port``."""
    parts = split_url(url)
    options = dict(parse_qsl(parts.query))
    netloc = parts.netloc.rpartition("@")[2]
    names = (netloc or options.get("host", "")).split(",")
    ports = options.get("port", os.environ.get("PGPORT", "5432")).split(",")
    found = []
    for number, text in enumerate(names):
        name, colon, port = text.rpartition(":")
        if not colon or port.endswith("]"):
            name, port = text, ports[number % len(ports)]
        try:
            found.append(Host((unquote(name) if netloc else name).strip("[]"), int(port)))
        except ValueError:
            raise InvalidOption(f"the port of server {number + 1} of the PostgreSQL URL is not a number") from None
    return found


class _Refused(Exception):
    """A server that was reached does not accept writes."""


class PrimarySource(UrlSource):
    """Opens connections to the server that accepts writes, among several.

    It connects to all servers at once, so that a server that does not answer delays nothing. If several accept writes,
    the one that was promoted last is used: a primary that failed may start again and not know that it was replaced.
    """

    def __init__(self, url: str, options: Options, hosts: Sequence[Host]) -> None:
        super().__init__(url, options)
        wanted = dict(parse_qsl(split_url(url).query)).get("target_session_attrs")
        if wanted not in _WRITABLE:
            raise InvalidOption(
                f"target_session_attrs={wanted} is not supported: a storage needs the server that accepts writes; "
                "use read-write, which is the default with several servers"
            )
        self._hosts = tuple(hosts)
        #: The highest timeline of a server that was used.
        self._timeline = 0
        self._opened: WeakKeyDictionary[DriverConnection, int] = WeakKeyDictionary()

    async def acquire(self) -> DriverConnection:
        attempts = self._attempts()
        chosen: DriverConnection | None = None
        try:
            primaries = await self._primaries(attempts)
            if not primaries:
                raise self._unavailable(attempts)
            timeline, found = max(primaries, key=lambda found: found[0])
            self._follow(timeline)
            if timeline < self._timeline:
                # Another connection has found the promoted server meanwhile.
                raise StorageUnavailable(f"{self.server} has just promoted another server", sent=False)
            chosen = found
            self._opened[chosen] = timeline
        finally:
            _end(attempts, chosen)
        return chosen

    async def watch(self) -> None:
        """Look for a promoted server again and again, and close the connections to one that it has replaced."""
        while True:
            await asyncio.sleep(CHECK_EVERY)
            attempts = self._attempts()
            try:
                for timeline, _ in await self._primaries(attempts):
                    self._follow(timeline)
            finally:
                _end(attempts, None)

    async def roles(self) -> dict[str, str]:
        """Return for each server whether it "accepts writes" or "is a standby", or why it cannot be used."""
        attempts = self._attempts()
        try:
            await asyncio.wait(attempts, timeout=self._options.connect_timeout)
            return {
                str(host): "accepts writes"
                if attempt.done() and attempt.exception() is None
                else _reason(attempt, host)
                for attempt, host in attempts.items()
            }
        finally:
            _end(attempts, None)

    def _attempts(self) -> dict[_Attempt, Host]:
        return {asyncio.ensure_future(self._attempt(host)): host for host in self._hosts}

    async def _primaries(self, attempts: dict[_Attempt, Host]) -> list[tuple[int, DriverConnection]]:
        """Return the servers that accept writes, with their timelines."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._options.connect_timeout
        found: list[tuple[int, DriverConnection]] = []
        pending = set(attempts)
        while pending:
            done, pending = await asyncio.wait(
                pending, timeout=max(0.0, give_up - loop.time()), return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                break
            for attempt in done:
                if attempt.exception() is None:
                    found.append(attempt.result())
                    give_up = min(give_up, loop.time() + OTHERS)
        return found

    async def _attempt(self, host: Host) -> tuple[int, DriverConnection]:
        """Connect to one server. Raises ``_Refused`` if it does not accept writes."""
        connection = await self._connect(host=host.name, port=host.port, target_session_attrs="any")
        try:
            # Behind PgBouncer, a transaction keeps a statement on one connection.
            async with connection.transaction():
                ((standby, read_only),) = await connection.fetch(_ROLE)
            if standby or read_only:
                raise _Refused("is a standby" if standby else "is read-only")
            timeline = await _timeline(connection)
            if timeline < self._timeline:
                raise _Refused(f"was replaced by a server that was promoted (timeline {timeline} < {self._timeline})")
        except BaseException:
            connection.terminate()
            raise
        return timeline, connection

    def _follow(self, timeline: int) -> None:
        """Close the connections to servers of lower timelines: they were replaced, and may still accept writes."""
        self._timeline = max(self._timeline, timeline)
        for other, its_timeline in list(self._opened.items()):
            if its_timeline < self._timeline:
                with suppress(RuntimeError):
                    other.terminate()

    def _unavailable(self, attempts: dict[_Attempt, Host]) -> Exception:
        """Return an error that says why each server cannot be used."""
        reasons = []
        final = []
        for attempt, host in attempts.items():
            reasons.append(f"{host} {_reason(attempt, host)}")
            error = _error(attempt, host)
            if isinstance(error, InvalidOption) or (isinstance(error, StorageUnavailable) and error.final):
                final.append(error)
        if len(final) == len(attempts):
            return final[0]
        return StorageUnavailable(
            f"no server of {self.server} accepts writes; promote a standby or start the primary ({'; '.join(reasons)})",
            sent=False,
        )


def _error(attempt: _Attempt, host: Host) -> Exception:
    """Return the error of an attempt that failed or has not ended."""
    error = attempt.exception() if attempt.done() else TimeoutError()
    if isinstance(error, DRIVER_ERRORS):
        return translated(error, str(host), sent=False)
    assert isinstance(error, Exception)
    return error


def _reason(attempt: _Attempt, host: Host) -> str:
    error = _error(attempt, host)
    if isinstance(error, _Refused):
        return str(error)
    if not isinstance(error, StepwellError):
        # A defect, not an outage.
        raise error
    return f"cannot be used: {error}"


async def _timeline(connection: DriverConnection) -> int:
    """Return the timeline of a primary, or 0 if the server does not tell it."""
    try:
        async with connection.transaction():
            return int(await connection.fetchval(_TIMELINE))
    except ServerError:
        return 0


def _end(attempts: Iterable[_Attempt], chosen: DriverConnection | None) -> None:
    """End all attempts, and close their connections except the chosen one."""
    for attempt in attempts:
        attempt.cancel()
        attempt.add_done_callback(lambda done: _discard(done, chosen))


def _discard(attempt: _Attempt, chosen: object) -> None:
    """Close the connection of a server that is not used."""
    if not attempt.cancelled() and attempt.exception() is None and attempt.result()[1] is not chosen:
        attempt.result()[1].terminate()
