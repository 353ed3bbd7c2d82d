"""Answers to runs, whoever holds them: busy, parking, parked, failed, ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stepwell import StateStorage, Storage
from stepwell.errors import FlowChanged, RunFinished, UnknownRun, Unstorable, UsageError
from stepwell.nodes import Node, NodeFlow, RunHandle, Wait, linear, parallel, worker
from stepwell.nodes.run import mail
from stepwell.nodes.run.journal import Journal
from stepwell.nodes.run.table import MAIL
from stepwell.record import RUNS, Version
from stepwell.storage import Apply, Get
from stepwell.testing import Clock
from tests.backends import Backend
from tests.nodes.test_durable import Boom, Say, Watching
from tests.nodes.test_wait import Amount, Sum, parked
from tests.until import until


@pytest.fixture
async def storage(backend: Backend) -> Storage:
    storage = backend.storage()
    await storage.open()
    return storage


class Gate(Node):
    """Runs until it is opened."""

    def __init__(self, name: str = "gate") -> None:
        super().__init__(name=name)
        self.entered = asyncio.Event()
        self.opened = asyncio.Event()

    async def exec(self, prep_res: Any) -> None:
        self.entered.set()
        await self.opened.wait()


class HeldPark:
    """Runs ``before`` and ``after`` around each commit that parks a run."""

    def __init__(
        self,
        storage: Storage,
        monkeypatch: pytest.MonkeyPatch,
        *,
        before: Callable[[], Awaitable[Any]] | None = None,
        after: Callable[[], Awaitable[Any]] | None = None,
    ) -> None:
        self.count = 0
        perform = storage.perform

        async def held(operation: Any) -> Any:
            guarded = isinstance(operation, Apply) and operation.guard is not None and operation.guard.version
            if not guarded or any(name.startswith(MAIL) for name in operation.change.parts):
                return await perform(operation)
            self.count += 1
            if self.count > 1:
                return await perform(operation)
            if before is not None:
                await before()
            result = await perform(operation)
            if after is not None:
                await after()
            return result

        monkeypatch.setattr(storage, "perform", held)


async def waits_of(flow: NodeFlow, flow_id: str = "r") -> dict[str, str]:
    return {wait.node.rpartition("/")[2]: wait.id for wait in (await flow.status(flow_id)).waits}


async def finished(flow: NodeFlow, flow_id: str = "r") -> dict[str, Any]:
    """Wait until a kept run has finished, and return its state."""

    async def has_finished() -> bool:
        return (await flow.status(flow_id)).status == "finished"

    await until(has_finished)
    return await flow.resume(flow_id)


async def parts_of(storage: Storage, flow_id: str = "r") -> set[str]:
    """Return the kinds of mail that a run has."""
    stored = await storage.perform(Get(storage.address(RUNS, flow_id), parts=True))
    return {name.split(":")[1] for name in stored.parts if name.startswith("mail:")}


async def test_a_busy_run_uses_an_answer_when_its_other_branches_have_ended(storage: Storage) -> None:
    gate = Gate()
    events: list[str] = []
    both = parallel(linear(Say([], "a"), Wait("left"), Sum("l")), gate, name="both")
    flow = linear(both, Say([], "end"), storage=storage)
    shared: dict[str, Any] = {}
    running = asyncio.create_task(
        flow.run(shared, flow_id="r", on_event=lambda event: events.append(f"{event.kind} {event.node}"))
    )
    await gate.entered.wait()
    await until(lambda: has_wait(flow, "left"))
    await flow.answer((await waits_of(flow))["left"], 7)
    assert not running.done()
    gate.opened.set()
    assert await running is shared
    assert shared == {"left": 7, "l": 7, "said": ["a", "end"]}
    assert [event for event in events if event.startswith("run.")] == ["run.started flow", "run.finished flow"]


async def has_wait(flow: NodeFlow, name: str) -> bool:
    return name in await waits_of(flow)


def one_wait(storage: Storage, **options: Any) -> NodeFlow:
    """A flow whose question is committed before the run parks."""
    return linear(parallel(Wait("x"), name="p"), Say([], "end"), storage=storage, **options)


async def test_an_answer_before_the_park_commit_keeps_the_run_going(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = one_wait(storage)

    async def answer() -> None:
        await flow.answer((await waits_of(flow))["x"], 1)

    held = HeldPark(storage, monkeypatch, before=answer)
    assert await flow.run(flow_id="r") == {"x": 1, "said": ["end"]}
    assert held.count == 1


async def test_an_answer_right_after_the_park_commit_wakes_a_worker(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = one_wait(storage, keep=True)

    async def answer() -> None:
        await flow.answer((await waits_of(flow))["x"], 1)

    HeldPark(storage, monkeypatch, after=answer)
    await parked(flow.run(flow_id="r"))
    async with worker([flow]):
        assert await finished(flow) == {"x": 1, "said": ["end"]}
    assert await parts_of(storage) == set()


async def test_the_tests_above_detect_a_park_commit_without_a_guard(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = Journal._commit

    async def unguarded(self: Journal, node: str, *, only_version: Version | None = None, **options: Any) -> None:
        if only_version is not None:
            await answer()
        await commit(self, node, **options)

    flow = one_wait(storage)

    async def answer() -> None:
        await flow.answer((await waits_of(flow))["x"], 1)

    monkeypatch.setattr(Journal, "_commit", unguarded)
    # The answer is stored, but its deadline is overwritten: no worker would find the run.
    await parked(flow.run(flow_id="r"))
    assert await storage.due(RUNS) == []


async def test_a_merge_before_the_park_commit_does_not_keep_the_run_from_parking(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = linear(Wait("x"), storage=storage)

    async def merge() -> None:
        await StateStorage(storage).merge_state("r", {"extra": 1})

    held = HeldPark(storage, monkeypatch, before=merge)
    wait = await parked(flow.run(flow_id="r"))
    assert held.count == 2
    assert await flow.answer(wait.id, 2, run=True) == {"extra": 1, "x": 2}


async def test_a_run_that_nobody_writes_to_is_read_only_once(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    flow = linear(Say([], "a"), Wait("x"), storage=storage)
    watching = Watching(storage, monkeypatch)
    await parked(flow.run(flow_id="r"))
    assert [kind.__name__ for kind in watching.kinds()] == ["Claim", "Apply", "Apply", "Apply"]


async def test_a_worker_takes_up_a_parked_run_that_is_answered(storage: Storage) -> None:
    flow = linear(Say([], "a"), Wait("x"), Wait("y"), storage=storage, keep=True)
    first = await parked(flow.run(flow_id="r"))
    async with worker([flow]):
        await flow.answer(first.id, 1)
        await until(lambda: has_wait(flow, "y"))
        # Delivered again, it does not answer the next question.
        await flow.answer(first.id, 2)
        await flow.answer("r", 3)
        assert await finished(flow) == {"said": ["a"], "x": 1, "y": 3}
        await flow.answer(first.id, 4)
    with pytest.raises(RunFinished):
        await flow.answer("r", 4)
    assert await storage.due(RUNS) == []


async def test_the_first_of_two_stored_answers_counts(storage: Storage) -> None:
    flow = linear(Wait("x"), storage=storage, keep=True)
    wait = await parked(flow.run(flow_id="r"))
    await flow.answer(wait.id, "first")
    await flow.answer(wait.id, "second")
    assert await flow.resume(wait.id, "third") == {"x": "first"}
    assert await parts_of(storage) == set()


async def test_two_waits_side_by_side_are_answered_independently(storage: Storage) -> None:
    both = parallel(linear(Wait("left"), Sum("l")), linear(Wait("right"), Sum("r")), name="both")
    flow = NodeFlow(start=both, storage=storage, keep=True)
    await parked(flow.run(flow_id="r"))
    ids = await waits_of(flow)
    async with worker([flow]):
        await flow.answer(ids["right"], 2)

        async def right_is_answered() -> bool:
            return set(await waits_of(flow)) == {"left"} and (await flow.status("r")).status == "parked"

        await until(right_is_answered)
        await flow.answer(ids["left"], 1)
        assert await finished(flow) == {"left": 1, "l": 1, "right": 2, "r": 2}


async def test_answers_to_both_waits_are_used_at_once(storage: Storage) -> None:
    flow = NodeFlow(start=parallel(Wait("left"), Wait("right")), storage=storage)
    await parked(flow.run(flow_id="r"))
    ids = await waits_of(flow)
    await asyncio.gather(flow.answer(ids["right"], 2), flow.answer(ids["left"], 1))
    assert await flow.resume("r") == {"left": 1, "right": 2}


async def test_an_answer_by_the_id_of_a_run_with_two_waits_is_refused(storage: Storage) -> None:
    flow = NodeFlow(start=parallel(Wait("left"), Wait("right")), storage=storage)
    await parked(flow.run(flow_id="r"))
    ids = await waits_of(flow)
    for call in (flow.answer("r", 1), flow.resume("r", 1), RunHandle("r", flow).answer(1)):
        with pytest.raises(UsageError, match="'r' has several open waits; answer one of them by its id") as refused:
            await call
        assert all(repr(each) in str(refused.value) for each in ids.values())
    await parked(flow.resume(ids["left"], 1))
    assert await flow.resume("r", 2) == {"left": 1, "right": 2}


async def test_the_answer_that_a_run_failed_on_is_replaced_while_another_wait_is_open(storage: Storage) -> None:
    flow = NodeFlow(start=parallel(Amount("left"), Wait("right")), storage=storage)
    await parked(flow.run(flow_id="r"))
    ids = await waits_of(flow)
    with pytest.raises(ValueError, match="ten"):
        await flow.resume(ids["left"], "ten")
    await parked(flow.resume("r", "10"))
    assert await flow.resume("r", 2) == {"amounts": [10], "right": 2}


async def test_run_true_continues_here(storage: Storage) -> None:
    flow = linear(Wait("x"), Wait("y"), storage=storage)
    first = await parked(flow.run(flow_id="r"))
    second = await parked(flow.answer(first.id, 1, run=True))
    assert await flow.answer(second.id, 2, run=True) == {"x": 1, "y": 2}
    with pytest.raises(RunFinished):
        await flow.answer(second.id, 3, run=True)


async def test_run_true_waits_for_a_busy_run(storage: Storage) -> None:
    gate = Gate()
    flow = NodeFlow(start=parallel(Wait("x"), gate, name="p"), storage=storage, keep=True)
    running = asyncio.create_task(flow.run(flow_id="r"))
    await gate.entered.wait()
    await until(lambda: has_wait(flow, "x"))
    answering = asyncio.create_task(flow.answer((await waits_of(flow))["x"], 1, run=True))
    await until(lambda: has_mail(storage))
    gate.opened.set()
    assert await answering == await running == {"x": 1}


async def has_mail(storage: Storage) -> bool:
    return bool(await parts_of(storage))


async def test_an_answer_survives_the_runner_that_was_busy(storage: Storage) -> None:
    gate = Gate()
    flow = NodeFlow(start=parallel(Wait("x"), gate, name="p"), storage=storage)
    running = asyncio.create_task(flow.run(flow_id="r"))
    await gate.entered.wait()
    await until(lambda: has_wait(flow, "x"))
    await flow.answer((await waits_of(flow))["x"], 1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    gate.opened.set()
    assert await flow.resume("r") == {"x": 1}


async def test_a_failed_run_keeps_an_answer_and_uses_it_when_it_is_resumed(storage: Storage) -> None:
    gate, broken = Gate(), [Boom()]
    flow = NodeFlow(start=parallel(Wait("x"), linear(gate, Say([], "a", fails=broken)), name="p"), storage=storage)
    running = asyncio.create_task(flow.run(flow_id="r"))
    await gate.entered.wait()
    await until(lambda: has_wait(flow, "x"))
    gate.opened.set()
    with pytest.raises(Boom):
        await running
    await flow.answer((await waits_of(flow))["x"], 1)
    assert (await flow.status("r")).status == "failed"
    assert await flow.resume("r") == {"x": 1, "said": ["a"]}


async def test_an_answer_that_replaces_one_that_post_failed_on(storage: Storage) -> None:
    flow = linear(Amount("x"), storage=storage)
    wait = await parked(flow.run(flow_id="r"))
    with pytest.raises(ValueError, match="ten"):
        await flow.answer(wait.id, "ten", run=True)
    await flow.answer(wait.id, "11")
    await flow.answer((await waits_of(flow))["x"], "10")
    assert await flow.resume("r") == {"amounts": [10]}


async def test_an_answer_is_checked_as_resume_checks_it(storage: Storage) -> None:
    flow = linear(Wait("x"), Wait("y"), storage=storage, name="f")
    with pytest.raises(UnknownRun):
        await flow.answer("r", 1)
    await StateStorage(storage).update_state("state", {})
    with pytest.raises(UnknownRun, match="only a state"):
        await flow.answer("state", 1)
    first = await parked(flow.run(flow_id="r"))
    mark = first.id.rpartition(":")[2]
    for wrong in (f"wait:1:r/x/2:{mark}", f"wait:1:r/y/1:{mark}", f"wait:1:r/z/1:{mark}", f"{first.id}.2"):
        with pytest.raises(UsageError, match="never had the wait"):
            await flow.answer(wrong, 1)
    with pytest.raises(RunFinished, match="belongs to an earlier run"):
        await flow.answer(f"{first.id[: -len(mark)]}12345678", 1)
    with pytest.raises(Unstorable, match=r"after node 'x': the answer\[0\] \(object\)"):
        await flow.answer(first.id, [object()])
    with pytest.raises(FlowChanged, match="it is a run of flow 'f'"):
        await linear(Wait("x"), storage=storage, name="g").answer(first.id, 1)
    assert await parts_of(storage) == set()
    second = await parked(flow.answer(first.id, 1, run=True))
    await flow.answer(first.id, 1)
    assert await parts_of(storage) == set()
    await flow.answer(second.id, 1, run=True)
    with pytest.raises(RunFinished):
        await flow.answer(second.id, 1)


@pytest.fixture
async def timed(backend: Backend, clock: Clock) -> Storage:
    storage = backend.storage(clock=clock)
    await storage.open()
    return storage


@pytest.mark.parametrize("late", [False, True])
async def test_an_answer_counts_if_it_was_sent_before_the_timeout(timed: Storage, clock: Clock, late: bool) -> None:
    ask, end = Wait("x", timeout=60), Say([], "late")
    flow = NodeFlow(start=ask, storage=timed).connect(ask, end, "timeout").connect(ask, Say([], "in time"))
    wait = await parked(flow.run(flow_id="r"))
    clock.advance(61 if late else 59)
    await flow.answer(wait.id, 1)
    clock.advance(10)
    # No worker was up meanwhile.
    assert await flow.resume("r") == ({"said": ["late"]} if late else {"x": 1, "said": ["in time"]})


async def test_the_time_of_an_answer_is_that_of_the_storage(storage: Storage) -> None:
    flow = linear(Wait("x", timeout=60), storage=storage)
    wait = await parked(flow.run(flow_id="r"))
    await flow.answer(wait.id, 1)
    assert await flow.resume("r") == {"x": 1}


async def test_mail_that_answers_nothing_does_not_wake_workers_again(timed: Storage, clock: Clock) -> None:
    flow = linear(Wait("x", timeout=60), storage=timed)
    wait = await parked(flow.run(flow_id="r"))
    address = timed.address(RUNS, "r")
    before = [due.deadline for due in await timed.due(RUNS, before=clock() + 100)]

    async def message(place: Any, table: Any) -> dict[str, Any]:
        return {"wait": "wait:1:r/other/1:12345678", "value": 1, "at": clock()}

    assert await mail.send(timed, "r", "answer", message)
    assert [due.address for due in await timed.due(RUNS)] == [address]
    assert (await parked(flow.resume("r"))).id == wait.id
    assert [due.deadline for due in await timed.due(RUNS, before=clock() + 100)] == pytest.approx(before, abs=1)
    assert await parts_of(timed) == set()


@pytest.mark.parametrize("keep", [True, False])
async def test_a_second_answer_while_the_run_finishes_is_ignored(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    flow = linear(Wait("x"), gate := Gate(), storage=storage, keep=keep)
    wait = await parked(flow.run(flow_id="r"))
    running = asyncio.create_task(flow.resume(wait.id, 1))
    await gate.entered.wait()
    perform = storage.perform

    async def finishing(operation: Any) -> Any:
        if isinstance(operation, Get) and operation.parts and not gate.opened.is_set():
            gate.opened.set()
            await asyncio.wait([running])
        return await perform(operation)

    monkeypatch.setattr(storage, "perform", finishing)
    await flow.answer(wait.id, 2)
    assert await running == {"x": 1}
