"""Descriptions of a flow's graph: one for subscribers, and one to compare with the graph of a stored run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from stepwell._secrets import quoted
from stepwell.errors import InvalidGraph

__all__ = ["FlowEdge", "FlowGraph", "Shape", "check_renamed", "digest"]

#: The kind and the edges of each node, by path; an edge to ``None`` ends the flow. The path "" is the flow.
Shape = dict[str, list[Any]]


class FlowEdge(NamedTuple):
    """The edge that an action of a node takes."""

    source: str
    action: str
    #: The path of the next node; ``None`` ends the flow.
    target: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowGraph:
    """The nodes of a flow by their paths, and its edges; a nested flow is one node.

    Example::

        graphs = []
        await linear(Read, CountWords).run({"text": "a b"}, on_event=lambda event: graphs.append(event.graph))
        assert graphs[0].nodes == ("Read", "CountWords")
        assert graphs[0].edges[0] == FlowEdge("Read", "default", "CountWords")
    """

    #: Runs start at the first one.
    nodes: tuple[str, ...]
    edges: tuple[FlowEdge, ...]


def digest(shape: Shape) -> str:
    """Return a hash of a shape that does not depend on the order of declaration."""
    return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:12]


def check_renamed(flow: str, renamed: Mapping[str, str], shape: Shape) -> None:
    """Raise ``InvalidGraph`` if a new path of ``renamed`` is neither a node nor a branch of the flow."""
    branches = {
        f"{path}/{action.removeprefix('start ')}"
        for path, (kind, edges) in shape.items()
        if kind == "parallel"
        for action in edges
    }
    problems = [
        f"renamed= leads {quoted(old)} to {quoted(new)}, which is not a node of the flow"
        for old, new in renamed.items()
        if new not in shape and new not in branches
    ]
    if problems:
        raise InvalidGraph(flow, problems)
