"""The master that Sentinels name, as redis-py's ``Sentinel`` finds it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlencode

from stepwell._optional import require
from stepwell.errors import InvalidOption, StorageUnavailable
from stepwell.storage.redis.client import DRIVER_ERRORS, Command, RedisConnection, Refused, Reply, ServerConfig
from stepwell.storage.redis.server import LOOKUP, RedisNode, Server
from stepwell.storage.redis.wire import TAGS, paired

_asyncio = require("redis.asyncio", "redis")
_sentinel = require("redis.asyncio.sentinel", "redis")

__all__ = ["SentinelServer", "is_sentinel_url", "sentinel_config"]

#: The port of a Sentinel whose URL has none.
PORT: Final = 26379


def is_sentinel_url(url: str) -> bool:
    """Return whether a URL names Sentinels."""
    return url.partition("://")[0].lower().endswith("+sentinel")


def sentinel_config(url: str) -> ServerConfig:
    """Parse ``redis+sentinel://user:password@host:26379,host2:26379/mymaster/0`` or ``rediss+sentinel://...``.

    User and password are those of the servers. ``sentinel_username`` and ``sentinel_password`` in the query are those
    of the Sentinels. The rest of the query has options of redis-py for both.
    """
    scheme, _, rest = url.partition("+sentinel://")
    base, _, query = rest.partition("?")
    place, _, path = base.partition("/")
    name, _, database = unquote(path).partition("/")
    login, sign, hosts = place.rpartition("@")
    if not name:
        raise InvalidOption(
            "a URL of Sentinels has the name of their master in its path, as in redis+sentinel://host:26379/mymaster/0"
        )
    options = dict(parse_qsl(query, keep_blank_values=True))
    own = {"username": options.pop("sentinel_username", None), "password": options.pop("sentinel_password", None)}
    mark = f"?{urlencode(options)}" if options else ""
    given = {key: text for key, text in own.items() if text}
    sentinels = []
    for host in hosts.split(","):
        config = ServerConfig.from_url(f"{scheme}://{_with_port(host)}{mark}")
        plain = {key: value for key, value in config.arguments.items() if key not in ("db", "username", "password")}
        sentinels.append(config._replace(arguments=plain | given).for_messages())
    server = ServerConfig.from_url(f"{scheme}://{login}{sign}localhost/{database}{mark}")
    return server._replace(master=name, sentinels=tuple(sentinels))


def _with_port(host: str) -> str:
    # A colon inside brackets is part of an IPv6 address.
    return host if ":" in host.rpartition("]")[2] else f"{host}:{PORT}"


class SentinelServer(Server):
    """The master of one name, which redis-py's ``Sentinel`` finds. It follows failovers."""

    follows = True

    def __init__(self, config: ServerConfig, timeout: float) -> None:
        super().__init__(config, timeout)
        self.owners = [None] * TAGS
        self._manager: Any = None

    @property
    def location(self) -> str:
        """The name of the master and its Sentinels, without credentials."""
        sentinels = ",".join(config.location for config in self._config.sentinels)
        return f"{self._config.master} of the Sentinels {sentinels}"

    async def _find(self) -> None:
        manager = self._manager = self._manager or self._new_manager()
        name = self._config.master
        try:
            master = RedisNode(*await manager.discover_master(name))
            replicas = [RedisNode(*each) for each in await manager.discover_slaves(name)]
        except DRIVER_ERRORS as error:
            await _hang_up(manager)
            raise await self._unknown() from error
        # Its connections are only for lookups.
        await _hang_up(manager)
        self.owners: list[RedisNode | None] = [master] * TAGS
        self.replicas: list[list[RedisNode]] = [replicas] * TAGS

    def _new_manager(self) -> Any:
        seconds = min(self._timeout, LOOKUP)
        manager = _sentinel.Sentinel([])
        for config in self._config.sentinels:
            options = config.arguments | {"socket_timeout": seconds, "socket_connect_timeout": seconds}
            pool = _asyncio.ConnectionPool(connection_class=config.kind, **options)
            manager.sentinels.append(_asyncio.Redis(connection_pool=pool))
        manager.filter_slaves = _following
        return manager

    async def _unknown(self) -> StorageUnavailable:
        """Return why the Sentinels do not name the master."""
        problems = await asyncio.gather(*(self._problem(config) for config in self._config.sentinels))
        texts = "; ".join(sorted(map(str, problems)))
        return StorageUnavailable(
            f"no Sentinel names the master {self._config.master}: {texts}",
            sent=False,
            final=all(problem.final for problem in problems),
        )

    async def _problem(self, config: ServerConfig) -> StorageUnavailable:
        try:
            (masters,) = await self._exchange(config, [("SENTINEL", "MASTERS")])
        except StorageUnavailable as error:
            return error
        if isinstance(masters, Refused):
            text, final = f"does not answer as a Sentinel ({masters.message})", True
        else:
            names = [paired(each).get("name", "") for each in masters]
            knows = f"it knows {', '.join(sorted(names))}" if names else "it knows no master"
            final = self._config.master not in names
            text = f"does not know this name, {knows}" if final else "knows that this master is down"
        return StorageUnavailable(f"{config.location} {text}", sent=False, final=final)

    async def sentinels(self) -> dict[str, dict[str, str]]:
        """Return what each Sentinel knows about the master, by its location.

        ``problem``: why it does not answer, or why the Sentinels cannot start a failover.
        """
        name = self._config.master
        found: dict[str, dict[str, str]] = {}
        for config in self._config.sentinels:
            try:
                facts, quorum = await self._exchange(
                    config, [("SENTINEL", "MASTER", name), ("SENTINEL", "CKQUORUM", name)]
                )
            except StorageUnavailable as error:
                found[config.location] = {"problem": str(error)}
                continue
            known = found[config.location] = paired(facts) if isinstance(facts, list) else {}
            for reply in (facts, quorum):
                if isinstance(reply, Refused):
                    known["problem"] = reply.message
        return found

    async def _exchange(self, config: ServerConfig, commands: Sequence[Command]) -> list[Reply]:
        connection = RedisConnection(config, min(self._timeout, LOOKUP))
        try:
            return await connection.exchange(commands)
        except StorageUnavailable as error:
            if "user or password" not in str(error):
                raise
            # The user and password of the URL are those of the servers.
            raise StorageUnavailable(
                f"{error}; check sentinel_username and sentinel_password in the URL", sent=False, final=True
            ) from error
        finally:
            await connection.close()

    async def close(self) -> None:
        """Close all connections."""
        await super().close()
        if self._manager is not None:
            # A lookup may have been cancelled.
            await _hang_up(self._manager)
            self._manager = None


async def _hang_up(manager: Any) -> None:
    for sentinel in manager.sentinels:
        # RuntimeError: the connections of a closed loop are closed already.
        with suppress(*DRIVER_ERRORS, RuntimeError):
            await sentinel.connection_pool.disconnect()


def _following(replicas: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """Return the addresses of the replicas that are up and follow the master."""
    return [
        (each["ip"], each["port"])
        for each in replicas
        if not each["is_sdown"] and not each["is_odown"] and each["master-link-status"] == "ok"
    ]
