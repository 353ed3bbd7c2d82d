"""SQLite with synchronous=FULL beside the standard library's sqlite3 and aiosqlite, all on one disk."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import aiosqlite

from stepwell import SQLiteStorage
from stepwell.codec import Seal, address_of
from stepwell.record import Limits, Place
from stepwell.slot import Slot

TASKS = 50
ROUNDS = int(os.environ.get("ROUNDS", "25"))
#: Short alternating rounds, so that other load on the machine affects both sides.
SECONDS = 0.2
STORED = int(os.environ.get("STORED", "1000000"))

Step = Callable[[int, int], Awaitable[object]]


async def main() -> int:
    # Not in /tmp, which may be in memory, where an fsync costs nothing.
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as name:
        folder = Path(name)
        bad = await side_by_side(folder)
        bad += await a_million_stored(folder)
    return bad


async def side_by_side(folder: Path) -> int:
    async with (
        SQLiteStorage(str(folder / "ours.db")) as ours,
        # Autocommit: a separate commit() of one task would also commit the writes of other tasks.
        aiosqlite.connect(folder / "theirs.db", isolation_level=None) as theirs,
    ):
        raw = sqlite3.connect(folder / "raw.db", isolation_level=None)
        for pragma in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL"):
            raw.execute(pragma)
            await theirs.execute(pragma)
        table = "CREATE TABLE conversation (key TEXT PRIMARY KEY, value TEXT NOT NULL)"
        raw.execute(table)
        raw.execute("INSERT INTO conversation VALUES ('alone', '0')")
        await theirs.execute(table)

        async def upsert(task: int, turn: int) -> None:
            await theirs.execute(
                "INSERT INTO conversation VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value",
                (f"({task},{task})", f'{{"name": "Alice", "count": {turn}}}'),
            )

        async def update(task: int, turn: int) -> None:
            async with Slot(ours, "bot", (task, task)) as slot:
                slot.data["count"] = turn
                slot.data["name"] = "Alice"
                await slot.commit()

        async def merge(task: int, turn: int) -> None:
            await ours.update_data("bot", (task, task), {"count": turn})

        async def select_and_update(task: int, turn: int) -> None:
            (value,) = raw.execute("SELECT value FROM conversation WHERE key = 'alone'").fetchone()
            raw.execute("UPDATE conversation SET value = ? WHERE key = 'alone'", (str(int(value) + 1),))

        steps = {
            "upsert": (upsert, TASKS),
            "update": (update, TASKS),
            "merge": (merge, TASKS),
            "alone": (update, 1),
            "raw": (select_and_update, 1),
        }
        rates = await interleaved(steps)
        raw.close()
    print(f"{TASKS} tasks, aiosqlite upsert with commit:    {middle(rates['upsert']):9,.0f}/s")
    print(f"{TASKS} tasks, claim + change + commit:         {middle(rates['update']):9,.0f}/s")
    print(f"{TASKS} tasks, merge without a claim:           {middle(rates['merge']):9,.0f}/s")
    print(f"1 task,   sqlite3 SELECT + UPDATE + commit: {middle(rates['raw']):9,.0f}/s")
    print(f"1 task,   claim + change + commit:          {middle(rates['alone']):9,.0f}/s")
    return (
        bound("claim + change + commit over aiosqlite upserts", ratios(rates["update"], rates["upsert"]), least=2.5)
        + bound("merges over aiosqlite upserts", ratios(rates["merge"], rates["upsert"]), least=4)
        + bound("cost alone over raw sqlite3", ratios(rates["raw"], rates["alone"]), most=4)
    )


async def a_million_stored(folder: Path) -> int:
    """Compare updates of 2,000 conversations in a small file and in a file with many more."""
    started = time.perf_counter()
    await fill(folder / "few.db", range(0, STORED, STORED // 2000))
    await fill(folder / "many.db", range(STORED))
    async with (
        SQLiteStorage(str(folder / "few.db")) as few,
        SQLiteStorage(str(folder / "many.db")) as many,
    ):
        print(f"{STORED:,} conversations stored in {time.perf_counter() - started:.0f} s")

        def updates(storage: SQLiteStorage) -> Step:
            async def update(task: int, turn: int) -> None:
                # Active keys, spread over all stored ones.
                key = (task * 7919 + turn * 104_729) % 2000 * (STORED // 2000)
                async with Slot(storage, "bot", (key, key)) as slot:
                    slot.data["count"] = turn
                    await slot.commit()

            return update

        steps = {"few": (updates(few), TASKS), "many": (updates(many), TASKS)}
        await interleaved(steps, rounds=2)
        rates = await interleaved(steps, rounds=ROUNDS)
    print(f"{TASKS} tasks on 2,000 stored conversations:    {middle(rates['few']):9,.0f}/s")
    print(f"{TASKS} tasks on {STORED:,} stored:          {middle(rates['many']):9,.0f}/s")
    return bound("rate with many stored over rate with few", ratios(rates["many"], rates["few"]), least=0.85)


async def fill(path: Path, keys: range) -> None:
    """Store many conversations in bulk."""
    # Closed before sqlite3 opens it: two SQLite libraries in one process release each other's locks.
    async with SQLiteStorage(str(path)):
        pass
    limits = Limits()

    def rows() -> Iterable[tuple[tuple[object, ...], list[tuple[str, str, str, str]]]]:
        for number in keys:
            address = address_of("bot", (number, number), limits)
            seal = Seal(address, limits, limits.record)
            head = seal.head(Place("registration", "get_email"))
            fields = seal.fields({"name": "Alice", "email": "alice@example.com", "count": 0})
            size = sum(len(name) + len(text) for name, text in fields.items())
            yield (
                (*address, 1, "w", "", 0.0, 1, head.flow, head.state, head.text, size),
                [(*address, name, text) for name, text in fields.items()],
            )

    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA synchronous = OFF")
    db.execute("BEGIN")
    for record, fields in rows():
        db.execute(
            "INSERT INTO record (namespace, key, number, write, base, written_at, alive, flow, state, head, bytes, "
            "names, part_names, checksum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, 0)",
            record,
        )
        db.executemany("INSERT INTO field VALUES (?, ?, ?, ?)", fields)
    db.execute("COMMIT")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()


async def interleaved(steps: dict[str, tuple[Step, int]], rounds: int = ROUNDS) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, (step, tasks) in steps.items():
            rates[name].append(await rate(step, tasks))
    return rates


async def rate(step: Step, tasks: int) -> float:
    """Return steps per second with this many concurrent tasks."""
    clock = time.perf_counter
    started = clock()
    end = started + SECONDS
    done = 0

    async def work(task: int) -> None:
        nonlocal done
        turn = 0
        while clock() < end:
            turn += 1
            await step(task, turn)
            done += 1

    await asyncio.gather(*(work(task) for task in range(tasks)))
    return done / (clock() - started)


def ratios(ones: list[float], others: list[float]) -> list[float]:
    return [one / other for one, other in zip(ones, others, strict=True)]


def middle(values: list[float]) -> float:
    return statistics.median(values)


def bound(what: str, values: list[float], *, least: float | None = None, most: float | None = None) -> int:
    """Print a ratio with its bound; return 1 if it misses the bound."""
    value = middle(values)
    good = (least is None or value >= least) and (most is None or value <= most)
    wanted = f"at least {least:g}" if least is not None else f"at most {most:g}"
    print(f"{what}: {value:.2f} (from {min(values):.2f} to {max(values):.2f}; {wanted}) {'' if good else 'MISSED'}")
    return 0 if good else 1
