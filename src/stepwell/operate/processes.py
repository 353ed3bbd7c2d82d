"""The processes that run bots and workers on a storage, and what they have done in the last hour."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any, Final, NamedTuple

from stepwell import Storage
from stepwell.engine import PROCESSES, Entry
from stepwell.errors import StoredDataError

__all__ = ["LastHour", "Minute", "ProcessView", "StoppedProcess", "last_hour", "processes"]

#: The flow of the records with counts by minute, and how many minutes of them are shown.
HISTORY: Final = "history"
MINUTES: Final = 60
#: Seconds since its last write after which a process has died.
DIED: Final = 60.0


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
    #: Of a worker: the most runs at once, and the limits of its flows by name.
    concurrency: int | None = None
    limits: dict[str, dict[str, Any]] = {}  # noqa: RUF012 it is never changed


class Minute(NamedTuple):
    """What all processes of a kind have done in one minute."""

    #: When it began.
    at: float
    done: float
    failed: float
    #: The mean seconds that an update or a run took; ``None`` without any.
    took: float | None
    #: The mean seconds that a run has waited in its queue.
    wait: float | None


class StoppedProcess(NamedTuple):
    """A process that has written until some time within the last hour."""

    kind: str
    names: list[str]
    host: str
    pid: int
    seen_at: float
    #: Whether it was stopped. Otherwise it has died, or cannot reach the storage.
    ended: bool


class LastHour(NamedTuple):
    """The last hour, as the processes have written it. It costs no write of a page that shows it."""

    #: By kind: ``bot`` or ``worker``.
    minutes: dict[str, list[Minute]]
    #: The ones that do not run any more, the last one first.
    stopped: list[StoppedProcess]


async def processes(storage: Storage, *, limit: int) -> list[ProcessView]:
    """Return up to ``limit`` processes, sorted by kind and names."""
    found: list[ProcessView] = []
    await storage.ensure_open()
    async for entry in storage.scan(PROCESSES):
        try:
            kind, data = entry.place.flow, entry.state.data
            if kind == HISTORY:
                continue
            found.append(_view(str(kind), data, entry.written_at))
        except (StoredDataError, LookupError, TypeError, ValueError):
            # It was written by another release, and expires soon.
            continue
        if len(found) == limit:
            break
    return sorted(found, key=lambda each: each[:6])


async def last_hour(storage: Storage, *, limit: int) -> LastHour:
    """Return what up to ``limit`` processes have done in the last hour, and which of them have stopped."""
    now = (storage.clock or time.time)()
    first = int(now // 60) - MINUTES
    sums: dict[tuple[str, int], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    running: set[str] = set()
    stopped: list[tuple[str, StoppedProcess]] = []
    await storage.ensure_open()
    looked = 0
    async for entry in storage.scan(PROCESSES):
        try:
            if entry.place.flow != HISTORY:
                running.add(entry.address.key)
                continue
            data = entry.state.data
            stopped.append((data["presence"], _stopped(entry, data)))
            for at, *counts in data["minutes"]:
                if at > first:
                    for name, count in zip(data["columns"], counts, strict=False):
                        sums[data["kind"], int(at)][name] += count
        except (StoredDataError, LookupError, TypeError, ValueError):
            # It was written by another release, and expires soon.
            continue
        looked += 1
        if looked == limit:
            break
    minutes: dict[str, list[Minute]] = {}
    for kind, at in sorted(sums):
        minutes.setdefault(kind, []).append(_minute(at * 60.0, sums[kind, at]))
    gone = [each for presence, each in stopped if each.ended or (presence not in running and each.seen_at < now - DIED)]
    return LastHour(minutes, sorted(gone, key=lambda each: -each.seen_at))


def _stopped(entry: Entry, data: dict[str, Any]) -> StoppedProcess:
    names = [str(name) for name in data["of"]]
    return StoppedProcess(
        str(data["kind"]), names, str(data["host"]), int(data["pid"]), entry.written_at, bool(data["ended"])
    )


def _minute(at: float, counts: dict[str, float]) -> Minute:
    done, taken = counts["done"], counts["taken"]
    took = counts["took"] / done if done else None
    return Minute(at, done, counts["failed"], took, counts["waited"] / taken if taken else None)


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
        data.get("concurrency"),
        dict(data.get("limits", {})),
    )
