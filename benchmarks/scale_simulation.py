"""A discrete simulation of clients and servers, for ``benchmarks.scale``.

Users of a client process claim and commit in turn. As in the library, operations wait in lanes: a lane has one batch on
its way, and the next batch takes what has gathered. Processes share the cores of a machine evenly.
"""

from __future__ import annotations

import math
import random
from collections import deque
from typing import NamedTuple

__all__ = ["Costs", "Layout", "Simulated", "simulate"]

_MOST = 100
_CLAIM, _COMMIT = 0, 1


class Costs(NamedTuple):
    """Seconds of CPU time of an operation and of a batch, and seconds of waiting for a batch."""

    client_operation: float
    client_batch: float
    server_operation: float
    server_batch: float
    #: Network, wake-ups and the disk.
    delay: float
    #: How much the CPU time grows with each doubling of the processes that share the cores. They displace each other's
    #: memory from the caches, and wait for each other's locks.
    sharing: float = 0.0


class Layout(NamedTuple):
    """What is simulated."""

    clients: int
    nodes: int
    users: int
    #: Cores that clients and servers share.
    cores: int
    #: Lanes of a client to one node: one for all operations, or several, half of them for claims.
    lanes: int = 1
    #: Whether the server has a thread for each lane (PostgreSQL), or one for all of them (Redis).
    own_threads: bool = False

    @property
    def processes(self) -> int:
        """Return the number of clients and of threads of servers."""
        return self.clients + self.nodes * (self.clients * self.lanes if self.own_threads else 1)

    @property
    def doublings(self) -> float:
        """Return how often the processes have doubled since one client and one node."""
        return math.log2(self.processes / self._replace(clients=1, nodes=1).processes)


class _Lane:
    def __init__(self, client: int, thread: int) -> None:
        self.client, self.thread = client, thread
        self.queue: deque[tuple[int, int]] = deque()
        self.busy = False


class _Machine:
    """Threads with queues of work; all busy threads share the cores."""

    def __init__(self, threads: int, cores: int) -> None:
        self.queues: list[deque[tuple[float, object]]] = [deque() for _ in range(threads)]
        self.cores = cores
        self.left: dict[int, float] = {}

    def add(self, thread: int, seconds: float, work: object) -> None:
        self.queues[thread].append((seconds, work))
        if thread not in self.left:
            self.left[thread] = seconds

    def speed(self) -> float:
        return min(1.0, self.cores / len(self.left)) if self.left else 1.0


class Simulated(NamedTuple):
    """What came out."""

    #: Updates a second.
    rate: float
    #: Operations in a batch, on average.
    batch: float


def simulate(costs: Costs, layout: Layout, seconds: float = 1.0) -> Simulated:
    """Simulate these seconds."""
    dice = random.Random(1)
    machine = _Machine(layout.processes, layout.cores)
    growth = 1 + costs.sharing * layout.doublings
    lanes: dict[tuple[int, int, int], _Lane] = {}
    for client in range(layout.clients):
        for node in range(layout.nodes):
            for lane in range(layout.lanes):
                own = (client * layout.nodes + node) * layout.lanes + lane
                lanes[client, node, lane] = _Lane(client, layout.clients + (own if layout.own_threads else node))
    waiting: list[tuple[float, int, _Lane, list[tuple[int, int]]]] = []
    now, updates, operations, batches = 0.0, 0, 0, 0

    def submit(client: int, user: int, kind: int) -> None:
        half = layout.lanes // 2
        number = kind * half + dice.randrange(half) if half else 0
        lane = lanes[client, dice.randrange(layout.nodes), number]
        lane.queue.append((user, kind))
        if not lane.busy:
            begin(lane)

    def begin(lane: _Lane) -> None:
        batch = [lane.queue.popleft() for _ in range(min(_MOST, len(lane.queue)))]
        lane.busy = bool(batch)
        if batch:
            cost = costs.client_batch + len(batch) * costs.client_operation
            machine.add(lane.client, cost * growth, (lane, batch, "sent"))

    for client in range(layout.clients):
        for user in range(layout.users):
            submit(client, user, _CLAIM)
    while now < seconds:
        speed = machine.speed()
        next_done = min(machine.left.values()) / speed if machine.left else float("inf")
        next_arrival = min(waiting)[0] - now if waiting else float("inf")
        step = min(next_done, next_arrival)
        if step == float("inf"):
            break
        now += step
        for thread in machine.left:
            machine.left[thread] -= step * speed
        for thread in [thread for thread, left in machine.left.items() if left <= 1e-12]:
            _, work = machine.queues[thread].popleft()
            if machine.queues[thread]:
                machine.left[thread] = machine.queues[thread][0][0]
            else:
                del machine.left[thread]
            lane, batch, stage = work  # type: ignore[misc]
            if stage == "sent":
                cost = costs.server_batch + len(batch) * costs.server_operation
                machine.add(lane.thread, cost * growth, (lane, batch, "served"))
            else:
                operations, batches = operations + len(batch), batches + 1
                waiting.append((now + costs.delay, batches, lane, batch))
        arrived = sorted(entry for entry in waiting if entry[0] <= now + 1e-12)
        waiting = [entry for entry in waiting if entry[0] > now + 1e-12]
        for _, _, lane, batch in arrived:
            lane.busy = False
            for user, kind in batch:
                updates += kind == _COMMIT
                submit(lane.client, user, _COMMIT if kind == _CLAIM else _CLAIM)
            if not lane.busy and lane.queue:
                begin(lane)
    return Simulated(updates / now, operations / max(1, batches))
