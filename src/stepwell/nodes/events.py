"""Events: what a run tells those who watch it."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepwell.errors import InvalidOption

if TYPE_CHECKING:
    from stepwell.nodes.engine.execution import Emit
    from stepwell.nodes.engine.position import Cursor

__all__ = ["Event", "Subscriber", "emitter", "subscribe"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened in a run.

    Kinds: ``run.started run.finished run.failed run.parked``, ``node.started node.retried node.progress node.finished
    node.failed``, ``item.started item.retried item.finished item.failed``.
    """

    kind: str
    #: When, in seconds since the epoch.
    at: float
    #: The name of the outermost flow.
    flow: str
    flow_id: str
    #: The node's path, as in ``step().node``; for a run the flow's name.
    node: str
    visit: int
    #: The item's place in its batch.
    item: int | None
    attempt: int
    #: Why it failed, or why it is tried again.
    error: BaseException | None = None
    #: How many items of the batch are done (of ``node.progress``).
    done: int | None = None
    #: How many items the batch has, where that is known.
    total: int | None = None


Subscriber = Callable[[Event], object]


_subscribers: list[Subscriber] = []


def subscribe(subscriber: Subscriber) -> Callable[[], None]:
    """Call ``subscriber(event)`` for every run of the process; what is returned ends that.

    Subscribers are called on the run's own thread, in the order of the events, and must be quick.
    One that raises is logged and harms no run. Runs that have already started are not told.
    """
    _checked(subscriber)
    _subscribers.append(subscriber)

    def unsubscribe() -> None:
        if subscriber in _subscribers:
            _subscribers.remove(subscriber)

    return unsubscribe


def emitter(flow: str, extra: Subscriber | None) -> Emit | None:
    """How a run tells its events, or ``None`` when nobody listens: then they cost nothing."""
    if extra is None and not _subscribers:
        return None
    subscribers = (*_subscribers, _checked(extra)) if extra is not None else tuple(_subscribers)
    failed: set[int] = set()

    def emit(
        kind: str,
        cursor: Cursor,
        *,
        error: BaseException | None = None,
        done: int | None = None,
        total: int | None = None,
    ) -> None:
        event = Event(
            kind=kind,
            at=time.time(),
            flow=flow,
            flow_id=cursor.run.flow_id,
            node=cursor.node,
            visit=cursor.visit,
            item=cursor.item,
            attempt=cursor.attempt,
            error=error,
            done=done,
            total=total,
        )
        for subscriber in subscribers:
            try:
                subscriber(event)
            except Exception as failure:  # noqa: BLE001 - watching must not change what is watched
                if id(subscriber) not in failed:
                    # Once: a batch has thousands of events.
                    failed.add(id(subscriber))
                    name = type(failure).__name__
                    logger.warning("subscriber %r failed on %s with %s; said once a run", subscriber, kind, name)

    return emit


def _checked(subscriber: Subscriber) -> Subscriber:
    if not callable(subscriber):
        raise InvalidOption(f"a subscriber is a function of the event, not {subscriber!r}")
    if any(map(inspect.iscoroutinefunction, (subscriber, type(subscriber).__call__))):
        raise InvalidOption(f"{subscriber!r} is an async def that nobody would await; let a def put events in a queue")
    return subscriber
