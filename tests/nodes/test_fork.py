"""Runs that begin at another node: forks of stored runs, and runs that are retried at a node."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell import Storage
from stepwell.errors import FlowChanged, InvalidOption, RunExists, UnknownRun, Unstorable, UsageError
from stepwell.nodes import BatchNode, Node, NodeFlow, Wait, linear, parallel, step, worker
from tests.backends import Backend
from tests.nodes.flows import A, B, C


@pytest.fixture
async def storage(backend: Backend) -> Storage:
    storage = backend.storage()
    await storage.open()
    return storage


class Price(Node):
    """Computes a price, and fails on a negative one."""

    def exec(self, prep_res: Any) -> str:
        ids.append(step().id)
        return step().id

    def post(self, shared: dict[str, Any], prep_res: Any, exec_res: str) -> None:
        shared["price"] = shared["pages"] * self.params.get("each", 2)
        if shared["price"] < 0:
            raise ValueError("negative")


ids: list[str] = []


@pytest.fixture(autouse=True)
def no_ids() -> None:
    ids.clear()


async def ended(flow: NodeFlow, flow_id: str) -> dict[str, Any]:
    from stepwell.nodes import RunHandle

    async with worker([flow]):
        return await RunHandle(flow_id, flow).result(timeout=30)


@pytest.mark.every_backend
async def test_a_fork_of_a_finished_run_begins_at_a_node_with_a_changed_state(storage: Storage) -> None:
    flow = linear(A, Price, B, name="quotes", storage=storage, keep=60)
    await flow.run({"pages": 3}, flow_id="old", params={"each": 5})
    handle = await flow.fork("old", at=Price, shared={"pages": 4}, flow_id="new")
    assert handle.id == "new"
    assert await ended(flow, "new") == {"pages": 4, "price": 20, "trail": ["A", "B", "B"]}
    assert ids == ["old/Price/1", "new/Price/1"]
    run = await flow.status("new")
    assert (run.forked_from, run.path) == ("old", ("Price", "B"))
    old = await flow.status("old")
    assert (old.status, old.forked_from, old.path) == ("finished", None, ("A", "Price", "B"))


async def test_a_fork_of_a_parked_a_failed_and_a_cancelled_run_leaves_it_alone(storage: Storage) -> None:
    flow = linear(Price, Wait("go"), C, name="quotes", storage=storage)
    await flow.run({"pages": 3}, flow_id="parked", on_park="return")
    await flow.run({"pages": 3}, flow_id="cancelled", on_park="return")
    await flow.cancel("cancelled")
    with pytest.raises(ValueError, match="negative"):
        await flow.run({"pages": -3}, flow_id="failed")
    for source in ("parked", "cancelled", "failed"):
        before = await flow.status(source)
        handle = await flow.fork(source, at="C", shared={"pages": 1})
        final = await ended(flow, handle.id)
        assert (final["pages"], final["trail"]) == (1, ["C"])
        assert await flow.status(source) == before


async def test_a_fork_can_wait_be_forked_and_be_cancelled_like_any_run(storage: Storage) -> None:
    flow = linear(A, Wait("go"), B, name="asks", storage=storage)
    await flow.run(flow_id="one", on_park="return")
    await flow.fork("one", at="go", flow_id="two")
    assert (await flow.status("two")).status == "queued"
    with pytest.raises(Exception, match="waits"):
        await flow.resume("two")
    await flow.fork("two", at="B", flow_id="three")
    await flow.cancel("two")
    assert (await ended(flow, "three"))["trail"] == ["A", "B"]
    assert (await flow.status("two")).forked_from == "one"


async def test_a_run_can_begin_inside_a_nested_flow_and_before_a_batch(storage: Storage) -> None:
    class Items(BatchNode):
        def prep(self, shared: dict[str, Any]) -> list[int]:
            return shared["items"]  # type: ignore[no-any-return]

        def exec(self, item: int) -> int:
            return item + 1

        def post(self, shared: dict[str, Any], prep_res: Any, results: list[int]) -> None:
            shared["results"] = results

    inner = linear(A, Items, B, name="inner")
    flow = linear(inner, C, name="outer", storage=storage, keep=60)
    await flow.run({"items": [1]}, flow_id="old")
    await flow.fork("old", at="inner/Items", shared={"items": [5, 6], "trail": []}, flow_id="new")
    assert await ended(flow, "new") == {"items": [5, 6], "results": [6, 7], "trail": ["B", "C"]}
    await flow.fork("old", at=inner, shared={"trail": []}, flow_id="whole")
    assert (await ended(flow, "whole"))["trail"] == ["A", "B", "C"]


async def test_a_fork_of_a_flow_with_a_prep_of_its_own_keeps_its_result_as_long_as_it_is_stored(
    storage: Storage,
) -> None:
    class Whole(NodeFlow):
        def prep(self, shared: Any) -> int:
            return 7

        def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> None:
            shared["prepared"] = prep_res

    first, wait = A(), Wait("go")
    first >> wait >> B()
    flow = Whole(start=first, name="whole", storage=storage, keep=60)
    await flow.run(flow_id="old", on_park="return")
    await flow.fork("old", at=B, flow_id="new")
    assert (await ended(flow, "new"))["prepared"] == 7
    await flow.resume("old", "yes")
    with pytest.raises(UsageError, match=r"prep\(\) must run first"):
        await flow.fork("old", at=B)
    outer = linear(Whole(start=A, name="inner"), B, name="outer", storage=storage, keep=60)
    await outer.run(flow_id="r")
    with pytest.raises(UsageError, match="give at='inner'"):
        await outer.fork("r", at="inner/A")


async def test_what_cannot_be_forked_is_refused_with_what_to_do(storage: Storage) -> None:
    flow = linear(A(name="a"), A(name="b"), parallel(B, C, name="both"), name="f", storage=storage, keep=60)
    await flow.run(flow_id="r")
    await flow.submit(flow_id="queued")
    with pytest.raises(InvalidOption, match="did you mean 'both'"):
        await flow.fork("r", at="boht")
    with pytest.raises(InvalidOption, match="several of these nodes"):
        await flow.fork("r", at=A)
    with pytest.raises(UsageError, match="give at='both'"):
        await flow.fork("r", at="both/0/B")
    with pytest.raises(UsageError, match="has not begun"):
        await flow.fork("queued", at="a")
    with pytest.raises(UnknownRun):
        await flow.fork("nothing", at="a")
    with pytest.raises(RunExists):
        await flow.fork("r", at="a", flow_id="queued")
    with pytest.raises(Unstorable):
        await flow.fork("r", at="a", shared={"bad": object()})
    with pytest.raises(InvalidOption, match=r"shared=\[1\]: give a dict with the fields to change"):
        await flow.fork("r", at="a", shared=[1])  # type: ignore[arg-type]
    with pytest.raises(FlowChanged, match="not of 'g'"):
        await linear(A(name="a"), name="g", storage=storage).fork("r", at="a")
    with pytest.raises(InvalidOption, match="the runs that you name"):
        await flow.retry(at="a")


async def test_a_run_that_still_runs_is_not_forked(storage: Storage) -> None:
    class Forks(Node):
        async def exec(self, prep_res: Any) -> None:
            await flow.fork("r", at="Forks")

    flow = linear(Forks, name="f", storage=storage)
    with pytest.raises(UsageError, match="is running"):
        await flow.run(flow_id="r")


async def test_a_failed_run_is_retried_at_an_earlier_node(storage: Storage) -> None:
    flow = linear(A, Price, B, name="quotes", storage=storage, keep=60)
    with pytest.raises(ValueError, match="negative"):
        await flow.run({"pages": -1}, flow_id="r")

    class Positive(Price):
        def post(self, shared: dict[str, Any], prep_res: Any, exec_res: str) -> None:
            shared["price"] = 1

    fixed = linear(A, Positive(name="Price"), B, name="quotes", storage=storage, keep=60)
    assert await fixed.retry("r", at=A) == 1
    assert (await ended(fixed, "r"))["trail"] == ["A", "A", "B"]
    assert ids == ["r/Price/1", "r/Price/1"]
    assert [(each.node, each.visit) for each in await fixed.history("r")] == [
        ("A", 1),
        ("A", 2),
        ("Price", 1),
        ("B", 1),
    ]


async def test_a_paused_wait_and_a_run_that_was_undone_go_on_at_a_node(storage: Storage) -> None:
    class Book(A):
        def undo(self, shared: Any, result: Any) -> None:
            undone.append(1)

    class Fails(Node):
        def exec(self, prep_res: Any) -> None:
            if not undone:
                raise ValueError

    undone: list[int] = []
    flow = linear(Book, Fails, Wait("go"), B, name="saga", storage=storage, keep=60)
    with pytest.raises(ValueError):
        await flow.run(flow_id="r")
    assert (undone, (await flow.status("r")).status) == ([1], "failed")
    assert await flow.retry("r", at=Book) == 1
    with pytest.raises(Exception, match="waits"):
        await flow.resume("r")
    run = await flow.status("r")
    assert (run.status, run.undone) == ("parked", ())
    await flow.pause("r")
    assert await flow.retry("r", at=B) == 1
    assert (await ended(flow, "r"))["trail"] == ["Book", "Book", "B"]
