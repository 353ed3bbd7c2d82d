"""OpenTelemetry: spans and metrics of updates, turns, runs and storages. Needs ``stepwell[otel]``.

No span or metric has contents: no keys, texts, data or error messages; only names, kinds, times and counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from stepwell import fsm, nodes, turns
from stepwell.engine import RunBatch, observe_batches, require
from stepwell.errors import LeaseLost
from stepwell.nodes.engine import carry_trace

if TYPE_CHECKING:
    from contextvars import Token

    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, SpanContext, TracerProvider

    from stepwell import Storage
    from stepwell.engine import Batch, Result

otel_context: Any = require("opentelemetry.context", "otel", distribution="opentelemetry-api", minimum="1.25")
otel_metrics: Any = require("opentelemetry.metrics", "otel")
otel_trace: Any = require("opentelemetry.trace", "otel")
otel_propagation: Any = require("opentelemetry.trace.propagation.tracecontext", "otel")

__all__ = ["instrument"]

#: The most messages whose spans are remembered until their turn starts.
MOST_TAKEN = 10_000


def instrument(
    *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
) -> Callable[[], None]:
    """Report all machines, turns, flows and storages of this process to OpenTelemetry. Return a function that ends it.

    Call it at start-up: the batches of a storage are reported if it opens afterwards. The providers are those of the
    process by default.

    Example::

        from stepwell.adapters.otel import instrument

        end = instrument()
        await linear(Read, CountWords).run({"text": "a b c"})
        end()
    """
    import stepwell

    spans = OpenSpans(otel_trace.get_tracer("stepwell", stepwell.__version__, tracer_provider=tracer_provider))
    meter = otel_metrics.get_meter("stepwell", stepwell.__version__, meter_provider=meter_provider)
    updates, runs, batches = UpdateTelemetry(spans, meter), RunTelemetry(spans, meter), BatchTelemetry(spans, meter)
    chats = TurnTelemetry(spans, meter)
    ends = [
        fsm.subscribe(updates),
        nodes.subscribe(runs),
        turns.subscribe(chats),
        observe_batches(batches),
        carry_trace(_traceparent),
    ]

    def stop() -> None:
        for end in ends:
            end()

    return stop


def _traceparent() -> str | None:
    """Return the context of the current span as text."""
    carrier: dict[str, str] = {}
    otel_propagation.TraceContextTextMapPropagator().inject(carrier)
    return carrier.get("traceparent")


def _context_of(trace: str | None) -> Context | None:
    """Return the context that a run has stored."""
    if trace is None:
        return None
    context: Context = otel_propagation.TraceContextTextMapPropagator().extract(
        {"traceparent": trace}, otel_context.Context()
    )
    return context


class OpenSpan(NamedTuple):
    """A span that has not ended."""

    span: Span
    #: The context with the span, for its children.
    context: Context
    #: Restores the context from before it.
    token: Token[Any]
    #: What the open spans inside it are about, and what the span around it is about.
    inner: set[object]
    outer: object


class OpenSpans:
    """The open spans, by what they are about."""

    def __init__(self, tracer: Any) -> None:
        self._tracer = tracer
        self._open: dict[object, OpenSpan] = {}

    def start(
        self,
        about: object,
        name: str,
        attributes: dict[str, Any],
        *,
        inside: object = None,
        trace: str | None = None,
        link: str | None = None,
        linked: Sequence[SpanContext] = (),
    ) -> None:
        """Start a span, as the current one, so that spans of the user's code are its children.

        ``trace``: the stored context that it continues, with a link to the present one. ``link``: another one.
        ``linked``: further spans.
        """
        parent = self._open.get(inside)
        around = parent and parent.context
        links = [] if link is None else [otel_trace.get_current_span(_context_of(link)).get_span_context()]
        links += linked
        if trace is not None:
            links.append(otel_trace.get_current_span().get_span_context())
            around = _context_of(trace)
        span = self._tracer.start_span(
            name,
            context=around,
            attributes=attributes,
            links=[otel_trace.Link(each) for each in links if each.is_valid],
        )
        context = otel_trace.set_span_in_context(span, around)
        self._open[about] = OpenSpan(span, context, otel_context.attach(context), set(), inside)
        if parent is not None:
            parent.inner.add(about)

    def add(self, about: object, **attributes: Any) -> None:
        found = self._open.get(about)
        if found is not None:
            found.span.set_attributes(attributes)

    def fail(self, about: object, error: BaseException | None = None) -> None:
        """Mark a span as failed, with the error's class. Its message may have contents."""
        found = self._open.get(about)
        if found is not None:
            if error is not None:
                found.span.set_attribute("error.type", type(error).__name__)
            found.span.set_status(otel_trace.StatusCode.ERROR)

    def end(self, about: object) -> None:
        found = self._open.pop(about, None)
        if found is None:
            return
        # The node at which a run parks has no event of its end.
        for inner in list(found.inner):
            self.end(inner)
        if found.outer in self._open:
            self._open[found.outer].inner.discard(about)
        found.span.end()
        if otel_trace.get_current_span() is found.span:
            # Otherwise the end is in another task than the start, which has a context of its own.
            otel_context.detach(found.token)

    def whole(self, name: str, begun: int, attributes: dict[str, Any], error: BaseException | None) -> None:
        """Report a span that has ended, without a parent."""
        root = otel_context.Context()
        span = self._tracer.start_span(
            name, context=root, kind=otel_trace.SpanKind.CLIENT, attributes=attributes, start_time=begun
        )
        if error is not None:
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(otel_trace.StatusCode.ERROR)
        span.end()


class UpdateTelemetry:
    """Reports the updates and timers of conversations."""

    def __init__(self, spans: OpenSpans, meter: Any) -> None:
        self._spans = spans
        self._received = meter.create_counter("stepwell.updates", "{update}", "Received updates")
        self._duplicates = meter.create_counter("stepwell.duplicates", "{update}", "Updates handled before")
        self._errors = meter.create_counter("stepwell.errors", "{error}", "Updates and timers that failed")
        self._retries = meter.create_counter("stepwell.retries", "{attempt}", "Attempts that failed and were retried")
        self._refused = meter.create_counter("stepwell.answers.refused", "{call}", "Calls that were refused")
        self._aside = meter.create_counter("stepwell.updates.aside", "{update}", "Updates that were set aside")
        self._lost = meter.create_counter("stepwell.leases.lost", "{lease}", "Leases lost to another worker")
        self._duration = meter.create_histogram("stepwell.update.duration", "s", "From receipt to commit")
        self._waits = meter.create_histogram("stepwell.claim.wait", "s", "Wait for the claim of a busy record")
        self._late = meter.create_histogram("stepwell.timer.late", "s", "Delay of timers")
        self._failed: set[int] = set()

    def __call__(self, event: fsm.FSMEvent) -> None:
        bot = {"stepwell.bot": event.bot}
        match event:
            case fsm.UpdateReceived(update=update, attempt=attempt):
                if attempt == 1:
                    self._received.add(1, bot)
                kind = update.kind or "update"
                self._spans.start(("update", id(update)), f"update {kind}", bot | {"stepwell.update.kind": kind})
            case fsm.HandlerStarted(update=update, waited=waited):
                self._waits.record(waited, bot)
                if update.raw is not None:
                    self._spans.start(("handler", id(update)), "handler", bot, inside=("update", id(update)))
            case fsm.HandlerEnded(update=update, error=error):
                if error is not None:
                    self._spans.fail(("handler", id(update)), error)
                self._spans.end(("handler", id(update)))
            case fsm.DuplicateReceived(update=update):
                self._duplicates.add(1, bot)
                self._spans.add(("update", id(update)), **{"stepwell.duplicate": True})
            case fsm.HandlerFailed(update=update, error=error, again=True):
                self._retries.add(1, bot)
                self._lose(error, bot)
                self._spans.add(("update", id(update)), **{"stepwell.retried": True})
            case fsm.HandlerFailed(update=update, error=error):
                # A failed handler is reported again when its conversation ends.
                if id(update) not in self._failed:
                    self._failed.add(id(update))
                    self._count(error, bot)
                self._spans.fail(("update", id(update)), error)
            case fsm.UpdateHandled(update=update, duration=duration):
                self._failed.discard(id(update))
                if update.raw is not None:
                    self._duration.record(duration, bot)
                self._spans.end(("update", id(update)))
            case fsm.StateEntered(flow=flow, state=state) if flow is not None:
                entered = otel_trace.get_current_span()
                entered.add_event("state entered", {"stepwell.flow": flow, "stepwell.state": state or ""})
            case fsm.AnswerRefused(method=method):
                self._refused.add(1, bot | {"stepwell.method": method or ""})
            case fsm.UpdateSetAside():
                self._aside.add(1, bot)
            case fsm.TimerFired(late=late, error=error):
                self._late.record(late, bot)
                if error is not None:
                    self._count(error, bot)

    def _count(self, error: BaseException, bot: dict[str, str]) -> None:
        self._errors.add(1, bot | {"error.type": type(error).__name__})
        self._lose(error, bot)

    def _lose(self, error: BaseException, bot: dict[str, str]) -> None:
        if isinstance(error, LeaseLost):
            self._lost.add(1, bot)


class TurnTelemetry:
    """Reports the messages and turns of conversations with an agent."""

    def __init__(self, spans: OpenSpans, meter: Any) -> None:
        self._spans = spans
        self._messages = meter.create_counter("stepwell.messages", "{message}", "Messages for turns")
        self._turns = meter.create_counter("stepwell.turns", "{turn}", "Turns that started or ended")
        self._attempts = meter.create_counter("stepwell.turn.attempts", "{attempt}", "Attempts after the first ones")
        self._waits = meter.create_histogram("stepwell.turn.wait", "s", "From the first message to the start")
        self._duration = meter.create_histogram("stepwell.turn.duration", "s", "From the start to the stored end")
        self._sizes = meter.create_histogram("stepwell.turn.messages", "{message}", "Messages of a turn")
        self._waiting = meter.create_histogram("stepwell.messages.waiting", "{message}", "Messages that wait")
        #: The spans in which messages were taken, by conversation and update.
        self._taken: dict[object, SpanContext] = {}

    def __call__(self, event: turns.TurnEvent) -> None:
        bot = {"stepwell.bot": event.bot}
        match event:
            case turns.MessageTaken(outcome=outcome, waiting=waiting, update=update):
                self._messages.add(1, bot | {"stepwell.outcome": outcome})
                self._waiting.record(waiting, bot)
                span = otel_trace.get_current_span().get_span_context()
                if outcome == "taken" and span.is_valid:
                    self._taken[event.address, update] = span
                    if len(self._taken) > MOST_TAKEN:
                        # Its turn runs in another process.
                        del self._taken[next(iter(self._taken))]
            case turns.TurnStarted(turn=turn, attempt=attempt, messages=messages, updates=updates, waited=waited):
                about = ("turn", event.address, turn)
                # An earlier attempt that another worker has taken over.
                self._spans.end(about)
                if attempt == 1:
                    self._turns.add(1, bot | {"stepwell.outcome": "started"})
                    self._waits.record(waited, bot)
                else:
                    self._attempts.add(1, bot)
                found = [self._taken.pop((event.address, update), None) for update in updates]
                linked = [each for each in found if each is not None]
                attributes = {"stepwell.turn": turn, "stepwell.attempt": attempt, "stepwell.messages": messages}
                self._spans.start(about, "turn", bot | attributes, linked=linked)
            case turns.TurnEnded(turn=turn, messages=messages, how=how, seconds=seconds):
                about = ("turn", event.address, turn)
                ended = bot | {"stepwell.outcome": how}
                self._turns.add(1, ended)
                self._duration.record(seconds, ended)
                self._sizes.record(messages, bot)
                self._spans.add(about, **{"stepwell.outcome": how})
                if how == "failed":
                    self._spans.fail(about)
                self._spans.end(about)


class RunTelemetry:
    """Reports runs and their nodes."""

    def __init__(self, spans: OpenSpans, meter: Any) -> None:
        self._spans = spans
        self._runs = meter.create_counter("stepwell.runs", "{run}", "Runs that started or ended")
        self._retries = meter.create_counter("stepwell.retries", "{attempt}", "Attempts that failed and were retried")
        self._items = meter.create_counter("stepwell.items", "{item}", "Items of batches that ended")
        self._duration = meter.create_histogram("stepwell.node.duration", "s", "Duration of nodes")
        self._lost = meter.create_counter("stepwell.leases.lost", "{lease}", "Leases lost to another worker")
        self._waited = meter.create_histogram("stepwell.run.wait", "s", "Wait of submitted runs in their queue")
        self._recovered = meter.create_counter("stepwell.runs.recovered", "{run}", "Runs whose runner had died")

    def __call__(self, event: nodes.Event) -> None:
        flow = {"stepwell.flow": event.flow}
        node = flow | {"stepwell.node": event.node}
        run = ("run", event.flow_id)
        about = ("node", event.flow_id, event.node, event.visit)
        subject, _, happened = event.kind.partition(".")
        if happened == "retried":
            self._retries.add(1, node)
        elif subject == "item" and happened != "started":
            self._items.add(1, node | {"stepwell.outcome": happened})
        elif event.kind == "run.started":
            self._runs.add(1, flow | {"stepwell.outcome": happened})
            if event.waited is not None:
                self._waited.record(event.waited, flow)
            if event.recoveries:
                self._recovered.add(1, flow)
            attributes = flow | {"stepwell.flow_id": event.flow_id}
            self._spans.start(run, f"run {event.flow}", attributes, trace=event.trace, link=event.link)
        elif subject == "run":
            self._runs.add(1, flow | {"stepwell.outcome": happened})
            if isinstance(event.error, LeaseLost):
                self._lost.add(1, flow)
            self._end(run, event)
        elif event.kind == "node.started":
            self._spans.start(about, f"node {event.node}", node | {"stepwell.visit": event.visit}, inside=run)
        elif event.kind in ("node.finished", "node.failed"):
            self._duration.record(event.duration or 0.0, node | {"stepwell.outcome": happened})
            self._end(about, event)

    def _end(self, about: object, event: nodes.Event) -> None:
        if event.error is not None:
            self._spans.fail(about, event.error)
        self._spans.end(about)


class BatchTelemetry:
    """Reports the batches of storages."""

    def __init__(self, spans: OpenSpans, meter: Any) -> None:
        self._spans = spans
        self._size = meter.create_histogram("stepwell.storage.batch.size", "{operation}", "Operations of a batch")
        self._duration = meter.create_histogram("stepwell.storage.batch.duration", "s", "Duration of batches")

    def __call__(self, storage: Storage, run: RunBatch) -> RunBatch:
        name = {"stepwell.storage": type(storage).__name__}

        async def observed(batch: Batch) -> list[Result]:
            error: BaseException | None = None
            begun, clock = time.time_ns(), time.perf_counter()
            try:
                return await run(batch)
            except BaseException as failure:
                error = failure
                raise
            finally:
                outcome = name if error is None else name | {"error.type": type(error).__name__}
                self._size.record(len(batch), outcome)
                self._duration.record(time.perf_counter() - clock, outcome)
                self._spans.whole("storage batch", begun, name | {"stepwell.operations": len(batch)}, error)

        return observed
