"""Parallel branches, the join, and the declared merge."""

from __future__ import annotations

import asyncio
import copy
import operator
from datetime import UTC, datetime
from decimal import Decimal
from functools import reduce

import pytest

from stepwell.errors import InvalidGraph, InvalidOption, MergeConflict, WorkCancelled
from stepwell.nodes import END, Node, NodeFlow, linear, parallel, step
from tests.nodes.flows import A, B
from tests.until import forever


class Put(Node):
    """Sets fields, after all branches have begun."""

    def __init__(self, barrier=None, *, delete=(), **fields):
        super().__init__()
        self.barrier, self.delete, self.fields = barrier, delete, fields

    async def exec(self, prep_res):
        if self.barrier is not None:
            await self.barrier.wait()

    def post(self, shared, prep_res, exec_res):
        shared.update(self.fields)
        for field in self.delete:
            del shared[field]


async def run(node, shared=None):
    return await NodeFlow(start=node).run({} if shared is None else shared)


async def test_branches_run_concurrently_and_are_merged():
    barrier = asyncio.Barrier(3)
    branches = parallel(Put(barrier, a=1), Put(barrier, b=2), Put(barrier, c=3))
    branches >> Put(after=4)
    shared = {"before": 0}
    assert await asyncio.wait_for(run(branches, shared), 10) is shared
    assert shared == {"before": 0, "a": 1, "b": 2, "c": 3, "after": 4}


async def test_a_branch_is_a_node_with_its_edges_or_a_flow_or_a_class():
    a = A()
    a >> B()
    branches = parallel(a, linear(Put(x=1), Put(y=2)), Node)
    assert await run(branches) == {"trail": ["A", "B"], "x": 1, "y": 2}


async def test_a_branch_does_not_see_what_the_others_set():
    class See(Node):
        def post(self, shared, prep_res, exec_res):
            assert shared == {"old": 1}
            shared[step().node] = True

    shared = await run(parallel(See(), See()), {"old": 1})
    assert shared == {"old": 1, "Parallel/0/See": True, "Parallel/1/See": True}


async def test_a_field_that_two_branches_changed_is_a_conflict_and_nothing_is_merged():
    shared = {"x": 0}
    with pytest.raises(MergeConflict, match="merge=") as caught:
        await run(parallel(Put(x=1, a=1), Put(x=2), Put(y=1)), shared)
    assert (caught.value.node, caught.value.field) == ("Parallel", "x")
    assert caught.value.branches == ["Parallel/0/Put", "Parallel/1/Put"]
    assert shared == {"x": 0}


async def test_branches_that_set_the_same_object_agree():
    assert await run(parallel(Put(done=True), Put(done=True))) == {"done": True}


class Opaque:
    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return self.value == other.value

    __hash__ = None


class Undecided:
    def __eq__(self, other):
        raise ValueError("the truth value is ambiguous")

    __hash__ = None


#: Each call makes a new object.
VALUES = {
    "int": lambda: int("404"),
    "large int": lambda: int("9" * 30),
    "float": lambda: float("1.5"),
    "str": lambda: "".join(["ab", "c"]),
    "bytes": lambda: bytes(bytearray(b"abc")),
    "tuple": lambda: (int("404"), [float("0.5")]),
    "set": lambda: {int("404"), "x"},
    "decimal": lambda: Decimal("9.90"),
    "datetime": lambda: datetime(2024, 1, 2, tzinfo=UTC),
    "large list": lambda: [{"n": n, "half": n / 2} for n in range(2000)],
    "dict with keys in another order": iter([{"a": 1, "b": [2]}, {"b": [2], "a": 1}]).__next__,
    "a class that no storage keeps": lambda: Opaque(404),
}


@pytest.mark.parametrize("make", VALUES.values(), ids=VALUES)
async def test_branches_that_set_equal_values_agree(make):
    first, second = make(), make()
    assert first is not second
    assert await run(parallel(Put(x=first), Put(x=second))) == {"x": first}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (0, False),
        (1, 1.0),
        (0.0, -0.0),
        ("a", b"a"),
        ([1, 2], (1, 2)),
        ([0.0], [-0.0]),
        ([1], [True]),
        ([1, 2], [1, 2, 3]),
        ({"a": {"b": 1}}, {"a": {"b": True}}),
        ({1: "x"}, {True: "x"}),
        ({"a": 1}, {"a": 1, "b": 2}),
        ({1}, {True}),
        (Decimal("1.0"), Decimal("1.00")),
        pytest.param(Opaque(1), Opaque(2), id="a class that no storage keeps"),
        pytest.param(Undecided(), Undecided(), id="a comparison that raises"),
        (None, 0),
    ],
    ids=repr,
)
async def test_branches_that_set_values_of_different_type_or_value_conflict(one, other):
    with pytest.raises(MergeConflict):
        await run(parallel(Put(x=one), Put(x=other)))


async def test_values_that_contain_themselves_conflict():
    one, other = [], []
    one.append(one)
    other.append(other)
    with pytest.raises(MergeConflict):
        await run(parallel(Put(x=one), Put(x=other)))


@pytest.mark.parametrize("value", [200, 404, 10**30, "a b", [1, 2]], ids=repr)
async def test_a_branch_that_sets_the_value_that_was_there_has_changed_nothing(value):
    again = copy.deepcopy([value])[0] if isinstance(value, list) else type(value)(str(value))
    assert await run(parallel(Put(x=again), Put(x="changed")), {"x": value}) == {"x": "changed"}


async def test_a_declared_merge_gets_the_values_in_the_order_of_the_branches():
    merge = {"n": sum, "words": lambda values: reduce(operator.add, values)}
    branches = parallel(Put(n=1, words=["a"]), Put(n=2), Put(n=3, words=["b"]), merge=merge)
    assert await run(branches, {"n": 100}) == {"n": 6, "words": ["a", "b"]}


async def test_a_field_that_a_branch_deleted_is_deleted():
    assert await run(parallel(Put(delete=["old"]), Put(new=1)), {"old": 0, "kept": 0}) == {"kept": 0, "new": 1}
    with pytest.raises(MergeConflict):
        await run(parallel(Put(delete=["old"]), Put(old=1)), {"old": 0})


async def test_the_join_may_choose_the_edge_by_the_last_actions():
    class Vote(Node):
        def __init__(self, vote):
            super().__init__()
            self.vote = vote

        def post(self, shared, prep_res, exec_res):
            return self.vote

    class Majority(type(parallel(A))):
        def post(self, shared, prep_res, exec_res):
            return max(set(exec_res), key=exec_res.count)

    majority = Majority(Vote("yes"), Vote("no"), Vote("yes"))
    majority - "yes" >> Put(result="accepted")
    majority - "no" >> Put(result="rejected")
    assert await run(majority) == {"result": "accepted"}


async def test_end_in_a_branch_ends_that_branch():
    assert await run(linear(parallel(linear(A(END), B), Put(x=1)), Put(y=2))) == {"trail": ["A"], "x": 1, "y": 2}


async def test_stop_cancels_and_awaits_the_other_branches():
    ended, began = [], asyncio.Event()

    class Slow(Node):
        async def exec(self, prep_res):
            began.set()
            try:
                await forever()
            finally:
                await asyncio.sleep(0)
                ended.append(step().node)

    class Fails(Node):
        async def exec(self, prep_res):
            await began.wait()
            raise ValueError("no")

    shared = {}
    with pytest.raises(ValueError, match="no"):
        await run(parallel(linear(Put(x=1), Slow()), Fails()), shared)
    assert ended == ["Parallel/0/flow/Slow"]
    assert shared == {}
    assert len(asyncio.all_tasks()) == 1


async def test_a_branch_that_is_cancelled_from_inside_has_failed():
    class Inside(Node):
        async def exec(self, prep_res):
            raise asyncio.CancelledError

    with pytest.raises(WorkCancelled):
        await run(parallel(Inside(), Put(x=1)))


async def test_branches_inside_branches():
    inner = parallel(Put(a=1), Put(b=2))
    assert await run(parallel(inner, Put(c=3))) == {"a": 1, "b": 2, "c": 3}


def test_run_sync_runs_branches_on_the_background_loop():
    assert NodeFlow(start=parallel(Put(a=1), Put(b=2))).run_sync() == {"a": 1, "b": 2}


async def test_a_flow_that_contains_itself_in_a_branch_raises():
    flow = NodeFlow(name="outer")
    flow.start(parallel(A, flow))
    with pytest.raises(InvalidGraph, match="contains itself"):
        await flow.run()


def test_invalid_arguments_raise():
    with pytest.raises(InvalidGraph, match="at least one branch"):
        parallel()
    with pytest.raises(InvalidOption, match="merge="):
        parallel(A, merge={"x": 3})
    with pytest.raises(InvalidOption, match="on_error"):
        parallel(A, on_error="ignore")
    with pytest.raises(InvalidGraph, match="is not a node"):
        parallel(A, "B")
