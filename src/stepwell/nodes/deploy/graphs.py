"""When workers have first used each graph of a flow: an old process is told from a new one however late it starts."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from stepwell._secrets import quoted
from stepwell.codec.values import conform
from stepwell.errors import StepwellError
from stepwell.nodes.graph.plan import program_of
from stepwell.record import GRAPHS
from stepwell.slot import Slot

if TYPE_CHECKING:
    from stepwell.nodes.graph.base import BaseFlow
    from stepwell.storage import Storage

__all__ = ["is_older", "note_graphs"]

logger: logging.Logger = logging.getLogger(__name__)

#: How many graphs of a flow are remembered.
MOST = 50


async def note_graphs(storage: Storage, flows: Iterable[BaseFlow]) -> None:
    """Store when the graph of each flow was first used, on the storage's clock. Best effort: errors are logged."""
    for flow in flows:
        try:
            digest = program_of(flow, without_loop=False, durable=True).digest
            if digest in await _first_used(storage, flow._title()):
                continue
            async with Slot(storage, GRAPHS, flow._title(), wait=2.0, lease=5.0) as slot:
                known = {**_times(slot.data), digest: slot.now}
                slot.data = {"first": dict(sorted(known.items(), key=lambda item: item[1])[-MOST:])}
                await slot.commit()
        except StepwellError as error:
            logger.info("the graph of flow %s was not noted (%s)", quoted(flow._title()), error)


async def is_older(storage: Storage, flow: str, mine: str, other: str) -> bool | None:
    """Return whether a graph of a flow was first used before another one; ``None`` if that is not known."""
    try:
        first = await _first_used(storage, flow)
    except StepwellError as error:
        logger.info("the graphs of flow %s could not be read (%s)", quoted(flow), error)
        return None
    return first[mine] < first[other] if mine in first and other in first else None


async def _first_used(storage: Storage, flow: str) -> dict[str, float]:
    return _times(await storage.get_data(GRAPHS, flow) or {})


def _times(data: dict[str, object]) -> dict[str, float]:
    """Return the time of each digest; a damaged record has none."""
    first = data.get("first", {})
    return {} if conform(first, dict[str, float])[1] is not None else dict(first)  # type: ignore[call-overload]
