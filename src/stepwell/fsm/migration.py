"""Migration: a record of an earlier revision of its flow, brought to the present one."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from stepwell.errors import FieldError, MigrationError, StepwellError
from stepwell.fsm.description import FlowDescription
from stepwell.fsm.typed import check_fields
from stepwell.record import Place
from stepwell.slot import Slot

if TYPE_CHECKING:
    from stepwell.fsm.machine import FSM

__all__ = ["Migrated", "catch_up", "is_declared", "migrate_all", "migrate_slot", "migrated"]

logger = logging.getLogger(__name__)


class Migrated(NamedTuple):
    """What a bulk migration did."""

    #: Records that were brought to the present revision.
    done: int
    #: Records that stay as they were: key and what went wrong.
    failed: list[tuple[Any, Exception]]


def migrated(flow: FlowDescription, revision: int, state: str | None, data: dict[Any, Any]) -> tuple[Any, Any]:
    """State and data of an earlier revision in the present form, or ``MigrationError``."""
    migrate = flow.hook("migrate")
    if migrate is None:
        # A new revision without migrate() says: the old records are fine as they are.
        return state, data
    try:
        result = migrate(revision, state, data)
    except Exception as error:
        raise MigrationError(flow.name, revision, f"migrate() raised {type(error).__name__}") from error
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], Mapping):
        raise MigrationError(flow.name, revision, f"migrate() returns (state, data), got {type(result).__name__}")
    state, data = result
    if state is not None and not flow.declares(state):
        raise MigrationError(flow.name, revision, f"migrate() gave the state {state!r}, which is not declared")
    try:
        check_fields(flow.name, flow.data, data)
    except FieldError as error:
        raise MigrationError(flow.name, revision, f"migrate() gave data that does not fit: {error.field!r}") from error
    return None if state is None else str.__str__(state), dict(data)


def is_declared(flows: Mapping[str, FlowDescription], slot: Slot) -> bool:
    """Whether the flow and state of a held record are declared in this release."""
    name, state, *_ = slot.place
    flow = None if name is None else flows.get(name)
    return flow is not None and (state is None or flow.declares(state))


def catch_up(flows: Mapping[str, FlowDescription], slot: Slot) -> bool:
    """Migrate a held record if it is behind, and return whether its flow and state are declared in this release.

    A record that cannot be migrated stays as it is.
    """
    name, state, revision, _, stack, *_ = slot.place
    flow = None if name is None else flows.get(name)
    if flow is not None and revision == flow.revision and not stack and state in flow.states:
        # The usual case: nothing is behind.
        return True
    try:
        migrate_slot(flows, slot)
    except MigrationError:
        logger.exception("the record at %s could not be migrated and stays as it is", slot.address.text)
    return is_declared(flows, slot)


def migrate_slot(flows: Mapping[str, FlowDescription], slot: Slot) -> bool:
    """Bring a held record, and the flows that wait in it, up to date in memory; whether anything was behind."""
    place, data, behind = _present(flows, slot.place, slot.copy_of_data)
    stack = []
    for flow, state, revision, history, waiting_data, into in slot.place.stack:
        waiting = Place(flow, state, revision, tuple(history))
        found, found_data, was_behind = _present(flows, waiting, partial(copy.deepcopy, waiting_data))
        behind = behind or was_behind
        kept = found_data if was_behind else waiting_data
        stack.append([found.flow, found.state, found.revision, list(found.history), kept, into])
    if behind:
        slot.place = place._replace(stack=tuple(stack))
        if data is not None:
            slot.data = data
    return behind


def _present(
    flows: Mapping[str, FlowDescription], place: Place, copy_of_data: Callable[[], dict[Any, Any]]
) -> tuple[Place, dict[Any, Any] | None, bool]:
    """A place and its data in the present revision; no data where it stays as it is."""
    flow = None if place.flow is None else flows.get(place.flow)
    if flow is None:
        return place, None, False
    revision = place.revision or 1
    if revision < flow.revision:
        # The function gets copies: if it fails half-way, the record is as it was.
        state, data = migrated(flow, revision, place.state, copy_of_data())
        history = _states_after(flow, revision, place.history, copy_of_data)
        return place._replace(state=state, revision=flow.revision, history=history), data, True
    if place.state is None or flow.declares(place.state) or revision == 1:
        return place, None, False
    # An earlier release moved it meanwhile: its data has the present form already, only its state has not.
    states = _states_after(flow, revision - 1, (place.state,), copy_of_data)
    if not states or states[0] == place.state:
        return place, None, False
    return place._replace(state=states[0]), None, True


def _states_after(
    flow: FlowDescription, revision: int, states: tuple[str, ...], copy_of_data: Callable[[], dict[Any, Any]]
) -> tuple[str, ...]:
    found = []
    for state in states:
        try:
            found.append(migrated(flow, revision, state, copy_of_data())[0])
        except MigrationError:
            # A state that the present release has no place for is left out.
            continue
    return tuple(state for state in found if state is not None)


async def migrate_all(fsm: FSM, progress: Callable[[int], Any] | None) -> Migrated:
    """Migrate every record of the flows that have a later revision, while the bot runs."""
    done = seen = 0
    failed: list[tuple[Any, Exception]] = []
    # All records: a flow that waits for another one is in no index.
    async for entry in fsm.storage.scan(fsm.bot):
        seen += 1
        try:
            async with Slot(fsm.storage, fsm.bot, entry.key, wait=fsm.wait, lease=fsm.lease) as slot:
                if migrate_slot(fsm.flows, slot):
                    await slot.commit()
                    done += 1
        except StepwellError as error:
            logger.error("the record at %s stays as it is: %s", entry.address.text, error)  # noqa: TRY400
            failed.append((entry.key, error))
        if progress is not None:
            progress(seen)
    return Migrated(done, failed)
