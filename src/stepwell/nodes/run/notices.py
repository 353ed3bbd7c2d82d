"""Notices about runs: they wake workers when there is a run to take, and calls that wait for a run."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from stepwell.storage.transport.wakeups import LONGEST_TOPIC, add_listener, has_listeners, wake

if TYPE_CHECKING:
    from stepwell.storage import Storage

__all__ = ["ends_of", "partitions_topic", "run_topic", "wake_waiters", "wake_workers", "workers_topic"]


def workers_topic(index: str) -> str:
    """Return the topic that wakes the workers of one revision of a flow."""
    return _topic("runs", index)


def partitions_topic(flow: str) -> str:
    """Return the topic after which workers look for a partition of a flow whose next run was not started."""
    return _topic("partitions", flow)


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


@contextmanager
def ends_of(storage: Storage, flow_id: str) -> Iterator[Callable[[float], Awaitable[None]]]:
    """Yield a function that waits until a run may have ended, at most for some seconds."""
    ended = asyncio.Event()
    stop_listening = add_listener(storage.wake_key, run_topic(flow_id), ended.set)

    async def wait(seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await ended.wait()
        ended.clear()

    try:
        yield wait
    finally:
        stop_listening()
