"""Runs that may have killed their process: a process runs one of them at a time.

If a run kills its process, the runs beside it lose their runner too. They complete a node when they run without it, so
only the run that kills its process reaches ``max_recoveries``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepwell.nodes.run.journal import Journal

__all__ = ["enter", "leave"]

#: A run whose runner has died this often since its last completed node is a suspect.
DEATHS = 2

_current: list[Journal] = []


def enter(journal: Journal) -> bool:
    """Return whether this process may run a run now: it is no suspect, or it is the only one."""
    if journal.recoveries < DEATHS:
        return True
    if _current:
        return False
    _current.append(journal)
    return True


def leave(journal: Journal) -> None:
    """Let this process run another suspect, because this run has completed a node or has ended."""
    if journal in _current:
        _current.remove(journal)
