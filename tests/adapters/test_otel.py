"""Spans and metrics, read by OpenTelemetry's own SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from stepwell import MemoryStorage, SQLiteStorage, Storage
from stepwell.adapters.otel import instrument
from stepwell.errors import Parked, StorageClosed
from stepwell.fsm import FSM, Flow, Router, state, text
from stepwell.nodes import BatchNode, Node, Wait, linear, step, worker
from stepwell.testing import Chat, Clock
from stepwell.turns import Turn, Turns
from tests.constants import Constants
from tests.until import until

SECRET = "a text of the user"


class Telemetry:
    """What was exported."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])

    @property
    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self.exporter.get_finished_spans()}

    def metrics(self) -> dict[str, list[Any]]:
        data = self.reader.get_metrics_data()
        assert data is not None
        scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics]
        return {metric.name: list(metric.data.data_points) for scope in scopes for metric in scope.metrics}


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    telemetry = Telemetry()
    stop = instrument(tracer_provider=telemetry.tracers, meter_provider=telemetry.meters)
    yield telemetry
    stop()
    assert Storage.batch_observers == []


class Ticket(Flow, name="ticket"):
    new = state(to=[], timeout=60)
    default_state = new


def parent_of(span: ReadableSpan, parent: ReadableSpan) -> bool:
    return span.parent is not None and span.parent.span_id == parent.get_span_context().span_id


async def test_an_update_a_duplicate_an_error_and_a_timer(telemetry: Telemetry) -> None:
    def make(storage: Storage) -> Router:
        router = Router(FSM("desk", storage=storage, flows=[Ticket]))

        @router.on(text("fail"))
        async def fail(ctx: Any) -> None:
            raise ValueError(SECRET)

        @router.on(text())
        async def begin(ctx: Any) -> None:
            ctx.start_flow(Ticket)
            ctx.update_data(note=ctx.text)
            with telemetry.tracers.get_tracer("mine").start_as_current_span("model call"):
                await asyncio.sleep(0)

        return router

    chat = Chat(make, clock=Clock())
    await chat.send(SECRET)
    spans = telemetry.spans
    update, handler = spans["update message"], spans["handler"]
    assert parent_of(handler, update)
    assert parent_of(spans["model call"], handler)
    assert update.parent is None
    assert dict(update.attributes or {}) == {"stepwell.bot": "desk", "stepwell.update.kind": "message"}
    assert [event.name for event in update.events] == ["state entered"]
    assert not trace.get_current_span().get_span_context().is_valid

    await chat.redeliver()
    assert (telemetry.spans["update message"].attributes or {})["stepwell.duplicate"] is True
    with pytest.raises(ValueError, match=SECRET):
        await chat.send("fail")
    failed = telemetry.spans["update message"]
    assert (failed.attributes or {})["error.type"] == "ValueError"
    assert failed.status.status_code is trace.StatusCode.ERROR
    await chat.advance(90)

    metrics = telemetry.metrics()
    assert [point.value for point in metrics["stepwell.updates"]] == [3]
    assert [point.value for point in metrics["stepwell.duplicates"]] == [1]
    (errors,) = metrics["stepwell.errors"]
    assert (errors.value, errors.attributes) == (1, {"stepwell.bot": "desk", "error.type": "ValueError"})
    (late,) = metrics["stepwell.timer.late"]
    assert late.sum == pytest.approx(30, abs=1)
    assert [point.count for point in metrics["stepwell.update.duration"]] == [3]
    assert [point.count for point in metrics["stepwell.claim.wait"]] == [2]
    for span in telemetry.exporter.get_finished_spans():
        assert SECRET not in span.to_json()


async def test_attempts_of_an_update_are_counted_apart_from_its_failure(
    telemetry: Telemetry, constants: Constants
) -> None:
    constants(router_pause=0.001)
    router = Router(FSM("desk", storage=MemoryStorage(), flows=[]))
    raised = []

    @router.on(text(), attempts=2)
    async def flaky(ctx: Any) -> None:
        if ctx.text == "fail" or not raised:
            raised.append(ctx.text)
            raise ConnectionError

    chat = Chat(router)
    await chat.send("flaky")
    update = telemetry.spans["update message"]
    assert update.status.status_code is trace.StatusCode.UNSET
    assert (update.attributes or {})["stepwell.retried"] is True
    assert "stepwell.errors" not in telemetry.metrics()
    with pytest.raises(ConnectionError):
        await chat.send("fail")
    metrics = telemetry.metrics()
    assert [point.value for point in metrics["stepwell.errors"]] == [1]
    assert [point.value for point in metrics["stepwell.retries"]] == [2]


async def test_the_span_of_an_update_that_fails_before_its_claim_ends_with_the_error(telemetry: Telemetry) -> None:
    storage = MemoryStorage()
    await storage.open()
    await storage.close()
    fsm = FSM("desk", storage=storage, flows=[Ticket])
    with pytest.raises(StorageClosed):
        await fsm.handle({"update_id": 1, "message": {"chat": {"id": 1}, "from": {"id": 1}}}, lambda ctx: None)
    update = telemetry.spans["update message"]
    assert (update.attributes or {})["error.type"] == "StorageClosed"
    assert not trace.get_current_span().get_span_context().is_valid
    assert [point.value for point in telemetry.metrics()["stepwell.errors"]] == [1]


async def test_a_run_its_nodes_and_its_batches(telemetry: Telemetry, tmp_path: Any) -> None:
    class Split(Node):
        def exec(self, prepared: Any) -> list[int]:
            with telemetry.tracers.get_tracer("mine").start_as_current_span("split"):
                return [1, 2, 3]

        def post(self, shared: dict[str, Any], prepared: Any, result: list[int]) -> None:
            shared["items"] = result

    class Double(BatchNode):
        tries = 0

        def prep(self, shared: dict[str, Any]) -> list[int]:
            items: list[int] = shared["items"]
            return items

        def exec(self, item: int) -> int:
            if item == 2 and self.tries == 0:
                Double.tries = 1
                raise ConnectionError(SECRET)
            return item * 2

    flow = linear(Split, Double(max_retries=2), name="doubles")
    async with SQLiteStorage(str(tmp_path / "runs.db")) as storage:
        await flow.run({}, storage=storage, flow_id="run-1")
    spans = telemetry.spans
    run = spans["run doubles"]
    assert (run.attributes or {})["stepwell.flow_id"] == "run-1"
    nodes = [span for name, span in spans.items() if name.startswith("node ")]
    assert len(nodes) == 2
    assert all(parent_of(node, run) for node in nodes)
    assert parent_of(spans["split"], next(node for node in nodes if "Split" in node.name or "split" in node.name))
    assert spans["storage batch"].attributes

    metrics = telemetry.metrics()
    (sizes,) = metrics["stepwell.storage.batch.size"]
    assert sizes.sum >= 2
    assert sum(point.value for point in metrics["stepwell.retries"]) == 1
    assert sum(point.value for point in metrics["stepwell.items"]) == 3
    outcomes = {point.attributes["stepwell.outcome"]: point.value for point in metrics["stepwell.runs"]}
    assert outcomes == {"started": 1, "finished": 1}
    for span in telemetry.exporter.get_finished_spans():
        assert SECRET not in span.to_json()


async def test_a_submitted_run_and_its_child_continue_the_trace_of_the_caller(telemetry: Telemetry) -> None:
    storage = MemoryStorage()
    child = linear(Node(name="inner"), name="child", storage=storage)

    class Start(Node):
        async def exec(self, prep_res: Any) -> None:
            await step().child(child, id="one")

    flow = linear(Start(name="start"), name="parent", storage=storage)
    with telemetry.tracers.get_tracer("tests").start_as_current_span("request") as request:
        handle = await flow.submit()
    async with worker([flow, child]):
        await handle.result(timeout=60)
        await until(lambda: "run child" in telemetry.spans)
    spans = telemetry.spans
    assert parent_of(spans["run parent"], request)  # type: ignore[arg-type]
    assert parent_of(spans["run child"], spans["node start"])
    traces = {span.get_span_context().trace_id for name, span in spans.items() if name != "storage batch"}
    assert len(traces) == 1
    (point, *_) = telemetry.metrics()["stepwell.run.wait"]
    assert point.count >= 1
    assert 0 <= point.sum < 60


async def test_a_run_that_has_waited_links_to_its_execution_before(telemetry: Telemetry) -> None:
    flow = linear(Wait("answer"), name="asking", storage=MemoryStorage())
    tracer = telemetry.tracers.get_tracer("tests")
    with tracer.start_as_current_span("request") as request:
        handle = await flow.submit()
    async with worker([flow]):
        await until(handle.status, lambda run: run.status == "parked")
        with tracer.start_as_current_span("answer") as answer:
            assert await flow.answer(handle.id, "yes", run=True) == {"answer": "yes"}
    first, second = [span for span in telemetry.exporter.get_finished_spans() if span.name == "run asking"]
    for span in (first, second):
        assert parent_of(span, request)  # type: ignore[arg-type]
    waits = [span for span in telemetry.exporter.get_finished_spans() if span.name == "node answer"]
    assert parent_of(waits[0], first)
    linked = {link.context.span_id for link in second.links}
    assert linked == {waits[0].get_span_context().span_id, answer.get_span_context().span_id}


async def test_no_span_stays_the_current_one_after_a_run_has_parked(telemetry: Telemetry) -> None:
    flow = linear(Wait("answer"), name="asking", storage=MemoryStorage())
    with pytest.raises(Parked):
        await flow.run({}, flow_id="r")
    assert not trace.get_current_span().get_span_context().is_valid
    assert {"run asking", "node answer"} <= set(telemetry.spans)


async def test_a_turn_has_a_span_with_links_to_its_messages(telemetry: Telemetry) -> None:
    def make(storage: Storage) -> Turns:
        turns = Turns("desk", storage=storage)

        @turns.handler
        async def answer(turn: Turn) -> None:
            with telemetry.tracers.get_tracer("mine").start_as_current_span("model call"):
                if turn.text == "fail":
                    raise ValueError(SECRET)
                turn.answer(SECRET)

        return turns

    async with Chat(make) as chat:
        await chat.send(SECRET)
        await chat.send(SECRET)
        assert await chat.advance(1) == [SECRET]
        await chat.redeliver()
        turn = telemetry.spans["turn"]
        assert parent_of(telemetry.spans["model call"], turn)
        attributes = dict(turn.attributes or {})
        assert len(str(attributes.pop("stepwell.turn"))) == 16
        assert attributes == {
            "stepwell.bot": "desk", "stepwell.attempt": 1, "stepwell.messages": 2, "stepwell.outcome": "answered",
        }  # fmt: skip
        updates = [each for each in telemetry.exporter.get_finished_spans() if each.name.startswith("update")]
        linked = [link.context.trace_id for link in turn.links]
        assert linked == [each.get_span_context().trace_id for each in updates[:2]]
        await chat.ask("fail")
        failed = telemetry.spans["turn"]
        assert failed.status.status_code is trace.StatusCode.ERROR
    metrics = telemetry.metrics()
    counted = {point.attributes["stepwell.outcome"]: point.value for point in metrics["stepwell.turns"]}
    assert counted == {"started": 2, "answered": 1, "failed": 1}
    messages = {point.attributes["stepwell.outcome"]: point.value for point in metrics["stepwell.messages"]}
    assert messages == {"taken": 3, "known": 1}
    (waits,) = metrics["stepwell.turn.wait"]
    assert (waits.count, waits.max) == (2, pytest.approx(5.0))
    assert sum(point.count for point in metrics["stepwell.turn.duration"]) == 2
    (sizes,) = metrics["stepwell.turn.messages"]
    assert (sizes.min, sizes.max) == (1, 2)
    assert SECRET not in "".join(
        each.to_json() for each in telemetry.exporter.get_finished_spans() if each.name == "turn"
    )
