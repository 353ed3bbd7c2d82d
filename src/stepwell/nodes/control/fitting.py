"""Checks that answers and signals fit what their waits accept, before they are stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stepwell.codec.accepted import problem_in
from stepwell.errors import InvalidAnswer
from stepwell.nodes.graph.building import NodeGraph
from stepwell.nodes.graph.plan import program_of
from stepwell.nodes.wait import Wait

if TYPE_CHECKING:
    from stepwell.nodes.graph.base import BaseFlow

__all__ = ["fitting_answer", "fitting_signal"]


def fitting_answer(flow: BaseFlow, flow_id: str, path: str, wait: Mapping[str, Any], value: Any) -> Any:
    """Return an answer as it is stored; raise ``InvalidAnswer`` if it does not fit what its wait accepts.

    A tool of an operator does not have the nodes of the flow, and uses the schema that the run has stored.
    """
    node = next((node for each, node in _waits_of(flow) if each == path), None)
    if node is not None:
        return _plain(node, flow_id, path, value)
    problem = problem_in(value, wait["accepts"]) if "accepts" in wait else None
    if problem is not None:
        raise InvalidAnswer(flow_id, path, problem)
    return value


def fitting_signal(flow: BaseFlow, flow_id: str, name: str, value: Any) -> Any:
    """Return a signal as it is stored; raise ``InvalidAnswer`` if it fits none of the waits for it."""
    refused: InvalidAnswer | None = None
    for path, node in _waits_of(flow):
        if node.signal == name:
            try:
                return _plain(node, flow_id, path, value, signal=name)
            except InvalidAnswer as error:
                refused = refused or error
    if refused is not None:
        raise refused
    return value


def _plain(node: Wait, flow_id: str, path: str, value: Any, *, signal: str | None = None) -> Any:
    if node._accepted is None:
        return value
    try:
        return node._accepted.plain(value)
    except ValueError as error:
        raise InvalidAnswer(flow_id, path, str(error), signal=signal) from None


def _waits_of(flow: BaseFlow) -> list[tuple[str, Wait]]:
    """Return the paths and the nodes of the waits of a flow; the stand-in of an operator's tool has none."""
    if not isinstance(flow, NodeGraph) or flow._start is None:
        return []
    program = program_of(flow, without_loop=False, durable=True)
    return [(stage.path, stage.node) for stage in program.stages if isinstance(stage.node, Wait)]
