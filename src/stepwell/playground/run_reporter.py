"""In the bot's process: tells the playground of its node flows, their graphs, and how each run goes.

Runs happen on any loop and any thread, so what is said goes straight to a socket of its own.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from typing import Any

from stepwell.errors import Parked
from stepwell.nodes import Event, NodeFlow, subscribe
from stepwell.nodes.engine.base import End
from stepwell.nodes.engine.plan import Program
from stepwell.playground.display import shown

__all__ = ["graph_of", "install"]


def install(address: str) -> None:
    """From now on every run of this process is reported to ``host:port:secret``."""
    host, port, secret = address.split(":")
    line = _Line(host, int(port), secret)
    new_run, run, resume = NodeFlow._new_execution, NodeFlow.run, NodeFlow.resume

    def new_run_and_report(flow: NodeFlow, program: Program, *given: Any, **options: Any) -> Any:
        made = new_run(flow, program, *given, **options)
        line.say({"kind": "graph", "graph": graph_of(made.name, program)})
        return made

    async def run_and_report(flow: NodeFlow, *given: Any, **options: Any) -> Any:
        with _asking(line):
            return await run(flow, *given, **options)

    async def resume_and_report(flow: NodeFlow, *given: Any, **options: Any) -> Any:
        with _asking(line):
            return await resume(flow, *given, **options)

    setattr(NodeFlow, "_new_execution", new_run_and_report)  # noqa: B010
    setattr(NodeFlow, "run", run_and_report)  # noqa: B010
    setattr(NodeFlow, "resume", resume_and_report)  # noqa: B010
    subscribe(line.event)


def graph_of(name: str, program: Program) -> dict[str, Any]:
    """A node flow as the page draws it; what is inside a nested flow is one node of it."""
    graph = program.root.graph
    stages = graph.stages if graph is not None else [program.root]
    edges: dict[tuple[str, str], list[str]] = {}
    ends: set[str] = set()
    for stage in stages:
        targets = graph.flow._edges_of(stage.node) if graph is not None else {}
        if not targets:
            ends.add(stage.path)
        for action, target in targets.items():
            following = None if isinstance(target, End) else stage.edges[action]
            if following is None:
                ends.add(stage.path)
            else:
                edges.setdefault((stage.path, following.path), []).append("" if action == "default" else action)
    return {
        "name": name,
        "states": [stage.path for stage in stages],
        "start": stages[0].path if stages else None,
        "edges": [[one, two, ", ".join(filter(None, actions))] for (one, two), actions in edges.items()],
        "ends": sorted(ends),
        "open": False,
        "timeouts": {},
    }


class _Line:
    """A connection for saying things only."""

    def __init__(self, host: str, port: int, secret: str) -> None:
        self._socket = socket.create_connection((host, port), timeout=5)
        self._lock = threading.Lock()
        self.say({"secret": secret, "listens": False})

    def say(self, said: dict[str, Any]) -> None:
        # Without the playground there is nobody to tell; the run is none of its business.
        with self._lock, contextlib.suppress(OSError):
            self._socket.sendall(json.dumps(said).encode() + b"\n")

    def event(self, event: Event) -> None:
        """Something happened in a run; items are told by the progress of their batch."""
        if event.kind.startswith("item."):
            return
        self.say(
            {
                "kind": "run",
                "event": event.kind,
                "flow": event.flow,
                "id": event.flow_id,
                "node": event.node,
                "done": event.done,
                "total": event.total,
                "error": None if event.error is None else type(event.error).__name__,
            }
        )


class _asking(contextlib.AbstractContextManager[None]):  # noqa: N801 - reads as a word
    """Tells of the question that a run parks with."""

    def __init__(self, line: _Line) -> None:
        self._line = line

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Parked):
            about = {"id": error.flow_id, "node": error.node, "question": shown(error.question)}
            self._line.say({"kind": "question", **about, "deadline": error.deadline})
