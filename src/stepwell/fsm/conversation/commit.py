"""The commit of a conversation: run the hooks, then write what changed with its tags, deadline and expiry."""

from __future__ import annotations

import inspect
from time import monotonic
from typing import Any

from stepwell.codec import values
from stepwell.errors import RecordExists, UsageError, VersionChanged
from stepwell.fsm import keys
from stepwell.fsm.base import Machine
from stepwell.fsm.conversation.context import Context
from stepwell.fsm.conversation.extension import EXPIRY, TIMEOUT, Extension, end, extension_of, set_timer
from stepwell.fsm.conversation.extension import keep as keep_beside
from stepwell.fsm.events import Committed, StateEntered, emit, subscribers
from stepwell.fsm.flows import typed
from stepwell.fsm.flows.description import FlowDescription
from stepwell.fsm.timers.expiry import schedule
from stepwell.record import KEEP, NO_HEAD, Keep
from stepwell.slot import Changes, Slot

__all__ = ["run_hooks", "write"]

#: How many moves hooks may make for one update.
MOST_MOVES = 16


async def run_hooks(fsm: Machine, ctx: Context[Any]) -> None:
    """Run the hooks of all moves in order, and the hooks of moves that hooks make."""
    moves = ctx.moves
    limit = len(moves) + MOST_MOVES
    # The list grows while hooks make moves.
    while ctx.moves_hooked < len(moves):
        left_flow, left_state, flow, state = moves[ctx.moves_hooked]
        ctx.moves_hooked += 1
        if len(moves) > limit:
            raise UsageError(f"hooks made more than {MOST_MOVES} moves for one update; remove the cycle between them")
        for name, of, argument in (("on_leave", left_flow, left_state), ("on_enter", flow, state)):
            description = None if of is None else fsm.flows.get(of)
            hook = None if description is None or argument is None else description.hook(name)
            result = None if hook is None else hook(ctx, argument)
            if inspect.isawaitable(result):
                await result


async def write(
    fsm: Machine,
    ctx: Context[Any],
    slot: Slot,
    *,
    keep: bool = False,
    memo: Any = KEEP,
    force: bool = False,
    deadline_passed: bool = False,
) -> bool:
    """Write what changed, with the deadline of the state that was entered. Return whether anything was written.

    ``keep`` keeps the claim. ``deadline_passed`` removes the deadline unless a state was entered.
    """
    if ctx._profile is not None:
        _write_profile(fsm, ctx._profile, slot)
    place, kept = slot.head.place, extension_of(slot)
    if force and not slot.found and slot.head == NO_HEAD and not slot.data:
        return await _write_memo(fsm, ctx, slot, memo)
    flow = None if place.flow is None else fsm.flows.get(place.flow)
    changes: Changes | None = None
    if flow is not None and flow.data is not None:
        # Fields that were changed in place are checked like the fields given to update_data.
        changes = await slot.changes()
        typed.check_fields(flow.name, flow.data, slot.changed_data(changes))
    if ctx.entered:
        timeout = None if flow is None or place.state is None else flow.timeouts.get(place.state)
        if timeout is not None or kept.where:
            keep_beside(slot, where=() if timeout is None else _where(fsm, ctx, slot))
        # Entering the same state again is a change too: its timeout restarts.
        set_timer(slot, TIMEOUT, None if timeout is None else slot.time() + timeout.seconds)
        force = True
    elif deadline_passed:
        set_timer(slot, TIMEOUT, None)
        force = True
    elif flow is not None and place.state in flow.idle and ctx.update.raw is not None:
        # Each update of the user restarts an idle timeout.
        set_timer(slot, TIMEOUT, slot.time() + flow.timeouts[place.state].seconds)
        force = True
    expiry = _expiry(fsm, ctx, slot, flow) if fsm.expires else KEEP
    writes = not slot.deletes and (force or slot.changed)
    if writes and _outlives_expiry(fsm, kept):
        expiry = schedule(slot, expiry)
    written = await slot.commit(
        keep=keep,
        memo=memo,
        # The tags of a key never change.
        tags=KEEP if slot.tags else _tags(fsm, ctx),
        expiry=expiry,
        force=force,
        changes=changes,
    )
    ctx.entered = False
    if written and (fsm.subscribers or subscribers):
        _emit(fsm, ctx, slot)
    return written


def _outlives_expiry(fsm: Machine, kept: Extension) -> bool:
    """Return whether the storage must keep a record longer than its time of expiry, which is then a timer."""
    if fsm.hands_over or (kept.profile and fsm.expires):
        return True
    return kept.own_expiry or bool(kept.expired or kept.outbox)


async def _write_memo(fsm: Machine, ctx: Context[Any], slot: Slot, memo: Any) -> bool:
    """Remember an update of a key that has no record, and leave none."""
    await slot.rollback()
    try:
        if slot.memo_json is None:
            # The tags of a deleted record stay with its memo, so that forget() finds it.
            await slot.commit(keep=True, tags=_tags(fsm, ctx), force=True, only_absent=True)
            slot.delete()
            await slot.commit(memo=memo, force=True, only_version=slot.version)
        else:
            slot.delete()
            await slot.commit(memo=memo, force=True, only_absent=True)
    except (RecordExists, VersionChanged):
        # Another writer has stored something meanwhile, which stays.
        await slot.rollback()
        await slot.commit(memo=memo, force=True)
    if fsm.subscribers or subscribers:
        _emit(fsm, ctx, slot)
    return True


def _write_profile(fsm: Machine, profile: dict[Any, Any], slot: Slot) -> None:
    """Put a changed profile into the head."""
    text = values.encode(profile, fsm.storage.limits, "$profile").decode() if profile else ""
    place = slot.place
    if text != extension_of(slot).profile:
        if fsm.profile is not None:
            typed.check_fields("profile", fsm.profile, profile)
        keep_beside(slot, profile=text)
        if not text and place.flow is None and place.state is None and not slot.data:
            end(slot)


def _emit(fsm: Machine, ctx: Context[Any], slot: Slot) -> None:
    for from_flow, from_state, flow, state in ctx.moves[ctx.moves_emitted :]:
        fields = {"from_flow": from_flow, "from_state": from_state, "flow": flow, "state": state}
        emit(StateEntered, fsm, ctx.key, slot.address, **fields)
    ctx.moves_emitted = len(ctx.moves)
    emit(Committed, fsm, ctx.key, slot.address, duration=monotonic() - ctx.started)


def _expiry(fsm: Machine, ctx: Context[Any], slot: Slot, flow: FlowDescription | None) -> float | Keep | None:
    ttl = flow.ttl if flow is not None and flow.ttl is not None else fsm.ttl
    if fsm.sliding or ctx.began or not slot.found:
        return ttl
    if extension_of(slot).expired and EXPIRY not in slot.timers:
        # A conversation that has begun behind an expired one.
        return ttl
    return KEEP


def _where(fsm: Machine, ctx: Context[Any], slot: Slot) -> tuple[Any, ...]:
    """Return the chat that a timer answers in: the chat of the update, or empty if the key has it."""
    where = () if ctx.update.raw is None else keys.answer_to(ctx.update)
    if not where:
        return extension_of(slot).where
    return () if where == keys.answer_to_key(fsm.key, ctx.key) else where


def _tags(fsm: Machine, ctx: Context[Any]) -> tuple[str, ...] | Keep:
    if ctx.update.raw is None:
        return keys.tags_of_key(fsm.key, ctx.key) or KEEP
    return keys.tags_of(fsm.key, ctx.update, ctx.key)
