"""The step that is running, for a layer that keeps something of its own for each step of a durable run."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stepwell.nodes.step import step
from stepwell.nodes.walk.cursor import current

if TYPE_CHECKING:
    from stepwell.storage import Storage

__all__ = ["DurableStep", "durable_step"]


class DurableStep(NamedTuple):
    """A step of a run that has a storage."""

    #: The same for every attempt: see ``Step.id``.
    id: str
    #: From 1.
    attempt: int
    #: The execution of the run, an object that can be a key of a weak dict.
    execution: object
    #: Differs between two runs with the same id.
    mark: str
    #: The storage of the run.
    storage: Storage


def durable_step() -> DurableStep | None:
    """Return the step that is running; ``None`` outside a run with a storage."""
    cursor = current()
    if cursor is None or cursor.branch is None:
        return None
    here, journal = step(), cursor.branch.journal
    return DurableStep(here.id, here.attempt, cursor.run, journal.mark, journal.slot.storage)
