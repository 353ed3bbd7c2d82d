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
    #: The mean seconds that the runs which it has taken lately have waited in their queues; ``None`` for none.
    wait: float | None = None
    #: Runs a minute that it has continued after the death of their runner, and leases a minute that it has lost.
    recovered: float = 0.0
    lost: float = 0.0
    #: How many calls a minute were refused, and how many updates were set aside.
    refused: float = 0.0
    aside: float = 0.0


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
    return sorted(found, key=lambda each: each[:6])


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
        float(data["waited"]) / float(data["taken"]) if data.get("taken") else None,
        float(data.get("recovered", 0)),
        float(data.get("lost", 0)),
        float(data.get("refused", 0)),
        float(data.get("aside", 0)),
    )
