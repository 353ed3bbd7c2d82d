"""Stepwell beside its peers: a counting bot and a flow of 400 steps, in one run.

The subjects take turns, each in a process of its own. The result of each is checked: one that loses an update is marked
as wrong, however fast it is. Writes ``RESULTS.md`` and ``results.json`` here, ``docs/performance.md``, and the plot in
``docs/images``.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer

from benchmarks.comparison_report import write_report
from benchmarks.comparison_results import Measured
from benchmarks.comparison_subjects import SUBJECTS

ROUNDS = int(os.environ.get("ROUNDS", "5"))


def main() -> int:
    results = {name: Measured(one.workload, one.subject, one.storage, [], 1.0) for name, one in SUBJECTS.items()}
    # Not in /tmp, which may be memory: there fsync is free.
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as folder:
        postgres, redis = PostgresServer(durable=True).start(), RedisServer()
        try:
            for turn in range(ROUNDS):
                for name in SUBJECTS:
                    place = {"folder": f"{folder}/{turn}-{name}", "postgres": postgres.url(), "redis": redis.url()}
                    Path(place["folder"]).mkdir()
                    redis.client().flushall()
                    rate, kept = run(name, place)
                    results[name].rates.append(rate)
                    results[name] = results[name]._replace(kept=min(results[name].kept, kept))
        finally:
            postgres.stop()
            redis.stop()
    for result in results.values():
        wrong = "" if result.right else f"   WRONG: {result.kept:.0%} of the updates kept"
        print(f"{result.workload:8}{result.subject:42}{result.storage:34}{result.median:>10,.0f} a second{wrong}")
    write_report(list(results.values()))
    # The claim of the README: ours are right.
    return sum(not result.right for result in results.values() if "Stepwell" in result.subject)


def run(name: str, place: dict[str, str]) -> tuple[float, float]:
    """Run a subject in a process of its own; return its operations a second, and the part that is in its result."""
    command = [sys.executable, "-m", "benchmarks.comparison", name, json.dumps(place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        sys.exit(f"{name} failed:\n{done.stdout}{done.stderr}")
    rate, kept = json.loads(done.stdout.splitlines()[-1])
    return rate, kept


def run_here(name: str, place: dict[str, Any]) -> None:
    operations, seconds, found = asyncio.run(SUBJECTS[name].run(place))
    print(json.dumps([operations / seconds, found / operations]))


if __name__ == "__main__":
    run_here(sys.argv[1], json.loads(sys.argv[2]))
