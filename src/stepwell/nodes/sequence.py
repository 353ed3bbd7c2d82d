"""Flows of nodes one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, TypedDict, Unpack

from stepwell.errors import InvalidGraph
from stepwell.nodes.flow import NodeFlow
from stepwell.nodes.graph.building import UNNAMED

if TYPE_CHECKING:
    from stepwell.nodes.deploy.migration import Migrate
    from stepwell.nodes.graph.base import BaseNode
    from stepwell.nodes.graph.building import OnUnknownAction
    from stepwell.nodes.history import Detail
    from stepwell.nodes.run.table import Retention
    from stepwell.storage import Storage

__all__ = ["linear", "with_error_handling"]


class FlowOptions(TypedDict, total=False):
    """The options of :class:`NodeFlow` that :func:`linear` and :func:`with_error_handling` pass on."""

    storage: Storage | str | None
    on_unknown_action: OnUnknownAction
    concurrency: int | None
    max_steps: int | None
    keep: Retention
    max_recoveries: int
    history: Detail | None
    renamed: Mapping[str, str] | None
    revision: int
    migrate: Migrate | None


def linear(*nodes: BaseNode | type[BaseNode], name: str = UNNAMED, **options: Unpack[FlowOptions]) -> NodeFlow:
    """Return a flow of nodes one after the other. A class makes a new node each time it is given.

    The options are those of :class:`NodeFlow`.

    Raises ``InvalidGraph`` if a node is given twice.

    Example::

        flow = linear(Read, CountWords, name="words", storage="sqlite:///runs.db")
        final = await flow.run({"text": "one two"}, flow_id="words-42", if_exists="resume")
    """
    flow = NodeFlow(name=name, **options)
    made = [flow._made(node) if isinstance(node, type) else node for node in nodes]
    if len({id(node) for node in made}) < len(made):
        raise InvalidGraph(flow._title(), ["linear() got the same node twice; give its class, or a second node"])
    if made:
        flow.start(made[0])
    for source, target in pairwise(made):
        flow.connect(source, target)
    return flow


def with_error_handling(
    nodes: Iterable[BaseNode | type[BaseNode]],
    handler: BaseNode | type[BaseNode],
    *,
    name: str = UNNAMED,
    **options: Unpack[FlowOptions],
) -> NodeFlow:
    """Return a flow of nodes one after the other, in which the edge ``"error"`` of each leads to ``handler``.

    The edge is taken if ``post`` returns ``"error"``, and if the node fails for good: ``step().error`` is its error.

    Example::

        class Apologise(Node):
            def post(self, shared, prep_res, exec_res):
                shared["answer"] = "Sorry!"

        flow = with_error_handling([Read, CountWords], Apologise, name="words")
    """
    flow = linear(*nodes, name=name, **options)
    for node in flow._reachable():
        flow.connect(node, handler, action="error")
    return flow
