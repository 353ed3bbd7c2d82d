"""The flows of the tests of control, and the role of the worker that runs them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

from stepwell import Storage
from stepwell.nodes import Node, NodeFlow, Wait, linear, parallel, step, worker
from tests.reliability.queue_roles import hurry

Report = Callable[..., None]


class Kill(Node):
    """Kills its process."""

    async def exec(self, prep_res: Any) -> None:
        await asyncio.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)


class Long(Node):
    """Takes some time, and reports when it starts and when it is cancelled."""

    def __init__(self, report: Report, seconds: float) -> None:
        super().__init__(name="long")
        self.report = report
        self.seconds = seconds

    async def exec(self, prep_res: Any) -> None:
        self.report("entered", step().flow_id)
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.report("interrupted", step().flow_id)
            raise


class Take(Wait):
    """Appends its answer, so that a second use is detected."""

    def post(self, shared: dict[str, Any], question: Any, answer: Any) -> None:
        shared[self.name] = [*shared.get(self.name, []), answer]


def poison(storage: Storage) -> NodeFlow:
    return linear(Kill, name="poison", storage=storage, max_recoveries=2)


def healthy(storage: Storage, report: Report) -> NodeFlow:
    """Return a flow whose node takes longer than the poison needs to kill the process."""
    return linear(Long(report, 0.3), name="healthy", storage=storage, keep=True, max_recoveries=2)


def endless(storage: Storage, report: Report) -> NodeFlow:
    return linear(Long(report, 600), name="endless", storage=storage)


def asking(storage: Storage, report: Report) -> NodeFlow:
    """Return a flow that waits in two branches, one of which is busy first, and then for one more answer."""
    both = parallel(Take("left"), linear(Long(report, 0.05), Take("right")), name="both")
    return linear(both, Take("last"), name="asking", storage=storage, keep=True)


async def control_worker(storage: Storage, report: Report) -> None:
    """Run the runs of these flows until this process is killed."""
    hurry()
    flows = [poison(storage), healthy(storage, report), endless(storage, report), asking(storage, report)]
    async with worker(flows):
        report("works")
        await asyncio.Event().wait()
