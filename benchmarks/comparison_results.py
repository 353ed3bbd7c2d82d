"""The figures of ``benchmarks.comparison``, kept in ``results.json``."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import NamedTuple

__all__ = ["RESULTS", "TITLES", "UNITS", "Comparison", "Measured", "figure", "table"]

RESULTS = Path(__file__).parent / "results.json"
TITLES = {
    "updates": "A counting bot: 50 users, each with two messages in flight",
    "steps": "A flow of 400 steps, each stored before the next one begins",
}
UNITS = {"updates": "updates a second", "steps": "steps a second"}


class Measured(NamedTuple):
    """The figures of one subject."""

    workload: str
    subject: str
    #: Where it stores, and what survives.
    storage: str
    #: Operations a second, one for each round.
    rates: list[float]
    #: How many of the operations are in the result, the worst of all rounds.
    kept: float

    @property
    def median(self) -> float:
        return statistics.median(self.rates)

    @property
    def right(self) -> bool:
        return self.kept == 1.0


class Comparison(NamedTuple):
    """One run of all subjects."""

    day: str
    machine: str
    #: The versions of the other packages.
    versions: dict[str, str]
    results: list[Measured]

    @classmethod
    def load(cls) -> Comparison:
        """Return the last run."""
        kept = json.loads(RESULTS.read_text())
        results = [Measured(*(each[name] for name in Measured._fields)) for each in kept["results"]]
        return cls(kept["day"], kept["machine"], kept["versions"], results)

    def save(self) -> None:
        figures = [each._asdict() | {"median": each.median, "right": each.right} for each in self.results]
        RESULTS.write_text(json.dumps(self._asdict() | {"results": figures}, indent=1) + "\n")

    def of(self, workload: str) -> list[Measured]:
        return [each for each in self.results if each.workload == workload]

    @property
    def packages(self) -> str:
        return ", ".join(f"{name} {version}" for name, version in self.versions.items())


def table(run: Comparison, workload: str) -> list[str]:
    """Return the lines of a Markdown table."""
    rows = run.of(workload)
    text = [
        f"| | storage | {UNITS[workload]}: median of {len(rows[0].rates)} rounds (lowest to highest) | result |",
        "| --- | --- | --- | --- |",
    ]
    for each in rows:
        spread = f"{figure(each.median)} ({figure(min(each.rates))} to {figure(max(each.rates))})"
        verdict = "right" if each.right else f"**wrong**: {each.kept:.0%} kept"
        text.append(f"| {each.subject} | {each.storage} | {spread} | {verdict} |")
    return text


def figure(rate: float) -> str:
    """Return a rate with two or three significant digits."""
    digits = 2 - math.floor(math.log10(rate))
    return f"{round(rate, digits):,.0f}"
