"""One machine for each bot of a dispatcher."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Final

from stepwell.adapters.framework.client import FrameworkClient
from stepwell.adapters.framework.retry import retry_until_free
from stepwell.engine import Change, ReservedNamespace, Stored
from stepwell.fsm import FSM
from stepwell.fsm.engine import Machine

__all__ = ["BotMachines"]

#: For each name of a machine, which bot uses it without a suffix; the key is that name.
BOTS: Final = ReservedNamespace('"bots"')


class BotMachines:
    """The machines of all bots.

    The first bot that was seen with this storage uses the machine's plain name. The names of the others end with the id
    of the bot.
    """

    def __init__(self, fsm: FSM) -> None:
        self.fsm = fsm
        self._send, self._client = fsm.send, fsm.client
        self._by_bot: dict[int, FSM] = {}
        self._creating = asyncio.Lock()
        self._started: AsyncExitStack | None = None

    async def of(self, bot_id: int, client: FrameworkClient) -> FSM:
        """Return the machine of a bot. Timers answer through the client unless the machine has its own sender."""
        found = self._by_bot.get(bot_id)
        if found is not None:
            return found
        async with self._creating:
            if bot_id not in self._by_bot:
                fsm = self.fsm if await self._claim_plain_name(bot_id) else self.fsm.for_bot(f"{self.fsm.bot}:{bot_id}")
                fsm.send = self._send or client.send
                fsm.client = self._client or client
                if self._started is not None and fsm is not self.fsm:
                    await self._started.enter_async_context(fsm)
                self._by_bot[bot_id] = fsm
        return self._by_bot[bot_id]

    def bot_of(self, fsm: Machine) -> int:
        """Return the id of the bot with this machine."""
        return next(bot_id for bot_id, each in self._by_bot.items() if each is fsm)

    async def start(self, clients: Iterable[FrameworkClient]) -> None:
        """Open the storage, and create the machines of these bots before timers start: a timer may fire immediately."""
        if self._started is not None:
            return
        storage = self.fsm.storage
        # If one machine fails to start, the ones before it are stopped again.
        async with AsyncExitStack() as running:
            if not storage.is_open:
                running.push_async_callback(storage.close)
                await storage.open()
            for client in clients:
                await self.of(client.native.id, client)
            # self.fsm may be the machine of none of these bots; its timers run too.
            for fsm in {id(fsm): fsm for fsm in (self.fsm, *self._by_bot.values())}.values():
                await running.enter_async_context(fsm)
            self._started = running.pop_all()

    async def stop(self) -> None:
        """Stop the timers, and close the storage if ``start()`` opened it."""
        running, self._started = self._started, None
        if running is not None:
            await running.aclose()

    async def _claim_plain_name(self, bot_id: int) -> bool:
        """Return whether this bot has the machine's plain name; reserve the name for it if no bot has."""
        # Stored, because the first bot after a restart may be another one.
        storage = self.fsm.storage
        address = storage.address(BOTS, self.fsm.bot)
        fields = storage.seal(address).fields({"first": bot_id})

        def decide(stored: Stored | None) -> Change | None:
            return None if stored is not None and stored.fields else storage.change(address, set=fields)

        await retry_until_free(lambda: storage.edit(address, decide))
        known = await retry_until_free(lambda: storage.get_data(BOTS, self.fsm.bot))
        return known is not None and bool(known["first"] == bot_id)
