"""Connections to PostgreSQL: made when they are needed, replaced when they break, and what their errors mean."""

from __future__ import annotations

import asyncio
import ssl
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit, urlunsplit

from stepwell._optional import require
from stepwell.errors import InvalidOption, StepwellError, StorageError, StorageFull, StorageUnavailable
from stepwell.storage.urls import check_url

if TYPE_CHECKING:
    import asyncpg
    from asyncpg.pool import PoolConnectionProxy
else:
    asyncpg = require("asyncpg", "postgres")

__all__ = ["Link", "Options", "Pool", "PoolSource", "Source", "UrlSource", "split_url"]

Pool: TypeAlias = "asyncpg.Pool[Any]"

#: Bytes; an answer that is longer is read in pieces.
READ_AT_ONCE = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How connections are made and used."""

    #: Seconds for one call, and for one attempt to connect.
    timeout: float = 5.0
    connect_timeout: float = 5.0
    #: Off for PgBouncer, which also does not know our settings for a connection.
    prepared_statements: bool = True

    def __post_init__(self) -> None:
        for name in ("timeout", "connect_timeout"):
            value = getattr(self, name)
            if not value > 0:
                raise InvalidOption(f"{name} is a positive number of seconds, not {value!r}")

    @property
    def lock_timeout(self) -> str:
        """Shorter than a call may take, so that the server gives up first and says why."""
        return f"{max(1, int(self.timeout * 700))}ms"

    @property
    def statement_timeout(self) -> str:
        """As above."""
        return f"{max(1, int(self.timeout * 900))}ms"


_LOOKS_LIKE = "it looks like postgresql://user@host:5432/database"


def split_url(url: str, ours: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The URL without the options that are ours, and those."""
    check_url(url)
    parts = _parts(url)
    query = parse_qsl(parts.query, keep_blank_values=True)
    found = {name: value for name, value in query if name in ours}
    rest = urlencode([(name, value) for name, value in query if name not in ours])
    return urlunsplit(parts._replace(query=rest)), found


def _parts(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        # What it says may quote the password.
        raise InvalidOption(f"the URL cannot be read; {_LOOKS_LIKE}") from None


class Source(ABC):
    """Where connections come from."""

    #: For messages: where the server is, without anything secret.
    place: str
    #: What the batch function must set for itself, because the connection may not be ours to set up.
    lock_timeout: str | None
    #: A connection may be used for one call after the other.
    keeps: bool

    @abstractmethod
    async def take(self) -> asyncpg.Connection[Any]:
        """A connection that nobody else uses."""

    @abstractmethod
    async def give_back(self, connection: asyncpg.Connection[Any], *, broken: bool) -> None:
        """The caller is done with a connection: it broke, or it is not to be kept."""

    @abstractmethod
    async def end(self, connection: asyncpg.Connection[Any]) -> None:
        """The caller will not need a connection any more."""


class _Connection(asyncpg.Connection):
    """One that reads into small buffers.

    asyncio makes one of 256 KB for every read and shrinks it at once. Until a program has freed something as
    large, the C library asks the system for each: 25 to 40 us an answer.
    """

    def __init__(self, protocol: Any, transport: Any, *rest: Any) -> None:
        super().__init__(protocol, transport, *rest)
        if hasattr(transport, "max_size"):
            transport.max_size = READ_AT_ONCE


class UrlSource(Source):
    """Connections of our own."""

    keeps = True

    def __init__(self, url: str, options: Options) -> None:
        check_url(url)
        self._url = url
        self._options = options
        self.place = _place(url)
        # PgBouncer does not know these as start-up parameters.
        self.lock_timeout = None if options.prepared_statements else options.lock_timeout
        self._settings = {"application_name": "stepwell"}
        if options.prepared_statements:
            self._settings |= {
                "statement_timeout": options.statement_timeout,
                "lock_timeout": options.lock_timeout,
                "idle_in_transaction_session_timeout": "60s",
                "default_transaction_isolation": "read committed",
                "jit": "off",
                # There is an index for all that we ask, and plans are kept while tables grow.
                "enable_seqscan": "off",
                "enable_bitmapscan": "off",
                "enable_hashjoin": "off",
                "enable_mergejoin": "off",
                "plan_cache_mode": "force_generic_plan",
            }

    async def take(self) -> asyncpg.Connection[Any]:
        connection: asyncpg.Connection[Any] = await asyncpg.connect(
            self._url,
            timeout=self._options.connect_timeout,
            statement_cache_size=100 if self._options.prepared_statements else 0,
            # A few statements for as long as the connection lives: planning them again would be waste.
            max_cached_statement_lifetime=0,
            connection_class=_Connection,
            server_settings=self._settings,
        )
        return connection

    async def give_back(self, connection: asyncpg.Connection[Any], *, broken: bool) -> None:
        connection.terminate()

    async def end(self, connection: asyncpg.Connection[Any]) -> None:
        try:
            await connection.close(timeout=1)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            connection.terminate()


class PoolSource(Source):
    """Connections of somebody else's pool, each only for one call. The pool is never closed here."""

    keeps = False

    def __init__(self, pool: Pool, options: Options) -> None:
        self._pool = pool
        self._options = options
        self.place = "the given pool's server"
        self.lock_timeout = options.lock_timeout

    async def take(self) -> asyncpg.Connection[Any]:
        return cast("asyncpg.Connection[Any]", await self._pool.acquire(timeout=self._options.connect_timeout))

    async def give_back(self, connection: asyncpg.Connection[Any], *, broken: bool) -> None:
        if broken:
            connection.terminate()
        await self.end(connection)

    async def end(self, connection: asyncpg.Connection[Any]) -> None:
        with suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            await self._pool.release(cast("PoolConnectionProxy[Any]", connection), timeout=self._options.timeout)


class Link:
    """One connection at a time, one call at a time."""

    def __init__(self, source: Source, options: Options) -> None:
        self._source = source
        self._options = options
        self._lock = asyncio.Lock()
        self._connection: asyncpg.Connection[Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def fetch(self, query: str, *args: Any) -> list[Any]:
        """The rows of one statement, which is one transaction."""
        async with _Use(self) as connection:
            if self._options.prepared_statements:
                rows: list[Any] = await connection.fetch(query, *args, timeout=self._options.timeout)
                return rows
            # Without a name for the statement its two halves must reach the same server.
            async with asyncio.timeout(self._options.timeout), connection.transaction():
                return await connection.fetch(query, *args)

    async def fetch_whole(self, query: str, *args: Any) -> list[Any]:
        """As ``fetch``, of a statement that divides by zero rather than do only a part; then there are no rows."""
        try:
            return await self.fetch(query, *args)
        except StorageError as error:
            if isinstance(error.__cause__, asyncpg.DivisionByZeroError):
                return []
            raise

    def connection(self) -> _Use:
        """``async with`` the connection itself, for several statements. Driver errors come out as ours."""
        return _Use(self)

    async def close(self) -> None:
        """Give the connection up, when the call that is under way is over."""
        if self._loop is not None and self._loop.is_closed():
            # It took the calls that were under way along, and the lock with them.
            self._lock = asyncio.Lock()
            if self._connection is not None:
                with suppress(RuntimeError):
                    self._connection.terminate()
            self._connection = self._loop = None
        async with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                await self._source.end(connection)

    async def _ready(self) -> asyncpg.Connection[Any]:
        if self._connection is not None:
            if not self._connection.is_closed():
                return self._connection
            self._connection = None
        self._loop = asyncio.get_running_loop()
        try:
            return await self._source.take()
        except _DRIVER_ERRORS as error:
            raise _explained(error, self._source.place, sent=False) from _without_secrets(error)


class _Use:
    """A link's connection for as long as somebody has it; nobody else does then."""

    __slots__ = ("_connection", "_link", "_lock")

    def __init__(self, link: Link) -> None:
        self._link = link
        # Of this loop: one that was closed may have left calls behind, which end when they are thrown away.
        self._lock = link._lock

    async def __aenter__(self) -> asyncpg.Connection[Any]:
        await self._lock.acquire()
        try:
            self._connection = await self._link._ready()
        except BaseException:
            self._lock.release()
            raise
        return self._connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        link, source = self._link, self._link._source
        ours = error is None or isinstance(error, StepwellError)
        # Also after a cancellation: an answer that nobody waits for must not meet the next question.
        broken = not ours and not (isinstance(error, _DRIVER_ERRORS) and _survived(error))
        try:
            kept = source.keeps and not broken
            if link._lock is self._lock:
                link._connection = self._connection if kept else None
            if not kept:
                await source.give_back(self._connection, broken=broken)
        finally:
            self._lock.release()
        if isinstance(error, _DRIVER_ERRORS) and not ours:
            raise _explained(error, source.place, sent=True) from _without_secrets(error)


#: Internal errors too: a connection that the server is just ending has them.
_DRIVER_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
    ValueError,
)


def _place(url: str) -> str:
    """Host, port and database of a URL, for messages."""
    parts = _parts(url)
    hosts = parts.netloc.rpartition("@")[2] or dict(parse_qsl(parts.query)).get("host", "")
    return f"PostgreSQL at {hosts or 'its default address'}{parts.path}"


def _without_secrets(error: BaseException) -> BaseException | None:
    # What the driver says about a URL or a value that it cannot use quotes it, password and all.
    return None if isinstance(error, ValueError) else error


#: Rolled back by the server, whole and certain: safe to send again.
_AGAIN = ("40001", "40P01", "55P03", "57014", "53200", "53300", "53400", "57P03")
#: Nothing to hope for from trying again.
_HOPELESS = ("28", "3D", "42501", "08004")


def _survived(error: BaseException) -> bool:
    """The connection can still be used after this error."""
    if not isinstance(error, asyncpg.PostgresError):
        return False
    state = error.sqlstate or ""
    return not state.startswith(("08", "57P", "XX", "25", "3D", "28"))


def _explained(error: BaseException, place: str, *, sent: bool) -> StepwellError:
    """Our error for one of the driver's. It quotes nothing that could be data or a password."""
    if isinstance(error, asyncpg.PostgresError):
        return _explained_state(error, error.sqlstate or "", place, sent)
    if isinstance(error, TimeoutError):
        what = "did not answer" if sent else "could not be connected to"
        return StorageUnavailable(
            f"{place} {what} in time; see whether it is up and reachable, or raise timeout=...", sent=sent
        )
    if isinstance(error, ValueError) and sent:
        return StorageError(f"{place} cannot hold a name or a text of this call, perhaps a lone surrogate; not written")
    if isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError):
        return InvalidOption(f"the URL of {place} has an option that asyncpg cannot use ({type(error).__name__})")
    if isinstance(error, ssl.SSLError) or (isinstance(error, ConnectionError) and "SSL" in str(error)):
        return StorageUnavailable(
            f"{place} and this client do not agree about TLS ({error}); set sslmode=... in the URL to what it offers",
            sent=False,
            final=True,
        )
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return StorageUnavailable(f"{place}: none of the servers accepts writes ({error})", sent=False)
    if isinstance(error, OSError):
        return StorageUnavailable(
            f"the connection to {place} {'broke' if sent else 'could not be made'} ({_reason(error)}); "
            "see whether the server is up and its address right",
            sent=sent,
        )
    if isinstance(error, ValueError):
        return InvalidOption(f"the URL of {place} cannot be read; {_LOOKS_LIKE}")
    return StorageUnavailable(f"the connection to {place} broke ({type(error).__name__})", sent=sent)


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__


def _explained_state(error: asyncpg.PostgresError, state: str, place: str, sent: bool) -> StepwellError:
    if state == "25006":
        return StorageUnavailable(
            f"{place} is read-only, perhaps a standby after a failover; name all servers in the URL "
            "and add target_session_attrs=read-write",
            sent=False,
        )
    if state in ("53100", "53000"):
        return StorageFull(f"{place} has no room left; nothing was written")
    if state == "08P01" and "startup parameter" in str(error):
        return StorageUnavailable(
            f"{place} does not know our settings ({error.args[0]}), as PgBouncer does not; "
            "add prepared_statements=false to the URL",
            sent=False,
            final=True,
        )
    if state.startswith(_HOPELESS):
        return StorageUnavailable(f"{place} refused us: {error.args[0]}", sent=False, final=True)
    if state.startswith(_AGAIN):
        return StorageUnavailable(f"{place} gave up on this call: {error.args[0]}", sent=False)
    if state.startswith(("08", "57P", "25P03")):
        return StorageUnavailable(f"{place} ended the connection: {error.args[0]}", sent=sent)
    if state in ("42P01", "42883", "3F000"):
        return StorageError(f"the tables of this storage are gone from {place}; close and open it to make them again")
    if not sent:
        return StorageUnavailable(f"{place} refused the connection: {error.args[0]}", sent=False, final=True)
    # What other messages quote may be data.
    return StorageError(f"{place} failed with {type(error).__name__} ({state}); nothing was written")
