"""Waiters for one address: a FIFO queue in each process, and a turn across processes."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextvars import ContextVar
from time import monotonic
from typing import Any

from stepwell.errors import AlreadyHeld, Busy
from stepwell.record import TURN, Address
from stepwell.storage.contract import Storage
from stepwell.storage.operations import Claim, Claimed, Release

__all__ = ["ClaimTurn", "WaiterQueue", "held_tokens", "join_queue", "leave_queue", "must_check_turn", "turn_of"]

logger: logging.Logger = logging.getLogger(__name__)

#: Seconds that a process may reuse a key before it checks whether another process waits for it.
CHECK_EVERY = 0.25
#: A process that enters a key again within these seconds may starve waiters of other processes, which poll about as
#: often.
SOON = 0.15
#: The lease of a turn, and the age at which its waiter renews it, in seconds.
TURN_LEASE, TURN_RENEWAL = 0.6, 0.2
#: The maximum number of addresses in ``recently_left``.
MOST_LEFT = 256

#: The tokens of the slots that this task and the tasks that started it have entered. A task inherits it from the task
#: that starts it. It is bounded, because a slot may be exited in another task.
held_tokens: ContextVar[tuple[str, ...]] = ContextVar("stepwell_held_tokens", default=())


class WaiterQueue:
    """FIFO queue of local waiters for one address, and its current holder."""

    __slots__ = ("checked_at", "holder", "token", "waiting")

    def __init__(self, holder: asyncio.Task[Any] | None, token: str, now: float) -> None:
        self.holder: asyncio.Task[Any] | None = holder
        self.token: str = token
        #: Made for the first waiter: most addresses have none.
        self.waiting: deque[asyncio.Future[None]] | None = None
        #: The time when this process got the address, or last checked whether another process waits for it.
        self.checked_at: float = now


async def join_queue(storage: Storage, address: Address, token: str, wait: float) -> None:
    """Wait in the queue of this process, and become the holder. Raises ``Busy`` after ``wait`` seconds.

    Raises ``AlreadyHeld`` if the holder is this task or a task that started it, because that may be a deadlock.
    """
    task = asyncio.current_task()
    queue: WaiterQueue = storage.waiters[address]
    if (queue.holder is task and task is not None) or queue.token in held_tokens.get():
        raise AlreadyHeld(address.text)
    turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    if queue.waiting is None:
        queue.waiting = deque()
    queue.waiting.append(turn)
    try:
        async with asyncio.timeout(wait):
            await turn
    except BaseException as error:
        if turn.done() and not turn.cancelled():
            # The turn came at the same moment. Pass it on to the next waiter.
            leave_queue(storage, address)
        elif turn in queue.waiting:
            queue.waiting.remove(turn)
        if isinstance(error, TimeoutError):
            raise Busy(address.text, wait) from None
        raise
    queue.holder, queue.token = task, token


def leave_queue(storage: Storage, address: Address) -> None:
    """Wake the next waiter, or remove the queue if there is none."""
    queue: WaiterQueue = storage.waiters[address]
    while queue.waiting:
        turn = queue.waiting.popleft()
        if not turn.done():
            queue.holder, queue.token = None, ""
            turn.set_result(None)
            return
    del storage.waiters[address]
    if storage.shared:
        left = storage.recently_left
        if len(left) >= MOST_LEFT:
            left.clear()
        left[address] = (monotonic(), queue.checked_at)


def must_check_turn(storage: Storage, address: Address, now: float) -> bool:
    """Return whether the holder must check for a waiter of another process before it claims the address.

    ``now``: the time on the monotonic clock. The check costs two operations. So it is done only occasionally, for an
    address that this process has just left.
    """
    queue: WaiterQueue = storage.waiters[address]
    left = storage.recently_left.pop(address, None)
    if left is not None:
        left_at, checked_at = left
        if now - left_at > SOON:
            return False
        queue.checked_at = checked_at
    if now - queue.checked_at < CHECK_EVERY:
        return False
    queue.checked_at = now
    return True


class ClaimTurn:
    """The right to claim an address next, across processes: a short lease on a second address.

    Only the waiter with the turn polls the address. A process that reuses an address takes the turn first now and
    then, so that a waiter of another process gets the address. The turn of a dead waiter ends with its lease.
    """

    __slots__ = ("_address", "_renewed_at", "_storage", "_token")

    def __init__(self, storage: Storage, address: Address, token: str) -> None:
        self._storage = storage
        self._address = turn_of(address)
        self._token = token
        #: 0 while another waiter has the turn.
        self._renewed_at = 0.0

    async def take(self) -> float:
        """Take or renew the turn. Return 0, or the seconds until the turn of another waiter ends."""
        now = monotonic()
        if now - self._renewed_at < TURN_RENEWAL:
            return 0.0
        result = await self._storage.perform(Claim(self._address, self._token, TURN_LEASE))
        if type(result) is Claimed:
            self._renewed_at = now
            return 0.0
        self._renewed_at = 0.0
        return float(max(result.remaining, 0.001))

    async def end(self) -> None:
        """Release the turn."""
        if self._renewed_at:
            self._renewed_at = 0.0
            try:
                await self._storage.perform(Release(self._address, self._token))
            except Exception as error:  # noqa: BLE001 its short lease will expire
                logger.debug("the turn at %s could not be released (%s)", self._address.text, error)


def turn_of(address: Address) -> Address:
    """Return the address whose lease is the turn for another."""
    return Address(address.namespace, address.key + TURN)
