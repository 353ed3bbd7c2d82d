"""python-telegram-bot: durable updates a second with PicklePersistence and with ours on SQLite.

A bot with 1,000 users, each in a conversation with ten stored answers. One update stores an answer and returns the next
state. It counts when it is written: PicklePersistence is written before the next update, ours when the update ends,
with 50 users at once. Every figure includes the whole application.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import Any

from telegram import Update, ext
from telegram.request import BaseRequest

from stepwell.adapters.ptb import ConversationHandler, StepwellPersistence

USERS, AT_ONCE, ROUNDS = 1000, 50, 5
#: Updates in a measurement.
OF_PICKLE, OF_OURS = 50, 2000
#: The required speedup.
TARGET = 50

_ids = count(1)


class Offline(BaseRequest):
    """A Bot API that knows only ``getMe``."""

    @property
    def read_timeout(self) -> float:
        return 5.0

    async def initialize(self) -> None:
        pass

    async def shutdown(self) -> None:
        pass

    async def do_request(self, *args: Any, **kwargs: Any) -> tuple[int, bytes]:
        me = {"id": 7, "is_bot": True, "first_name": "Bot", "username": "my_bot"}
        return 200, json.dumps({"ok": True, "result": me}).encode()


async def answer(update: Update, context: Any) -> int:
    step = context.user_data.get("step", 0)
    context.user_data["step"] = step + 1
    context.user_data[f"answer {step % 10}"] = update.message.text
    return (step + 1) % 2


def application(persistence: Any, handler: type[Any], **options: Any) -> Any:
    builder = ext.ApplicationBuilder().token("7:x").request(Offline()).get_updates_request(Offline())
    made = builder.persistence(persistence).concurrent_updates(AT_ONCE).build()
    message = ext.MessageHandler(ext.filters.TEXT, answer)
    made.add_handler(handler([message], {0: [message], 1: [message]}, [], name="form", **options))
    return made


def pickle(folder: Path) -> Any:
    return application(
        ext.PicklePersistence(folder / "bot.pickle", update_interval=10**6), ext.ConversationHandler, persistent=True
    )


def ours(folder: Path) -> Any:
    return application(StepwellPersistence(f"sqlite:///{folder}/bot.db", update_interval=10**6), ConversationHandler)


def update(made: Any, user: int) -> Update:
    person = {"id": user, "is_bot": False, "first_name": "A"}
    chat = {"id": user, "type": "private", "first_name": "A"}
    text = f"the answer of user {user} to a question"
    message = {"message_id": 1, "date": 1, "chat": chat, "from": person, "text": text}
    found = Update.de_json({"update_id": next(_ids), "message": message}, made.bot)
    assert found is not None
    return found


async def rate(made: Any, updates: int, *, at_once: int, written: bool) -> float:
    """Return the updates a second; ``written``: an update is written when it ends."""
    async with made:
        for _ in range(10):
            await asyncio.gather(*(made.process_update(update(made, user)) for user in range(1, USERS + 1)))
        if not written:
            # Otherwise it would write its file once for each of the users.
            made.persistence.on_flush = True
            await made.update_persistence()
            made.persistence.on_flush = False
        rows = [[update(made, user % USERS + 1) for user in range(row, updates, at_once)] for row in range(at_once)]

        async def work(row: list[Update]) -> None:
            for each in row:
                await made.process_update(each)
                if not written:
                    await made.update_persistence()

        started = time.perf_counter()
        await asyncio.gather(*map(work, rows))
        return updates / (time.perf_counter() - started)


async def main() -> int:
    """Print the table; return the number of missed targets."""
    theirs: list[float] = []
    mine: list[float] = []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            theirs.append(await rate(pickle(Path(folder)), OF_PICKLE, at_once=1, written=False))
            mine.append(await rate(ours(Path(folder)), OF_OURS, at_once=AT_ONCE, written=True))
    # A ratio for each round, so that other load affects both sides of it.
    faster = statistics.median(one / other for one, other in zip(mine, theirs, strict=True))
    print(f"{'durable updates, 1,000 users':40}{'a second':>12}")
    print(f"{'PicklePersistence, one after the other':40}{statistics.median(theirs):>12,.0f}")
    print(f"{'StepwellPersistence, SQLite, 50 at once':40}{statistics.median(mine):>12,.0f}")
    missed = faster < TARGET
    print(f"{faster:.0f} times as many, at least {TARGET}{'   MISSED' if missed else ''}")
    return int(missed)
