"""One machine for each bot that a framework runs, and what happens around a handler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from stepwell.adapters.aiogram.patience import patiently
from stepwell.fsm import FSM, Context
from stepwell.record import ReservedNamespace
from stepwell.slot import Slot

__all__ = ["Machines", "Send", "conversation"]

Send = Callable[[dict[str, Any]], Awaitable[Any]]

#: Which bot has a machine's own name, with that name as key.
BOTS: Final = ReservedNamespace('"bots"')


class Machines:
    """The first bot that ever used a machine's name keeps it; every further one has its id behind that name."""

    def __init__(self, fsm: FSM) -> None:
        self.fsm = fsm
        self._send = fsm.send
        self._of: dict[int, FSM] = {}
        self._naming = asyncio.Lock()
        self._running: AsyncExitStack | None = None

    async def of(self, bot_id: int, send: Send) -> FSM:
        """The machine of a bot; ``send`` is for what timers answer, unless the machine has its own."""
        found = self._of.get(bot_id)
        if found is not None:
            return found
        async with self._naming:
            if bot_id not in self._of:
                fsm = self.fsm if await self._is_first(bot_id) else self.fsm.for_bot(f"{self.fsm.bot}:{bot_id}")
                fsm.send = self._send or send
                if self._running is not None and fsm is not self.fsm:
                    await self._running.enter_async_context(fsm)
                self._of[bot_id] = fsm
        return self._of[bot_id]

    async def start(self, bots: Mapping[int, Send]) -> None:
        """Open the storage, and run the timers; a timer that fires at once knows whom to answer through."""
        if self._running is not None:
            return
        storage = self.fsm.storage
        # What was entered is left again if the next one fails.
        async with AsyncExitStack() as running:
            if not storage.is_open:
                running.push_async_callback(storage.close)
                await storage.open()
            for bot_id, send in bots.items():
                await self.of(bot_id, send)
            for fsm in {id(fsm): fsm for fsm in (self.fsm, *self._of.values())}.values():
                await running.enter_async_context(fsm)
            self._running = running.pop_all()

    async def stop(self) -> None:
        """End the timers, and close what was opened."""
        running, self._running = self._running, None
        if running is not None:
            await running.aclose()

    async def _is_first(self, bot_id: int) -> bool:
        """Remembered in the storage: it must not depend on which bot happens to be first today."""
        storage, name = self.fsm.storage, self.fsm.bot
        known = await patiently(lambda: storage.get_data(BOTS, name))
        if not known:
            async with AsyncExitStack() as stack:
                slot = await patiently(lambda: stack.enter_async_context(Slot(storage, BOTS, name)))
                slot.data.setdefault("first", bot_id)
                known = dict(slot.data)
                await slot.commit()
        return bool(known["first"] == bot_id)


@asynccontextmanager
async def conversation(fsm: FSM, update: Any) -> AsyncIterator[Context]:
    """A conversation that is entered with patience and collects calls."""
    async with AsyncExitStack() as stack:
        yield await patiently(lambda: stack.enter_async_context(fsm.open(update, collects=True)))
