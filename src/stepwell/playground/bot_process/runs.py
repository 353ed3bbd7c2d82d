"""In the bot's process: reports its node flows to the playground, their graphs and the events of each run.

Runs use any loop and any thread, so the reports go to a socket of their own.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from typing import Any

from stepwell.nodes import Event, subscribe
from stepwell.playground.bot_process.reporter import handled_update
from stepwell.web.diagrams import describe_graph
from stepwell.web.display import as_json

__all__ = ["RunReporter", "install"]


def install(address: str) -> RunReporter:
    """Report every run of this process to ``host:port:secret``."""
    host, port, secret = address.split(":")
    reporter = RunReporter(host, int(port), secret)
    subscribe(reporter.report)
    return reporter


class RunReporter:
    """A connection that only sends, from any thread."""

    def __init__(self, host: str, port: int, secret: str) -> None:
        self._socket = socket.create_connection((host, port), timeout=5)
        self._lock = threading.Lock()
        self.send({"secret": secret, "listens": False})

    def send(self, message: dict[str, Any]) -> None:
        """Send a report."""
        # Without the playground the run continues.
        with self._lock, contextlib.suppress(OSError):
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def report(self, event: Event) -> None:
        """Send an event of a run; the progress of a batch stands for the events of its items."""
        if event.kind.startswith("item."):
            return
        if event.graph is not None:
            self.send({"kind": "graph", "graph": describe_graph(event.flow, event.graph)})
        self.send(
            {
                "kind": "run",
                "event": event.kind,
                "flow": event.flow,
                "id": event.flow_id,
                "node": event.node,
                "done": event.done,
                "total": event.total,
                "error": None if event.error is None else type(event.error).__name__,
                "update_id": handled_update.get(),
            }
        )
        if (parked := event.parked) is not None:
            about = {"id": event.flow_id, "node": parked.node, "question": as_json(parked.question)}
            self.send({"kind": "question", **about, "deadline": parked.deadline})
