"""``docs/scale.md``, from the figures of ``benchmarks.scale``."""

from __future__ import annotations

import math
import os
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.scale_model import Measured, Row

__all__ = ["write_page"]

PAGE = Path(__file__).parents[1] / "docs" / "scale.md"
#: Bytes of a conversation with two small fields, by ``python -m benchmarks bytes``: memory with its memo on Redis 7,
#: and disk after ten more updates.
BYTES = {"Redis Cluster": 721, "PostgreSQL": 1_027}
#: How far a core, a node's memory and a disk may be used in normal times.
USED, MEMORY = 0.6, 16 * 2**30 * 0.6
MILLIONS, RATES = (1, 10, 100), (1_000, 5_000, 10_000, 50_000)


def write_page(found: list[Measured], rows: list[Row], spread: float) -> None:
    """Write the page. ``spread``: how far single measurements are from their median."""
    day = time.strftime("%Y-%m-%d", time.gmtime())
    worst = max(abs(row.error) for row in rows)
    unseen = max(abs(row.error) for row in rows if not row.calibrates)
    text = [
        "# Scale",
        "",
        "How far a storage carries you, and what to add when. `python -m benchmarks scale` writes this page: it "
        "measures what an "
        "update costs, predicts other sizes with a simulation, and compares the predictions with what it can measure. "
        f"This run: {day}, {os.cpu_count()} cores, CPython {platform.python_version()}.",
        "",
        "## What an update costs",
        "",
        "A whole update: claim, read, change, commit, of a conversation with two fields. Clients and servers share "
        "the cores of "
        "one machine, so rates stop growing when the cores are busy; costs are CPU time, and move to other machines "
        "as they are.",
        "",
        "| storage | nodes | client processes | users each | updates a second | client CPU | server CPU | bytes on "
        "the wire | "
        "server calls | operations a batch |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    text += [
        f"| {each.kind} | {each.nodes} | {each.clients} | {each.users} | {each.rate:,.0f} | "
        f"{each.client_cpu * 1e6:.0f} µs | "
        f"{each.server_cpu * 1e6:.0f} µs | {each.wire:,.0f} | {each.calls:.2f} | {each.batch:.1f} |"
        for each in found
    ]
    text += [
        "",
        "Server calls are commits on PostgreSQL and commands on Redis, those inside scripts included. Concurrent "
        "users share round "
        "trips, so an update of one of 50 users costs less than that of a single one.",
        "",
        "## The model",
        "",
        "A discrete simulation (`benchmarks/scale_simulation.py`) has the users, lanes, batches and event loops of the "
        "library, and the processes and cores as Linux schedules them (`benchmarks/scale_cores.py`). Its costs are CPU "
        "times, calibrated with one node: one client with 10, 20 and 50 users gives those of an operation and of a "
        "batch, one user gives that of waking a process, and four clients give their growth with the clients. No rate "
        "is used. It predicts rates and batches:",
        "",
        "| storage | nodes | client processes | users each | measured | predicted | error | operations a batch | "
        "predicted | calibrates |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    text += [
        f"| {row.measured.kind} | {row.measured.nodes} | {row.measured.clients} | {row.measured.users} | "
        f"{row.measured.rate:,.0f} | "
        f"{row.predicted.rate:,.0f} | {row.error:+.0%} | {row.measured.batch:.1f} | {row.predicted.batch:.1f} | "
        f"{'yes' if row.calibrates else ''} |"
        for row in rows
    ]
    text += [
        "",
        f"The largest error is {worst:.0%}, and {unseen:.0%} among the layouts that do not calibrate. Each "
        f"figure is the median of rounds in which the layouts took turns; nine in ten measurements were within "
        f"{spread:.0%} of their median.",
        "",
        "Processes that share few cores wait for each other even while a core is idle, so the rate stops growing "
        "before the cores are busy: [decision 085](decisions/085-a-model-of-processes-and-cores.md).",
    ]
    for kind in BYTES:
        text += ["", f"## {kind}", "", *plan(kind, found)]
    text += ["", *STORED, "", *PAST]
    PAGE.write_text("\n".join(text) + "\n")


def plan(kind: str, found: list[Measured]) -> list[str]:
    """Return the table of sizes."""
    # Of many users and the most nodes, as in production.
    each = max((one for one in found if one.kind == kind), key=lambda one: (one.nodes, one.users, -one.clients))
    size = BYTES[kind]
    head = "masters" if kind == "Redis Cluster" else "server cores"
    text = [
        f"From {each.client_cpu * 1e6:.0f} µs of client CPU, {each.server_cpu * 1e6:.0f} µs of server CPU and "
        f"{each.wire:,.0f} bytes "
        f"for an update, and {size:,} bytes for a conversation. The table is computed from these, not measured. "
        f"Cores are planned at 60 %, and so is a node's memory "
        f"of 16 GiB.",
        "",
        f"| conversations | updates a second | {head} | {'memory' if kind == 'Redis Cluster' else 'disk'} | client "
        f"processes | network | "
        "saturates first |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for millions in MILLIONS:
        for rate in RATES:
            total = millions * 1e6 * size
            cores, processes = rate * each.server_cpu / USED, rate * each.client_cpu / USED
            by_memory = total / MEMORY if kind == "Redis Cluster" else 0.0
            needed = max(math.ceil(cores), math.ceil(by_memory), 3 if kind == "Redis Cluster" else 1)
            pressures = {"client CPU": processes, "server CPU": cores, "memory": by_memory}
            first = max(pressures, key=lambda name: pressures[name])
            text.append(
                f"| {millions} million | {rate:,} | {needed} | {total / 2**30:,.1f} GiB | "
                f"{max(1, math.ceil(processes))} | "
                f"{rate * each.wire * 8 / 1e6:,.0f} Mbit/s | {first} |"
            )
    return [*text, "", FAILOVER[kind]]


FAILOVER = {
    "Redis Cluster": (
        "The 64 hash tags of a storage do not divide evenly over the slots that `redis-cli` gives to most numbers of "
        "masters: with three, the largest has 1.08 times the mean, with seven 1.31 times, so plan its memory with that "
        "or move slots. "
        "Each master needs a replica on another machine, which doubles the memory. A failover concerns the "
        "conversations of one "
        "master, for the node timeout and an election; the others go on. With `durability=wait` no acknowledged "
        "update is lost: "
        "[Redis](redis.md)."
    ),
    "PostgreSQL": (
        "One server takes all writes, so its cores and its disk are the limit; clients and readers are added beside "
        "it. Each "
        "server call is one wait for the disk, shared by the users of a batch. With hundreds of millions of "
        "conversations, "
        "create the tables with partitions. A synchronous standby takes over without a loss: "
        "[PostgreSQL](postgresql.md)."
    ),
}

#: From a run of ``python -m benchmarks size``.
STORED = [
    "## Millions of conversations",
    "",
    "`python -m benchmarks size` compares updates by 50 tasks of one process, each a claim, a transition and a changed "
    "field, with 2,000 "
    "and with millions of stored conversations. PostgreSQL was on a disk with `fsync` and autovacuum on, a quarter of "
    "the memory (6 GB) as `shared_buffers`, and a checkpoint every 15 minutes.",
    "",
    "| storage | conversations | updates of | updates a second | of the rate with 2,000 |",
    "| --- | --- | --- | --- | --- |",
    "| PostgreSQL | 2,000 | all | 10,874 | |",
    "| PostgreSQL | 5 million | 2,000, spread over all | 10,108 | 0.93 |",
    "| PostgreSQL | 5 million | all | 10,125 | 0.92 |",
    "| Redis 7 | 2,000 | all | 14,385 | |",
    "| Redis 7 | 1 million | 2,000, spread over all | 13,883 | 0.93 |",
    "| Redis 7 | 1 million | all | 13,101 | 0.92 |",
    "",
    "The last column is the median of rounds that took turns. So the number of stored conversations costs little.",
    "",
    "On PostgreSQL this is the rate after a million updates. Right after the start of the server, updates of all five "
    "million reached 0.66: an update reads two or three pages that nobody has read yet, and the log gets a whole copy "
    "of each page that is written for the first time since a checkpoint, 14 KB for an update instead of 1.2 KB. "
    "After half a million updates most pages are in memory and in the log. With a checkpoint every 15 minutes this is "
    "a small part of the time. [Settings for millions of conversations](postgresql.md#millions-of-conversations) "
    "avoid most of it.",
    "",
    "The pages of the inspector, with 100,000 runs beside, take up to 22 ms on PostgreSQL. On Redis they take up to "
    "251 ms: it has no "
    "index by state, so the first page waits 250 ms for counts and shows them later, and a filter by age reads "
    "records for 200 ms. Use a "
    "server with jemalloc, as is usual: with the allocator of libc, Lua took three times as long once a million "
    "conversations were stored.",
]

PAST = [
    "## Past that",
    "",
    "These are plans, not measurements.",
    "",
    "- **Regions.** A conversation belongs to one place. Give each region its own storage and its own bot or "
    "webhook, and route a "
    "user by the first digits of the id or by a table. Nothing of a conversation spans two keys, so regions need no "
    "common "
    "transaction. A user who moves is copied with `copy_records(namespaces=...)` while the old region refuses the "
    "user.",
    "- **Idle conversations.** Most of 100 million conversations are idle. A job copies conversations without an "
    "update for a month "
    "from Redis to PostgreSQL or SQLite files with `copy_records`, and removes them; a handler that finds no record "
    "looks "
    "there first and copies it back. Expiry (`ttl`) removes those that nobody needs.",
    "- **Several bots.** Namespaces share nothing. Move the busiest bot to a storage of its own by its URL.",
]
