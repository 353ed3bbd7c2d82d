"""Flows and transitions."""

from __future__ import annotations

import dataclasses
import logging
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from stepwell import State
from stepwell.errors import FieldError, IncompleteData, InvalidFlow, InvalidOption, UnknownStateError
from stepwell.fsm import FSM, Context, Flow, TransitionError, UnknownFlowError, fsm_flow, fsm_in_flow, fsm_state, state
from tests.fsm.conftest import POLL, Form, Make, Mixed, Open, message


async def start(fsm: FSM, flow: object = Form, **data: Any) -> None:
    async with fsm.conversation(key=1) as ctx:
        ctx.start_flow(flow)
        ctx.update_data(data)


async def stored(fsm: FSM) -> State | None:
    return await fsm.storage.get_state("bot", 1)


async def test_starting_a_flow_enters_its_default_state_with_empty_data(fsm: FSM) -> None:
    await fsm.storage.set_data("bot", 1, {"left": "over"})
    async with fsm.conversation(key=1) as ctx:
        assert ctx.start_flow(Form) is True
        assert (ctx.flow, ctx.state, ctx.data) == ("form", "name", {})
    assert await stored(fsm) == State("form", "name", {})


async def test_starting_the_same_flow_begins_again(fsm: FSM) -> None:
    await start(fsm, a=1)
    async with fsm.conversation(key=1) as ctx:
        ctx.transition("email")
        assert ctx.start_flow("form") is True
    assert await stored(fsm) == State("form", "name", {})


async def test_a_flow_may_be_named_by_class_object_or_name(fsm: FSM) -> None:
    for flow in (Form, Form(), "form"):
        async with fsm.conversation(key=1) as ctx:
            ctx.clear_flow()
            assert ctx.start_flow(flow)
        assert await stored(fsm) == State("form", "name", {})


async def test_an_unregistered_flow_cannot_be_started(fsm: FSM) -> None:
    with pytest.raises(UnknownFlowError, match=r"'other'.*form"):
        async with fsm.conversation(key=1) as ctx:
            ctx.start_flow("other")
    assert await stored(fsm) is None


async def test_another_active_flow_applies_the_policy_with_both_names(make_fsm: Make) -> None:
    fsm = make_fsm()
    await start(fsm)
    with pytest.raises(TransitionError) as caught:
        async with fsm.conversation(key=1) as ctx:
            ctx.start_flow(Open)
    assert (caught.value.flow, caught.value.from_, caught.value.to) == ("form", "form", "open")
    seen: list[Any] = []
    other = make_fsm(on_invalid_transition=lambda ctx, from_, to: seen.append((from_, to)) or "policy")
    async with other.conversation(key=1) as ctx:
        assert ctx.start_flow(Open) == "policy"
    assert seen == [("form", "open")]
    assert await stored(fsm) == State("form", "name", {})


async def test_a_transition_makes_a_declared_move(fsm: FSM) -> None:
    await start(fsm, a=1)
    async with fsm.conversation(key=1) as ctx:
        assert ctx.transition(Form.email) is True
        assert ctx.transition("name") is True
    assert await stored(fsm) == State("form", "name", {"a": 1})


async def test_an_undeclared_transition_raises_with_the_allowed_states_and_changes_nothing(fsm: FSM) -> None:
    await start(fsm)
    with pytest.raises(TransitionError, match="'name' to 'done'; allowed: 'email'") as caught:
        async with fsm.conversation(key=1) as ctx:
            ctx.update_data(x=1)
            ctx.transition("done")
    assert (caught.value.flow, caught.value.from_, caught.value.to) == ("form", "name", "done")
    assert await stored(fsm) == State("form", "name", {})


async def test_a_terminal_state_an_undeclared_target_and_another_flows_state_are_refused(fsm: FSM) -> None:
    await start(fsm)
    async with fsm.conversation(key=1) as ctx:
        ctx.set_state("done")
        for target in ("name", "done", "nowhere", Open.a):
            with pytest.raises(TransitionError):
                ctx.transition(target)


@pytest.mark.parametrize(
    ("move", "expected"),
    [
        (
            lambda ctx: ctx.transition(Open.a),
            "'a' belongs to flow 'open', not to 'form'; jump there with set_state('a', ",
        ),
        (
            lambda ctx: ctx.set_state(Open.a),
            "'a' belongs to flow 'open', not to 'form'; jump there with set_state('a', ",
        ),
        (
            lambda ctx: ctx.transition("yy"),
            "'yy' is not a state of flow 'form'; its states are 'name', 'email', 'done'",
        ),
        (lambda ctx: ctx.set_state("yy"), "'yy' is not a state of flow 'form'; its states are 'name', 'email', 'done'"),
        (lambda ctx: ctx.set_state("yy", flow=Open), "'yy' is not a state of flow 'open'; its states are 'a', 'b'"),
        (lambda ctx: ctx.back(), "flow 'form' has no state before 'name' to go back to"),
        (lambda ctx: ctx.pop_flow(), "'form' is not an inner flow; pop_flow() ends a flow that push_flow() began"),
    ],
)
async def test_the_error_of_a_refused_move_names_the_cause(make_fsm: Make, move: Any, expected: str) -> None:
    fsm = make_fsm()
    await start(fsm)
    async with fsm.conversation(key=1) as ctx:
        with pytest.raises(TransitionError) as caught:
            move(ctx)
    assert str(caught.value).startswith(expected)
    assert (caught.value.from_, caught.value.problem is None) == ("name", "before" in expected)


@pytest.mark.parametrize("move", [Context.back, Context.pop_flow, lambda ctx: ctx.set_state(None)])
async def test_back_without_a_flow_raises(fsm: FSM, move: Any) -> None:
    async with fsm.conversation(key=1) as ctx:
        with pytest.raises(TransitionError) as caught:
            move(ctx)
    assert str(caught.value) == "no flow is active; begin with start_flow(...)"
    assert (caught.value.flow, caught.value.from_, caught.value.to) == (None, None, None)


async def test_without_an_active_flow_a_transition_applies_the_policy(fsm: FSM) -> None:
    async with fsm.conversation(key=1) as ctx:
        with pytest.raises(TransitionError, match="start_flow"):
            ctx.transition("email")
        with pytest.raises(TransitionError, match="no flow is active"):
            ctx.set_state("email")


async def test_a_flow_without_any_to_allows_every_transition(fsm: FSM) -> None:
    await start(fsm, Open)
    assert await stored(fsm) == State("open", None, {})
    async with fsm.conversation(key=1) as ctx:
        for target in ("b", "a", "a", "b"):
            assert ctx.transition(target) is True
        with pytest.raises(TransitionError):
            ctx.transition("c")


async def test_from_no_state_any_declared_state_is_allowed_once(fsm: FSM) -> None:
    class Late(Flow, name="late"):
        a = state(to=["b"])
        b = state(to=[])
        default_state = None

    fsm = FSM("bot", storage=fsm.storage, flows=[Late])
    await start(fsm, Late)
    async with fsm.conversation(key=1) as ctx:
        assert ctx.state is None
        assert ctx.transition("b") is True
        with pytest.raises(TransitionError):
            ctx.transition("a")


async def test_a_flow_with_states_and_no_default_state_is_not_started_but_may_be_entered(fsm: FSM) -> None:
    class Entered(Flow, name="entered"):
        a = state(to=["b"])
        b = state(to=[])

    class Handwritten:
        flow_name = "handwritten"
        states = ("c", "d")
        transitions: ClassVar[dict[str, list[str]]] = {}

    class Empty(Flow, name="empty"):
        pass

    fsm = FSM("bot", storage=fsm.storage, flows=[Form, Entered, Handwritten, Empty])
    problem = "it has no default_state, so it cannot be started; its states are 'a', 'b'"
    async with fsm.conversation(key=1) as ctx:
        with pytest.raises(InvalidFlow, match=problem):
            ctx.start_flow(Entered)
        with pytest.raises(InvalidFlow, match="its states are 'c', 'd'"):
            ctx.start_flow("handwritten")
        assert ctx.flow is None
        ctx.start_flow(Form)
        with pytest.raises(InvalidFlow, match=problem):
            ctx.push_flow(Entered)
        ctx.clear_flow()
        assert ctx.set_state("b", flow=Entered) is True
        assert (ctx.flow, ctx.state) == ("entered", "b")
        ctx.clear_flow()
        assert ctx.start_flow(Empty) is True
        assert (ctx.flow, ctx.state) == ("empty", None)


async def test_in_a_mixed_flow_a_state_without_to_allows_none_and_a_state_may_list_itself(fsm: FSM) -> None:
    await start(fsm, Mixed)
    async with fsm.conversation(key=1) as ctx:
        assert ctx.transition("first")
        assert ctx.transition("second")
        with pytest.raises(TransitionError):
            ctx.transition("first")


async def test_set_state_may_make_undeclared_moves_and_keeps_flow_and_data(fsm: FSM) -> None:
    await start(fsm, a=1)
    async with fsm.conversation(key=1) as ctx:
        assert ctx.set_state("done") is True
        with pytest.raises(TransitionError, match="'nowhere'"):
            ctx.set_state("nowhere")
    assert await stored(fsm) == State("form", "done", {"a": 1})


async def test_set_state_with_a_flow_replaces_the_active_flow_and_keeps_the_data(fsm: FSM) -> None:
    await start(fsm, a=1)
    async with fsm.conversation(key=1) as ctx:
        assert ctx.set_state(Open.b, flow=Open) is True
        with pytest.raises(UnknownFlowError):
            ctx.set_state("x", flow="other")
    assert await stored(fsm) == State("open", "b", {"a": 1})
    async with fsm.conversation(key=2) as ctx:
        assert ctx.set_state("email", flow="form") is True
    assert await fsm.storage.get_state("bot", 2) == State("form", "email", {})


async def test_clear_flow_removes_the_record_and_is_safe_when_nothing_is_active(fsm: FSM) -> None:
    async with fsm.conversation(key=1) as ctx:
        ctx.clear_flow()
    await start(fsm, a=1)
    async with fsm.conversation(key=1) as ctx:
        ctx.clear_flow()
        assert (ctx.flow, ctx.state, ctx.data) == (None, None, {})
    assert await stored(fsm) is None
    assert [entry.key async for entry in fsm.storage.scan("bot")] == []


async def test_after_clear_flow_a_new_flow_may_begin_in_the_same_block(fsm: FSM) -> None:
    await start(fsm, a=1)
    async with fsm.conversation(key=1) as ctx:
        ctx.clear_flow()
        ctx.start_flow(Open)
        ctx.update_data(b=1)
    assert await stored(fsm) == State("open", None, {"b": 1})
    async with fsm.conversation(key=1) as ctx:
        ctx.clear_flow()
        ctx.data["c"] = 1
    assert await stored(fsm) == State(None, None, {"c": 1})


async def test_the_policies_log_and_ignore_change_nothing_and_return_false(
    make_fsm: Make, caplog: pytest.LogCaptureFixture
) -> None:
    for policy, warnings in (("log", 1), ("ignore", 0)):
        fsm = make_fsm(on_invalid_transition=policy)
        await start(fsm)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            async with fsm.conversation(key=1) as ctx:
                assert ctx.transition("done") is False
        assert len(caplog.records) == warnings
        assert await stored(fsm) == State("form", "name", {})


async def test_a_policy_may_be_a_function_whose_result_is_returned(make_fsm: Make) -> None:
    def policy(ctx: Context, from_: str | None, to: str | None) -> str:
        ctx.update_data(refused=f"{from_}->{to}")
        return "refused"

    fsm = make_fsm(on_invalid_transition=policy)
    await start(fsm)
    async with fsm.conversation(key=1) as ctx:
        assert ctx.transition("done") == "refused"
        assert ctx.back() == "refused"
    assert await stored(fsm) == State("form", "name", {"refused": "name->None"})


async def test_a_wrong_policy_or_option_is_an_error_when_the_machine_is_made(make_fsm: Make) -> None:
    for option in ("on_invalid_transition", "on_unknown_state", "on_missing_key", "on_duplicate"):
        with pytest.raises(InvalidOption, match=option):
            make_fsm(**{option: "explode"})
    for wrong in ({"lease": 0}, {"wait": -1}, {"update_id": 7}, {"key": 7}, {"storage": object()}):
        with pytest.raises(InvalidOption):
            make_fsm(**wrong)


@pytest.mark.parametrize(("flows", "named"), [(Form, "Form"), ("form", "'form'"), (5, "5")])
def test_flows_must_be_a_list(make_fsm: Make, flows: Any, named: str) -> None:
    with pytest.raises(InvalidOption, match=rf"flows takes a list.*flows=\[{named}\]"):
        make_fsm(flows=flows)


@pytest.mark.parametrize(
    "write",
    [
        lambda ctx: ctx.set_data(None),
        lambda ctx: ctx.set_data([("a", 1)]),
        lambda ctx: ctx.update_data([1]),
        lambda ctx: ctx.update_data("a"),
        lambda ctx: ctx.push_flow(Open, 5),
    ],
)
async def test_data_that_is_not_a_dict_is_refused_and_changes_nothing(fsm: FSM, write: Any) -> None:
    await start(fsm, a=1)
    async with fsm.conversation(key=1) as ctx:
        with pytest.raises(InvalidOption, match=r"\(\) takes a dict of fields, got (NoneType|list|str|int)"):
            write(ctx)
    assert await stored(fsm) == State("form", "name", {"a": 1})


async def test_the_order_inside_a_value_is_kept(fsm: FSM) -> None:
    await start(fsm, cart={"z": 1, "a": 2, "m": 3})
    async with fsm.conversation(key=1) as ctx:
        assert list(ctx.data["cart"]) == ["z", "a", "m"]


async def test_back_returns_to_the_previous_state_and_keeps_the_data(fsm: FSM) -> None:
    await start(fsm)
    async with fsm.conversation(key=1) as ctx:
        ctx.transition("email")
        ctx.update_data(x=1)
    async with fsm.conversation(key=1) as ctx:
        ctx.transition("done")
        assert ctx.back() is True
        assert ctx.state == "email"
    async with fsm.conversation(key=1) as ctx:
        assert ctx.back() is True
        with pytest.raises(TransitionError, match="before"):
            ctx.back()
    assert await stored(fsm) == State("form", "name", {"x": 1})


async def test_the_history_is_bounded_and_ends_with_its_flow(fsm: FSM) -> None:
    await start(fsm, Open)
    async with fsm.conversation(key=1) as ctx:
        for number in range(40):
            ctx.transition("ab"[number % 2])
        for _ in range(16):
            assert ctx.back()
        with pytest.raises(TransitionError):
            ctx.back()
        ctx.transition("a")
        ctx.set_state("email", flow=Form)
        with pytest.raises(TransitionError):
            ctx.back()


# Filters


async def test_filters_read_flow_state_and_data(fsm: FSM) -> None:
    async with fsm.conversation(key=1) as ctx:
        assert [fsm_flow(None)(ctx), fsm_state(None)(ctx), fsm_in_flow()(ctx), fsm_flow(Form)(ctx)] == [
            True,
            True,
            False,
            False,
        ]
        ctx.start_flow(Form)
        ctx.update_data(age=7)
        assert [fsm_flow(f)(ctx) for f in (Form, "form", Open, None)] == [True, True, False, False]
        assert [fsm_state(s)(ctx) for s in ("name", Form.name, Open.a, "email", None)] == [
            True,
            True,
            False,
            False,
            False,
        ]
        assert [fsm_state(pair)(ctx) for pair in (("age", 7), ("age", 8), ("missing", None))] == [True, False, False]
        assert fsm_in_flow()(ctx)


async def test_with_no_key_all_filters_see_the_empty_state(fsm: FSM) -> None:
    async with fsm.conversation(POLL) as ctx:
        assert [fsm_flow(None)(ctx), fsm_state(None)(ctx), fsm_in_flow()(ctx), fsm_state(("a", None))(ctx)] == [
            True,
            True,
            False,
            False,
        ]


# Stored states that are no longer declared

GONE = [State("gone", "somewhere", {"a": 1}), State("form", "old_state", {"a": 1})]


@pytest.mark.parametrize("old", GONE, ids=["flow", "state"])
async def test_an_undeclared_state_is_kept_with_one_warning_and_ways_out(
    fsm: FSM, old: State, caplog: pytest.LogCaptureFixture
) -> None:
    await fsm.storage.set_state("bot", 1, old)
    with caplog.at_level(logging.WARNING):
        async with fsm.conversation(key=1) as ctx:
            assert (ctx.flow, ctx.state, ctx.data) == (old.flow, old.state, {"a": 1})
            with pytest.raises(TransitionError):
                ctx.transition("email")
    assert len(caplog.records) == 1
    assert await stored(fsm) == old
    for out in (lambda c: c.clear_flow(), lambda c: c.set_state("name", flow=Form), lambda c: c.start_flow(Form)):
        await fsm.storage.set_state("bot", 1, old)
        async with fsm.conversation(key=1) as ctx:
            out(ctx)
        now = await stored(fsm)
        assert now is None or (now.flow, now.state) == ("form", "name")


async def test_an_undeclared_flow_counts_as_no_active_flow(fsm: FSM) -> None:
    await fsm.storage.set_state("bot", 1, GONE[0])
    async with fsm.conversation(key=1) as ctx:
        assert ctx.start_flow(Open) is True
    assert await stored(fsm) == State("open", None, {})


async def test_an_undeclared_state_may_be_reset_or_raised_or_handed_to_a_function(make_fsm: Make) -> None:
    fsm = make_fsm(on_unknown_state="reset")
    await fsm.storage.set_state("bot", 1, GONE[0])
    async with fsm.conversation(key=1) as ctx:
        assert (ctx.flow, ctx.state, ctx.data) == (None, None, {})
    assert await stored(fsm) is None
    await fsm.storage.set_state("bot", 1, GONE[1])
    with pytest.raises(UnknownStateError, match="old_state"):
        async with make_fsm(on_unknown_state="raise").conversation(key=1):
            pytest.fail("it was entered")
    moved = make_fsm(on_unknown_state=lambda ctx, flow, state: ctx.set_state("email", flow=Form))
    async with moved.conversation(key=1) as ctx:
        assert (ctx.state, ctx.data) == ("email", {"a": 1})
    assert await stored(fsm) == State("form", "email", {"a": 1})


# Typed data


@dataclasses.dataclass
class Person:
    name: str
    age: int = 0
    friends: list[str] = dataclasses.field(default_factory=list)


class Typed(Flow, name="typed", data=Person):
    only = state()
    default_state = only


async def test_each_field_written_is_checked_by_itself(make_fsm: Make) -> None:
    fsm = make_fsm(flows=[Typed])
    await start(fsm, Typed)
    for write in (
        lambda c: c.update_data(age="seven"),
        lambda c: c.set_data({"age": "seven"}),
        lambda c: c.update_data(shoe=44),
        lambda c: c.data.update(age="seven"),
        lambda c: c.data.update(shoe=44),
    ):
        with pytest.raises(FieldError, match="typed"):
            async with fsm.conversation(key=1) as ctx:
                write(ctx)
    async with fsm.conversation(key=1) as ctx:
        ctx.update_data(age=7)
        assert type(ctx.data) is dict
        with pytest.raises(IncompleteData, match="missing 'name'"):
            ctx.data_as(Person)
        ctx.data["name"] = "Ann"
        assert ctx.data_as(Person) == Person("Ann", 7)
    assert await stored(fsm) == State("typed", "only", {"age": 7, "name": "Ann"})


async def test_the_declared_data_type_may_be_stored_as_a_value(make_fsm: Make) -> None:
    fsm = make_fsm(flows=[Typed, Open])
    await start(fsm, Open, person=Person("Ann"))
    assert await stored(fsm) == State("open", None, {"person": Person("Ann")})


async def test_a_hand_written_flow_object_works_like_the_class(fsm: FSM) -> None:
    flow = SimpleNamespace(flow_name="hand", states=["a", "b"], transitions={"a": ["b"], "b": []}, default_state="a")
    fsm = FSM("bot", storage=fsm.storage, flows=[flow])
    async with fsm.conversation(key=1) as ctx:
        ctx.start_flow(flow)
        ctx.transition("b")
        with pytest.raises(TransitionError):
            ctx.transition("a")
    assert await stored(fsm) == State("hand", "b", {})


async def test_states_may_have_common_names(fsm: FSM) -> None:
    await start(fsm, Form)
    update = message("x", update_id=1)
    async with fsm.conversation(update, key=1) as ctx:
        ctx.transition(Form.email)
    assert (await stored(fsm)) == State("form", "email", {})
