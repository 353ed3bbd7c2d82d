"""``make simulate``: run many seeds, or one with its trace.

``SEEDS=1000`` is their number, ``FIRST`` the first one, ``JOBS`` the number of processes. ``SEED=17`` repeats one, and
prints who did what when: as text, and as a sequence diagram in Mermaid.
"""

from __future__ import annotations

import os
import sys
import time
from multiprocessing import Pool

from tests.simulation.seeds import Tally, explain, failure_of, run_seeds, world_of

#: The seeds that a process runs at once.
CHUNK = 100


def one(seed: int) -> int:
    """Run one seed and print its trace; return the exit code."""
    world = world_of(seed)
    error = failure_of(world)
    print(f"{type(world).__name__}, seed {seed}: {world.simulation.checksum}")
    print("faults:", *world.faults or ["none"], sep="\n  ")
    print(world.simulation.text())
    print("\n```mermaid\n" + world.simulation.diagram() + "\n```")
    if error is not None:
        print(explain(seed))
    return int(error is not None)


def many(first: int, count: int, jobs: int) -> int:
    """Run many seeds, print those that fail, and return the exit code."""
    began, total = time.monotonic(), Tally()
    chunks = [range(start, min(start + CHUNK, first + count)) for start in range(first, first + count, CHUNK)]
    with Pool(jobs) as pool:
        for tally in pool.imap(run_seeds, chunks):
            total.add(tally)
            for seed in tally.failed:
                print(explain(seed), flush=True)
            if sys.stderr.isatty():
                print(f"\r{total.seeds} of {count} ", end="", file=sys.stderr)
    print(f"{total}; {len(total.failed)} failed, in {time.monotonic() - began:.0f} s")
    return int(bool(total.failed))


if __name__ == "__main__":
    if os.environ.get("SEED"):
        sys.exit(one(int(os.environ["SEED"])))
    sys.exit(
        many(*(int(os.environ.get(name) or default) for name, default in (("FIRST", 0), ("SEEDS", 1000), ("JOBS", 2))))
    )
