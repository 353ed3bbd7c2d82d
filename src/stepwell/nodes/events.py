"""Events of runs, and their subscribers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepwell._secrets import quoted
from stepwell.errors import Parked
from stepwell.nodes.graph.shape import FlowGraph
from stepwell.options import check_function, check_not_async

if TYPE_CHECKING:
    from stepwell.nodes.walk.execution import Cursor, Emit, EventKind

__all__ = ["Event", "Subscriber", "add_subscriber", "carry_trace", "current_trace", "emitter", "subscribe"]

logger: logging.Logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event of a run, a node or an item.

    Example::

        def show(event: Event) -> None:
            print(event.kind, event.node)

        await linear(Read, CountWords).run({"text": "a b c"}, on_event=show)
    """

    kind: EventKind
    #: The time in seconds since 1970.
    at: float
    #: The name of the outermost flow.
    flow: str
    flow_id: str
    #: The node's path, as in ``step().node``; for a run the flow's name.
    node: str
    visit: int
    #: The item's index in its batch.
    item: int | None
    attempt: int
    #: The error of a failed run, node, item or attempt.
    error: BaseException | None = None
    #: How many items of the batch are done (of ``node.progress``).
    done: int | None = None
    #: The number of items of the batch, if it is known.
    total: int | None = None
    #: Seconds since the node or the run started in this process (of events that end a node or run).
    duration: float | None = None
    #: The node, the question and the deadline of the wait (of ``run.parked``).
    parked: Parked | None = None
    #: The nodes and edges of the flow (of ``run.started``).
    graph: FlowGraph | None = None
    #: The seconds that a submitted run has waited in its queue (of its first ``run.started``).
    waited: float | None = None
    #: How often the runner of the run has died since its last completed node (of ``run.started``).
    recoveries: int = 0
    #: The W3C ``traceparent`` of the call that has submitted or started the run, and that of the run before it parked
    #: or its runner stopped (of ``run.started`` of a stored run, if ``stepwell.adapters.otel`` was in use then).
    trace: str | None = None
    link: str | None = None


Subscriber = Callable[[Event], object]

_subscribers: list[Subscriber] = []
#: Returns the ``traceparent`` of the current span.
_tracers: list[Callable[[], str | None]] = []


def carry_trace(tracer: Callable[[], str | None]) -> Callable[[], None]:
    """Store with each new run what ``tracer()`` returns, for :attr:`Event.trace`. Return a function that ends it.

    Example::

        from stepwell.nodes.engine import carry_trace

        end = carry_trace(lambda: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
        await flow.submit({}, flow_id="order-42")
        end()
    """
    _tracers.append(tracer)
    return lambda: _tracers.remove(tracer)


def current_trace() -> str | None:
    """Return the current trace context, or ``None`` if there is none."""
    return _tracers[-1]() if _tracers else None


def subscribe(subscriber: Subscriber) -> Callable[[], None]:
    """Call ``subscriber(event)`` for every run of the process, and return a function that ends the subscription.

    Subscribers are called in the thread of the run, in the order of the events, and must be quick. If one raises, the
    error is logged and the run continues. Runs that have already started do not call it.

    Example::

        from stepwell.nodes import subscribe

        end = subscribe(lambda event: print(event.flow, event.kind, event.node))
        await linear(Read, CountWords).run({"text": "a b c"})
        end()
    """
    return add_subscriber(_subscribers, subscriber)


def add_subscriber(subscribers: list[Subscriber], subscriber: Subscriber) -> Callable[[], None]:
    """Add a subscriber to a list, and return a function that removes it."""
    subscribers.append(_checked(subscriber))

    def unsubscribe() -> None:
        if subscriber in subscribers:
            subscribers.remove(subscriber)

    return unsubscribe


def emitter(flow: str, extra: Subscriber | None = None, own: Sequence[Subscriber] = ()) -> Emit | None:
    """Return the function that emits the events of a run, or ``None`` if there are no subscribers."""
    if extra is None and not own and not _subscribers:
        return None
    subscribers = (*_subscribers, *own) if extra is None else (*_subscribers, *own, _checked(extra))
    failed: set[int] = set()

    def emit(kind: EventKind, cursor: Cursor, *, began: float | None = None, **fields: Any) -> float:
        now = time.perf_counter()
        event = Event(
            kind=kind,
            at=time.time(),
            flow=flow,
            flow_id=cursor.run.flow_id,
            node=cursor.node,
            visit=cursor.visit,
            item=cursor.item,
            attempt=cursor.attempt,
            duration=None if began is None else now - began,
            graph=cursor.run.program.graph if kind == "run.started" else None,
            **fields,
        )
        for subscriber in subscribers:
            try:
                subscriber(event)
            except Exception as failure:  # noqa: BLE001 - a subscriber must not change the run
                if id(subscriber) not in failed:
                    # Logged once, because a batch has thousands of events.
                    failed.add(id(subscriber))
                    name = type(failure).__name__
                    logger.warning(
                        "subscriber %s failed on %s with %s; logged once per run", quoted(subscriber), kind, name
                    )
        return now

    return emit


def _checked(subscriber: Subscriber) -> Subscriber:
    check_function(subscriber, "a subscriber must be a function that takes the event, not {}")
    check_not_async(subscriber, "{} is an async def, which is not supported; put events in a queue from a def")
    return subscriber
