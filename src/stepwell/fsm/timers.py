"""Timers: a state that lasts too long moves on by itself, on exactly one worker.

A deadline lives in the record. Whoever claims the record after it applies the timeout: a worker's tick, or
the next update if it is quicker. The claim and the second look at the deadline make it happen once.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from typing import TYPE_CHECKING, Any

from stepwell.codec import decode_key, encode_namespace
from stepwell.errors import Busy, StepwellError, StorageError
from stepwell.fsm.context import Context
from stepwell.fsm.update import Update
from stepwell.record import Address
from stepwell.slot import Slot
from stepwell.storage import Due

if TYPE_CHECKING:
    from stepwell.fsm.machine import FSM

__all__ = ["Timers", "is_due", "time_out"]

logger = logging.getLogger(__name__)

#: Seconds between two looks at the deadlines.
TICK = 0.5
#: How many timers one worker fires at the same time.
AT_ONCE = 32
PAGE = 200
#: Short, so that the timers of a worker that dies are soon free for another; renewed while a handler runs.
LEASE = 1.0
#: Seconds before one that could not be fired is tried again: the first pause, and the longest.
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0


def is_due(slot: Slot) -> bool:
    """The deadline of a held record has come."""
    return slot.deadline is not None and slot.deadline <= slot.now


async def time_out(fsm: FSM, slot: Slot) -> list[dict[str, Any]]:
    """Apply the timeout of a held record's state, write it, and go on holding; the calls that it makes.

    A state that has no timeout in this release only loses its deadline.
    """
    flow = None if slot.flow is None else fsm.flows.get(slot.flow)
    timeout = None if flow is None or slot.state is None else flow.timeouts.get(slot.state)
    ctx = Context(fsm, Update.of(None), decode_key(slot.address.key), slot, collects=True)
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
        await fsm.finish(ctx)
        await fsm.write(ctx, slot, keep=True, deadline_passed=True)
        return ctx.calls
    finally:
        ctx.close()


class Timers:
    """The background task of one worker."""

    def __init__(self, fsm: FSM) -> None:
        self._fsm = fsm
        self._task: asyncio.Task[None] | None = None
        #: Those that are being fired now.
        self._running: dict[Address, asyncio.Task[bool]] = {}
        #: Those that could not be fired: how often, and not before when (loop time).
        self._pauses: dict[Address, tuple[int, float]] = {}

    def start(self) -> None:
        """Begin to look for deadlines, if any flow has timeouts."""
        if self._task is None and any(flow.timeouts for flow in self._fsm.flows.values()):
            self._task = asyncio.get_running_loop().create_task(self._run(), name="stepwell-timers")

    async def stop(self) -> None:
        """End it. A timer that is being fired is either committed or stays due."""
        task, self._task = self._task, None
        ending = [*self._running.values(), *([] if task is None else [task])]
        for each in ending:
            each.cancel()
        if ending:
            await asyncio.wait(ending)

    async def tick(self) -> int:
        """Fire all that is due now, and wait for it; how many were fired."""
        return sum(await asyncio.gather(*await self._start_due()))

    async def _run(self) -> None:
        while True:
            try:
                # Not waited for: a handler that takes its time holds up its own key only.
                await self._start_due()
            except StorageError as error:
                # Timers wait in the storage: nothing is lost while it is away.
                logger.warning("timers cannot be read: %s", error)
            except StepwellError:
                logger.exception("timers are switched off in this process")
                return
            await asyncio.sleep(TICK * random.uniform(0.8, 1.2))

    async def _start_due(self) -> list[asyncio.Task[bool]]:
        storage = self._fsm.storage
        namespace = encode_namespace(self._fsm.bot, storage.limits)
        started: list[asyncio.Task[bool]] = []
        seen: set[Address] = set()
        last: Due | None = None
        while page := await storage.due(namespace, limit=PAGE, after=last):
            last = page[-1]
            seen.update(due.address for due in page)
            ready = [due.address for due in page if not self._pausing(due.address)]
            # Workers that look at the same page begin at different places.
            random.shuffle(ready)
            for address in ready:
                if address in self._running:
                    continue
                while len(self._running) >= AT_ONCE:
                    await asyncio.wait(self._running.values(), return_when=asyncio.FIRST_COMPLETED)
                started.append(self._start(address))
            if len(page) < PAGE:
                break
        self._pauses = {address: pause for address, pause in self._pauses.items() if address in seen}
        return started

    def _start(self, address: Address) -> asyncio.Task[bool]:
        task = asyncio.get_running_loop().create_task(self._fire(address), name="stepwell-timer")
        self._running[address] = task
        task.add_done_callback(lambda _: self._running.pop(address, None))
        return task

    async def _fire(self, address: Address) -> bool:
        fsm = self._fsm
        try:
            key = decode_key(address.key)
            async with Slot(fsm.storage, fsm.bot, key, wait=0, lease=min(LEASE, fsm.lease)) as slot:
                if not is_due(slot):
                    return False
                if not fsm.catch_up(slot):
                    self._pause(address)
                    return False
                calls = await time_out(fsm, slot)
        except Busy:
            # Its holder applies the timeout with the next update, or the next tick does.
            return False
        except Exception:
            logger.exception("the timeout at %s failed; it is tried again", address.text)
            self._pause(address)
            return False
        self._pauses.pop(address, None)
        await fsm.deliver(calls)
        return True

    def _pausing(self, address: Address) -> bool:
        return address in self._pauses and self._pauses[address][1] > asyncio.get_running_loop().time()

    def _pause(self, address: Address) -> None:
        times = self._pauses.get(address, (0, 0.0))[0]
        pause = min(FIRST_PAUSE * 2**times, LONGEST_PAUSE)
        self._pauses[address] = (times + 1, asyncio.get_running_loop().time() + pause)
