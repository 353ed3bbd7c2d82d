"""Durable runs on all backends: the operations of a storage that they use."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell import Limits, StateStorage, Storage
from stepwell.errors import (
    FlowChanged,
    RecordReplaced,
    RunCancelled,
    RunExists,
    RunFinished,
    RunReplaced,
    TooLarge,
    UnknownRun,
)
from stepwell.nodes import BatchNode, Event, Node, NodeFlow, Run, Sleep, StoredRun, Wait, linear, parallel, worker
from stepwell.record import RUNS
from stepwell.testing import Clock
from tests.backends import Backend
from tests.constants import Constants
from tests.nodes.test_cancel import begun
from tests.nodes.test_durable import Boom, Say
from tests.nodes.test_durable_batch import Square, expected
from tests.nodes.test_mail import Gate, HeldPark, finished
from tests.nodes.test_wait import approval, gone, parked
from tests.until import until

pytestmark = pytest.mark.every_backend


@pytest.fixture
async def storage(backend: Backend) -> Storage:
    storage = backend.storage()
    await storage.open()
    return storage


async def test_a_failed_run_is_listed_resumed_and_leaves_nothing(storage: Storage) -> None:
    ran: list[str] = []
    flow = linear(Say(ran, "a"), Say(ran, "b", fails=[Boom("no luck")]), Say(ran, "c"), storage=storage)
    with pytest.raises(UnknownRun):
        await flow.status("r")
    with pytest.raises(Boom):
        await flow.run({"x": 1}, flow_id="r")
    run = await flow.status("r")
    assert (run.status, run.node, run.path, run.errors[0].message) == ("failed", "b", ("a",), "no luck")
    assert await StateStorage(storage).get_state("r") == {"x": 1, "said": ["a"]}
    assert [run.flow_id async for run in flow.runs("failed")] == ["r"]
    with pytest.raises(RunExists):
        await flow.run(flow_id="r")
    await StateStorage(storage).merge_state("r", {"outside": 1})
    assert await flow.resume("r") == {"x": 1, "outside": 1, "said": ["a", "b", "c"]}
    assert ran == ["r/a/1", "r/b/1", "r/b/1", "r/c/1"]
    with pytest.raises(RunFinished):
        await flow.resume("r")
    assert [entry async for entry in storage.scan(RUNS)] == []


async def test_a_finished_run_is_kept_for_the_given_time(backend: Backend, clock: Clock) -> None:
    storage = backend.storage(clock=clock)
    flow = linear(Say([], "a"), storage=storage, keep=True)
    await flow.run(flow_id="kept")
    await flow.run(flow_id="hour", keep=3600)
    assert {run.flow_id async for run in flow.runs(status="finished")} == {"kept", "hour"}
    clock.advance(3601)
    assert {run.flow_id async for run in flow.runs(status="finished")} == {"kept"}
    assert await flow.resume("kept") == {"said": ["a"]}


async def test_a_run_that_was_removed_or_replaced_from_outside_stops(storage: Storage) -> None:
    class Cancels(Node):
        async def exec(self, prep_res: Any) -> None:
            await StateStorage(storage).cleanup("r")

    ran: list[str] = []
    with pytest.raises(RecordReplaced):
        await linear(Cancels, Say(ran, "b")).run(storage=storage, flow_id="r")
    flow = linear(Say(ran, "a", fails=[Boom()]), storage=storage)
    with pytest.raises(Boom):
        await flow.run(flow_id="r")
    await StateStorage(storage).update_state("r", {"x": 1})
    with pytest.raises(RunReplaced):
        await flow.status("r")
    await StateStorage(storage).cleanup("r")
    assert await flow.run(flow_id="r") == {"said": ["a"]}


async def test_only_one_of_several_concurrent_starts_runs_the_run(storage: Storage) -> None:
    class Slow(Say):
        async def exec(self, prep_res: Any) -> str:
            await asyncio.sleep(0.02)
            return await super().exec(prep_res)

    ran: list[str] = []
    flow = linear(Slow(ran, "a"), Slow(ran, "b"), storage=storage)
    calls = [flow.run(flow_id="r", if_exists="resume") for _ in range(3)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes].count(dict) == 1
    assert all(isinstance(outcome, dict | RunFinished) for outcome in outcomes)
    assert ran == ["r/a/1", "r/b/1"]


async def test_branches_resume_each_where_it_was(storage: Storage) -> None:
    class Set(Say):
        def post(self, shared: dict[str, Any], prep_res: Any, exec_res: str) -> None:
            shared[exec_res] = shared.pop("gone", None)

    ran: list[str] = []
    a, b, c = Set(ran, "a"), Set(ran, "b", fails=[Boom()]), Set(ran, "c")
    a >> b
    both = parallel(a, c, name="both", on_error="collect")
    flow = NodeFlow(start=both, storage=storage).connect(both, Say(ran, "end"))
    with pytest.raises(ExceptionGroup):
        await flow.run({"gone": 1}, flow_id="r")
    assert (await flow.status("r")).branches == {"both/0": "both/0/b"}
    assert await flow.resume("r") == {"a": 1, "b": None, "c": 1, "said": ["end"]}
    assert sorted(ran) == ["r/both/0/a/1", "r/both/0/b/1", "r/both/0/b/1", "r/both/1/c/1", "r/end/1"]


async def test_a_large_batch_resumes_where_it_failed(storage: Storage) -> None:
    ran: list[int] = []
    batch = Square(ran, bad={700}, concurrency=5)
    flow = linear(batch, Say([], "end"), storage=storage)
    with pytest.raises(Boom):
        await flow.run({"n": 1000}, flow_id="r")
    assert (await flow.status("r")).progress["Square"].done >= 695
    batch.bad.clear()
    first = len(ran)
    assert await flow.resume("r") == expected(1000)
    assert batch.prepared == [1]
    assert len(ran) - first <= 305


async def test_large_results_are_stored_and_one_that_is_too_large_raises(backend: Backend) -> None:
    storage = backend.storage(limits=Limits(item=200_000))
    say = Say([], "end", fails=[Boom()])

    class Large(BatchNode):
        def prep(self, shared: Any) -> Any:
            return range(12)

        async def exec(self, item: int) -> str:
            return "x" * self.params["size"]

        def post(self, shared: Any, items: Any, results: list[str]) -> None:
            shared["sum"] = sum(map(len, results))

    flow = linear(Large, say, storage=storage)
    with pytest.raises(Boom):
        await flow.run(flow_id="r", params={"size": 150_000})
    assert (await flow.resume("r"))["sum"] == 12 * 150_000
    with pytest.raises(TooLarge):
        await flow.run(params={"size": 200_000})


async def test_a_question_is_answered_once(storage: Storage) -> None:
    ran: list[str] = []
    flow = approval(ran, storage)
    first = await parked(flow.run(flow_id="r"))
    assert [run.flow_id async for run in flow.runs("parked")] == ["r"]
    second = await parked(flow.resume(first.id, "no"))
    assert (await parked(flow.resume(first.id, "yes"))).id == second.id
    outcomes = await asyncio.gather(*(flow.resume(second.id, "yes") for _ in range(5)), return_exceptions=True)
    assert ran.count("answered yes") == 1
    assert [type(outcome) for outcome in outcomes].count(dict) == 1
    assert all(isinstance(outcome, dict | RunFinished) for outcome in outcomes)


async def test_workers_fire_sleeps_and_timeouts_once_each(storage: Storage, constants: Constants) -> None:
    constants(tick=0.02)
    ran: list[str] = []
    sleeps = linear(Sleep(0.05), Say(ran, "woke"), name="sleeps", storage=storage)
    waits = approval(ran, storage, timeout=0.05)
    for number in range(10):
        await parked(sleeps.run(flow_id=f"s{number}"))
    await parked(waits.run(flow_id="w"))
    async with worker([sleeps, waits]), worker([sleeps, waits]):
        await until(lambda: gone(sleeps))
        await until(lambda: gone(waits))
    assert sorted(ran) == sorted(["ask approve", "w/draft/1", "w/late/1", *(f"s{n}/woke/1" for n in range(10))])


async def test_a_run_that_does_not_fit_is_stuck_and_a_later_release_renames_and_migrates_it(storage: Storage) -> None:
    def migrate(run: StoredRun) -> None:
        run.shared["revision"] = run.revision

    ran: list[int] = []
    first = linear(Square(ran, bad={2}), Say([], "end"), name="f", storage=storage)
    with pytest.raises(Boom):
        await first.run({"n": 4}, flow_id="r")
    removed = linear(Say([], "Square"), name="f", storage=storage)
    with pytest.raises(FlowChanged, match="it is half-way in the batch 'Square', which is a node now"):
        await removed.resume("r")
    assert [(run.flow_id, run.reason is None) async for run in removed.runs("stuck")] == [("r", False)]
    assert await storage.due(RUNS, before=4e9, limit=10) == []
    renamed = linear(
        Square(ran, name="squares"),
        Say([], "end"),
        name="f",
        storage=storage,
        renamed={"Square": "squares"},
        revision=2,
        migrate=migrate,
    )
    assert [run.revision async for run in renamed.runs("stuck")] == [1]
    assert await renamed.resume("r") == {**expected(4), "said": ["end"], "revision": 1}
    assert ran == [0, 1, 2, 2, 3]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_answer_around_the_park_commit_is_used(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    flow = linear(parallel(Wait("x"), name="p"), Say([], "end"), storage=storage, keep=True)

    async def answer() -> None:
        await flow.answer("r", 1)

    HeldPark(storage, monkeypatch, **{when: answer})  # type: ignore[arg-type]
    if when == "before":
        assert await flow.run(flow_id="r") == {"x": 1, "said": ["end"]}
    else:
        await parked(flow.run(flow_id="r"))
        async with worker([flow]):
            assert await finished(flow) == {"x": 1, "said": ["end"]}


async def test_runs_are_cancelled_paused_and_signalled_while_they_run_and_wait(storage: Storage) -> None:
    gate = Gate()
    flow = linear(gate, Wait("x", timeout=60, signal="go"), storage=storage)
    running = await begun(flow, gate)
    async with asyncio.timeout(20):
        await flow.cancel("r", "enough")
    with pytest.raises(RunCancelled, match="enough"):
        await running
    assert [run.flow_id async for run in flow.runs("cancelled")] == ["r"]
    gate.opened.set()
    await parked(flow.run(flow_id="s"))
    await flow.pause("s")
    await flow.signal("s", "go", 1)
    assert (await flow.status("s")).status == "paused"
    assert await flow.resume("s") == {"x": 1}


async def test_a_worker_logs_the_message_of_a_failed_run_and_calls_on_failed_with_it(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Run] = []

    async def tell(run: Run) -> None:
        await asyncio.sleep(0)
        told.append(run)

    flow = linear(Say([], "a", fails=[Boom("no\nluck at redis://me:hunter2@host")]), name="f", storage=storage)
    async with worker([flow], on_failed=tell, on_stuck=tell):
        await flow.submit(flow_id="r")
        await until(lambda: told)
    assert [(run.flow_id, run.status, run.errors[0].message) for run in told] == [
        ("r", "failed", "no\nluck at redis://me:hunter2@host")
    ]
    assert "run 'r' failed with Boom: no luck at redis://me:•••@host; see flow.status()" in caplog.text
    assert "hunter2" not in caplog.text


async def test_a_run_that_becomes_stuck_is_logged_and_emits_an_event_and_a_worker_calls_on_stuck(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[Event] = []
    told: list[Run] = []
    await parked(linear(Sleep(0.01, name="nap"), Say([], "a"), name="naps", storage=storage).run(flow_id="r"))
    flow = linear(Say([], "a"), name="naps", storage=storage)
    flow.subscribe(events.append)
    async with worker([flow], on_failed=told.append, on_stuck=told.append):
        await until(lambda: told)
    reason = "it sleeps at 'nap', which is not a node of the flow any more"
    assert [(run.flow_id, run.status, run.reason) for run in told] == [("r", "stuck", reason)]
    assert [(event.kind, event.flow_id, event.duration) for event in events] == [("run.stuck", "r", None)]
    assert isinstance(events[0].error, FlowChanged)
    assert f"run 'r' of flow 'naps' is stuck: {reason}" in caplog.text


async def test_an_error_of_on_failed_is_logged_and_the_worker_goes_on(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    def tell(run: Run) -> None:
        raise ValueError(run.flow_id)

    flow = linear(Say([], "a", fails=[Boom("no luck at redis://me:hunter2@host")]), name="f", storage=storage)
    async with worker([flow], on_failed=tell, concurrency=1):
        await flow.submit(flow_id="r")
        assert await (await flow.submit(flow_id="s")).result(timeout=30) == {"said": ["a"]}
    assert "on_failed= of the worker failed for run 'r'" in caplog.text
    assert "hunter2" not in caplog.text
