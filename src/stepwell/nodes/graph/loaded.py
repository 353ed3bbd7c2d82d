"""When this process loaded the graph of a flow, to tell an old process from a new one during a rolling deploy."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepwell.nodes.graph.base import BaseFlow

__all__ = ["loaded_at"]

#: The first use of each graph in this process, by the name of its flow and its digest.
_first_used: dict[tuple[str, str], float] = {}
#: How many graphs are remembered. A process may build any number of them.
_MOST = 1000


def loaded_at(flow: BaseFlow, digest: str) -> float:
    """Return when this process loaded a graph, as a time of ``monotonic()``.

    A function may build the same flow again for each call, so the first use of its graph counts too.
    """
    key = (flow._title(), digest)
    first = _first_used.get(key)
    if first is None:
        if len(_first_used) >= _MOST:
            _first_used.pop(next(iter(_first_used)), None)
        first = _first_used[key] = monotonic()
    return min(first, flow._built_at)
