"""A durable batch that is killed and resumed: committed items are not run again.

python examples/durable_batch.py              # runs it in a second process, kills that, and resumes
python examples/durable_batch.py run [FILE]   # only runs or resumes it: kill it as often as you like
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from stepwell import SQLiteStorage
from stepwell.nodes import BatchNode, Node, NodeFlow, ProgressBar, UnknownRun, linear

ITEMS = 2_000


class Translate(BatchNode):
    """Stand in for calls of a slow service: ten at once, a few milliseconds each."""

    def prep(self, shared: dict[str, Any]) -> list[str]:
        return [f"sentence {number}" for number in range(shared["items"])]

    async def exec(self, sentence: str) -> str:
        await asyncio.sleep(0.005)
        return sentence.upper()

    def post(self, shared: dict[str, Any], sentences: list[str], results: list[str]) -> None:
        shared["translated"] = len(results)
        shared["last"] = results[-1]


class Report(Node):
    def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> None:
        shared["report"] = f"{shared['translated']} sentences, the last one is {shared['last']!r}"


def make_flow() -> NodeFlow:
    return linear(Translate(concurrency=10), Report, name="translate")


async def run(path: str, items: int = ITEMS) -> dict[str, Any]:
    """Start the run, or resume it."""
    async with SQLiteStorage(path) as storage:
        return await make_flow().run(
            {"items": items}, storage=storage, flow_id="book", if_exists="resume", on_event=ProgressBar()
        )


async def done_so_far(path: str) -> int:
    async with SQLiteStorage(path) as storage:
        try:
            run = await make_flow().status("book", storage=storage)
        except UnknownRun:
            return 0
    return run.progress["Translate"].done if "Translate" in run.progress else 0


def kill_and_resume(path: str) -> None:
    process = subprocess.Popen([sys.executable, __file__, "run", path], stderr=subprocess.DEVNULL)
    while asyncio.run(done_so_far(path)) < ITEMS // 4:
        time.sleep(0.05)
    process.kill()
    process.wait()
    print(f"killed after {asyncio.run(done_so_far(path))} of {ITEMS} items; the claim of the dead runs out ...")
    print(asyncio.run(run(path))["report"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        print(asyncio.run(run(sys.argv[2] if len(sys.argv) > 2 else "translate.db"))["report"])
    else:
        with tempfile.TemporaryDirectory() as folder:
            kill_and_resume(str(Path(folder) / "translate.db"))
