"""The write of a conversation: what changed, with its tags, its deadline and its expiry."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

from stepwell.fsm import keys, typed
from stepwell.fsm.events import Committed, StateEntered, emit, subscribers
from stepwell.fsm.expiry import schedule
from stepwell.record import KEEP, Keep
from stepwell.slot import Changes, Slot

if TYPE_CHECKING:
    from stepwell.fsm.context import Context
    from stepwell.fsm.description import FlowDescription
    from stepwell.fsm.machine import FSM

__all__ = ["write"]


async def write(
    fsm: FSM,
    ctx: Context,
    slot: Slot,
    *,
    keep: bool = False,
    memo: Any = KEEP,
    force: bool = False,
    deadline_passed: bool = False,
) -> bool:
    """Write what changed, with the deadline of the state that was entered; return whether anything was written.

    ``keep`` keeps the claim. ``deadline_passed`` removes the deadline unless a state was entered.
    """
    place = slot.place
    flow = None if place.flow is None else fsm.flows.get(place.flow)
    changes: Changes | None = None
    if flow is not None and flow.data is not None:
        # Fields that were changed in place are checked like those given to update_data.
        changes = await slot.changes()
        typed.check_fields(flow.name, flow.data, slot.changed_data(changes))
    deadline: float | Keep | None = KEEP
    if ctx.entered:
        timeout = None if flow is None or place.state is None else flow.timeouts.get(place.state)
        deadline = None if timeout is None else timeout.seconds
        if timeout is not None or place.where:
            slot.place = place._replace(where=() if timeout is None else _where(fsm, ctx, slot))
        # Entering a state again is a change too: its time begins anew, and the update is handled.
        force = True
    elif deadline_passed:
        deadline, force = None, True
    expiry = _expiry(fsm, ctx, slot, flow) if fsm.expires else KEEP
    scheduled = fsm.hands_over or place.times or place.expired
    if scheduled and not slot.deletes and (force or slot.changed):
        deadline, expiry = schedule(slot, deadline, expiry)
    written = await slot.commit(
        keep=keep,
        memo=memo,
        # The tags of a key never change.
        tags=KEEP if slot.tags else _tags(fsm, ctx),
        deadline=deadline,
        expiry=expiry,
        force=force,
        changes=changes,
    )
    ctx.entered = False
    if written and (fsm.subscribers or subscribers):
        _emit(fsm, ctx, slot)
    return written


def _emit(fsm: FSM, ctx: Context, slot: Slot) -> None:
    about: dict[str, Any] = {"fsm": fsm, "bot": fsm.bot, "key": ctx.key, "address": slot.address}
    for from_flow, from_state, flow, state in ctx.moves[ctx.moves_told :]:
        emit(StateEntered(**about, from_flow=from_flow, from_state=from_state, flow=flow, state=state))
    ctx.moves_told = len(ctx.moves)
    emit(Committed(**about, duration=monotonic() - ctx.started))


def _expiry(fsm: FSM, ctx: Context, slot: Slot, flow: FlowDescription | None) -> float | Keep | None:
    ttl = flow.ttl if flow is not None and flow.ttl is not None else fsm.ttl
    if fsm.sliding or ctx.began or not slot.found or (slot.place.expired and not any(slot.place.times)):
        return ttl
    return KEEP


def _where(fsm: FSM, ctx: Context, slot: Slot) -> tuple[Any, ...]:
    """Return the chat that a timer will answer in: the update's, unless the key says the same."""
    where = () if ctx.update.raw is None else keys.answer_to(ctx.update)
    if not where:
        return slot.place.where
    return () if where == keys.answer_to_key(fsm.key, ctx.key) else where


def _tags(fsm: FSM, ctx: Context) -> tuple[str, ...] | Keep:
    if ctx.update.raw is None:
        return keys.tags_of_key(fsm.key, ctx.key) or KEEP
    return keys.tags_of(fsm.key, ctx.update, ctx.key)
