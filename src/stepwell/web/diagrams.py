"""Flows as ``diagram.js`` draws them."""

from __future__ import annotations

from typing import Any

from stepwell.fsm.flows.description import FlowDescription
from stepwell.nodes import FlowGraph

__all__ = ["describe_flow", "describe_graph"]


def describe_flow(flow: FlowDescription) -> dict[str, Any]:
    """Return a flow as a page draws it."""
    return {
        "name": flow.name,
        "states": [str(state) for state in flow.states],
        "start": flow.default_state,
        "edges": [[state, str(target)] for state, targets in flow.transitions.items() for target in targets],
        "ends": [state for state, targets in flow.transitions.items() if not targets],
        "open": flow.is_open,
        "timeouts": {
            state: {"seconds": timeout.seconds, "to": timeout.then if isinstance(timeout.then, str) else None}
            for state, timeout in flow.timeouts.items()
        },
    }


def describe_graph(name: str, graph: FlowGraph) -> dict[str, Any]:
    """Return a node flow as a page draws it."""
    edges: dict[tuple[str, str], list[str]] = {}
    ends = set(graph.nodes) - {edge.source for edge in graph.edges}
    for source, action, target in graph.edges:
        if target is None:
            ends.add(source)
        else:
            edges.setdefault((source, target), []).append("" if action == "default" else action)
    return {
        "name": name,
        "states": list(graph.nodes),
        "start": graph.nodes[0] if graph.nodes else None,
        "edges": [[one, two, ", ".join(filter(None, actions))] for (one, two), actions in edges.items()],
        "ends": sorted(ends),
        "open": False,
        "timeouts": {},
    }
