"""The runs of node flows that the page shows: where each is, how far its batch is, and what it waits for."""

from __future__ import annotations

from typing import Any

__all__ = ["Runs"]

#: Runs and graphs that are remembered, and how much of a run's way.
MOST, LONGEST_WAY = 12, 200
_STATUS = {"run.started": "running", "run.finished": "finished", "run.failed": "failed", "run.parked": "waiting"}


class Runs:
    """By the run's id, in the order in which they last moved on."""

    def __init__(self) -> None:
        self.graphs: dict[str, dict[str, Any]] = {}
        self._runs: dict[str, dict[str, Any]] = {}

    def graph(self, graph: dict[str, Any]) -> None:
        """A flow is about to run."""
        self.graphs.pop(graph["name"], None)
        self.graphs[graph["name"]] = graph
        _bound(self.graphs)

    def event(self, said: dict[str, Any]) -> str | None:
        """Something happened in a run; a line for the timeline, if it is worth one."""
        kind = said["event"]
        new = {
            "id": said["id"], "flow": said["flow"], "status": "running", "node": None, "at": None, "path": [],
            "progress": None, "question": None, "deadline": None, "error": None,
        }  # fmt: skip
        run = self._runs.pop(said["id"], new)
        self._runs[said["id"]] = run
        _bound(self._runs)
        if kind in _STATUS:
            run["status"] = _STATUS[kind]
            if kind == "run.started":
                run.update(question=None, deadline=None, error=None)
            elif kind == "run.finished":
                run.update(node=None, at=None, progress=None)
            elif kind == "run.failed":
                run["error"] = said["error"]
            return f"{said['flow']}: {run['status']}" + (f" at {run['node']}" if run["node"] else "")
        if kind == "node.started":
            self._enter(run, said["node"])
            run["progress"] = None
        elif kind == "node.progress":
            run["progress"] = {"done": said["done"], "total": said["total"]}
        return None

    def question(self, said: dict[str, Any]) -> None:
        """A run waits for a person."""
        run = self._runs.get(said["id"])
        if run is not None:
            run.update(question=said["question"], deadline=said["deadline"])
            self._enter(run, said["node"])

    def json(self) -> dict[str, Any]:
        """All of them, the one that moved last first."""
        return {"graphs": list(self.graphs.values()), "runs": list(reversed(self._runs.values()))}

    def _enter(self, run: dict[str, Any], node: str) -> None:
        states = self.graphs.get(run["flow"], {}).get("states", [])
        # A node inside a nested flow is shown at the node that the flow is.
        inside = next((state for state in states if node == state or node.startswith(f"{state}/")), None)
        if inside is None:
            return
        run["node"], run["at"] = node, inside
        if not run["path"] or run["path"][-1] != inside:
            run["path"] = [*run["path"], inside][-LONGEST_WAY:]


def _bound(kept: dict[str, Any]) -> None:
    while len(kept) > MOST:
        del kept[next(iter(kept))]
