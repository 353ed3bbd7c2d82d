"""The timeouts of states, each applied once.

The timer is stored in the record. Its first holder after that time applies the timeout: the dispatcher of a process, or
the next update if that comes first. It reads the timer again after the claim, so that it happens once.
"""

from __future__ import annotations

from math import inf
from time import monotonic, time

from stepwell import _portal
from stepwell.codec import decode_key
from stepwell.fsm.base import Machine
from stepwell.fsm.conversation.awaited import explain_await
from stepwell.fsm.conversation.commit import run_hooks, write
from stepwell.fsm.conversation.context import CLOSED, Context
from stepwell.fsm.conversation.extension import TIMEOUT
from stepwell.fsm.events import TimerFired, emit, subscribers
from stepwell.fsm.timers import outbox
from stepwell.fsm.update import Update
from stepwell.slot import Slot

__all__ = ["is_timed_out", "time_out"]


def is_timed_out(slot: Slot) -> bool:
    """Return whether the state of a held record has timed out."""
    return slot.timers.get(TIMEOUT, inf) <= slot.now


async def time_out(fsm: Machine, slot: Slot) -> outbox.Unsent | None:
    """Apply the timeout of a held record's state, write it, and keep the claim. Return its calls, to be delivered.

    If the state has no timeout in this release, only the deadline is removed.
    """
    flow = None if slot.flow is None else fsm.flows.get(slot.flow)
    timeout = None if flow is None or slot.state is None else flow.timeouts.get(slot.state)
    key, left = decode_key(slot.address.key), slot.place
    late = max(0.0, slot.now - slot.timers.get(TIMEOUT, slot.now))
    ctx: Context = Context(fsm, Update.of(None), key, slot, collects=True)
    failure: BaseException | None = None
    try:
        if timeout is not None:
            if timeout.then is None:
                ctx.clear_flow()
            elif isinstance(timeout.then, str):
                ctx.set_state(timeout.then)
            else:
                await _portal.call_function(timeout.then, ctx)
        if fsm.has_hooks:
            await run_hooks(fsm, ctx)
        unsent = outbox.add(fsm, slot, ctx.calls)
        await write(fsm, ctx, slot, keep=True, deadline_passed=True)
        return unsent
    except BaseException as error:
        explain_await(error)
        failure = error
        raise
    finally:
        ctx._record = CLOSED
        if fsm.subscribers or subscribers:
            # Before the duration: a pause of the process between them does not move the beginning after the write.
            at = time()
            fields = {"flow": left.flow, "state": left.state, "duration": monotonic() - ctx.started, "error": failure}
            emit(TimerFired, fsm, key, slot.address, at=at, late=late, **fields)
