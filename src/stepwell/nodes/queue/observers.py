"""Observers of submitted runs: a runner of bots warns of runs that no worker takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from stepwell.nodes.run.reading import read_run

if TYPE_CHECKING:
    from stepwell.storage import Storage

__all__ = ["SubmitObserver", "is_queued", "observe_submits", "submitted"]

#: Called with the storage of a run that was submitted, the name of its flow, and its id.
SubmitObserver: TypeAlias = "Callable[[Storage, str, str], object]"

_observers: list[SubmitObserver] = []


def observe_submits(observer: SubmitObserver) -> Callable[[], None]:
    """Call a function for each run that this process submits to a queue; return a function that ends that."""
    _observers.append(observer)

    def stop() -> None:
        if observer in _observers:
            _observers.remove(observer)

    return stop


def submitted(storage: Storage, flow: str, flow_id: str) -> None:
    """Tell the observers of a submitted run."""
    for observer in _observers:
        observer(storage, flow, flow_id)


async def is_queued(storage: Storage, flow_id: str) -> bool:
    """Return whether no worker has begun a run."""
    run = await read_run(storage, flow_id)
    return run is not None and run.table["status"] == "queued"
