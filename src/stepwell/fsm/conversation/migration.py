"""Migration of records to the present revision of their flows."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from stepwell._secrets import quoted
from stepwell.codec import values
from stepwell.codec.json import Raw, replaced
from stepwell.errors import EncodeError, FieldError, MigrationError, StepwellError
from stepwell.fsm.base import Machine
from stepwell.fsm.conversation.extension import Waiting, extension_of, keep
from stepwell.fsm.flows.description import FlowDescription
from stepwell.fsm.flows.typed import check_fields
from stepwell.record import Place
from stepwell.slot import Slot

__all__ = ["Migrated", "catch_up", "is_declared", "migrate_all", "migrate_slot", "migrated"]

logger: logging.Logger = logging.getLogger(__name__)


class Migrated(NamedTuple):
    """The result of ``FSM.migrate``."""

    #: How many records were migrated.
    done: int
    #: The keys and errors of records that could not be migrated.
    failed: list[tuple[Any, Exception]]


def migrated(flow: FlowDescription, revision: int, state: str | None, data: dict[Any, Any]) -> tuple[Any, Any]:
    """Return state and data of an earlier revision, migrated to the present one. Raises ``MigrationError``."""
    migrate = flow.hook("migrate")
    if migrate is None:
        # Without migrate(), records of earlier revisions need no change.
        return state, data
    try:
        result = migrate(revision, state, data)
    except Exception as error:
        raise MigrationError(flow.name, revision, f"migrate() raised {type(error).__name__}") from error
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], Mapping):
        raise MigrationError(flow.name, revision, f"migrate() returns (state, data), got {type(result).__name__}")
    state, data = result
    if state is not None and not flow.declares(state):
        raise MigrationError(flow.name, revision, f"migrate() gave the state {quoted(state)}, which is not declared")
    try:
        check_fields(flow.name, flow.data, data)
    except FieldError as error:
        raise MigrationError(
            flow.name, revision, f"migrate() gave data that does not fit: {quoted(error.field)}"
        ) from error
    return None if state is None else str.__str__(state), dict(data)


def is_declared(flows: Mapping[str, FlowDescription], slot: Slot) -> bool:
    """Return whether the flow and state of a held record are declared in this release."""
    place = slot.head.place
    flow = None if place.flow is None else flows.get(place.flow)
    return flow is not None and (place.state is None or flow.declares(place.state))


def catch_up(flows: Mapping[str, FlowDescription], slot: Slot) -> bool:
    """Migrate a held record if its revision is old. Return whether its flow and state are declared in this release.

    A record that cannot be migrated is unchanged.
    """
    place = slot.head.place
    flow = None if place.flow is None else flows.get(place.flow)
    if (
        flow is not None
        and place.revision == flow.revision
        and place.state in flow.states
        and not extension_of(slot).stack
    ):
        # Fast path: the record is up to date.
        return True
    try:
        migrate_slot(flows, slot)
    except MigrationError:
        logger.exception("the record at %s could not be migrated and is unchanged", slot.address.text)
    return is_declared(flows, slot)


def migrate_slot(flows: Mapping[str, FlowDescription], slot: Slot) -> bool:
    """Migrate a held record, with the outer flows on its stack, in memory. Return whether anything was old."""
    kept = extension_of(slot)
    place, history, data = _present(flows, slot.place, kept.history, slot.copy_of_data)
    outdated = place != slot.place
    if data is not None:
        _check_storable(slot, slot.place, data)
    stack = []
    for waiting in kept.stack:
        waiting_data, into = waiting.opened(slot)
        found, its_history, found_data = _present(
            flows, waiting.place, waiting.history, partial(copy.deepcopy, waiting_data)
        )
        if found_data is not None:
            _check_storable(slot, waiting.place, found_data)
            waiting_data = found_data
        outdated = outdated or found != waiting.place
        encoded = Raw(values.encode([waiting_data, into], slot.storage.limits))
        stack.append(Waiting(found.flow, found.state, found.revision, its_history, encoded))
    if outdated:
        # Without some of its states, the times of the history would be those of others.
        same = len(history) == len(kept.history)
        entered_at = kept.entered_at if same else kept.entered_at.partition(" ")[0]
        slot.place = place
        keep(slot, history=history, entered_at=entered_at, stack=tuple(stack))
        if data is not None:
            slot.data = data
    return outdated


def _check_storable(slot: Slot, place: Place, data: dict[Any, Any]) -> None:
    # Otherwise the commit of every update would fail, and the conversation could not continue.
    try:
        for name, value in data.items():
            values.encode(value, slot.storage.limits, f"$.{name}")
    except EncodeError as error:
        problem = f"migrate() gave data that cannot be stored: {error}"
        raise MigrationError(str(place.flow), place.revision or 1, problem) from error


def _present(
    flows: Mapping[str, FlowDescription],
    place: Place,
    history: tuple[str, ...],
    copy_of_data: Callable[[], dict[Any, Any]],
) -> tuple[Place, tuple[str, ...], dict[Any, Any] | None]:
    """Return a place, its history and its data in the present revision; ``None`` for unchanged data."""
    flow = None if place.flow is None else flows.get(place.flow)
    if flow is None:
        return place, history, None
    revision = place.revision or 1
    if revision < flow.revision:
        # migrate() gets copies, so that an error in it leaves the record unchanged.
        state, data = migrated(flow, revision, place.state, copy_of_data())
        states = _states_after(flow, revision, history, copy_of_data)
        return Place(place.flow, state, flow.revision), states, data
    if place.state is None or flow.declares(place.state) or revision == 1:
        return place, history, None
    # An earlier release moved the migrated record: its data is up to date, but its state is not.
    states = _states_after(flow, revision - 1, (place.state,), copy_of_data)
    return replaced(place, state=states[0] if states else place.state), history, None


def _states_after(
    flow: FlowDescription, revision: int, states: tuple[str, ...], copy_of_data: Callable[[], dict[Any, Any]]
) -> tuple[str, ...]:
    found = []
    for state in states:
        try:
            found.append(migrated(flow, revision, state, copy_of_data())[0])
        except MigrationError:
            # The present release has no such state, so it is left out of the history.
            continue
    return tuple(state for state in found if state is not None)


async def migrate_all(fsm: Machine, progress: Callable[[int], Any] | None) -> Migrated:
    """Migrate every record of an earlier revision. The bot may run meanwhile."""
    done = seen = 0
    failed: list[tuple[Any, Exception]] = []
    # Scan all records, because outer flows on a stack are in no index.
    async for entry in fsm.storage.scan(fsm.bot):
        seen += 1
        try:
            async with Slot(fsm.storage, fsm.bot, entry.key, wait=fsm.wait, lease=fsm.lease) as slot:
                if migrate_slot(fsm.flows, slot):
                    await slot.commit()
                    done += 1
        except StepwellError as error:
            logger.error("the record at %s is unchanged: %s", entry.address.text, error)  # noqa: TRY400
            failed.append((entry.key, error))
        if progress is not None:
            progress(seen)
    return Migrated(done, failed)
