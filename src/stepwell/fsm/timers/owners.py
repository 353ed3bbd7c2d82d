"""The owners of the timers of a machine, which the dispatcher calls: timeouts, expiry and the outbox."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any

from stepwell.codec import decode_key
from stepwell.codec.json import replaced
from stepwell.dispatch import TimerSource
from stepwell.dispatch.timers import LEASE, Outcome
from stepwell.errors import AlreadyHeld, Busy, Unsupported
from stepwell.fsm.base import Machine
from stepwell.fsm.conversation.albums import first_album, keep_album
from stepwell.fsm.conversation.conversation import handle_album
from stepwell.fsm.conversation.extension import ALBUM, EXPIRY, HAND_OVER, OUTBOX, TIMEOUT, extension_of
from stepwell.fsm.conversation.migration import catch_up
from stepwell.fsm.timers import expiry, outbox
from stepwell.fsm.timers.timeouts import time_out
from stepwell.record import Address
from stepwell.slot import Slot
from stepwell.storage import Storage

__all__ = ["Timers"]

logger: logging.Logger = logging.getLogger(__name__)

#: Seconds that an album waits for its other messages if it was complete while no process ran, or just after a start.
LATE = 2.0


class Timers:
    """The timers of one machine."""

    def __init__(self, fsm: Machine) -> None:
        self._fsm = fsm
        owners = {
            TIMEOUT: self._time_out,
            EXPIRY: self._expire,
            HAND_OVER: self._expire,
            OUTBOX: self._send,
            ALBUM: self._handle_album,
        }
        #: When this process began to serve timers, on the monotonic clock.
        self._started: float | None = None
        self._source = TimerSource(fsm.storage, fsm.bot, owners, lease=min(LEASE, fsm.lease))

    def check(self) -> None:
        """Raise ``Unsupported`` if timers are needed and the storage cannot find deadlines."""
        if self._needed and type(self._fsm.storage).due is Storage.due:
            what = "find deadlines, which timeouts and on_expired need (run_timers=False leaves them to others)"
            raise Unsupported(type(self._fsm.storage).__name__, what)

    def start(self) -> None:
        """Serve the timers if a flow has timeouts, or ``on_expired`` or ``send`` is set."""
        if self._needed or (self._fsm.send is not None and type(self._fsm.storage).due is not Storage.due):
            self._started = monotonic() if self._started is None else self._started
            self._source.start()

    def warn(self, *, running: bool) -> None:
        """Log a warning if no worker of this process fires the timers, or nothing can send their answers.

        Called once, at start-up or before the first update.
        """
        fsm = self._fsm
        if not running and self._needed:
            logger.warning(
                "%s has timeouts, on_expired or albums, and this process does not fire timers; use 'async with fsm:', "
                "run_polling() or webhook(), or pass run_timers=False if another process fires them",
                fsm.bot,
            )
        if fsm.send is None and (answering := _answering(fsm)):
            logger.warning(
                "%s answers after a timeout, and nothing can send that answer; pass send= to FSM or Router", answering
            )

    @property
    def _needed(self) -> bool:
        fsm = self._fsm
        collects = fsm.albums is not None and fsm.albums.collects_albums
        return fsm.hands_over or collects or any(flow.timeouts for flow in fsm.flows.values())

    async def stop(self, *, timeout: float) -> None:
        """Stop, and cancel running timers after the timeout. Each is then either committed or stays due."""
        await self._source.stop(timeout=timeout)

    def hold(self, held: Callable[[Address], bool] | None) -> None:
        """Do not fire the timers of addresses for which ``held`` returns ``True``."""
        self._source.skip = held

    async def tick(self) -> int:
        """Fire all timers that are due now, and wait for them. Return how many were fired."""
        return await self._source.tick()

    async def _time_out(self, slot: Slot) -> Outcome:
        if expiry.is_expired(slot) or not catch_up(self._fsm.flows, slot):
            # Another worker may have the flow.
            return False
        unsent = await time_out(self._fsm, slot)
        return partial(outbox.deliver, self._fsm, decode_key(slot.address.key), unsent)

    async def _expire(self, slot: Slot) -> Outcome:
        fsm = self._fsm
        if fsm.hands_over:
            # The record is not held meanwhile: on_expired may be slow, or open the same conversation.
            return partial(self._hand_over, slot.address, await expiry.take(slot))
        if expiry.is_expired(slot) and extension_of(slot).profile and fsm.on_expired is None:
            await expiry.retire(fsm, slot)
            return None
        return False

    async def _handle_album(self, slot: Slot) -> Outcome:
        fsm, album = self._fsm, first_album(slot)
        if fsm.albums is None or album is None or (slot.flow is not None and not catch_up(fsm.flows, slot)):
            return False
        if self._started is not None and not album.postponed:
            began = slot.time() - (monotonic() - self._started)
            if album.complete_at < began + LATE:
                # The processes were away, so that other messages of the album may still be on their way.
                keep_album(slot, replaced(album, complete_at=slot.time() + LATE, postponed=True))
                await slot.commit()
                return None
        unsent = await handle_album(fsm, slot, album)
        return partial(outbox.deliver, fsm, decode_key(slot.address.key), unsent)

    async def _send(self, slot: Slot) -> Outcome:
        if self._fsm.send is None:
            return False
        return partial(outbox.deliver, self._fsm, decode_key(slot.address.key), await outbox.take(slot))

    async def _hand_over(self, address: Address, entries: tuple[Any, ...]) -> bool:
        try:
            await expiry.hand_over(self._fsm, decode_key(address.key), entries)
        except (Busy, AlreadyHeld):
            # The entries stay and are handed over again.
            return False
        except Exception:
            # No pause: each entry has the time of its next call, and the record may time out before that.
            logger.exception("on_expired failed for %s; it will be called again in %g s", address.text, expiry.RETRY)
            return False
        return True


def _answering(fsm: Machine) -> str | None:
    """Return the name of a timeout's handler that uses ``ctx.answer`` or ``ctx.call``, if there is one."""
    for flow in fsm.flows.values():
        for timeout in flow.timeouts.values():
            code = getattr(timeout.then, "__code__", None)
            if code is not None and not {"answer", "call"}.isdisjoint(code.co_names):
                return str(getattr(timeout.then, "__qualname__", timeout.then))
    return None
