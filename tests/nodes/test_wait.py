"""Waiting, durably: parked runs, answers that count once, timeouts, sleeps, and the worker that fires them."""

from __future__ import annotations

import asyncio
import logging
import types
from collections.abc import Awaitable
from contextvars import Context
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell import KeyValueStorage, MemoryStorage, StateStorage, Storage
from stepwell.errors import (
    InvalidGraph,
    InvalidOption,
    Parked,
    RunBusy,
    RunFinished,
    StorageError,
    UnknownAction,
    Unstorable,
    Unsupported,
    UsageError,
)
from stepwell.nodes import END, Node, NodeFlow, Sleep, Wait, linear, parallel, worker
from stepwell.nodes.run import lease
from stepwell.record import RUNS, Stored
from stepwell.slot import Slot
from stepwell.testing import Clock
from tests.backends import Backend
from tests.constants import Constants
from tests.nodes.test_durable import Boom, Say, Watching
from tests.until import forever, until


@pytest.fixture
async def storage(backend: Backend) -> Storage:
    storage = backend.storage()
    await storage.open()
    return storage


class Ask(Wait):
    """Asks with a count, and lets the answer choose."""

    def __init__(self, ran: list[str], name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self.ran = ran

    def prep(self, shared: dict[str, Any]) -> Any:
        self.ran.append(f"ask {self.name}")
        shared["asked"] = shared.get("asked", 0) + 1
        return {"ok?": shared["asked"], "options": ("yes", "no")}

    def post(self, shared: dict[str, Any], question: Any, answer: Any) -> Any:
        self.ran.append(f"answered {answer}")
        shared[self.name] = [question["options"], answer]
        return answer if isinstance(answer, str) else None


def approval(ran: list[str], storage: Storage, **options: Any) -> NodeFlow:
    first, ask = Say(ran, "draft"), Ask(ran, "approve", **options)
    flow = NodeFlow(start=first, name="approval", storage=storage)
    return flow.connect(first, ask).connect(ask, Say(ran, "publish"), "yes").connect(ask, first, "no").connect(
        ask, Say(ran, "late"), "timeout"
    )  # fmt: skip


async def parked(work: Awaitable[Any]) -> Parked:
    with pytest.raises(Parked) as caught:
        await work
    return caught.value


async def test_a_run_parks_at_a_wait_and_nothing_before_it_runs_again(storage: Storage) -> None:
    ran: list[str] = []
    wait = await parked(approval(ran, storage).run({"x": 1}, flow_id="r"))
    assert (wait.flow_id, wait.node, wait.question, wait.deadline) == (
        *("r", "approve"),
        *({"ok?": 1, "options": ("yes", "no")}, None),
    )
    flow = approval(ran, storage)
    run = await flow.status("r")
    assert (run.status, run.node, run.path) == ("parked", "approve", ("draft",))
    assert [(wait.id, wait.node, wait.question) for wait in run.waits] == [(wait.id, wait.node, wait.question)]
    assert await StateStorage(storage).get_state("r") == {"x": 1, "said": ["draft"], "asked": 1}
    assert [run.flow_id async for run in flow.runs("parked")] == ["r"]
    final = await flow.resume(wait.id, "yes")
    assert final == {"x": 1, "said": ["draft", "publish"], "asked": 1, "approve": [("yes", "no"), "yes"]}
    assert ran == ["r/draft/1", "ask approve", "answered yes", "r/publish/1"]


async def test_a_plain_wait_puts_the_answer_into_the_shared_state(storage: Storage) -> None:
    flow = linear(Wait("email"), Say([], "end"), storage=storage)
    wait = await parked(flow.run({"x": 1}, flow_id="r"))
    assert wait.question is None
    assert await flow.resume("r", {"to": b"x"}) == {"x": 1, "email": {"to": b"x"}, "said": ["end"]}


async def test_none_is_an_answer(storage: Storage) -> None:
    flow = linear(Wait("email"), storage=storage)
    await parked(flow.run(flow_id="r"))
    assert await flow.resume("r", None) == {"email": None}


async def test_an_answer_counts_once(storage: Storage) -> None:
    ran: list[str] = []
    flow = approval(ran, storage)
    first = await parked(flow.run(flow_id="r"))
    second = await parked(flow.resume(first.id, "no"))
    assert second.id != first.id
    assert second.question["ok?"] == 2
    # The message is delivered again: it must not answer the next question.
    again = await parked(flow.resume(first.id, "yes"))
    assert (again.id, again.question) == (second.id, second.question)
    assert (await flow.status("r")).path == ("draft", "approve", "draft")
    final = await flow.resume(second.id, "yes")
    assert final["said"] == ["draft", "draft", "publish"]
    for old in (first.id, second.id):
        with pytest.raises(RunFinished):
            await flow.resume(old, "yes")
    assert ran.count("answered yes") == 1


@pytest.mark.parametrize("ended", ["finished", "removed"])
async def test_an_answer_to_an_earlier_run_does_not_reach_a_later_one_of_the_same_id(
    storage: Storage, ended: str
) -> None:
    flow = linear(Wait("x"), Wait("y"), storage=storage, keep=60)
    first = await parked(flow.run(flow_id="r"))
    second = await parked(flow.resume(first.id, 1))
    if ended == "finished":
        await flow.resume(second.id, 2)
    await StateStorage(storage).cleanup("r")
    now = await parked(flow.run(flow_id="r"))
    for old in (first.id, second.id):
        for answer in ((), ("stale",)):
            with pytest.raises(RunFinished, match="belongs to an earlier run 'r'") as caught:
                await flow.resume(old, *answer)
            assert caught.value.wait_id == old
    assert [wait.id for wait in (await flow.status("r")).waits] == [now.id]
    last = await parked(flow.resume(now.id, "a"))
    assert await flow.resume("r", "b") == {"x": "a", "y": "b"}
    with pytest.raises(RunFinished, match="earlier run"):
        await flow.resume(first.id, "stale")
    assert await flow.resume(last.id, "again") == {"x": "a", "y": "b"}


async def test_an_unknown_question_does_not_count_as_answered(storage: Storage) -> None:
    flow = linear(Say([], "a"), Wait("x"), Wait("y"), Sleep(60), storage=storage)
    first = await parked(flow.run(flow_id="r"))
    mark = first.id.rpartition(":")[2]
    never = [f"wait:1:r/{place}:{mark}" for place in ("x/2", "x/0", "y/1", "a/1", "z/1", "Sleep/1", "x", "")]
    for wrong in (*never, f"{first.id}x", f"{first.id}.2", "wait:1:r/"):
        with pytest.raises(UsageError) as caught:
            await flow.resume(wrong, "yes")
        assert str(caught.value) == f"run 'r' never had the wait {wrong!r}; it waits for {first.id!r}"
    second = await parked(flow.resume(first.id, 1))
    assert (await parked(flow.resume(first.id, 2))).id == second.id
    await parked(flow.resume(second.id, 1))
    with pytest.raises(UsageError, match="it waits for no answer"):
        await flow.resume(never[0], "yes")


async def test_a_second_answer_returns_the_kept_state_of_a_finished_run(storage: Storage) -> None:
    flow = linear(Wait("x"), storage=storage, keep=True)
    wait = await parked(flow.run(flow_id="r"))
    assert await flow.resume(wait.id, 1) == {"x": 1}
    assert await flow.resume(wait.id, 2) == {"x": 1}
    with pytest.raises(RunFinished):
        await flow.resume("r", 2)


async def test_many_answers_at_once_count_once(storage: Storage) -> None:
    ran: list[str] = []
    flow = approval(ran, storage)
    wait = await parked(flow.run(flow_id="r"))
    outcomes = await asyncio.gather(*(flow.resume(wait.id, "yes") for _ in range(5)), return_exceptions=True)
    assert ran.count("answered yes") == 1
    assert [type(outcome) for outcome in outcomes].count(dict) == 1
    assert all(isinstance(outcome, dict | RunFinished) for outcome in outcomes)


async def test_a_run_without_a_wait_accepts_no_answer(storage: Storage) -> None:
    flow = linear(Say([], "a", fails=[Boom()]), Wait("x"), storage=storage)
    with pytest.raises(Boom):
        await flow.run(flow_id="r")
    with pytest.raises(UsageError, match="waits for no answer"):
        await flow.resume("r", 1)
    await parked(flow.resume("r"))
    await parked(flow.resume("r"))
    assert await flow.resume("r", 1) == {"said": ["a"], "x": 1}


async def test_an_answer_is_kept_if_post_fails(storage: Storage) -> None:
    fails = [Boom()]

    class Picky(Wait):
        def post(self, shared: dict[str, Any], question: Any, answer: Any) -> None:
            if fails:
                raise fails.pop()
            shared["got"] = answer

    flow = linear(Picky("x"), storage=storage)
    wait = await parked(flow.run(flow_id="r"))
    with pytest.raises(Boom):
        await flow.resume(wait.id, "first")
    assert await flow.resume(wait.id, "second") == {"got": "first"}


class Amount(Wait):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.hangs = asyncio.Event()

    def prep(self, shared: dict[str, Any]) -> str:
        return "How much?"

    def post(self, shared: dict[str, Any], question: str, answer: str) -> Any:
        if answer == "hang":
            self.hangs.set()
            return forever()
        if answer == "odd":
            return "no such edge"
        shared["amounts"] = [*shared.get("amounts", []), int(answer)]
        return None


@pytest.mark.parametrize("by", ["the id that the status shows", "flow id"])
async def test_an_answer_that_post_fails_on_makes_way_for_another(storage: Storage, by: str) -> None:
    flow = linear(Amount("x"), Amount("y"), storage=storage)
    wait = await parked(flow.run(flow_id="r"))
    with pytest.raises(ValueError, match="ten") as caught:
        await flow.resume(wait.id, "ten")
    assert "the answer to 'x' is stored" in caught.value.__notes__[-1]
    run = await flow.status("r")
    assert (run.status, run.errors[0].node, run.errors[0].type) == ("failed", "x", "ValueError")
    assert [(again.node, again.question) for again in run.waits] == [("x", "How much?")]
    again = run.waits[0].id
    assert again != wait.id
    # Delivered again, the first message changes nothing, even after the code was fixed.
    for value in ((), ("10",)):
        with pytest.raises(ValueError, match="ten"):
            await flow.resume(wait.id, *value)
    with pytest.raises(UnknownAction):
        await flow.resume(again if by != "flow id" else "r", "odd")
    third = (await flow.status("r")).waits[0].id
    assert len({wait.id, again, third}) == 3
    following = await parked(flow.resume(third if by != "flow id" else "r", "10"))
    assert following.node == "y"
    for old in (wait.id, again, third):
        assert (await parked(flow.resume(old, "11"))).id == following.id
    assert await flow.resume("r", "12") == {"amounts": [10, 12]}


async def test_an_answer_that_post_has_not_failed_on_stays(storage: Storage) -> None:
    amount = Amount("x")
    flow = linear(amount, storage=storage)
    wait = await parked(flow.run(flow_id="r"))
    answering = asyncio.create_task(flow.resume(wait.id, "hang"))
    async with asyncio.timeout(20):
        await amount.hangs.wait()
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering
    assert (await flow.status("r")).waits == ()
    with pytest.raises(UsageError, match="waits for no answer"):
        await flow.resume("r", "10")
    with pytest.raises(UsageError, match="never had the wait"):
        await flow.resume(f"{wait.id}.2", "10")


async def test_of_two_branches_the_one_that_failed_on_its_answer_is_asked_again(storage: Storage) -> None:
    both = parallel(Amount("left"), Wait("right"), name="both")
    flow = NodeFlow(start=both, storage=storage)
    await parked(flow.run(flow_id="r"))
    waits = {wait.node: wait.id for wait in (await flow.status("r")).waits}
    with pytest.raises(ValueError, match="ten"):
        await flow.resume(waits["both/0/left"], "ten")
    now = {wait.node: wait.id for wait in (await flow.status("r")).waits}
    assert now == {"both/0/left": f"{waits['both/0/left']}.2", "both/1/right": waits["both/1/right"]}
    rest = await parked(flow.resume("r", "10"))
    assert rest.id == waits["both/1/right"]
    assert await flow.resume("r", "yes") == {"amounts": [10], "right": "yes"}


async def test_a_question_or_answer_that_cannot_be_stored_raises(storage: Storage) -> None:
    class Odd(Wait):
        def prep(self, shared: Any) -> Any:
            return [object()]

    with pytest.raises(Unstorable, match=r"after node 'odd': the question\[0\]"):
        await linear(Odd("odd"), storage=storage).run()
    flow = linear(Wait("x"), storage=storage)
    wait = await parked(flow.run(flow_id="r"))
    with pytest.raises(Unstorable, match=r"after node 'x': the answer \(object\)"):
        await flow.resume(wait.id, object())
    assert await flow.resume(wait.id, 1) == {"x": 1}


async def test_without_a_storage_nothing_can_wait() -> None:
    ran: list[str] = []
    flow = linear(Say(ran, "a"), Wait("x"))
    with pytest.raises(UsageError, match="x waits, so the run needs a storage"):
        await flow.run()
    with pytest.raises(UsageError, match="needs a storage"):
        await asyncio.to_thread(linear(Node(), Sleep(1)).run_sync)
    assert ran == []
    assert "x" in flow.diagram()
    for make in (lambda: Wait("x", timeout=0), lambda: Sleep(0), lambda: Sleep(True), lambda: Wait("x", timeout="1")):  # type: ignore[arg-type]
        with pytest.raises(InvalidOption):
            make()


async def test_waits_of_branches_are_answered_in_any_order(storage: Storage) -> None:
    ran: list[str] = []
    flow = linear(
        parallel(
            linear(Say(ran, "a"), Wait("left"), Sum("l")),
            linear(Wait("right"), Sum("r")),
            linear(Say(ran, "b"), Say(ran, "c")),
            name="both",
            merge={"said": lambda values: values[-1]},
        ),
        Say(ran, "end"),
        storage=storage,
    )
    first = await parked(flow.run(flow_id="run"))
    run = await flow.status("run")
    assert {wait.node for wait in run.waits} == {"both/0/flow/left", "both/1/flow/right"}
    by_node = {wait.node: wait.id for wait in run.waits}
    assert first.id in by_node.values()
    rest = await parked(flow.resume(by_node["both/1/flow/right"], 2))
    assert rest.id == by_node["both/0/flow/left"]
    rest = await parked(flow.resume(by_node["both/1/flow/right"], 3))
    assert await flow.resume("run", 1) == {"left": 1, "right": 2, "l": 1, "r": 2, "said": ["b", "c", "end"]}
    assert sorted(ran) == ["run/both/0/flow/a/1", "run/both/2/flow/b/1", "run/both/2/flow/c/1", "run/end/1"]


class Sum(Node):
    def __init__(self, name: str) -> None:
        super().__init__(name=name)

    def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> None:
        shared[self.name] = shared["left" if self.name == "l" else "right"]


async def test_a_wait_in_a_nested_flow(storage: Storage) -> None:
    flow = linear(Say([], "a"), linear(Wait("x"), Say([], "b"), name="inner"), Say([], "c"), storage=storage)
    wait = await parked(flow.run(flow_id="r"))
    assert wait.node == "inner/x"
    assert await flow.resume(wait.id, 1) == {"x": 1, "said": ["a", "b", "c"]}


async def test_ids_of_waits_are_distinguished_from_ids_of_runs(storage: Storage) -> None:
    for flow_id in ("r/x/1", "wait:r", "ü:1:x", "wait:9:short", "a b/c"):
        flow = linear(Wait("x"), storage=storage)
        wait = await parked(flow.run(flow_id=flow_id))
        assert (await flow.status(wait.id)).flow_id == flow_id
        assert await flow.resume(wait.id, 1) == {"x": 1}


# Time


@pytest.fixture
async def timed(backend: Backend, clock: Clock) -> Storage:
    storage = backend.storage(clock=clock)
    await storage.open()
    return storage


async def test_after_its_timeout_a_wait_takes_the_action_timeout(timed: Storage, clock: Clock) -> None:
    ran: list[str] = []
    flow = approval(ran, timed, timeout=60)
    wait = await parked(flow.run(flow_id="r"))
    assert wait.deadline == pytest.approx(clock() + 60, abs=5)
    clock.advance(59)
    assert (await parked(flow.resume("r"))).id == wait.id
    clock.advance(1)
    # The answer comes after the deadline, before a worker has fired the timeout.
    assert await flow.resume(wait.id, "yes") == {"asked": 1, "said": ["draft", "late"]}
    assert ran == ["r/draft/1", "ask approve", "r/late/1"]


async def test_an_answer_in_time_ends_the_timeout(timed: Storage, clock: Clock) -> None:
    flow = linear(Wait("x", timeout=60), Wait("y"), storage=timed, on_unknown_action="end")
    first = await parked(flow.run(flow_id="r"))
    second = await parked(flow.resume(first.id, 1))
    assert second.deadline is None
    clock.advance(100)
    assert (await parked(flow.resume("r"))).id == second.id


async def test_a_timeout_of_a_wait_without_edges_ends_the_flow(timed: Storage, clock: Clock) -> None:
    ends = linear(Wait("x", timeout=60), storage=timed)
    await parked(ends.run(flow_id="ends"))
    default = linear(Wait("x", timeout=60), Say([], "a"), storage=timed, on_unknown_action="default")
    await parked(default.run(flow_id="default"))
    clock.advance(60)
    assert await ends.resume("ends") == {}
    assert await default.resume("default") == {"said": ["a"]}


async def test_a_timeout_without_an_edge_is_found_when_the_flow_is_compiled(storage: Storage) -> None:
    flow = linear(Wait("x", timeout=60), Say([], "a"), storage=storage, name="asking")
    with pytest.raises(InvalidGraph, match="x has the action 'timeout' and no edge for it: connect"):
        await flow.run()
    with pytest.raises(InvalidGraph, match="timeout"):
        await flow.submit()
    with pytest.raises(InvalidGraph, match="in inner: x has the action 'timeout'"):
        await linear(Say([], "a"), linear(Wait("x", timeout=60), Wait("y"), name="inner"), storage=storage).run()


async def test_the_earliest_of_several_timeouts_fires_first(timed: Storage, clock: Clock) -> None:
    def branch(name: str, timeout: float | None) -> NodeFlow:
        wait = Wait(name, timeout=timeout)
        wait - "timeout" >> END
        return NodeFlow(start=wait, name=f"of {name}")

    both = parallel(branch("slow", 100), branch("quick", 50), branch("never", None))
    flow = NodeFlow(start=both, storage=timed)
    await parked(flow.run(flow_id="r"))
    clock.advance(50)
    slow = await parked(flow.resume("r"))
    assert [wait.question for wait in (await flow.status("r")).waits] == [None, None]
    await parked(flow.resume(slow.id, "in time"))
    clock.advance(100)
    rest = await parked(flow.resume("r"))
    assert rest.node.endswith("never")
    assert await flow.resume("r", 1) == {"slow": "in time", "never": 1}


async def test_a_sleep_parks_the_run_until_its_time(timed: Storage, clock: Clock) -> None:
    ran: list[str] = []
    flow = linear(Say(ran, "a"), Sleep(3600), Say(ran, "b"), storage=timed)
    sleep = await parked(flow.run(flow_id="r"))
    assert sleep.deadline == pytest.approx(clock() + 3600, abs=5)
    assert (await flow.status("r")).status == "sleeping"
    until = f"{datetime.fromtimestamp(sleep.deadline or 0, UTC):%Y-%m-%d %H:%M:%S} UTC"
    assert str(sleep) == f"run 'r' sleeps at 'Sleep' until {until}; a worker resumes it then, or flow.resume('r')"
    await parked(flow.resume("r"))
    with pytest.raises(UsageError, match="waits for no answer"):
        await flow.resume("r", "wake up")
    clock.advance(3600)
    assert await flow.resume("r") == {"said": ["a", "b"]}
    assert ran == ["r/a/1", "r/b/1"]


async def test_a_sleep_beyond_the_year_9999_is_a_sleep(storage: Storage) -> None:
    for seconds in (1e15, 1e18, 1e300):
        text = str(await parked(linear(Sleep(seconds), storage=storage).run()))
        assert "sleeps at 'Sleep' beyond the year 9999" in text


# The worker


@pytest.fixture
def quick(constants: Constants) -> None:
    constants(tick=0.02)


async def gone(flow: NodeFlow) -> bool:
    return [run async for run in flow.runs()] == []


async def test_a_worker_fires_sleeps_and_timeouts(storage: Storage, quick: None) -> None:
    ran: list[str] = []
    sleeps = linear(Sleep(0.05), Say(ran, "woke"), name="sleeps", storage=storage)
    waits = approval(ran, storage, timeout=0.05)
    async with worker([sleeps, waits], storage=storage):
        await parked(sleeps.run(flow_id="s"))
        await parked(waits.run(flow_id="w"))
        await until(lambda: gone(sleeps))
        await until(lambda: gone(waits))
    assert sorted(ran) == ["ask approve", "s/woke/1", "w/draft/1", "w/late/1"]


async def test_a_worker_resumes_runs_whose_runner_died(storage: Storage, quick: None, constants: Constants) -> None:
    constants(watch=0.2)
    ran: list[str] = []
    reached = asyncio.Event()

    class Stuck(Say):
        async def exec(self, prep_res: Any) -> str:
            if not reached.is_set():
                reached.set()
                await forever()
            return await super().exec(prep_res)

    flow = linear(Say(ran, "a"), Stuck(ran, "b"), Say(ran, "c"), storage=storage)
    task = asyncio.create_task(flow.run(flow_id="r"))
    await reached.wait()
    async with worker([flow]):
        await asyncio.sleep(0.3)
        assert ran == ["r/a/1"], "its runner is alive"
        task.cancel()
        await asyncio.wait([task])
        await until(lambda: gone(flow))
    assert ran == ["r/a/1", "r/b/1", "r/c/1"]


async def test_a_worker_does_not_resume_failed_runs_and_unknown_flows(
    storage: Storage, quick: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failed = linear(Say([], "a", fails=[Boom()]), name="failed", storage=storage)
    with pytest.raises(Boom):
        await failed.run(flow_id="f")
    ran: list[str] = []
    unknown = linear(Sleep(0.01), name="unknown", storage=storage)
    await parked(unknown.run(flow_id="u"))
    fails = linear(Sleep(0.01), Say(ran, "x", fails=[Boom("no luck")]), name="fails", storage=storage)
    await parked(fails.run(flow_id="x"))
    caplog.set_level(logging.WARNING)
    async with worker([failed, fails], storage=storage):
        await until(lambda: fails.status("x"), lambda run: run.status == "failed")
        await asyncio.sleep(0.1)
    assert (await failed.status("f")).status == "failed"
    assert (await unknown.status("u")).status == "sleeping"
    assert ran == ["x/x/1"]
    assert "run 'x' failed with Boom: no luck;" in caplog.text


async def test_runs_that_a_worker_cannot_run_do_not_keep_it_from_others() -> None:
    storage = MemoryStorage()
    ran: list[str] = []
    unknown = linear(Sleep(0.001), name="unknown", storage=storage)
    before = linear(Sleep(0.001), name="changed", storage=storage)
    after = linear(Say(ran, "new"), name="changed", storage=storage)
    healthy = linear(Sleep(0.001), Say(ran, "a"), name="healthy", storage=storage)
    for number in range(600):
        await parked(unknown.run(flow_id=f"unknown{number}"))
        if number % 10 == 0:
            await parked(before.run(flow_id=f"changed{number}"))
    async with worker([after, healthy], storage=storage):
        for number in range(3):
            async with asyncio.timeout(60):
                await parked(healthy.run(flow_id=f"healthy{number}"))
                await until(lambda: f"healthy{number}/a/1" in ran)
    assert "new" not in str(ran)


async def test_runs_that_a_worker_cannot_run_are_not_read_again_at_once(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = MemoryStorage()
    unknown = linear(Sleep(0.001), name="unknown", storage=storage)
    for number in range(50):
        await parked(unknown.run(flow_id=f"r{number}"))
    watching = Watching(storage, monkeypatch)
    looks = 0
    due = storage.due

    async def counting(*args: Any, **options: Any) -> Any:
        nonlocal looks
        looks += 1
        return await due(*args, **options)

    monkeypatch.setattr(storage, "due", counting)
    async with worker([NodeFlow(name="other")], storage=storage), asyncio.timeout(20):
        await until(lambda: looks >= 40)
    # After a second or two, the worker writes its own record.
    namespace = storage.address(RUNS, "r0").namespace
    assert [each for each in watching.operations if each.address.namespace == namespace] == []
    # A worker that knows the flow runs them at once.
    async with worker([unknown], storage=storage):
        await until(lambda: gone(unknown))


async def test_a_worker_runs_at_most_concurrency_runs_at_once(storage: Storage, quick: None) -> None:
    at_once = most = 0
    three = asyncio.Event()

    class Counted(Node):
        async def exec(self, prep_res: Any) -> None:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            if at_once == 3:
                three.set()
            await three.wait()
            await asyncio.sleep(0.02)
            at_once -= 1

    flow = linear(Sleep(0.001), Counted(), storage=storage)
    for number in range(8):
        await parked(flow.run(flow_id=f"r{number}"))
    async with worker([flow], concurrency=3):
        await until(lambda: gone(flow))
    assert most == 3
    for wrong in (0, -1, True, 1.5, None):
        with pytest.raises(InvalidOption, match="concurrency"):
            worker([flow], concurrency=wrong)  # type: ignore[arg-type]


async def test_a_worker_logs_that_the_state_of_a_run_was_replaced(
    storage: Storage, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    flow = linear(Sleep(0.01), storage=storage)
    await parked(flow.run(flow_id="r"))
    await StateStorage(storage).update_state("r", {"x": 1})
    caplog.set_level(logging.WARNING)
    async with worker([flow]), asyncio.timeout(20):
        await until(lambda: "run 'r' was replaced from outside" in caplog.text)
    assert "has failed" not in caplog.text


async def test_a_worker_that_ends_interrupts_what_it_runs(storage: Storage, quick: None) -> None:
    started = asyncio.Event()

    class Long(Node):
        async def exec(self, prep_res: Any) -> None:
            started.set()
            if not done:
                await forever()

    done: list[int] = []
    flow = linear(Sleep(0.01), Long(), storage=storage)
    await parked(flow.run(flow_id="r"))
    async with worker([flow], drain=0.1):
        async with asyncio.timeout(20):
            await started.wait()
    assert (await flow.status("r")).status == "running"
    done.append(1)
    assert await flow.resume("r") == {}


async def test_several_workers_run_each_run_once(backend: Backend, quick: None) -> None:
    storage = backend.storage()
    await storage.open()
    ran: list[str] = []
    flow = linear(Sleep(0.01), Say(ran, "a"), Say(ran, "b"), storage=storage)
    for number in range(15):
        await parked(flow.run(flow_id=f"r{number}"))
    async with worker([flow]), worker([flow]), worker([flow]):
        await until(lambda: gone(flow))
    assert len(ran) == len(set(ran)) == 30


async def test_a_worker_without_any_storage_raises() -> None:
    stepwell.configure(storage=None)
    kept = NodeFlow(name="kept", storage=MemoryStorage())
    worker([kept])
    for flows in ([NodeFlow(name="bare")], [kept, NodeFlow(name="bare")]):
        with pytest.raises(InvalidOption, match=r"no storage .* 'bare'.*configure"):
            worker(flows)
    # The MemoryStorage that stands for none does not count, whether it has been used or not.
    await StateStorage().update_state("x", {})
    with pytest.raises(InvalidOption, match="no storage"):
        worker([NodeFlow(name="bare")])
    stepwell.configure(storage=MemoryStorage())
    try:
        worker([NodeFlow(name="bare")])
    finally:
        stepwell.configure(storage=None)


async def test_an_answer_to_a_busy_run_raises_and_is_not_stored(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, constants: Constants
) -> None:
    constants(lease=-1.9)
    go, busy = asyncio.Event(), asyncio.Event()

    class Slow(Node):
        async def exec(self, prep_res: Any) -> None:
            busy.set()
            await go.wait()

    flow = linear(parallel(Wait("ask"), Slow()), storage=storage)
    monkeypatch.setattr(lease, "hold", _held)
    running = asyncio.create_task(parked(flow.run(flow_id="r")))
    await until(lambda: busy.is_set() or running.done())
    assert not running.done()

    async def asked() -> bool:
        return bool((await flow.status("r")).waits)

    await until(asked)
    (wait,) = (await flow.status("r")).waits
    for given in (wait.id, "r"):
        with pytest.raises(RunBusy, match=r"answer was not stored; flow.answer\(\) stores") as caught:
            await flow.resume(given, "yes")
        assert caught.value.answer
    with pytest.raises(RunBusy, match="leave it to its runner"):
        await flow.resume("r")
    go.set()
    await running
    assert await flow.resume(wait.id, "yes") == {"ask": "yes"}


def _held(storage: Storage, flow_id: str, *, wait: float, seconds: float | None = None) -> Slot:
    """A run is held with a usual lease, while others wait for it only for a moment."""
    return Slot(storage, RUNS, flow_id, wait=wait, lease=10.0)


@pytest.mark.parametrize("hook", ["prep", "exec", "post"])
@pytest.mark.parametrize("on_park", ["raise", "return"])
@pytest.mark.parametrize("where", ["node", "branch", "nested", "flow"])
async def test_a_node_whose_own_run_waits_fails_with_an_error_that_says_so(
    storage: Storage, where: str, hook: str, on_park: Any
) -> None:
    inner = linear(Wait("ask"), name="inner", storage=storage, keep=60)

    async def runs(self: Any, shared: Any, *results: Any) -> Any:
        await inner.run(flow_id="in", if_exists="resume")
        return None

    if where == "flow":
        if hook == "exec":
            return
        outer = linear(Node(name="a"), name="outer", storage=storage)
        setattr(outer, hook, types.MethodType(runs, outer))
    else:
        node = type("Runs", (Node,), {hook: runs})(name="runs")
        start = {"node": node, "branch": parallel(node, Node(name="b")), "nested": linear(node, name="nest")}[where]
        outer = linear(start, name="outer", storage=storage)
    with pytest.raises(UsageError, match=r"ran run 'in', which waits .* step\(\)\.child\(\)") as caught:
        await outer.run(flow_id="out", on_park=on_park)
    assert isinstance(caught.value.__cause__, Parked)
    run = await outer.status("out")
    assert (run.status, run.errors[0].type) == ("failed", "UsageError")
    await inner.resume("in", "yes")
    await outer.resume("out")


async def test_a_worker_wants_flows_of_one_storage() -> None:
    with pytest.raises(InvalidOption, match="at least one"):
        worker([])
    with pytest.raises(InvalidOption, match="are named 'flow'"):
        worker([NodeFlow(), NodeFlow()])
    with pytest.raises(InvalidOption, match=r"write worker\(\[flow\]\)"):
        worker(NodeFlow())  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="runs flows, not <class"):
        worker([Wait])  # type: ignore[list-item]
    with pytest.raises(InvalidOption, match="different storages"):
        worker([NodeFlow(name="a", storage=MemoryStorage()), NodeFlow(name="b", storage=MemoryStorage())])
    with pytest.raises(InvalidOption, match=r"give them one Storage object, give worker\(\.\.\., storage=\.\.\.\)"):
        # Each of them has a memory of its own.
        worker([NodeFlow(name="a", storage="memory://"), NodeFlow(name="b", storage="memory://")])
    with pytest.raises(InvalidOption, match="different storages"):
        worker([NodeFlow(name="a", storage="sqlite:///a.db"), NodeFlow(name="b", storage="sqlite:///b.db")])


async def test_a_worker_runs_flows_with_equal_urls(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    flows = [linear(Node(name="x"), name=name, storage=url) for name in ("a", "b")]
    async with worker(flows):
        for flow in flows:
            handle = await flow.submit({"flow": flow.name})
            assert await handle.result(timeout=20) == {"flow": flow.name}
    for flow in flows:
        assert flow.storage is not None
        await flow.storage.close()


async def test_a_worker_wants_a_storage_that_finds_deadlines() -> None:
    class Plain(KeyValueStorage):
        async def read(self, key: str) -> bytes | None:
            return None

        async def write(self, key: str, value: bytes) -> None:
            pass

        async def delete(self, key: str) -> None:
            pass

    with pytest.raises(Unsupported, match="cannot find deadlines"):
        async with worker([NodeFlow()], storage=Plain()):
            pass


async def test_a_storage_that_fails_does_not_end_a_worker(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = MemoryStorage()
    flow = linear(Sleep(0.01), storage=storage)
    await parked(flow.run(flow_id="r"))
    due, failures = storage.due, [1, 2]

    async def failing(*args: Any, **options: Any) -> Any:
        if failures:
            failures.pop()
            raise StorageError("away")
        return await due(*args, **options)

    async with worker([flow]):
        monkeypatch.setattr(storage, "due", failing)
        await until(lambda: gone(flow))


async def test_a_call_that_loads_a_large_state_does_not_log_another_runner(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, constants: Constants, caplog: pytest.LogCaptureFixture
) -> None:
    load = Slot._load

    async def slowly(slot: Slot, stored: Stored) -> None:
        await asyncio.sleep(0.2)
        await load(slot, stored)

    flow = linear(Wait("x"), storage=storage)
    await parked(flow.run(flow_id="r"))
    constants(run_notice=0.05)
    monkeypatch.setattr(Slot, "_load", slowly)
    await parked(flow.resume("r"))
    assert caplog.records == []


async def test_a_call_that_waits_for_another_runner_logs_it(
    storage: Storage, constants: Constants, caplog: pytest.LogCaptureFixture
) -> None:
    constants(run_notice=0.05)
    flow = linear(Wait("x"), storage=storage)
    await parked(flow.run(flow_id="r"))
    await parked(flow.resume("r"))
    assert caplog.records == []
    async with lease.hold(storage, "r", wait=0):
        resuming = asyncio.create_task(flow.resume("r", 1), context=Context())
        await until(lambda: caplog.records)
    assert await resuming == {"x": 1}
    assert "run 'r' is held by another runner; waiting up to 12 s" in caplog.text
    assert len(caplog.records) == 1
