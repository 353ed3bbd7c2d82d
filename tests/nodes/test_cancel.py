"""Cancelled runs: parked, running here or elsewhere, failed, with a dead runner; and interrupted calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest

from stepwell import MemoryStorage, StateStorage, Storage
from stepwell.errors import (
    FlowChanged,
    InvalidOption,
    RecordReplaced,
    RunCancelled,
    RunExists,
    RunFinished,
    RunReplaced,
    UnknownRun,
)
from stepwell.nodes import BatchNode, Event, Node, NodeFlow, RunHandle, Sleep, Wait, linear, parallel, step, worker
from stepwell.nodes.run import mail
from stepwell.nodes.run.journal import Journal
from stepwell.record import DAY, RUNS
from stepwell.storage import Apply, Claim, Release
from stepwell.testing import Clock
from tests.backends import Backend
from tests.constants import Constants
from tests.nodes.test_durable import Boom, Say
from tests.nodes.test_mail import Gate, HeldPark, one_wait, parts_of
from tests.nodes.test_wait import parked
from tests.until import until


@pytest.fixture
async def storage(backend: Backend) -> Storage:
    storage = backend.storage()
    await storage.open()
    return storage


async def cancelled(work: Awaitable[Any]) -> RunCancelled:
    with pytest.raises(RunCancelled) as caught:
        await asyncio.wait_for(work, 20)
    return caught.value


async def send_cancel(storage: Storage, reason: str | None = None) -> None:
    """Cancel a run as a process that dies right after its first write."""

    async def message(place: Any, table: Any) -> dict[str, Any]:
        return {"reason": reason}

    await mail.send(storage, "r", "cancel", message)


async def begun(flow: NodeFlow, gate: Gate, **options: Any) -> asyncio.Task[dict[str, Any]]:
    running = asyncio.create_task(flow.run(flow_id="r", **options))
    async with asyncio.timeout(20):
        await gate.entered.wait()
    return running


async def test_a_cancelled_run_is_kept_with_its_reason_and_never_continues(storage: Storage) -> None:
    flow = linear(Say([], "a"), Wait("x"), storage=storage)
    wait = await parked(flow.run({"n": 1}, flow_id="r"))
    await flow.cancel("r", "not needed")
    run = await flow.status("r")
    assert (run.status, run.reason, run.node, run.path, run.waits) == ("cancelled", "not needed", "x", ("a",), ())
    assert await StateStorage(storage).get_state("r") == {"n": 1, "said": ["a"]}
    assert [run.flow_id async for run in flow.runs("cancelled")] == ["r"]
    assert [run.flow_id async for run in flow.runs()] == []
    for work in (
        *(flow.resume("r"), flow.resume(wait.id, 1), flow.answer(wait.id, 1), flow.answer("r", 1, run=True)),
        flow.run(flow_id="r", if_exists="resume"),
    ):
        assert (await cancelled(work)).reason == "not needed"
    with pytest.raises(RunExists):
        await flow.run(flow_id="r")
    await flow.cancel("r", "another reason")
    assert (await flow.status("r")).reason == "not needed"
    assert await storage.due(RUNS) == []
    assert await parts_of(storage) == set()


@pytest.mark.parametrize("reason", [5, ["a"], {"code": 3}, b"x"])
async def test_a_reason_that_is_not_a_text_is_refused_before_anything_is_written(storage: Storage, reason: Any) -> None:
    gate = Gate()
    waiting = linear(Wait("x"), name="waiting", storage=storage)
    flow = linear(gate, Say([], "a"), storage=storage, keep=True)
    await parked(waiting.run(flow_id="w"))
    running = await begun(flow, gate)
    for each, flow_id in ((waiting, "w"), (flow, "r")):
        with pytest.raises(InvalidOption, match="give a text"):
            await each.cancel(flow_id, reason)
    gate.opened.set()
    assert (await running)["said"] == ["a"]
    assert (await waiting.status("w")).status == "parked"
    assert await parts_of(storage, "w") == set()


async def test_a_runner_logs_mail_that_is_malformed_once(storage: Storage, caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    flow = linear(gate, Say([], "a"), Say([], "b"), storage=storage)
    running = await begun(flow, gate)
    await send_cancel(storage, reason=5)  # type: ignore[arg-type]
    await send_cancel(storage, reason=6)  # type: ignore[arg-type]
    gate.opened.set()
    assert (await running)["said"] == ["a", "b"]
    ignored = [record.getMessage() for record in caplog.records if "is ignored" in record.getMessage()]
    assert len(ignored) == 2
    assert all("of run 'r'" in each and "`$.reason`" in each for each in ignored)


async def test_a_run_whose_state_was_replaced_is_not_cancelled_or_paused(storage: Storage) -> None:
    gate = Gate()
    waiting = linear(Wait("x"), name="waiting", storage=storage)
    flow = linear(gate, storage=storage)
    await parked(waiting.run(flow_id="w"))
    running = await begun(flow, gate)
    for each, flow_id in ((waiting, "w"), (flow, "r")):
        await StateStorage(storage).update_state(flow_id, {"n": 1})
        for act in (each.cancel, each.pause, each.status):
            with pytest.raises(RunReplaced):
                await act(flow_id)
        assert await StateStorage(storage).get_state(flow_id) == {"n": 1}
    gate.opened.set()
    with pytest.raises(RecordReplaced):
        await running


async def test_a_cancelled_run_is_removed_after_a_day_or_when_its_flow_says(backend: Backend, clock: Clock) -> None:
    storage = backend.storage(clock=clock)
    await storage.open()
    for keep, seconds in ((False, DAY), (60, 60)):
        flow = linear(Wait("x"), storage=storage, keep=keep)
        await parked(flow.run(flow_id="r"))
        await flow.cancel("r")
        clock.advance(seconds - 1)
        assert (await flow.status("r")).reason is None
        clock.advance(2)
        with pytest.raises(UnknownRun):
            await flow.status("r")
    flow = linear(Wait("x"), storage=storage, keep=True)
    await parked(flow.run(flow_id="r"))
    await flow.cancel("r")
    assert (await flow.status("r")).expires_at is None


@pytest.mark.parametrize("kind", ["node", "branch", "batch", "nested"])
async def test_a_node_that_runs_in_this_process_is_cancelled_at_once(storage: Storage, kind: str) -> None:
    ended: list[str] = []
    gate = Gate()

    class Guarded(Node):
        async def exec(self, prep_res: Any) -> None:
            try:
                await gate.exec(None)
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

    class Items(BatchNode):
        def prep(self, shared: Any) -> list[int]:
            return [1, 2]

        async def exec(self, item: int) -> None:
            await Guarded().exec(item)

    node = {
        "node": Guarded(),
        "branch": parallel(Guarded(), Wait("x")),
        "batch": Items(concurrency=2),
        "nested": linear(Guarded(), name="inner"),
    }[kind]
    flow = linear(Say([], "a"), node, Say(ended, "never"), storage=storage)
    running = await begun(flow, gate)
    async with asyncio.timeout(2):
        await flow.cancel("r", "stop")
        assert (await cancelled(running)).reason == "stop"
    assert set(ended) == {"cancelled"}
    assert (await flow.status("r")).status == "cancelled"
    # The task of the caller was not cancelled.
    current = asyncio.current_task()
    assert current is not None
    assert not current.cancelling()


class Stubborn(Node):
    """Suppresses a cancellation."""

    def __init__(self, gate: Gate, error: Exception | None = None) -> None:
        super().__init__(name="stubborn")
        self.gate = gate
        self.error = error

    async def exec(self, prep_res: Any) -> None:
        try:
            await self.gate.exec(None)
        except asyncio.CancelledError:
            if self.error is not None:
                raise self.error from None


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("error", [None, Boom()])
async def test_a_node_that_suppresses_its_cancellation_does_not_keep_the_run_alive(
    storage: Storage, last: bool, error: Exception | None
) -> None:
    ran: list[str] = []
    gate = Gate()
    after = () if last else (Say(ran, "never"),)
    flow = linear(Say([], "a"), Stubborn(gate, error), *after, storage=storage)
    running = await begun(flow, gate)
    await flow.cancel("r")
    await cancelled(running)
    assert ran == []
    run = await flow.status("r")
    assert (run.status, run.path) == ("cancelled", ("a",))


async def test_the_test_above_detects_a_cancellation_that_is_not_repeated(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    gate = Gate()
    flow = linear(Stubborn(gate), Say(ran, "never"), storage=storage)
    save = Journal.save

    async def forgetful(self: Journal, node: str, **options: Any) -> None:
        cancel, self.mailbox.cancel = self.mailbox.cancel, None
        await save(self, node, **options)
        self.mailbox.cancel = cancel

    monkeypatch.setattr(Journal, "save", forgetful)
    running = await begun(flow, gate)
    await flow.cancel("r")
    await cancelled(running)
    assert ran == ["r/never/1"]


async def test_a_node_may_cancel_its_own_run(storage: Storage) -> None:
    class Quit(Node):
        async def exec(self, prep_res: Any) -> None:
            await flow.cancel(step().flow_id, "done here")
            await asyncio.sleep(20)

    flow = linear(Quit, storage=storage)
    assert (await cancelled(flow.run(flow_id="r"))).reason == "done here"


async def test_a_runner_elsewhere_is_interrupted_by_its_next_renewal(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, constants: Constants
) -> None:
    # Without a notice within the process, as between two machines.
    monkeypatch.setattr(mail, "wake", lambda key, topic: None)
    constants(lease=0.6)
    gate = Gate()
    flow = linear(gate, storage=storage)
    running = await begun(flow, gate)
    async with asyncio.timeout(5):
        await flow.cancel("r", "far away")
    assert (await cancelled(running)).reason == "far away"


async def test_a_runner_elsewhere_is_stopped_by_its_next_commit(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mail, "wake", lambda key, topic: None)
    gate, ran = Gate(), list[str]()
    flow = linear(gate, Say(ran, "b"), Say(ran, "never"), storage=storage)
    running = await begun(flow, gate)
    cancelling = asyncio.create_task(flow.cancel("r"))
    await until(lambda: has_cancel(storage))
    gate.opened.set()
    await cancelled(running)
    await cancelling
    assert ran == []


async def has_cancel(storage: Storage) -> bool:
    return "cancel" in await parts_of(storage)


async def test_a_run_whose_runner_died_is_cancelled_when_its_lease_ends(storage: Storage) -> None:
    gate = Gate()
    flow = linear(gate, storage=storage)
    running = await begun(flow, gate)
    running.cancel()
    await asyncio.wait([running])
    # The claim of a process that was killed.
    await storage.perform(Claim(storage.address(RUNS, "r"), "of a dead process", 0.5))
    async with asyncio.timeout(20):
        await flow.cancel("r", "dead")
    assert (await flow.status("r")).reason == "dead"


async def test_a_failed_run_can_be_cancelled(storage: Storage) -> None:
    flow = linear(Say([], "a", fails=[Boom("no")]), storage=storage)
    with pytest.raises(Boom):
        await flow.run(flow_id="r")
    await flow.cancel("r")
    run = await flow.status("r")
    assert (run.status, run.errors[0].message) == ("cancelled", "no")
    await cancelled(flow.resume("r"))


async def test_a_finished_run_cannot_be_cancelled(storage: Storage) -> None:
    flow = linear(Say([], "a"), storage=storage)
    with pytest.raises(UnknownRun):
        await flow.cancel("r")
    await flow.run(flow_id="r")
    await flow.run(flow_id="kept", keep=True)
    for flow_id in ("r", "kept"):
        with pytest.raises(RunFinished):
            await flow.cancel(flow_id)
    await parked(linear(Wait("x"), storage=storage, name="other").run(flow_id="other"))
    with pytest.raises(FlowChanged, match="it is a run of flow 'other'"):
        await flow.cancel("other")


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_cancellation_around_the_park_commit_is_not_lost(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    flow = one_wait(storage)

    async def cancel() -> None:
        await send_cancel(storage, "now")

    HeldPark(storage, monkeypatch, **{when: cancel})  # type: ignore[arg-type]
    if when == "before":
        await cancelled(flow.run(flow_id="r"))
    else:
        await parked(flow.run(flow_id="r"))
        async with worker([flow]):
            await until(lambda: has_status(flow, "cancelled"))
    assert (await flow.status("r")).reason == "now"


async def has_status(flow: NodeFlow, status: str) -> bool:
    return (await flow.status("r")).status == status


@pytest.mark.parametrize("status", ["parked", "failed", "interrupted"])
async def test_a_cancellation_whose_sender_died_is_used_by_the_next_runner(storage: Storage, status: str) -> None:
    gate = Gate()
    node = {"parked": Wait("x"), "failed": Say([], "a", fails=[Boom()]), "interrupted": gate}[status]
    flow = linear(node, storage=storage)
    running = asyncio.create_task(flow.run(flow_id="r"))
    if status == "interrupted":
        await gate.entered.wait()
        running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await send_cancel(storage)
    await cancelled(flow.resume("r"))
    assert (await flow.status("r")).status == "cancelled"


async def test_a_call_that_is_cancelled_leaves_an_interrupted_run_which_a_worker_continues_at_once(
    storage: Storage,
) -> None:
    gate = Gate()
    flow = linear(Say([], "a"), gate, storage=storage, keep=True)
    running = await begun(flow, gate)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    run = await flow.status("r")
    assert (run.status, run.interrupted, run.node) == ("running", True, "gate")
    gate.opened.set()
    async with worker([flow]):
        await until(lambda: has_status(flow, "finished"))
    assert not (await flow.status("r")).interrupted


@pytest.mark.parametrize("by", ["flow.cancel", "on_cancel", "interrupted"])
async def test_a_running_run_that_is_cancelled_ends_with_the_event_of_a_cancelled_run(
    storage: Storage, by: str
) -> None:
    gate, events = Gate(), list[Event]()
    flow = linear(gate, storage=storage)
    running = await begun(flow, gate, on_event=events.append, on_cancel="cancel" if by == "on_cancel" else "interrupt")
    if by == "flow.cancel":
        await flow.cancel("r", "not needed")
        await cancelled(running)
    else:
        running.cancel()
        await asyncio.wait([running])
    ends = [(event.kind, type(event.error)) for event in events if event.kind.startswith("run.")][1:]
    if by == "interrupted":
        assert ends == [("run.failed", asyncio.CancelledError)]
        return
    assert ends == [("run.cancelled", RunCancelled)]
    assert events[-1].error.reason == ("not needed" if by == "flow.cancel" else "its call was cancelled")
    assert events[-1].duration is not None
    assert (await flow.status("r")).status == "cancelled"


async def test_with_on_cancel_a_call_that_is_cancelled_cancels_its_run(storage: Storage) -> None:
    gate = Gate()
    flow = linear(Say([], "a"), gate, storage=storage)
    running = await begun(flow, gate, on_cancel="cancel")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    run = await flow.status("r")
    assert (run.status, run.reason, run.interrupted) == ("cancelled", "its call was cancelled", False)
    await cancelled(flow.resume("r"))


async def test_a_call_returns_a_handle_instead_of_raising_parked(storage: Storage) -> None:
    flow = linear(Say([], "a"), Wait("x"), storage=storage, keep=True)
    handle = await flow.run(flow_id="r", on_park="return")
    assert isinstance(handle, RunHandle)
    assert (handle.id, (await handle.status()).status) == ("r", "parked")
    await handle.answer(1)
    assert await flow.resume("r") == await handle.result(20) == {"said": ["a"], "x": 1}
    assert await linear(Say([], "a")).run(storage=storage, on_park="return") == {"said": ["a"]}


async def test_the_choices_of_a_run_are_checked(storage: Storage) -> None:
    flow = linear(Say([], "a"))
    for options in ({"on_cancel": "stop"}, {"on_park": "wait"}):
        with pytest.raises(InvalidOption, match="choose '"):
            await flow.run(storage=storage, **options)  # type: ignore[call-overload]
    for options in ({"on_cancel": "cancel"}, {"on_park": "return"}):
        with pytest.raises(InvalidOption, match="needs a storage"):
            await flow.run(**options)  # type: ignore[call-overload]


async def test_a_timeout_of_the_caller_is_a_timeout(storage: Storage) -> None:
    gate = Gate()
    flow = linear(gate, storage=storage)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await flow.run(flow_id="r")
    assert (await flow.status("r")).interrupted
    gate.opened.set()
    assert await flow.resume("r") == {}


async def test_a_call_that_is_cancelled_while_its_run_is_cancelled_too(storage: Storage) -> None:
    gate = Gate()
    flow = linear(gate, storage=storage)
    running = await begun(flow, gate)
    await send_cancel(storage)
    running.cancel()
    with pytest.raises((asyncio.CancelledError, RunCancelled)):
        await running
    with pytest.raises(RunCancelled):
        await flow.resume("r")


async def test_a_commit_that_was_under_way_when_its_call_was_cancelled_is_kept(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = linear(Say([], "a"), Say([], "b"), Say([], "c"), storage=storage)
    perform = storage.perform
    written: list[Any] = []

    async def slow(operation: Any) -> Any:
        result = await perform(operation)
        change = getattr(operation, "change", None)
        if change is not None and change.set and not change.fresh:
            written.append(change)
            if len(written) == 2:
                # The write has reached the storage, and the caller does not know.
                running.cancel()
                await asyncio.sleep(0)
        return result

    monkeypatch.setattr(storage, "perform", slow)
    running = asyncio.create_task(flow.run(flow_id="r"))
    with pytest.raises(asyncio.CancelledError):
        await running
    run = await flow.status("r")
    assert (run.node, run.path, run.interrupted) == ("c", ("a", "b"), True)
    assert await flow.resume("r") == {"said": ["a", "b", "c"]}


async def test_a_sleeping_run_can_be_cancelled(storage: Storage) -> None:
    flow = linear(Sleep(60), storage=storage)
    await parked(flow.run(flow_id="r"))
    await flow.cancel("r")
    assert await storage.due(RUNS, before=1e12) == []


@pytest.fixture
async def queues() -> AsyncIterator[Storage]:
    async with MemoryStorage() as storage:
        yield storage


async def test_a_queued_run_can_be_cancelled(queues: Storage) -> None:
    storage = queues
    ran: list[str] = []
    flow = linear(Say(ran, "a"), storage=storage)
    handle = await flow.submit(flow_id="r")
    await handle.cancel("no")
    assert (await flow.status("r")).status == "cancelled"
    assert (await cancelled(handle.result())).reason == "no"
    async with worker([flow]):
        await (await flow.submit(flow_id="next")).result(20)
    assert ran == ["next/a/1"]
    assert await storage.queues(RUNS, limit=10) == []


async def test_a_queued_run_whose_canceller_died_is_cancelled_by_its_worker(queues: Storage) -> None:
    storage = queues
    ran: list[str] = []
    flow = linear(Say(ran, "a"), storage=storage)
    handle = await flow.submit(flow_id="r")
    await send_cancel(storage)
    async with worker([flow]):
        await cancelled(handle.result())
    assert ran == []


async def test_the_next_run_of_a_partition_starts_when_one_is_cancelled(queues: Storage) -> None:
    storage = queues
    gate = Gate()

    class Wall(Node):
        async def exec(self, prep_res: Any) -> None:
            if step().flow_id == "first":
                await gate.exec(None)

    flow = linear(Wall, storage=storage)
    handles = [await flow.submit(flow_id=name, partition="p") for name in ("first", "second", "third", "fourth")]
    async with worker([flow]):
        await gate.entered.wait()
        await handles[2].cancel()
        await handles[0].cancel("slow")
        assert await handles[1].result(20) == {}
        assert await handles[3].result(20) == {}
    assert [(await handle.status()).status for handle in handles] == [
        *("cancelled", "finished", "cancelled", "finished")
    ]


async def test_a_handle_answers_and_cancels(queues: Storage) -> None:
    storage = queues
    flow = linear(Wait("x"), Wait("y"), storage=storage)
    handle = await flow.submit(flow_id="r")
    async with worker([flow]):
        await until(lambda: has_status(flow, "parked"))
        await handle.answer(1)
        await until(lambda: at_node(flow, "y"))
        await handle.answer(2, (await handle.status()).waits[0].id)
        assert await handle.result(20) == {"x": 1, "y": 2}


async def at_node(flow: NodeFlow, node: str) -> bool:
    return [wait.node for wait in (await flow.status("r")).waits] == [node]


@pytest.mark.parametrize("queued", [False, True])
async def test_a_cancel_during_the_first_commit_of_a_resumed_run_ends_it(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, queued: bool
) -> None:
    ran: list[str] = []
    flow = linear(Say(ran, "a"), storage=storage) if queued else one_wait(storage)
    if queued:
        await flow.submit(flow_id="r")
    else:
        await parked(flow.run(flow_id="r"))
    commit, sent = Journal._commit, asyncio.Event()

    async def after_mail(journal: Journal, node: str, **options: Any) -> None:
        if not sent.is_set():
            sent.set()
            await send_cancel(storage, "why")
        await commit(journal, node, **options)

    monkeypatch.setattr(Journal, "_commit", after_mail)
    await cancelled(flow.resume("r") if queued else flow.resume("r", 1))
    run = await flow.status("r")
    assert (run.status, run.reason, ran) == ("cancelled", "why", [])


@pytest.mark.parametrize("status", ["cancelled", "paused", "failed"])
async def test_a_call_whose_process_was_suspended_tries_again(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    """Its claim has ended before its commit."""
    flow = linear(Wait("go"), Say([], "a", fails=[Boom("broken")]), storage=storage)
    await parked(flow.run(flow_id="r"))
    if status == "failed":
        with pytest.raises(Boom):
            await flow.resume("r", "now")
    perform, lost = storage.perform, []

    async def suspended(operation: Any) -> Any:
        if isinstance(operation, Apply) and operation.guard.token is not None and not lost:
            lost.append(operation)
            await perform(Release(operation.address, operation.guard.token))
            await perform(Claim(operation.address, "another process", 0.2))
        return await perform(operation)

    monkeypatch.setattr(storage, "perform", suspended)
    match status:
        case "cancelled":
            await flow.cancel("r")
        case "paused":
            await flow.pause("r")
        case "failed":
            assert await flow.retry() == 0
    assert len(lost) == 1
    assert (await flow.status("r")).status == status
