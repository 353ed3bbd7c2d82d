"""Notices about runs: they wake workers when there is a run to take, and calls that wait for a run."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from stepwell.storage.wakeups.local import LONGEST_TOPIC, has_listeners, wake

if TYPE_CHECKING:
    from stepwell.storage import Storage

__all__ = ["run_topic", "wake_waiters", "wake_workers", "workers_topic"]


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
    """Notify the workers of a flow that there is a run to take. Best effort and in the background: workers poll too."""
    storage.notify_soon(workers_topic(index))


def wake_waiters(storage: Storage, flow_id: str) -> None:
    """Wake the calls of this process that wait for a run."""
    topic = run_topic(flow_id)
    if has_listeners(storage.wake_key, topic):
        wake(storage.wake_key, topic)
