"""The Celery application of test_celery.py: its workers import this module."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from celery import Celery

from stepwell.adapters.celery import CeleryRuns
from stepwell.nodes import Node, Wait, linear, step
from stepwell.nodes.run import journal, lease
from tests.until import wait_until

# A runner that died is noticed after seconds, not after ten.
lease.LEASE, journal.WATCH = 1.5, 1.0

FOLDER = Path(os.environ["STEPWELL_TEST_FOLDER"])

app = Celery("shop", broker=os.environ["STEPWELL_TEST_BROKER"])
app.conf.worker_prefetch_multiplier = 1
app.conf.broker_connection_retry_on_startup = True


class Begin(Node):
    async def exec(self, prep_res: Any) -> None:
        (FOLDER / f"{step().flow_id}.begin.{os.getpid()}").touch()


class Hold(Node):
    """Waits for the gate, in a thread."""

    def exec(self, prep_res: Any) -> None:
        (FOLDER / f"{step().flow_id}.hold.{os.getpid()}").touch()
        wait_until((FOLDER / "gate").exists)


class End(Node):
    def post(self, shared: Any, prep_res: Any, exec_res: Any) -> None:
        with (FOLDER / "order").open("a") as order:
            order.write(f"{step().flow_id}\n")
        shared["ended"] = True


class Fails(Node):
    async def exec(self, prep_res: Any) -> None:
        raise ValueError("no luck")


orders = linear(Begin, Hold, End, name="orders")
quick = linear(End, name="quick")
asks = linear(Wait("name"), End, name="asks")
fails = linear(Fails, name="fails")
celery_runs = CeleryRuns(app, [orders, quick, asks, fails], storage=f"sqlite:///{FOLDER / 'runs.db'}", sweep=0.5)
