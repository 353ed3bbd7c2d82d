"""Waiters for one address: a FIFO queue in each process, and a turn across processes."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextvars import ContextVar
from time import monotonic
from typing import Any

from stepwell.errors import AlreadyHeld, Busy
from stepwell.record import Address
from stepwell.storage.contract import Storage
from stepwell.storage.operations import Claim, Claimed, Release

__all__ = ["Turn", "WaiterQueue", "held_tokens", "join_queue", "leave_queue", "must_check_turn", "turn_of"]

logger: logging.Logger = logging.getLogger(__name__)

#: Seconds that a process may reuse a key before it checks whether another process waits for it.
CHECK_EVERY = 0.25
#: Seconds between leaving a key and entering it again in which others hardly get it. Waiters poll about as often.
SOON = 0.15
#: Seconds of the lease by which a waiter is the next one across processes, and after which it renews that lease.
TURN_LEASE, TURN_RENEWAL = 0.6, 0.2
#: How many addresses that were left lately are remembered.
MOST_LEFT = 256

#: The tokens of the slots that this task, or the tasks that it was started by, have entered. A task inherits it
#: from the task that starts it. Bounded, because a slot may be left in another task than it was entered in.
held_tokens: ContextVar[tuple[str, ...]] = ContextVar("stepwell_held_tokens", default=())


class WaiterQueue:
    """FIFO queue of local waiters for one address, with its present holder."""

    __slots__ = ("checked_at", "holder", "token", "waiting")

    def __init__(self, holder: asyncio.Task[Any] | None, token: str) -> None:
        self.holder: asyncio.Task[Any] | None = holder
        self.token: str = token
        self.waiting: deque[asyncio.Future[None]] = deque()
        #: When this process got the address, or last checked whether another process waits for it.
        self.checked_at: float = monotonic()


async def join_queue(storage: Storage, address: Address, token: str, wait: float) -> None:
    """Wait in the queue of this process, and become the holder; ``Busy`` after ``wait`` seconds.

    Raises ``AlreadyHeld`` if the holder is this task or one that started it: the holder may be waiting for it.
    """
    task = asyncio.current_task()
    queue: WaiterQueue = storage.queues[address]
    if (queue.holder is task and task is not None) or queue.token in held_tokens.get():
        raise AlreadyHeld(address.text)
    turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    queue.waiting.append(turn)
    try:
        async with asyncio.timeout(wait):
            await turn
    except BaseException as error:
        if turn.done() and not turn.cancelled():
            # The turn came at the same moment: pass it on to the next waiter.
            leave_queue(storage, address)
        elif turn in queue.waiting:
            queue.waiting.remove(turn)
        if isinstance(error, TimeoutError):
            raise Busy(address.text, wait) from None
        raise
    queue.holder, queue.token = task, token


def leave_queue(storage: Storage, address: Address) -> None:
    """Let the next one in, or nothing be left of the queue."""
    queue: WaiterQueue = storage.queues[address]
    while queue.waiting:
        turn = queue.waiting.popleft()
        if not turn.done():
            queue.holder, queue.token = None, ""
            turn.set_result(None)
            return
    del storage.queues[address]
    if storage.shared:
        left = storage.recently_left
        if len(left) >= MOST_LEFT:
            left.clear()
        left[address] = (monotonic(), queue.checked_at)


def must_check_turn(storage: Storage, address: Address) -> bool:
    """Whether the holder must check for a waiter of another process before it claims the address.

    That costs two operations, so it is done once in a while, and only for an address that this process has just left.
    """
    queue: WaiterQueue = storage.queues[address]
    now = monotonic()
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


class Turn:
    """The place at the head of the queue for one address, across processes: a short lease on a second address.

    Only the waiter that has it asks for the address itself. A process that uses the address all the time asks for
    the turn first now and then, so it lets a waiter of another process in. The turn of a waiter that died ends with
    its lease.
    """

    __slots__ = ("_address", "_renewed_at", "_storage", "_token")

    def __init__(self, storage: Storage, address: Address, token: str) -> None:
        self._storage = storage
        self._address = turn_of(address)
        self._token = token
        #: 0 while another waiter has the turn.
        self._renewed_at = 0.0

    async def take(self) -> float:
        """Take or keep the turn; 0, or the seconds for which another waiter has it."""
        asked_at = monotonic()
        if asked_at - self._renewed_at < TURN_RENEWAL:
            return 0.0
        result = await self._storage.perform(Claim(self._address, self._token, TURN_LEASE))
        if type(result) is Claimed:
            self._renewed_at = asked_at
            return 0.0
        self._renewed_at = 0.0
        return float(max(result.remaining, 0.001))

    async def end(self) -> None:
        """Let the next waiter have the turn."""
        if self._renewed_at:
            self._renewed_at = 0.0
            try:
                await self._storage.perform(Release(self._address, self._token))
            except Exception as error:  # noqa: BLE001 it ends with its lease in a moment
                logger.debug("a place in the queue for a key could not be released (%s)", error)


def turn_of(address: Address) -> Address:
    """The address whose lease is the turn of another: no key is encoded like this."""
    return Address(address.namespace, f"{address.key} waiting")
