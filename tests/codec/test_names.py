"""Names with control characters are refused where they are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stepwell import State
from stepwell.errors import InvalidName, InvalidOption
from stepwell.fsm import FSM, Flow, state
from stepwell.nodes import Node, NodeFlow, Wait, every, linear
from stepwell.record import Queue
from stepwell.record import State as StoredState
from stepwell.slot import Slot
from stepwell.storage.operations import Get
from tests.backends import Backend


class Written:
    """A flow that does not derive from ``Flow``."""

    def __init__(self, flow_name: str, *states: str) -> None:
        self.flow_name, self.states = flow_name, states
        self.transitions: dict[str, list[str]] = {}
        self.default_state = None


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: NodeFlow(name="q\n"), "q\n"),
        (lambda: Node(name="a\tb"), "a\tb"),
        (lambda: Wait("ask", signal="paid\x00"), "paid\x00"),
        (lambda: every(60, linear(Node, name="flow"), name="hourly\x1b"), "hourly\x1b"),
        (lambda: type("F", (Flow,), {"first": state(to=[]), "default_state": None}, name="form\x7f"), "form\x7f"),
        (lambda: FSM("bot", storage="memory://", flows=[Written("form\u2028")]), "form\u2028"),
        (lambda: FSM("bot", storage="memory://", flows=[Written("form", "a\x85b")]), "a\x85b"),
    ],
)
def test_a_name_with_a_control_character_is_refused_where_it_is_given(make: Callable[[], Any], name: str) -> None:
    with pytest.raises(InvalidName, match="has the control character") as error:
        make()
    assert error.value.name == name
    assert not name[error.value.position].isprintable()
    assert str(error.value).isprintable()


async def test_a_name_that_was_assigned_later_is_refused_when_the_flow_is_used() -> None:
    flow = linear(Node(name="read"), name="words")
    flow.name = "words\n"
    with pytest.raises(InvalidName, match="words"):
        await flow.run({})


async def test_partitions_and_signals_with_control_characters_are_refused_before_they_are_stored(
    backend: Backend,
) -> None:
    async with backend.storage() as storage:
        flow = linear(Wait("paid", signal="paid"), name="orders", storage=storage)
        with pytest.raises(InvalidName, match="the partition"):
            await flow.submit({}, partition="shop\n7")
        assert [run async for run in flow.runs()] == []
        handle = await flow.submit({})
        with pytest.raises(InvalidName, match="the signal"):
            await flow.signal(handle.id, "paid\n", True)


async def test_states_with_control_characters_are_refused_by_the_storage_but_names_of_bots_are_not(
    backend: Backend,
) -> None:
    async with backend.storage() as storage:
        for flow, name in (("form\n", "email"), ("form", "e\nmail")):
            with pytest.raises(InvalidName, match="a flow or state"):
                await storage.set_state("bot", 1, State(flow, name))
        await storage.set_state("bot\n", 1, State("form", "email"))
        assert (await storage.get_state("bot\n", 1)) == StoredState("form", "email", {})


async def test_tags_with_control_characters_are_refused() -> None:
    class Tagged:
        def extract(self, update: Any) -> tuple[int, ...]:
            return (1,)

        def tags(self, update: Any) -> tuple[str, ...]:
            return ("team:\n",)

    class Form(Flow, name="form"):
        name = state(to=[])
        default_state = name

    async with FSM("bot", storage="memory://", flows=[Form], key=Tagged()) as fsm:
        with pytest.raises(InvalidName, match="the tag"):
            async with fsm.conversation({"update_id": 1, "message": {"chat": {"id": 1}}}) as ctx:
                ctx.start_flow(Form)


@pytest.mark.parametrize("name", ["q\n", "q\n00000000", "\x0b", "q\x00", "\tq", ""])
async def test_names_of_queues_with_control_characters_are_refused_and_nothing_is_stored(
    backend: Backend, name: str
) -> None:
    async with backend.storage() as storage:
        async with Slot(storage, "bot", 1) as slot:
            with pytest.raises(InvalidOption, match="no control characters"):
                await slot.commit(queue=Queue(name), force=True)
        assert await storage.perform(Get(slot.address)) is None
        assert await storage.queues(slot.address.namespace) == []
