"""Connections to PostgreSQL that reconnect after errors, and the translation of driver errors."""

from __future__ import annotations

import asyncio
import ssl
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast
from urllib.parse import SplitResult, parse_qsl, urlsplit

from stepwell._optional import require
from stepwell.errors import InvalidOption, StepwellError, StorageError, StorageFull, StorageUnavailable
from stepwell.options import check_number
from stepwell.storage.transport.timeout import CallTimeout
from stepwell.storage.urls import check_url

if TYPE_CHECKING:
    import asyncpg
    from asyncpg.pool import PoolConnectionProxy
else:
    asyncpg = require("asyncpg", "postgres")

__all__ = [
    "DRIVER_ERRORS",
    "DriverConnection",
    "Options",
    "Pool",
    "PoolSource",
    "PostgresConnection",
    "ServerError",
    "Source",
    "UrlSource",
    "split_url",
    "translated",
]

T = TypeVar("T")
Pool: TypeAlias = "asyncpg.Pool[Any]"
DriverConnection: TypeAlias = "asyncpg.Connection[Any]"
#: An error that the server reported.
ServerError = asyncpg.PostgresError


#: Bytes per read.
READ_SIZE = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Timeouts and settings of the connections."""

    #: Seconds for one call and for one connection attempt.
    timeout: float = 5.0
    connect_timeout: float = 5.0
    #: Off for PgBouncer, which also rejects our startup parameters.
    prepared_statements: bool = True

    def __post_init__(self) -> None:
        for name in ("timeout", "connect_timeout"):
            value = getattr(self, name)
            check_number(value, f"{name} must be a positive number of seconds, not {{}}", above=0)

    @property
    def lock_timeout(self) -> str:
        """Return a lock timeout below ``timeout``, so that the server reports the reason first."""
        return f"{max(1, int(self.timeout * 700))}ms"

    @property
    def statement_timeout(self) -> str:
        """Return a statement timeout below ``timeout``, for the same reason."""
        return f"{max(1, int(self.timeout * 900))}ms"


_URL_FORMAT = "use postgresql://user@host:5432/database"


def split_url(url: str) -> SplitResult:
    """Return the parts of a URL. Raises ``InvalidOption`` if it is not valid."""
    try:
        return urlsplit(url)
    except ValueError:
        # The original message may quote the password.
        raise InvalidOption(f"the URL is not valid; {_URL_FORMAT}") from None


class Source(ABC):
    """Opens or borrows connections."""

    #: The server without credentials, for messages.
    server: str
    #: Set by the batch function if the connection was not set up by us, else ``None``.
    lock_timeout: str | None
    #: Whether a connection is kept between calls.
    keeps: bool

    @abstractmethod
    async def acquire(self) -> asyncpg.Connection[Any]:
        """Return a connection for exclusive use."""

    @abstractmethod
    async def release(self, connection: asyncpg.Connection[Any], *, broken: bool) -> None:
        """Take back a connection that broke or is not kept."""

    @abstractmethod
    async def close(self, connection: asyncpg.Connection[Any]) -> None:
        """Close a connection that is no longer needed."""


class _Connection(asyncpg.Connection):
    """A connection with small read buffers.

    asyncio allocates 256 KB for every read and shrinks it immediately. Until the program has freed a block of that
    size, the C library maps each buffer again, which costs 25 to 40 us per read.
    """

    def __init__(self, protocol: Any, transport: Any, *rest: Any) -> None:
        super().__init__(protocol, transport, *rest)
        if hasattr(transport, "max_size"):
            transport.max_size = READ_SIZE


class UrlSource(Source):
    """Opens its own connections to a URL."""

    keeps = True

    def __init__(self, url: str, options: Options) -> None:
        check_url(url)
        self._url = url
        self._options = options
        self.server: str = _server_name(url)
        # PgBouncer rejects these as startup parameters.
        self.lock_timeout: str | None = None if options.prepared_statements else options.lock_timeout
        self._settings = {"application_name": "stepwell"}
        if options.prepared_statements:
            self._settings |= {
                "statement_timeout": options.statement_timeout,
                "lock_timeout": options.lock_timeout,
                "idle_in_transaction_session_timeout": "60s",
                "default_transaction_isolation": "read committed",
                "jit": "off",
                # Every query has an index, and plans are kept while tables grow.
                "enable_seqscan": "off",
                "enable_bitmapscan": "off",
                "enable_hashjoin": "off",
                "enable_mergejoin": "off",
                "plan_cache_mode": "force_generic_plan",
            }

    async def acquire(self) -> asyncpg.Connection[Any]:
        return await self._connect()

    async def _connect(self, **server: Any) -> asyncpg.Connection[Any]:
        """Open a connection, by default to the server of the URL."""
        connection: asyncpg.Connection[Any] = await asyncpg.connect(
            self._url,
            **server,
            timeout=self._options.connect_timeout,
            statement_cache_size=100 if self._options.prepared_statements else 0,
            # There are only a few statements, so they are kept for the life of the connection.
            max_cached_statement_lifetime=0,
            connection_class=_Connection,
            server_settings=self._settings,
        )
        return connection

    async def release(self, connection: asyncpg.Connection[Any], *, broken: bool) -> None:
        connection.terminate()

    async def close(self, connection: asyncpg.Connection[Any]) -> None:
        try:
            await connection.close(timeout=1)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            connection.terminate()


class PoolSource(Source):
    """Borrows a connection of a given pool for each call. Never closes the pool."""

    keeps = False

    def __init__(self, pool: Pool, options: Options) -> None:
        self._pool = pool
        self._options = options
        self.server: str = "the server of the given pool"
        self.lock_timeout: str | None = options.lock_timeout

    async def acquire(self) -> asyncpg.Connection[Any]:
        return cast("asyncpg.Connection[Any]", await self._pool.acquire(timeout=self._options.connect_timeout))

    async def release(self, connection: asyncpg.Connection[Any], *, broken: bool) -> None:
        if broken:
            connection.terminate()
        await self.close(connection)

    async def close(self, connection: asyncpg.Connection[Any]) -> None:
        with suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            await self._pool.release(cast("PoolConnectionProxy[Any]", connection), timeout=self._options.timeout)


class PostgresConnection:
    """A connection that is opened on first use and reopened after errors. Runs one call at a time."""

    def __init__(self, source: Source, options: Options) -> None:
        self._source = source
        self._options = options
        self._lock = asyncio.Lock()
        self._timeout = CallTimeout(options.timeout)
        self._connection: asyncpg.Connection[Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def is_open(self) -> bool:
        """Whether a connection is kept, as far as known."""
        return self._connection is not None

    def fetch(self, query: str, *args: Any) -> Awaitable[list[Any]]:
        """Run one statement in its own transaction and return its rows."""
        if self._options.prepared_statements:
            return self.call(methodcaller("fetch", query, *args), self._timeout)
        return self.call(partial(_fetch_in_transaction, query, args), self._timeout)

    async def call(
        self, work: Callable[[asyncpg.Connection[Any]], Awaitable[T]], timeout: CallTimeout | None = None
    ) -> T:
        """Call a function with the asyncpg connection. Translates driver errors."""
        # The lock of this loop: abandoned calls of a closed loop must not release a newer lock.
        lock, source = self._lock, self._source
        await lock.acquire()
        # A cancelled call also breaks it: its late answer must not be read by the next call.
        broken = True
        connection = None
        try:
            connection = self._connection
            if connection is None or connection.is_closed():
                connection = await self._connect()
            if timeout is not None:
                timeout.start()
            result = await work(connection)
            broken = False
            return result
        except asyncio.CancelledError as error:
            if timeout is None or not timeout.end():
                raise
            raise translated(TimeoutError(), source.server, sent=True) from error
        except StepwellError:
            broken = False
            raise
        except DRIVER_ERRORS as error:
            broken = not _survived(error)
            raise translated(error, source.server, sent=True) from _without_secrets(error)
        finally:
            if timeout is not None:
                timeout.end()
            kept = source.keeps and not broken
            if self._lock is lock:
                self._connection = connection if kept else None
            try:
                if not kept and connection is not None:
                    await source.release(connection, broken=broken)
            finally:
                lock.release()

    async def close(self) -> None:
        """Close the connection after the current call."""
        self._timeout.close()
        if self._loop is not None and self._loop.is_closed():
            # Calls of a closed loop never end, so they never release the lock.
            self._lock = asyncio.Lock()
            if self._connection is not None:
                with suppress(RuntimeError):
                    self._connection.terminate()
            self._connection = self._loop = None
        async with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                await self._source.close(connection)

    async def _connect(self) -> asyncpg.Connection[Any]:
        self._connection, self._loop = None, asyncio.get_running_loop()
        try:
            return await self._source.acquire()
        except StepwellError:
            raise
        except DRIVER_ERRORS as error:
            raise translated(error, self._source.server, sent=False) from _without_secrets(error)


async def _fetch_in_transaction(query: str, args: Sequence[Any], connection: asyncpg.Connection[Any]) -> list[Any]:
    # An unnamed statement is parsed and executed separately; a transaction keeps both on one server connection.
    async with connection.transaction():
        return await connection.fetch(query, *args)


#: Includes internal errors, which asyncpg raises while the server ends a connection.
DRIVER_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
    ValueError,
)


def _server_name(url: str) -> str:
    """Return host, port and database of a URL, for messages."""
    parts = split_url(url)
    hosts = parts.netloc.rpartition("@")[2] or dict(parse_qsl(parts.query)).get("host", "")
    return f"PostgreSQL at {hosts or 'its default address'}{parts.path}"


def _without_secrets(error: BaseException) -> BaseException | None:
    # A ValueError of the driver quotes the URL or value, which may include a password.
    return None if isinstance(error, ValueError) else error


#: The server rolled back everything: safe to retry.
_RETRYABLE = ("40001", "40P01", "55P03", "57014", "53200", "53300", "53400", "57P03")
#: Not retryable.
_FINAL = ("28", "3D", "42501", "08004")


def _survived(error: BaseException) -> bool:
    """Return whether the connection is usable after this error."""
    if not isinstance(error, asyncpg.PostgresError):
        return False
    state = error.sqlstate or ""
    return not state.startswith(("08", "57P", "XX", "25", "3D", "28"))


def translated(error: BaseException, server: str, *, sent: bool) -> StepwellError:
    """Return our error for a driver error, without quoting data or a password."""
    if isinstance(error, asyncpg.PostgresError):
        return _translated_state(error, error.sqlstate or "", server, sent)
    if isinstance(error, TimeoutError):
        what = "did not answer" if sent else "could not be connected to"
        return StorageUnavailable(
            f"{server} {what} in time; check that it is up and reachable, or raise timeout=...", sent=sent
        )
    if isinstance(error, ValueError) and sent:
        return StorageError(
            f"{server} cannot store a name or text of this call, perhaps a lone surrogate; nothing was written"
        )
    if isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError):
        return InvalidOption(f"the URL of {server} has an option that asyncpg does not accept ({type(error).__name__})")
    if isinstance(error, ssl.SSLError) or (isinstance(error, ConnectionError) and "SSL" in str(error)):
        return StorageUnavailable(
            f"{server} and the client cannot agree on TLS ({error}); set sslmode=... to a supported mode in the URL",
            sent=False,
            final=True,
        )
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return StorageUnavailable(f"{server}: none of the servers accepts writes ({error})", sent=False)
    if isinstance(error, OSError):
        return StorageUnavailable(
            f"the connection to {server} {'broke' if sent else 'could not be opened'} ({_reason(error)}); "
            "check that the server is up and its address is right",
            sent=sent,
        )
    if isinstance(error, ValueError):
        return InvalidOption(f"the URL of {server} is not valid; {_URL_FORMAT}")
    return StorageUnavailable(f"the connection to {server} broke ({type(error).__name__})", sent=sent)


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__


def _translated_state(error: asyncpg.PostgresError, state: str, server: str, sent: bool) -> StepwellError:
    if state == "25006":
        return StorageUnavailable(
            f"{server} is read-only, perhaps a standby after a failover; name all servers in the URL, "
            "such as postgresql://one,two/database",
            sent=False,
        )
    if state in ("53100", "53000"):
        return StorageFull(f"{server} has no disk space left; nothing was written")
    if state == "08P01" and "startup parameter" in str(error):
        return StorageUnavailable(
            f"{server} rejects our connection settings ({error.args[0]}), as PgBouncer does; "
            "add prepared_statements=false to the URL",
            sent=False,
            final=True,
        )
    if state.startswith(_FINAL):
        return StorageUnavailable(f"{server} refused access: {error.args[0]}", sent=False, final=True)
    if state.startswith(_RETRYABLE):
        return StorageUnavailable(f"{server} rejected this call: {error.args[0]}", sent=False)
    if state.startswith(("08", "57P", "25P03")):
        return StorageUnavailable(f"{server} ended the connection: {error.args[0]}", sent=sent)
    if state in ("42P01", "42883", "3F000"):
        return StorageError(
            f"the tables of this storage are missing from {server}; close and open it to create them again"
        )
    if not sent:
        return StorageUnavailable(f"{server} refused the connection: {error.args[0]}", sent=False, final=True)
    # Other messages may quote data.
    return StorageError(f"{server} failed with {type(error).__name__} ({state}); nothing was written")
