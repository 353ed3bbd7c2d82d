"""The flows that the inspector was given: their states and diagrams."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stepwell.engine import quoted
from stepwell.errors import InvalidOption
from stepwell.fsm import FSM, Flow, Router
from stepwell.fsm.engine import FlowDescription, describe
from stepwell.nodes import NodeFlow
from stepwell.nodes.engine import program_of
from stepwell.web.diagrams import describe_flow, describe_graph

__all__ = ["KnownFlows"]


class KnownFlows:
    """Flows of conversations and of nodes, by name."""

    def __init__(self, given: Iterable[Any]) -> None:
        self.conversations: dict[str, FlowDescription] = {}
        #: Node flows by name.
        self.runs: dict[str, NodeFlow] = {}
        self._diagrams: dict[str, dict[str, Any]] = {}
        for each in given:
            self._add(each)

    def _add(self, given: Any) -> None:
        if isinstance(given, Router):
            given = given.fsm
        if isinstance(given, FSM):
            self.conversations |= given.flows
        elif isinstance(given, NodeFlow):
            name = given._title()
            program = program_of(given, without_loop=False)
            self.runs[name] = given
            # The paths of all nodes, also of those inside other flows.
            paths = [stage.path for stage in program.stages[1:]]
            self._diagrams[name] = {**describe_graph(name, program.graph), "paths": paths}
        elif isinstance(given, type) and issubclass(given, Flow):
            described = describe(given)
            self.conversations[described.name] = described
        else:
            raise InvalidOption(
                f"the inspector cannot show {quoted(given)}; give classes of Flow, a NodeFlow, an FSM or a Router"
            )

    def json(self) -> dict[str, Any]:
        """Return all flows as ``diagram.js`` draws them."""
        return {
            "conversations": [describe_flow(flow) for flow in self.conversations.values()],
            "runs": list(self._diagrams.values()),
        }
