"""The runs of node flows that the page shows: current node, progress and question."""

from __future__ import annotations

from typing import Any

__all__ = ["Runs"]

#: The most runs and graphs that are kept, and the most nodes of a path.
MAX_RUNS, MAX_PATH = 12, 200
_STATUS = {
    "run.started": "running",
    "run.finished": "finished",
    "run.failed": "failed",
    "run.parked": "waiting",
    "run.cancelled": "cancelled",
    "run.stuck": "stuck",
}


class Runs:
    """The runs by id, the most recently active last."""

    def __init__(self) -> None:
        self.graphs: dict[str, dict[str, Any]] = {}
        self._runs: dict[str, dict[str, Any]] = {}

    def graph(self, graph: dict[str, Any]) -> None:
        """Add or replace the graph of a flow."""
        self.graphs.pop(graph["name"], None)
        self.graphs[graph["name"]] = graph
        _bound(self.graphs)

    def event(self, report: dict[str, Any]) -> str | None:
        """Apply an event of a run; return a title for the timeline, if any."""
        kind = report["event"]
        new = {
            "id": report["id"], "flow": report["flow"], "status": "running", "node": None, "at": None, "path": [],
            "progress": None, "question": None, "deadline": None, "error": None,
        }  # fmt: skip
        run = self._runs.pop(report["id"], new)
        self._runs[report["id"]] = run
        _bound(self._runs)
        if kind in _STATUS:
            run["status"] = _STATUS[kind]
            if kind == "run.started":
                run.update(question=None, deadline=None, error=None)
            elif kind == "run.finished":
                run.update(node=None, at=None, progress=None)
            elif kind in ("run.failed", "run.cancelled", "run.stuck"):
                run["error"] = report["error"]
            return f"{report['flow']}: {run['status']}" + (f" at {run['node']}" if run["node"] else "")
        if kind == "node.started":
            self._enter(run, report["node"])
            run["progress"] = None
        elif kind == "node.progress":
            run["progress"] = {"done": report["done"], "total": report["total"]}
        return None

    def question(self, report: dict[str, Any]) -> None:
        """Add the question that a run waits on."""
        run = self._runs.get(report["id"])
        if run is not None:
            run.update(question=report["question"], deadline=report["deadline"])
            self._enter(run, report["node"])

    def json(self) -> dict[str, Any]:
        """Return all graphs and runs, the most recently active first."""
        return {"graphs": list(self.graphs.values()), "runs": list(reversed(self._runs.values()))}

    def _enter(self, run: dict[str, Any], node: str) -> None:
        states = self.graphs.get(run["flow"], {}).get("states", [])
        # A node inside a nested flow is shown as the node of that flow.
        inside = next((state for state in states if node == state or node.startswith(f"{state}/")), None)
        if inside is None:
            return
        run["node"], run["at"] = node, inside
        if not run["path"] or run["path"][-1] != inside:
            run["path"] = [*run["path"], inside][-MAX_PATH:]


def _bound(kept: dict[str, Any]) -> None:
    while len(kept) > MAX_RUNS:
        del kept[next(iter(kept))]
