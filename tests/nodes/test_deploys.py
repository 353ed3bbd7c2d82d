"""Deploys: a run continues with another graph if its position still fits, and is stuck with a reason otherwise."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, ClassVar

import pytest

from stepwell import StateStorage, Storage
from stepwell.errors import (
    FlowChanged,
    InvalidGraph,
    InvalidOption,
    Parked,
    RunBusy,
    RunIsNewer,
    Unstorable,
    UsageError,
)
from stepwell.nodes import BatchNode, Node, NodeFlow, Sleep, StoredRun, Wait, linear, parallel, step, worker
from stepwell.nodes.deploy.migration import Migrate
from stepwell.nodes.graph import loaded
from stepwell.record import RUNS
from stepwell.storage import Get
from tests.backends import Backend
from tests.constants import Constants
from tests.nodes.test_durable import Boom, Say
from tests.until import until


@pytest.fixture
async def storage(backend: Backend) -> Storage:
    storage = backend.storage()
    await storage.open()
    return storage


@pytest.fixture(autouse=True)
def _a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test know the graphs of another one."""
    monkeypatch.setattr(loaded, "_first_used", {})


async def parked(flow: NodeFlow, **options: Any) -> str:
    """Run a flow to its wait, and return the id of the wait."""
    with pytest.raises(Parked) as caught:
        await flow.run(flow_id="r", **options)
    return caught.value.id


async def failed(flow: NodeFlow, shared: dict[str, Any] | None = None) -> None:
    """Run a flow until a node fails."""
    with pytest.raises((Boom, ExceptionGroup)):
        await flow.run(shared, flow_id="r")


async def stuck(flow: NodeFlow, *sentences: str, given: str = "r", value: Any = ...) -> None:
    """Resume a run, and check that it is stuck for these reasons."""
    before = await StateStorage(_storage(flow)).get_state("r")
    with pytest.raises(FlowChanged) as caught:
        await flow.resume(given, value)
    run = await flow.status("r")
    assert (run.status, caught.value.stuck) == ("stuck", True)
    for sentence in sentences:
        assert sentence in (run.reason or "")
        assert sentence in str(caught.value)
    assert await StateStorage(_storage(flow)).get_state("r") == before
    assert [entry.status async for entry in flow.runs("stuck")] == ["stuck"]


def _storage(flow: NodeFlow) -> Storage:
    assert flow.storage is not None
    return flow.storage


def fails(name: str) -> Say:
    return Say([], name, fails=[Boom()])


class Half(BatchNode):
    """A batch of four items, of which the third fails once."""

    def __init__(self, name: str, *, ran: list[str] | None = None, breaks: bool = False, items: int = 4) -> None:
        super().__init__(name=name)
        self.ran = [] if ran is None else ran
        self.breaks, self.count = breaks, items

    def prep(self, shared: dict[str, Any]) -> Any:
        return list(range(self.count))

    async def exec(self, item: Any) -> Any:
        self.ran.append(step().id)
        if self.breaks and item == 2:
            raise Boom
        return item * 10

    def post(self, shared: dict[str, Any], items: Any, results: Any) -> None:
        shared[self.name] = results


# A position that does not fit


async def test_a_removed_position_makes_the_run_stuck_with_the_reason_in_its_record(storage: Storage) -> None:
    old = linear(Say([], "a"), fails("b"), Say([], "c"), name="f", storage=storage)
    await failed(old)
    new = linear(Say([], "a"), Say([], "c"), name="f", storage=storage)
    await stuck(new, "it is at 'b', which is not a node of the flow any more")
    await stuck(new, "it is at 'b'")
    stored = await storage.perform(Get(storage.address(RUNS, "r")))
    assert stored is not None
    assert stored.deadline is None
    assert await old.resume("r") == {"said": ["a", "b", "c"]}, "the graph before it runs it"


async def test_only_what_is_wrong_at_the_position_is_named(storage: Storage) -> None:
    await failed(linear(Say([], "a"), fails("b"), Say([], "c"), name="f", storage=storage))
    new = linear(Say([], "z"), Say([], "y"), name="f", storage=storage)
    with pytest.raises(FlowChanged) as caught:
        await new.resume("r")
    assert caught.value.differences == ["it is at 'b', which is not a node of the flow any more"]


async def test_a_run_of_another_flow_is_not_stuck(storage: Storage) -> None:
    await failed(linear(fails("a"), name="f", storage=storage))
    with pytest.raises(FlowChanged, match="a run of flow 'f', not of 'g'") as caught:
        await linear(Say([], "a"), name="g", storage=storage).resume("r")
    assert not caught.value.stuck
    assert (await linear(Say([], "a"), name="g", storage=storage).status("r")).status == "failed"


async def test_a_parked_run_that_was_stuck_waits_again_when_its_position_is_back(storage: Storage) -> None:
    ask = Wait("x", timeout=3600)
    flow = NodeFlow(start=ask, name="f", storage=storage).connect(ask, Say([], "late"), "timeout")
    wait = await parked(flow)
    address = storage.address(RUNS, "r")
    before = await storage.perform(Get(address))
    await stuck(linear(Say([], "y"), name="f", storage=storage), "it waits for an answer at 'x'", given=wait, value=1)
    with pytest.raises(Parked) as caught:
        await flow.resume("r")
    assert caught.value.id == wait
    assert (await flow.status("r")).status == "parked"
    after = await storage.perform(Get(address))
    assert before is not None
    assert after is not None
    assert after.deadline == pytest.approx(before.deadline, abs=1), "its timeout is due as before"
    assert await flow.resume(wait, 1) == {"x": 1}


async def test_a_worker_marks_a_run_as_stuck_and_does_not_take_it_again(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    old = linear(Sleep(0.01, name="nap"), Say([], "a"), name="f", storage=storage)
    await parked(old)
    new = linear(Say([], "a"), name="f", storage=storage)
    async with worker([new], storage=storage):
        await until(lambda: new.status("r"), lambda run: run.status == "stuck")
    assert "it sleeps at 'nap', which is not a node of the flow any more" in caplog.text
    assert await storage.due(RUNS, limit=10) == []


@pytest.mark.parametrize(
    ("node", "sentence"),
    [
        (lambda: Say([], "p"), "which is a node now"),
        (lambda: Half("p"), "which is a batch now"),
        (lambda: linear(Say([], "p"), name="p"), "which is a flow now"),
        (lambda: parallel(Say([], "p"), name="p"), "which is a parallel node now"),
        (lambda: Sleep(1, name="p"), "which is a sleep now"),
    ],
)
async def test_a_wait_that_became_another_kind_of_node(
    storage: Storage, node: Callable[[], Any], sentence: str
) -> None:
    wait = await parked(linear(Wait("p"), name="f", storage=storage))
    new = linear(node(), name="f", storage=storage)
    await stuck(new, f"it waits for an answer at 'p', {sentence}", given=wait, value=1)


async def test_a_sleep_that_became_a_wait_and_a_wait_that_became_a_sleep(storage: Storage) -> None:
    await parked(linear(Sleep(0.001, name="p"), name="f", storage=storage))
    await stuck(linear(Wait("p"), name="f", storage=storage), "it sleeps at 'p', which is a wait now")


async def test_a_batch_half_way_that_became_a_node_is_stuck_and_one_at_its_start_is_not(storage: Storage) -> None:
    await failed(linear(Half("p", breaks=True), name="f", storage=storage))
    await stuck(linear(Say([], "p"), name="f", storage=storage), "it is half-way in the batch 'p', which is a node now")
    await StateStorage(storage).cleanup("r")
    await failed(linear(fails("p"), name="f", storage=storage))
    assert await linear(Half("p"), name="f", storage=storage).resume("r") == {"p": [0, 10, 20, 30]}


async def test_a_batch_half_way_keeps_the_items_that_it_was_begun_with(storage: Storage) -> None:
    ran: list[str] = []
    await failed(linear(Half("p", ran=ran, breaks=True), name="f", storage=storage))
    new = linear(Half("p", ran=ran, items=9), Say(ran, "end"), name="f", storage=storage)
    assert (await new.resume("r"))["p"] == [0, 10, 20, 30]
    assert ran == [*(f"r/p/1/{item}" for item in (0, 1, 2, 2, 3)), "r/end/1"]


async def test_items_of_an_interrupted_prep_do_not_mix_with_those_of_the_next_one(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, constants: Constants
) -> None:
    class Fixed(Half):
        items: ClassVar[list[Any]] = [1, 2, 3, 4, 5, object()]

        def prep(self, shared: dict[str, Any]) -> Any:
            return self.items

    constants(items_a_part=2, parts_a_commit=1)
    with pytest.raises(Unstorable):
        await linear(Fixed("p"), name="f", storage=storage).run(flow_id="r")
    monkeypatch.setattr(Fixed, "items", [2])
    with pytest.raises(Boom):
        await linear(Fixed("p", breaks=True), name="f", storage=storage).resume("r")
    assert await linear(Fixed("p"), name="f", storage=storage).resume("r") == {"p": [20]}


# Nested flows and branches


async def test_a_nested_flow_that_became_a_node_and_a_node_that_became_a_flow(storage: Storage) -> None:
    inner = linear(Say([], "x"), fails("y"), name="inner")
    await failed(linear(inner, name="f", storage=storage))
    await stuck(linear(Say([], "inner"), name="f", storage=storage), "it is at 'inner/y', which is not a node")
    await StateStorage(storage).cleanup("r")
    await failed(linear(fails("inner"), name="f", storage=storage))
    new = linear(linear(Say([], "x"), Say([], "y"), name="inner"), name="f", storage=storage)
    assert await new.resume("r") == {"said": ["x", "y"]}, "it had not begun the node"


class Outer(NodeFlow):
    """A flow with a post of its own, which fails as often as ``breaks`` says."""

    breaks = 0

    def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> Any:
        if self.breaks:
            raise Boom
        shared["post"] = prep_res
        return exec_res


class Prepared(Outer):
    def prep(self, shared: dict[str, Any]) -> Any:
        return "prepared"


def outer(cls: type[NodeFlow], *nodes: Node, breaks: int = 0, name: str = "f", **options: Any) -> NodeFlow:
    flow = cls(start=nodes[0], name=name, **options)
    for source, target in pairwise(nodes):
        flow.connect(source, target)
    if breaks:
        flow.breaks = breaks  # type: ignore[attr-defined]
    return flow


async def test_a_nested_flow_that_has_ended_and_became_a_node_does_not_run_twice(storage: Storage) -> None:
    await failed(linear(outer(Outer, Say([], "x"), breaks=1, name="inner"), name="f", storage=storage))
    new = linear(Say([], "inner"), name="f", storage=storage)
    await stuck(new, "it has completed the nodes inside the flow 'inner', which is a node now")


@pytest.mark.parametrize("cls", [Outer, NodeFlow])
async def test_a_run_of_which_only_post_is_left_needs_no_node_and_runs_none_again(
    storage: Storage, cls: type[NodeFlow]
) -> None:
    ran: list[str] = []
    await failed(outer(Outer, Say(ran, "x"), Say(ran, "y"), breaks=1, storage=storage))
    final = await outer(cls, Say(ran, "x"), storage=storage).resume("r")
    assert final == {"said": ["x", "y"], **({"post": None} if cls is Outer else {})}
    assert ran == ["r/x/1", "r/y/1"]


@pytest.mark.parametrize("nested", [True, False])
async def test_a_prep_that_was_added_to_a_flow_around_the_position(storage: Storage, nested: bool) -> None:
    def made(cls: type[NodeFlow], last: Node) -> NodeFlow:
        if not nested:
            return outer(cls, Say([], "x"), last, storage=storage)
        return linear(outer(cls, Say([], "x"), last, name="inner"), name="f", storage=storage)

    await failed(made(Outer, fails("y")))
    where = "inner" if nested else "f"
    await stuck(made(Prepared, Say([], "y")), f"inside '{where}', whose post() needs the result of prep()")
    assert (await made(Outer, Say([], "y")).resume("r"))["post"] is None
    await failed(made(Prepared, fails("y")))
    assert (await made(Prepared, Say([], "y")).resume("r"))["post"] == "prepared"


class Left(Say):
    def post(self, shared: dict[str, Any], prep_res: Any, exec_res: str) -> None:
        shared[self.name] = 1


def fan(*branches: Any, storage: Storage, **options: Any) -> NodeFlow:
    return linear(parallel(*branches, name="fan"), Left([], "end"), name="f", storage=storage, **options)


async def test_branches_continue_with_nodes_appended_and_inserted_in_them(storage: Storage) -> None:
    ran: list[str] = []
    wait = await parked(fan(linear(Wait("x"), name="l"), linear(Left(ran, "y"), name="r"), storage=storage))
    new = fan(
        linear(Left(ran, "first"), Wait("x"), Left(ran, "next"), name="l"),
        linear(Left(ran, "y"), Left(ran, "z"), name="r"),
        storage=storage,
    )
    assert await new.resume(wait, 1) == {"x": 1, "next": 1, "y": 1, "end": 1}
    assert ran == ["r/fan/1/r/y/1", "r/fan/0/l/next/1"]


async def test_a_branch_that_was_added_at_the_end_begins(storage: Storage) -> None:
    wait = await parked(fan(Wait("x"), Left([], "y"), storage=storage))
    new = fan(Wait("x"), Left([], "y"), Left([], "z"), storage=storage)
    assert await new.resume(wait, 1) == {"x": 1, "y": 1, "z": 1, "end": 1}


@pytest.mark.parametrize(
    ("branches", "sentence"),
    [
        (lambda: [Wait("x")], "it is in branch 'fan/1', which is not a branch of 'fan' any more"),
        (lambda: [Left([], "y"), Wait("x")], "it waits for an answer at 'fan/0/x', which is not a node"),
        (lambda: [Wait("x"), Left([], "z")], "branch 'fan/1' has ended, and its first node 'fan/1/y' is not in it"),
        (lambda: [Wait("x"), Left([], "z"), Left([], "y")], "branch 'fan/1' has ended"),
        (lambda: [Wait("x"), Left([], "y"), linear(Left([], "u"), name="y")], "which had 2 branches and has 3"),
    ],
    ids=["removed", "swapped", "replaced", "inserted", "same names"],
)
async def test_branches_that_were_entered_and_have_changed(
    storage: Storage, branches: Callable[[], list[Any]], sentence: str
) -> None:
    wait = await parked(fan(Wait("x"), Left([], "y"), storage=storage))
    await stuck(fan(*branches(), storage=storage), sentence, given=wait, value=1)


async def test_a_parallel_node_that_became_a_node(storage: Storage) -> None:
    wait = await parked(fan(Wait("x"), Left([], "y"), storage=storage))
    new = linear(Left([], "fan"), name="f", storage=storage)
    await stuck(new, "it is inside the branches of 'fan', which is a node now", given=wait, value=1)


async def test_a_branch_that_was_not_entered_may_change(storage: Storage) -> None:
    class Stops(Left):
        async def exec(self, prep_res: Any) -> Any:
            raise Boom

    await failed(fan(Left([], "a"), Stops([], "b"), storage=storage))
    new = fan(Left([], "a"), Left([], "c"), storage=storage)
    assert await new.resume("r") == {"a": 1, "c": 1, "end": 1}


async def test_a_branch_that_is_renamed_while_another_one_waits(storage: Storage) -> None:
    await parked(fan(Wait("x"), linear(Left([], "y"), Wait("z"), name="w"), storage=storage))
    new = fan(
        Wait("x"),
        linear(Left([], "y"), Wait("last"), name="v"),
        storage=storage,
        renamed={"fan/1/w": "fan/1/v", "fan/1/w/z": "fan/1/v/last"},
    )
    waits = {wait.node: wait.id for wait in (await new.status("r")).waits}
    with pytest.raises(Parked) as caught:
        await new.resume(waits["fan/1/w/z"], "of the renamed one")
    assert caught.value.id == waits["fan/0/x"]
    final = await new.resume(caught.value.id, "of the other one")
    assert final == {"x": "of the other one", "y": 1, "last": "of the renamed one", "end": 1}


# Names


async def test_nodes_without_a_name_are_ambiguous_if_there_are_more_or_fewer_of_them(storage: Storage) -> None:
    class Unnamed(Node):
        def __init__(self, number: int, breaks: bool = False) -> None:
            super().__init__()
            self.number, self.breaks = number, breaks

        def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> None:
            if self.breaks:
                raise Boom
            shared["ran"] = [*shared.get("ran", []), self.number]

    def made(*numbers: int, **options: Any) -> NodeFlow:
        return linear(*[Unnamed(number) for number in numbers], name="f", storage=storage, **options)

    await failed(linear(Unnamed(1), Unnamed(2, breaks=True), name="f", storage=storage))
    for numbers in ((1, 7, 2), (1, 2, 7), (2,)):
        await stuck(made(*numbers), "'Unnamed")
    assert await made(1, 7, 2, renamed={"Unnamed-2": "Unnamed-3"}).resume("r") == {"ran": [1, 2]}
    await failed(linear(Unnamed(1), Unnamed(2, breaks=True), name="f", storage=storage))
    assert await made(1, 2, 7, renamed={"Unnamed-2": "Unnamed-2"}).resume("r") == {"ran": [1, 2, 7]}


async def test_visits_are_counted_by_path_and_never_repeat_an_id(storage: Storage) -> None:
    ran: list[str] = []

    def made(*names: str, breaks: str = "") -> NodeFlow:
        return linear(*[Say(ran, n, fails=[Boom()] if n == breaks else []) for n in names], name="f", storage=storage)

    loop = made("a", "b", "c", breaks="c")
    await failed(loop)
    with pytest.raises(Boom):
        await made("x", "c", "a", breaks="a").resume("r")
    # "b" was removed and is back, and "a" is visited a second time.
    await made("a", "b").resume("r")
    assert ran == ["r/a/1", "r/b/1", "r/c/1", "r/c/1", "r/a/2", "r/a/2", "r/b/2"]


# renamed=


async def test_a_renamed_wait_accepts_the_answer_to_its_old_id_once(storage: Storage) -> None:
    wait = await parked(linear(Wait("old"), Wait("next"), name="f", storage=storage))
    new = linear(Wait("new"), Wait("next"), Wait("old"), name="f", storage=storage, renamed={"old": "new"})
    with pytest.raises(Parked) as caught:
        await new.resume(wait, 1)
    assert caught.value.node == "next"
    with pytest.raises(Parked):
        await new.resume(wait, 2)
    with pytest.raises(Parked) as third:
        await new.resume(caught.value.id, 3)
    assert third.value.node == "old"
    for _ in range(2):
        with pytest.raises(Parked, match="old"):
            await new.resume(wait, "of the first question")
        await new.answer(wait, "of the first question")
    # The next deploy has the same entry, and "old" is another node by now.
    later = linear(
        Wait("new"), Wait("next"), Wait("old"), Say([], "end"), name="f", storage=storage, renamed={"old": "new"}
    )
    assert await later.resume(third.value.id, 4) == {"new": 1, "next": 3, "old": 4, "said": ["end"]}


async def test_an_answer_to_a_wait_that_was_removed_is_ignored(storage: Storage) -> None:
    wait = await parked(linear(Wait("x"), Wait("y"), name="f", storage=storage))
    with pytest.raises(Parked) as second:
        await linear(Wait("x"), Wait("y"), name="f", storage=storage).resume(wait, 1)
    new = linear(Wait("y"), Wait("z"), name="f", storage=storage)
    with pytest.raises(Parked) as third:
        await new.resume(second.value.id, 2)
    with pytest.raises(Parked):
        await new.resume(wait, 3)
    with pytest.raises(UsageError, match="never had the wait"):
        await new.resume(wait.replace("/x/", "/w/"), 3)
    assert await new.resume(third.value.id, 3) == {"x": 1, "y": 2, "z": 3}


async def test_an_answer_to_a_wait_that_became_another_node_is_ignored(storage: Storage) -> None:
    wait = await parked(linear(Wait("x"), fails("y"), name="f", storage=storage))
    with pytest.raises(Boom):
        await linear(Wait("x"), fails("y"), name="f", storage=storage).resume(wait, 1)
    new = linear(Say([], "x"), Say([], "y", fails=[Boom()]), name="f", storage=storage)
    with pytest.raises(Boom):
        await new.resume(wait, 2)
    await new.answer(wait, 3)
    assert await new.resume("r") == {"x": 1, "said": ["y"]}


async def test_a_renamed_batch_continues_half_way_and_a_renamed_flow_moves_all_inside(storage: Storage) -> None:
    ran: list[str] = []
    inner = linear(Say(ran, "x"), Half("p", ran=ran, breaks=True), name="inner")
    await failed(linear(inner, name="f", storage=storage))
    inner = linear(Say(ran, "x"), Half("q", ran=ran), name="within")
    new = linear(inner, name="f", storage=storage, renamed={"inner": "within", "inner/p": "within/q"})
    assert (await new.resume("r"))["q"] == [0, 10, 20, 30]
    assert [each for each in ran if each.startswith("r/within")] == ["r/within/q/1/2", "r/within/q/1/3"]


async def test_a_renamed_flow_keeps_the_result_of_its_prep(storage: Storage) -> None:
    await failed(linear(outer(Prepared, fails("x"), Say([], "y"), name="inner"), name="f", storage=storage))
    await StateStorage(storage).cleanup("r")
    await failed(linear(outer(Prepared, Say([], "x"), fails("y"), name="inner"), name="f", storage=storage))
    new = outer(Prepared, Say([], "x"), Say([], "y"), name="within")
    final = await linear(new, name="f", storage=storage, renamed={"inner": "within"}).resume("r")
    assert final == {"said": ["x", "y"], "post": "prepared"}


async def test_renamed_and_renumbered_branches_keep_their_fields(storage: Storage) -> None:
    wait = await parked(fan(Wait("x"), linear(Left([], "y"), Wait("z"), name="w"), storage=storage))
    new = linear(
        parallel(linear(Left([], "y"), Wait("z"), name="w"), Wait("x"), name="both"),
        Left([], "end"),
        name="f",
        storage=storage,
        renamed={"fan/0": "both/1", "fan/1": "both/0", "fan": "both"},
    )
    with pytest.raises(Parked) as caught:
        await new.resume(wait, 1)
    assert caught.value.node == "both/0/w/z"
    assert await new.resume(caught.value.id, 2) == {"x": 1, "y": 1, "z": 2, "end": 1}


async def test_a_position_renamed_into_a_flow_and_out_of_it(storage: Storage) -> None:
    ran: list[str] = []
    await failed(linear(Say(ran, "a"), fails("b"), Say(ran, "c"), name="f", storage=storage))
    new = linear(linear(Say(ran, "a"), Say(ran, "b", fails=[Boom()]), name="in"), Say(ran, "c"), name="f",
                 storage=storage, renamed={"a": "in/a", "b": "in/b"})  # fmt: skip
    with pytest.raises(Boom):
        await new.resume("r")
    assert (await new.status("r")).node == "in/b"
    back = linear(Say(ran, "a"), Say(ran, "b"), Say(ran, "c"), name="f", storage=storage,
                  renamed={"in/a": "a", "in/b": "b"})  # fmt: skip
    assert await back.resume("r") == {"said": ["a", "b", "c"]}
    assert ran == ["r/a/1", "r/in/b/1", "r/b/1", "r/c/1"] or ran == ["r/a/1", "r/in/b/1", "r/b/2", "r/c/1"]


async def test_a_position_renamed_into_a_flow_whose_post_needs_its_prep(storage: Storage) -> None:
    await failed(linear(fails("b"), name="f", storage=storage))
    new = linear(outer(Prepared, Say([], "b"), name="in"), name="f", storage=storage, renamed={"b": "in/b"})
    await stuck(new, "it is inside 'in', whose post() needs the result of prep(), which has not run")


async def test_a_position_renamed_into_a_branch(storage: Storage) -> None:
    await failed(linear(fails("b"), name="f", storage=storage))
    new = fan(Left([], "b"), storage=storage, renamed={"b": "fan/0/b"})
    await stuck(new, "'fan/0/b', which is in a branch of a parallel node that the run has not entered")


async def test_two_open_nodes_that_get_one_path(storage: Storage) -> None:
    wait = await parked(fan(Wait("x"), Wait("y"), storage=storage))
    new = fan(Wait("x"), storage=storage, renamed={"fan/1": "fan/0", "fan/1/y": "fan/0/x"})
    await stuck(new, "renamed= gives two nodes that it is inside of the same path", given=wait, value=1)


async def test_renamed_may_lead_a_removed_position_to_the_next_node(storage: Storage) -> None:
    await failed(linear(Say([], "a"), fails("b"), Say([], "c"), name="f", storage=storage))
    new = linear(Say([], "a"), Say([], "c"), name="f", storage=storage, renamed={"b": "c"})
    assert await new.resume("r") == {"said": ["a", "c"]}


@pytest.mark.parametrize("wrong", [{"": "a"}, {"a": ""}, {"a": 1}, {"a": "/b"}, ["a"]], ids=repr)
def test_invalid_renamed(wrong: Any) -> None:
    with pytest.raises(InvalidOption, match="renamed="):
        NodeFlow(renamed=wrong)


async def test_a_new_path_that_is_not_a_node_is_found_at_the_first_run(storage: Storage) -> None:
    flow = linear(Say([], "a"), storage=storage, renamed={"b": "c"})
    with pytest.raises(InvalidGraph, match="renamed= leads 'b' to 'c', which is not a node of the flow"):
        await flow.run()


# revision= and migrate=


async def test_migrate_moves_a_run_and_changes_its_shared_state(storage: Storage) -> None:
    seen: list[Any] = []

    def migrate(run: StoredRun) -> None:
        seen.append((run.revision, run.status, run.position, run.waits[0].question, dict(run.shared)))
        run.position = "c"
        run.shared["n"] = int(run.shared["n"])

    wait = await parked(linear(Say([], "a"), Wait("b"), name="f", storage=storage), shared={"n": "7"})
    new = linear(Say([], "a"), Say([], "c"), name="f", storage=storage, revision=2, migrate=migrate)
    assert await new.resume(wait, "ignored") == {"n": 7, "said": ["a", "c"]}
    assert seen == [(1, "parked", "b", None, {"n": "7", "said": ["a"]})]


async def test_migrate_is_called_once_and_the_revision_is_stored(storage: Storage) -> None:
    calls: list[int] = []

    def migrate(run: StoredRun) -> None:
        calls.append(run.revision)

    def made(revision: int, last: Node) -> NodeFlow:
        return linear(last, name="f", storage=storage, revision=revision, migrate=migrate if revision > 1 else None)

    await failed(made(1, fails("a")))
    assert (await made(1, fails("a")).status("r")).revision == 1
    for _ in range(2):
        with pytest.raises(Boom):
            await made(3, fails("a")).resume("r")
    assert (await made(3, fails("a")).status("r")).revision == 3
    assert calls == [1]
    with pytest.raises(Boom):
        await made(4, fails("a")).resume("r")
    assert calls == [1, 3]


async def test_a_new_run_has_the_present_revision_and_is_not_migrated(storage: Storage) -> None:
    def migrate(run: StoredRun) -> None:
        raise AssertionError

    flow = linear(Say([], "a", fails=[Boom()]), name="f", storage=storage, revision=5, migrate=migrate)
    await failed(flow)
    assert (await flow.status("r")).revision == 5
    assert [run.flow_id async for run in flow.runs("failed")] == ["r"]
    assert await flow.resume("r") == {"said": ["a"]}


async def test_a_new_revision_without_migrate_continues_if_the_position_fits(storage: Storage) -> None:
    await failed(linear(fails("a"), name="f", storage=storage))
    new = linear(Say([], "a"), name="f", storage=storage, revision=2)
    assert [run.flow_id async for run in new.runs()] == ["r"]
    assert await new.resume("r") == {"said": ["a"]}


async def test_an_older_revision_leaves_the_run_alone(storage: Storage) -> None:
    new = linear(Say([], "z", fails=[Boom()]), name="f", storage=storage, revision=2)
    await failed(new)
    address = storage.address(RUNS, "r")
    before = await storage.perform(Get(address, parts=True))
    old = linear(Say([], "a"), name="f", storage=storage)
    with pytest.raises(RunIsNewer, match="revision 2 of its flow, and this process has revision 1") as caught:
        await old.resume("r")
    assert not caught.value.stuck
    assert await storage.perform(Get(address, parts=True)) == before
    assert await new.resume("r") == {"said": ["z"]}


def _raises(run: StoredRun) -> None:
    run.shared["n"].append("half-way")
    run.position = "b"
    raise KeyError("missing")


def _moves_nowhere(run: StoredRun) -> None:
    run.position = "nowhere"


def _misspells(run: StoredRun) -> None:
    run.postion = "b"  # type: ignore[attr-defined]


def _sets_no_dict(run: StoredRun) -> None:
    run.shared = None  # type: ignore[assignment]


def _unstorable(run: StoredRun) -> None:
    run.shared["lock"] = object()


def _returns(run: StoredRun) -> Any:
    return "b", {}


def _moves_a_branch(run: StoredRun) -> None:
    run.branches["fan/0"] = "fan/0/x"


@pytest.mark.parametrize(
    ("migrate", "sentence"),
    [
        (_raises, "migrate() raised KeyError: 'missing'"),
        (_moves_nowhere, "migrate() moved the run to 'nowhere', which is not a node of the flow"),
        (_misspells, "migrate() raised AttributeError"),
        (_sets_no_dict, "migrate() set run.shared to a NoneType; set it to a dict"),
        (_unstorable, "migrate() left a value that cannot be stored"),
        (_returns, "migrate() returned a tuple; change the run in place"),
        (_moves_a_branch, "migrate() set run.branches['fan/0'], which is not a branch that is running"),
    ],
)
async def test_a_migration_that_fails_keeps_the_old_state(storage: Storage, migrate: Any, sentence: str) -> None:
    await failed(linear(Say([], "a"), fails("b"), name="f", storage=storage), {"n": [1]})
    new = linear(Say([], "a"), Say([], "b"), name="f", storage=storage, revision=2, migrate=migrate)
    await stuck(new, sentence)
    run = await new.status("r")
    assert (run.revision, run.node) == (1, "b")
    repaired = linear(Say([], "a"), Say([], "b"), name="f", storage=storage, revision=2, migrate=lambda run: None)
    assert await repaired.resume("r") == {"n": [1], "said": ["a", "b"]}


async def test_migrate_may_leave_a_batch_half_way_and_a_later_visit_begins_anew(storage: Storage) -> None:
    def migrate(run: StoredRun) -> None:
        assert run.progress["p"] == (2, 4)
        run.position = "a"

    await failed(linear(Say([], "a"), Half("p", breaks=True), name="f", storage=storage))
    new = linear(Say([], "a"), Half("p", items=1), fails("c"), name="f", storage=storage, revision=2, migrate=migrate)
    with pytest.raises(Boom):
        await new.resume("r")
    stored = await storage.perform(Get(storage.address(RUNS, "r"), parts=True))
    assert stored is not None
    assert set(stored.parts or ()) == {"graph::"}
    assert await StateStorage(storage).get_state("r") == {"said": ["a", "a"], "p": [0]}


async def test_migrate_may_move_one_branch_and_keep_the_others(storage: Storage) -> None:
    def migrate(run: StoredRun) -> None:
        assert run.branches == {"fan/0": "fan/0/l/x", "fan/1": "fan/1/r/y"}
        run.branches["fan/0"] = "fan/0/l/z"

    await parked(fan(linear(Left([], "a"), Wait("x"), name="l"), linear(Wait("y"), name="r"), storage=storage))
    new = fan(
        linear(Left([], "a"), Left([], "z"), name="l"),
        linear(Wait("y"), name="r"),
        storage=storage,
        revision=2,
        migrate=migrate,
    )
    with pytest.raises(Parked) as caught:
        await new.resume("r")
    assert caught.value.node == "fan/1/r/y"
    assert (await new.status("r")).branches == {"fan/1": "fan/1/r/y"}
    assert await new.resume(caught.value.id, 2) == {"a": 1, "z": 1, "y": 2, "end": 1}


async def test_a_method_migrates_too(storage: Storage) -> None:
    class Flow(NodeFlow):
        def migrate(self, run: StoredRun) -> None:
            run.position = "b"

    await failed(linear(fails("a"), name="f", storage=storage))
    new = Flow(start=Say([], "b"), name="f", storage=storage, revision=2)
    assert await new.resume("r") == {"said": ["b"]}


async def _async_migrate(run: StoredRun) -> None: ...


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"revision": 0}, "revision=0"),
        ({"revision": 20261116}, "from 1 to 1000"),
        ({"revision": True}, "revision=True"),
        ({"revision": "2"}, "revision='2'"),
        ({"migrate": lambda run: None}, "give revision=2"),
        ({"revision": 2, "migrate": 7}, "migrate=7"),
        ({"revision": 2, "migrate": _async_migrate}, "give a def function"),
    ],
)
def test_invalid_options(options: Any, match: str) -> None:
    with pytest.raises(InvalidOption, match=match):
        NodeFlow(**options)


# Rolling deploys without a revision


async def test_an_old_process_leaves_the_runs_of_a_newer_graph_alone(storage: Storage) -> None:
    old = linear(Say([], "a"), Say([], "b"), name="f", storage=storage)
    old._built_at -= 60
    new = linear(Say([], "a"), Say([], "z", fails=[Boom()]), name="f", storage=storage)
    await failed(new)
    before = await storage.perform(Get(storage.address(RUNS, "r"), parts=True))
    with pytest.raises(RunIsNewer, match="it is at 'z', which is not a node of the flow any more"):
        await old.resume("r")
    assert await storage.perform(Get(storage.address(RUNS, "r"), parts=True)) == before
    assert await new.resume("r") == {"said": ["a", "z"]}


async def test_a_new_process_marks_the_runs_that_an_old_one_still_starts(storage: Storage) -> None:
    old = linear(Say([], "a"), fails("b"), name="f", storage=storage)
    old._built_at -= 60
    new = linear(Say([], "a"), Say([], "z"), name="f", storage=storage)
    await failed(old)
    await stuck(new, "it is at 'b', which is not a node of the flow any more")


async def test_an_old_worker_that_starts_late_leaves_the_runs_of_a_newer_graph_alone(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    """It has loaded its graph after the new workers, for example because its machine was started again."""

    def release(last: str) -> NodeFlow:
        return linear(
            Say([], "a"), Sleep(0.05, name=f"before {last}"), Say([], last), name="f", storage=storage, keep=60
        )

    async with worker([release("old")]):
        pass
    async with worker([release("new")]):
        pass
    handle = await release("new").submit(flow_id="r")
    with pytest.raises(Parked):
        await release("new").resume("r")
    late = release("old")
    late._built_at += 60
    async with worker([late]):
        await until(lambda: "run 'r' could not be resumed here: a newer release has written" in caplog.text)
        with pytest.raises(RunIsNewer, match="it sleeps at 'before new', which is not a node of the flow any more"):
            await late.resume("r")
    assert (await handle.status()).status == "sleeping"
    # No retry is needed.
    async with worker([release("new")]):
        assert (await handle.result(timeout=10))["said"] == ["a", "new"]


async def test_a_new_worker_still_marks_the_runs_of_an_old_one_that_started_late(storage: Storage) -> None:
    old = linear(Say([], "a"), fails("b"), name="f", storage=storage)
    new = linear(Say([], "a"), Say([], "z"), name="f", storage=storage)
    for flow in (old, new):
        async with worker([flow]):
            pass
    old._built_at += 60
    await failed(old)
    await stuck(new, "it is at 'b', which is not a node of the flow any more")


async def test_an_old_process_that_builds_its_flow_for_each_call_is_still_old(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def old() -> NodeFlow:
        return linear(Say([], "a"), Say([], "of the old release"), name="f", storage=storage)

    at = loaded.monotonic()
    with monkeypatch.context() as patch:
        patch.setattr(loaded, "monotonic", lambda: at - 60)
        await old().run()
    new = linear(Say([], "a"), Say([], "z", fails=[Boom()]), name="f", storage=storage)
    await failed(new)
    with pytest.raises(RunIsNewer):
        await old().resume("r")


@pytest.mark.parametrize("revision", [1, 2])
async def test_old_and_new_workers_share_the_runs_of_a_rolling_deploy(storage: Storage, revision: int) -> None:
    """With a revision, old workers run old runs only. Without one, they also take new runs whose position they have."""
    ran: list[tuple[str, str]] = []

    class Mark(Node):
        def __init__(self, name: str, release: str) -> None:
            super().__init__(name=name)
            self.release = release

        def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> None:
            ran.append((shared["from"], self.release))
            shared["ended"] = self.name

    old = linear(Sleep(0.05, name="nap"), Mark("end", "old"), name="f", storage=storage, keep=60)
    old._built_at -= 60
    new = linear(
        Sleep(0.05, name="doze"),
        Mark("end", "new"),
        name="f",
        storage=storage,
        keep=60,
        revision=revision,
        renamed={"nap": "doze"},
    )
    ids = [(flow, name, f"{name}{number}") for number in range(8) for flow, name in ((old, "old"), (new, "new"))]
    async with worker([old], storage=storage), worker([new], storage=storage):
        for flow, name, flow_id in ids:
            with pytest.raises(Parked):
                await flow.run({"from": name}, flow_id=flow_id)
        for flow, _, flow_id in ids:
            run = await until(
                lambda flow=flow, flow_id=flow_id: flow.status(flow_id),
                lambda run: run.status not in ("sleeping", "running"),
            )
            assert run.status == "finished"
    assert len(ran) == len(ids), "each run ended once"
    assert ("new", "old") not in ran, "the position of new runs is unknown to old workers"


# Queued runs


async def test_a_queued_run_begins_with_any_graph(storage: Storage) -> None:
    await linear(Say([], "a"), name="f", storage=storage).submit({"n": "7"}, flow_id="r", params={"p": 1})
    new = linear(Say([], "x"), Say([], "y"), name="f", storage=storage, renamed={"a": "x"})
    assert await new.resume("r") == {"n": "7", "said": ["x", "y"]}


async def test_a_queued_run_is_migrated_and_may_be_moved(storage: Storage) -> None:
    def migrate(run: StoredRun) -> None:
        assert (run.status, run.position) == ("queued", "a")
        run.shared["n"] = int(run.shared["n"])
        run.position = "b"

    await linear(Say([], "a"), name="f", storage=storage).submit({"n": "7"}, flow_id="r")
    new = linear(Say([], "a"), Say([], "b"), name="f", storage=storage, revision=2, migrate=migrate)
    assert await new.resume("r") == {"n": 7, "said": ["b"]}
    assert (await new.status("r")).revision == 2


@pytest.mark.parametrize("cls", [NodeFlow, Prepared])
async def test_a_queued_run_that_is_moved_into_a_flow(storage: Storage, cls: type[NodeFlow]) -> None:
    def migrate(run: StoredRun) -> None:
        run.position = "inner/y"

    def made(last: Node) -> NodeFlow:
        inner = outer(cls, Say([], "x"), last, name="inner")
        return linear(Say([], "a"), inner, name="f", storage=storage, revision=2, migrate=migrate)

    await linear(Say([], "a"), name="f", storage=storage).submit(flow_id="r")
    if cls is Prepared:
        await stuck(made(Say([], "y")), "it is inside 'inner', whose post() needs the result of prep()")
        return
    with pytest.raises(Boom):
        await made(fails("y")).resume("r")
    assert await made(Say([], "y")).resume("r") == {"said": ["y"]}


async def test_a_queued_run_of_a_later_revision_is_left_alone(storage: Storage) -> None:
    await linear(Say([], "a"), name="f", storage=storage, revision=2).submit(flow_id="r")
    with pytest.raises(RunIsNewer):
        await linear(Say([], "a"), name="f", storage=storage).resume("r")


@pytest.mark.parametrize("partition", [None, "user"])
async def test_a_queued_run_whose_migration_fails_is_stuck_until_it_is_repaired(
    storage: Storage, partition: str | None
) -> None:
    await linear(Say([], "a"), name="f", storage=storage).submit({"n": "x"}, flow_id="r", partition=partition)

    def migrate(run: StoredRun) -> None:
        run.shared["n"] = int(run.shared["n"])

    def made(migrate: Migrate) -> NodeFlow:
        return linear(Say([], "a"), name="f", storage=storage, revision=2, migrate=migrate)

    async with worker([made(migrate)], storage=storage):
        await until(lambda: made(migrate).status("r"), lambda run: run.status == "stuck")
    await stuck(made(migrate), "migrate() raised ValueError: invalid literal")
    assert await made(lambda run: None).resume("r") == {"n": "x", "said": ["a"]}


async def test_a_queued_run_that_waits_for_its_partition_is_not_half_migrated(storage: Storage) -> None:
    def migrate(run: StoredRun) -> None:
        run.shared["n"].append(2)
        run.shared["new"] = True

    with pytest.raises(Parked):
        await submitted_and_resumed(linear(Wait("x"), name="f", storage=storage), "first")
    await linear(Say([], "a"), name="f", storage=storage).submit({"n": [1]}, flow_id="r", partition="user")
    new = linear(Say([], "a"), name="f", storage=storage, revision=2, migrate=migrate)
    for _ in range(2):
        with pytest.raises(RunBusy):
            await new.resume("r")
        assert await StateStorage(storage).get_state("r") == {"n": [1]}
    assert (await new.status("r")).revision == 1
    await StateStorage(storage).cleanup("first")
    assert await new.resume("r") == {"n": [1, 2], "new": True, "said": ["a"]}


async def submitted_and_resumed(flow: NodeFlow, flow_id: str) -> None:
    await flow.submit(flow_id=flow_id, partition="user")
    await flow.resume(flow_id)


async def test_a_retried_run_has_no_reason_until_it_is_stuck_again(storage: Storage) -> None:
    await failed(linear(fails("a"), name="f", storage=storage))
    other = linear(Say([], "b"), name="f", storage=storage)
    await stuck(other, "it is at 'a'")
    assert await other.retry(status="stuck") == 1
    run = await other.status("r")
    assert (run.status, run.reason) == ("queued", None)
    async with worker([other], storage=storage):
        await until(lambda: other.status("r"), lambda run: run.status == "stuck")
    assert await linear(Say([], "a"), name="f", storage=storage).resume("r") == {"said": ["a"]}
