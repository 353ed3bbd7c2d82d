"""Hooks that would never run are found when the flow is built."""

from __future__ import annotations

import pytest

from stepwell import pocketflow
from stepwell.errors import InvalidGraph
from stepwell.nodes import BatchNode, Node, NodeFlow, Wait, linear, parallel


def nothing(self, *args):
    pass


async def nothing_async(self, *args):
    pass


async def read_async(self, shared):
    return shared["name"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("execute", "exec()"),
        ("Exec", "exec()"),
        ("_exec", "exec()"),
        ("exce", "exec()"),
        ("prepare", "prep()"),
        ("fallback", "exec_fallback()"),
    ],
)
def test_a_misspelt_hook_is_found(name, meant):
    flow = linear(type("Bad", (Node,), {name: nothing}))
    with pytest.raises(InvalidGraph) as caught:
        flow.run_sync({})
    assert f"Bad defines {name}(), which a run never calls; did you mean {meant}?" in str(caught.value)


async def test_an_exec_that_expects_the_shared_state_is_told_that_prep_is_missing():
    class Read(Node):
        def exec(self, shared):
            return shared["name"]

    class Own(Read):
        def prep(self, shared):
            return None

    class Late(Node):
        def post(self, shared, prep_res, exec_res):
            return exec_res["name"]

    note = "Read defines no prep(), so its exec got None: exec gets what prep(shared) returns, not the shared state"
    waiting = type("Waiting", (Read,), {"exec": read_async})
    for node in (Read(), Read(max_retries=2), waiting()):
        with pytest.raises(TypeError) as caught:
            await linear(node).run({"name": "Anna"})
        assert caught.value.__notes__[0] == note.replace("Read", type(node).__name__)
    for flow in (linear(Own), linear(Late)):
        with pytest.raises(TypeError) as caught:
            await flow.run({"name": "Anna"})
        assert "prep()" not in "".join(caught.value.__notes__)


@pytest.mark.parametrize("name", ["prep_async", "exec_async", "post_async"])
def test_the_async_names_of_pocketflow_are_found(name):
    bad = type("Bad", (Node,), {name: nothing_async})
    with pytest.raises(InvalidGraph, match=rf"did you mean async def {name.removesuffix('_async')}\(\.\.\.\)\?"):
        linear(bad).run_sync({})


@pytest.mark.parametrize("wrap", [lambda node: node, NodeFlow, parallel], ids=["node", "flow", "branch"])
def test_a_misspelt_hook_is_found_wherever_the_node_is(wrap):
    class Base(Node):
        def execute(self, prep_res):
            pass

    class Derived(Base):
        def post(self, shared, prep_res, exec_res):
            pass

    with pytest.raises(InvalidGraph, match="Derived defines execute"):
        NodeFlow(start=wrap(Derived())).diagram()


def test_misspelt_hooks_of_flows_and_waits_are_found():
    class Flow(NodeFlow):
        prepare = nothing

    class Ask(Wait):
        post_async = nothing_async

    with pytest.raises(InvalidGraph, match="flow defines prepare"):
        Flow(start=Node()).run_sync({})
    with pytest.raises(InvalidGraph, match="ask defines post_async"):
        linear(Ask("ask")).diagram()


def test_a_generator_is_found():
    class Streams(Node):
        def exec(self, prep_res):
            yield 1

    class AsyncStreams(BatchNode):
        async def exec(self, prep_res):
            yield 1

    for kind in (Streams, AsyncStreams):
        with pytest.raises(InvalidGraph, match=f"{kind.__name__}.exec is a generator"):
            linear(kind).run_sync({})


def test_helper_methods_are_allowed():
    class Both(Node):
        def exec(self, prep_res):
            return 1

        def execute(self):
            return 2

    class Helper(Node):
        execute_count = 3
        fallback = 4

        def prep(self, shared):
            return [each + 1 for each in self.prepare(shared)]

        def prepare(self, shared):
            return [1]

    class Aliased(Node):
        def execute(self, prep_res):
            return 1

        exec = execute

    class Items(BatchNode):
        def prep(self, shared):
            yield 1

    linear(Both, Helper, Aliased, Items).run_sync({})


def test_a_hook_that_is_set_on_the_node_counts():
    class Later(Node):
        def execute(self, prep_res):
            return 1

    node = Later()
    node.exec = node.execute
    linear(node).run_sync({})


def test_pocketflow_keeps_its_rules():
    class Streams(pocketflow.Node):
        def exec(self, prep_res):
            yield from (1, 2)

        def prepare(self):
            pass

        def post(self, shared, prep_res, exec_res):
            shared["all"] = list(exec_res)

    shared = {}
    pocketflow.Flow(start=Streams()).run(shared)
    assert shared == {"all": [1, 2]}
