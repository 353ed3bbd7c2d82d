"""Runs that this process had to leave because of their storage.

Their records look as if the runner had died. This process knows better, so it counts no death when it resumes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepwell.nodes.run.journal import Journal
    from stepwell.record import Version

__all__ = ["leave", "returned"]

#: The most runs that are remembered; the oldest are forgotten.
MOST = 10_000

_left: dict[tuple[object, str], Version | None] = {}


def leave(journal: Journal) -> None:
    """Remember the version of a run that its runner leaves alive."""
    key = (journal.slot.storage.wake_key, journal.flow_id)
    _left.pop(key, None)
    _left[key] = journal.slot.version
    if len(_left) > MOST:
        del _left[next(iter(_left))]


def returned(journal: Journal) -> bool:
    """Return whether this process was the last runner of a run that was just loaded; forget it."""
    key = (journal.slot.storage.wake_key, journal.flow_id)
    return key in _left and _left.pop(key) == journal.slot.version
