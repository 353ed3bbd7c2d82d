"""Start, duration and attempts of the nodes of a durable run."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from stepwell.nodes import BatchNode, Node, NodeFlow, Parked, Wait, parallel
from stepwell.storage import Storage
from tests.backends import Backend


@pytest.fixture
def storage(backend: Backend) -> Storage:
    return backend.storage()


def chain(*nodes: Any, name: str = "chain") -> NodeFlow:
    for one, other in pairwise(nodes):
        one >> other
    return NodeFlow(nodes[0], name=name)


class Flaky(Node):
    """Succeeds at the third attempt."""

    async def exec(self, prepared: Any) -> None:
        self.params["tries"].append(1)
        if len(self.params["tries"]) < 3:
            raise RuntimeError("again")


class GivesUp(Node):
    """Uses its fallback after two attempts."""

    async def exec(self, prepared: Any) -> None:
        raise RuntimeError("never")

    async def exec_fallback(self, prepared: Any, error: Exception) -> None:
        pass


class Items(BatchNode):
    """A batch of three."""

    def prep(self, shared: dict[str, Any]) -> Any:
        return range(3)


async def test_each_completed_node_has_its_start_duration_and_attempts(storage: Storage) -> None:
    flaky = Flaky(3)
    flaky.params = {"tries": []}
    flow = chain(Node(), flaky, GivesUp(2), Items(), chain(Node(), Node(name="second"), name="inner"))
    await flow.run({}, storage=storage, flow_id="one", keep=True)
    run = await flow.status("one", storage=storage)
    assert [each.node for each in run.completed] == list(run.path)
    assert {each.node: each.attempts for each in run.completed} == {
        "Node": 1, "Flaky": 3, "GivesUp": 2, "Items": 1, "inner/Node": 1, "inner/second": 1, "inner": 1,
    }  # fmt: skip
    starts = [each.started_at or 0.0 for each in run.completed]
    # A nested flow begins before the nodes inside it, and completes after them. Times are rounded to milliseconds.
    ordered = [run.started_at, *starts[:4], starts[-1], *starts[4:-1]]
    assert all(one <= other + 0.002 for one, other in pairwise(ordered)), ordered
    assert all(each.duration is not None and 0 <= each.duration < 60 for each in run.completed)


async def test_branches_and_a_resumed_run_have_their_own_times(storage: Storage) -> None:
    both = parallel(Node(name="left"), Node(name="right"), name="both")
    flow = chain(both, Wait(name="ask"), Node(name="end"))
    with pytest.raises(Parked):
        await flow.run({}, storage=storage, flow_id="one", keep=True)
    parked = await flow.status("one", storage=storage)
    assert sorted(each.node for each in parked.completed) == ["both", "both/0/left", "both/1/right"]
    await flow.resume("one", "yes", storage=storage)
    run = await flow.status("one", storage=storage)
    assert run.completed[:3] == parked.completed
    assert [each.node for each in run.completed[3:]] == ["ask", "end"]
    assert all(each.started_at is not None for each in run.completed)


async def test_the_times_are_bounded_by_the_trail(storage: Storage) -> None:
    class Loop(Node):
        def post(self, shared: dict[str, Any], prepared: Any, result: Any) -> str:
            shared["n"] += 1
            return "again" if shared["n"] < 50 else "default"

    node = Loop()
    node - "again" >> node
    await NodeFlow(node, name="looping").run({"n": 0}, storage=storage, flow_id="one", keep=True)
    run = await NodeFlow(node, name="looping").status("one", storage=storage)
    assert len(run.completed) == len(run.path) == 20
    assert all(each.duration is not None for each in run.completed)
