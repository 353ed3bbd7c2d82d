"""What the core costs without a backend: import, merges and whole updates on memory."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

from stepwell import MemoryStorage
from stepwell.slot import Slot


async def main() -> int:
    """Print each figure beside its bound; the number of bounds missed."""
    async with MemoryStorage() as storage:

        async def merge(number: int) -> None:
            await storage.update_data("bot", (42, 42), {"count": number})

        async def update(number: int) -> None:
            async with Slot(storage, "bot", (42, 43)) as slot:
                slot.state = "even" if number % 2 else "odd"
                slot.data["count"] = number
                await slot.commit()

        return (
            shown("import stepwell beyond asyncio and json", import_time(), 80, "ms")
            + shown("update_data on memory", await each(merge), 25, "us")
            + shown("claim, change, commit on memory", await each(update), 40, "us")
        )


async def each(action: Callable[[int], Awaitable[None]], count: int = 5_000, rounds: int = 7) -> float:
    """Microseconds a call, the median of several rounds."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for number in range(count):
            await action(number)
        times.append((time.perf_counter() - start) / count * 1e6)
    return statistics.median(times)


def import_time(rounds: int = 9) -> float:
    """Milliseconds that ``import stepwell`` adds to a process that has asyncio and json."""
    code = "import asyncio, json, time; t = time.perf_counter(); import stepwell; print(time.perf_counter() - t)"
    times = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(rounds)
    ]
    return statistics.median(times) * 1e3


def shown(what: str, figure: float, bound: float, unit: str) -> int:
    """One line; 1 if the bound is missed."""
    missed = figure > bound
    print(f"{what:45} {figure:8.1f} {unit}   at most {bound:g} {unit}{'   MISSED' if missed else ''}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
