from __future__ import annotations

import copy
import pickle
import warnings
from dataclasses import dataclass
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from stepwell.errors import InvalidFlow, UnknownFlowError
from stepwell.fsm import Flow, StateName, UnreachableState, state
from stepwell.fsm.flows.description import RESERVED, FlowDescription, Flows, describe, name_of


@dataclass
class FormData:
    name: str


class Registration(Flow, name="registration"):
    get_name = state(to=["get_email"])
    get_email = state(to=["confirm", "get_name"], timeout=600, on_timeout="get_name")
    confirm = state(to=[])
    default_state = get_name


class Form(Flow, name="form", data=FormData, revision=2):
    name = state()
    data = state()
    email = state()
    revision = state()


def test_a_flow_has_a_name_states_transitions_and_a_default_state() -> None:
    assert Registration.flow_name == "registration"
    assert Registration.states == ("get_name", "get_email", "confirm")
    assert Registration.transitions == {
        "get_name": ("get_email",),
        "get_email": ("confirm", "get_name"),
        "confirm": (),
    }
    assert Registration.default_state == "get_name"


def test_the_default_state_is_none_if_it_is_not_declared() -> None:
    assert Form.default_state is None


def test_options_are_class_arguments_so_states_may_be_called_name_or_data() -> None:
    assert Form.states == ("name", "data", "email", "revision")
    assert Form.name == "name"
    assert (describe(Form).data, describe(Form).revision) == (FormData, 2)


def test_a_state_is_a_string_with_the_name_of_its_flow() -> None:
    assert isinstance(Form.email, str)
    assert isinstance(Form.email, StateName)
    assert (Form.email, Form.email.flow_name) == ("email", "form")
    assert {"email": 1}[Form.email] == 1
    assert f"{Form.email}" == "email"
    assert Registration.default_state is Registration.get_name


def test_a_state_has_its_timeout() -> None:
    assert (Registration.get_email.timeout, Registration.get_email.on_timeout) == (600, "get_name")
    assert (Registration.confirm.timeout, Registration.confirm.on_timeout) == (None, None)


def test_a_copied_or_pickled_state_is_a_plain_string() -> None:
    for twin in (copy.deepcopy(Form.email), copy.copy(Form.email), pickle.loads(pickle.dumps(Form.email))):
        assert (twin, type(twin)) == ("email", str)


def test_a_state_without_its_parentheses_is_refused() -> None:
    with pytest.raises(InvalidFlow, match=r"write x = state\(\)"):
        type("Bad", (Flow,), {"x": state}, name="bad")


@pytest.mark.parametrize("reserved", RESERVED)
def test_a_state_with_a_reserved_name_is_refused_with_a_list_of_them(reserved: str) -> None:
    with pytest.raises(InvalidFlow) as caught:
        type("Bad", (Flow,), {reserved: state()}, name="bad")
    assert f"cannot be called {reserved!r}" in str(caught.value)
    assert all(name in str(caught.value) for name in RESERVED)


@pytest.mark.parametrize("arguments", [{}, {"name": None}, {"name": 5}, {"name": ""}, {"name": b"form"}])
def test_a_missing_or_wrong_name_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidFlow, match=r"name=\"\.\.\.\""):
        type("Bad", (Flow,), {"x": state()}, **arguments)


def test_an_unknown_argument_of_the_class_is_refused_with_a_list_of_the_known() -> None:
    with pytest.raises(InvalidFlow, match="takes name=, data=, revision= and ttl=, not foo="):
        type("Bad", (Flow,), {"x": state()}, name="bad", foo=3)


def test_a_mixin_may_take_arguments_of_its_own() -> None:
    class Coloured:
        colour = ""

        def __init_subclass__(cls, colour: str, **rest: Any) -> None:
            super().__init_subclass__(**rest)
            cls.colour = colour

    for bases in ((Flow, Coloured), (Coloured, Flow)):
        flow: Any = type("Fine", bases, {"x": state()}, name="fine", colour="red")
        assert flow.colour == "red"
    with pytest.raises(TypeError, match="colour"):
        type("Bad", (Flow, Coloured), {"x": state()}, name="bad")


@pytest.mark.parametrize("computed", ["flow_name", "states", "transitions"])
def test_computed_attributes_cannot_be_declared(computed: str) -> None:
    with pytest.raises(InvalidFlow, match="remove it"):
        type("Bad", (Flow,), {"x": state(), computed: "mine"}, name="bad")


def test_a_flow_may_have_hooks() -> None:
    class Hooked(Flow, name="hooked"):
        one = state()

        @staticmethod
        def on_enter(ctx: Any, state: str) -> None: ...

    assert Hooked.states == ("one",)
    assert describe(Hooked).source is Hooked


def test_an_undeclared_target_is_refused_and_both_states_are_named() -> None:
    with pytest.raises(InvalidFlow, match="'here' leads to 'nowhere'"):

        class Bad(Flow, name="bad"):
            here = state(to=["nowhere"])


def test_an_undeclared_default_state_is_refused() -> None:
    with pytest.raises(InvalidFlow, match="default_state is 'nowhere'"):

        class Bad(Flow, name="bad"):
            here = state()
            default_state = "nowhere"


def test_an_undeclared_timeout_target_is_refused() -> None:
    with pytest.raises(InvalidFlow, match="'here' times out to 'nowhere'"):

        class Bad(Flow, name="bad"):
            here = state(timeout=5, on_timeout="nowhere")


@pytest.mark.parametrize("timeout", [0, -1, True, "5", float("nan"), float("inf"), timedelta(0)])
def test_a_timeout_is_a_positive_number_of_seconds(timeout: Any) -> None:
    with pytest.raises(InvalidFlow, match="timeout="):
        type("Bad", (Flow,), {"x": state(timeout=timeout)}, name="bad")


def test_a_timeout_may_be_a_timedelta_and_lead_to_a_handler() -> None:
    def remind(ctx: Any) -> None: ...

    class Patient(Flow, name="patient"):
        waiting = state(timeout=timedelta(minutes=2), on_timeout=remind)

    assert (Patient.waiting.timeout, Patient.waiting.on_timeout) == (120, remind)


def test_on_timeout_needs_a_timeout() -> None:
    with pytest.raises(InvalidFlow, match="needs a timeout="):
        type("Bad", (Flow,), {"x": state(on_timeout="x")}, name="bad")


def test_a_single_string_for_to_is_refused_and_the_list_is_suggested() -> None:
    with pytest.raises(InvalidFlow, match=r"to=\['other'\]"):
        type("Bad", (Flow,), {"x": state(to="other"), "other": state()}, name="bad")


@pytest.mark.parametrize("to", [5, state(), [5]])
def test_to_takes_a_list_of_states(to: Any) -> None:
    with pytest.raises(InvalidFlow):
        type("Bad", (Flow,), {"x": state(to=to)}, name="bad")


@pytest.mark.parametrize("revision", [0, -1, 1.5, "2", True])
def test_a_revision_is_at_least_one(revision: Any) -> None:
    with pytest.raises(InvalidFlow, match="revision="):
        type("Bad", (Flow,), {"x": state()}, name="bad", revision=revision)


@pytest.mark.parametrize("data", [int, dict, "FormData", FormData("x")])
def test_data_must_be_a_type_with_fields(data: Any) -> None:
    with pytest.raises(InvalidFlow, match="data= must be"):
        type("Bad", (Flow,), {"x": state()}, name="bad", data=data)


def test_one_declaration_cannot_be_two_states() -> None:
    with pytest.raises(InvalidFlow, match="'one' and 'two'"):

        class Bad(Flow, name="bad"):
            one = state()
            two = one


def test_a_complete_flow_cannot_be_derived_from() -> None:
    with pytest.raises(InvalidFlow, match="declare all states again"):

        class More(Registration, name="more"):
            extra = state()


def test_states_may_come_from_a_mixin() -> None:
    class Confirming:
        confirm = state(to=(each for each in ["done"]))

    class One(Confirming, Flow, name="one"):
        done = state(to=[])

    class Two(Confirming, Flow, name="two"):
        done = state(to=["confirm"])

    assert One.states == Two.states == ("confirm", "done")
    assert (One.confirm.flow_name, Two.confirm.flow_name) == ("one", "two")
    assert One.transitions["confirm"] == Two.transitions["confirm"] == ("done",)


def test_the_class_body_may_refer_to_a_state_without_quotes() -> None:
    class Loop(Flow, name="loop"):
        first = state(to=["second"])
        second = state(to=[first, "second"], timeout=3, on_timeout=first)
        default_state = first

    assert Loop.transitions["second"] == ("first", "second")
    assert Loop.second.on_timeout == "first"


def test_to_allows_its_targets_and_an_empty_to_is_a_last_state() -> None:
    flow = describe(Registration)
    assert flow.allowed("get_name", "get_email")
    assert not flow.allowed("get_name", "confirm")
    assert not flow.allowed("get_name", "get_name")
    assert flow.targets("confirm") == ()


def test_without_to_anywhere_every_transition_is_allowed() -> None:
    flow = describe(Form)
    assert all(flow.allowed(one, two) for one in flow.states for two in flow.states)
    assert not flow.allowed("name", "nowhere")


def test_in_a_mixed_flow_a_state_without_to_allows_none() -> None:
    class Mixed(Flow, name="mixed"):
        one = state(to=["two"])
        two = state()

    assert describe(Mixed).targets("two") == ()
    assert Mixed.transitions == {"one": ("two",)}


def test_a_state_may_list_itself() -> None:
    class Again(Flow, name="again"):
        ask = state(to=["ask"])

    assert describe(Again).allowed("ask", "ask")


def test_from_no_state_any_declared_one_is_allowed() -> None:
    flow = describe(Registration)
    assert flow.allowed(None, "confirm")
    assert not flow.allowed(None, "nowhere")


@pytest.mark.parametrize("flow", [Registration, Form])
def test_from_a_state_that_is_not_declared_nothing_is_allowed(flow: type[Flow]) -> None:
    assert describe(flow).targets("removed") == ()
    assert not describe(flow).declares("removed")


def test_a_state_of_another_flow_is_not_a_state_of_this_flow() -> None:
    class Other(Flow, name="other"):
        email = state()

    flow = describe(Form)
    assert flow.declares("email") and flow.declares(Form.email)
    assert not flow.declares(Other.email)
    assert not flow.allowed("name", Other.email)
    assert not flow.allowed(None, Other.email)


def test_an_unreachable_state_warns_at_the_class_statement() -> None:
    with pytest.warns(UnreachableState, match="from 'one' to 'island'") as caught:

        class Lost(Flow, name="lost"):
            one = state(to=[])
            island = state(to=["one"])
            default_state = one

    assert caught[0].filename == __file__
    assert Lost.states == ("one", "island")


def test_a_timeout_reaches_a_state_too() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        class Expiring(Flow, name="expiring"):
            one = state(to=[], timeout=1, on_timeout="late")
            late = state(to=[])
            default_state = one

    assert Expiring.states == ("one", "late")


def test_a_flow_is_found_by_class_object_or_name() -> None:
    flows = Flows([Registration, Form()])
    for given in (Registration, Registration(), "registration"):
        assert flows.find(given).name == "registration"
        assert name_of(given) == "registration"
    assert list(flows) == ["registration", "form"]
    assert "form" in flows
    assert flows.get("other") is None


def test_the_error_for_an_unregistered_flow_lists_the_registered() -> None:
    with pytest.raises(UnknownFlowError, match=r"'form' is not registered \(known: 'registration'\)") as caught:
        Flows([Registration]).find(Form)
    assert (caught.value.flow, caught.value.known) == ("form", ("registration",))
    assert isinstance(caught.value, LookupError)


def test_two_flows_with_one_name_are_refused_but_one_flow_may_be_registered_twice() -> None:
    class Other(Flow, name="form"):
        x = state()

    assert list(Flows([Form, Form])) == ["form"]
    with pytest.raises(InvalidFlow, match="two flows have this name"):
        Flows([Form, Other])


@pytest.mark.parametrize("given", [5, None, Flow, object()])
def test_a_value_that_is_not_a_flow_is_refused(given: object) -> None:
    with pytest.raises(InvalidFlow, match="is not a flow"):
        Flows([given])
    with pytest.raises(InvalidFlow, match="is not a flow"):
        name_of(given)


class ByHand:
    flow_name = "by_hand"
    states = ["one", "two"]
    transitions = {"one": ["two"], "two": []}
    default_state = "one"


class ByMethods:
    def flow_name(self) -> str:
        return "by_hand"

    def states(self) -> list[str]:
        return ["one", "two"]

    def transitions(self) -> dict[str, list[str]]:
        return {"one": ["two"], "two": []}

    def default_state(self) -> str:
        return "one"


@pytest.mark.parametrize("given", [ByHand, ByHand(), SimpleNamespace(**vars(ByHand)), ByMethods()])
def test_a_hand_written_flow_works_like_the_class(given: object) -> None:
    class Same(Flow, name="by_hand"):
        one = state(to=["two"])
        two = state(to=[])
        default_state = one

    flow, twin = describe(given), describe(Same)
    for name in ("name", "states", "transitions", "default_state", "data", "revision"):
        assert getattr(flow, name) == getattr(twin, name)
    assert flow.states[0].flow_name == "by_hand"
    assert Flows([given]).find(given).allowed("one", "two")


def test_a_hand_written_class_with_methods_must_be_registered_as_an_object() -> None:
    with pytest.raises(InvalidFlow, match="register an object of the class"):
        describe(ByMethods)


def test_a_hand_written_flow_without_transitions_allows_all() -> None:
    flow = describe(SimpleNamespace(flow_name="free", states=("a", "b"), transitions={}, default_state=None))
    assert flow.allowed("b", "a")


def test_a_hand_written_flow_may_have_data_and_a_revision() -> None:
    flow = describe(SimpleNamespace(**{**vars(ByHand), "data": FormData, "revision": 3}))
    assert (flow.data, flow.revision) == (FormData, 3)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"states": None}, "which is not declared"),
        ({"states": 5}, "states must be a list"),
        ({"states": ["one", "two", "two"]}, "declared twice"),
        ({"states": ["one", 2]}, "a state must be a string"),
        ({"transitions": ["one"]}, "transitions a dict"),
        ({"transitions": {"one": ["three"]}}, "leads to 'three'"),
        ({"transitions": {"three": []}}, "which is not declared"),
        ({"default_state": "three"}, "default_state is 'three'"),
        ({"flow_name": None}, "is not a flow"),
    ],
)
def test_a_hand_written_flow_is_checked_like_the_class(changed: dict[str, Any], problem: str) -> None:
    given = SimpleNamespace(**{**{k: v for k, v in vars(ByHand).items() if not k.startswith("__")}, **changed})
    with pytest.raises(InvalidFlow, match=problem):
        describe(given)


def test_a_description_cannot_be_changed() -> None:
    flow: FlowDescription = describe(Registration)
    with pytest.raises(AttributeError):
        flow.name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        flow.transitions["confirm"] = ("get_name",)  # type: ignore[index]


def test_the_diagram_is_mermaid_text_with_the_current_state_marked() -> None:
    assert Registration.diagram() == (
        "stateDiagram-v2\n"
        "    get_name\n"
        "    get_email\n"
        "    confirm\n"
        "    [*] --> get_name\n"
        "    get_name --> get_email\n"
        "    get_email --> confirm\n"
        "    get_email --> get_name\n"
        "    confirm --> [*]\n"
        "    get_email --> get_name : after 600 s\n"
    )
    for current in ("get_email", Registration.get_email):
        marked = Registration().diagram(current=current)
        assert marked.startswith(Registration.diagram())
        assert marked.endswith("    class get_email current\n")


def test_a_diagram_shows_a_current_state_that_is_no_longer_declared() -> None:
    lines = Registration.diagram("removed").splitlines()
    assert "    removed" in lines
    assert "    class removed current" in lines


def test_a_diagram_notes_if_every_transition_is_allowed() -> None:
    assert "note right of name : every transition is allowed" in Form.diagram()


def test_a_diagram_escapes_names_that_are_mermaid_syntax() -> None:
    from stepwell.fsm.flows.diagram import diagram

    names = ["end", 'say "hi" #1', "two words", "état", "state_0"]
    flow = describe(SimpleNamespace(flow_name="odd", states=names, transitions={"end": names}, default_state="end"))
    text = diagram(flow, "two words")
    assert 'state "end" as state_0_' in text
    assert 'state "say #quot;hi#quot; #35;1" as state_1' in text
    assert 'state "état" as state_3' in text
    assert "    class state_2 current\n" in text
    assert "    [*] --> state_0_\n" in text
    assert "    state_0_ --> state_0\n" in text
