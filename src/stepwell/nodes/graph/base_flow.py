"""The base of every flow: a graph that is compiled once, and is a node itself."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from stepwell.errors import InvalidAction
from stepwell.nodes.graph.base import BaseNode, End, PostResult
from stepwell.nodes.graph.plan import Stage
from stepwell.nodes.walk.runner import run_nested

if TYPE_CHECKING:
    from stepwell.nodes.deploy.migration import Migrate
    from stepwell.nodes.graph.plan import Build, Strategy
    from stepwell.nodes.run.table import Retention
    from stepwell.storage import Storage

__all__ = ["BaseFlow", "apply_updates", "is_pair"]


class BaseFlow(BaseNode):
    """The base class of flows. A flow is a graph of nodes, and a node itself."""

    #: How many nodes one run may visit.
    max_steps: int | None = None
    #: How many ``exec`` calls inside it may run at once.
    concurrency: int | None = None
    #: The storage of its runs.
    storage: Storage | None = None
    #: The URL that the storage was given as.
    _storage_url: str | None = None
    #: Whether finished runs stay in the storage.
    keep: Retention = False
    #: How often the runner of a run may die at one node.
    max_recoveries: int = 5
    #: The revision of the flow.
    revision: int = 1
    #: Moves a run of an earlier revision to this one.
    migrate: Migrate | None = None
    #: The new path of each path that was renamed.
    renamed: Mapping[str, str] = MappingProxyType({})
    #: When the flow was made, as a time of ``monotonic()``.
    _built_at: float = inf

    def post(self, shared: Any, prep_res: Any, exec_res: Any, /) -> PostResult:
        """Choose the edge of the enclosing flow; by default the last action inside."""
        return exec_res  # type: ignore[no-any-return]

    def _title(self) -> str:
        return self.name or type(self).__name__

    def _problems(self) -> list[str]:
        """Return what is wrong with the graph."""
        return []

    def _reachable(self) -> list[BaseNode]:
        """Return the nodes of the graph, breadth first from the start."""
        raise NotImplementedError

    def _edges_of(self, node: BaseNode) -> Mapping[str, BaseNode | End]:
        return node.successors

    def _table(self, edges: dict[str, Stage | None]) -> dict[Any, Stage | None]:
        """Return the next stage for each value that ``post`` may return; :meth:`_leave` handles all others."""
        raise NotImplementedError

    def _leave(self, stage: Stage, result: Any, shared: Any) -> tuple[Any, Stage | None]:
        """Return the action and the next stage for a value that is not in the table."""
        raise NotImplementedError

    def _strategy(self, build: Build, stage: Stage) -> Strategy | None:
        prefix = f"{stage.path}/" if stage.index else ""
        stage.leaf = False
        stage.graph = build.graph(self, stage.name, prefix)
        stage.bare = stage.prep is BaseNode.prep and stage.post is BaseFlow.post
        return run_nested


def apply_updates(stage: Stage, result: tuple[Any, ...], shared: Any) -> Any:
    """Apply the updates of ``(action, updates)`` to the shared state, and return the action."""
    if not is_pair(result):
        raise InvalidAction(stage.path, f"a tuple of {', '.join(type(part).__name__ for part in result)}")
    shared.update(result[1])
    return result[0]


def is_pair(result: tuple[Any, ...]) -> bool:
    """Return whether a result of ``post`` is ``(action, updates)``."""
    return len(result) == 2 and isinstance(result[1], Mapping)
