"""The subjects of ``benchmarks.comparison``. Each imports its packages on use, because it runs in a process of its own.

A subject returns the number of operations, the seconds for them, and how many of them its stored result contains.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import time
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["SUBJECTS", "Subject"]

Place = dict[str, str]
Outcome = tuple[int, float, int]

#: Each user has two messages in flight, as after two quick taps.
USERS, IN_FLIGHT, EACH = 50, 2, 10
MESSAGES = USERS * IN_FLIGHT * EACH
#: python-telegram-bot writes its file for every update, and needs 20 ms for it.
PTB_EACH = 1
STEPS = 400

_ids = count(1)


class Subject(NamedTuple):
    """One column of the comparison."""

    workload: str
    subject: str
    storage: str
    run: Callable[[Place], Awaitable[Outcome]]


def update(user: int) -> dict[str, Any]:
    person = {"id": user, "is_bot": False, "first_name": "A"}
    chat = {"id": user, "type": "private", "first_name": "A"}
    message = {"message_id": 1, "date": 1, "chat": chat, "from": person, "text": "hi"}
    return {"update_id": next(_ids), "message": message}


async def flood(handle: Callable[[int], Awaitable[object]], each: int = EACH) -> float:
    """Send the messages of all users; return the seconds."""

    async def send(user: int) -> None:
        for _ in range(each):
            await handle(user)

    begun = time.perf_counter()
    await asyncio.gather(*(send(user) for user in range(1, USERS + 1) for _ in range(IN_FLIGHT)))
    return time.perf_counter() - begun


def bot_on(url: Callable[[Place], str]) -> Callable[[Place], Awaitable[Outcome]]:
    async def run(place: Place) -> Outcome:
        from stepwell.fsm import FSM, Router, text

        fsm = FSM("bench", storage=url(place), flows=[])
        router = Router(fsm)

        @router.on(text())
        async def add(ctx: Any) -> None:
            ctx.update_data(n=ctx.data.get("n", 0) + 1)

        async with fsm:
            await router.handle(update(999))
            seconds = await flood(lambda user: router.handle(update(user)))
            found = [await fsm.storage.get_data("bench", (user, user)) for user in range(1, USERS + 1)]
        return MESSAGES, seconds, sum((data or {}).get("n", 0) for data in found)

    return run


def aiogram_on(options: Callable[[Place], dict[str, Any]]) -> Callable[[Place], Awaitable[Outcome]]:
    async def run(place: Place) -> Outcome:
        from aiogram import Bot, Dispatcher
        from aiogram.fsm.storage.base import StorageKey
        from aiogram.types import Update

        logging.getLogger("aiogram").setLevel(logging.WARNING)
        bot, dispatcher = Bot("1:x"), Dispatcher(**options(place))

        @dispatcher.message()
        async def add(message: Any, state: Any) -> None:
            data = await state.get_data()
            await state.update_data(n=data.get("n", 0) + 1)

        async def feed(user: int) -> None:
            await dispatcher.feed_update(bot, Update.model_validate(update(user), context={"bot": bot}))

        await dispatcher.emit_startup(bot=bot)
        await feed(999)
        seconds = await flood(feed)
        keys = [StorageKey(bot_id=bot.id, chat_id=user, user_id=user) for user in range(1, USERS + 1)]
        found = [await dispatcher.fsm.storage.get_data(key) for key in keys]
        await dispatcher.emit_shutdown(bot=bot)
        return MESSAGES, seconds, sum(data.get("n", 0) for data in found)

    return run


def plain_redis(place: Place) -> dict[str, Any]:
    from aiogram.fsm.storage.redis import RedisStorage

    return {"storage": RedisStorage.from_url(place["redis"])}


def locked_redis(place: Place) -> dict[str, Any]:
    from aiogram.fsm.storage.redis import RedisEventIsolation, RedisStorage

    storage = RedisStorage.from_url(place["redis"])
    return {"storage": storage, "events_isolation": RedisEventIsolation(storage.redis, storage.key_builder)}


def our_redis(place: Place) -> dict[str, Any]:
    from stepwell import open_storage
    from stepwell.adapters.aiogram import StepwellIsolation, StepwellStorage

    storage = open_storage(fresh(place))
    return {"storage": StepwellStorage(storage), "events_isolation": StepwellIsolation(storage)}


def fresh(place: Place) -> str:
    """Return the URL of an empty store on the Redis server."""
    return f"{place['redis']}?prefix=r{abs(hash(place['folder']))}"


def sqlite(place: Place) -> str:
    return f"sqlite:///{place['folder']}/bench.db"


def postgres(place: Place) -> str:
    return f"{place['postgres']}?schema=s{abs(hash(place['folder']))}"


def ptb_with(ours: bool) -> Callable[[Place], Awaitable[Outcome]]:
    async def run(place: Place) -> Outcome:
        from telegram import Update, ext

        from benchmarks.ptb import Offline
        from stepwell.adapters.ptb import StepwellPersistence

        persistence: Any = (
            StepwellPersistence(sqlite(place), update_interval=10**6)
            if ours
            else ext.PicklePersistence(Path(place["folder"], "bot.pickle"), update_interval=10**6)
        )
        builder = ext.ApplicationBuilder().token("7:x").request(Offline()).get_updates_request(Offline())
        made = builder.persistence(persistence).concurrent_updates(USERS * IN_FLIGHT).build()

        async def add(update: Update, context: Any) -> None:
            found = context.user_data.get("n", 0)
            # As a call to a service would: other updates run meanwhile.
            await asyncio.sleep(0)
            context.user_data["n"] = found + 1

        made.add_handler(ext.MessageHandler(ext.filters.TEXT, add))

        async def feed(user: int) -> None:
            await made.process_update(Update.de_json(update(user), made.bot))
            await made.update_persistence()

        async with made:
            await feed(999)
            seconds = await flood(feed, PTB_EACH)
            found = await persistence.get_user_data()
            numbers = [made.user_data[user].get("n", 0) for user in range(1, USERS + 1)]
        assert found is not None
        return USERS * IN_FLIGHT * PTB_EACH, seconds, sum(numbers)

    return run


def flow_on(url: Callable[[Place], str]) -> Callable[[Place], Awaitable[Outcome]]:
    async def run(place: Place) -> Outcome:
        from benchmarks.durable import looping
        from stepwell import open_storage

        async with open_storage(url(place)) as storage:
            await looping().run({"n": 0, "nodes": 3}, storage=storage, flow_id="warm")
            begun = time.perf_counter()
            final = await looping().run({"n": 0, "nodes": STEPS}, storage=storage, flow_id="run")
            return STEPS, time.perf_counter() - begun, final["n"]

    return run


def langgraph_on(kind: str) -> Callable[[Place], Awaitable[Outcome]]:
    async def run(place: Place) -> Outcome:
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
        from langgraph.graph import END, START, StateGraph
        from typing_extensions import TypedDict

        if kind == "sqlite":
            opened: Any = AsyncSqliteSaver.from_conn_string(str(Path(place["folder"], "langgraph.db")))
        else:
            opened = AsyncPostgresSaver.from_conn_string(place["postgres"])

        async def add(shared: Any) -> dict[str, int]:
            return {"n": shared["n"] + 1}

        async with opened as saver:
            await saver.setup()
            if kind == "sqlite":
                await saver.conn.execute("PRAGMA synchronous = FULL")
            builder: Any = StateGraph(TypedDict("Shared", {"n": int, "steps": int}))  # type: ignore[operator]
            builder.add_node("add", add)
            builder.add_edge(START, "add")
            builder.add_conditional_edges("add", lambda shared: "add" if shared["n"] < shared["steps"] else END)
            graph = builder.compile(checkpointer=saver)
            for name, steps in (("warm", 3), (place["folder"], STEPS)):
                config: Any = {"configurable": {"thread_id": name}, "recursion_limit": STEPS + 10}
                begun = time.perf_counter()
                final = await graph.ainvoke({"n": 0, "steps": steps}, config, durability="sync")
            return STEPS, time.perf_counter() - begun, final["n"]

    return run


def dbos_on(kind: str) -> Callable[[Place], Awaitable[Outcome]]:
    async def run(place: Place) -> Outcome:
        library = importlib.import_module("dbos").DBOS

        @library.step(name="add")
        async def add(number: int) -> int:
            return number + 1

        @library.workflow(name="adds")
        async def adds(steps: int) -> int:
            number = 0
            for _ in range(steps):
                number = await add(number)
            return number

        url = place["postgres"] if kind == "postgres" else f"sqlite:///{place['folder']}/dbos.db"
        library(config={
            "name": "bench", "system_database_url": url, "log_level": "ERROR", "run_admin_server": False,
            "application_version": "1", "executor_id": place["folder"],
        })  # fmt: skip
        library.launch()
        await adds(3)
        begun = time.perf_counter()
        found = await adds(STEPS)
        seconds = time.perf_counter() - begun
        library.destroy()
        return STEPS, seconds, found

    return run


async def pocketflow(place: Place) -> Outcome:
    library: Any = importlib.import_module("pocketflow")

    class Add(library.AsyncNode):  # type: ignore[misc]
        async def post_async(self, shared: Any, prep_res: Any, exec_res: Any) -> str:
            shared["n"] += 1
            return "again" if shared["n"] < STEPS else "done"

    node = Add()
    node - "again" >> node
    node - "done" >> library.AsyncNode()
    shared = {"n": 0}
    begun = time.perf_counter()
    await library.AsyncFlow(start=node).run_async(shared)
    return STEPS, time.perf_counter() - begun, shared["n"]


_UPDATES, _STEPS = "updates", "steps"
_FILE, _SERVER = "SQLite, survives power loss", "PostgreSQL, survives power loss"
_REDIS = "Redis, survives kill -9 of the bot"

SUBJECTS = {
    "bot-redis": Subject(_UPDATES, "Stepwell", _REDIS, bot_on(fresh)),
    "bot-sqlite": Subject(_UPDATES, "Stepwell", _FILE, bot_on(sqlite)),
    "bot-postgres": Subject(_UPDATES, "Stepwell", _SERVER, bot_on(postgres)),
    "aiogram": Subject(_UPDATES, "aiogram, RedisStorage", _REDIS, aiogram_on(plain_redis)),
    "aiogram-lock": Subject(_UPDATES, "aiogram, RedisStorage and its lock", _REDIS, aiogram_on(locked_redis)),
    "aiogram-ours": Subject(_UPDATES, "aiogram on Stepwell", _REDIS, aiogram_on(our_redis)),
    "ptb": Subject(_UPDATES, "python-telegram-bot, PicklePersistence", "a pickle file", ptb_with(ours=False)),
    "ptb-ours": Subject(_UPDATES, "python-telegram-bot on Stepwell", _FILE, ptb_with(ours=True)),
    "flow-sqlite": Subject(_STEPS, "Stepwell", _FILE, flow_on(sqlite)),
    "flow-postgres": Subject(_STEPS, "Stepwell", _SERVER, flow_on(postgres)),
    "langgraph-sqlite": Subject(_STEPS, "LangGraph, AsyncSqliteSaver", _FILE, langgraph_on("sqlite")),
    "langgraph-postgres": Subject(_STEPS, "LangGraph, AsyncPostgresSaver", _SERVER, langgraph_on("postgres")),
    "dbos-sqlite": Subject(_STEPS, "DBOS", "SQLite, its default settings", dbos_on("sqlite")),
    "dbos-postgres": Subject(_STEPS, "DBOS", _SERVER, dbos_on("postgres")),
    "pocketflow": Subject(_STEPS, "PocketFlow", "nothing is stored", pocketflow),
}
