"""step(): the position of the running code."""

from __future__ import annotations

import asyncio

import pytest

from stepwell.errors import InvalidOption, UsageError
from stepwell.nodes import BatchNode, Node, NodeFlow, Step, linear, new_flow_id, parallel, step


class Note(Node):
    def prep(self, shared):
        shared.setdefault("steps", []).append(step())

    def exec(self, prep_res):
        return step()

    def post(self, shared, prep_res, exec_res):
        shared["steps"] += [exec_res, step()]


class AsyncNote(Note):
    async def exec(self, prep_res):
        await asyncio.sleep(0)
        return await asyncio.to_thread(step)


@pytest.mark.parametrize("kind", [Note, AsyncNote])
async def test_every_hook_knows_its_step_in_threads_too(kind):
    shared = await NodeFlow(start=kind(name="note")).run({}, flow_id="run-1")
    assert shared["steps"] == [Step("run-1", "note", 1, None, 1)] * 3
    assert shared["steps"][0].id == "run-1/note/1"


def test_a_run_without_a_loop_knows_its_steps():
    shared = NodeFlow(start=Note(name="note")).run_sync({}, flow_id="run-1")
    assert {s.id for s in shared["steps"]} == {"run-1/note/1"}


async def test_visits_of_a_node_are_counted():
    note = Note(name="note")
    note - "again" >> note
    note.post = lambda shared, p, e: "again" if len(shared["steps"]) < 3 else None
    shared = await NodeFlow(start=note).run({}, flow_id="f")
    assert [s.id for s in shared["steps"]] == ["f/note/1", "f/note/2", "f/note/3"]


async def test_the_nodes_of_nested_flows_and_branches_have_paths():
    flow = linear(Note(name="a"), linear(Note(name="a"), name="inner"), parallel(Note(name="a")))
    shared = await flow.run({}, flow_id="f")
    assert [s.id for s in shared["steps"]][::3] == ["f/a/1", "f/inner/a/1", "f/Parallel/0/a/1"]


async def test_items_have_their_place_in_the_id():
    class Items(BatchNode):
        def prep(self, shared):
            return ["a", "b", "c"]

        async def exec(self, item):
            await asyncio.sleep(0)
            return step().id

        def post(self, shared, prep_res, exec_res):
            shared["ids"] = exec_res, step().id

    for concurrency in (1, 3):
        shared = await NodeFlow(start=Items(concurrency=concurrency)).run({}, flow_id="f")
        assert shared["ids"] == (["f/Items/1/0", "f/Items/1/1", "f/Items/1/2"], "f/Items/1")


async def test_the_attempts_of_a_step_share_its_id():
    seen = []

    class Flaky(Node):
        def exec(self, prep_res):
            seen.append((step().id, step().attempt))
            if len(seen) < 3:
                raise ValueError

    await NodeFlow(start=Flaky(3)).run({}, flow_id="f")
    assert seen == [("f/Flaky/1", 1), ("f/Flaky/1", 2), ("f/Flaky/1", 3)]


async def test_runs_at_once_have_their_own_steps():
    flow = NodeFlow(start=AsyncNote())
    finals = await asyncio.gather(*(flow.run({}, flow_id=f"run-{n}") for n in range(20)))
    assert [{s.flow_id for s in final["steps"]} for final in finals] == [{f"run-{n}"} for n in range(20)]


async def test_a_run_without_a_flow_id_gets_a_new_one():
    flow = NodeFlow(start=Note(), name="words")
    one, two = [(await flow.run({}))["steps"] for _ in range(2)]
    assert len({s.flow_id for s in one}) == 1
    assert one[0].flow_id.startswith("words_")
    assert one[0].flow_id != two[0].flow_id


def test_new_flow_ids_are_never_equal():
    ids = {new_flow_id("p") for _ in range(1000)}
    assert len(ids) == 1000
    assert all(flow_id.startswith("p_") for flow_id in ids)


@pytest.mark.parametrize("flow_id", ["", 3])
def test_an_invalid_flow_id_raises(flow_id):
    with pytest.raises(InvalidOption, match="flow_id"):
        NodeFlow(start=Note).run_sync(flow_id=flow_id)


async def test_outside_a_run_step_is_an_error():
    with pytest.raises(UsageError, match="outside a run"):
        step()
    await NodeFlow(start=Note()).run({})
    with pytest.raises(UsageError, match="outside a run"):
        step()


async def test_a_flow_run_inside_a_node_does_not_disturb_the_nodes_step():
    class Outer(Node):
        async def exec(self, prep_res):
            before = step()
            await NodeFlow(start=Note()).run({}, flow_id="inside")
            assert step() == before

    await NodeFlow(start=Outer()).run({}, flow_id="outside")
