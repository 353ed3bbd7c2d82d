"""The state work of one update of telebot on Redis: its own StateRedisStorage, and ours in its place.

One update reads the state, changes a field of the data and sets the next state, as 50 users do it, each in a thread.
"""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

from telebot import TeleBot
from telebot.storage import StateRedisStorage
from tests.servers.redis import RedisServer

from stepwell import open_storage, sync
from stepwell.adapters.telebot import StepwellStateStorage

USERS, EACH, ROUNDS = 50, 20, 7
#: The required speedup.
TARGET = 2


def theirs(url: str) -> tuple[TeleBot, Callable[[], Any]]:
    states = StateRedisStorage(redis_url=url, prefix=uuid.uuid4().hex)
    return TeleBot("1:x", state_storage=states, threaded=False), states.redis.close


def ours(url: str) -> tuple[TeleBot, Callable[[], Any]]:
    storage = open_storage(f"{url}?prefix={uuid.uuid4().hex}")
    bot = TeleBot("1:x", state_storage=StepwellStateStorage(storage), threaded=False)
    return bot, lambda: sync(storage.close())


WAYS = {"StateRedisStorage": theirs, "StepwellStateStorage": ours}


def rate(make: Callable[[str], tuple[TeleBot, Callable[[], Any]]], url: str) -> float:
    """Return the updates a second."""
    bot, close = make(url)
    for user in range(1, USERS + 1):
        bot.set_state(user, "Form:a")
        bot.add_data(user, n=0)
    ready = Barrier(USERS + 1)

    def work(user: int) -> None:
        ready.wait()
        for _ in range(EACH):
            following = "Form:b" if bot.get_state(user) == "Form:a" else "Form:a"
            with bot.retrieve_data(user) as data:
                data["n"] += 1
            bot.set_state(user, following)

    with ThreadPoolExecutor(USERS) as pool:
        users = [pool.submit(work, user) for user in range(1, USERS + 1)]
        ready.wait()
        started = time.perf_counter()
        for each in users:
            each.result()
        taken = time.perf_counter() - started
    for user in range(1, USERS + 1):
        with bot.retrieve_data(user) as data:
            assert data == {"n": EACH}
    close()
    return USERS * EACH / taken


def main() -> int:
    """Print the table; return the number of missed targets."""
    server = RedisServer()
    rates: dict[str, list[float]] = {name: [] for name in WAYS}
    try:
        for _ in range(ROUNDS):
            for name, make in WAYS.items():
                rates[name].append(rate(make, server.url()))
    finally:
        server.stop()
    for name, found in rates.items():
        print(f"{name:24} {statistics.median(found):8,.0f} updates/s")
    factor = statistics.median(ours / theirs for theirs, ours in zip(*rates.values(), strict=True))
    print(f"{factor:.1f} times; at least {TARGET} is required")
    return int(factor < TARGET)


if __name__ == "__main__":
    raise SystemExit(main())
