"""Sagas: the undos of completed nodes, after a failure and after a cancellation."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from stepwell import MemoryStorage, Storage
from stepwell.errors import InvalidGraph, RunCancelled, RunFailed, RunStuck, Unstorable, UsageError
from stepwell.nodes import BatchNode, Node, NodeFlow, RunHandle, Wait, effect, linear, parallel, step, worker
from stepwell.storage import Apply
from stepwell.testing import Clock
from tests.backends import Backend
from tests.until import until

Ledger = list[tuple[str, str]]


@pytest.fixture
async def storage(backend: Backend) -> Storage:
    storage = backend.storage()
    await storage.open()
    return storage


class Boom(Exception):
    pass


class Book(Node):
    """Books something, and undoes it."""

    def __init__(self, ledger: Ledger, name: str, *, broken: list[Exception] | None = None, **options: Any) -> None:
        super().__init__(name=name, **options)
        self.ledger = ledger
        self.broken = [] if broken is None else broken

    async def exec(self, prep_res: Any) -> str:
        self.ledger.append(("booked", step().id))
        return f"receipt of {self.name}"

    async def undo(self, shared: dict[str, Any], result: str) -> None:
        assert result == f"receipt of {self.name}"
        if self.broken:
            raise self.broken.pop()
        self.ledger.append(("undone", step().id))
        shared["undone"] = [*shared.get("undone", []), self.name]


class Fails(Node):
    """Fails as long as it is broken."""

    broken = True

    async def exec(self, prep_res: Any) -> None:
        if self.broken:
            raise Boom("sold out")


def saga(ledger: Ledger, last: Node | type[Node] = Fails, **options: Any) -> NodeFlow:
    return linear(*[Book(ledger, name) for name in "abcde"], last, name="saga", **options)


BOOKED = [("booked", f"r/{name}/1") for name in "abcde"]
UNDONE = [("undone", f"r/{name}/1") for name in "edcba"]


async def test_a_failed_run_undoes_its_completed_nodes_the_last_one_first(storage: Storage) -> None:
    ledger: Ledger = []
    flow = saga(ledger, storage=storage)
    with pytest.raises(Boom):
        await flow.run(shared := {"n": 1}, flow_id="r")
    assert ledger == [*BOOKED, *UNDONE]
    assert shared == {"n": 1}
    run = await flow.status("r")
    assert (run.status, run.node, run.undoing, run.errors[0].message) == ("failed", "Fails", None, "sold out")
    assert [(each.node, each.visit) for each in run.undone] == [(name, 1) for name in "edcba"]


async def test_a_run_without_a_storage_undoes_its_nodes_too() -> None:
    ledger: Ledger = []
    with pytest.raises(Boom):
        await saga(ledger).run(shared := {}, flow_id="r")
    assert ledger == [*BOOKED, *UNDONE]
    assert shared == {"undone": list("edcba")}

    class Plain(Node):
        def undo(self, shared: dict[str, Any], result: Any) -> None:
            shared["undone"] = result

        def exec(self, prep_res: Any) -> int:
            return 7

    class Last(Node):
        def post(self, shared: Any, prep_res: Any, exec_res: Any) -> None:
            raise Boom

    with pytest.raises(Boom):
        linear(Plain(inline=True), Last(inline=True)).run_sync(shared := {})
    assert shared == {"undone": 7}


async def test_a_failed_undo_in_memory_is_added_to_the_error_and_the_others_run() -> None:
    ledger: Ledger = []
    flow = linear(Book(ledger, "a"), Book(ledger, "b", broken=[KeyError("lost")]), Fails)
    with pytest.raises(Boom) as caught:
        await flow.run(flow_id="r")
    assert "lost" in "".join(caught.value.__notes__)
    assert ledger[-1] == ("undone", "r/a/1")


async def test_a_run_that_finishes_undoes_nothing(storage: Storage) -> None:
    ledger: Ledger = []
    await saga(ledger, Node(name="last"), storage=storage, keep=60).run(flow_id="r")
    assert ledger == BOOKED


async def test_a_node_whose_post_fails_has_done_its_work_and_is_undone_too(storage: Storage) -> None:
    class Half(Book):
        def post(self, shared: Any, prep_res: Any, exec_res: Any) -> None:
            raise Boom

    ledger: Ledger = []
    flow = linear(Book(ledger, "a"), Half(ledger, "b"))
    for options in ({}, {"storage": storage}):
        ledger.clear()
        with pytest.raises(Boom):
            await flow.run(flow_id="r", **options)
        assert [each for each in ledger if each[0] == "undone"] == [("undone", "r/b/1"), ("undone", "r/a/1")]


@pytest.mark.parametrize("awaits", [True, False])
@pytest.mark.parametrize("stored", [True, False])
async def test_a_node_whose_exec_fails_in_its_only_attempt_is_not_undone_itself(
    storage: Storage, stored: bool, awaits: bool
) -> None:
    class Unsold(Book):
        async def exec(self, prep_res: Any) -> str:
            if awaits:
                await asyncio.sleep(0)
            raise Boom("sold out")

        async def undo(self, shared: dict[str, Any], result: Any) -> None:
            ledger.append(("undone", "the node that failed"))

    ledger: Ledger = []
    options = {"storage": storage} if stored else {}
    with pytest.raises(Boom, match="sold out"):
        await linear(Book(ledger, "a"), Unsold(ledger, "b"), name="saga", **options).run(flow_id="r")
    assert ledger == [("booked", "r/a/1"), ("undone", "r/a/1")]

    unsold = Unsold(ledger, "b")
    unsold - "error" >> Node(name="caught")
    start = Book(ledger, "a")
    start >> unsold
    await NodeFlow(start, name="catching", **options).run(flow_id="s")
    assert ("undone", "s/a/1") not in ledger


async def test_a_worker_that_stops_within_a_node_that_can_be_undone_leaves_its_run_to_the_next_worker(
    storage: Storage,
) -> None:
    ledger: Ledger = []
    began, may_end = asyncio.Event(), asyncio.Event()

    class Slow(Book):
        async def exec(self, prep_res: Any) -> str:
            began.set()
            await may_end.wait()
            return await super().exec(prep_res)

    flow = linear(Book(ledger, "a"), Slow(ledger, "b"), name="saga", storage=storage, keep=True)
    async with worker([flow], drain=0):
        handle = await flow.submit({}, flow_id="r")
        await began.wait()
    run = await handle.status()
    assert (run.status, run.undone, run.errors) == ("running", (), ())
    may_end.set()
    async with worker([flow]):
        await handle.result(timeout=10)
    assert ledger == [("booked", "r/a/1"), ("booked", "r/b/1")]


async def test_nodes_in_loops_branches_nested_flows_and_batches_are_undone(storage: Storage) -> None:
    class Again(Book):
        def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> str:
            shared["turns"] = shared.get("turns", 0) + 1
            return "again" if shared["turns"] < 3 else "on"

    class Items(BatchNode):
        def prep(self, shared: Any) -> list[int]:
            return [1, 2]

        async def exec(self, item: int) -> int:
            return item * 10

        async def undo(self, shared: Any, results: list[int]) -> None:
            ledger.append(("undone", f"items {results}"))

    ledger: Ledger = []
    again = Again(ledger, "again")
    last = linear(linear(Book(ledger, "inner"), name="nested"), Items(name="items"), Fails, name="last")
    again - "again" >> again
    again - "on" >> parallel(Book(ledger, "left"), Book(ledger, "right"), name="both") >> last
    flow = NodeFlow(start=again, name="mixed")
    for options in ({}, {"storage": storage}):
        ledger.clear()
        with pytest.raises(Boom):
            await flow.run(flow_id="r", **options)
        undone = [text for what, text in ledger if what == "undone"]
        assert undone[:2] == ["items [10, 20]", "r/last/nested/inner/1"]
        assert set(undone[2:4]) == {"r/both/0/left/1", "r/both/1/right/1"}
        assert undone[4:] == ["r/again/3", "r/again/2", "r/again/1"]


async def test_an_error_that_an_edge_catches_undoes_nothing(storage: Storage) -> None:
    ledger: Ledger = []
    fails = Fails()
    fails - "error" >> Book(ledger, "handler")
    flow = linear(Book(ledger, "a"), fails, storage=storage)
    await flow.run(flow_id="r")
    assert ledger == [("booked", "r/a/1"), ("booked", "r/handler/1")]


async def test_a_def_undo_runs_in_a_thread_and_has_the_params_of_its_node(storage: Storage) -> None:
    class Charge(Node):
        def exec(self, prep_res: Any) -> int:
            return 5

        def undo(self, shared: dict[str, Any], result: int) -> None:
            with pytest.raises(RuntimeError):
                asyncio.get_running_loop()
            seen.append((result, self.params))

    seen: list[Any] = []
    inner = linear(Charge, name="inner")
    inner.params = {"inner": 1, "both": "inner"}
    with pytest.raises(Boom):
        await linear(inner, Fails).run(storage=storage, params={"both": "run"})
    assert seen == [(5, {"inner": 1, "both": "run"})]


async def test_an_undo_has_the_attempts_of_its_node(storage: Storage) -> None:
    ledger: Ledger = []
    flow = linear(Book(ledger, "a", broken=[Boom(), Boom()], max_retries=3), Fails, storage=storage)
    with pytest.raises(Boom, match="sold out"):
        await flow.run(flow_id="r")
    assert ledger[-1] == ("undone", "r/a/1")


async def test_a_run_whose_undo_fails_for_good_is_stuck_and_goes_on_there_when_it_is_retried(storage: Storage) -> None:
    ledger: Ledger = []
    broken: list[Exception] = [Boom("the bank is closed"), Boom("the bank is closed")]
    b = Book(ledger, "b", broken=broken)
    flow = linear(Book(ledger, "a"), b, Book(ledger, "c"), Fails, name="saga", storage=storage)
    with pytest.raises(RunStuck, match=r"undo\(\) of node 'b' failed with Boom: the bank is closed"):
        await flow.run(flow_id="r")
    run = await flow.status("r")
    assert (run.status, run.undoing, [each.node for each in run.undone]) == ("stuck", "failed", ["c"])
    with pytest.raises(RunStuck):
        await flow.resume("r")
    async with worker([flow]):
        assert await flow.retry("r") == 1
        with pytest.raises(RunFailed, match="sold out; its completed nodes were undone; start a new run") as failed:
            await RunHandle("r", flow).result(timeout=30)
    assert "flow.resume" not in str(failed.value)
    run = await flow.status("r")
    assert [each.node for each in run.undone] == ["c", "b", "a"]
    assert [error.message for error in run.errors[:2]] == ["sold out", "the bank is closed"]
    assert ledger[3:] == [("undone", f"r/{name}/1") for name in "cba"]


async def test_the_error_of_an_undo_names_the_attempt_that_has_failed_last(storage: Storage) -> None:
    flow = linear(Book([], "a", broken=[Boom("2"), Boom("1")], max_retries=2), Fails, storage=storage)
    with pytest.raises(RunStuck):
        await flow.run(flow_id="r")
    error = (await flow.status("r")).errors[0]
    assert (error.node, error.message, error.attempt) == ("a", "2", 2)


async def test_a_stuck_undo_can_be_given_up_by_cancelling_the_run(storage: Storage) -> None:
    ledger: Ledger = []
    flow = linear(Book(ledger, "a"), Book(ledger, "b", broken=[Boom()]), Fails, storage=storage)
    with pytest.raises(RunStuck):
        await flow.run(flow_id="r")
    await flow.cancel("r", "refunded by hand")
    run = await flow.status("r")
    assert (run.status, run.reason, run.undone) == ("cancelled", "refunded by hand", ())
    assert ("undone", "r/a/1") not in ledger


async def test_a_run_whose_nodes_were_undone_does_not_go_on_where_it_failed(storage: Storage) -> None:
    flow = saga([], storage=storage)
    with pytest.raises(Boom):
        await flow.run(flow_id="r")
    with pytest.raises(UsageError, match="were undone"):
        await flow.resume("r")
    with pytest.raises(UsageError, match="were undone"):
        await flow.retry("r")


async def test_retrying_several_runs_skips_those_that_were_undone(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    undone = saga([], storage=storage)
    plain = linear(Fails, name="saga", storage=storage)
    for flow, flow_id in ((undone, "r"), (plain, "s"), (undone, "t")):
        with pytest.raises(Boom):
            await flow.run({}, flow_id=flow_id)
    assert await undone.retry(["r", "s"]) == 1
    assert await undone.retry() == 0
    assert caplog.text.count("its completed nodes were undone") == 3


@pytest.mark.every_backend
async def test_cancelling_a_parked_run_undoes_its_nodes(storage: Storage) -> None:
    ledger: Ledger = []
    flow = saga(ledger, Wait("go"), storage=storage)
    await flow.run(flow_id="r", on_park="return")
    await flow.cancel("r", "too expensive")
    assert ledger == [*BOOKED, *UNDONE]
    run = await flow.status("r")
    assert (run.status, run.reason, len(run.undone), run.waits) == ("cancelled", "too expensive", 5, ())


async def test_a_worker_undoes_a_run_that_an_operator_without_the_code_cancels(storage: Storage) -> None:
    ledger: Ledger = []
    flow = saga(ledger, Wait("go"), storage=storage)
    await flow.run(flow_id="r", on_park="return")
    await flow.pause("r")
    await NodeFlow(name="saga").cancel("r", storage=storage)
    run = await flow.status("r")
    assert (run.status, run.undoing) == ("running", "cancelled")
    async with worker([flow]):
        with pytest.raises(RunCancelled):
            await RunHandle("r", flow).result(timeout=30)
    assert ledger == [*BOOKED, *UNDONE]


@pytest.mark.parametrize("how", ["cancel", "the call"])
async def test_cancelling_a_busy_run_undoes_its_nodes(storage: Storage, how: str) -> None:
    class Hangs(Node):
        async def exec(self, prep_res: Any) -> None:
            started.set()
            await asyncio.Event().wait()

    ledger: Ledger = []
    started = asyncio.Event()
    flow = saga(ledger, Hangs, storage=storage)
    running = asyncio.ensure_future(flow.run(flow_id="r", on_cancel="cancel"))
    await started.wait()
    if how == "cancel":
        await flow.cancel("r")
        with pytest.raises(RunCancelled):
            await running
    else:
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        with pytest.raises(RunCancelled):
            await flow.resume("r")
    assert ledger == [*BOOKED, *UNDONE]
    assert (await flow.status("r")).status == "cancelled"


async def test_cancelling_a_queued_run_has_nothing_to_undo(storage: Storage) -> None:
    ledger: Ledger = []
    flow = saga(ledger, storage=storage)
    await flow.submit(flow_id="r")
    await flow.cancel("r")
    assert ((await flow.status("r")).status, ledger) == ("cancelled", [])


async def test_cancelling_a_parent_undoes_its_waiting_child(storage: Storage) -> None:
    class Order(Node):
        async def exec(self, prep_res: Any) -> Any:
            child = await step().child(flow, id="saga")
            return await child.result()

    ledger: Ledger = []
    flow = saga(ledger, Wait("go"), storage=storage)
    parent = linear(Order, name="parent", storage=storage)
    async with worker([flow, parent]):
        await parent.submit(flow_id="p")
        await until(lambda: flow.runs("parked"), lambda runs: len(runs) == 1)
        await parent.cancel("p")
        await until(lambda: flow.runs("cancelled"), lambda runs: len(runs) == 1)
    assert [what for what, _ in ledger] == ["booked"] * 5 + ["undone"] * 5


async def test_a_node_that_was_removed_makes_its_undo_stuck_and_a_renamed_one_is_found(storage: Storage) -> None:
    ledger: Ledger = []
    await saga(ledger, Wait("go"), storage=storage).run(flow_id="r", on_park="return")
    removed = linear(*[Book(ledger, name) for name in "abcd"], Wait("go"), name="saga", storage=storage)
    with pytest.raises(RunStuck, match="'e' has completed and must be undone, and is not a node"):
        await removed.cancel("r")
    nodes = [Book(ledger, name) for name in "abcd"]
    last = Book(ledger, "last")
    last.undo = Book(ledger, "e").undo  # type: ignore[method-assign]
    renamed = linear(*nodes, last, Wait("go"), name="saga", storage=storage, renamed={"e": "last"})
    with pytest.raises(RunCancelled):
        await renamed.resume("r")
    assert [each for each in ledger if each[0] == "undone"] == [("undone", "r/last/1"), *UNDONE[1:]]


async def test_a_result_that_cannot_be_stored_fails_its_node(storage: Storage) -> None:
    class Odd(Node):
        async def exec(self, prep_res: Any) -> object:
            return {"receipt": object()}

        async def undo(self, shared: Any, result: Any) -> None:
            pass

    with pytest.raises(Unstorable, match="the result of exec"):
        await linear(Odd, Node, storage=storage).run()


def test_an_undo_of_a_flow_is_a_problem_of_the_graph() -> None:
    class Whole(NodeFlow):
        def undo(self, shared: Any, result: Any) -> None:
            pass

    with pytest.raises(InvalidGraph, match=r"undo\(\) to these nodes"):
        NodeFlow(start=Whole(start=Fails, name="whole")).run_sync()


class Killed(BaseException):
    pass


@pytest.mark.parametrize("ends", ["finished", "failed", "cancelled"])
@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
async def test_a_saga_that_is_killed_at_any_commit_ends_like_an_undisturbed_one(ends: str, applied: bool) -> None:
    clock = Clock()
    storage = MemoryStorage(clock=clock)
    perform = storage.perform
    flow_id = "r"

    def made(ledger: Ledger) -> NodeFlow:
        last: dict[str, Any] = {"finished": Node(name="last"), "failed": Fails, "cancelled": Wait("go")}
        return saga(ledger, last[ends], storage=storage, keep=True)

    async def to_the_end(flow: NodeFlow) -> Any:
        """Run it to its end, as often as it takes, and return how it has ended."""
        with contextlib.suppress(Boom, RunFailed, RunCancelled, UsageError):
            await flow.run(flow_id=flow_id, if_exists="resume", on_park="return")
        if ends == "cancelled":
            await flow.cancel(flow_id)
        run = await flow.status(flow_id)
        return run.status, [(each.node, each.visit) for each in run.undone]

    async def killed_at(at: int) -> tuple[Any, Ledger, bool]:
        commits = 0

        async def dying(operation: Any) -> Any:
            nonlocal commits
            commits += isinstance(operation, Apply)
            if commits > at:
                if applied and commits == at + 1 and isinstance(operation, Apply):
                    await perform(operation)
                    commits += 1
                raise Killed
            return await perform(operation)

        ledger: Ledger = []
        storage.perform = dying  # type: ignore[method-assign]
        try:
            await to_the_end(made(ledger))
            return None, ledger, False
        except (Killed, BaseExceptionGroup):
            storage.perform = perform  # type: ignore[method-assign]
            clock.advance(60)
            return await to_the_end(made(ledger)), ledger, True
        finally:
            storage.perform = perform  # type: ignore[method-assign]

    wanted_ledger: Ledger = []
    flow_id = "calm"
    wanted = await to_the_end(made(wanted_ledger))
    assert wanted[0] == ends
    kills = 0
    for at in range(100):
        flow_id = f"r{at}"
        result, ledger, died = await killed_at(at)
        if not died:
            break
        kills += 1
        assert result == wanted, f"killed at commit {at}"
        # At most the node whose commit was lost has run twice; nothing was left out, and all in order.
        once = list(dict.fromkeys((what, text.split("/")[1]) for what, text in ledger))
        assert once == [(what, text.split("/")[1]) for what, text in wanted_ledger], f"killed at commit {at}"
        assert len(ledger) <= len(wanted_ledger) + 1
    assert kills >= (6 if ends == "finished" else 12)


async def test_a_run_whose_timeout_passes_is_undone(storage: Storage) -> None:
    ledger: Ledger = []
    flow = saga(ledger, Wait("go"), storage=storage)
    async with worker([flow]):
        handle = await flow.submit(flow_id="r", timeout=0.3)
        with pytest.raises(RunCancelled, match=r"its timeout of 0\.3 s has passed"):
            await handle.result(timeout=30)
    assert ledger == [*BOOKED, *UNDONE]


async def test_a_run_keeps_its_partition_until_it_is_undone(storage: Storage) -> None:
    class Slow(Book):
        async def undo(self, shared: dict[str, Any], result: str) -> None:
            undoing.set()
            await goes_on.wait()
            await super().undo(shared, result)

    ledger: Ledger = []
    undoing, goes_on = asyncio.Event(), asyncio.Event()
    flow = linear(Slow(ledger, "a"), Wait("go"), name="saga", storage=storage)
    async with worker([flow]):
        first = await flow.submit(flow_id="r", partition="ann")
        second = await flow.submit(flow_id="s", partition="ann")
        await until(first.status, lambda run: run.status == "parked")
        cancelling = asyncio.ensure_future(flow.cancel("r"))
        await undoing.wait()
        assert (await second.status()).status == "queued"
        assert (await first.status()).undoing == "cancelled"
        goes_on.set()
        await cancelling
        await until(second.status, lambda run: run.status == "parked")
    assert ledger == [("booked", "r/a/1"), ("undone", "r/a/1"), ("booked", "s/a/1")]


@pytest.mark.parametrize("state", ["busy", "parked"])
async def test_a_cancelled_run_whose_undo_fails_is_stuck_and_only_a_second_cancel_gives_up(
    storage: Storage, state: str
) -> None:
    class Hangs(Node):
        async def exec(self, prep_res: Any) -> None:
            started.set()
            await asyncio.Event().wait()

    ledger: Ledger = []
    started = asyncio.Event()
    last = Hangs() if state == "busy" else Wait("go")
    flow = linear(Book(ledger, "a"), Book(ledger, "b", broken=[Boom("closed")]), last, name="saga", storage=storage)
    running = asyncio.ensure_future(flow.run(flow_id="r", on_park="return"))
    await (started.wait() if state == "busy" else running)
    with pytest.raises(RunStuck, match="closed"):
        await flow.cancel("r", "too late")
    if state == "busy":
        with pytest.raises(RunStuck, match="closed"):
            await running
    run = await flow.status("r")
    assert (run.status, run.undoing, run.undone) == ("stuck", "cancelled", ())
    with pytest.raises(RunCancelled, match="too late"):
        await flow.resume("r")
    assert ledger[2:] == [("undone", "r/b/1"), ("undone", "r/a/1")]


async def test_an_effect_in_an_undo_does_not_run_twice_unless_somebody_decides_so(storage: Storage) -> None:
    class Charge(Node):
        async def exec(self, prep_res: Any) -> int:
            return await pay(7)

        def post(self, shared: Any, prep_res: Any, exec_res: Any) -> None:
            raise Boom("after the payment")

        async def undo(self, shared: Any, result: int) -> None:
            await refund(result)
            if not repaired:
                raise Boom("after the refund")

    @effect
    async def pay(amount: int) -> int:
        calls.append("pay")
        return amount

    @effect
    async def refund(amount: int) -> None:
        calls.append("refund")

    calls: list[str] = []
    repaired: list[bool] = []
    flow = linear(Charge(replay="never"), storage=storage)
    with pytest.raises(RunStuck, match="after the refund"):
        await flow.run(flow_id="r")
    repaired.append(True)
    with pytest.raises(RunFailed, match="after the payment"):
        await flow.resume("r")
    assert calls == ["pay", "refund"]


async def test_an_undo_that_was_interrupted_in_an_effect_is_stuck_until_somebody_lets_it_go_on(
    storage: Storage,
) -> None:
    class Charge(Node):
        async def undo(self, shared: Any, result: Any) -> None:
            await refund()

    @effect
    async def refund() -> None:
        calls.append("refund")
        if len(calls) == 1:
            begun.set()
            await asyncio.Event().wait()

    calls: list[str] = []
    begun = asyncio.Event()
    flow = linear(Charge, Fails, storage=storage)
    running = asyncio.ensure_future(flow.run(flow_id="r"))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    with pytest.raises(RunStuck, match="refund"):
        await flow.resume("r")
    assert calls == ["refund"]
    with pytest.raises(RunFailed, match="sold out"):
        await flow.resume("r")
    assert calls == ["refund", "refund"]
