"""The nodes of a Redis Cluster, as redis-py's cluster client finds them."""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from stepwell._optional import require
from stepwell.errors import StorageError, StorageUnavailable
from stepwell.storage.redis.client import DRIVER_ERRORS, RedisConnection, Refused, ServerConfig
from stepwell.storage.redis.server import LOOKUP, RedisNode, Server, SlotMoves
from stepwell.storage.redis.wire import TAGS

_cluster = require("redis.asyncio.cluster", "redis")

__all__ = ["SLOTS", "Cluster"]

#: The slot of each hash tag, computed as the Cluster does.
SLOTS: Final = [crc_hqx(f"{tag:02}".encode(), 0) % 16384 for tag in range(TAGS)]


class Cluster(Server):
    """The masters of a Cluster, each with some hash tags. Its map is loaded again when a call fails or a slot moves."""

    spread = True
    follows = True

    def __init__(self, configs: Sequence[ServerConfig], timeout: float) -> None:
        super().__init__(configs[0], timeout)
        self._configs = configs
        self.owners = [None] * TAGS
        #: redis-py's map of slots; ``None``: begin with the nodes of the URL.
        self._manager: Any = None

    @property
    def location(self) -> str:
        """The nodes of the URL, without credentials."""
        return ",".join(config.location for config in self._configs)

    async def _find(self) -> None:
        manager = self._manager = self._manager or self._new_manager()
        try:
            await manager.initialize()
        except DRIVER_ERRORS as error:
            await _hang_up(manager)
            self._manager = None
            raise await self._unreachable() from error
        # Its connections are only for lookups.
        await _hang_up(manager)
        owners: list[RedisNode | None] = []
        replicas = []
        for slot in SLOTS:
            nodes = [RedisNode(each.host, int(each.port)) for each in manager.slots_cache.get(slot, ())]
            owners.append(nodes[0] if nodes else None)
            replicas.append(nodes[1:])
        owner = owners[0]
        if owner is not None and len({*owners}) == 1:
            owners = [owner._replace(half=tag & 1) for tag in range(TAGS)]
        self.owners: list[RedisNode | None] = owners
        self.replicas: list[list[RedisNode]] = replicas

    def _new_manager(self) -> Any:
        seconds = min(self._timeout, LOOKUP)
        options = {name: value for name, value in self._config.arguments.items() if name not in ("host", "port")}
        options |= {"connection_class": self._config.kind, "socket_timeout": seconds, "socket_connect_timeout": seconds}
        nodes = [_cluster.ClusterNode(*config.address, **options) for config in self._configs]
        # Masters go on while another one is lost.
        return _cluster.NodesManager(nodes, False, options)

    async def _unreachable(self) -> StorageUnavailable:
        """Return why the nodes of the URL do not tell the map of slots."""
        problem = StorageUnavailable(f"no node of the Redis Cluster at {self.location} knows its masters", sent=False)
        for config in self._configs:
            connection = RedisConnection(config, min(self._timeout, LOOKUP))
            try:
                (reply,) = await connection.exchange([("CLUSTER", "SLOTS")])
            except StorageUnavailable as error:
                problem = error
            else:
                if isinstance(reply, Refused):
                    problem = StorageUnavailable(
                        f"Redis at {config.location} is not part of a Cluster ({reply.message}); "
                        "use redis:// for a single server",
                        final=reply.code == "ERR",
                    )
            finally:
                await connection.close()
            if problem.final:
                break
        problem.sent = False
        return problem

    def _misplaced(self, where: str) -> StorageError:
        return SlotMoves(f"Redis at {where} does not have these keys: their slot is being moved or has moved")

    async def close(self) -> None:
        """Close all connections."""
        await super().close()
        if self._manager is not None:
            # A lookup may have been cancelled.
            await _hang_up(self._manager)
            self._manager = None


async def _hang_up(manager: Any) -> None:
    for nodes in ("nodes_cache", "startup_nodes"):
        # RuntimeError: the connections of a closed loop are closed already.
        with suppress(*DRIVER_ERRORS, RuntimeError):
            await manager.aclose(nodes)
