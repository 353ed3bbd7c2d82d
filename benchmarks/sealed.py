"""Encryption: a whole update by one of 50 users on an encrypted storage, against the same storage in clear.

Both are measured in turns on SQLite and Redis: the time of an update, the CPU time of this process, and the Python
calls. An update loads a conversation of four fields, makes a transition, changes one field and remembers the update.
The bound is for the time. The third line is for conversations that the process has not seen before: it derives their
keys, and decrypts texts that it has not written.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.servers.redis import RedisServer

from benchmarks.calls import CallCounter, Ping, counted, update
from stepwell import SealedStorage, Storage, open_storage
from stepwell.fsm import FSM
from stepwell.storage.sealed import new_key

USERS, UPDATES, ROUNDS = 50, 20, 15
#: The most that encryption may add to the time of an update.
MOST = 0.40
#: Small fields beside the counter.
DATA = {"name": "Alice Liddell", "email": "alice@example.com", "city": "Guildford"}

Users = Callable[[], Awaitable[None]]


def users_of(storage: Storage, *, forget: bool = False) -> Users:
    """Return a function that makes some updates of all users. ``forget``: each update is of a new conversation."""
    fsm = FSM("bench", storage=storage, flows=[Ping])

    async def converse(user: int) -> None:
        for _ in range(UPDATES):
            if forget and isinstance(storage, SealedStorage):
                storage.keyring.at.cache_clear()
            async with fsm.conversation(update(user)) as ctx:
                if ctx.state is None:
                    ctx.start_flow(Ping)
                    ctx.data.update(DATA)
                else:
                    ctx.transition("pong" if ctx.state == "ping" else "ping")
                ctx.data["count"] = ctx.data.get("count", 0) + 1

    async def all_users() -> None:
        await asyncio.gather(*(converse(user) for user in range(1, USERS + 1)))

    return all_users


async def timed(users: Users) -> tuple[float, float]:
    """Return the time and the CPU time of one update, in microseconds."""
    start, cpu = time.perf_counter(), time.process_time()
    await users()
    count = USERS * UPDATES
    return (time.perf_counter() - start) / count * 1e6, (time.process_time() - cpu) / count * 1e6


async def calls(url: str, keys: list[str]) -> float:
    """Return the Python calls of one update."""
    counter = CallCounter()
    counter.start()
    try:
        async with open_storage(url, **({"keys": keys} if keys else {})) as storage:
            users = users_of(storage)
            await users()
            return await counted(counter, users, USERS * UPDATES)
    finally:
        counter.stop()


async def compare(name: str, place: Callable[[str], str]) -> bool:
    """Print one line for each way; return whether the bound is missed. ``place`` returns the URL of a new store."""
    keys = [new_key()]
    urls = [place("plain"), f"sealed+{place('sealed')}", f"sealed+{place('new')}"]
    storages = [open_storage(urls[0]), *(open_storage(url, keys=keys) for url in urls[1:])]
    ways = [users_of(storage, forget=number == 2) for number, storage in enumerate(storages)]
    rounds: list[list[tuple[float, float]]] = [[] for _ in ways]
    for way in ways:
        await way()
    for turn in range(ROUNDS):
        # Each is first in every third round.
        for number in range(turn, turn + 3):
            rounds[number % 3].append(await timed(ways[number % 3]))
    for storage in storages:
        await storage.close()
    counts = [await calls(place("calls"), []), await calls(f"sealed+{place('sealed-calls')}", keys)]
    missed = False
    for number, label in enumerate(("in clear", "encrypted", "of new conversations")):
        took, worked = (statistics.median([each[at] for each in rounds[number]]) for at in (0, 1))
        cost, cpu_cost = (
            statistics.median([mine[at] / plain[at] - 1 for plain, mine in zip(rounds[0], rounds[number], strict=True)])
            for at in (0, 1)
        )
        added = f"   + {cost:4.0%}, CPU + {cpu_cost:4.0%}" if number else ""
        count = f"{counts[number]:6.1f} calls" if number < 2 else ""
        missed = missed or (number == 1 and cost > MOST)
        print(f"{name:6} {label:20} {took:7.1f} us {worked:7.1f} us of CPU time{added}   {count}")
    print(f"{name:6} encryption adds at most {MOST:.0%}: {'MISSED' if missed else 'ok'}")
    return missed


async def main() -> int:
    """Return the number of missed bounds."""
    server = RedisServer()
    try:
        with tempfile.TemporaryDirectory() as folder:
            missed = await compare("SQLite", lambda name: f"sqlite:///{Path(folder) / name}.db")
        return missed + await compare("Redis", lambda name: server.url(f"?prefix={name}"))
    finally:
        server.stop()
