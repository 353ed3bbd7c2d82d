"""Script calls to the master that Sentinels name. After a failover they go to the new master."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import suppress
from itertools import cycle
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode

from stepwell._backoff import backoff
from stepwell.errors import InvalidOption, StorageError, StorageUnavailable
from stepwell.storage.redis.client import Command, RedisConnection, Refused, Reply, ServerConfig
from stepwell.storage.redis.server import Answer, Request, Server, ask, info
from stepwell.storage.redis.wire import paired

__all__ = ["SentinelServer", "is_sentinel_url", "sentinel_config"]

#: The port of a Sentinel whose URL has none.
PORT: Final = 26379
#: The longest wait for the answer of a Sentinel, in seconds.
ANSWER: Final = 1.0
#: Seconds without an event after which the connection to a Sentinel is checked.
CHECK_EVERY: Final = 5.0
#: Seconds between attempts to watch a Sentinel: the first pause, and the longest.
PAUSES: Final = (0.1, 5.0)
#: Seconds for which the list of replicas is used.
REPLICAS_EVERY: Final = 5.0
#: Events after which a Sentinel names another master. The one that leads a failover publishes the second one first, and
#: the other one only when all replicas follow the new master.
EVENTS: Final = ("+switch-master", "+promoted-slave")


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


class Named(NamedTuple):
    """The master that a Sentinel names, and the number of the failover that made it the master."""

    epoch: int
    host: str
    port: int


class MasterConnection(RedisConnection):
    """A connection that looks up the master each time it opens, and checks that this server is the master."""

    def __init__(self, config: ServerConfig, timeout: float, look_up: Callable[[], Awaitable[Named]]) -> None:
        super().__init__(config, timeout)
        self._look_up = look_up

    async def _connect(self) -> Any:
        _, host, port = await self._look_up()
        self._config = self._config.with_address(host, port)
        self.location: str = self._config.location
        connection = await super()._connect()
        await connection.send_command("ROLE")
        (role, *_) = await connection.read_response()
        if role != "master":
            raise StorageUnavailable(
                f"Redis at {self.location} is not the master of {self._config.master} any more", sent=False
            )
        return connection


class SentinelServer(Server):
    """The master of one name. It follows failovers: it watches the Sentinels, and asks them for each connection."""

    def __init__(self, config: ServerConfig, timeout: float) -> None:
        super().__init__(config, timeout)
        self._answer = min(timeout, ANSWER)
        self._found: Named | None = None
        self._finding = asyncio.Lock()
        #: How often the master was looked up.
        self._lookups = 0
        self._watcher: asyncio.Task[None] | None = None
        self._replicas: dict[tuple[str, int], RedisConnection] = {}
        #: When the list of replicas has to be loaded again.
        self._replicas_until = 0.0

    @property
    def location(self) -> str:
        """The name of the master and its Sentinels, without credentials."""
        sentinels = ",".join(config.location for config in self._config.sentinels)
        return f"{self._config.master} of the Sentinels {sentinels}"

    async def open(self, lane: Hashable) -> None:
        """Check that the Sentinels name a master and that it answers, and begin to watch them."""
        await super().open(lane)
        if self._watcher is None:
            self._watcher = asyncio.get_running_loop().create_task(self._watch(), name="stepwell-sentinel")

    async def read(self, lane: Hashable, requests: Sequence[Request]) -> list[Answer]:
        """Send calls that write nothing to a replica, or to the master if no replica answers."""
        with suppress(StorageUnavailable):
            await self._load_replicas()
            for address, replica in list(self._replicas.items()):
                with suppress(StorageUnavailable):
                    answers = await ask(replica, requests)
                    if not any(isinstance(reply, Refused) for reply, _ in answers):
                        return answers
                # Do not wait for it again before the list is loaded again.
                self._replicas.pop(address, None)
                await replica.close()
        return await self.call(lane, requests)

    async def _load_replicas(self) -> None:
        """Ask the Sentinels for the replicas that follow the master, if the last answer is some seconds old."""
        now = asyncio.get_running_loop().time()
        if now < self._replicas_until:
            return
        for config in self._config.sentinels:
            try:
                (replicas,) = await self._exchange(config, [("SENTINEL", "REPLICAS", self._config.master)])
            except StorageUnavailable:
                continue
            facts = [paired(each) for each in replicas] if isinstance(replicas, list) else []
            following = [
                (each["ip"], int(each["port"]))
                for each in facts
                if each.get("flags") == "slave" and each.get("master-link-status") == "ok"
            ]
            former, self._replicas = self._replicas, {}
            for address in following:
                kept = former.pop(address, None)
                self._replicas[address] = kept or RedisConnection(self._config.with_address(*address), self._timeout)
            self._replicas_until = now + REPLICAS_EVERY
            for connection in former.values():
                await connection.close()
            return

    async def info(self, lane: Hashable) -> dict[str, tuple[Reply, Reply]]:
        """Return the replies of the master to ``INFO`` and ``TIME`` by its location."""
        connection = self._connection(lane)
        replies = await info(connection)
        return {connection.location: replies}

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

    def subscriber(self) -> RedisConnection:
        """Return a new connection for messages, which the caller closes."""
        return MasterConnection(self._config.for_messages(), self._timeout, self._look_up)

    async def close(self) -> None:
        """Close all connections."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None and not watcher.get_loop().is_closed():
            watcher.cancel()
            await asyncio.wait([watcher])
        # The next use may be in another event loop.
        self._finding = asyncio.Lock()
        replicas, self._replicas, self._replicas_until = self._replicas, {}, 0.0
        for connection in replicas.values():
            await connection.close(wait=True)
        await super().close()

    def _connection(self, lane: Hashable) -> RedisConnection:
        connection = self._connections.get(lane)
        if connection is None:
            connection = self._connections[lane] = MasterConnection(self._config, self._timeout, self._look_up)
        return connection

    async def _look_up(self) -> Named:
        """Return the present master. Calls that wait for a lookup share the next one."""
        lookups = self._lookups
        async with self._finding:
            if self._found is None or self._lookups == lookups:
                self._found = await self._ask_all()
                self._lookups += 1
            return self._found

    async def _ask_all(self) -> Named:
        """Return the master of the latest failover that the Sentinels know.

        It asks all of them, and waits until more than half have answered or all others have failed.
        """
        sentinels = self._config.sentinels
        tasks = [asyncio.create_task(self._ask_one(config)) for config in sentinels]
        named: list[Named] = []
        problems: list[StorageUnavailable] = []
        try:
            for next_one in asyncio.as_completed(tasks):
                try:
                    named.append(await next_one)
                except StorageUnavailable as error:
                    problems.append(error)
                if 2 * len(named) > len(sentinels):
                    break
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if named:
            return max(named)
        texts = "; ".join(sorted(map(str, problems)))
        raise StorageUnavailable(
            f"no Sentinel names the master {self._config.master}: {texts}",
            sent=False,
            final=all(problem.final for problem in problems),
        )

    async def _ask_one(self, config: ServerConfig) -> Named:
        name = self._config.master
        address, facts = await self._exchange(
            config, [("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name), ("SENTINEL", "MASTER", name)]
        )
        if isinstance(address, list):
            epoch = paired(facts).get("config-epoch", "0") if isinstance(facts, list) else "0"
            return Named(int(epoch), str(address[0]), int(address[1]))
        if isinstance(address, Refused):
            raise StorageUnavailable(
                f"{config.location} does not answer as a Sentinel ({address.message})", sent=False, final=True
            )
        (masters,) = await self._exchange(config, [("SENTINEL", "MASTERS")])
        names = [paired(each).get("name", "") for each in masters] if isinstance(masters, list) else []
        knows = f"it knows {', '.join(sorted(names))}" if names else "it knows no master"
        raise StorageUnavailable(f"{config.location} does not know this name, {knows}", sent=False, final=True)

    async def _exchange(self, config: ServerConfig, commands: Sequence[Command]) -> list[Reply]:
        connection = RedisConnection(config, self._answer)
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

    async def _watch(self) -> None:
        """Wait for failovers. Calls to a master that does not answer would wait for their timeout."""
        failures = 0
        for config in cycle(self._config.sentinels):
            connection = RedisConnection(config, self._answer)
            try:
                for event in EVENTS:
                    await connection.exchange([("SUBSCRIBE", event)])
                failures = 0
                # One may have happened before.
                await self._leave_former_master()
                while True:
                    if await connection.receive(CHECK_EVERY) is None:
                        # A broken connection would stay unnoticed. The reply is the answer or an event.
                        await connection.exchange([("PING",)])
                    else:
                        await self._leave_former_master()
            except StorageError:
                failures += 1
            finally:
                await connection.close()
            await asyncio.sleep(backoff(failures, *PAUSES))

    async def _leave_former_master(self) -> None:
        """End the calls to servers that are not the master any more. Their lanes send them again."""
        with suppress(StorageUnavailable):
            self._found = found = await self._ask_all()
            master = self._config.with_address(found.host, found.port).location
            for connection in list(self._connections.values()):
                if connection.location != master:
                    await connection.abandon("is not the master any more")
