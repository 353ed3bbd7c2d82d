"""The saga of the tests of undos, and the role of a worker that runs it and dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

from stepwell import Storage
from stepwell.errors import RunCancelled, RunFailed
from stepwell.nodes import Node, NodeFlow, Wait, linear, step
from stepwell.nodes.run import journal, lease
from stepwell.storage import Apply
from tests.reliability.run_roles import LEASE, WATCH

Report = Callable[..., None]
Ends = Literal["finished", "failed", "cancelled"]


class SoldOut(Exception):
    """The error of the last step."""


class Book(Node):
    """Books something at a service that reports it, and undoes it."""

    def __init__(self, report: Report, name: str) -> None:
        super().__init__(name=name)
        self.report = report

    async def exec(self, prep_res: Any) -> str:
        self.report("booked", step().node, step().flow_id)
        return f"receipt of {step().node}"

    async def undo(self, shared: dict[str, Any], result: str) -> None:
        assert result == f"receipt of {step().node}"
        self.report("undone", step().node, step().flow_id)
        shared["undone"] = [*shared.get("undone", []), step().node]


class SellOut(Node):
    async def exec(self, prep_res: Any) -> None:
        raise SoldOut


def saga(storage: Storage, report: Report, ends: Ends) -> NodeFlow:
    """Return a flow of five steps that can be undone, and of a last one, at which the run ends or waits."""
    last: Node | Wait = {"finished": Node(name="last"), "failed": SellOut(), "cancelled": Wait("go")}[ends]
    return linear(*[Book(report, name) for name in "abcde"], last, name="saga", storage=storage, keep=True)


async def run_saga(flow: NodeFlow, flow_id: str, ends: Ends) -> None:
    """Start or resume a saga, and let it come to its end."""
    with suppress(SoldOut, RunFailed, RunCancelled):
        await flow.run({}, flow_id=flow_id, if_exists="resume", on_park="return")
    if ends == "cancelled":
        await flow.cancel(flow_id)


async def saga_and_die(storage: Storage, report: Report, *, flow_id: str, ends: Ends, at: int) -> None:
    """Run a saga, and kill this process after its n-th commit."""
    lease.LEASE, journal.WATCH = LEASE, WATCH
    perform, commits = storage.perform, 0

    async def counted(operation: Any) -> Any:
        nonlocal commits
        result = await perform(operation)
        commits += isinstance(operation, Apply)
        if commits == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    storage.perform = counted  # type: ignore[method-assign]
    await run_saga(saga(storage, report, ends), flow_id, ends)
    report("ended", commits)
