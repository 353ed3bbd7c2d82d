"""The processor time of a durable node with and without the history of its run, in turn in one run."""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from stepwell import MemoryStorage, SQLiteStorage
from stepwell.nodes import Node, NodeFlow

ROUNDS, NODES = 21, 400
#: The most that the history may add to the processor time of a node.
BOUND = 0.15


class Turn(Node):
    """Runs until it has run often enough."""

    async def exec(self, prep_res: Any) -> None:
        pass

    def post(self, shared: Any, prep_res: Any, exec_res: Any) -> str:
        shared["n"] = shared.get("n", 0) + 1
        return "again" if shared["n"] < NODES else "done"


def turning(history: Any) -> NodeFlow:
    """Return a flow that visits one node many times."""
    turn = Turn()
    turn - "again" >> turn
    turn - "done" >> Node(name="last", inline=True)
    return NodeFlow(start=turn, name="turning", history=history)


async def main() -> int:
    missed = 0
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as folder:
        for storage in (SQLiteStorage(Path(folder) / "runs.db"), MemoryStorage()):
            await storage.open()
            spent: dict[str | None, list[float]] = {None: [], "nodes": []}
            for _ in range(ROUNDS):
                for history, times in spent.items():
                    flow = turning(history)
                    gc.collect()
                    began = time.process_time()
                    await flow.run({"text": "x" * 200}, storage=storage)
                    times.append((time.process_time() - began) / (NODES + 1))
            await storage.close()
            without, nodes = (statistics.median(times) for times in spent.values())
            grown = nodes / without - 1
            missed += grown > BOUND
            print(
                f"{type(storage).__name__}: {1e6 * without:.1f} us a node, "
                f"with its history {1e6 * nodes:.1f} us: {grown:+.1%}"
            )
    return missed
