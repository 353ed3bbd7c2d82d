"""The base of every kind of flow: a graph that is compiled once, and is a node itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stepwell.nodes.engine.base import BaseNode, End
from stepwell.nodes.engine.plan import Program, Stage, compile_flow
from stepwell.nodes.engine.runner import run_nested

if TYPE_CHECKING:
    from stepwell.nodes.engine.plan import Build, Strategy

__all__ = ["BaseFlow"]


class BaseFlow(BaseNode):
    """What every kind of flow has: a graph of nodes, and the fact that it is a node itself."""

    #: How many nodes a run of it may visit.
    max_steps: int | None = None
    #: How many ``exec`` calls inside it may run at once.
    concurrency: int | None = None

    def post(self, shared: Any, prep_res: Any, exec_res: Any, /) -> Any:
        """Choose the edge of the enclosing flow: by default by the last action inside."""
        return exec_res

    def _problems(self) -> list[str]:
        """What is wrong with the graph."""
        return []

    def _reachable(self) -> list[BaseNode]:
        """The nodes of the graph, the first one first, in the order in which they are walked."""
        raise NotImplementedError

    def _edges_of(self, node: BaseNode) -> Mapping[str, BaseNode | End]:
        return node.successors

    def _table(self, edges: dict[str, Stage | None]) -> dict[Any, Stage | None]:
        """Where each value leads that ``post`` may return; what is missing goes to :meth:`_leave`."""
        raise NotImplementedError

    def _leave(self, stage: Stage, result: Any, shared: Any) -> tuple[Any, Stage | None]:
        """The action and the next stage, for a returned value that is not in the table."""
        raise NotImplementedError

    def _strategy(self, build: Build, stage: Stage) -> Strategy | None:
        prefix = f"{stage.path}/" if stage.index else ""
        stage.leaf = False
        stage.graph = build.graph(self, stage.name, prefix)
        stage.bare = stage.prep is BaseNode.prep and stage.post is BaseFlow.post
        return run_nested

    def _program(self, *, without_loop: bool, durable: bool = False) -> Program:
        programs: dict[bool | str, Program] = self.__dict__.setdefault("_programs", {})
        kind = "durable" if durable else without_loop
        program = programs.get(kind)
        if program is None or not program.is_current():
            program = programs[kind] = compile_flow(self, without_loop=without_loop, durable=durable)
        return program
