"""The processes that run bots and workers on a storage."""

from __future__ import annotations

from typing import Any, NamedTuple

from stepwell import Storage
from stepwell.engine import PROCESSES
from stepwell.errors import StoredDataError

__all__ = ["ProcessView", "processes"]


class ProcessView(NamedTuple):
    """A process that was seen within the last minute."""

    #: ``bot`` or ``worker``.
    kind: str
    #: The name of the bot, or the names of the worker's flows.
    names: list[str]
    host: str
    pid: int
    started_at: float
    seen_at: float
    #: Updates or runs a minute, how many of them failed, and how many attempts for updates were made again, lately.
    done: float
    failed: float
    retried: float


async def processes(storage: Storage, *, limit: int) -> list[ProcessView]:
    """Return up to ``limit`` processes, sorted by kind and names."""
    found: list[ProcessView] = []
    await storage.ensure_open()
    async for entry in storage.scan(PROCESSES):
        try:
            kind, data = entry.place.flow, entry.state.data
            found.append(_view(str(kind), data, entry.written_at))
        except (StoredDataError, LookupError, TypeError, ValueError):
            # It was written by another release, and expires soon.
            continue
        if len(found) == limit:
            break
    return sorted(found)


def _view(kind: str, data: dict[str, Any], seen_at: float) -> ProcessView:
    return ProcessView(
        kind,
        [str(name) for name in data["names"]],
        str(data["host"]),
        int(data["pid"]),
        seen_at - float(data["age"]),
        seen_at,
        float(data["done"]),
        float(data["failed"]),
        float(data.get("retried", 0)),
    )
