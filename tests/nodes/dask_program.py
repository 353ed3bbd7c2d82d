"""A program whose node runs on Dask workers: its classes are those of ``__main__``."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepwell import record_type
from stepwell.nodes import BatchNode, Failed, linear, step

ITEMS = 40
#: From this item on, a worker waits for the gate.
GATED = 10


@record_type
@dataclass
class Square:
    """A result, whose class no worker can import."""

    value: int
    pid: int


class NotEven(Exception):
    """An error, whose class no worker can import."""


class SquareOnDask(BatchNode):
    """Writes a file for each item that it begins."""

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(**options)
        self.folder = folder

    def prep(self, shared: Any) -> Any:
        return list(range(ITEMS))

    def exec(self, item: int) -> Square:
        (self.folder / f"{os.getpid()}.{item}").touch()
        # The Dask workers do not have the helpers of the tests.
        while item >= GATED and not (self.folder / "gate").exists():
            time.sleep(0.005)
        if item == 7:
            raise NotEven(step().id)
        return Square(item * item, os.getpid())

    def post(self, shared: Any, prep_res: Any, exec_res: list[Any]) -> None:
        shared["results"] = [
            [type(each).__name__, each.error.args[0], 0]
            if isinstance(each, Failed) and isinstance(each.error, NotEven)
            else [type(each).__name__, each.value, each.pid]
            for each in exec_res
        ]


def main(scheduler: str, folder: str) -> None:
    from distributed import Client

    with Client(scheduler_file=scheduler, timeout=30) as client:
        client.wait_for_workers(2, timeout=30)
        node = SquareOnDask(Path(folder), executor=client.get_executor(), concurrency=4, on_error="skip")
        flow = linear(node, name="squares")
        print(json.dumps(asyncio.run(flow.run({}, storage="memory://", flow_id="r"))["results"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
