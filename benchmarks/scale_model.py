"""The calibration of ``benchmarks.scale_simulation``, and its predictions, for ``benchmarks.scale``."""

from __future__ import annotations

import os
import statistics
from typing import NamedTuple

from benchmarks.scale_simulation import Costs, Layout, Simulated, simulate

__all__ = [
    "ALONE",
    "CALIBRATION",
    "CLIENTS",
    "CORES",
    "USERS",
    "Measured",
    "Row",
    "calibrated",
    "compare",
    "middle",
    "spread",
]

USERS = 50
#: The numbers of users of one client that calibrate the costs of an operation and of a batch: the batches differ.
CALIBRATION = (10, 20, USERS)
#: With one user, client and server sleep before each operation. CPU time that operation and batch do not explain is the
#: cost of waking them.
ALONE = 1
#: The number of clients of one node that calibrates the growth of the costs.
MANY = 4
CLIENTS = (1, 2, MANY)
#: An update is a claim and a commit.
OPERATIONS = 2
#: The most that a prediction may differ from what is measured.
ERROR = 0.20
CORES = os.cpu_count() or 1


class Measured(NamedTuple):
    """An update in one layout: seconds of CPU time, bytes, and calls of the server."""

    kind: str
    nodes: int
    clients: int
    users: int
    rate: float
    client_cpu: float
    server_cpu: float
    wire: float
    #: Commits (PostgreSQL) or commands (Redis) of an update.
    calls: float
    #: Operations in a batch, on average.
    batch: float

    def __str__(self) -> str:
        return (
            f"{self.kind:13} {self.nodes} nodes {self.clients} clients {self.users:2} users: {self.rate:6,.0f}/s, "
            f"client {self.client_cpu * 1e6:4.0f} us, server {self.server_cpu * 1e6:4.0f} us, {self.wire:5,.0f} bytes, "
            f"{self.calls:5.2f} calls, {self.batch:4.1f} operations a batch"
        )


class Row(NamedTuple):
    """A layout as measured and as predicted."""

    measured: Measured
    predicted: Simulated

    @property
    def error(self) -> float:
        """Return how much faster than measured the prediction is."""
        return self.predicted.rate / self.measured.rate - 1

    @property
    def missed(self) -> bool:
        """Return whether the error is too large."""
        return abs(self.error) > ERROR

    @property
    def calibrates(self) -> bool:
        """Return whether the CPU time and the batches of this layout are part of the calibration."""
        each = self.measured
        return each.nodes == 1 and (each.users in (ALONE, *CALIBRATION) if each.clients == 1 else each.clients == MANY)

    def __str__(self) -> str:
        each, predicted = self
        return (
            f"{each.kind:13} {each.nodes} nodes {each.clients} clients {each.users:2} users: predicted "
            f"{predicted.rate:6,.0f}, measured {each.rate:6,.0f}: {self.error:+.0%}; "
            f"batches {predicted.batch:.1f}, measured {each.batch:.1f}"
        )


def middle(found: list[Measured]) -> Measured:
    """Return the median of each figure."""
    first = found[0]
    figures = zip(*(each[4:] for each in found), strict=True)
    return Measured(first.kind, first.nodes, first.clients, first.users, *map(statistics.median, figures))


def spread(rounds: list[list[Measured]]) -> float:
    """Return how far the rates of the rounds are from their median, at most 1 in 10 farther."""
    errors = [abs(each.rate / middle(same).rate - 1) for same in rounds for each in same]
    return sorted(errors)[len(errors) * 9 // 10]


def line(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the height at 0 and the slope of the line with the least squares of relative errors."""
    weights = [y**-2 for _, y in points]
    total = sum(weights)
    x0 = sum(weight * x for weight, (x, _) in zip(weights, points, strict=True)) / total
    y0 = sum(weight * y for weight, (_, y) in zip(weights, points, strict=True)) / total
    above = sum(weight * (x - x0) * (y - y0) for weight, (x, y) in zip(weights, points, strict=True))
    slope = above / sum(weight * (x - x0) ** 2 for weight, (x, _) in zip(weights, points, strict=True))
    return y0 - slope * x0, slope


def calibrated(found: list[Measured]) -> Costs:
    """Divide the CPU times of one node into the costs of operations, of batches, of waking and of many clients."""
    one = [each for each in found if (each.nodes, each.clients) == (1, 1) and each.users in CALIBRATION]
    alone = next(each for each in found if (each.nodes, each.clients, each.users) == (1, 1, ALONE))
    many = next(each for each in found if (each.nodes, each.clients) == (1, MANY))
    client = line([(1 / each.batch, each.client_cpu / OPERATIONS) for each in one])
    server = line([(1 / each.batch, each.server_cpu / OPERATIONS) for each in one])
    expected = client[0] + server[0] + (client[1] + server[1]) / many.batch
    growth = (many.client_cpu + many.server_cpu) / OPERATIONS / expected
    return Costs(
        *client,
        *server,
        client_wake=max(0.0, alone.client_cpu / OPERATIONS - client[0] - client[1] / alone.batch),
        server_wake=max(0.0, alone.server_cpu / OPERATIONS - server[0] - server[1] / alone.batch),
        sharing=max(0.0, growth - 1) / (MANY - 1),
    )


def layout_of(each: Measured) -> Layout:
    """Return the processes of a measurement."""
    return Layout(each.clients, each.nodes, each.users, CORES, each.kind == "PostgreSQL")


def compare(found: list[Measured]) -> list[Row]:
    """Return each layout with what the simulation predicts."""
    rows = []
    for kind in dict.fromkeys(each.kind for each in found):
        ours = [each for each in found if each.kind == kind]
        costs = calibrated(ours)
        figures = ", ".join(f"{name} {1e6 * cost:.1f} us" for name, cost in list(costs._asdict().items())[:-1])
        print(f"{kind}: {figures}, sharing {costs.sharing:.1%}")
        for each in ours:
            rows.append(Row(each, simulate(costs, layout_of(each))))
            print(rows[-1], "   MISSED" if rows[-1].missed else "")
    return rows
