"""Events, the progress bar, logging and diagrams."""

from __future__ import annotations

import asyncio
import io
import logging

import pytest

from stepwell import MemoryStorage
from stepwell.errors import InvalidOption, Parked, StorageError
from stepwell.nodes import (
    END,
    BatchNode,
    FlowEdge,
    Node,
    NodeFlow,
    ProgressBar,
    Wait,
    linear,
    parallel,
    step,
    subscribe,
)
from tests.nodes.flows import A, B, C


class Flaky(Node):
    def exec(self, prep_res):
        if step().attempt == 1:
            raise ValueError("secret")


class Items(BatchNode):
    def prep(self, shared):
        return shared["items"]

    async def exec(self, item):
        await asyncio.sleep(0)
        return 1 // item

    def post(self, shared, prep_res, exec_res):
        pass


class SyncItems(Items):
    def exec(self, item):
        return 1 // item


def told(events):
    return [(event.kind, event.node, event.item) for event in events]


async def test_a_run_emits_events_of_its_nodes():
    events = []
    await linear(A, B, name="words").run({}, flow_id="f", on_event=events.append)
    assert told(events) == [
        ("run.started", "words", None),
        ("node.started", "A", None),
        ("node.finished", "A", None),
        ("node.started", "B", None),
        ("node.finished", "B", None),
        ("run.finished", "words", None),
    ]
    assert {(event.flow, event.flow_id) for event in events} == {("words", "f")}
    assert events == sorted(events, key=lambda event: event.at)


async def test_attempts_and_failures_are_emitted_with_their_errors():
    events = []
    await NodeFlow(start=Flaky(2)).run(on_event=events.append)
    retried = [event for event in events if event.kind == "node.retried"]
    assert [(event.attempt, str(event.error)) for event in retried] == [(1, "secret")]
    events.clear()
    with pytest.raises(ValueError) as caught:
        await linear(Flaky, name="w").run(on_event=events.append)
    assert told(events)[-2:] == [("node.failed", "Flaky", None), ("run.failed", "w", None)]
    assert events[-1].error is caught.value


@pytest.mark.parametrize("kind", [Items, SyncItems])
@pytest.mark.parametrize("concurrency", [1, 2])
async def test_items_and_progress_are_emitted(kind, concurrency):
    events = []
    node = kind(2, concurrency=concurrency, on_error="skip", name="items")
    await NodeFlow(start=node).run({"items": [1, 0]}, on_event=events.append)
    items = sorted((event.item, event.kind) for event in events if event.kind.startswith("item."))
    assert items == [
        (0, "item.finished"),
        (0, "item.started"),
        (1, "item.failed"),
        (1, "item.retried"),
        (1, "item.started"),
    ]
    progress = [(event.done, event.total) for event in events if event.kind == "node.progress"]
    assert progress == [(1, 2), (2, 2)]


async def test_the_total_of_a_generator_is_not_known():
    events = []
    await NodeFlow(start=Items()).run({"items": iter([1])}, on_event=events.append)
    assert [(e.done, e.total) for e in events if e.kind == "node.progress"] == [(1, None)]


def test_a_subscriber_hears_of_every_run_until_it_unsubscribes():
    events = []
    unsubscribe = subscribe(events.append)
    try:
        NodeFlow(start=A).run_sync()
        NodeFlow(start=B).run_sync()
    finally:
        unsubscribe()
    NodeFlow(start=C).run_sync()
    unsubscribe()
    assert [event.node for event in events if event.kind == "node.started"] == ["A", "B"]


def test_a_subscriber_that_fails_harms_no_run(caplog):
    def fails(event):
        raise ValueError("secret")

    assert NodeFlow(start=A).run_sync({}, on_event=fails) == {"trail": ["A"]}
    assert "ValueError" in caplog.text
    assert "secret" not in caplog.text


async def test_a_subscriber_that_fails_each_time_is_named_once_a_run(caplog):
    def fails(event):
        raise ValueError

    await NodeFlow(start=Items()).run({"items": [1] * 100}, on_event=fails)
    assert len(caplog.records) == 1
    NodeFlow(start=A).run_sync({}, on_event=fails)
    assert len(caplog.records) == 2


class Listener:
    async def __call__(self, event):
        """A subscriber must not be an ``async def``."""


async def awaited(event):
    """A subscriber must not be an ``async def``."""


@pytest.mark.parametrize("wrong", [5, awaited, Listener()])
def test_an_invalid_subscriber_raises(wrong):
    with pytest.raises(InvalidOption, match=r"subscriber|async def"):
        NodeFlow(start=A).run_sync({}, on_event=wrong)
    with pytest.raises(InvalidOption, match=r"subscriber|async def"):
        subscribe(wrong)


async def test_logging_names_the_module_and_never_the_data(caplog):
    with caplog.at_level(logging.DEBUG, "stepwell"):
        await NodeFlow(start=Flaky(2)).run({"text": "secret"})
    assert [record.name for record in caplog.records] == ["stepwell.nodes.walk.attempts"]
    assert "attempt 1 of 2 failed with ValueError" in caplog.text
    assert "secret" not in caplog.text


class Terminal(io.StringIO):
    def isatty(self):
        return True


async def test_the_bar_is_drawn_in_a_terminal():
    stream = Terminal()
    node = Items(name="items")
    await NodeFlow(start=node).run({"items": [1, 2, 3, 4]}, on_event=ProgressBar(stream, interval=0))
    frames = stream.getvalue().split("\r")
    assert "█" * 15 + "░" * 15 + "  2/4" in frames[2]
    assert frames[-1].startswith("items  " + "█" * 30 + "  4/4")
    assert frames[-1].endswith("\n")


@pytest.mark.parametrize("columns", [12, 30, 50, 80])
async def test_the_bar_fits_into_its_terminal(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = Terminal()
    node = Items(name="summarise_every_single_page")
    await NodeFlow(start=node).run({"items": [1] * 40}, on_event=ProgressBar(stream, interval=0))
    frames = [frame.removesuffix("\x1b[K").rstrip("\n") for frame in stream.getvalue().split("\r")[1:]]
    # Only the count cannot be shortened.
    shortest = max(len(frame.split("  ", 1)[1]) for frame in frames) + 3 if columns == 12 else 0
    assert max(map(len, frames)) <= max(columns - 1, shortest)
    assert all("40" in frame for frame in frames)


async def test_elsewhere_the_bar_is_one_line_at_the_end():
    stream = io.StringIO()
    await linear(A, Items(name="items")).run({"items": iter([1, 1])}, on_event=ProgressBar(stream))
    assert stream.getvalue().startswith("items  2")
    assert stream.getvalue().count("\n") == 1


async def test_the_bar_shows_that_a_batch_failed():
    stream = io.StringIO()
    with pytest.raises(ZeroDivisionError):
        await NodeFlow(start=Items()).run({"items": [1, 0]}, on_event=ProgressBar(stream))
    assert "failed: ZeroDivisionError" in stream.getvalue()


async def test_the_bar_shows_that_a_batch_was_stopped():
    stream, begun = io.StringIO(), asyncio.Event()

    class Slow(BatchNode):
        def prep(self, shared):
            return [0, 3600]

        async def exec(self, seconds):
            await asyncio.sleep(seconds)

    bar = ProgressBar(stream)

    def watch(event):
        bar(event)
        if event.kind == "node.progress" and event.done:
            begun.set()

    run = asyncio.create_task(NodeFlow(start=Slow(concurrency=2)).run({}, on_event=watch))
    await begun.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert stream.getvalue().endswith("  stopped\n")


def test_a_diagram_shows_nodes_actions_flows_and_branches():
    a, b = A(name='say "hi"'), B()
    a - "retry" >> a
    a >> b
    b - "done" >> END
    b >> linear(C, name="inner") >> parallel(A, B)
    assert NodeFlow(start=a).diagram() == (
        "flowchart TD\n"
        "    start1(( )) --> n1\n"
        '    n1["say #quot;hi#quot;"]\n'
        '    n2["B"]\n'
        '    subgraph n3["inner"]\n'
        "        start4(( )) --> n4\n"
        '        n4["C"]\n'
        "    end\n"
        '    subgraph n5["Parallel"]\n'
        "        start6(( )) --> n6\n"
        '        n6["A"]\n'
        "        start7(( )) --> n7\n"
        '        n7["B"]\n'
        "    end\n"
        '    n1 -->|"retry"| n1\n'
        "    n1 --> n2\n"
        '    n2 -->|"done"| end2((END))\n'
        "    n2 --> n3\n"
        "    n3 --> n5\n"
    )


async def test_the_subscriber_of_a_flow_sees_the_runs_of_this_flow_only():
    flow, other = linear(A, name="mine"), linear(B, name="other")
    events = []
    end = flow.subscribe(events.append)
    await flow.run()
    await other.run()
    await linear(flow, name="around").run()
    assert {event.flow for event in events} == {"mine"}
    assert [event.kind for event in events] == ["run.started", "node.started", "node.finished", "run.finished"]
    end()
    end()
    events.clear()
    flow.run_sync()
    assert events == []


async def test_a_failing_subscriber_of_a_flow_is_logged_once_and_the_run_continues(caplog):
    flow = linear(A, B)

    def broken(event):
        raise ValueError("secret")

    flow.subscribe(broken)
    await flow.run()
    assert len(caplog.records) == 1
    assert "secret" not in caplog.text


def test_a_flow_refuses_a_subscriber_that_cannot_be_called():
    with pytest.raises(InvalidOption, match="takes the event"):
        linear(A).subscribe("log")


async def test_events_that_end_something_have_its_duration():
    class Slow(Node):
        async def exec(self, prep_res):
            await asyncio.sleep(0.02)
            if step().node == "fails":
                raise ValueError

    for storage in (None, MemoryStorage()):
        events = []
        with pytest.raises(ValueError):
            await linear(Slow(name="works"), Slow(name="fails")).run(storage=storage, on_event=events.append)
        durations = {(event.kind, event.node): event.duration for event in events}
        assert durations["run.started", "flow"] is durations["node.started", "works"] is None
        assert durations["node.finished", "works"] >= 0.019
        assert durations["node.failed", "fails"] >= 0.019
        assert durations["run.failed", "flow"] >= 0.038


async def test_a_parked_run_emits_its_question_and_deadline_after_the_commit():
    class Ask(Wait):
        def prep(self, shared):
            return "go?"

    storage = MemoryStorage()
    flow = linear(A, Ask("ask", timeout=60), name="asking", storage=storage)
    seen = []

    def watch(event):
        if event.parked is not None:
            # The storage has it by now: another process could answer.
            seen.append((event.kind, event.parked, event.duration))

    flow.subscribe(watch)
    with pytest.raises(Parked) as caught:
        await flow.run(flow_id="f")
    [(kind, parked, duration)] = seen
    assert (kind, parked) == ("run.parked", caught.value)
    assert duration > 0
    assert (parked.node, parked.question) == ("ask", "go?")
    assert parked.deadline == (await flow.status("f")).waits[0].deadline


async def test_a_run_whose_last_commit_fails_has_failed():
    class Failing(MemoryStorage):
        async def perform(self, operation):
            if getattr(operation, "change", None) is not None and operation.change.delete:
                raise StorageError("gone")
            return await super().perform(operation)

    events = []
    with pytest.raises(StorageError):
        await linear(A).run(storage=Failing(), on_event=events.append)
    assert [event.kind for event in events if event.kind.startswith("run.")] == ["run.started", "run.failed"]


async def test_a_run_emits_its_graph_when_it_starts():
    a, b = A(name="a"), NodeFlow(B(name="deep"), name="b")
    a - "more" >> b
    a - "stop" >> END
    a >> b
    events = []
    await NodeFlow(a).run(on_event=events.append)
    graph = events[0].graph
    assert graph.nodes == ("a", "b")
    assert set(graph.edges) == {FlowEdge("a", "more", "b"), FlowEdge("a", "stop", None), FlowEdge("a", "default", "b")}
    assert {event.graph for event in events[1:]} == {None}
