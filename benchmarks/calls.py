"""Python function calls per update and per durable node, in all threads, beside other libraries.

A call count does not depend on the machine or its load, so it shows every change that adds work.
Resuming a coroutine counts as a call, calls into C do not. Writes ``calls.json`` here and
``docs/performance.md``.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import platform
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer

import stepwell
from benchmarks import performance_page
from stepwell import Storage, open_storage
from stepwell.fsm import FSM, Context, Flow, Router, state
from stepwell.nodes import Node, NodeFlow
from stepwell.telegram import webhook

UPDATES, USERS, NODES, REPEATS = 200, 50, 200, 5
#: The folder of the package.
SOURCE = str(Path(stepwell.__file__).parent)

#: The calls that were measured last: one update by one user and one durable node, by Python version and backend.
#: Python itself makes more or fewer calls from one minor version to the next. ``tests/test_calls.py`` fails when a
#: figure grows by more than ``GROWTH``; after an intended change, write the new figures here.
FIGURES: dict[tuple[int, int], dict[str, tuple[float, float]]] = {
    (3, 11): {"memory": (103.3, 47.4), "sqlite": (305.3, 163.0), "redis": (308.3, 172.7), "postgres": (315.3, 156.1)},
}
GROWTH = 0.15


class CallCounter:
    """Counts the calls of all threads that start after it."""

    def __init__(self) -> None:
        self._counts: list[list[int]] = []
        self._local = threading.local()

    def profile(self, frame: FrameType, event: str, arg: object) -> None:
        if event == "call":
            try:
                count = self._local.count
            except AttributeError:
                count = self._local.count = [0]
                self._counts.append(count)
            count[0] += 1

    def start(self) -> None:
        """Count from here on, including threads that start later."""
        threading.setprofile(self.profile)
        sys.setprofile(self.profile)

    def stop(self) -> None:
        """Stop counting in this thread and in new ones."""
        sys.setprofile(None)
        threading.setprofile(None)

    @property
    def total(self) -> int:
        """All calls so far."""
        return sum([count[0] for count in self._counts])


class Crossed:
    """The modules of Stepwell that are called, in all threads that start after it."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        #: How often a call went to another module than the one before it in its thread.
        self.changes = 0
        self.on = False
        self._local = threading.local()

    def profile(self, frame: FrameType, event: str, arg: object) -> None:
        if event == "call" and self.on and (name := frame.f_code.co_filename).startswith(SOURCE):
            self.calls[name] += 1
            self.changes += name != getattr(self._local, "before", name)
            self._local.before = name

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look at the calls of this thread and of those that start meanwhile."""
        threading.setprofile(self.profile)
        sys.setprofile(self.profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    async def of(self, work: Callable[[], Awaitable[object]], count: int) -> tuple[int, float]:
        """Return how many modules most units of work cross, and how often a unit changes the module."""
        await work()
        self.on = True
        await work()
        self.on = False
        return len([name for name, calls in self.calls.items() if calls > count / 2]), self.changes / count


async def counted(counter: CallCounter, work: Callable[[], Awaitable[object]], count: int) -> float:
    """Return the calls per unit of work; ``count`` is the number of units."""
    before = counter.total
    await work()
    return (counter.total - before) / count


class Ping(Flow, name="ping"):
    """Two states that lead to each other."""

    ping = state(to=["pong"])
    pong = state(to=["ping"])
    default_state = ping


class Loop(Node):
    """Loops until a counter reaches a number."""

    async def exec(self, prep_res: Any) -> None:
        pass

    def post(self, shared: Any, prep_res: Any, exec_res: Any) -> str:
        shared["n"] += 1
        return "again" if shared["n"] < NODES else "done"


_ids = itertools.count(1)


def update(user: int) -> dict[str, Any]:
    """Return a message as Telegram sends it."""
    person = {"id": user, "is_bot": False, "first_name": "Alice"}
    chat = {"id": user, "type": "private", "first_name": "Alice"}
    message = {"message_id": 1, "date": 1_700_000_000, "chat": chat, "from": person, "text": "hello"}
    return {"update_id": next(_ids), "message": message}


async def updates(counter: CallCounter, storage: Storage, users: int) -> float:
    """Return the calls per update: a transition and a changed field."""
    fsm = FSM("bench", storage=storage, flows=[Ping])

    async def converse(user: int, times: int) -> None:
        for _ in range(times):
            async with fsm.conversation(update(user)) as ctx:
                if ctx.state is None:
                    ctx.start_flow(Ping)
                else:
                    ctx.transition("pong" if ctx.state == "ping" else "ping")
                ctx.data["count"] = ctx.data.get("count", 0) + 1

    async def all_users(times: int) -> None:
        await asyncio.gather(*(converse(user, times) for user in range(1, users + 1)))

    await all_users(3)
    times = max(UPDATES // users, 20)
    return await counted(counter, lambda: all_users(times), users * times)


def looping() -> NodeFlow:
    """Return a flow whose run visits one node after the other."""
    node = Loop()
    node - "again" >> node
    return NodeFlow(start=node, on_unknown_action="end", name="loop").connect(node, Node(inline=True), "done")


async def nodes(counter: CallCounter, storage: Storage) -> float:
    """Return the calls per node of a durable run."""
    flow = looping()
    await flow.run({"n": NODES - 3}, storage=storage)
    return await counted(counter, lambda: flow.run({"n": 0}, storage=storage), NODES)


async def webhook_update(folder: str) -> tuple[int, float]:
    """Return the modules that an update through a webhook crosses on SQLite, and how often it changes the module."""
    crossed = Crossed()
    with crossed.watching():
        async with open_storage(f"sqlite:///{folder}/webhook.db", sweep_every=None) as storage:
            router = Router(FSM("bench", storage=storage, flows=[Ping], presence=False, run_timers=False))

            @router.on()
            async def step(ctx: Context) -> None:
                if ctx.state is None:
                    ctx.start_flow(Ping)
                else:
                    ctx.transition("pong" if ctx.state == "ping" else "ping")
                ctx.data["count"] = ctx.data.get("count", 0) + 1

            async with webhook(router, secret_token="secret", token="42:" + "a" * 35) as app:

                async def deliver() -> None:
                    for _ in range(UPDATES):
                        assert await app.handle("secret", json.dumps(update(1))) == 200

                return await crossed.of(deliver, UPDATES)


async def durable_node(folder: str) -> tuple[int, float]:
    """Return the modules that a durable node crosses on SQLite, and how often it changes the module."""
    crossed = Crossed()
    with crossed.watching():
        async with open_storage(f"sqlite:///{folder}/nodes.db", sweep_every=None) as storage:
            flow = looping()
            return await crossed.of(lambda: flow.run({"n": 0}, storage=storage), NODES)


async def crossings() -> list[tuple[str, int, float]]:
    """Return what crosses how many modules, and how often it changes the module."""
    with tempfile.TemporaryDirectory() as folder:
        return [
            ("an update through a webhook on SQLite", *await webhook_update(folder)),
            ("a durable node on SQLite", *await durable_node(folder)),
        ]


async def on_backend(url: str) -> tuple[float, float, float]:
    """Return the calls for one update alone, one of many, and one durable node."""
    counter = CallCounter()
    counter.start()
    try:
        async with open_storage(url, sweep_every=None) as storage:
            # Threads and sockets take more calls under load, so the lowest figures count.
            found = [
                (
                    await updates(counter, storage, 1),
                    await updates(counter, storage, USERS),
                    await nodes(counter, storage),
                )
                for _ in range(REPEATS)
            ]
            alone, of_many, node = (min(figures) for figures in zip(*found, strict=True))
            return alone, of_many, node
    finally:
        counter.stop()


@asynccontextmanager
async def backends(folder: Path) -> AsyncIterator[dict[str, str]]:
    """Start the servers, and yield the URL of each backend."""
    redis = RedisServer()
    postgres = PostgresServer().start()
    try:
        yield {
            "memory": "memory://",
            "sqlite": f"sqlite:///{folder}/calls.db",
            "redis": f"redis://127.0.0.1:{redis.port}",
            "postgres": postgres.url(),
        }
    finally:
        postgres.stop()
        redis.stop()


async def measured() -> dict[str, tuple[float, float, float]]:
    """Return the figures of every backend."""
    with tempfile.TemporaryDirectory(prefix="stepwell-calls-") as name:
        async with backends(Path(name)) as urls:
            return {backend: await on_backend(url) for backend, url in urls.items()}


async def aiogram_update() -> float:
    """Return the calls of one update through aiogram's dispatcher, on memory with its isolation."""
    from aiogram import Bot, Dispatcher
    from aiogram.filters import StateFilter
    from aiogram.fsm.context import FSMContext
    from aiogram.fsm.state import State, StatesGroup
    from aiogram.fsm.storage.memory import MemoryStorage, SimpleEventIsolation
    from aiogram.types import Message

    class Form(StatesGroup):
        a = State()
        b = State()

    dispatcher = Dispatcher(storage=MemoryStorage(), events_isolation=SimpleEventIsolation())

    async def step(context: FSMContext, to: State) -> None:
        data = await context.get_data()
        await context.update_data(n=data.get("n", 0) + 1)
        await context.set_state(to)

    @dispatcher.message(StateFilter(Form.a))
    async def at_a(message: Message, state: FSMContext) -> None:
        await step(state, Form.b)

    @dispatcher.message()
    async def at_b(message: Message, state: FSMContext) -> None:
        await step(state, Form.a)

    bot = Bot("42:" + "a" * 35)

    async def feed() -> None:
        for _ in range(UPDATES):
            await dispatcher.feed_raw_update(bot, update(42))

    counter = CallCounter()
    await feed()
    counter.start()
    try:
        return await counted(counter, feed, UPDATES)
    finally:
        counter.stop()
        await bot.session.close()


async def telegram_update() -> float:
    """Return the calls of one update through python-telegram-bot's ConversationHandler, without persistence."""
    from telegram import Update
    from telegram.ext import Application, ConversationHandler, MessageHandler, filters

    async def to_a(update: Any, context: Any) -> int:
        context.user_data["n"] = context.user_data.get("n", 0) + 1
        return 0

    async def to_b(update: Any, context: Any) -> int:
        context.user_data["n"] = context.user_data.get("n", 0) + 1
        return 1

    application = Application.builder().token("42:" + "a" * 35).updater(None).build()
    application.add_handler(
        ConversationHandler(
            [MessageHandler(filters.TEXT, to_a)],
            {0: [MessageHandler(filters.TEXT, to_b)], 1: [MessageHandler(filters.TEXT, to_a)]},
            [],
        )
    )
    # initialize() would call getMe; handling an update needs this flag only.
    application._initialized = True

    async def feed() -> None:
        for _ in range(UPDATES):
            await application.process_update(Update.de_json(update(42), application.bot))

    counter = CallCounter()
    await feed()
    counter.start()
    try:
        return await counted(counter, feed, UPDATES)
    finally:
        counter.stop()


async def pocketflow_node() -> float:
    """Return the calls of one node of PocketFlow, which saves nothing."""
    import pocketflow

    class Count(pocketflow.Node):
        def exec(self, prep_res: Any) -> None:
            pass

        def post(self, shared: Any, prep_res: Any, exec_res: Any) -> str:
            shared["n"] += 1
            return "again" if shared["n"] < NODES else "done"

    node = Count()
    node - "again" >> node
    node - "done" >> pocketflow.Node()

    async def run() -> None:
        pocketflow.Flow(start=node).run({"n": 0})

    counter = CallCounter()
    counter.start()
    try:
        return await counted(counter, run, NODES)
    finally:
        counter.stop()


async def langgraph_node(saver: str | None = None) -> float:
    """Return the calls of one node of LangGraph, without a saver or with its SQLite saver."""
    from contextlib import AsyncExitStack
    from typing import TypedDict

    from langgraph.graph import END, START, StateGraph

    class Counted(TypedDict):
        n: int

    async def node(given: Counted) -> Counted:
        return {"n": given["n"] + 1}

    graph = StateGraph(Counted)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.add_conditional_edges("node", lambda given: "node" if given["n"] < NODES else END)
    counter = CallCounter()
    counter.start()
    try:
        async with AsyncExitStack() as stack:
            checkpointer = None
            if saver is not None:
                from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

                checkpointer = await stack.enter_async_context(AsyncSqliteSaver.from_conn_string(saver))
            app = graph.compile(checkpointer=checkpointer)
            options = {"recursion_limit": NODES + 10, "configurable": {"thread_id": "1"}}
            return await counted(counter, lambda: app.ainvoke({"n": 0}, options), NODES)
    finally:
        counter.stop()


NAMES = {"memory": "memory", "sqlite": "SQLite", "redis": "Redis", "postgres": "PostgreSQL"}


class Count(NamedTuple):
    """One counted figure."""

    subject: str
    unit: str
    calls: float
    remark: str


async def counts() -> AsyncIterator[Count]:
    """Yield the figures of every backend, then those of other libraries."""
    names = ("one update", f"one of {USERS} users", "durable node")
    for backend, figures in (await measured()).items():
        for name, found in zip(names, figures, strict=True):
            yield Count(f"Stepwell, {NAMES[backend]}", name, found, "")
    remark = "memory, with isolation; parses the update"
    yield Count("aiogram", "one update", await lowest(aiogram_update), remark)
    remark = "memory, no isolation or persistence; parses the update"
    yield Count("python-telegram-bot", "one update", await lowest(telegram_update), remark)
    yield Count("PocketFlow", "node", await lowest(pocketflow_node), "nothing is stored")
    yield Count("LangGraph", "node", await lowest(langgraph_node), "nothing is stored")
    with tempfile.TemporaryDirectory() as folder:
        files = (f"{folder}/{number}.db" for number in itertools.count())
        saved = await lowest(lambda: langgraph_node(next(files)))
        yield Count("LangGraph", "node", saved, "its SQLite saver")


async def lowest(count: Callable[[], Awaitable[float]]) -> float:
    """Return the lowest of several counts, as for the backends."""
    return min([await count() for _ in range(REPEATS)])


async def main() -> None:
    """Print the figures, and write the page of the site."""
    logging.disable(logging.WARNING)
    crossed: list[dict[str, Any]] = []
    for work, modules, changes in await crossings():
        print(f"{work} crosses {modules} modules, with {changes:.0f} changes of module", flush=True)
        crossed.append({"work": work, "modules": modules, "changes": round(changes)})
    found: list[Count] = []
    try:
        async for each in counts():
            found.append(each)
            print(f"{each.subject:20} {each.unit:18} {each.calls:7.1f} calls   {each.remark}", flush=True)
    except ImportError as error:
        print(f"{error}; without all libraries, docs/performance.md is not written")
    else:
        python = f"{platform.python_implementation()} {platform.python_version()}"
        rows = [each._asdict() | {"calls": round(each.calls, 1)} for each in found]
        record = {
            "day": time.strftime("%Y-%m-%d", time.gmtime()),
            "python": python,
            "repeats": REPEATS,
            "rows": rows,
            "crossed": crossed,
        }
        performance_page.CALLS.write_text(json.dumps(record, indent=1) + "\n")
        performance_page.write_page()


if __name__ == "__main__":
    asyncio.run(main())
