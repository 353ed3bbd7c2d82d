"""Durable runs beside one plain commit, and beside LangGraph's SQLite saver: time and bytes per node and per item.

LangGraph is measured if it is installed: ``pip install langgraph langgraph-checkpoint-sqlite``.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
from tests.servers.postgres import PostgresServer

from benchmarks.sqlite import bound
from stepwell import SQLiteStorage, Storage
from stepwell.nodes import BatchNode, Node, NodeFlow, linear
from stepwell.storage.postgres import PostgresStorage

ROUNDS = int(os.environ.get("ROUNDS", "7"))
NODES = 400
ITEMS = 10_000
#: A field that is set once and never changed.
TEXT = "x" * 10_000


async def main() -> int:
    # Not in /tmp, which may be memory: there fsync is free.
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as name:
        folder = Path(name)
        missed = await nodes_on_sqlite(folder) + await growth_of_a_file(folder)
        missed += await items_on_sqlite(folder) + await beside_langgraph(folder)
    server = PostgresServer(durable=True).start()
    try:
        return missed + await nodes_on_postgres(server)
    finally:
        server.stop()


class Loop(Node):
    """Loops until a counter reaches a number."""

    async def exec(self, prep_res: Any) -> None:
        pass

    def post(self, shared: Any, prep_res: Any, exec_res: Any) -> str:
        shared["n"] += 1
        return "again" if shared["n"] < shared["nodes"] else "done"


class Count(Node):
    """Increments the counter once."""

    async def exec(self, prep_res: Any) -> None:
        pass

    def post(self, shared: Any, prep_res: Any, exec_res: Any) -> None:
        shared["n"] += 1


def looping() -> NodeFlow:
    node = Loop()
    node - "again" >> node
    return NodeFlow(start=node, on_unknown_action="end", name="loop").connect(node, Node(inline=True), "done")


class Double(BatchNode):
    def prep(self, shared: Any) -> Any:
        return range(shared["items"])

    async def exec(self, item: int) -> int:
        return item * 2

    def post(self, shared: Any, items: Any, results: list[int]) -> None:
        shared["sum"] = sum(results)


async def timed(work: Callable[[], Awaitable[object]], count: int) -> float:
    """Return the microseconds per unit of work; ``count`` is the number of units."""
    started = time.perf_counter()
    await work()
    return (time.perf_counter() - started) / count * 1e6


async def compared(
    ours: Callable[[], Awaitable[object]], floor: Callable[[], Awaitable[object]], count: int = NODES
) -> tuple[list[float], list[float]]:
    """Measure both in turns, so that other load on the machine affects both."""
    await ours()
    pairs = [(await timed(ours, count), await timed(floor, count)) for _ in range(ROUNDS)]
    return [mine for mine, _ in pairs], [its for _, its in pairs]


def show(what: str, ours: list[float], peer: str, theirs: list[float]) -> None:
    """Print a figure beside its peer's."""
    print(f"{what:34} {statistics.median(ours):8.1f} us   {peer:36} {statistics.median(theirs):8.1f} us")


def raw_file(path: Path) -> sqlite3.Connection:
    raw = sqlite3.connect(path, isolation_level=None)
    raw.execute("PRAGMA journal_mode = WAL")
    raw.execute("PRAGMA synchronous = FULL")
    raw.execute("CREATE TABLE step (id INTEGER PRIMARY KEY, run TEXT NOT NULL, state TEXT NOT NULL)")
    return raw


async def nodes_on_sqlite(folder: Path) -> int:
    flow = looping()
    raw = raw_file(folder / "raw.db")
    async with SQLiteStorage(str(folder / "ours.db")) as storage:

        async def inserted() -> None:
            for number in range(NODES):
                raw.execute("INSERT INTO step (run, state) VALUES ('loop', ?)", (f'{{"n": {number}}}',))

        ours, floor = await compared(
            lambda: flow.run({"n": 0, "nodes": NODES, "text": TEXT}, storage=storage), inserted
        )
    raw.close()
    show("a node on SQLite, FULL", ours, "a row and commit with sqlite3", floor)
    return bound("node over row and commit", [one / other for one, other in zip(ours, floor, strict=True)], most=3)


async def growth_of_a_file(folder: Path) -> int:
    """Measure how much a file grows by a finished run that is kept."""

    async def grown(nodes: int) -> float:
        path = folder / f"growth-{nodes}.db"
        async with SQLiteStorage(str(path)):
            pass
        before = path.stat().st_size
        async with SQLiteStorage(str(path)) as storage:
            await looping().run({"n": 0, "nodes": nodes, "text": TEXT}, storage=storage, keep=True)
        return (path.stat().st_size - before) / 1000

    once, twice = await grown(NODES), await grown(2 * NODES)
    print(
        f"{NODES} nodes with 10 KB set once: the SQLite file grows by {once:.0f} KB; {2 * NODES} nodes: {twice:.0f} KB"
    )
    return bound("KB for 400 nodes on SQLite", [once], most=100) + bound("KB for 800", [twice], most=200)


async def items_on_sqlite(folder: Path) -> int:
    flow = NodeFlow(start=Double(), name="items")
    async with SQLiteStorage(str(folder / "items.db")) as storage:
        times = [await timed(lambda: flow.run({"items": ITEMS}, storage=storage), ITEMS) for _ in range(ROUNDS)]
        half = [await timed(lambda: flow.run({"items": ITEMS // 2}, storage=storage), ITEMS // 2) for _ in range(3)]
    plain = [await timed(lambda: flow.run({"items": ITEMS}), ITEMS) for _ in range(3)]
    show("an item of 10,000 on SQLite", times, "an item of 5,000", half)
    print(f"{'an item without a storage':34} {statistics.median(plain):8.1f} us")
    return bound("microseconds an item of a durable batch", times, most=60)


async def nodes_on_postgres(server: PostgresServer) -> int:
    flow = looping()
    connection = await asyncpg.connect(server.url())
    await connection.execute("create table step (id bigserial primary key, run text not null, state text not null)")
    async with PostgresStorage(server.url(), schema="durable") as storage:

        async def inserted() -> None:
            for number in range(NODES):
                await connection.execute("insert into step (run, state) values ('loop', $1)", f'{{"n": {number}}}')

        async def run(nodes: int = NODES, storage: Storage = storage) -> None:
            await flow.run({"n": 0, "nodes": nodes, "text": TEXT}, storage=storage)

        ours, floor = await compared(run, inserted)

        async def written(nodes: int) -> float:
            before = await connection.fetchval("select pg_current_wal_insert_lsn()")
            await run(nodes)
            after = "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), $1::pg_lsn)"
            return float(await connection.fetchval(after, before)) / 1000

        await connection.execute("checkpoint")
        await run()
        # The minimum of several: the server also writes for other work, and whole pages after a checkpoint.
        once = min([await written(NODES) for _ in range(3)])
        twice = min([await written(2 * NODES) for _ in range(3)])
    await connection.close()
    show("a node on PostgreSQL", ours, "a row and commit with asyncpg", floor)
    print(f"{NODES} nodes with 10 KB set once: {once:.0f} KB of WAL; {2 * NODES} nodes: {twice:.0f} KB")
    return (
        bound("node over row and commit", [one / other for one, other in zip(ours, floor, strict=True)], most=1.8)
        + bound("KB of WAL for 400 nodes", [once], most=600)
        + bound("KB of WAL for 800 nodes", [twice], most=1200)
    )


async def beside_langgraph(folder: Path) -> int:
    """Compare a chain of nodes, alone and in concurrent runs. LangGraph's cost per node grows with the chain."""
    try:
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
        from langgraph.graph import END, START, StateGraph
    except ImportError as missing:
        print(
            f"LangGraph is not measured ({missing}): pip install langgraph langgraph-checkpoint-sqlite", file=sys.stderr
        )
        return 0
    from typing_extensions import TypedDict

    class Shared(TypedDict):
        n: int
        text: str

    async def count(shared: Shared) -> dict[str, int]:
        return {"n": shared["n"] + 1}

    threads = iter(range(1_000_000))

    async def side_by_side(nodes: int, runs: int) -> int:
        names = [f"n{number}" for number in range(nodes)]
        graph = StateGraph(Shared)
        for name, before in zip(names, [START, *names], strict=False):
            graph.add_node(name, count)
            graph.add_edge(before, name)
        graph.add_edge(names[-1], END)
        flow = linear(*[Count(name=name) for name in names], name="chain")
        async with (
            AsyncSqliteSaver.from_conn_string(str(folder / f"langgraph-{nodes}-{runs}.db")) as saver,
            SQLiteStorage(str(folder / f"beside-{nodes}-{runs}.db")) as storage,
        ):
            await saver.setup()
            await saver.conn.execute("PRAGMA synchronous = FULL")
            compiled = graph.compile(checkpointer=saver)

            async def theirs() -> None:
                config: Any = {"configurable": {"thread_id": str(next(threads))}, "recursion_limit": nodes + 10}
                # Like ours: each node is saved before the next one runs.
                final = await compiled.ainvoke({"n": 0, "text": TEXT}, config, durability="sync")
                assert final["n"] == nodes

            async def ours() -> None:
                await flow.run({"n": 0, "text": TEXT}, storage=storage, keep=True)

            async def concurrently(run: Callable[[], Awaitable[None]]) -> None:
                await asyncio.gather(*(run() for _ in range(runs)))

            mine, peer = await compared(lambda: concurrently(ours), lambda: concurrently(theirs), nodes * runs)
        show(f"a node of {nodes}, concurrent runs: {runs}", mine, "a node with LangGraph's SQLite saver", peer)
        return bound(
            "LangGraph's node over ours", [one / other for one, other in zip(peer, mine, strict=True)], least=10
        )

    return await side_by_side(NODES, 1) + await side_by_side(1000, 1) + await side_by_side(100, 20)


if __name__ == "__main__":
    sys.exit(1 if asyncio.run(main()) else 0)
