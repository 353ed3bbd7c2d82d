"""How flows are put together, and which edge is taken."""

from __future__ import annotations

import warnings

import pytest

from stepwell import MemoryStorage
from stepwell.errors import InvalidAction, InvalidGraph, InvalidOption, TooManySteps, UnknownAction, UsageError
from stepwell.nodes import END, Node, NodeFlow, linear, parallel, step, with_error_handling
from tests.nodes.flows import A, B, C, Trail


def trail(flow: NodeFlow) -> list[str]:
    return flow.run_sync({}).get("trail", [])


def test_the_builder_takes_classes():
    assert trail(NodeFlow().add_node(A).add_node(B).connect(A, B, action="default").start(A)) == ["A", "B"]


def test_the_builder_takes_instances_several_of_one_class_too():
    first, second = A(name="first"), A(name="second")
    assert trail(NodeFlow().connect(first, second).start(first)) == ["first", "second"]


def test_add_node_is_optional():
    assert trail(NodeFlow().connect(A, B).connect(B, C).start(A)) == ["A", "B", "C"]


def test_the_operators_make_edges():
    a, b, c = A("go"), B(), C()
    a - "go" >> b >> c
    assert trail(NodeFlow(start=a)) == ["A", "B", "C"]


def test_start_may_be_a_class():
    assert trail(NodeFlow(start=A)) == ["A"]


def test_linear_connects_in_order():
    assert trail(linear(A, B(), C)) == ["A", "B", "C"]


def test_a_class_that_stands_twice_in_linear_stands_for_two_nodes():
    assert trail(linear(A, B, A)) == ["A", "B", "A"]


def test_linear_adds_no_edges_to_the_nodes():
    a, b = A(), B()
    linear(a, b)
    assert trail(NodeFlow(start=a)) == ["A"]


def test_with_error_handling_connects_the_action_error_of_each_node():
    assert trail(with_error_handling([A, B("error")], C)) == ["A", "B", "C"]
    assert trail(with_error_handling([A("error"), B], C)) == ["A", "C"]
    assert trail(with_error_handling([A, B], C)) == ["A", "B"]


def test_edges_of_the_flow_win_over_edges_of_the_node():
    a, b, c = A(), B(), C()
    a >> b
    flow = NodeFlow(start=a).connect(a, c)
    assert trail(flow) == ["A", "C"]
    assert trail(NodeFlow(start=a)) == ["A", "B"]


@pytest.mark.parametrize("falsy", [None, "", 0, False, [], ()])
def test_a_falsy_action_means_default(falsy):
    assert trail(linear(A(falsy), B)) == ["A", "B"]


@pytest.mark.parametrize("anything", ["named", 7, {"a": 1}, object(), (1, 2, 3), ("x", "y")])
def test_a_node_without_edges_ends_the_flow_whatever_it_returns(anything):
    shared = {"kept": 1}
    assert NodeFlow(start=A(anything)).run_sync(shared) == {"kept": 1, "trail": ["A"]}


def test_default_without_a_default_edge_ends_the_flow():
    a = A()
    a - "other" >> B()
    assert trail(NodeFlow(start=a)) == ["A"]


def test_end_ends_the_flow():
    assert trail(linear(A(END), B)) == ["A"]


def test_end_may_be_the_target_of_an_edge():
    a = A("done")
    a - "done" >> END
    a >> B()
    assert trail(NodeFlow(start=a)) == ["A"]
    assert trail(NodeFlow().connect(A, B).connect(A, END, action="x").start(A)) == ["A", "B"]


def test_end_ends_the_inner_flow_only():
    assert trail(linear(NodeFlow(start=A(END)), B)) == ["A", "B"]


def test_end_has_a_name():
    assert repr(END) == "END"


def test_a_named_action_without_an_edge_is_an_error_that_suggests_end():
    with pytest.raises(UnknownAction, match="return END") as caught:
        trail(linear(A("elsewhere"), B))
    assert (caught.value.node, caught.value.action, caught.value.known) == ("A", "elsewhere", ["default"])


def test_on_unknown_action_end_ends_with_one_warning():
    a = A("elsewhere")
    flow = NodeFlow(start=a, on_unknown_action="end").connect(a, B)
    with pytest.warns(UserWarning) as caught:
        assert trail(flow) == ["A"]
    assert [str(w.message) for w in caught] == ["Flow ends: 'elsewhere' not found in ['default']"]


def test_on_unknown_action_default_takes_the_default_edge():
    flow = linear(A("elsewhere"), B, on_unknown_action="default")
    assert trail(flow) == ["A", "B"]


def test_an_invalid_on_unknown_action_raises():
    with pytest.raises(InvalidOption, match="on_unknown_action"):
        NodeFlow(on_unknown_action="ignore")  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [7, {"words": 1}, ("go",), ("go", 1), ("a", "b", "c")])
def test_a_result_that_is_not_an_action_raises(wrong):
    with pytest.raises(InvalidAction, match=r"return an action"):
        trail(linear(A(wrong), B))


def test_post_may_return_an_action_and_updates():
    a = A(("go", {"x": 1}))
    a - "go" >> B((None, {"y": 2}))
    shared = {"x": 0}
    assert NodeFlow(start=a).run_sync(shared) is shared
    assert shared == {"x": 1, "y": 2, "trail": ["A", "B"]}


def test_the_callers_dict_is_changed_in_place_and_returned():
    shared = {}
    assert NodeFlow(start=A).run_sync(shared) is shared
    assert shared == {"trail": ["A"]}


def test_without_a_shared_state_a_new_dict_is_used():
    assert NodeFlow(start=A).run_sync() == {"trail": ["A"]}


def test_the_shared_state_must_be_a_dict():
    with pytest.raises(UsageError, match="must be a dict"):
        NodeFlow(start=A).run_sync([])  # type: ignore[arg-type]


def test_a_loop_runs_until_an_action_leaves_it():
    class Count(Node):
        def post(self, shared, prep_res, exec_res):
            shared["n"] += 1
            return "again" if shared["n"] < 5 else "done"

    count = Count()
    count - "again" >> count
    count - "done" >> A()
    assert NodeFlow(start=count).run_sync({"n": 0}) == {"n": 5, "trail": ["A"]}


def test_max_steps_stops_an_endless_loop():
    a = A()
    a >> a
    with pytest.raises(TooManySteps, match="max_steps") as caught:
        NodeFlow(start=a, max_steps=3, name="spin").run_sync(shared := {})
    assert (caught.value.flow, caught.value.max_steps, caught.value.node) == ("spin", 3, "A")
    assert shared["trail"] == ["A", "A", "A"]


@pytest.mark.parametrize("inside", [lambda node: NodeFlow(start=node), lambda node: parallel(node, B())])
async def test_max_steps_counts_what_flows_inside_visit(inside):
    a = A()
    a >> a
    with pytest.raises(TooManySteps) as caught:
        await NodeFlow(start=inside(a), max_steps=10, name="outer").run()
    assert (caught.value.flow, caught.value.max_steps) == ("outer", 10)
    with pytest.raises(TooManySteps):
        await NodeFlow(start=inside(a), max_steps=10).run(storage=MemoryStorage())


async def test_a_flow_inside_is_as_many_steps_as_its_nodes():
    flow = linear(linear(A, B), C, max_steps=3)
    assert (await flow.run({}))["trail"] == ["A", "B", "C"]
    with pytest.raises(TooManySteps):
        await linear(linear(A, B), C, max_steps=2).run({})


def test_linear_takes_each_node_once():
    a = A()
    with pytest.raises(InvalidGraph, match="twice"):
        linear(a, B, a)
    assert trail(linear(A, B, A)) == ["A", "B", "A"]


def test_max_steps_allows_exactly_that_many():
    assert trail(linear(A, B, C, max_steps=3)) == ["A", "B", "C"]


def test_what_prep_puts_on_self_is_seen_by_that_visit_only():
    class Remember(Node):
        seen = None

        def prep(self, shared):
            shared["before"].append(self.seen)
            self.seen = len(shared["before"])

        def exec(self, prep_res):
            return self.seen

        def post(self, shared, prep_res, exec_res):
            shared["during"].append((exec_res, self.seen))
            return "again" if len(shared["before"]) < 3 else END

    node = Remember()
    node - "again" >> node
    for _ in range(2):
        shared = NodeFlow(start=node).run_sync({"before": [], "during": []})
        assert shared == {"before": [None] * 3, "during": [(1, 1), (2, 2), (3, 3)]}
    assert node.seen is None


def test_a_node_with_its_own_copy_method_uses_it():
    class Own(A):
        copies = 0

        def __copy__(self):
            type(self).copies += 1
            new = Own()
            new.action = "copied"
            return new

    own = Own()
    own - "copied" >> B()
    assert trail(NodeFlow(start=own)) == ["Own", "B"]
    assert Own.copies == 1


def test_a_node_with_slots_is_copied_too():
    class Slotted(A):
        __slots__ = ("extra",)

        def prep(self, shared):
            shared["extra"] = self.extra

    node = Slotted()
    node.extra = 3
    assert NodeFlow(start=node).run_sync({})["extra"] == 3


def named(flow: NodeFlow) -> list[str]:
    names = []
    flow.run_sync({}, on_event=lambda event: event.kind == "node.started" and names.append(event.node))
    return names


def test_a_nodes_name_is_the_given_one_else_its_classs_numbered_from_the_second_on():
    assert named(linear(A(), A(), A(name="mine"), B(), A())) == ["A", "A-2", "mine", "B", "A-3"]


def test_a_made_up_name_avoids_the_given_ones():
    assert named(linear(A(), A(), A(name="A-2"))) == ["A", "A-3", "A-2"]


def test_names_follow_the_walk_from_the_start_not_the_order_of_making():
    last, first = A(), A()
    assert named(linear(first, last)) == ["A", "A-2"]


def test_two_equal_given_names_are_an_error():
    with pytest.raises(InvalidGraph, match="two nodes have the name 'same'"):
        trail(linear(A(name="same"), B(name="same")))


@pytest.mark.parametrize("name", ["", "a/b", "12", 3])
def test_a_name_that_would_make_step_ids_ambiguous_raises(name):
    with pytest.raises(InvalidOption, match="name="):
        A(name=name)


def test_a_flow_without_a_start_raises_before_it_runs():
    with pytest.raises(InvalidGraph, match="no start"):
        NodeFlow().connect(A, B).run_sync()


def test_an_unreachable_node_raises_before_the_flow_runs():
    with pytest.raises(InvalidGraph, match="C is not reachable"):
        NodeFlow().connect(A, B).start(A).add_node(C).run_sync(shared := {})
    assert shared == {}


def test_an_edge_without_a_target_raises():
    with pytest.raises(InvalidGraph, match="is not a node"):
        A() >> None
    with pytest.raises(InvalidGraph, match="is not a node"):
        NodeFlow().connect(A, "B")  # type: ignore[arg-type]
    a = A()
    a - "retry"
    with pytest.raises(InvalidGraph, match="'retry' of A has no target"):
        trail(NodeFlow(start=a))
    a - "retry" >> a
    assert trail(NodeFlow(start=a)) == ["A"]


def test_all_problems_are_reported_together():
    flow = NodeFlow(name="broken").connect(A(name="x"), B(name="x")).add_node(C)
    flow.start(next(iter(flow._added.values())))
    with pytest.raises(InvalidGraph) as caught:
        flow.run_sync()
    assert len(caught.value.problems) == 2
    assert caught.value.flow == "broken"


def test_a_flow_that_contains_itself_raises():
    outer = NodeFlow(name="outer")
    outer.start(NodeFlow(start=outer, name="inner"))
    with pytest.raises(InvalidGraph, match="contains itself"):
        outer.run_sync()


def test_a_class_that_needs_arguments_raises_and_asks_for_an_instance():
    class Needs(Node):
        def __init__(self, url):
            super().__init__()

    with pytest.raises(InvalidGraph, match="give an instance"):
        NodeFlow(start=Needs)


def test_a_node_without_super_init_raises():
    class Forgets(Node):
        def __init__(self):
            pass

    with pytest.raises(InvalidGraph, match="super"):
        NodeFlow(start=Forgets()).run_sync()


def test_an_action_is_a_string():
    with pytest.raises(TypeError, match="action"):
        A() - 3  # type: ignore[operator]
    with pytest.raises(TypeError, match="action"):
        NodeFlow().connect(A, B, action="")


def test_overwriting_an_edge_warns():
    a, b = A(), B()
    a >> b
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        a >> b
    with pytest.warns(UserWarning, match="Overwriting successor for action 'default'"):
        a >> C()


def test_a_change_after_a_run_counts_in_the_next_run(monkeypatch):
    a, b = A(), B()
    flow = NodeFlow(start=a)
    assert trail(flow) == ["A"]
    a >> b
    assert trail(flow) == ["A", "B"]
    flow.connect(b, C)
    assert trail(flow) == ["A", "B", "C"]
    b.action = END
    assert trail(flow) == ["A", "B"]
    monkeypatch.setattr(B, "post", lambda self, shared, p, e: shared["trail"].append("patched"))
    assert trail(flow) == ["A", "patched", "C"]
    monkeypatch.setattr(a, "post", lambda shared, p, e: shared.update(trail=["on the instance"]))
    assert trail(flow) == ["on the instance", "patched", "C"]


async def test_a_change_of_a_setting_counts_in_the_next_run():
    class Flaky(Node):
        def exec(self, prep_res):
            if step().attempt < 3:
                raise ValueError

    node = Flaky(inline=True)
    flow = NodeFlow(start=node)
    with pytest.raises(ValueError):
        await flow.run()
    node.max_retries = 3
    await flow.run()
    with pytest.raises(InvalidOption):
        node.max_retries = 0


def test_the_error_of_a_node_has_a_note_with_its_position():
    class Fails(Trail):
        def exec(self, prep_res):
            raise ValueError("no")

    with pytest.raises(ValueError, match="no") as caught:
        linear(A, linear(B, Fails, name="inner"), name="outer").run_sync()
    assert caught.value.__notes__ == ["in node 'inner/Fails' of flow 'outer', visit 1"]
