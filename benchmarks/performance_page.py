"""``docs/performance.md``, from the figures that ``benchmarks.comparison`` and ``benchmarks.calls`` keep as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.comparison_results import TITLES, Comparison, table

__all__ = ["CALLS", "PAGE", "page", "write_page"]

CALLS = Path(__file__).parent / "calls.json"
PAGE = Path(__file__).parents[1] / "docs" / "performance.md"

#: What a reader must know to judge the figures.
CAPTIONS = {
    "updates": """\
- Each handler reads a number of its user, adds one and stores it. Two messages of a user arrive together, so the second
  one must wait for the first. A subject that does not wait loses one of them, and is marked as wrong.
- A round has 1,000 updates, with python-telegram-bot 100. Its handler pauses between reading and writing, as if it
  called a service. `PicklePersistence` writes its whole file each time, which is quick with 50 users.
- aiogram and python-telegram-bot parse each update into objects; Stepwell alone does not. The rows *on Stepwell* use
  these frameworks with the storage of Stepwell.
- Redis keeps its data in memory in this run: a write survives a crash of the bot, not of the server.
""",
    "steps": """\
- A single run, so no write is shared with another run.
- LangGraph runs with `durability="sync"` and `PRAGMA synchronous = FULL`, so its writes survive what those of Stepwell
  survive. DBOS on SQLite has its default settings.
- PocketFlow stores nothing. If you need no state after a restart, it is enough.
""",
}

START = """\
# Performance

How fast Stepwell is beside other libraries, and how much work an update is. `make bench` writes this page. To plan a
deployment, read [Scale](scale.md).

![Updates and steps a second of Stepwell and its peers](images/comparison.svg)

Green is Stepwell, grey another library, red a wrong result. The scale is logarithmic.

Measured on {day}: {machine}. The subjects took turns, each in a process of its own, with the servers on the same
machine. Rates depend on the machine, so compare the ratios. The spread shows how quiet it was.
Versions: {packages}.
"""

CALLED = """\
## Python calls

The number of Python function calls hardly depends on the machine, so it shows each change that adds work. Resuming a
coroutine counts as a call; a call into C does not. Waiting takes a few more calls on a busy machine, so each figure is
the lowest of {repeats} counts. The tests fail if a figure grows by more than 15 %. Counted on {day}: {python}.
"""

CROSSED = """\
In {work}, functions of {modules} modules of Stepwell are called.
{changes} of these calls are in another module than the call before.
"""

RUN = """\
*One of 50 users* is an update while the other 49 send updates too. They share round trips and commits.

## Run it

```console
$ make bench ARGS=comparison   # the rates, the plot and this page
$ make bench ARGS=calls        # the calls and this page
$ make bench                   # both, and the benchmarks of single parts
```

`make bench` installs the other libraries into an environment of its own, `.venv-bench`, and starts PostgreSQL and
Redis. Close other programs first. `ROUNDS=9 make bench ARGS=comparison` takes more rounds. The figures of each round
are in [results.json](../benchmarks/results.json), the calls in [calls.json](../benchmarks/calls.json).
"""


def write_page() -> None:
    """Write the page from the last runs of both benchmarks."""
    PAGE.write_text(page(Comparison.load(), json.loads(CALLS.read_text())))


def page(run: Comparison, calls: dict[str, Any]) -> str:
    """Return the page."""
    parts = [START.format(day=run.day, machine=run.machine, packages=run.packages)]
    for workload, title in TITLES.items():
        parts += [f"## {title}\n", "\n".join(table(run, workload)) + "\n", CAPTIONS[workload]]
    parts += [CALLED.format(**calls), calls_table(calls["rows"])]
    parts += [CROSSED.format(**each) for each in calls["crossed"]]
    parts += [RUN]
    return "\n".join(parts)


def calls_table(rows: list[dict[str, Any]]) -> str:
    """Return a Markdown table."""
    text = ["| | | calls | |", "| --- | --- | --- | --- |"]
    text += [f"| {row['subject']} | {row['unit']} | {row['calls']:,.0f} | {row['remark']} |" for row in rows]
    return "\n".join(text) + "\n"
