"""Notices about runs: they wake workers when there is a run to take, and calls that wait for a run."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress
from typing import TYPE_CHECKING

from stepwell.errors import StorageError
from stepwell.storage.wakeups import LONGEST_TOPIC, has_listeners, wake

if TYPE_CHECKING:
    from stepwell.storage import Storage

__all__ = ["run_topic", "wake_waiters", "wake_workers", "workers_topic"]

#: The notices that are being sent, by storage and topic, and whether one more is needed afterwards.
_sending: dict[tuple[Storage, str], bool] = {}
_tasks: set[asyncio.Task[None]] = set()


def workers_topic(index: str) -> str:
    """Return the topic that wakes the workers of one revision of a flow."""
    return _topic("runs", index)


def run_topic(flow_id: str) -> str:
    """Return the topic of one run."""
    return _topic("run", flow_id)


def _topic(kind: str, name: str) -> str:
    topic = f"{kind}:{name}"
    if len(topic.encode("utf-8", "replace")) <= LONGEST_TOPIC:
        return topic
    return f"{kind}:{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()}"


def wake_workers(storage: Storage, index: str) -> None:
    """Tell the workers of a flow that there is a run to take. Best effort and in the background: workers poll too."""
    topic = workers_topic(index)
    known = (storage, topic)
    if known in _sending:
        # The notice that is being sent may be older than this run.
        _sending[known] = True
        return
    _sending[known] = False
    task = asyncio.get_running_loop().create_task(_notify(storage, topic), name="stepwell-notify")
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


async def _notify(storage: Storage, topic: str) -> None:
    known = (storage, topic)
    try:
        while True:
            _sending[known] = False
            with suppress(StorageError):
                await storage.notify(topic)
            if not _sending[known]:
                return
    finally:
        del _sending[known]


def wake_waiters(storage: Storage, flow_id: str) -> None:
    """Wake the calls of this process that wait for a run."""
    topic = run_topic(flow_id)
    if has_listeners(storage.wake_key, topic):
        wake(storage.wake_key, topic)
