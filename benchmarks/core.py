"""The cost of the core without a backend: import, merges and whole updates on memory."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

from stepwell import MemoryStorage
from stepwell.fsm import FSM, Flow, state
from stepwell.slot import Slot


async def main() -> int:
    """Print each figure beside its bound; return the number of missed bounds."""
    async with MemoryStorage() as storage:
        ids = itertools.count(1)

        async def merge(number: int) -> None:
            await storage.update_data("bot", (42, 42), {"count": number})

        async def change(number: int) -> None:
            async with Slot(storage, "bot", (42, 43)) as slot:
                slot.state = "even" if number % 2 else "odd"
                slot.data["count"] = number
                await slot.commit()

        fsm = FSM("bot", storage=storage, flows=[Ping])
        await fsm.handle(update(0), lambda ctx: ctx.start_flow(Ping))

        async def converse(number: int) -> None:
            async with fsm.conversation(update(next(ids))) as ctx:
                ctx.transition("pong" if ctx.state == "ping" else "ping")
                ctx.data["count"] = number

        return (
            shown("import stepwell beyond asyncio and json", import_time(), 80, "ms")
            + shown("update_data on memory", await each(merge), 25, "us")
            + shown("claim, change, commit on memory", await each(change), 40, "us")
            + shown("a conversation: a transition and a changed field", await each(converse), 40, "us")
        )


class Ping(Flow, name="ping"):
    """Two states that lead to each other."""

    ping = state(to=["pong"])
    pong = state(to=["ping"])
    default_state = ping


def update(number: int) -> dict[str, object]:
    """Return a message as Telegram sends it."""
    user = {"id": 42, "is_bot": False, "first_name": "Alice"}
    chat = {"id": 42, "type": "private", "first_name": "Alice"}
    message = {"message_id": number, "date": 1_700_000_000, "chat": chat, "from": user, "text": "hello"}
    return {"update_id": number + 1, "message": message}


async def each(action: Callable[[int], Awaitable[None]], count: int = 5_000, rounds: int = 7) -> float:
    """Return the microseconds per call, the median of several rounds."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for number in range(count):
            await action(number)
        times.append((time.perf_counter() - start) / count * 1e6)
    return statistics.median(times)


def import_time(rounds: int = 9) -> float:
    """Return the milliseconds that ``import stepwell`` adds to a process that has asyncio and json."""
    code = "import asyncio, json, time; t = time.perf_counter(); import stepwell; print(time.perf_counter() - t)"
    times = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(rounds)
    ]
    return statistics.median(times) * 1e3


def shown(what: str, figure: float, bound: float, unit: str) -> int:
    """Print one line; return 1 if the bound is missed."""
    missed = figure > bound
    print(f"{what:45} {figure:8.1f} {unit}   at most {bound:g} {unit}{'   MISSED' if missed else ''}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
