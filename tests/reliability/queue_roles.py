"""The flow of the tests of queues, and the roles of the processes that submit and run its runs."""

from __future__ import annotations

import asyncio
import importlib
import random
from collections.abc import Callable
from typing import Any

from stepwell import Storage
from stepwell.nodes import Node, NodeFlow, Sleep, linear, step, worker
from stepwell.nodes.run import journal, lease
from tests.reliability.run_roles import LEASE, WATCH

Report = Callable[..., None]


class Add(Node):
    """Increments a number and records its step, so that a second run of a committed node is detected."""

    def __init__(self, name: str, report: Report, seconds: float) -> None:
        super().__init__(name=name)
        self.report = report
        self.seconds = seconds

    async def exec(self, prep_res: Any) -> str:
        self.report("ran", step().id)
        await asyncio.sleep(random.uniform(0, self.seconds))
        return step().node

    def post(self, shared: dict[str, Any], prep_res: Any, exec_res: str) -> None:
        shared["n"] += 1
        shared["ran"] = [*shared["ran"], exec_res]


def jobs(storage: Storage, report: Report, seconds: float = 0.2) -> NodeFlow:
    """Return a flow of three nodes with a short sleep among them."""
    first, last = Add("first", report, seconds), Add("last", report, seconds)
    return linear(first, Sleep(0.05), last, name="jobs", storage=storage, keep=True)


def short_jobs(storage: Storage, report: Report, seconds: float = 0.1) -> NodeFlow:
    """Return a flow of one node."""
    return linear(Add("only", report, seconds), name="short", storage=storage, keep=True)


def hurry() -> None:
    """Shorten leases and the check of partitions in this process."""
    lease.LEASE, journal.WATCH = LEASE, WATCH
    # The package has a function of the same name.
    importlib.import_module("stepwell.nodes.workers.worker").REPAIR_EVERY = 0.5


async def work_off(storage: Storage, report: Report, *, concurrency: int) -> None:
    """Run queued runs until this process is killed."""
    hurry()
    async with worker([jobs(storage, report), short_jobs(storage, report)], concurrency=concurrency):
        report("works")
        await asyncio.Event().wait()


async def submit_all(storage: Storage, report: Report, *, submissions: list[list[Any]]) -> None:
    """Submit runs, each given by flow, id, partition, delay and priority, and report each when it is stored."""
    flows = {flow.name: flow for flow in (jobs(storage, report), short_jobs(storage, report))}
    for name, flow_id, partition, after, priority in submissions:
        start = {"n": 0, "ran": []}
        await flows[name].submit(start, flow_id=flow_id, partition=partition, after=after, priority=priority)
        report("submitted", flow_id)
