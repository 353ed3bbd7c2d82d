"""Those of this process who want one address, in the order of their calls."""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import ContextVar
from typing import Any

from stepwell.errors import AlreadyHeld, Busy
from stepwell.record import Address
from stepwell.storage.contract import Storage

__all__ = ["Line", "enter_line", "held_tokens", "leave_line"]

#: After so many hand-overs inside this process, another process gets a chance, for so many seconds.
HAND_OVERS, CHANCE = 8, 0.005


#: The tokens of the slots that this task, or the tasks that it was started by, have entered. A task inherits it
#: from the task that starts it. Bounded, because a slot may be left in another task than it was entered in.
held_tokens: ContextVar[tuple[str, ...]] = ContextVar("stepwell_held_tokens", default=())


class Line:
    """Those of this process who want one address, in the order of their calls."""

    __slots__ = ("handed_over", "holder", "token", "waiting")

    def __init__(self, holder: asyncio.Task[Any] | None, token: str) -> None:
        self.holder = holder
        self.token = token
        self.waiting: deque[asyncio.Future[None]] = deque()
        self.handed_over = 0


async def enter_line(storage: Storage, address: Address, token: str, wait: float) -> None:
    """Wait behind those who are there, and become the holder; ``Busy`` after so many seconds.

    Raises ``AlreadyHeld`` if the holder is this task or one that started it: the holder may be waiting for it.
    """
    task = asyncio.current_task()
    line: Line = storage.lines[address]
    if (line.holder is task and task is not None) or line.token in held_tokens.get():
        raise AlreadyHeld(address.text)
    turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    line.waiting.append(turn)
    try:
        async with asyncio.timeout(wait):
            await turn
    except BaseException as error:
        if turn.done() and not turn.cancelled():
            # Our turn came in the same moment: it goes to the next.
            leave_line(storage, address)
        elif turn in line.waiting:
            line.waiting.remove(turn)
        if isinstance(error, TimeoutError):
            raise Busy(address.text, wait) from None
        raise
    line.holder, line.token = task, token
    if line.handed_over >= HAND_OVERS and storage.shared:
        line.handed_over = 0
        try:
            # Somebody in another process may be polling for this address.
            await asyncio.sleep(CHANCE)
        except BaseException:
            leave_line(storage, address)
            raise


def leave_line(storage: Storage, address: Address) -> None:
    """Let the next one in, or nothing be left of the line."""
    line: Line = storage.lines[address]
    while line.waiting:
        turn = line.waiting.popleft()
        if not turn.done():
            line.holder, line.token = None, ""
            line.handed_over += 1
            turn.set_result(None)
            return
    del storage.lines[address]
