"""The times at which states were entered."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell.fsm import FSM, Flow, state
from stepwell.fsm.conversation.extension import extension_of, keep
from stepwell.fsm.conversation.history import HISTORY, entry_times, packed_times, with_entry
from stepwell.operate.edits import Edit, edit
from stepwell.operate.record import RecordView, read, show
from stepwell.record import Place
from stepwell.slot import Slot
from stepwell.storage import Storage
from stepwell.testing import Clock
from tests.backends import Backend
from tests.fsm.conftest import Form

START = 1_700_000_000.0


@pytest.fixture
def storage(backend: Backend, clock: Clock) -> Storage:
    return backend.storage(clock=clock)


def machine(storage: Storage, *flows: Any) -> FSM:
    return FSM("bot", storage=storage, flows=flows or [Form], run_timers=False)


async def moves(fsm: FSM, clock: Clock, *names: str) -> RecordView:
    """Make one move a minute."""
    for name in names:
        async with fsm.conversation(key=1) as ctx:
            if name == "start":
                ctx.start_flow(Form)
            elif name == "back":
                ctx.back()
            else:
                ctx.transition(name)
        clock.advance(60)
    return await show(fsm.storage, "bot", 1)


def minutes(record: RecordView) -> list[float | None]:
    return [None if at is None else (at - START) / 60 for at in record.entered_at]


async def test_each_state_has_the_time_at_which_it_was_entered(storage: Storage, clock: Clock) -> None:
    found = await moves(machine(storage), clock, "start", "email", "name", "email")
    assert (found.history, found.state) == (("name", "email", "name"), "email")
    assert minutes(found) == [0, 1, 2, 3]
    found = await moves(machine(storage), clock, "back")
    assert (found.history, found.state, minutes(found)) == (("name", "email"), "name", [0, 1, 4])
    found = await moves(machine(storage), clock, "start")
    assert (found.history, minutes(found)) == ((), [5])


async def test_a_write_without_a_move_keeps_the_times(storage: Storage, clock: Clock) -> None:
    await moves(machine(storage), clock, "start", "email")
    async with machine(storage).conversation(key=1) as ctx:
        ctx.update_data(name="Ann")
    assert minutes(await show(storage, "bot", 1)) == [0, 1]


async def test_the_times_are_bounded_as_the_history_is(storage: Storage, clock: Clock) -> None:
    found = await moves(machine(storage), clock, "start", *["email", "name"] * 15)
    assert len(found.history) == HISTORY
    assert minutes(found) == [30 - HISTORY + number for number in range(HISTORY + 1)]
    async with Slot(storage, "bot", 1) as slot:
        assert extension_of(slot).entered_at.count(" ") == HISTORY


async def test_a_record_without_times_is_read_and_gets_them_with_its_next_moves(storage: Storage, clock: Clock) -> None:
    async with Slot(storage, "bot", 1) as slot:
        slot.place = Place("form", "email", 1)
        keep(slot, history=("name",))
        await slot.commit()
    assert (await show(storage, "bot", 1)).entered_at == (None, None)
    found = await moves(machine(storage), clock, "name", "email")
    assert (found.history, minutes(found)) == (("name", "email", "name"), [None, None, 0, 1])


async def test_a_migration_keeps_the_times_that_still_fit(storage: Storage, clock: Clock) -> None:
    class Renamed(Flow, name="form", revision=2):
        title = state(to=["email"])
        email = state(to=["title"])
        default_state = title

        @classmethod
        def migrate(cls, old: int, state: str, data: dict[str, Any]) -> Any:
            return {"name": "title"}.get(state, state), data

    class Shorter(Flow, name="form", revision=2):
        email = state(to=[])
        default_state = email

        @classmethod
        def migrate(cls, old: int, state: str, data: dict[str, Any]) -> Any:
            return state, data

    await moves(machine(storage), clock, "start", "email")
    async with machine(storage, Renamed).conversation(key=1):
        pass
    found = await show(storage, "bot", 1)
    assert (found.history, minutes(found)) == (("title",), [0, 1])
    clock.advance(-120)
    await moves(machine(storage), clock, "start", "email")
    async with machine(storage, Shorter).conversation(key=1):
        pass
    found = await show(storage, "bot", 1)
    assert (found.history, minutes(found)) == ((), [1])


async def test_an_inner_flow_has_its_own_times(storage: Storage, clock: Clock) -> None:
    class Inner(Flow, name="inner"):
        only = state(to=[])
        default_state = only

    fsm = machine(storage, Form, Inner)
    await moves(fsm, clock, "start", "email")
    async with fsm.conversation(key=1) as ctx:
        ctx.push_flow(Inner)
    assert minutes(await show(storage, "bot", 1)) == [2]
    clock.advance(60)
    async with fsm.conversation(key=1) as ctx:
        ctx.pop_flow()
    found = await show(storage, "bot", 1)
    assert (found.history, minutes(found)) == (("name",), [None, 3])


async def test_an_edit_of_the_state_has_a_time(storage: Storage, clock: Clock) -> None:
    await moves(machine(storage), clock, "start")
    address = storage.address("bot", 1)
    version = (await read(storage, address)).version
    await edit(storage, address, Edit(state="done"), version=version, who="the test")
    found = await show(storage, "bot", 1)
    assert (found.history, found.state, minutes(found)) == (("name",), "done", [0, 1])


def test_times_are_packed_and_unpacked() -> None:
    text = ""
    for at in (100.9, 105.2, 103.0):
        text = with_entry(text, at)
    assert text == "103 -2 5"
    assert entry_times(text, 3) == [100.0, 105.0, 103.0]
    assert entry_times(text, 5) == [None, None, 100.0, 105.0, 103.0]
    assert entry_times(text, 1) == [103.0]
    assert packed_times([None, 105.0, 103.0]) == "103 -2"
    assert (entry_times("5.5 soon", 2), with_entry("5.5", 7.0)) == ([None, None], "7")
