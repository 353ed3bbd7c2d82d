"""Records in Redis or Valkey, on a single server, the master of Sentinels, or a Cluster, shared by many workers.

``record.lua`` documents the keys. A batch is one call of ``batch.lua``; in a Cluster it is one call for
each node, to all nodes concurrently.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Self, cast

from stepwell._secrets import quoted
from stepwell.codec.json import replaced
from stepwell.errors import InvalidOption, StorageClosed, StorageUnavailable
from stepwell.options import check_choice, check_number, check_whole
from stepwell.record import Address, Limits
from stepwell.storage.contract import RunBatch, Storage
from stepwell.storage.listing import ANY, Any_, Beside, Due, Page, Query, Swept
from stepwell.storage.operations import Apply, Claim, Get, Operation, Result
from stepwell.storage.redis.batches import Batches, whole
from stepwell.storage.redis.client import ServerConfig, configs_of_client, configs_of_url
from stepwell.storage.redis.cluster import Cluster
from stepwell.storage.redis.lanes import CONFIRM, REST, WRITES, ClusterLanes
from stepwell.storage.redis.listing import RedisListing
from stepwell.storage.redis.notices import RedisChannel
from stepwell.storage.redis.sentinel import SentinelServer, is_sentinel_url, sentinel_config
from stepwell.storage.redis.server import Server
from stepwell.storage.redis.wire import Keys, decode_address, tag_of
from stepwell.storage.transport.batch import Batch, check_patience
from stepwell.storage.transport.lane import Lane
from stepwell.storage.transport.reads import read_again
from stepwell.storage.urls import check_url, take_options, truth

if TYPE_CHECKING:
    from redis.asyncio import Redis, RedisCluster

__all__ = ["RedisStorage"]

Durability = Literal["fast", "wait"]
Replicas = Literal["none", "scan"]

#: Options that may be given in a URL, and how they are parsed.
URL_OPTIONS: Final[dict[str, Callable[[str], Any]]] = {
    "prefix": str,
    "durability": str,
    "wait_for": int,
    "timeout": float,
    "patience": float,
    "sweep_every": float,
    "notices": truth,
    "replicas": str,
}
#: The connection for calls outside of lanes.
_ASIDE = "aside"
#: How many keys of each server ``settings`` looks at for leases.
_SCANNED = 200_000


class RedisStorage(Storage):
    """Keeps records in Redis 6.2 or newer, or in Valkey.

    ``client``: a ``redis.asyncio.Redis`` or ``RedisCluster``. The storage takes the address and credentials from it,
    opens connections of its own, and never closes the client.

    ``prefix``: the beginning of all keys. ``timeout``: seconds to wait for one answer. ``patience``: seconds for which
    calls over a broken connection are retried. ``durability="wait"``: acknowledge a write when ``wait_for``
    replicas have it. ``notices=False``: send and receive no notices about new runs; workers poll. ``replicas="scan"``:
    read lists that may lag from replicas, such as those of the inspector and ``scan(may_lag=True)``.

    Example::

        async with RedisStorage(redis.asyncio.Redis(), prefix="my_bot") as storage:
            await storage.set_data("my_bot", (42, 42), {"name": "Alice"})
    """

    def __init__(
        self,
        client: Redis | RedisCluster | list[ServerConfig],
        *,
        prefix: str = "stepwell",
        durability: Durability = "fast",
        wait_for: int = 1,
        timeout: float = 5.0,
        notices: bool = True,
        replicas: Replicas = "none",
        limits: Limits | None = None,
        clock: Callable[[], float] | None = None,
        ids: Callable[[], str] | None = None,
        sweep_every: float | None = 60.0,
        patience: float = 10.0,
    ) -> None:
        super().__init__(limits=limits, clock=clock, ids=ids, sweep_every=sweep_every, patience=patience)
        if not prefix or not prefix.isprintable() or "{" in prefix or "}" in prefix or len(prefix) > 64:
            raise InvalidOption(f"prefix is 1 to 64 printable characters without braces, not {quoted(prefix)}")
        check_choice(durability, ("fast", "wait"), "durability is 'fast' or 'wait', not {}")
        check_number(timeout, "timeout is a positive number of seconds, not {}", above=0)
        check_choice(replicas, ("none", "scan"), "replicas is 'none' or 'scan', not {}")
        check_whole(wait_for, "wait_for is a positive number of replicas, not {}", least=1)
        check_patience(patience, timeout)
        configs, cluster = configs_of_client(client)
        configs = [config._replace(copies=wait_for) for config in configs]
        self._wait_for = wait_for
        self._server: Server
        if cluster:
            self._server = Cluster(configs, timeout)
        else:
            self._server = (SentinelServer if configs[0].sentinels else Server)(configs[0], timeout)
        if replicas == "scan" and not self._server.follows:
            raise InvalidOption("replicas='scan' needs redis+sentinel:// or redis+cluster://, which know the replicas")
        self._keys = Keys(prefix)
        self._listing = RedisListing(self._server, self._keys, _ASIDE, self._now, may_lag=replicas == "scan")
        # The databases of a server share its channels.
        database = configs[0].arguments.get("db") or 0
        self._wake_key = ("redis", self._server.location, database, prefix)
        if notices:
            self._channel = RedisChannel(self._server, _ASIDE, f"{prefix}:notices:{database}")
        # Half of the timeout, so that the answer to WAIT itself arrives in time.
        self._wait = max(1, int(timeout * 500)) if durability == "wait" else 0
        self._batches = Batches(self._server, self._keys, self._now)
        self._cluster_lanes: ClusterLanes | None = None
        if isinstance(self._server, Cluster):
            self._cluster_lanes = ClusterLanes(
                self._server,
                lambda: self._lanes,
                lambda name: self._new_lane(name, self.run),
                self.ids,
                patience=patience,
                waits=self._wait > 0,
            )

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """Return a storage for ``redis://``, ``rediss://`` or ``unix://``.

        ``redis+cluster://host:port,host:port`` is a Cluster, ``redis+sentinel://host:port,host:port/name`` the master
        that Sentinels know by this name.
        The query may contain options of the storage, and options of redis-py's connections.
        """
        if "client" in options:
            raise InvalidOption("pass a client to RedisStorage(client), without a URL")
        check_url(url)
        rest, ours = take_options(url, URL_OPTIONS, "a Redis URL")
        configs = [sentinel_config(rest)] if is_sentinel_url(rest) else configs_of_url(rest)
        return cls(configs, **(ours | options))

    def __repr__(self) -> str:
        return f"<RedisStorage at {self._server.location}>"

    @property
    def location(self) -> str:
        return f"Redis at {self._server.location}"

    @property
    def wake_key(self) -> Hashable:
        return self._wake_key

    async def _open(self) -> None:
        if self._cluster_lanes is not None:
            self._cluster_lanes.reset()
        give_up = asyncio.get_running_loop().time() + self._patience
        try:
            while True:
                try:
                    return await self._server.open(_ASIDE)
                except StorageUnavailable as error:
                    if error.final or asyncio.get_running_loop().time() + 0.1 >= give_up:
                        raise
                await asyncio.sleep(0.1)
        except BaseException:
            await self._server.close()
            raise

    async def _close(self) -> None:
        self._batches.reset()
        await self._server.close()

    def lane_of(self, operation: Operation) -> tuple[str, Hashable]:
        if self._cluster_lanes is not None:
            return self._cluster_lanes.lane_of(operation)
        # Two lanes of each kind: while the server works on one, this process works on the other.
        return WRITES if type(operation) is Apply else REST, hash(operation.address) & 1

    def _make_lane(self, name: Hashable, run: RunBatch) -> Lane:
        if self._cluster_lanes is None:
            return super()._make_lane(name, run)
        return self._cluster_lanes.make(cast("tuple[str, Hashable]", name), run)

    async def confirm(self, claim: Claim) -> None:
        if not self._wait:
            return
        if self.loop is not asyncio.get_running_loop():
            raise StorageClosed
        # After a failover, a server that still has the claim also has all earlier writes. Renewing the claim checks
        # this, and is a write that WAIT can wait for.
        name = CONFIRM, self._server.owners[tag_of(claim.address)]
        lane = self._lanes.get(name) or self._new_lane(name, self._run_confirm)
        await lane.submit(replaced(claim, renew=True))

    async def _run_confirm(self, batch: Batch) -> list[Result]:
        return whole(await self._batches.run(batch, batch.lane, wait=self._wait))

    def run(self, operations: Sequence[Operation]) -> Coroutine[Any, Any, list[Result]]:
        kinds = {*map(type, operations)}
        wait = self._wait if Apply in kinds else 0
        if not isinstance(operations, Batch):
            return self._batches.run(operations, _ASIDE, wait=wait)
        fenced = not kinds <= {Apply, Get}
        return self._batches.run(operations, operations.lane, operations.number, wait=wait, fenced=fenced)

    def _now(self) -> float | bool:
        return False if self.clock is None else float(self.clock())

    async def _opened(self) -> None:
        if self.loop is not asyncio.get_running_loop():
            await self.ensure_open()

    # Listing, deadlines, sweeping

    async def page(self, query: Query, after: Any, limit: int) -> Page:
        await self._opened()
        return await self._listing.page(query, after, limit)

    def position(self, address: Address) -> Any:
        return tag_of(address), address.key

    async def beside(self, address: Address) -> Beside:
        await self._opened()
        record = self._keys.record(address)
        commands = [("GET", record.replace("}:r:", f"}}:{kind}:", 1)) for kind in "lm"]
        read = partial(self._server.exchange, _ASIDE, tag_of(address), [*commands, ("TIME",)])
        *kept, time = await read_again(read)
        now = int(time[0]) + int(time[1]) / 1e6 if self.clock is None else self.clock()
        # Both are "<until> <text>".
        (lease_until, _, holder), (memo_until, _, memo) = [
            (each if isinstance(each, str) else "0").partition(" ") for each in kept
        ]
        remaining = float(lease_until) - now
        is_held, is_remembered = remaining > 0, float(memo_until) > now
        return Beside(holder if is_held else None, remaining if is_held else 0.0, memo if is_remembered else None)

    async def namespaces(self) -> list[str]:
        await self._opened()
        return await self._listing.namespaces()

    async def traces(self, namespace: str, tag: str, *, limit: int = 500) -> list[Address]:
        await self._opened()
        return await self._listing.traces(namespace, tag, limit)

    async def due(
        self,
        namespace: str,
        *,
        before: float | None = None,
        limit: int = 100,
        after: Due | None = None,
        flow: str | Any_ | Sequence[str] | None = ANY,
    ) -> list[Due]:
        await self._opened()
        return await self._listing.due(namespace, before=before, limit=limit, after=after, flow=flow)

    async def due_in(self, wanted: Mapping[str, Sequence[str] | Any_], *, limit: int = 100) -> list[Due]:
        await self._opened()
        return await self._listing.due_in(wanted, limit)

    async def queued(self, namespace: str, name: str | Sequence[str], *, limit: int = 100) -> list[Address]:
        await self._opened()
        return await self._listing.queued(namespace, name, limit)

    async def queues(self, namespace: str, *, prefix: str = "", after: str = "", limit: int = 100) -> list[str]:
        await self._opened()
        return await self._listing.queues(namespace, prefix, after, limit)

    async def sweep(self, limit: int = 1000) -> Swept:
        await self._opened()
        return await self._listing.sweep(limit)

    async def settings(self) -> dict[str, Any]:
        await self._opened()
        leases = await self._leases()
        sentinels = await self._server.sentinels() if isinstance(self._server, SentinelServer) else {}
        nodes = {}
        # Last, because the check of the clock compares its time with the time of this machine after the call.
        for location, (facts, now) in (await self._server.info(_ASIDE)).items():
            lines = facts.splitlines() if isinstance(facts, str) else []
            node: dict[str, Any] = dict(line.split(":", 1) for line in lines if ":" in line)
            if isinstance(now, list):
                node["now"] = int(now[0]) + int(now[1]) / 1e6
            nodes[location] = node
        return {
            "backend": "redis",
            "longest_lease": self._longest(leases, [node["now"] for node in nodes.values() if "now" in node]),
            "cluster": self._server.spread,
            "durability": "wait" if self._wait else "fast",
            "wait_for": self._wait_for,
            "nodes": nodes,
            "patience": self._patience,
            "sentinels": sentinels,
        }

    async def _leases(self) -> dict[str, str] | None:
        """Return the leases among about ``_SCANNED`` keys of each server."""
        pattern = re.sub(r"([][*?\\])", r"\\\1", self._keys.prefix) + ":{*}:l:*"
        return await self._server.values_of(_ASIDE, pattern, _SCANNED)

    def _longest(self, leases: dict[str, str] | None, times: list[float]) -> dict[str, Any] | None:
        """Return the lease that ends last."""
        if not leases or (self.clock is None and not times):
            return None
        until, key = max((float(text.partition(" ")[0]), key) for key, text in leases.items())
        remaining = until - (times[0] if self.clock is None else self.clock())
        return {"seconds": remaining, **decode_address(key.partition("}:l:")[2])._asdict()} if remaining > 0 else None
