"""One connection to one Redis server, owned by one lane: the only module that knows the driver."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from stepwell._optional import require
from stepwell.errors import InvalidOption, StorageUnavailable
from stepwell.storage.urls import check_url

_asyncio = require("redis.asyncio", "redis")
_connections = require("redis.asyncio.connection", "redis")
_errors = require("redis.exceptions", "redis")
_hiredis = require("hiredis", "redis")

__all__ = [
    "Command",
    "RedisConnection",
    "Refused",
    "Reply",
    "ServerConfig",
    "configs_of_client",
    "configs_of_url",
    "split_url",
]

Command: TypeAlias = Sequence[str | bytes]
Reply: TypeAlias = Any

#: What goes into a connection of ours, whoever configured it.
_OURS: Final[Mapping[str, Any]] = {
    "decode_responses": True,
    "encoding": "utf-8",
    # Damaged bytes must harm their record only: the codec finds them by their checksum.
    "encoding_errors": "surrogateescape",
    # One deadline covers connecting, sending and all the answers.
    "socket_timeout": None,
    "socket_connect_timeout": None,
    # Trying again is up to the lane, which knows what was sent.
    "retry": None,
    "retry_on_error": [],
    "retry_on_timeout": False,
    "health_check_interval": 0,
}
#: What a pool keeps with the arguments of its connections, and would keep ours alive or rewrite them.
_THEIRS: Final = frozenset(
    {
        "maint_notifications_config",
        "maint_notifications_pool_handler",
        "oss_cluster_maint_notifications_handler",
        "event_dispatcher",
        "himport_registry",
    }
)
#: Options of TLS that name a file or a folder.
_FILES: Final = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")
_ENCODED: Final = "a password with special characters is %-encoded"


class Refused(NamedTuple):
    """An error in place of an answer: its code in capitals, and what the server said."""

    code: str
    message: str


class ServerConfig(NamedTuple):
    """Where a server is and how to get in. Never shown: it holds the password."""

    kind: Any
    arguments: dict[str, Any]
    #: One of a Cluster, whose other nodes it knows.
    seeds: bool = False

    @classmethod
    def from_url(cls, url: str) -> ServerConfig:
        """From ``redis://``, ``rediss://`` or ``unix://``, with the driver's options as its query."""
        check_url(url)
        try:
            arguments = dict(_connections.parse_url(url))
        except ValueError as error:
            # The driver's message may quote a piece of the password; ours is the name of an option at most.
            text = str(error)
            if text.startswith("Port "):
                text = "its port is a number up to 65535" + (f", and {_ENCODED}" if "@" in url else "")
            elif not text.startswith("Invalid value for"):
                text = _ENCODED
            raise InvalidOption(f"this Redis URL cannot be read: {text}") from None
        if "path" not in arguments:
            _check_database(url)
        kind = arguments.pop("connection_class", _connections.Connection)
        return cls.of(kind, arguments)

    @classmethod
    def of(cls, kind: Any, arguments: Mapping[str, Any]) -> ServerConfig:
        """From the class and arguments of a driver's connection."""
        ours = {name: value for name, value in arguments.items() if name not in _THEIRS}
        ours.update(_OURS)
        if issubclass(kind, _connections.SSLConnection):
            # The default of old drivers is not to check it.
            ours.setdefault("ssl_check_hostname", ours.get("ssl_cert_reqs") not in ("none", ssl.CERT_NONE))
        try:
            kind(**ours)
        except TypeError as error:
            # The driver says: got an unexpected keyword argument 'x'.
            raise InvalidOption(f"Redis connections have no such option: {str(error).rpartition(' ')[2]}") from None
        except (_errors.RedisError, ValueError) as error:
            raise InvalidOption(f"an option of this Redis connection cannot be: {error}") from None
        return cls(kind, ours)

    def at(self, host: str, port: int) -> ServerConfig:
        """The same way in at another server."""
        return self._replace(arguments={**self.arguments, "host": host, "port": port})

    def seed(self) -> ServerConfig:
        """The same server as one of a Cluster."""
        if self.arguments.get("db"):
            raise InvalidOption(
                "a Redis Cluster has only the database 0; leave the database out, and keep programs apart by prefix="
            )
        # A client that reads from replicas switches its connections to that; ours must not.
        plain = {name: value for name, value in self.arguments.items() if name not in ("redis_connect_func", "db")}
        return ServerConfig(self.kind, plain, seeds=True)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return str(self.arguments.get("host", "localhost")), int(self.arguments.get("port", 6379))

    @property
    def place(self) -> str:
        """The server as it may be shown."""
        return str(self.arguments["path"]) if "path" in self.arguments else "{}:{}".format(*self.address)

    def __repr__(self) -> str:
        return f"<ServerConfig {self.place}>"


def _check_database(url: str) -> None:
    """The driver takes the digits of a path, whatever they are mixed with, and 0 where there are none."""
    path = unquote(urlsplit(url).path)
    number = path.strip("/")
    if number and not (number.isascii() and number.isdigit()):
        # Not quoted: a password with a slash ends up here.
        more = f", and {_ENCODED}" if "@" in path else ""
        raise InvalidOption(f"the path of a Redis URL is the number of a database, such as /0{more}")


def split_url(url: str, names: frozenset[str]) -> tuple[str, dict[str, str]]:
    """A URL without the options of these names in its query, and these."""
    check_url(url)
    base, mark, query = url.partition("?")
    pairs = parse_qsl(query, keep_blank_values=True)
    rest = urlencode([(name, value) for name, value in pairs if name not in names])
    return base + mark + rest, {name: value for name, value in pairs if name in names}


def configs_of_url(url: str) -> list[ServerConfig]:
    """The servers of a URL: one, or some of a Cluster."""
    scheme, separator, rest = url.partition("://")
    kind, plus, cluster = scheme.lower().partition("+")
    if not separator or (plus and cluster != "cluster"):
        raise InvalidOption("a Redis URL begins with redis://, rediss://, unix:// or redis+cluster://")
    if not plus:
        return [ServerConfig.from_url(f"{kind}://{rest}")]
    at = len(rest) - len(rest.lstrip("/"))
    end = min([place for mark in "/?" if (place := rest.find(mark, at)) >= 0], default=len(rest))
    login, sign, hosts = rest[:end].rpartition("@")
    return [ServerConfig.from_url(f"{kind}://{login}{sign}{host}{rest[end:]}").seed() for host in hosts.split(",")]


def configs_of_client(client: Any) -> tuple[list[ServerConfig], bool]:
    """The servers that a client knows (or was made of a URL for), and if they are a Cluster."""
    if isinstance(client, list):
        return client, client[0].seeds
    if isinstance(client, _asyncio.RedisCluster):
        nodes = client.nodes_manager.startup_nodes.values()
        return [ServerConfig.of(node.connection_class, node.connection_kwargs).seed() for node in nodes], True
    if isinstance(client, _asyncio.Redis):
        pool = client.connection_pool
        return [ServerConfig.of(pool.connection_class, pool.connection_kwargs)], False
    raise InvalidOption(f"client is a redis.asyncio.Redis or RedisCluster, not {type(client).__name__}")


class RedisConnection:
    """One connection, made when it is first needed and again after it broke. One exchange at a time."""

    def __init__(self, config: ServerConfig, timeout: float) -> None:
        self.place = config.place
        self._config = config
        self._timeout = timeout
        self._connection: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turn = asyncio.Lock()

    async def exchange(self, commands: Sequence[Command]) -> list[Reply]:
        """Send all commands at once and read their answers; refusals are ``Refused``, in their places.

        Raises ``StorageUnavailable`` if no answer comes in time; its ``sent`` tells if a command may be made.
        """
        async with self._turn:
            sent = False
            replies: list[Reply] = []
            try:
                async with asyncio.timeout(self._timeout):
                    connection = self._connection
                    if connection is None:
                        connection = await self._connect()
                    packed = b"".join([_hiredis.pack_command(tuple(command)) for command in commands])
                    sent = True
                    await connection.send_packed_command(packed, check_health=False)
                    for _ in commands:
                        replies.append(await self._read(connection))  # noqa: PERF401 how far it came matters
                    return replies
            except StorageUnavailable:
                await self.close()
                raise
            except _errors.BusyLoadingError as error:
                await self.close()
                raise self._unavailable("is loading its data", error, sent=bool(replies)) from error
            except _errors.AuthenticationError as error:
                await self.close()
                raise self._unavailable(
                    "refuses the user or password of its URL", error, sent=bool(replies), final=True
                ) from error
            except _errors.ResponseError as error:
                # Refusals of commands are answers; this is one of the handshake.
                await self.close()
                if "DB index" not in str(error):
                    raise self._unavailable("is not reached", error, sent=sent) from error
                raise self._unavailable(
                    f"has no database {self._config.arguments.get('db')}; give a lower number, "
                    "or raise databases in its configuration",
                    error,
                    sent=sent,
                    final=True,
                ) from error
            except TimeoutError as error:
                await self.close()
                raise self._unavailable(f"does not answer within {self._timeout:g} s", None, sent=sent) from error
            except (_errors.RedisError, OSError) as error:
                await self.close()
                raise self._unavailable("is not reached", error, sent=sent) from error
            except BaseException:
                # Answers are under way that nobody will read.
                await self.close()
                raise

    async def close(self, *, wait: bool = False) -> None:
        """Let go of the connection, and wait until it is closed; the next exchange makes a new one."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            await connection.disconnect(nowait=not wait)
        except RuntimeError:
            # A loop that ended took its connections along.
            if self._loop is None or not self._loop.is_closed():
                raise

    async def _connect(self) -> Any:
        connection = self._config.kind(**self._config.arguments)
        # Kept from the start, so that whatever interrupts the handshake also closes it.
        self._connection, self._loop = connection, asyncio.get_running_loop()
        self._load_files(connection)
        await connection.connect()
        return connection

    def _load_files(self, connection: Any) -> None:
        """Read the files of TLS, which the driver would only do in the handshake, where they look like the network."""
        tls = getattr(connection, "ssl_context", None)
        if tls is None:
            return
        try:
            tls.get()
        except (OSError, ValueError) as error:
            given = [(name, self._config.arguments.get(name)) for name in _FILES]
            named = ", ".join(f"{name}={value}" for name, value in given if value) or "its ssl options"
            raise self._unavailable(
                f"cannot be asked over TLS; correct {named}", error, sent=False, final=True
            ) from error

    async def _read(self, connection: Any) -> Reply:
        try:
            return await connection.read_response()
        except _errors.ResponseError as error:
            return Refused(_code(error), str(error))

    def _unavailable(
        self, what: str, error: Exception | None, *, sent: bool, final: bool = False
    ) -> StorageUnavailable:
        why = f" ({error})" if error is not None and str(error) else ""
        return StorageUnavailable(f"Redis at {self.place} {what}{why}", sent=sent, final=final)


def _code(error: Exception) -> str:
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return str(error).partition(" ")[0]


#: The driver cuts these words off the message.
_CODES: Final = (
    (_errors.MovedError, "MOVED"),
    (_errors.AskError, "ASK"),
    (_errors.TryAgainError, "TRYAGAIN"),
    (_errors.MasterDownError, "MASTERDOWN"),
    (_errors.ClusterDownError, "CLUSTERDOWN"),
    (_errors.ClusterCrossSlotError, "CROSSSLOT"),
    (_errors.NoScriptError, "NOSCRIPT"),
    (_errors.ReadOnlyError, "READONLY"),
    (_errors.OutOfMemoryError, "OOM"),
    (_errors.NoPermissionError, "NOPERM"),
)
