"""Flows inside flows, and params."""

from __future__ import annotations

from stepwell.nodes import END, Node, NodeFlow, linear
from tests.nodes.flows import A, B, C, Trail


def test_a_flow_is_a_node_and_works_on_the_same_state():
    inner = linear(B, C)
    assert linear(A, inner, A).run_sync({})["trail"] == ["A", "B", "C", "A"]


def test_the_last_action_of_the_inner_flow_chooses_the_outer_edge():
    inner = NodeFlow(start=A("approved"))
    inner - "approved" >> B()
    inner >> C()
    assert NodeFlow(start=inner).run_sync({})["trail"] == ["A", "B"]


def test_an_edge_to_end_gives_its_action_to_the_outer_flow():
    a = A("done")
    a - "done" >> END
    inner = NodeFlow(start=a)
    inner - "done" >> B()
    assert NodeFlow(start=inner).run_sync({})["trail"] == ["A", "B"]


def test_a_flow_may_have_prep_and_post_of_its_own():
    class Inner(NodeFlow):
        def prep(self, shared):
            shared["trail"] = ["prep"]
            return "prepared"

        def post(self, shared, prep_res, exec_res):
            shared["trail"].append((prep_res, exec_res))
            return "out", {"extra": 1}

    inner = Inner(start=A("last"))
    inner - "out" >> B()
    assert NodeFlow(start=inner).run_sync({}) == {"trail": ["prep", "A", ("prepared", "last"), "B"], "extra": 1}
    assert Inner(start=A("last")).run_sync({}) == {"trail": ["prep", "A", ("prepared", "last")], "extra": 1}


def test_unnamed_flows_side_by_side_get_numbers():
    names = []
    flow = linear(linear(A), linear(A), name="outer")
    flow.run_sync({}, on_event=lambda event: event.kind == "node.started" and names.append(event.node))
    assert names == ["flow", "flow/A", "flow-2", "flow-2/A"]


class Show(Trail):
    def post(self, shared, prep_res, exec_res):
        shared.setdefault("seen", []).append(dict(self.params))


def test_params_of_the_run_override_those_of_flows_and_nodes():
    node, inner = Show(), NodeFlow(name="inner")
    node.params = {"node": 1, "inner": 1, "run": 1}
    inner.start(node)
    inner.params = {"inner": 2, "run": 2}
    outer = NodeFlow(start=inner)
    assert outer.run_sync({})["seen"] == [{"node": 1, "inner": 2, "run": 2}]
    assert outer.run_sync({}, params={"run": 3})["seen"] == [{"node": 1, "inner": 2, "run": 3}]
    assert node.params == {"node": 1, "inner": 1, "run": 1}


def test_a_visit_cannot_change_the_params_of_another():
    class Spoil(Node):
        def prep(self, shared):
            shared.setdefault("seen", []).append(dict(self.params))
            self.params["spoilt"] = True

    assert linear(Spoil(), Spoil()).run_sync({}, params={"a": 1})["seen"] == [{"a": 1}, {"a": 1}]


def test_one_node_may_be_part_of_two_flows_at_once():
    shared_node = B()
    inner = linear(shared_node, A)
    assert linear(shared_node, inner, C).run_sync({})["trail"] == ["B", "B", "A", "C"]
