"""A discrete simulation of clients and servers, for ``benchmarks.scale``.

It does what the library and the servers do, with CPU times instead of work:

- A client is an event loop. An answer of n operations wakes n users in one turn. They use CPU time, and queue their
  next operations. Then the lane takes all of them as its next batch. A lane has one batch on its way.
- A conversation always has the same node, and the same half of the lanes of PostgreSQL or of the only Redis node.
- A process that uses a key again and again checks every quarter of a second whether another one waits for it. That is
  an operation before the claim and one after it, on PostgreSQL often in the lane of the other half.
- A Redis server answers all batches that it found in one turn at the end of the turn. PostgreSQL has a process for
  each lane of each client.

No process waits for a network or a disk: all of them are on one machine, and the files are in memory.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from benchmarks.scale_cores import Cores, Thread

__all__ = ["Costs", "Layout", "Simulated", "simulate"]

#: The most operations of a batch, and the seconds between two checks for waiters, as in the library.
MOST, CHECK_EVERY = 100, 0.25


class Costs(NamedTuple):
    """Seconds of CPU time."""

    #: Of a client, for an operation: the user's code, and encoding and decoding.
    client_operation: float
    #: Of a client, for a batch: sending it, and receiving its answer.
    client_batch: float
    #: Of a server, for an operation.
    server_operation: float
    #: Of a server, for a batch.
    server_batch: float
    #: Of a client and of a server, to begin work after a sleep: its core may be idle, and its caches are cold.
    client_wake: float = 0.0
    server_wake: float = 0.0
    #: How much all of these grow with each further client: they displace each other from the caches.
    sharing: float = 0.0


class Layout(NamedTuple):
    """The processes."""

    clients: int
    nodes: int
    #: Users of each client.
    users: int
    #: Cores that clients and servers share.
    cores: int
    #: Whether half of the lanes are for claims and half for commits, and each lane has its own process of the server
    #: (PostgreSQL). Otherwise a node has one process, and one lane of each client, or two if it is the only node (Redis
    #: Cluster).
    split: bool = False


class Simulated(NamedTuple):
    """The result of a simulation."""

    #: Updates a second.
    rate: float
    #: Operations in a batch, on average.
    batch: float


class _User:
    """A user and its lanes; ``checked_at`` is the time of its last check for waiters."""

    def __init__(self, claims: _Lane, commits: _Lane, checks: _Lane) -> None:
        self.claims, self.commits, self.checks = claims, commits, checks
        self.checked_at = 0.0
        #: Calls for the operations that follow: the last one is next.
        self.steps: list[Callable[[], None]] = []


class _Lane:
    """A queue of operations of one client to one thread of a server."""

    def __init__(self, simulation: _Simulation, client: Thread, server: Thread) -> None:
        self._simulation = simulation
        self._client, self._server = client, server
        self._queue: list[_User] = []
        self._busy = False

    def put(self, user: _User) -> None:
        """Queue the user's next operation."""
        self._queue.append(user)
        if not self._busy:
            self._busy = True
            self._client.add(self._take)

    def _take(self) -> tuple[float, Callable[[], None]]:
        batch, self._queue = self._queue[:MOST], self._queue[MOST:]
        self._busy = bool(batch)
        if not batch:
            return 0.0, _nothing
        return self._simulation.costs.client_batch, lambda: self._send(batch)

    def _send(self, batch: list[_User]) -> None:
        simulation = self._simulation
        simulation.operations += len(batch)
        simulation.batches += 1
        seconds = simulation.costs.server_batch + len(batch) * simulation.costs.server_operation

        def served() -> None:
            self._server.at_end.append(lambda: self._client.add(lambda: self._answered(batch)))

        self._server.add(lambda: (seconds, served))

    def _answered(self, batch: list[_User]) -> tuple[float, Callable[[], None]]:
        """Wake the users for the next turn, and send what has gathered."""
        seconds = len(batch) * self._simulation.costs.client_operation
        self._client.add(lambda: (seconds, lambda: self._simulation.advance(batch)))
        return self._take()


def _nothing() -> None:
    """Have no effect."""


class _Simulation:
    def __init__(self, costs: Costs, layout: Layout, seed: int) -> None:
        growth = 1 + costs.sharing * (layout.clients - 1)
        self.costs = Costs(*(seconds * growth for seconds in costs))
        self.cores = Cores(layout.cores, seed)
        self.updates = self.operations = self.batches = 0
        dice = random.Random(seed)
        # All clients are in one session, and each server is in its own.
        clients = [Thread(self.cores, 1 / layout.clients, wake=self.costs.client_wake) for _ in range(layout.clients)]
        nodes = [] if layout.split else [self._server() for _ in range(layout.nodes)]
        for client in clients:
            users = []
            lanes = [
                _Lane(self, client, self._server() if layout.split else nodes[number % layout.nodes])
                for number in range(4 if layout.split else max(2, layout.nodes))
            ]
            for _ in range(layout.users):
                if layout.split:
                    half = dice.randrange(2)
                    users.append(_User(lanes[half], lanes[2 + half], lanes[dice.randrange(2)]))
                else:
                    lane = dice.choice(lanes)
                    users.append(_User(lane, lane, lane))
            self._start(client, users)

    def _server(self) -> Thread:
        return Thread(self.cores, wake=self.costs.server_wake)

    def _start(self, client: Thread, users: list[_User]) -> None:
        client.add(lambda: (0.0, lambda: self.advance(users)))

    def advance(self, users: list[_User]) -> None:
        """Let users that have their answers queue their next operations."""
        now = self.cores.now - len(users) * self.costs.client_operation
        for user in users:
            # They ran one after the other.
            now += self.costs.client_operation
            if not user.steps:
                self._plan(user, now)
            user.steps.pop()()

    def _plan(self, user: _User, now: float) -> None:
        """Plan the operations of an update."""
        claim, commit = (lambda: user.claims.put(user)), (lambda: self._commit(user))
        user.steps = [commit, claim]
        if now - user.checked_at >= CHECK_EVERY:
            user.checked_at = now
            check = lambda: user.checks.put(user)  # noqa: E731
            user.steps = [commit, check, claim, check]

    def _commit(self, user: _User) -> None:
        self.updates += 1
        user.commits.put(user)


def simulate(costs: Costs, layout: Layout, seconds: float = 1.5, times: int = 3) -> Simulated:
    """Simulate these seconds several times, with users at other nodes and lanes each time."""
    found = [_Simulation(costs, layout, seed) for seed in range(1, times + 1)]
    for each in found:
        each.cores.run(seconds)
    batches = sum(each.batches for each in found)
    return Simulated(
        sum(each.updates for each in found) / seconds / times,
        sum(each.operations for each in found) / max(1, batches),
    )
