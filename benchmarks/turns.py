"""Turns: what admission and the end of a turn cost beside a long history, and how many messages are admitted."""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any

from stepwell import SQLiteStorage, Storage
from stepwell.turns import Turn, TurnEnded, Turns

ROUNDS = int(os.environ.get("ROUNDS", "7"))
#: Turns of one round, and the entries of the long history and of the longest one.
TURNS, ENTRIES, MOST_ENTRIES = 50, 2000, 100_000
#: Chats that write at once, and the messages of each.
CHATS, MESSAGES = 50, 40
#: The most that the long history may cost, and the fewest messages a second.
MOST_RATIO, FEWEST = 2.0, 3000

_ids = count(1)


def update(chat: int) -> dict[str, Any]:
    number = next(_ids)
    person = {"id": chat, "is_bot": False, "first_name": "Ann"}
    message = {"message_id": number, "date": 0, "chat": {"id": chat, "type": "private"}, "from": person, "text": "hi"}
    return {"update_id": number, "message": message}


async def main() -> int:
    # Not in /tmp, which may be memory: there fsync is free.
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as name:
        missed = await with_history("SQLite", SQLiteStorage(Path(name) / "history.db"))
        missed += await chats_at_once(SQLiteStorage(Path(name) / "chats.db"))
        missed += await opening(SQLiteStorage(Path(name) / "opening.db"))
    return missed


async def with_history(name: str, storage: Storage) -> int:
    """Compare a conversation with a long history and one without, in turns."""
    async with storage:
        turns = made(storage)
        await fill(turns, 2, ENTRIES)
        seconds: dict[str, list[float]] = {f"{what} {chat}": [] for what in ("admission", "end") for chat in (1, 2)}
        async with turns.worker(send=ignore, drain=0):
            for _ in range(ROUNDS):
                for chat in (1, 2):
                    admissions, ends = await measured(turns, chat)
                    seconds[f"admission {chat}"].append(admissions)
                    seconds[f"end {chat}"].append(ends)
                    # The history stays as long as it was.
                    history = turns.history((chat, 0))
                    entries = await history.entries(last=2 * TURNS)
                    if chat == 1:
                        await history.clear()
                    elif entries:
                        await history.compact(entries[-1], ["x" * 2000] * min(ENTRIES, entries[-1].number))
        missed = 0
        for what in ("admission", "end"):
            short, long = (statistics.median(seconds[f"{what} {chat}"]) for chat in (1, 2))
            ratio = long / short
            missed += ratio > MOST_RATIO
            print(
                f"{name}: {what} {1e3 * short:.2f} ms without history, {1e3 * long:.2f} ms with {ENTRIES} entries: "
                f"{ratio:.2f} times (at most {MOST_RATIO:g})"
            )
        return missed


async def measured(turns: Turns, chat: int) -> tuple[float, float]:
    """Return the seconds of one admission, and of one turn from the end of its handler to its end."""
    admissions, ends = 0.0, 0.0
    for _ in range(TURNS):
        begun = time.perf_counter()
        await turns.admit(update(chat))
        admissions += time.perf_counter() - begun
        await ended(turns)
        ends += time.perf_counter() - handled[chat]
    return admissions / TURNS, ends / TURNS


async def ended(turns: Turns) -> None:
    """Wait for the end of a turn."""
    end = asyncio.Event()
    unsubscribe = turns.subscribe(lambda event: end.set() if isinstance(event, TurnEnded) else None)
    await end.wait()
    unsubscribe()


#: When the last handler of a chat has returned.
handled: dict[int, float] = {}


def made(storage: Storage) -> Turns:
    turns = Turns("bot", storage=storage, collect=0.0)

    @turns.handler
    async def answer(turn: Turn) -> None:
        turn.history.append("hi")
        assert turn.chat is not None
        handled[turn.chat.id] = time.perf_counter()

    return turns


async def fill(turns: Turns, chat: int, entries: int) -> None:
    history = turns.history((chat, 0))
    for begun in range(0, entries, 1000):
        await history.append(*["x" * 2000] * min(1000, entries - begun))


async def ignore(call: dict[str, Any]) -> None:
    """Send nothing."""


async def chats_at_once(storage: Storage) -> int:
    """Measure how many messages of many chats are admitted in a second."""
    async with storage:
        turns = Turns("bot", storage=storage, collect=60.0, at_most=60.0, waiting=10_000, waiting_bytes=10**9)
        rates = []
        for place in range(ROUNDS):
            chats = range(1000 * place + 1, 1000 * place + CHATS + 1)

            async def write(chat: int) -> None:
                for _ in range(MESSAGES):
                    await turns.admit(update(chat))

            begun = time.perf_counter()
            await asyncio.gather(*map(write, chats))
            rates.append(CHATS * MESSAGES / (time.perf_counter() - begun))
        rate = statistics.median(rates)
        print(f"SQLite: {CHATS} chats at once: {rate:,.0f} messages/s admitted (at least {FEWEST:,})")
        return int(rate < FEWEST)


async def opening(storage: Storage) -> int:
    """Compare the status of a conversation with few entries and with very many."""
    async with storage:
        turns = made(storage)
        await fill(turns, 1, 100)
        small = turns.history((2, 0))
        for _ in range(MOST_ENTRIES // 1000):
            await small.append(*["x"] * 1000)
        seconds: dict[int, list[float]] = {1: [], 2: []}

        async def timed(look: Callable[[], Awaitable[object]]) -> float:
            begun = time.perf_counter()
            for _ in range(200):
                await look()
            return time.perf_counter() - begun

        for _ in range(ROUNDS):
            for chat in (1, 2):
                seconds[chat].append(await timed(lambda chat=chat: turns.status((chat, 0))))
        ratio = statistics.median(seconds[2]) / statistics.median(seconds[1])
        print(
            f"SQLite: a conversation with {MOST_ENTRIES:,} entries opens in {ratio:.2f} times the time of one with 100"
        )
        return int(ratio > 1.5)
