"""The graph of a flow as Mermaid text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepwell.nodes.graph.base import End

if TYPE_CHECKING:
    from stepwell.nodes.graph.plan import Graph, Stage

__all__ = ["mermaid"]


def mermaid(root: Stage) -> str:
    """Return a flowchart: nodes as boxes, nested flows and branches as subgraphs, edges with their actions."""
    assert root.graph is not None
    lines = ["flowchart TD"]
    _draw_graph(root.graph, lines, "    ")
    return "\n".join(lines) + "\n"


def _draw_graph(graph: Graph, lines: list[str], indent: str) -> None:
    if graph.start is not None:
        lines.append(f"{indent}start{graph.start.index}(( )) --> n{graph.start.index}")
    for stage in graph.stages:
        _draw_stage(stage, lines, indent)
    for stage in graph.stages:
        for action, target in graph.flow._edges_of(stage.node).items():
            label = "" if action == "default" else f"|{_quoted(action)}|"
            if isinstance(target, End):
                lines.append(f"{indent}n{stage.index} -->{label} end{stage.index}((END))")
            else:
                following = stage.edges[action]
                assert following is not None
                lines.append(f"{indent}n{stage.index} -->{label} n{following.index}")


def _draw_stage(stage: Stage, lines: list[str], indent: str) -> None:
    if not stage.inside:
        lines.append(f"{indent}n{stage.index}[{_quoted(stage.name)}]")
        return
    lines.append(f"{indent}subgraph n{stage.index}[{_quoted(stage.name)}]")
    for graph in stage.inside:
        _draw_graph(graph, lines, indent + "    ")
    lines.append(f"{indent}end")


def _quoted(text: str) -> str:
    escaped = text.replace("&", "#amp;").replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")
    return '"' + escaped.replace("\n", " ") + '"'
