"""A flow that charges with calls that must not run twice, and the worker that runs it."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from typing import Any

from stepwell import Storage
from stepwell.nodes import Node, NodeFlow, effect, step, worker

Report = Callable[..., None]


class Payments:
    """A payment service: a file with a line for each charge, which survives the kill of a caller."""

    def __init__(self, path: str, seconds: float) -> None:
        self.path = path
        self.seconds = seconds

    async def charge(self, order: str, what: str) -> str:
        """Charge an order, somewhere in the middle of the call."""
        await asyncio.sleep(random.uniform(0, self.seconds / 2))
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, f"{order} {what}\n".encode())
        finally:
            os.close(file)
        await asyncio.sleep(random.uniform(0, self.seconds / 2))
        return f"receipt of {what}"


class Pay(Node):
    """Charges with a function."""

    def __init__(self, payments: Payments, report: Report) -> None:
        super().__init__(name="pay")
        self.report = report
        self.charge = effect(payments.charge)

    def prep(self, shared: dict[str, Any]) -> str:
        return str(shared["order"])

    async def exec(self, order: str) -> list[str]:
        self.report("ran", step().id)
        return [await self.charge(order, "goods"), await self.charge(order, "tax")]

    def post(self, shared: dict[str, Any], order: str, receipts: list[str]) -> None:
        shared["receipts"] = receipts


class Ship(Node):
    """Charges with the whole node."""

    replay = "never"

    def __init__(self, payments: Payments, report: Report) -> None:
        super().__init__(name="ship")
        self.report, self.payments = report, payments

    def prep(self, shared: dict[str, Any]) -> str:
        return str(shared["order"])

    async def exec(self, order: str) -> str:
        self.report("ran", step().id)
        return await self.payments.charge(order, "freight")

    def post(self, shared: dict[str, Any], order: str, receipt: str) -> None:
        shared["receipts"] = [*shared["receipts"], receipt]


class Ask(Node):
    """Notes that the outcome of a call is unknown."""

    def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> None:
        shared["unknown"] = True


def charges(storage: Storage | None, report: Report, payments: str = "", seconds: float = 0.05) -> NodeFlow:
    """Return the flow. A run that is interrupted in ``pay`` takes an edge, and one in ``ship`` is stuck."""
    service = Payments(payments, seconds)
    pay, ship = Pay(service, report), Ship(service, report)
    pay >> ship
    pay - "unknown" >> Ask(name="ask")
    return NodeFlow(pay, name="charges", storage=storage, keep=True, max_recoveries=1000)


async def charge_all(storage: Storage, report: Report, *, payments: str, seconds: float = 0.05) -> None:
    """Run queued runs until SIGTERM, or until this process is killed."""
    running = asyncio.create_task(worker([charges(storage, report, payments, seconds)], concurrency=8).run())
    await asyncio.sleep(0.05)
    report("works")
    await running
