"""Hooks and nested flows."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell import State, Storage
from stepwell.errors import FieldError, InvalidFlow, UsageError
from stepwell.fsm import FSM, Context, Flow, TransitionError, UnknownFlowError, state
from stepwell.testing import Clock
from tests.backends import Backend
from tests.fsm.conftest import message

LOG: list[str] = []


class Hooked(Flow, name="hooked"):
    a = state(to=["b", "c"])
    b = state(to=["c"], timeout=60, on_timeout="a")
    c = state(to=["a", "c"])
    default_state = a

    async def on_enter(ctx: Context, state: str) -> None:
        LOG.append(f"enter {state}")
        if state == "b" and ctx.data.get("skip"):
            ctx.transition("c")
        if state == "c" and ctx.data.get("circle"):
            ctx.transition("c")

    @staticmethod
    def on_leave(ctx: Context, state: str) -> None:
        LOG.append(f"leave {state}")
        if ctx.data.get("fail"):
            raise ZeroDivisionError


class Address(Flow, name="address"):
    street = state(to=["city"])
    city = state(to=[])
    default_state = street


class Shop(Flow, name="shop"):
    cart = state(to=["pay"])
    pay = state(to=[])
    default_state = cart


@pytest.fixture(autouse=True)
def empty_log() -> None:
    LOG.clear()


@pytest.fixture
def storage(backend: Backend, clock: Clock) -> Storage:
    return backend.storage(clock=clock)


@pytest.fixture
def fsm(storage: Storage) -> FSM:
    return FSM("bot", storage=storage, flows=[Hooked, Shop, Address], run_timers=False)


async def test_hooks_run_after_the_handler_and_before_the_commit_in_order(fsm: FSM) -> None:
    async with fsm.conversation(key=1) as ctx:
        ctx.start_flow(Hooked)
        ctx.transition("b")
        LOG.append("handler done")
        ctx.transition("c")
    assert LOG == ["handler done", "enter a", "leave a", "enter b", "leave b", "enter c"]
    LOG.clear()
    async with fsm.conversation(key=1) as ctx:
        ctx.back()
        ctx.set_state("a")
        ctx.clear_flow()
    assert LOG == ["leave c", "enter b", "leave b", "enter a", "leave a"]


async def test_a_hook_may_move(fsm: FSM) -> None:
    async with fsm.conversation(key=1) as ctx:
        ctx.start_flow(Hooked)
        ctx.update_data(skip=True)
        ctx.transition("b")
    assert LOG == ["enter a", "leave a", "enter b", "leave b", "enter c"]
    assert await fsm.storage.get_state("bot", 1) == State("hooked", "c", {"skip": True})


async def test_hooks_that_move_in_a_cycle_raise_and_nothing_is_written(fsm: FSM) -> None:
    with pytest.raises(UsageError, match="more than 16"):
        async with fsm.conversation(key=1) as ctx:
            ctx.set_state("c", flow=Hooked)
            ctx.update_data(circle=True)
    assert await fsm.storage.get_state("bot", 1) is None


async def test_if_a_hook_fails_nothing_is_written(fsm: FSM) -> None:
    async with fsm.conversation(key=1) as ctx:
        ctx.start_flow(Hooked)
        ctx.update_data(fail=True)
    with pytest.raises(ZeroDivisionError):
        async with fsm.conversation(key=1) as ctx:
            ctx.transition("b")
    assert await fsm.storage.get_state("bot", 1) == State("hooked", "a", {"fail": True})


async def test_hooks_run_for_timeouts_too(fsm: FSM, clock: Clock) -> None:
    async with fsm.conversation(key=1) as ctx:
        ctx.set_state("b", flow=Hooked)
    LOG.clear()
    clock.advance(61)
    assert await fsm.tick() == 1
    assert LOG == ["leave b", "enter a"]


async def test_hooks_may_be_methods_of_a_class_or_of_an_object(storage: Storage) -> None:
    class Method(Flow, name="method"):
        a = state()
        default_state = a

        def __init__(self, word: str = "made by the library") -> None:
            self.word = word

        def on_enter(self, ctx: Context, state: str) -> None:
            LOG.append(f"{self.word}: {state}")

    for flow in (Method, Method("mine")):
        fsm = FSM("bot", storage=storage, flows=[flow])
        async with fsm.conversation(key=1) as ctx:
            ctx.start_flow("method")
    assert LOG == ["made by the library: a", "mine: a"]


async def test_hooks_may_be_functions_also_if_an_object_is_registered(storage: Storage) -> None:
    class Plain(Flow, name="plain"):
        a = state()
        default_state = a

        def on_enter(ctx: Context, state: str) -> None:
            LOG.append(state)

    for flow in (Plain, Plain()):
        fsm = FSM("bot", storage=storage, flows=[flow])
        async with fsm.conversation(key=1) as ctx:
            ctx.start_flow("plain")
    assert LOG == ["a", "a"]


def test_migrate_cannot_be_awaited() -> None:
    with pytest.raises(InvalidFlow, match="async def"):

        class Later(Flow, name="later", revision=2):
            a = state()
            default_state = a

            async def migrate(old_revision: int, state: str, data: dict[str, Any]) -> Any:
                return state, data


# Nested flows


async def test_an_inner_flow_has_its_own_data_and_returns_its_result_to_the_outer_flow(fsm: FSM) -> None:
    async with fsm.conversation(key=1) as ctx:
        ctx.start_flow(Shop)
        ctx.update_data(items=[{"tea"}])
        ctx.transition("pay")
        assert ctx.push_flow(Address, {"country": "DE"}, into="address") is True
    assert await fsm.storage.get_state("bot", 1) == State("address", "street", {"country": "DE"})
    async with fsm.conversation(key=1) as ctx:
        ctx.update_data(street="Main")
        ctx.transition("city")
    async with fsm.conversation(key=1) as ctx:
        assert ctx.pop_flow(dict(ctx.data)) is True
        assert (ctx.flow, ctx.state) == ("shop", "pay")
        assert ctx.result == {"country": "DE", "street": "Main"}
    assert await fsm.storage.get_state("bot", 1) == State(
        "shop", "pay", {"items": [{"tea"}], "address": {"country": "DE", "street": "Main"}}
    )
    async with fsm.conversation(key=1) as ctx:
        assert ctx.back() is True, "the outer flow's history is its own"
        assert ctx.state == "cart"
        with pytest.raises(TransitionError):
            ctx.pop_flow()


async def test_flows_nest_up_to_a_limit_and_only_inside_an_active_flow(fsm: FSM) -> None:
    async with fsm.conversation(key=1) as ctx:
        with pytest.raises(TransitionError):
            ctx.push_flow(Address)
        with pytest.raises(UnknownFlowError):
            ctx.push_flow("nowhere")
        ctx.start_flow(Shop)
        for _ in range(8):
            ctx.push_flow(Address)
        with pytest.raises(UsageError, match="pop_flow"):
            ctx.push_flow(Address)
        for _ in range(8):
            assert ctx.pop_flow()
        assert ctx.flow == "shop"


async def test_clear_flow_ends_all_flows_and_start_flow_restarts_the_inner_flow(fsm: FSM) -> None:
    async with fsm.conversation(key=1) as ctx:
        ctx.start_flow(Shop)
        ctx.push_flow(Address)
        ctx.update_data(street="x")
        ctx.start_flow(Address)
        assert ctx.data == {}
        assert ctx.pop_flow()
        ctx.push_flow(Address)
        ctx.clear_flow()
        ctx.start_flow(Shop)
        with pytest.raises(TransitionError):
            ctx.pop_flow()


async def test_the_first_data_of_an_inner_flow_is_checked(storage: Storage) -> None:
    import dataclasses

    @dataclasses.dataclass
    class Data:
        n: int

    class Inner(Flow, name="inner", data=Data):
        only = state()
        default_state = only

    fsm = FSM("bot", storage=storage, flows=[Shop, Inner])
    async with fsm.conversation(key=1) as ctx:
        ctx.start_flow(Shop)
        with pytest.raises(FieldError):
            ctx.push_flow(Inner, {"n": "x"})


async def test_a_timeout_of_the_outer_state_waits_while_the_inner_flow_runs(storage: Storage, clock: Clock) -> None:
    class Outer(Flow, name="outer"):
        ask = state(timeout=60, on_timeout="late")
        late = state()
        default_state = ask

    fsm = FSM("bot", storage=storage, flows=[Outer, Address], run_timers=False)
    async with fsm.conversation(message(update_id=1), key=1) as ctx:
        ctx.start_flow(Outer)
        ctx.push_flow(Address)
    clock.advance(61)
    assert await fsm.tick() == 0
    async with fsm.conversation(key=1) as ctx:
        ctx.pop_flow()
    clock.advance(61)
    assert await fsm.tick() == 1
    assert await storage.get_state("bot", 1) == State("outer", "late", {})


async def test_a_timeout_of_an_inner_flow_without_on_timeout_ends_the_outer_flow_too(
    storage: Storage, clock: Clock
) -> None:
    class Short(Flow, name="short"):
        ask = state(timeout=60)
        default_state = ask

    fsm = FSM("bot", storage=storage, flows=[Shop, Short], run_timers=False)
    async with fsm.conversation(key=1) as ctx:
        ctx.start_flow(Shop)
        ctx.push_flow(Short)
    clock.advance(61)
    assert await fsm.tick() == 1
    assert await storage.get_state("bot", 1) is None


def test_names_of_hooks_are_not_allowed_as_states() -> None:
    from stepwell.errors import InvalidFlow

    with pytest.raises(InvalidFlow, match="reserved"):
        type("Bad", (Flow,), {"on_enter": state()}, name="bad")


async def _without_revision(state: str, data: Any) -> None: ...


@pytest.mark.parametrize(
    ("name", "hook"),
    [
        ("on_enter", lambda ctx: None),
        ("on_enter", lambda self, ctx: None),
        ("on_leave", lambda self, ctx, state, old: None),
        ("on_leave", staticmethod(lambda self, ctx, state: None)),
        ("on_leave", classmethod(lambda cls, ctx: None)),
        ("migrate", _without_revision),
        ("migrate", lambda self, state, data: None),
    ],
)
def test_a_hook_with_wrong_arguments_is_refused(name: str, hook: Any) -> None:
    arguments = "old_revision, state, data" if name == "migrate" else "ctx, state"
    with pytest.raises(InvalidFlow, match=rf"{name}\(.+\) has the wrong arguments; write {name}\({arguments}\)"):
        type("Bad", (Flow,), {"a": state(), name: hook}, name="bad")


async def test_a_hook_may_have_optional_or_variable_arguments(storage: Storage) -> None:
    def further(ctx: Context, state: str, *rest: Any, word: str = "further") -> None:
        LOG.append(f"{word} {state}")

    def method(self: Any, ctx: Context, state: str = "none") -> None:
        LOG.append(f"method {state}")

    for hook in (further, method, lambda *given: LOG.append(f"anything {given[1]}"), staticmethod(further)):
        flow = type("Fine", (Flow,), {"a": state(), "default_state": "a", "on_enter": hook}, name="fine")
        async with FSM("bot", storage=storage, flows=[flow]).conversation(key=1) as ctx:
            ctx.start_flow(flow)
    assert LOG == ["further a", "method a", "anything a", "further a"]
