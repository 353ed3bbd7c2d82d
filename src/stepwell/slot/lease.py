"""The lease on one address: waiting for it, claiming, renewing and releasing it.

Tasks of one process get an address in the order of their calls, processes in the order of their claims.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from math import inf
from time import monotonic
from types import TracebackType
from typing import Self

from stepwell.errors import (
    Busy,
    Conflict,
    LeaseLost,
    StepwellError,
    StorageClosed,
    StorageFull,
    StorageUnavailable,
    UsageError,
)
from stepwell.record import Address, Stored, Version
from stepwell.slot.process import has_died, process_mark
from stepwell.slot.waiters import ClaimTurn, WaiterQueue, held_tokens, join_queue, leave_queue, must_check_turn
from stepwell.storage.contract import Storage
from stepwell.storage.operations import Claim, Claimed, Guard, Release

__all__ = ["Lease"]

logger: logging.Logger = logging.getLogger(__name__)

#: The first and the longest pause between two attempts to claim, in seconds.
FIRST_POLL, LONGEST_POLL = 0.005, 0.1

#: Seconds after which a wait for the lease of another process is logged.
LONG_WAIT = 2.0

#: Seconds after which a waiter checks whether the process of the holder has died, and between two such checks.
FIRST_CHECK, CHECK_EVERY = 0.1, 0.5

#: The number of entered slots that a task remembers, for itself and for the tasks that it starts.
MOST_NESTED = 64


class Lease:
    """A lease on one address, which a task holds within ``async with``; the base of ``Slot``."""

    __slots__ = (
        "_claiming", "_committing", "_holding", "_lease", "_lost", "_memo", "_now_at", "_renewal", "_token", "_wait",
        "address", "base", "now", "on_version", "on_wait", "storage", "version",
    )  # fmt: skip

    storage: Storage
    address: Address
    #: The time of the last read or write on the backend's clock, in seconds since 1970.
    now: float
    #: When that was, on the monotonic clock of this process.
    _now_at: float
    #: The id of the write that last replaced or deleted the record. A commit fails if another write did so since.
    base: str
    #: Called with the version of the record after each renewal of the lease.
    on_version: Callable[[Version], None] | None
    #: Called when another holder has the record, so that this one waits.
    on_wait: Callable[[], None] | None
    #: Seconds to wait for the lease.
    _wait: float
    #: Seconds of the lease.
    _lease: float
    #: Empty before the claim.
    _token: str
    #: The sealed memo.
    _memo: str | None
    #: The claim is not released.
    _holding: bool
    #: The lease has ended, and others have claimed or written the record since.
    _lost: bool
    #: A commit is under way, which may release the claim.
    _committing: bool
    #: The renewal claims a lease again that has expired, so that no commit may go on with it yet.
    _claiming: bool
    #: The version of the record; ``None`` if there is none.
    version: Version | None
    _renewal: asyncio.Task[None] | None

    async def _load(self, stored: Stored) -> None:
        """Load the record that the claim has read."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        if self._token:
            raise UsageError("a Slot can be entered only once; create a new one")
        loop = asyncio.get_running_loop()
        begun_at = monotonic()
        storage, address = self.storage, self.address
        if storage.loop is not loop:
            # Opened first: if its previous loop is closed, opening it clears all queues.
            await storage.ensure_open()
        token = storage.ids() + process_mark() if storage.shared else storage.ids()
        if address in storage.waiters:
            if self.on_wait is not None:
                self.on_wait()
            await join_queue(storage, address, token, self._wait)
            must_check = storage.shared and must_check_turn(storage, address, monotonic())
        else:
            storage.waiters[address] = WaiterQueue(asyncio.current_task(loop), token, begun_at)
            must_check = address in storage.recently_left and must_check_turn(storage, address, begun_at)
        self._token = token
        try:
            if must_check:
                claimed = await self._claim(0.0, begun_at + self._wait)
            else:
                claimed = await storage.perform(Claim(address=address, token=token, lease=self._lease))
                if type(claimed) is not Claimed:
                    claimed = await self._claim(max(claimed.remaining, 0.001), begun_at + self._wait)
            self._holding = True
            self._set_now(claimed.now)
            self.base, self._memo = claimed.base, claimed.memo
            # Started before the load, because decoding a large record may take longer than the lease.
            storage.renewals.add(self, loop, self._lease / 3)
            if claimed.record is not None:
                await self._load(claimed.record)
        except BaseException:
            await self._let_go()
            raise
        held = held_tokens.get()
        held_tokens.set((*held[-MOST_NESTED:], token) if held else (token,))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        held = held_tokens.get()
        if held and held[-1] == self._token:
            held_tokens.set(held[:-1])
        elif self._token in held:
            held_tokens.set(tuple([token for token in held if token != self._token]))
        if self._holding or self._renewal is not None:
            await self._let_go()
        else:
            # The usual case: the commit has released the claim.
            self.storage.renewals.discard(self)
            leave_queue(self.storage, self.address)

    @property
    def holding(self) -> bool:
        """Whether the claim has succeeded and was not released."""
        return self._holding

    @property
    def lost(self) -> bool:
        """Whether a renewal has found out that another holder has the claim."""
        return self._lost

    @property
    def lease_seconds(self) -> float:
        """The seconds for which the lease is claimed and renewed."""
        return self._lease

    @property
    def guard(self) -> Guard:
        """The conditions of a write by this holder."""
        return Guard(self._token, self.base)

    def time(self) -> float:
        """Return the time on the backend's clock: that of the last read or write, plus the time since."""
        clock = self.storage.clock
        return self.now + (monotonic() - self._now_at) if clock is None else clock()

    def _set_now(self, now: float) -> None:
        self.now, self._now_at = now, monotonic()

    async def check(self) -> None:
        """Raise ``LeaseLost`` if another holder may have the claim: this process may have been stopped for a while.

        Call it before something that no guard of a write refuses, such as sending a message.
        """
        if self._lost:
            raise LeaseLost(self.address.text)
        if monotonic() - self._now_at > self._lease / 2:
            claimed: Claimed = await self.storage.perform(Claim(self.address, self._token, self._lease, renew=True))
            self._set_now(claimed.now)

    async def confirm(self) -> None:
        """Return once all loaded data is as durable as an acknowledged write; see ``Storage.confirm``."""
        await self.storage.confirm(Claim(self.address, self._token, self._lease, renew=True))

    async def _claim(self, remaining: float, give_up: float) -> Claimed:
        """Poll until the claim succeeds; raises ``Busy`` at the time ``give_up``.

        ``remaining``: the seconds until the lease of another holder ends, or 0.
        """
        storage = self.storage
        turn = ClaimTurn(storage, self.address, self._token) if storage.shared else None
        pause = FIRST_POLL
        # Not the time in the queue of this process, where updates of one key wait for slow handlers in turn.
        log_at, check_at = monotonic() + LONG_WAIT, min(monotonic() + FIRST_CHECK, give_up)
        try:
            while True:
                if remaining and monotonic() >= check_at:
                    check_at = min(monotonic() + CHECK_EVERY, max(give_up, check_at + FIRST_CHECK))
                    if storage.shared and await self._end_dead_lease():
                        remaining = 0.0
                if remaining:
                    if self.on_wait is not None:
                        self.on_wait()
                    if monotonic() >= log_at:
                        log_at = inf
                        await self._log_wait()
                    left = give_up - monotonic()
                    if left <= 0:
                        raise Busy(self.address.text, self._wait)
                    # Jitter, so that waiting workers do not poll at the same time.
                    await asyncio.sleep(min(pause * storage.rng.uniform(0.7, 1.3), remaining, left))
                    pause = min(pause * 2, LONGEST_POLL)
                remaining = 0.0 if turn is None else await turn.take()
                if not remaining:
                    result = await storage.perform(Claim(self.address, self._token, self._lease))
                    if type(result) is Claimed:
                        self._holding = True
                        return result
                    remaining = max(result.remaining, 0.001)
        finally:
            if turn is not None:
                await turn.end()

    async def _end_dead_lease(self) -> bool:
        """End the lease of a holder whose process has died on this machine; return whether there was one.

        The release names the token of that holder, so it cannot end the lease of another one.
        """
        try:
            holder = (await self.storage.beside(self.address)).holder
            if holder is None or not has_died(holder):
                return False
            await self.storage.perform(Release(self.address, holder))
        except StepwellError as error:
            logger.debug("the holder of %s is not known (%s); its lease ends by itself", self.address.text, error)
            return False
        logger.info("ended the lease on %s: the process of its holder %s has died", self.address.text, holder)
        return True

    async def _log_wait(self) -> None:
        """Log who has the lease, and for how long. Best effort, because the wait does not depend on it."""
        try:
            beside = await self.storage.beside(self.address)
        except StepwellError as error:
            logger.warning("waiting for the claim on %s, which another process has (%s)", self.address.text, error)
            return
        if beside.holder is not None:
            logger.warning(
                "waiting for the claim on %s, which the holder %s has for %.1f s more; a killed holder keeps it until "
                "then, a running one renews it",
                self.address.text, beside.holder, beside.remaining,
            )  # fmt: skip

    def renew_soon(self) -> None:
        """Renew the lease in the background."""
        self._renewal = asyncio.get_running_loop().create_task(self._renew(), name="stepwell-renewal")

    async def _renew(self) -> None:
        try:
            if not self.storage.is_open:
                # A renewal must not open the storage again.
                raise StorageClosed
            claimed = await self.storage.perform(Claim(self.address, self._token, self._lease, renew=True))
            self._set_now(claimed.now)
            if self.on_version is not None and claimed.record is not None:
                self.on_version(claimed.record.version)
        except Conflict:
            if not self._holding:
                return
            # A commit that is under way claims it again by itself.
            if not self._committing:
                self._claiming = True
                try:
                    self._lost = not await self._claim_again()
                finally:
                    self._claiming = False
                if self._lost:
                    return
        except Exception as error:  # noqa: BLE001 the lease is still valid, and the commit checks it
            logger.warning("the claim on %s could not be renewed (%s); retrying", self.address.text, error)
        self.storage.renewals.add(self, asyncio.get_running_loop(), self._lease / 3)

    async def _claim_again(self) -> bool:
        """Claim a lease that has expired, and return whether the record is still the one that was loaded.

        A holder whose event loop was blocked goes on, unless another one has claimed or written the record.
        """
        try:
            claimed = await self.storage.perform(Claim(self.address, self._token, self._lease))
        except StepwellError as error:
            logger.warning("the claim on %s has expired and could not be made again (%s)", self.address.text, error)
            return False
        if type(claimed) is not Claimed:
            return False
        version = None if claimed.record is None else claimed.record.version
        if version == self.version and claimed.base == self.base:
            logger.warning(
                "the claim on %s had expired, and nobody has taken it meanwhile, so it goes on; keep blocking calls "
                "out of the event loop", self.address.text,
            )  # fmt: skip
            return True
        return False

    async def _let_go(self) -> None:
        self.storage.renewals.discard(self)
        if self._renewal is not None:
            self._renewal.cancel()
        try:
            if self._holding:
                self._holding = False
                await self.storage.perform(Release(self.address, self._token))
        except (StorageUnavailable, StorageFull) as error:
            # Not a warning: an outage would bring one for each conversation, and the lane sends the release again.
            logger.info("the claim on %s is released after the outage (%s)", self.address.text, error)
        except Exception as error:  # noqa: BLE001 the caller's work has succeeded or has its own error
            logger.warning(
                "the claim on %s could not be released (%s); it ends with its lease", self.address.text, error
            )
        finally:
            leave_queue(self.storage, self.address)
