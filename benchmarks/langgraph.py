"""``StepwellSaver`` beside LangGraph's own savers: the saver's share of a step, and the growth of the store.

A graph of one node loops 400 times over a state with 10 KB that never change. The share of a saver is the time of a
step less the time of the same step without a saver. A saver that does nothing has a share too: LangGraph's own work.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import asyncpg
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from tests.servers.postgres import PostgresServer
from typing_extensions import TypedDict

from benchmarks.sqlite import bound
from stepwell import SQLiteStorage
from stepwell.adapters.langgraph import StepwellSaver
from stepwell.storage.postgres import PostgresStorage

ROUNDS = int(os.environ.get("ROUNDS", "15"))
STEPS = 400
TEXT = secrets.token_hex(5_000)

_threads = iter(range(1_000_000))


class Shared(TypedDict):
    n: int
    text: str


class NullSaver(BaseCheckpointSaver[str]):
    """A saver that stores nothing."""

    get_next_version = StepwellSaver.get_next_version

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return None

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return {"configurable": {**config["configurable"], "checkpoint_id": checkpoint["id"]}}

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        pass


def graph(saver: Any) -> Any:
    async def count(shared: Shared) -> dict[str, int]:
        return {"n": shared["n"] + 1}

    builder = StateGraph(Shared)
    builder.add_node("count", count)
    builder.add_edge(START, "count")
    builder.add_conditional_edges("count", lambda shared: "count" if shared["n"] < STEPS else END)
    return builder.compile(checkpointer=saver)


async def seconds(saver: Any) -> float:
    """Return the time of a step. Each step is stored before the next one begins."""
    compiled = graph(saver)
    config: Any = {"configurable": {"thread_id": str(next(_threads))}, "recursion_limit": STEPS + 10}
    begun = time.perf_counter()
    durability: Any = {} if saver is None else {"durability": "sync"}
    final = await compiled.ainvoke({"n": 0, "text": TEXT}, config, **durability)
    assert final["n"] == STEPS
    return (time.perf_counter() - begun) / STEPS


async def compare(
    what: str, ours: Any, theirs: Any, sizes: Callable[[], Awaitable[tuple[int, int]]], *, share: float
) -> int:
    """Measure both savers in turn, and print shares and growth with their bounds."""
    await seconds(ours), await seconds(theirs)
    before = await sizes()
    shares, mine, peers, nothing = [], [], [], []
    for _ in range(ROUNDS):
        bare = await seconds(None)
        nothing.append(await seconds(NullSaver()) - bare)
        mine.append(await seconds(ours) - bare)
        peers.append(await seconds(theirs) - bare)
        shares.append(mine[-1] / peers[-1])
    after = await sizes()
    grown = [(new - old) / ROUNDS / STEPS for new, old in zip(after, before, strict=True)]
    print(f"{what}: share of a step {median(mine) * 1e6:.0f} us, the official saver's {median(peers) * 1e6:.0f} us")
    print(f"{what}: share of a saver that stores nothing {median(nothing) * 1e6:.0f} us")
    print(f"{what}: bytes a step {grown[0]:.0f}, the official saver's {grown[1]:.0f}")
    missed = bound(f"{what}: our share over the official saver's", shares, most=share)
    return missed + bound(f"{what}: our growth over the official saver's", [grown[0] / grown[1]], most=0.1)


async def main() -> int:
    # Not in /tmp, which may be memory: there fsync is free.
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as name:
        missed = await on_sqlite(Path(name))
    server = PostgresServer(durable=True).start()
    try:
        return missed + await on_postgres(server)
    finally:
        server.stop()


async def on_sqlite(folder: Path) -> int:
    mine, peers = folder / "stepwell.db", folder / "langgraph.db"

    async def sizes() -> tuple[int, int]:
        for path in (mine, peers):
            # In a process of its own: two libraries of one process do not see each other's locks of a file.
            script = (
                f"import sqlite3; print(*sqlite3.connect({str(path)!r}).execute('PRAGMA wal_checkpoint').fetchone())"
            )
            found = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True)
            busy, frames, done = map(int, found.stdout.split())
            assert not busy and frames == done
        return mine.stat().st_size, peers.stat().st_size

    async with SQLiteStorage(str(mine)) as storage, AsyncSqliteSaver.from_conn_string(str(peers)) as theirs:
        await theirs.setup()
        await theirs.conn.execute("PRAGMA synchronous = FULL")
        return await compare("SQLite", StepwellSaver(storage), theirs, sizes, share=1 / 2)


async def on_postgres(server: PostgresServer) -> int:
    connection = await asyncpg.connect(server.url())
    await connection.execute("create database stepwell")
    await connection.execute("create database langgraph")

    async def sizes() -> tuple[int, int]:
        query = "select pg_database_size($1)"
        return await connection.fetchval(query, "stepwell"), await connection.fetchval(query, "langgraph")

    try:
        async with (
            PostgresStorage(server.url("stepwell")) as storage,
            AsyncPostgresSaver.from_conn_string(server.url("langgraph")) as theirs,
        ):
            await theirs.setup()
            return await compare("PostgreSQL", StepwellSaver(storage), theirs, sizes, share=1 / 3)
    finally:
        await connection.close()


if __name__ == "__main__":
    sys.exit(1 if asyncio.run(main()) else 0)
