"""Child runs: a node waits for them without occupying its run, hears of every end, and cancels them with its run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stepwell import Storage
from stepwell.codec import decode_key
from stepwell.errors import Parked, RunCancelled, RunFailed, RunStuck, UsageError
from stepwell.nodes import BatchNode, Node, NodeFlow, RunHandle, Wait, linear, parallel, step, worker
from stepwell.nodes.queue import children, submitting
from stepwell.nodes.queue.submission import Submission
from stepwell.nodes.run.journal import Journal
from stepwell.record import RUNS, Change, Head
from stepwell.storage import Apply, Get
from stepwell.testing import Clock
from tests.backends import Backend
from tests.nodes.test_durable import Boom, Say
from tests.nodes.test_mail import Gate
from tests.nodes.test_wait import parked
from tests.until import until


@pytest.fixture
async def storage(backend: Backend) -> Storage:
    storage = backend.storage()
    await storage.open()
    return storage


class Double(Node):
    """The work of a child."""

    def prep(self, shared: dict[str, Any]) -> Any:
        return shared["n"]

    async def exec(self, n: int) -> int:
        return 2 * n

    def post(self, shared: dict[str, Any], n: int, doubled: int) -> None:
        shared["doubled"] = doubled


class Ask(Node):
    """Starts a child, and waits for its result."""

    def __init__(self, flow: NodeFlow, **options: Any) -> None:
        super().__init__(name="ask")
        self.flow = flow
        self.options = options

    def prep(self, shared: dict[str, Any]) -> Any:
        shared["prepared"] = shared.get("prepared", 0) + 1
        return shared["n"]

    async def exec(self, n: int) -> Any:
        handle = await step().child(self.flow, {"n": n}, id="double", **self.options)
        return (await handle.result())["doubled"]

    def post(self, shared: dict[str, Any], n: int, doubled: int) -> None:
        shared["doubled"] = doubled


def doubling(storage: Storage | None, *nodes: Node | Wait, **options: Any) -> NodeFlow:
    return linear(*nodes, Double, name="doubling", storage=storage, **options)


async def status_of(flow: NodeFlow, flow_id: str) -> str:
    return (await flow.status(flow_id)).status


def has(flow: NodeFlow, flow_id: str, status: str) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        return await status_of(flow, flow_id) == status

    return check


async def child_of(flow: NodeFlow, flow_id: str) -> str:
    """Return the id of the child that a run waits for."""
    (wait,) = (await flow.status(flow_id)).waits
    (child,) = wait.children
    return child


@pytest.mark.every_backend
async def test_a_node_waits_for_its_child_and_continues_with_its_result(storage: Storage) -> None:
    child = doubling(storage)
    flow = linear(Say([], "a"), Ask(child), Say([], "b"), name="asking", storage=storage)
    handle = await flow.submit({"n": 21}, flow_id="r")
    async with worker([flow, child]):
        final = await handle.result(20)
    # The node ran twice, the second time on the state of its start.
    assert final == {"n": 21, "said": ["a", "b"], "prepared": 1, "doubled": 42}


async def test_a_waiting_parent_is_parked_and_its_status_names_the_child(storage: Storage) -> None:
    child = doubling(storage)
    flow = linear(Ask(child), name="asking", storage=storage, keep=True)
    shared = {"n": 1}
    error = await parked(flow.run(shared, flow_id="r"))
    assert shared == {"n": 1}
    assert "waits at 'ask' for its child runs" in str(error)
    assert await status_of(flow, "r") == "parked"
    waiting = await child_of(flow, "r")
    assert waiting.startswith("r:")
    assert waiting.endswith("/ask/1/double")
    assert await status_of(child, waiting) == "queued"
    assert (await child.status(waiting)).flow == "doubling"
    # Before the child has ended, a resume only parks again.
    await parked(flow.resume("r"))
    assert await child.resume(waiting) == {"n": 1, "doubled": 2}
    assert await flow.resume("r") == {"n": 1, "prepared": 1, "doubled": 2}
    stored = await storage.perform(Get(storage.address(RUNS, waiting)))
    assert stored.deadline is None


async def test_children_may_be_awaited_together_and_one_after_the_other(storage: Storage) -> None:
    child = doubling(storage)

    class Three(Node):
        async def exec(self, prep_res: Any) -> list[int]:
            handles = [await step().child(child, {"n": n}, id=str(n)) for n in range(3)]
            first = await handles[0].result()
            others = await asyncio.gather(*(handle.result() for handle in handles[1:]))
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(handle.result()) for handle in handles]
            return [each["doubled"] for each in (first, *others, *(task.result() for task in tasks))]

        def post(self, shared: dict[str, Any], prep_res: Any, exec_res: list[int]) -> None:
            shared["all"] = exec_res

    flow = linear(Three(max_retries=3), name="three", storage=storage)
    async with worker([flow, child]):
        assert await (await flow.submit()).result(20) == {"all": [0, 2, 4, 0, 2, 4]}


async def test_tasks_of_a_group_park_their_node(storage: Storage) -> None:
    child = doubling(storage)

    class Both(Node):
        async def exec(self, prep_res: Any) -> list[int]:
            handles = [await step().child(child, {"n": n}, id=str(n)) for n in range(2)]
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(handle.result()) for handle in handles]
            return [task.result()["doubled"] for task in tasks]

        def post(self, shared: dict[str, Any], prep_res: Any, exec_res: list[int]) -> None:
            shared["all"] = exec_res

    flow = linear(Both, name="both", storage=storage)
    async with worker([flow, child]):
        assert await (await flow.submit()).result(20) == {"all": [0, 2]}


async def test_a_wait_for_a_child_works_in_prep_and_in_post(storage: Storage) -> None:
    child = doubling(storage)

    class Late(Node):
        async def prep(self, shared: dict[str, Any]) -> Any:
            shared.setdefault("list", []).append("prep")
            return (await (await step().child(child, {"n": 1}, id="a")).result())["doubled"]

        async def post(self, shared: dict[str, Any], doubled: int, exec_res: Any) -> None:
            shared["list"].append("post")
            handle = await step().child(child, {"n": doubled}, id="b")
            shared["doubled"] = (await handle.result())["doubled"]

    flow = linear(Late, name="late", storage=storage)
    async with worker([flow, child]):
        assert await (await flow.submit({"list": []})).result(20) == {"list": ["prep", "post"], "doubled": 4}


class Entered(NodeFlow):
    def prep(self, shared: dict[str, Any]) -> None:
        shared["entered"] = shared.get("entered", 0) + 1


async def test_the_prep_of_a_flow_around_the_node_is_kept(storage: Storage) -> None:
    child = doubling(storage)
    inner = Entered(Ask(child), name="inner")
    flow = linear(inner, name="outer", storage=storage)
    async with worker([flow, child]):
        final = await (await flow.submit({"n": 2})).result(20)
    assert final == {"n": 2, "entered": 1, "prepared": 1, "doubled": 4}


async def test_branches_wait_for_their_children_side_by_side(storage: Storage) -> None:
    child = doubling(storage, Wait("go"))

    class Side(Ask):
        def __init__(self, name: str) -> None:
            super().__init__(child)
            self.name = name

        def post(self, shared: dict[str, Any], n: int, doubled: int) -> None:
            del shared["prepared"]
            shared[str(self.name)] = doubled

    flow = linear(parallel(Side("x"), linear(Side("y"), Side("z"))), Say([], "end"), name="sides", storage=storage)
    handle = await flow.submit({"n": 4}, flow_id="r")
    async with worker([flow, child]), asyncio.timeout(30):
        answered: set[str] = set()
        while (run := await handle.status()).status != "finished":
            for each in [each for wait in run.waits for each in wait.children]:
                if each not in answered and await status_of(child, each) == "parked":
                    answered.add(each)
                    await child.answer(each, 1)
            await asyncio.sleep(0.01)
        assert await handle.result() == {"n": 4, "x": 8, "y": 8, "z": 8, "said": ["end"]}
    assert len(answered) == 3


async def test_a_failed_child_of_a_cancelled_parent_is_not_retried(storage: Storage) -> None:
    class Failing(Node):
        async def exec(self, prep_res: Any) -> None:
            raise Boom("no")

    broken = linear(Failing, name="failing", storage=storage)
    flow = linear(Ask(broken), name="asking", storage=storage)
    async with worker([flow, broken]):
        with pytest.raises(RunFailed):
            await (await flow.submit({"n": 1}, flow_id="r")).result(20)
    child = await child_of_failed(flow, "r")
    await flow.cancel("r")
    with pytest.raises(
        UsageError, match="is a child of run 'r', which was cancelled; start a new run of flow 'failing'"
    ):
        await broken.retry(child)
    assert await broken.retry() == 0
    assert (await broken.status(child)).status == "failed"


async def test_the_end_of_a_child_without_a_result_is_raised_in_the_node_of_its_parent(storage: Storage) -> None:
    class Broken(Double):
        broken = True

        async def exec(self, n: int) -> int:
            if Broken.broken:
                raise Boom("no")
            return 2 * n

    broken = linear(Broken, name="doubling", storage=storage)
    waiting = doubling(storage, Wait("go"))
    flow = linear(Ask(broken), name="asking", storage=storage)
    async with worker([flow, broken]):
        with pytest.raises(RunFailed, match="RunFailed"):
            await (await flow.submit({"n": 1}, flow_id="failing")).result(20)
    error = (await flow.status("failing")).errors[0]
    assert (error.node, error.type) == ("ask", "RunFailed")
    assert "Boom: no" in error.message
    # After the child has been retried, the parent continues.
    failed = await child_of_failed(flow, "failing")
    Broken.broken = False
    assert await broken.retry([failed]) == 1
    async with worker([broken]):
        await RunHandle(failed, broken).result(20)
    assert (await flow.resume("failing"))["doubled"] == 2

    class Caught(Ask):
        async def exec(self, n: int) -> Any:
            try:
                return await super().exec(n)
            except (RunCancelled, RunStuck) as error:
                return type(error).__name__

    flow = linear(Caught(waiting), name="caught", storage=storage)
    async with worker([flow, waiting]):
        handle = await flow.submit({"n": 1}, flow_id="cancelling")
        await until(has(flow, "cancelling", "parked"))
        await waiting.cancel(await child_of(flow, "cancelling"))
        assert (await handle.result(20))["doubled"] == "RunCancelled"
        handle = await flow.submit({"n": 1}, flow_id="sticking")
        await until(has(flow, "sticking", "parked"))
        stuck = await child_of(flow, "sticking")
        await until(has(waiting, stuck, "parked"))

    def fails(run: Any) -> None:
        raise Boom

    changed = doubling(storage, Wait("go"), revision=2, migrate=fails)
    async with worker([flow, changed]):
        await changed.answer(stuck, 1)
        assert (await handle.result(20))["doubled"] == "RunStuck"


async def child_of_failed(flow: NodeFlow, flow_id: str) -> str:
    storage = flow.storage
    assert storage is not None
    (child,) = [entry.key async for entry in storage.scan(RUNS, tag=children.tag_of(flow_id))]
    return child


async def test_a_child_may_end_while_its_parent_parks(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mail is written between the read of the child and the commit that parks the parent."""
    child = doubling(storage)
    flow = linear(Ask(child), name="asking", storage=storage)
    ended: list[str] = []
    restore = Journal.restore_shared

    async def restored(self: Journal) -> None:
        (waiting,) = [entry.key async for entry in storage.scan(RUNS, tag=children.tag_of("r"))]
        ended.append(waiting)
        await child.resume(waiting)
        await restore(self)

    monkeypatch.setattr(Journal, "restore_shared", restored)
    # No worker: the run does not park, and its call returns the result.
    assert await flow.run({"n": 3}, flow_id="r") == {"n": 3, "prepared": 1, "doubled": 6}
    assert len(ended) == 1


async def test_a_worker_reports_the_end_of_a_child_whose_process_was_killed(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    storage = backend.storage(clock=clock)
    await storage.open()
    child = doubling(storage)
    flow = linear(Ask(child), name="asking", storage=storage, keep=True)
    await parked(flow.run({"n": 1}, flow_id="r"))
    waiting = await child_of(flow, "r")
    with monkeypatch.context() as patch:

        async def killed(*args: Any) -> None:
            raise asyncio.CancelledError

        patch.setattr(children, "report", killed)
        with pytest.raises(asyncio.CancelledError):
            await child.resume(waiting)
    assert await status_of(child, waiting) == "finished"
    await parked(flow.resume("r"))
    clock.advance(6)
    async with worker([flow, child]):
        await until(has(flow, "r", "finished"))
    stored = await storage.perform(Get(storage.address(RUNS, waiting)))
    assert stored.deadline is None


async def test_a_wait_for_a_child_may_time_out(backend: Backend) -> None:
    clock = Clock()
    storage = backend.storage(clock=clock)
    await storage.open()
    child = doubling(storage, Wait("go"))

    class Patient(Node):
        async def exec(self, prep_res: Any) -> list[Any]:
            handles = [await step().child(child, {"n": n}, id=str(n)) for n in range(2)]
            results: list[Any] = []
            for handle in handles:
                try:
                    results.append((await handle.result(60))["doubled"])
                except TimeoutError:
                    results.append("late")
            return results

        def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> None:
            shared["results"] = exec_res

    flow = linear(Patient, name="patient", storage=storage, keep=True)
    error = await parked(flow.run(flow_id="r"))
    assert error.deadline == clock() + 60
    clock.advance(30)
    await parked(flow.resume("r"))
    clock.advance(31)
    # The first one is late now and stays late; the second one has its own time.
    error = await parked(flow.resume("r"))
    assert error.deadline == clock() + 60
    waiting = await child_of(flow, "r")
    await parked(child.resume(waiting))
    assert (await child.answer(waiting, 1, run=True))["doubled"] == 2
    assert await flow.resume("r") == {"results": ["late", 2]}


async def test_a_cancelled_parent_cancels_its_children_and_their_children(storage: Storage) -> None:
    gate = Gate()
    lowest = linear(gate, name="lowest", storage=storage)
    middle = linear(Ask(lowest), name="middle", storage=storage)
    queued = doubling(storage)

    class Start(Ask):
        async def prep(self, shared: dict[str, Any]) -> Any:  # type: ignore[override]
            shared["queued"] = (await step().child(queued, id="queued", priority=3)).id
            return shared["n"]

    flow = linear(Start(middle), name="highest", storage=storage)
    handle = await flow.submit({"n": 1}, flow_id="r")
    async with worker([flow, middle, lowest]), asyncio.timeout(30):
        await gate.entered.wait()
        await until(has(flow, "r", "parked"))
        between = await child_of(flow, "r")
        await until(has(middle, between, "parked"))
        last = await child_of(middle, between)
        await handle.cancel("enough")
        with pytest.raises(RunCancelled, match="enough"):
            await handle.result()
        for each, id_ in ((middle, between), (lowest, last)):
            await until(has(each, id_, "cancelled"))
        assert (await middle.status(between)).reason == "its parent 'r' was cancelled"
    for entry in [entry async for entry in storage.scan(RUNS, tag=children.tag_of("r"))]:
        assert (await flow.status(entry.key)).status == "cancelled"


async def test_a_damaged_child_does_not_keep_its_parent_from_being_cancelled(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    child = doubling(storage)

    class Start(Ask):
        async def prep(self, shared: dict[str, Any]) -> Any:  # type: ignore[override]
            await step().child(child, id="a")
            await step().child(child, id="b")
            return shared["n"]

    flow = linear(Start(child), name="asking", storage=storage)
    await parked(flow.run({"n": 1}, flow_id="r"))
    first, *others = [entry.address async for entry in storage.scan(RUNS, tag=children.tag_of("r"))]
    await storage.perform(Apply(first, Change(storage.ids(), head=Head("child", None, "damaged"))))
    await flow.cancel("r")
    assert "was not cancelled with its parent" in caplog.text
    for flow_id in ["r", *(decode_key(address.key) for address in others)]:
        assert await status_of(child, flow_id) == "cancelled"


async def test_a_child_that_is_submitted_after_the_cancel_of_its_parent_does_not_run(storage: Storage) -> None:
    child = doubling(storage)
    flow = linear(Ask(child), name="asking", storage=storage)
    await parked(flow.run({"n": 1}, flow_id="r"))
    waiting = await child_of(flow, "r")
    await flow.cancel("r")
    assert await status_of(child, waiting) == "cancelled"
    # A runner of the parent whose lease has ended may still write.
    how = Submission(keep=60, parent=children.Parent("r", ()))
    late, _ = await submitting.submit(child, {}, how, storage=storage, flow_id="late")
    async with worker([child]):
        with pytest.raises(RunCancelled):
            await RunHandle(late, child).result(20)


async def test_a_child_needs_a_durable_run_and_its_own_step(storage: Storage) -> None:
    child = doubling(storage)
    with pytest.raises(UsageError, match="needs a storage"):
        await linear(Ask(child)).run({"n": 1})
    kept: list[Any] = []

    class Keep(Node):
        async def exec(self, prep_res: Any) -> None:
            kept.append(step())

    await linear(Keep, storage=storage).run()
    with pytest.raises(UsageError, match="outside its step"):
        await kept[0].child(child, id="x")


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_items_of_a_batch_wait_for_their_children(storage: Storage, concurrency: int) -> None:
    child = doubling(storage, Wait("go"))

    class Items(BatchNode):
        def prep(self, shared: dict[str, Any]) -> list[int]:
            return [1, 2, 3, 4]

        async def exec(self, item: int) -> Any:
            if item == 2:
                return "none"
            return (await (await step().child(child, {"n": item}, id="x")).result())["doubled"]

        def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> None:
            shared["all"] = exec_res

    flow = linear(Items(concurrency=concurrency, name="items"), name="batch", storage=storage, keep=True)
    async with worker([flow, child]), asyncio.timeout(30):
        handle = await flow.submit(flow_id="r")
        answered: set[str] = set()
        while (await handle.status()).status != "finished":
            async for run in child.runs("parked"):
                if run.flow_id not in answered:
                    answered.add(run.flow_id)
                    await child.answer(run.flow_id, 1)
            await asyncio.sleep(0.01)
        assert await handle.result() == {"all": [2, "none", 6, 8]}
    assert len(answered) == 3


async def test_the_end_of_a_child_wakes_the_items_that_wait_at_once(backend: Backend) -> None:
    # Time does not pass, so only the mail can wake them.
    storage = backend.storage(clock=Clock())
    await storage.open()
    child = doubling(storage)

    class Items(BatchNode):
        def prep(self, shared: dict[str, Any]) -> list[int]:
            return [1]

        async def exec(self, item: int) -> Any:
            return await (await step().child(child, {"n": item}, id="x")).result()

    flow = linear(Items, name="batch", storage=storage, keep=True)
    await parked(flow.run(flow_id="r"))
    await child.resume(await child_of_failed(flow, "r"))
    async with worker([flow]):
        await until(has(flow, "r", "finished"))


async def test_waits_for_children_that_cannot_park_are_refused(storage: Storage) -> None:
    child = doubling(storage)

    class Items(BatchNode):
        def prep(self, shared: dict[str, Any]) -> list[int]:
            return [1]

        async def exec(self, item: int) -> Any:
            return await (await step().child(child, {"n": item}, id="x")).result(60)

    with pytest.raises(UsageError, match="an item of batch 'Items' waits for a child run with a timeout"):
        await linear(Items, storage=storage).run(flow_id="r")

    class Question(Wait):
        async def prep(self, shared: dict[str, Any]) -> Any:
            return await (await step().child(child, {"n": 1}, id="x")).result()

    with pytest.raises(UsageError, match="'q' waits for a child run, and is a wait"):
        await linear(Question("q"), storage=storage).run(flow_id="q")


async def test_a_child_in_the_partition_of_a_run_above_it_is_refused(storage: Storage) -> None:
    other = doubling(storage)
    flow = NodeFlow(name="asking", storage=storage)
    flow.start(Ask(flow, partition="p"))
    async with worker([flow, other]):
        with pytest.raises(RunFailed, match="would wait for its parent"):
            await (await flow.submit({"n": 1}, partition="p")).result(20)
        # Through a run of another flow too.
        between = linear(Ask(flow, partition="p"), name="between", storage=storage)
        above = NodeFlow(name="asking", storage=storage)
        above.start(Ask(between))
    async with worker([above, between]):
        with pytest.raises(RunFailed, match="RunFailed"):
            await (await above.submit({"n": 1}, partition="p", flow_id="top")).result(20)
        assert "would wait for its parent" in (await above.status("top")).errors[0].message
    # Another partition, and the same one of another flow, are allowed.
    fine = linear(Ask(other, partition="p"), name="fine", storage=storage)
    async with worker([fine, other]):
        assert (await (await fine.submit({"n": 1}, partition="p")).result(20))["doubled"] == 2


async def test_a_new_run_of_the_same_id_has_new_children(storage: Storage) -> None:
    child = doubling(storage)
    flow = linear(Ask(child), name="asking", storage=storage)
    ids = set()
    for n in range(2):
        await parked(flow.run({"n": n}, flow_id="r"))
        ids.add(await child_of(flow, "r"))
        await child.resume(await child_of(flow, "r"))
        assert (await flow.resume("r"))["doubled"] == 2 * n
    assert len(ids) == 2


async def test_children_of_renamed_nodes_are_not_started_again(storage: Storage) -> None:
    child = doubling(storage)
    await parked(linear(Ask(child), name="asking", storage=storage).run({"n": 1}, flow_id="r"))
    node = Ask(child)
    node.name = "renamed"
    flow = linear(node, name="asking", storage=storage, renamed={"ask": "renamed"})
    waiting = await child_of(flow, "r")
    await child.resume(waiting)
    assert (await flow.resume("r"))["doubled"] == 2
    assert [entry.key async for entry in storage.scan(RUNS, tag=children.tag_of("r"))] == [waiting]


async def test_ids_of_children_of_children_do_not_grow_without_limit(storage: Storage) -> None:
    flow = NodeFlow(name="deep", storage=storage)

    class Deeper(Node):
        def prep(self, shared: dict[str, Any]) -> Any:
            return shared["depth"]

        async def exec(self, depth: int) -> int:
            if not depth:
                return 0
            handle = await step().child(flow, {"depth": depth - 1}, id="deeper")
            return (await handle.result())["deepest"] + 1

        def post(self, shared: dict[str, Any], prep_res: Any, deepest: int) -> None:
            shared["deepest"] = deepest

    flow.start(Deeper)
    async with worker([flow]):
        assert (await (await flow.submit({"depth": 20})).result(30))["deepest"] == 20


async def test_a_parked_parent_of_a_child_raises_parked_to_its_caller(storage: Storage) -> None:
    child = doubling(storage)
    flow = linear(Ask(child), name="asking", storage=storage)
    with pytest.raises(Parked) as caught:
        await flow.run({"n": 1})
    assert (caught.value.id, caught.value.node) == ("", "ask")
