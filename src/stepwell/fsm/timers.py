"""Timers: a state that lasts too long moves on by itself, on exactly one worker.

A deadline lives in the record. Whoever claims the record after it applies the timeout: a worker's tick, or
the next update if it is quicker. The claim and the second look at the deadline make it happen once.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TYPE_CHECKING, Any

from stepwell.codec import decode_key, encode_namespace
from stepwell.errors import AlreadyHeld, Busy, Unsupported
from stepwell.fsm import expiry
from stepwell.fsm.commit import write
from stepwell.fsm.context import CLOSED, Context
from stepwell.fsm.events import TimerFired, emit, subscribers
from stepwell.fsm.hooks import run_hooks
from stepwell.fsm.migration import catch_up
from stepwell.fsm.update import Update
from stepwell.record import Address
from stepwell.slot import Slot
from stepwell.storage import Storage
from stepwell.storage.poller import DueTasks

if TYPE_CHECKING:
    from stepwell.fsm.machine import FSM

__all__ = ["Timers", "deliver", "is_due", "is_timed_out", "time_out"]

logger = logging.getLogger(__name__)

#: Short, so that the timers of a worker that dies are soon free for another; renewed while a handler runs.
LEASE = 1.0
#: Seconds before one that could not be fired is tried again: the first pause, and the longest.
PAUSES = (1.0, 300.0)
#: Seconds that sending one call of a timer may take.
SEND_TIMEOUT = 30.0


def is_due(slot: Slot) -> bool:
    """Whether the deadline of a held record has come: of its state, or of its expiry."""
    return slot.deadline is not None and slot.deadline <= slot.now


def is_timed_out(slot: Slot) -> bool:
    """Whether the state of a held record has lasted too long."""
    timeout_at = slot.place.times[1] if slot.place.times else slot.deadline
    return timeout_at is not None and timeout_at <= slot.now


async def time_out(fsm: FSM, slot: Slot) -> list[dict[str, Any]]:
    """Apply the timeout of a held record's state, write it, and go on holding; the calls that it makes.

    A state that has no timeout in this release only loses its deadline.
    """
    flow = None if slot.flow is None else fsm.flows.get(slot.flow)
    timeout = None if flow is None or slot.state is None else flow.timeouts.get(slot.state)
    key, left = decode_key(slot.address.key), slot.place
    ctx = Context(fsm, Update.of(None), key, slot, collects=True)
    failure: BaseException | None = None
    try:
        if timeout is not None:
            if timeout.then is None:
                ctx.clear_flow()
            elif isinstance(timeout.then, str):
                ctx.set_state(timeout.then)
            else:
                result = timeout.then(ctx)
                if inspect.isawaitable(result):
                    await result
        if fsm.has_hooks:
            await run_hooks(ctx, ctx.moves, fsm.flows)
        await write(fsm, ctx, slot, keep=True, deadline_passed=True)
        return ctx.calls
    except BaseException as error:
        failure = error
        raise
    finally:
        ctx._record = CLOSED
        if fsm.subscribers or subscribers:
            about: dict[str, Any] = {"fsm": fsm, "bot": fsm.bot, "key": key, "address": slot.address}
            duration = monotonic() - ctx.started
            emit(TimerFired(**about, flow=left.flow, state=left.state, duration=duration, error=failure))


async def deliver(send: Callable[[dict[str, Any]], Awaitable[Any]] | None, calls: list[dict[str, Any]]) -> None:
    """Send the calls of a timer. Errors are logged, not raised: the timeout is committed already."""
    if send is None:
        if calls:
            logger.warning("a timer answers, but there is no send= to send it with")
        return
    for call in calls:
        try:
            async with asyncio.timeout(SEND_TIMEOUT):
                await send(call)
        except Exception:
            logger.exception("a timer's call %s could not be sent", call.get("method"))


class Timers:
    """The timers that one worker fires."""

    def __init__(self, fsm: FSM) -> None:
        self._fsm = fsm
        namespace = encode_namespace(fsm.bot, fsm.storage.limits)
        self._due = DueTasks(fsm.storage, namespace, self._fire, what="timers", waits=True, pauses=PAUSES)

    def check(self) -> None:
        """``Unsupported`` if no timeout could ever be noticed."""
        if self._needed and type(self._fsm.storage).due is Storage.due:
            what = "find deadlines, which timeouts and on_expired need (run_timers=False leaves them to others)"
            raise Unsupported(type(self._fsm.storage).__name__, what)

    def start(self) -> None:
        """Start polling for deadlines, if any flow has timeouts or expired conversations are handed over."""
        if self._needed:
            self._due.start()

    @property
    def _needed(self) -> bool:
        return self._fsm.hands_over or any(flow.timeouts for flow in self._fsm.flows.values())

    async def stop(self) -> None:
        """End it. A timer that is being fired is either committed or stays due."""
        await self._due.stop()

    async def tick(self) -> int:
        """Fire all that is due now, and wait for it; how many were fired."""
        return sum(await asyncio.gather(*await self._due.look()))

    async def _fire(self, address: Address) -> bool:
        fsm = self._fsm
        try:
            key = decode_key(address.key)
            async with Slot(fsm.storage, fsm.bot, key, wait=0, lease=min(LEASE, fsm.lease)) as slot:
                if not is_due(slot):
                    return False
                entries: tuple[Any, ...] = ()
                calls: list[dict[str, Any]] = []
                expired = expiry.is_expired(slot)
                if fsm.hands_over and (expired or expiry.is_waiting(slot)):
                    entries = await expiry.take(slot)
                elif not expired and is_timed_out(slot) and catch_up(fsm.flows, slot):
                    calls = await time_out(fsm, slot)
                else:
                    # Another worker can do it.
                    self._due.pause(address)
                    return False
        except (Busy, AlreadyHeld):
            # Its holder applies the timeout with the next update, or the next tick does.
            return False
        except Exception:
            logger.exception("the timeout at %s failed; it is tried again", address.text)
            self._due.pause(address)
            return False
        self._due.unpause(address)
        if entries:
            # Not while the record is held: on_expired may take its time, or begin a new conversation there.
            return await self._hand_over(address, key, entries)
        await deliver(fsm.send, calls)
        return True

    async def _hand_over(self, address: Address, key: Any, entries: tuple[Any, ...]) -> bool:
        try:
            await expiry.hand_over(self._fsm, key, entries)
        except (Busy, AlreadyHeld):
            # The entries stay, and are handed over again.
            return False
        except Exception:
            # Without a pause: the entries say when they are due again, and the record may be due for its timeout first.
            logger.exception("on_expired failed for %s; it is called again in %g s", address.text, expiry.RETRY)
            return False
        return True
