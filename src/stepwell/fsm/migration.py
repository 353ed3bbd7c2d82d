"""Migration: a record of an earlier revision of its flow, brought to the present one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from stepwell.errors import MigrationError, StepwellError
from stepwell.fsm.description import FlowDescription
from stepwell.slot import Slot

if TYPE_CHECKING:
    from stepwell.fsm.machine import FSM

__all__ = ["Migrated", "migrate_all", "migrate_slot", "migrated"]

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
    return None if state is None else str(state), dict(data)


def migrate_slot(flows: Mapping[str, FlowDescription], slot: Slot) -> bool:
    """Bring a held record to the present revision of its flow, in memory; whether it was behind."""
    flow = None if slot.flow is None else flows.get(slot.flow)
    if flow is None or (slot.revision or 1) >= flow.revision:
        return False
    # The function gets copies: if it fails half-way, the record is as it was.
    slot.state, slot.data = migrated(flow, slot.revision or 1, slot.state, slot.copy_of_data())
    slot.revision = flow.revision
    known = set(flow.states)
    slot.history = tuple(state for state in slot.history if state in known)
    return True


async def migrate_all(fsm: FSM, progress: Callable[[int], Any] | None) -> Migrated:
    """Migrate every record of the flows that have a later revision, while the bot runs."""
    done = seen = 0
    failed: list[tuple[Any, Exception]] = []
    for flow in fsm.flows.values():
        if flow.revision == 1:
            continue
        async for entry in fsm.storage.scan(fsm.bot, flow=flow.name):
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
