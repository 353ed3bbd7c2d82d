"""Durable runs: a start row, one commit a node, resumed after the last of them."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from typing import Any

import pytest

import stepwell
from stepwell import MemoryStorage, State, StateStorage, Storage, copy_records
from stepwell.errors import (
    Busy,
    CorruptRecord,
    EncodeError,
    InvalidOption,
    LeaseLost,
    MergeConflict,
    RecordReplaced,
    RunBusy,
    RunExists,
    RunFinished,
    RunReplaced,
    StorageUnavailable,
    UnknownRun,
    Unstorable,
)
from stepwell.nodes import Node, NodeFlow, Wait, linear, parallel, step
from stepwell.record import RUNS
from stepwell.storage import Apply, Claim, Get, Release
from tests.backends import Backend
from tests.constants import Constants
from tests.until import forever


@pytest.fixture
async def storage(backend: Backend) -> Storage:
    storage = backend.storage()
    await storage.open()
    return storage


class Say(Node):
    """Counts how often it ran, in ``ran``, and adds its name to ``said``."""

    ran: list[str]

    def __init__(self, ran: list[str], name: str, *, fails: list[BaseException] | None = None) -> None:
        super().__init__(name=name)
        self.ran = ran
        self.fails = [] if fails is None else fails

    async def exec(self, prep_res: Any) -> str:
        self.ran.append(step().id)
        if self.fails:
            raise self.fails.pop()
        return self.name or ""

    def post(self, shared: dict[str, Any], prep_res: Any, exec_res: str) -> Any:
        shared["said"] = [*shared.get("said", []), exec_res]


class Boom(Exception):
    pass


class Watching:
    """Records the operations of a storage."""

    def __init__(self, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
        self.operations: list[Any] = []
        perform = storage.perform

        async def watch(operation: Any) -> Any:
            self.operations.append(operation)
            return await perform(operation)

        monkeypatch.setattr(storage, "perform", watch)

    def kinds(self) -> list[type]:
        return [type(operation) for operation in self.operations]


async def test_a_run_gives_the_final_state_in_the_callers_dict_and_leaves_nothing(storage: Storage) -> None:
    ran: list[str] = []
    flow = linear(Say(ran, "a"), Say(ran, "b"))
    shared = {"x": 1}
    final = await flow.run(shared, storage=storage, flow_id="r")
    assert final is shared
    assert final == {"x": 1, "said": ["a", "b"]}
    assert ran == ["r/a/1", "r/b/1"]
    assert await StateStorage(storage).get_state("r") == {}
    assert [entry async for entry in storage.scan(RUNS)] == []


async def test_a_run_writes_a_start_row_and_once_per_node_and_reads_nothing(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    flow = linear(*[Say(ran, f"n{number}") for number in range(5)])
    watching = Watching(storage, monkeypatch)
    await flow.run({"big": "x" * 10_000}, storage=storage)
    assert watching.kinds() == [Claim, Apply, Apply, Apply, Apply, Apply, Apply]
    start, *nodes, end = [operation.change for operation in watching.operations if isinstance(operation, Apply)]
    assert set(start.set) == {"big"}
    assert [set(change.set) for change in nodes] == [{"said"}] * 4
    assert end.delete


async def test_the_state_of_a_run_is_seen_while_it_runs(storage: Storage) -> None:
    seen = []

    class Look(Node):
        async def exec(self, prep_res: Any) -> None:
            seen.append(await StateStorage(storage).get_state("r"))
            record = await storage.get_state(RUNS, "r")
            assert record is not None
            seen.append((record.flow, record.state))

    await linear(Say([], "a"), Look, name="looks").run({"x": 1}, storage=storage, flow_id="r")
    assert seen == [{"x": 1, "said": ["a"]}, ("looks", "Look")]


async def test_without_an_id_a_run_gets_a_new_one(storage: Storage) -> None:
    ran: list[str] = []
    flow = linear(Say(ran, "a"), name="words", storage=storage)
    await flow.run()
    await flow.run()
    assert len(set(ran)) == 2
    assert all(place.startswith("words_") for place in ran)


async def test_a_failed_run_keeps_its_error_and_is_resumed_after_the_last_completed_node(storage: Storage) -> None:
    ran: list[str] = []
    flow = linear(Say(ran, "a"), Say(ran, "b", fails=[Boom("no luck")]), Say(ran, "c"), storage=storage)
    with pytest.raises(Boom):
        await flow.run({"x": 1}, flow_id="r")
    run = await flow.status("r")
    assert (run.status, run.node, run.path) == ("failed", "b", ("a",))
    assert [(error.node, error.type, error.message) for error in run.errors] == [("b", "Boom", "no luck")]
    assert await StateStorage(storage).get_state("r") == {"x": 1, "said": ["a"]}
    assert await flow.resume("r") == {"x": 1, "said": ["a", "b", "c"]}
    assert ran == ["r/a/1", "r/b/1", "r/b/1", "r/c/1"]
    assert [run async for run in flow.runs()] == []


async def test_changes_of_a_failed_node_to_the_shared_state_are_not_stored(storage: Storage) -> None:
    class Half(Node):
        times = 0

        def prep(self, shared: dict[str, Any]) -> None:
            shared["list"].append(1)
            shared["half"] = True

        async def exec(self, prep_res: Any) -> None:
            Half.times += 1
            if Half.times == 1:
                raise Boom

    flow = linear(Half, storage=storage)
    with pytest.raises(Boom):
        await flow.run({"list": []}, flow_id="r")
    assert await StateStorage(storage).get_state("r") == {"list": []}
    assert await flow.resume("r") == {"list": [1], "half": True}


async def test_errors_are_kept_newest_first(storage: Storage) -> None:
    flow = linear(Say([], "a", fails=[Boom(str(number)) for number in range(7)]), storage=storage)
    with pytest.raises(Boom):
        await flow.run(flow_id="r")
    for _ in range(6):
        with pytest.raises(Boom):
            await flow.resume("r")
    assert [error.message for error in (await flow.status("r")).errors] == ["0", "1", "2", "3", "4"]
    assert await flow.resume("r") == {"said": ["a"]}


async def test_an_error_whose_message_cannot_be_stored_is_recorded(storage: Storage) -> None:
    class Dumb(Exception):
        def __str__(self) -> str:
            raise Boom

    flow = linear(Say([], "a", fails=[Dumb(), Boom("caf\udce9.txt")]), storage=storage)
    with pytest.raises(Boom):
        await flow.run(flow_id="r")
    assert (await flow.status("r")).status == "failed"
    with pytest.raises(Dumb):
        await flow.resume("r")
    run = await flow.status("r")
    assert run.status == "failed"
    assert [(error.type, error.message) for error in run.errors] == [("Dumb", ""), ("Boom", "caf\\udce9.txt")]
    assert await flow.resume("r") == {"said": ["a"]}


async def test_a_cancelled_run_is_resumed_where_it_was(storage: Storage) -> None:
    ran: list[str] = []
    reached = asyncio.Event()

    class Stuck(Say):
        async def exec(self, prep_res: Any) -> str:
            if not reached.is_set():
                reached.set()
                await forever()
            return await super().exec(prep_res)

    flow = linear(Say(ran, "a"), Stuck(ran, "b"), storage=storage)
    task = asyncio.create_task(flow.run(flow_id="r"))
    await reached.wait()
    assert (await flow.status("r")).status == "running"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await flow.resume("r") == {"said": ["a", "b"]}
    assert ran == ["r/a/1", "r/b/1"]


async def test_an_existing_run_raises_or_is_resumed(storage: Storage) -> None:
    ran: list[str] = []
    flow = linear(Say(ran, "a"), Say(ran, "b", fails=[Boom()]), storage=storage, keep=True)
    with pytest.raises(Boom):
        await flow.run(flow_id="r")
    with pytest.raises(RunExists, match="exists already"):
        await flow.run(flow_id="r")
    assert await flow.run({"ignored": 1}, flow_id="r", if_exists="resume") == {"said": ["a", "b"]}
    assert ran == ["r/a/1", "r/b/1", "r/b/1"]
    with pytest.raises(RunExists):
        await flow.run(flow_id="r")
    assert await flow.run(flow_id="r", if_exists="resume") == {"said": ["a", "b"]}
    assert await flow.run(flow_id="new", if_exists="resume") == {"said": ["a", "b"]}
    with pytest.raises(InvalidOption, match="if_exists"):
        await flow.run(flow_id="r", if_exists="replace")  # type: ignore[arg-type]


async def test_a_running_run_raises(storage: Storage, constants: Constants) -> None:
    constants(lease=0.3)
    reached, go = asyncio.Event(), asyncio.Event()

    class Hold(Node):
        async def exec(self, prep_res: Any) -> None:
            reached.set()
            await go.wait()

    flow = linear(Hold, Say([], "b"), storage=storage)
    task = asyncio.create_task(flow.run(flow_id="r"))
    await reached.wait()
    with pytest.raises(RunExists):
        await flow.run(flow_id="r")
    constants(lease=-1.8)
    with pytest.raises(RunBusy, match="still running elsewhere"):
        await flow.resume("r")
    go.set()
    assert await task == {"said": ["b"]}


async def test_only_one_of_two_concurrent_starts_or_resumes_runs_the_run(storage: Storage) -> None:
    class Slow(Say):
        async def exec(self, prep_res: Any) -> str:
            await asyncio.sleep(0.02)
            return await super().exec(prep_res)

    ran: list[str] = []
    flow = linear(Slow(ran, "a"), Slow(ran, "b"), storage=storage)
    calls = [flow.run(flow_id="r", if_exists="resume") for _ in range(3)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert ran == ["r/a/1", "r/b/1"]
    assert [type(outcome) for outcome in outcomes].count(dict) == 1
    assert all(isinstance(outcome, dict | RunFinished) for outcome in outcomes)
    # Later it is another run.
    await asyncio.sleep(0.01)
    assert await flow.run(flow_id="r", if_exists="resume") == {"said": ["a", "b"]}


async def test_a_claim_without_a_run_is_not_a_run(storage: Storage, constants: Constants) -> None:
    """Its starter died before the start row."""
    flow = linear(Say([], "a"), storage=storage)
    await storage.perform(Claim(storage.address(RUNS, "r"), "dead", 0.2))
    assert await flow.run(flow_id="r") == {"said": ["a"]}
    await storage.perform(Claim(storage.address(RUNS, "s"), "dead", 0.2))
    assert await flow.run(flow_id="s", if_exists="resume") == {"said": ["a"]}
    await storage.perform(Claim(storage.address(RUNS, "r"), "held", 5))
    constants(lease=-1.8)
    with pytest.raises(RunBusy):
        await flow.run(flow_id="r")


async def test_calls_for_an_unknown_run_do_not_keep_it_from_starting(storage: Storage) -> None:
    flow = linear(Say([], "a"), storage=storage)

    async def resume() -> None:
        while True:
            with contextlib.suppress(UnknownRun, RunFinished):
                await flow.resume("r")
            await asyncio.sleep(0)

    calls = [asyncio.create_task(resume()) for _ in range(3)]
    try:
        for _ in range(20):
            assert await flow.run(flow_id="r") == {"said": ["a"]}
    finally:
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)


async def test_one_of_two_concurrent_starts_raises_even_if_the_run_is_short(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second call finds a claim, and neither a record before the start row nor one after the end."""
    waits, original = asyncio.Event(), storage.perform

    async def perform(operation: Any) -> Any:
        if isinstance(operation, Apply):
            await waits.wait()
        result = await original(operation)
        if isinstance(operation, Get):
            waits.set()
        return result

    ran: list[str] = []
    flow = linear(Say(ran, "a"), storage=storage)
    monkeypatch.setattr(storage, "perform", perform)
    outcomes = await asyncio.gather(*(flow.run(flow_id="r") for _ in range(2)), return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {dict, RunExists}
    assert ran == ["r/a/1"]


@pytest.mark.parametrize("call", ["run", "resume"])
async def test_a_node_that_finds_something_busy_fails_with_its_own_error(storage: Storage, call: str) -> None:
    flow = linear(Say([], "a", fails=[Busy("elsewhere", 1.0), Busy("elsewhere", 1.0)]), storage=storage)
    with pytest.raises(Busy) as caught:
        await flow.run(flow_id="r")
    if call == "resume":
        with pytest.raises(Busy) as caught:
            await flow.resume("r")
    assert type(caught.value) is Busy
    assert (await flow.status("r")).status == "failed"


async def test_unknown_and_finished_runs_raise_different_errors(storage: Storage) -> None:
    flow = linear(Say([], "a"), storage=storage)
    for call in (flow.resume("r"), flow.status("r"), flow.resume("r", 1)):
        with pytest.raises(UnknownRun, match="no run 'r'"):
            await call
    await flow.run(flow_id="r")
    with pytest.raises(RunFinished, match="has finished"):
        await flow.resume("r")
    with pytest.raises(UnknownRun):
        await flow.status("r")
    await StateStorage(storage).update_state("plain", {"x": 1})
    with pytest.raises(UnknownRun):
        await flow.resume("plain")
    await flow.run(flow_id="r")
    assert issubclass(UnknownRun, LookupError)


async def test_a_finished_run_is_kept_with_keep_and_for_the_given_time(backend: Backend, clock: Any) -> None:
    storage = backend.storage(clock=clock)
    await storage.open()
    flow = linear(Say([], "a"), storage=storage, keep=True)
    await flow.run(flow_id="kept")
    await flow.run(flow_id="hour", keep=3600)
    await flow.run(flow_id="gone", keep=False)
    run = await flow.status("kept")
    assert (run.status, run.node, run.path, run.expires_at) == ("finished", None, ("a",), None)
    assert await flow.resume("kept") == {"said": ["a"]}
    assert await StateStorage(storage).get_state("hour") == {"said": ["a"]}
    with pytest.raises(RunFinished):
        await flow.resume("kept", "an answer")
    assert [run async for run in flow.runs()] == []
    assert {run.flow_id async for run in flow.runs(status="finished")} == {"kept", "hour"}
    clock.advance(3601)
    assert {run.flow_id async for run in flow.runs(status="finished")} == {"kept"}
    for wrong in (0, -1, "yes", float("inf"), None):
        with pytest.raises(InvalidOption, match="keep"):
            NodeFlow(keep=wrong)  # type: ignore[arg-type]


async def test_runs_lists_what_has_not_finished_of_this_flow(storage: Storage) -> None:
    flow = linear(Say([], "a", fails=[Boom(), Boom()]), name="one", storage=storage)
    other = linear(Say([], "a", fails=[Boom()]), name="other", storage=storage)
    for run in (flow.run(flow_id="1"), flow.run(flow_id="2"), other.run(flow_id="3")):
        with pytest.raises(Boom):
            await run
    assert {run.flow_id async for run in flow.runs()} == {"1", "2"}
    assert {run.flow_id async for run in flow.runs("failed")} == {"1", "2"}
    assert [run async for run in flow.runs("parked")] == []
    with pytest.raises(InvalidOption, match="status"):
        [run async for run in flow.runs("lost")]  # type: ignore[arg-type]
    run = await flow.status("1")
    assert run.started_at <= run.updated_at
    assert run.flow == "one"


async def test_params_are_kept_for_the_resume(storage: Storage) -> None:
    class Reads(Node):
        def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> None:
            shared["got"] = self.params["k"]

    flow = linear(Say([], "a", fails=[Boom()]), Reads, storage=storage)
    with pytest.raises(Boom):
        await flow.run(flow_id="r", params={"k": (1, 2)})
    assert (await flow.resume("r"))["got"] == (1, 2)


async def test_an_unstorable_value_raises_when_the_node_returns(storage: Storage) -> None:
    class Odd(Node):
        value: Any = object()

        def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> None:
            shared["cart"] = [1, {"price": Odd.value}]

    ran: list[str] = []
    flow = linear(Say(ran, "a"), Odd, Say(ran, "c"), storage=storage)
    with pytest.raises(Unstorable, match=r"after node 'Odd': \$\.cart\[1\]\.price \(object\)") as caught:
        await flow.run(flow_id="r")
    assert isinstance(caught.value, EncodeError)
    assert (caught.value.node, caught.value.path, caught.value.type_name) == ("Odd", "$.cart[1].price", "object")
    run = await flow.status("r")
    assert (run.status, run.node, run.errors[0].node) == ("failed", "Odd", "Odd")
    Odd.value = 3
    assert await flow.resume("r") == {"said": ["a", "c"], "cart": [1, {"price": 3}]}
    assert ran == ["r/a/1", "r/c/1"]
    with pytest.raises(Unstorable, match="start"):
        await flow.run({"x": object()}, flow_id="s")
    with pytest.raises(UnknownRun):
        await flow.status("s")
    with pytest.raises(Unstorable, match=r"^at the start: \$\.x \(object\)"):
        await flow.run({"x": object()}, flow_id="s")
    with pytest.raises(Unstorable, match=r"^at the start: params \.k \(object\)"):
        await flow.run(flow_id="s", params={"k": object()})


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("inside", ["a node", "a nested flow", "a branch", "the flow's own post"])
async def test_an_unstorable_value_of_the_last_node_raises_too(storage: Storage, inside: str, keep: bool) -> None:
    value: list[Any] = [object()]

    class Odd(Node):
        def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> None:
            shared["cart"] = [1, {"price": value[0]}]

    class Own(NodeFlow):
        def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any, /) -> Any:
            shared["cart"] = [1, {"price": value[0]}]

    ran: list[str] = []
    first = Say(ran, "a")
    flow = Own(start=first, storage=storage) if inside == "the flow's own post" else NodeFlow(first, storage=storage)
    if inside == "a node":
        flow.connect(first, Odd)
    elif inside == "a nested flow":
        flow.connect(first, linear(Odd, name="nested"))
    elif inside == "a branch":
        flow.connect(first, parallel(Odd()))
    with pytest.raises(Unstorable, match=r"\$\.cart\[1\]\.price \(object\)"):
        await flow.run(flow_id="r", keep=keep)
    run = await flow.status("r")
    assert run.status == "failed"
    assert [error.type for error in run.errors] == ["Unstorable"]
    if inside == "a node":
        assert (run.node, run.errors[0].node) == ("Odd", "Odd")
    value[0] = 3
    assert (await flow.resume("r"))["cart"] == [1, {"price": 3}]
    assert ran == ["r/a/1"]


@pytest.mark.parametrize("how", ["removed", "taken over"])
async def test_a_run_that_is_lost_before_its_resume_raises(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    ran: list[str] = []
    flow = linear(Say(ran, "a"), Say(ran, "b", fails=[Boom()]), storage=storage)
    with pytest.raises(Boom):
        await flow.run(flow_id="r")
    perform = storage.perform

    async def late(operation: Any) -> Any:
        if isinstance(operation, Claim) and operation.address == address and not operation.renew:
            claims.append(operation)
        if isinstance(operation, Get) and operation.parts:
            await StateStorage(storage).cleanup("r")
            if how == "taken over":
                await perform(Release(claims[-1].address, claims[-1].token))
        return await perform(operation)

    claims: list[Claim] = []
    address = storage.address(RUNS, "r")
    monkeypatch.setattr(storage, "perform", late)
    with pytest.raises(RecordReplaced if how == "removed" else LeaseLost) as caught:
        await flow.resume("r")
    assert any("before this runner could resume it" in note for note in caught.value.__notes__)
    assert "run 'r'" in str(caught.value)
    assert "update" not in str(caught.value).replace("update_state", "")
    assert ran == ["r/a/1", "r/b/1"]


async def test_a_run_whose_state_was_replaced_from_outside_raises(storage: Storage) -> None:
    flow = linear(Say([], "a"), Say([], "b", fails=[Boom()]), storage=storage)
    with pytest.raises(Boom):
        await flow.run(flow_id="r")
    await StateStorage(storage).update_state("r", {"x": 1})
    with pytest.raises(CorruptRecord, match="replaced from outside, not merged"):
        await flow.resume("r")
    for call in (flow.resume("r"), flow.status("r"), flow.run(flow_id="r", if_exists="resume")):
        with pytest.raises(RunReplaced, match=r"cleanup\('r'\) and run it again") as caught:
            await call
        assert (caught.value.flow_id, "quarantine" in str(caught.value)) == ("r", False)
    await StateStorage(storage).cleanup("r")
    assert await flow.run(flow_id="r") == {"said": ["a", "b"]}


async def test_a_run_that_was_merged_into_or_copied_or_begun_again_was_not_replaced(storage: Storage) -> None:
    flow = linear(Say([], "a", fails=[Boom(), Boom()]), storage=storage, keep=True)
    await StateStorage(storage).update_state("r", {})
    await StateStorage(storage).cleanup("r")
    with pytest.raises(Boom):
        await flow.run(flow_id="r")
    await StateStorage(storage).merge_state("r", {"x": 1})
    assert (await flow.status("r")).status == "failed"
    async with MemoryStorage() as target:
        await copy_records(storage, target)
        assert (await flow.status("r", storage=target)).status == "failed"
        with pytest.raises(Boom):
            await flow.resume("r", storage=target)
        await flow.resume("r", storage=target)
        await StateStorage(target).update_state("r", {"y": 1})
        assert (await flow.status("r", storage=target)).status == "finished"


async def test_a_status_reads_no_parts_unless_something_was_replaced(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = linear(Say([], "a"), Say([], "b", fails=[Boom(), Boom()]), storage=storage)
    for _ in range(2):
        with pytest.raises(Boom):
            await flow.run(flow_id="r")
        await StateStorage(storage).merge_state("r", {"x": 1})
        with monkeypatch.context() as patch:
            watching = Watching(storage, patch)
            await flow.status("r")
        assert [(type(read), read.parts) for read in watching.operations] == [(Get, False)]
        await StateStorage(storage).cleanup("r")


async def test_a_state_without_a_run_is_distinguished_from_a_run(storage: Storage) -> None:
    flow = linear(Say([], "a"), storage=storage)
    await StateStorage(storage).merge_state("r", {"x": 1})
    calls = [flow.run(flow_id="r"), flow.run(flow_id="r", if_exists="resume"), flow.resume("r"), flow.status("r")]
    for call in calls:
        with pytest.raises((RunExists, UnknownRun), match=r"no run 'r' .* only a state .*cleanup\('r'\)") as caught:
            await call
        assert caught.value.state_only
    await StateStorage(storage).cleanup("r")
    assert await flow.run(flow_id="r") == {"said": ["a"]}


@pytest.mark.parametrize("error", [LeaseLost("elsewhere"), StorageUnavailable("another one")])
async def test_a_conflict_raised_by_a_node_fails_the_run(storage: Storage, error: Exception) -> None:
    flow = linear(Say([], "a"), Say([], "b", fails=[error]), storage=storage)
    with pytest.raises(type(error)):
        await flow.run(flow_id="r")
    run = await flow.status("r")
    assert (run.status, run.errors[0].node, run.errors[0].type) == ("failed", "b", type(error).__name__)
    assert await flow.resume("r") == {"said": ["a", "b"]}


async def test_a_run_that_is_removed_from_outside_stops(storage: Storage) -> None:
    class Cancels(Node):
        async def exec(self, prep_res: Any) -> None:
            await StateStorage(storage).cleanup("r")

    ran: list[str] = []
    with pytest.raises(RecordReplaced) as caught:
        await linear(Cancels, Say(ran, "b")).run(storage=storage, flow_id="r")
    assert any("was lost while node 'Cancels' ran here" in note for note in caught.value.__notes__)
    assert str(caught.value).startswith("run 'r' was removed or replaced (cleanup, update_state)")
    assert ran == []


async def test_a_runner_that_was_stopped_for_too_long_gets_a_message_about_its_run(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stops(Node):
        async def exec(self, prep_res: Any) -> None:
            claim = watching.operations[0]
            await storage.perform(Release(claim.address, claim.token))
            await storage.perform(Claim(claim.address, "another runner", 30))

    watching = Watching(storage, monkeypatch)
    with pytest.raises(LeaseLost, match="the lease of run 'r' ended before its commit") as caught:
        await linear(Stops, Say([], "b")).run(storage=storage, flow_id="r")
    assert "lease=" not in str(caught.value)
    assert any("while node 'Stops' ran here" in note for note in caught.value.__notes__)


async def test_fields_that_are_merged_from_outside_survive(storage: Storage) -> None:
    class Meanwhile(Node):
        async def exec(self, prep_res: Any) -> None:
            await StateStorage(storage).merge_state("r", {"outside": 1})

    flow = linear(Meanwhile, Say([], "b", fails=[Boom()]), storage=storage)
    with pytest.raises(Boom):
        await flow.run({"x": 1}, flow_id="r")
    assert await flow.resume("r") == {"x": 1, "outside": 1, "said": ["b"]}


@pytest.mark.parametrize("wrong", [None, 5, b"r"])
async def test_ids_that_are_not_texts_are_refused(storage: Storage, wrong: Any) -> None:
    flow = linear(Say([], "a"), storage=storage)
    for call in (
        *(flow.status(wrong), flow.cancel(wrong), flow.pause(wrong), flow.resume(wrong)),
        *(flow.answer(wrong, 1), flow.answer(wrong, 1, run=True), flow.signal(wrong, "paid"), flow.retry([wrong])),
    ):
        with pytest.raises(InvalidOption, match=r"flow_id=.*: give a non-empty string"):
            await call
    with pytest.raises(InvalidOption, match="flow_ids=5: give a list of ids"):
        await flow.retry(5)  # type: ignore[arg-type]


async def test_params_that_are_not_a_dict_are_refused(storage: Storage) -> None:
    class Starts(Node):
        async def exec(self, prep_res: Any) -> None:
            await step().child(flow, id="c", params=wrong)

    flow = linear(Say([], "a"), name="said", storage=storage)
    plain, parent = linear(Say([], "a")), linear(Starts(), storage=storage)
    wrong: Any
    for wrong in (5, "ab", [("a", 1)]):
        for call in (flow.run(params=wrong), flow.submit(params=wrong), plain.run(params=wrong), parent.run()):
            with pytest.raises(InvalidOption, match=r"params=.*: give a dict, or None"):
                await call
    wrong = {1: 2}
    for call in (flow.run(params=wrong), flow.submit(params=wrong), parent.run()):
        # A run that is loaded from its storage has names only.
        with pytest.raises(InvalidOption, match="params has the key 1: give names as keys"):
            await call
    assert [run.status async for run in flow.runs()] == []


@pytest.mark.parametrize("wrong", ["x", float("nan"), True])
async def test_timeouts_that_are_not_seconds_are_refused(storage: Storage, wrong: Any) -> None:
    handle = await linear(Say([], "a"), storage=storage).submit()
    with pytest.raises(InvalidOption, match=r"timeout=.*: give a number of seconds, or None"):
        await handle.result(timeout=wrong)


class Merging(Node):
    """Merges fields into its own run from outside, and then sets fields."""

    def __init__(self, storage: Storage, name: str, fields: dict[str, Any], **own: Any) -> None:
        super().__init__(name=name)
        self.storage, self.fields, self.own = storage, fields, own

    async def exec(self, prep_res: Any) -> None:
        await StateStorage(self.storage).merge_state("r", self.fields)

    def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> None:
        shared["seen"] = [*shared.get("seen", []), (self.name, shared.get("price"))]
        shared.update(self.own)


class Seeing(Node):
    """Records a field as it is when the node runs."""

    def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> None:
        shared["seen"] = [*shared.get("seen", []), (self.name, shared.get("price"))]


async def stored_and_returned(flow: NodeFlow, storage: Storage, **shared: Any) -> dict[str, Any]:
    """Return the result of a run, which is also what is stored."""
    final = await flow.run(shared, flow_id="r")
    assert final is shared
    assert await StateStorage(storage).get_state("r") == await flow.resume("r") == final
    return final


@pytest.mark.every_backend
async def test_the_next_node_and_the_caller_get_fields_that_are_merged_from_outside(storage: Storage) -> None:
    large = {"price": 2, "text": "x" * 200_000, "new": [1]}
    flow = linear(
        Merging(storage, "a", large), Seeing(name="b"), Merging(storage, "c", {"price": 3}), storage=storage, keep=True
    )
    final = await stored_and_returned(flow, storage, price=1, text="y" * 200_000)
    assert final == {**large, "price": 3, "seen": [("a", 1), ("b", 2), ("c", 2)]}


async def test_a_field_that_a_node_sets_wins_over_a_merged_one(storage: Storage) -> None:
    flow = linear(
        Merging(storage, "a", {"price": 2, "x": 2}, price=5),
        Merging(storage, "b", {"price": 3, "x": 3}, price=6),
        storage=storage,
        keep=True,
    )
    final = await stored_and_returned(flow, storage, price=1, x=1)
    assert final == {"price": 6, "x": 3, "seen": [("a", 1), ("b", 5)]}


async def test_fields_that_are_merged_while_branches_run_are_not_changes_of_the_branches(storage: Storage) -> None:
    branches = parallel(
        linear(Merging(storage, "a", {"price": 2}, left=1), Node(name="b")),
        linear(Node(name="c"), Node(name="d"), Node(name="e")),
    )
    flow = linear(Seeing(name="start"), branches, Seeing(name="end"), storage=storage, keep=True)
    final = await stored_and_returned(flow, storage, price=1)
    assert final == {"price": 2, "left": 1, "seen": [("start", 1), ("a", 1), ("end", 2)]}


async def test_fields_are_merged_that_were_written_before_mail_was_read(storage: Storage) -> None:
    flow: NodeFlow

    class Signalling(Merging):
        async def exec(self, prep_res: Any) -> None:
            await super().exec(prep_res)
            await flow.signal("r", "paid")
            # The runner reads its mail in the background.
            await asyncio.sleep(0.1)

    first = Signalling(storage, "a", {"price": 2})
    # Signals are refused unless a node waits for them.
    first.next(Wait("unpaid", signal="paid"), "unpaid")
    flow = linear(first, Seeing(name="b"), Signalling(storage, "c", {"price": 3}), storage=storage, keep=True)
    final = await stored_and_returned(flow, storage, price=1)
    assert final == {"price": 3, "seen": [("a", 1), ("b", 2), ("c", 2)]}


async def test_a_run_whose_merged_fields_cannot_be_read_has_not_failed(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    perform = storage.perform

    async def unavailable(operation: Any) -> Any:
        if isinstance(operation, Get) and operation.address.namespace == RUNS:
            raise StorageUnavailable("the server")
        return await perform(operation)

    flow = linear(Merging(storage, "a", {"price": 2}), Merging(storage, "b", {"price": 3}), storage=storage, keep=True)
    # The first merges of a process read their record, to check its key.
    await StateStorage(storage).update_state("another", {"price": 1})
    await StateStorage(storage).merge_state("another", {"price": 2})
    with monkeypatch.context() as patch:
        patch.setattr(storage, "perform", unavailable)
        with pytest.raises(StorageUnavailable):
            await flow.run({"price": 1}, flow_id="r")
    assert (await flow.status("r")).status == "running"
    assert (await flow.resume("r"))["price"] == 3


async def test_loops_resume_with_their_visit_counts(storage: Storage) -> None:
    ran: list[str] = []

    class Loop(Node):
        async def exec(self, prep_res: Any) -> None:
            ran.append(step().id)
            if len(ran) == 4:
                raise Boom

        def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> str:
            shared["n"] = shared.get("n", 0) + 1
            return "again" if shared["n"] < 6 else "done"

    loop = Loop()
    loop - "again" >> loop
    loop - "done" >> Say(ran, "end")
    flow = NodeFlow(start=loop, storage=storage, max_steps=7)
    with pytest.raises(Boom):
        await flow.run(flow_id="r")
    assert (await flow.resume("r"))["n"] == 6
    assert ran == [*[f"r/Loop/{n}" for n in (1, 2, 3, 4, 4, 5, 6)], "r/end/1"]


async def test_the_same_graph_declared_in_another_order_is_the_same(storage: Storage) -> None:
    ran: list[str] = []

    def made(order: list[str]) -> NodeFlow:
        nodes = {name: Say(ran, name) for name in "abc"}
        nodes["b"].fails = [Boom()] if order[0] == "x" else []
        flow = NodeFlow(start=nodes["a"], storage=storage)
        flow.connect(nodes["b"], nodes["c"])
        for action in order:
            flow.connect(nodes["a"], nodes[{"x": "c", "default": "b"}[action]], action=action)
        return flow

    with pytest.raises(Boom):
        await made(["x", "default"]).run(flow_id="r")
    await made(["default", "x"]).resume("r")
    assert ran == ["r/a/1", "r/b/1", "r/b/1", "r/c/1"]


async def test_nested_flows_resume_at_their_own_last_completed_node(storage: Storage) -> None:
    ran: list[str] = []

    class Inner(NodeFlow):
        def prep(self, shared: dict[str, Any]) -> Any:
            ran.append("prep")
            return {"token": (1, 2)}

        def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> Any:
            ran.append("post")
            shared["token"] = prep_res["token"]
            if fails_post:
                raise fails_post.pop()
            return exec_res

    fails_post: list[BaseException] = [Boom()]
    deepest = linear(Say(ran, "x"), Say(ran, "y", fails=[Boom()]), name="deepest")
    inner = Inner(name="inner")
    last = Say(ran, "z")
    inner.connect(deepest, last).start(deepest)
    flow = linear(Say(ran, "a"), inner, Say(ran, "b"), name="outer", storage=storage)
    with pytest.raises(Boom):
        await flow.run(flow_id="r")
    run = await flow.status("r")
    assert run.node == "inner/deepest/y"
    assert run.path == ("a", "inner/deepest/x")
    with pytest.raises(Boom):
        await flow.resume("r")
    final = await flow.resume("r")
    assert final == {"said": ["a", "x", "y", "z", "b"], "token": (1, 2)}
    assert ran == [
        *("r/a/1", "prep", "r/inner/deepest/x/1", "r/inner/deepest/y/1"),
        *("r/inner/deepest/y/1", "r/inner/z/1", "post"),
        *("post", "r/b/1"),
    ]


async def test_prep_and_post_of_the_outermost_flow_run_once(storage: Storage) -> None:
    ran: list[str] = []

    class Outer(NodeFlow):
        def prep(self, shared: dict[str, Any]) -> Any:
            ran.append("prep")
            shared["prepared"] = True
            return [1]

        def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> Any:
            ran.append("post")
            if fails:
                raise fails.pop()
            return "done", {"prep_res": prep_res}

    fails: list[BaseException] = [Boom()]
    # A node may have the flow's own name.
    a, b = Say(ran, "outer"), Say(ran, "b", fails=[Boom()])
    flow = Outer(name="outer", storage=storage, keep=True).connect(a, b).start(a)
    for call in (flow.run(flow_id="r"), flow.resume("r")):
        with pytest.raises(Boom):
            await call
    assert await flow.resume("r") == {"prepared": True, "said": ["outer", "b"], "prep_res": [1]}
    assert ran == ["prep", "r/outer/1", "r/b/1", "r/b/1", "post", "post"]
    assert await flow.resume("r") == {"prepared": True, "said": ["outer", "b"], "prep_res": [1]}


async def test_branches_resume_at_their_own_last_completed_node(storage: Storage) -> None:
    ran: list[str] = []

    class Set(Say):
        def post(self, shared: dict[str, Any], prep_res: Any, exec_res: str) -> None:
            assert "gone" not in shared or self.name in ("a", "d")
            shared[exec_res] = [exec_res]
            shared.pop("gone", None)

    a, b, c, d = (Set(ran, name) for name in "abcd")
    a >> b >> c
    b.fails = [Boom()]
    d.fails = []

    class Slow(Set):
        async def exec(self, prep_res: Any) -> str:
            await asyncio.sleep(0.05)
            return await super().exec(prep_res)

    e = Slow(ran, "e")
    d >> e
    both = parallel(a, d, name="both", on_error="collect")
    flow = NodeFlow(start=both, storage=storage).connect(both, Say(ran, "end"))
    with pytest.raises(ExceptionGroup):
        await flow.run({"gone": 1, "base": 1}, flow_id="r")
    run = await flow.status("r")
    assert run.branches == {"both/0": "both/0/b"}
    assert [error.node for error in run.errors] == ["both/0/b"]
    assert await StateStorage(storage).get_state("r") == {"gone": 1, "base": 1}
    final = await flow.resume("r")
    assert final == {"base": 1, "a": ["a"], "b": ["b"], "c": ["c"], "d": ["d"], "e": ["e"], "said": ["end"]}
    assert sorted(ran) == sorted(
        [
            *("r/both/0/a/1", "r/both/0/b/1", "r/both/0/b/1", "r/both/0/c/1"),
            *("r/both/1/d/1", "r/both/1/e/1", "r/end/1"),
        ]
    )


async def test_a_branch_that_takes_a_field_back_joins_as_if_it_had_not_touched_it(storage: Storage) -> None:
    class Change(Node):
        def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> None:
            shared["old"], shared["x"] = shared["x"], 1
            shared["new"] = 1

    class Back(Node):
        def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> None:
            shared["x"] = shared.pop("old")
            del shared["new"]

    ran: list[str] = []
    change, back, fails = Change(), Back(), Say(ran, "f", fails=[Boom()])
    change >> back >> fails
    both = parallel(change, Say(ran, "other"), merge={"said": lambda values: [*values[0], *values[1]]})
    flow = NodeFlow(start=both, storage=storage)
    with pytest.raises(Boom):
        await flow.run({"x": "as it was"}, flow_id="r")
    assert await flow.resume("r") == {"x": "as it was", "said": ["f", "other"]}


@pytest.mark.parametrize(
    ("value", "other"),
    [
        (404, 404),
        (200, 200),
        ("status", "status"),
        ([{"n": 0.5}], [{"n": 0.5}]),
        ((1, 2), (1, 2)),
        (1, True),
        (0.0, -0.0),
        ("base", "changed"),
    ],
    ids=repr,
)
async def test_a_resume_between_two_branches_joins_as_the_undisturbed_run(
    storage: Storage, value: Any, other: Any
) -> None:
    class Put(Say):
        value: Any = None

        def post(self, shared: dict[str, Any], prep_res: Any, exec_res: str) -> None:
            shared["x"] = self.value

    def made(*fails: BaseException) -> NodeFlow:
        one, two = Put([], "one"), Put([], "two", fails=list(fails))
        one.value, two.value = copy.deepcopy(value), copy.deepcopy(other)
        # With "collect" the first branch ends, and is committed, whenever the second one fails.
        return linear(parallel(one, two, on_error="collect"), Say([], "end"), storage=storage)

    async def outcome(running: Any) -> Any:
        try:
            return await running
        except MergeConflict as conflict:
            return repr(conflict)

    undisturbed = await outcome(made().run({"x": "base"}, flow_id="undisturbed"))
    with pytest.raises(ExceptionGroup):
        await made(Boom()).run({"x": "base"}, flow_id="disturbed")
    resumed = await outcome(made().resume("disturbed"))
    assert repr(resumed) == repr(undisturbed)
    agreed = type(value) is type(other) and repr(value) == repr(other)
    if agreed or value == "base":
        assert repr(resumed["x"]) == repr(other)
    else:
        assert "MergeConflict" in resumed


async def test_branches_in_branches_and_nested_flows_resume(storage: Storage) -> None:
    ran: list[str] = []

    class Set(Say):
        def post(self, shared: dict[str, Any], prep_res: Any, exec_res: str) -> None:
            shared[exec_res] = shared["x"]

    fails: list[BaseException] = [Boom()]
    inner = parallel(linear(Set(ran, "p"), Set(ran, "q", fails=fails)), Set(ran, "r"), name="inner")
    first = Set(ran, "o")
    first >> inner
    flow = linear(parallel(first, Set(ran, "s"), name="outer"), Set(ran, "end"), storage=storage)
    with pytest.raises(Boom):
        await flow.run({"x": [1]}, flow_id="run")
    assert "outer/0/inner/0/flow/q" in (await flow.status("run")).branches.values()
    final = await flow.resume("run")
    assert final == {"x": [1], **{name: [1] for name in "opqrs"}, "end": [1]}
    completed = [place for place in ran if "/q/" not in place]
    assert len(set(completed)) == len(completed) == 5


async def test_what_a_branch_cannot_keep_names_its_node(storage: Storage) -> None:
    class Odd(Node):
        def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> None:
            shared["odd"] = {"x": object()}

    odd = Odd()
    odd >> Say([], "next")
    with pytest.raises(Unstorable, match=r"after node 'p/0/Odd': \$\.odd\.x \(object\)"):
        await NodeFlow(start=parallel(odd, name="p")).run(storage=storage)


async def test_run_sync_and_resume_sync_use_the_background_loop(backend: Backend) -> None:
    storage = backend.storage()
    ran: list[str] = []
    flow = linear(Say(ran, "a"), Say(ran, "b", fails=[Boom()]), storage=storage)

    def work() -> Any:
        with contextlib.suppress(Boom):
            flow.run_sync(flow_id="r")
        final = flow.resume_sync("r")
        stepwell.sync(storage.close())
        return final

    assert await asyncio.to_thread(work) == {"said": ["a", "b"]}


async def test_invalid_options_raise() -> None:
    with pytest.raises(InvalidOption, match="storage"):
        NodeFlow(storage=object())  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="storage"):
        await linear(Say([], "a")).run(storage=object())  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="id of a wait"):
        await linear(Say([], "a")).run(storage=stepwell.MemoryStorage(), flow_id="wait:1:r/a/1")


@pytest.mark.parametrize("asked", [{"if_exists": "resume"}, {"keep": True}, {"keep": 60}], ids=str)
async def test_without_a_storage_nothing_is_kept_or_found_again(asked: dict[str, Any]) -> None:
    ran: list[str] = []
    plain = linear(Node(inline=True), keep=True)
    with pytest.raises(InvalidOption, match="needs a storage"):
        await linear(Say(ran, "a")).run(flow_id="r", **asked)
    with pytest.raises(InvalidOption, match="needs a storage"):
        plain.run_sync(flow_id="r", **asked)
    assert ran == []
    assert plain.run_sync({"x": 1}, keep=False) == {"x": 1}


async def test_resume_and_status_use_the_configured_storage() -> None:
    storage = stepwell.MemoryStorage()
    flow = linear(Say([], "a", fails=[Boom()]))
    with pytest.raises(Boom):
        await flow.run(storage=storage, flow_id="r")
    stepwell.configure(storage=storage)
    try:
        assert (await flow.status("r")).status == "failed"
        assert await flow.resume("r") == {"said": ["a"]}
    finally:
        stepwell.configure(storage=None)


async def test_events_of_a_durable_run(storage: Storage) -> None:
    events: list[Any] = []
    flow = linear(Say([], "a"), Say([], "b", fails=[Boom()]), storage=storage)
    with pytest.raises(Boom):
        await flow.run(flow_id="r", on_event=events.append)
    assert [event.kind for event in events] == [
        *("run.started", "node.started", "node.finished", "node.started", "node.failed", "run.failed"),
    ]
    events.clear()
    await flow.resume("r", on_event=events.append)
    assert [(event.kind, event.node) for event in events] == [
        *(("run.started", "flow"), ("node.started", "b"), ("node.finished", "b"), ("run.finished", "flow")),
    ]


async def test_a_long_run_writes_as_much_per_node_at_its_end_as_at_its_beginning(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = linear(*[Node(name=f"n{number}", inline=True) for number in range(200)])
    watching = Watching(storage, monkeypatch)
    await flow.run({"big": ["x" * 100] * 100}, storage=storage)
    heads = [len(o.change.head.text) for o in watching.operations if isinstance(o, Apply) and not o.change.delete]
    assert max(heads[150:]) < 1.2 * max(heads[25:50])
    assert all(not o.change.set for o in watching.operations[2:] if isinstance(o, Apply))
    assert not any(isinstance(operation, Get) for operation in watching.operations)


async def test_runs_are_found_by_their_flow_and_status_and_are_in_no_index_by_node(storage: Storage) -> None:
    flow = linear(Say([], "a"), Say([], "b", fails=[Boom()]), name="f", storage=storage)
    with pytest.raises(Boom):
        await flow.run(flow_id="r")
    await storage.set_state("bot", "r", State("f", "b"))
    assert [entry.key async for entry in storage.scan(RUNS, flow="f")] == ["r"]
    assert [entry.key async for entry in storage.scan(RUNS, flow="f", state="failed")] == ["r"]
    assert [entry.key async for entry in storage.scan(RUNS, state="b")] == []
    assert [entry.key async for entry in storage.scan("bot", state="b")] == ["r"]
    async with MemoryStorage() as target:
        await copy_records(storage, target)
        assert [entry.key async for entry in target.scan(RUNS, flow="f", state="failed")] == ["r"]
        assert [entry.key async for entry in target.scan(RUNS, state="b")] == []
        assert [entry.key async for entry in target.scan("bot", state="b")] == ["r"]
