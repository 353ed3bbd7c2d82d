"""Connections to Redis servers."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import unquote, urlsplit

from stepwell._optional import require
from stepwell.errors import InvalidOption, StorageUnavailable
from stepwell.storage.transport.timeout import CallTimeout
from stepwell.storage.urls import check_url

_redis = require("redis", "redis")
_asyncio = require("redis.asyncio", "redis")
_connections = require("redis.asyncio.connection", "redis")
_errors = require("redis.exceptions", "redis")
_sentinel = require("redis.asyncio.sentinel", "redis")

__all__ = [
    "DRIVER_ERRORS",
    "Command",
    "RedisConnection",
    "Refused",
    "Reply",
    "ServerConfig",
    "configs_of_client",
    "configs_of_url",
]

Command: TypeAlias = tuple[str | bytes, ...]
Reply: TypeAlias = Any

#: What redis-py raises if a server does not answer, or refuses.
DRIVER_ERRORS: Final[tuple[type[Exception], ...]] = (_errors.RedisError, _errors.RedisClusterException, OSError)

#: Options of every connection. They replace those of its URL or client.
_OPTIONS: Final[Mapping[str, Any]] = {
    "decode_responses": True,
    "encoding": "utf-8",
    # Invalid UTF-8 must affect its own record only: the codec detects it by the checksum.
    "encoding_errors": "surrogateescape",
    # ``exchange`` has one timeout for connecting, sending and reading.
    "socket_timeout": None,
    "socket_connect_timeout": None,
    # The lane retries: it knows whether a batch was sent.
    "retry": None,
    "retry_on_error": [],
    "retry_on_timeout": False,
    "health_check_interval": 0,
}
#: The name and version that the driver sends. Newer drivers read their version from a file for each connection
#: that has no such argument, and that takes most of the time of creating one.
_DRIVER: Final = {"driver_info": _redis.DriverInfo()} if hasattr(_redis, "DriverInfo") else {}
#: Arguments that a pool adds for itself; they would keep our connections alive or change them.
_POOL_ARGUMENTS: Final = frozenset(
    {
        "maint_notifications_config",
        "maint_notifications_pool_handler",
        "oss_cluster_maint_notifications_handler",
        "event_dispatcher",
        "himport_registry",
    }
)
#: TLS options that name a file or a folder.
_TLS_FILES: Final = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")
_ENCODED: Final = "special characters in a password must be %-encoded"


class Refused(NamedTuple):
    """An error reply: its code in capitals, and the server's message."""

    code: str
    message: str


class ServerConfig(NamedTuple):
    """The address, credentials and options of a server. Its ``repr`` does not show the password."""

    kind: Any
    arguments: dict[str, Any]
    #: It is a node of a Cluster.
    cluster: bool = False
    #: The name under which Sentinels know this server, and the Sentinels. They give its address.
    master: str = ""
    sentinels: tuple[Any, ...] = ()
    #: How many replicas must have a write before it is acknowledged, with ``durability="wait"``.
    copies: int = 1

    @classmethod
    def from_url(cls, url: str) -> ServerConfig:
        """Parse ``redis://``, ``rediss://`` or ``unix://``; the query has options of redis-py."""
        check_url(url)
        try:
            arguments = dict(_connections.parse_url(url))
        except ValueError as error:
            # The driver's message may contain a part of the password, unless it names an option.
            text = str(error)
            if text.startswith("Port "):
                text = "its port must be a number up to 65535" + (f", and {_ENCODED}" if "@" in url else "")
            elif not text.startswith("Invalid value for"):
                text = _ENCODED
            raise InvalidOption(f"invalid Redis URL: {text}") from None
        if "path" not in arguments:
            _check_database(url)
        kind = arguments.pop("connection_class", _connections.Connection)
        return cls.from_arguments(kind, arguments)

    @classmethod
    def from_arguments(cls, kind: Any, arguments: Mapping[str, Any]) -> ServerConfig:
        """Check the class and arguments of a redis-py connection."""
        ours = {name: value for name, value in arguments.items() if name not in _POOL_ARGUMENTS}
        ours.update(_OPTIONS)
        if not ours.keys() & {"driver_info", "lib_name", "lib_version"}:
            ours.update(_DRIVER)
        if issubclass(kind, _connections.SSLConnection):
            # Old drivers do not check it by default.
            ours.setdefault("ssl_check_hostname", ours.get("ssl_cert_reqs") not in ("none", ssl.CERT_NONE))
        try:
            kind(**ours)
        except TypeError as error:
            # The message ends with: got an unexpected keyword argument 'x'.
            raise InvalidOption(f"Redis connections have no option {str(error).rpartition(' ')[2]}") from None
        except (_errors.RedisError, ValueError) as error:
            raise InvalidOption(f"invalid Redis option: {error}") from None
        return cls(kind, ours)

    def with_address(self, host: str, port: int) -> ServerConfig:
        """Return the same config for another server."""
        return self._replace(arguments={**self.arguments, "host": host, "port": port})

    def for_messages(self) -> ServerConfig:
        """Return the same server with the older protocol, in which messages are ordinary replies."""
        return self._replace(arguments={**self.arguments, "protocol": 2})

    def for_cluster(self) -> ServerConfig:
        """Return the same server as a node of a Cluster."""
        if self.arguments.get("db"):
            raise InvalidOption(
                "a Redis Cluster has only database 0; remove the database, and separate programs by prefix="
            )
        # A client that reads from replicas makes its connections do so too; ours must not.
        plain = {name: value for name, value in self.arguments.items() if name not in ("redis_connect_func", "db")}
        return self._replace(arguments=plain, cluster=True)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return str(self.arguments.get("host", "localhost")), int(self.arguments.get("port", 6379))

    @property
    def location(self) -> str:
        """The path, or host and port, without credentials."""
        return str(self.arguments["path"]) if "path" in self.arguments else "{}:{}".format(*self.address)

    def __repr__(self) -> str:
        return f"<ServerConfig {self.location}>"


def _check_database(url: str) -> None:
    """Raise if the path of a URL is not a number: the driver would use any digits in it, or database 0."""
    path = unquote(urlsplit(url).path)
    number = path.strip("/")
    if number and not (number.isascii() and number.isdigit()):
        # The message does not quote the path: a password with a slash ends up there.
        more = f", and {_ENCODED}" if "@" in path else ""
        raise InvalidOption(f"the path of a Redis URL must be the number of a database, such as /0{more}")


def configs_of_url(url: str) -> list[ServerConfig]:
    """Return the servers of a URL: one, or some nodes of a Cluster."""
    scheme, separator, rest = url.partition("://")
    kind, plus, cluster = scheme.lower().partition("+")
    if not separator or (plus and cluster != "cluster"):
        raise InvalidOption(
            "a Redis URL must begin with redis://, rediss://, unix://, redis+cluster:// or redis+sentinel://"
        )
    if not plus:
        return [ServerConfig.from_url(f"{kind}://{rest}")]
    at = len(rest) - len(rest.lstrip("/"))
    end = min([found for mark in "/?" if (found := rest.find(mark, at)) >= 0], default=len(rest))
    login, sign, hosts = rest[:end].rpartition("@")
    return [
        ServerConfig.from_url(f"{kind}://{login}{sign}{host}{rest[end:]}").for_cluster() for host in hosts.split(",")
    ]


def configs_of_client(client: Any) -> tuple[list[ServerConfig], bool]:
    """Return the servers of a client, and whether they are a Cluster. A list of configs is returned as it is."""
    if isinstance(client, list):
        return client, client[0].cluster
    if isinstance(client, _asyncio.RedisCluster):
        nodes = client.nodes_manager.startup_nodes.values()
        return [
            ServerConfig.from_arguments(node.connection_class, node.connection_kwargs).for_cluster() for node in nodes
        ], True
    if isinstance(client, _asyncio.Redis):
        pool = client.connection_pool
        if isinstance(pool, _sentinel.SentinelConnectionPool):
            return [_config_of_sentinels(pool)], False
        return [ServerConfig.from_arguments(pool.connection_class, pool.connection_kwargs)], False
    raise InvalidOption(f"client must be a redis.asyncio.Redis or RedisCluster, not {type(client).__name__}")


def _config_of_sentinels(pool: Any) -> ServerConfig:
    """Return the master of a pool of redis-py's ``Sentinel``."""
    tls = issubclass(pool.connection_class, _connections.SSLConnection)
    arguments = {name: value for name, value in pool.connection_kwargs.items() if name != "connection_pool"}
    sentinels = [
        ServerConfig.from_arguments(each.connection_pool.connection_class, each.connection_pool.connection_kwargs)
        for each in pool.sentinel_manager.sentinels
    ]
    return ServerConfig.from_arguments(
        _connections.SSLConnection if tls else _connections.Connection, arguments
    )._replace(master=str(pool.service_name), sentinels=tuple(each.for_messages() for each in sentinels))


class RedisConnection:
    """A connection that opens on first use and reopens after a failure. It makes one exchange at a time."""

    def __init__(self, config: ServerConfig, timeout: float) -> None:
        self.location: str = config.location
        self.copies: int = config.copies
        self._config = config
        self._timeout = CallTimeout(timeout)
        self._connection: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = asyncio.Lock()
        #: How many exchanges had no answer in time.
        self._silences = 0
        #: Why the present exchange was ended before its timeout.
        self._abandoned = ""

    async def exchange(self, commands: Sequence[Command]) -> list[Reply]:
        """Send all commands at once and return their replies; an error reply is a ``Refused``.

        Raises ``StorageUnavailable`` if not all replies arrive within the timeout; its ``sent`` is whether the server
        may have received the commands.
        """
        sent = False
        replies: list[Reply] = []
        silences = self._silences
        await self._lock.acquire()
        if self._silences >= silences + 2:
            # Otherwise the calls that wait for a silent server would each wait for the timeouts of all before them.
            self._lock.release()
            raise self._unavailable("has not answered two calls before this one", None, sent=False)
        self._timeout.start()
        try:
            connection = self._connection or await self._connect()
            packed = connection.pack_commands(commands)
            sent = True
            # Without a check of the connection: a broken one is found by the call itself.
            await connection.send_packed_command(packed, check_health=False)
            for _ in commands:
                try:
                    replies.append(await connection.read_response())
                except _errors.ResponseError as error:
                    replies.append(Refused(_code(error), str(error)))
            return replies
        except BaseException as error:
            # Replies may still arrive, and nothing will read them.
            await self.close()
            if isinstance(error, asyncio.CancelledError) and self._timeout.end():
                self._silences += 1
                why, self._abandoned = self._abandoned, ""
                what = why or f"does not answer within {self._timeout.seconds:g} s"
                raise self._unavailable(what, None, sent=sent) from error
            if isinstance(error, StorageUnavailable) or not isinstance(error, DRIVER_ERRORS):
                raise
            what, final = self._reason(error)
            refused = isinstance(error, _errors.BusyLoadingError | _errors.AuthenticationError)
            # Some errors quote the arguments of HELLO, and so the password.
            cause = None if "HELLO" in what else error
            raise self._unavailable(what, cause, sent=bool(replies) if refused else sent, final=final) from cause
        finally:
            self._timeout.end()
            self._lock.release()

    def _reason(self, error: Exception) -> tuple[str, bool]:
        """Return what an error says about the server, and whether it is the same for every attempt.

        Errors of commands are replies, so an error that the server has sent concerns the handshake.
        """
        if isinstance(error, _errors.BusyLoadingError):
            return "is loading its data", False
        if isinstance(error, _errors.AuthenticationError):
            return "refuses the user or password", True
        if isinstance(error, _errors.NoPermissionError):
            return "does not permit its user to connect; see the ACL line in docs/redis.md", True
        if isinstance(error, _errors.ResponseError) and "unknown command" in str(error).lower():
            return (
                "does not know a command of the handshake; use Redis 6.2 or newer, or a proxy that supports HELLO",
                True,
            )
        if isinstance(error, _errors.ResponseError) and "DB index" in str(error):
            database = self._config.arguments.get("db")
            return f"has no database {database}; use a lower number, or raise databases in its configuration", True
        return "cannot be reached", False

    @property
    def waited(self) -> float:
        """The seconds since the exchange that is being made began, or 0."""
        return self._timeout.elapsed

    async def receive(self, seconds: float) -> Reply | None:
        """Return the next message of a connection that has subscribed to a channel, or ``None`` if none arrives."""
        try:
            return await self._connection.read_response(timeout=seconds, disconnect_on_error=False)
        except DRIVER_ERRORS as error:
            await self.close()
            raise self._unavailable("cannot be reached", error, sent=True) from error

    async def abandon(self, why: str) -> None:
        """Close the connection. An exchange in progress ends with ``StorageUnavailable``, whose message has ``why``."""
        if self._timeout.expire():
            self._abandoned = why
        else:
            await self.close()

    async def close(self, *, wait: bool = False) -> None:
        """Close the connection, and ``wait`` until it is closed; the next exchange opens a new one."""
        connection, self._connection = self._connection, None
        self._timeout.close()
        if connection is None:
            return
        try:
            await connection.disconnect(nowait=not wait)
        except RuntimeError:
            # The connections of a closed loop are closed already.
            if self._loop is None or not self._loop.is_closed():
                raise

    async def _connect(self) -> Any:
        connection = self._config.kind(**self._config.arguments)
        # Set before the handshake, so that an interrupted handshake is closed too.
        self._connection, self._loop = connection, asyncio.get_running_loop()
        self._load_files(connection)
        await connection.connect()
        if self._config.master:
            await connection.send_command("ROLE")
            (role, *_) = await connection.read_response()
            if role != "master":
                raise StorageUnavailable(
                    f"Redis at {self.location} is not the master of {self._config.master} any more", sent=False
                )
        return connection

    def _load_files(self, connection: Any) -> None:
        """Read the TLS files now: in the driver's handshake their errors would look like network errors."""
        tls = getattr(connection, "ssl_context", None)
        if tls is None:
            return
        try:
            tls.get()
        except (OSError, ValueError) as error:
            given = [(name, self._config.arguments.get(name)) for name in _TLS_FILES]
            named = ", ".join(f"{name}={value}" for name, value in given if value) or "its ssl options"
            raise self._unavailable(f"cannot be used over TLS; fix {named}", error, sent=False, final=True) from error

    def _unavailable(
        self, what: str, error: Exception | None, *, sent: bool, final: bool = False
    ) -> StorageUnavailable:
        why = f" ({error})" if error is not None and str(error) else ""
        return StorageUnavailable(f"Redis at {self.location} {what}{why}", sent=sent, final=final)


def _code(error: Exception) -> str:
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return str(error).partition(" ")[0]


#: The driver removes these codes from the message.
_CODES: Final = (
    (_errors.MovedError, "MOVED"),
    (_errors.AskError, "ASK"),
    (_errors.MasterDownError, "MASTERDOWN"),
    (_errors.ClusterDownError, "CLUSTERDOWN"),
    (_errors.NoScriptError, "NOSCRIPT"),
    (_errors.ReadOnlyError, "READONLY"),
    (_errors.OutOfMemoryError, "OOM"),
    (_errors.NoPermissionError, "NOPERM"),
)
