"""Turns in the application of a framework: what none of its handlers takes becomes part of a turn."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from typing import Any

from stepwell.adapters.framework.client import FrameworkClient
from stepwell.adapters.framework.retry import retry_until_free
from stepwell.errors import BotApiError, BotUnavailable, UsageError
from stepwell.fsm import Update
from stepwell.fsm.engine import report_refusal
from stepwell.turns import Turns

__all__ = ["AttachedTurns"]

logger: logging.Logger = logging.getLogger(__name__)

#: After the start, turns begin when no update has come for so many seconds, at the latest after some more.
QUIET, CATCH_UP = 2.0, 5.0


class AttachedTurns:
    """The turns of one application, which gets its updates as Bot API JSON and makes its calls."""

    def __init__(self, turns: Turns) -> None:
        self.turns: Turns = turns
        self._running: AsyncExitStack | None = None
        self._starting = asyncio.Lock()
        self._client: FrameworkClient | None = None
        #: Lets turns begin; ``None`` if they do. And when they begin at the latest.
        self._releasing: asyncio.TimerHandle | None = None
        self._give_up = 0.0

    async def start(self, client: FrameworkClient) -> None:
        """Run the turns with this client. Does nothing if they run."""
        async with self._starting, AsyncExitStack() as stack:
            if self._running is not None:
                return
            self._client = client
            # The rest of an album may be under way, or wait at Telegram.
            self._give_up = asyncio.get_running_loop().time() + CATCH_UP
            self.turns.hold(lambda address: True)
            stack.callback(self._release)
            self._release_later()
            await stack.enter_async_context(self.turns.worker(send=client.send, client=client))
            self._running = stack.pop_all()

    def _release_later(self) -> None:
        """Begin turns when no update has come for a while."""
        if self._releasing is not None:
            self._releasing.cancel()
        loop = asyncio.get_running_loop()
        self._releasing = loop.call_at(min(loop.time() + QUIET, self._give_up), self._release)

    def _release(self) -> None:
        if self._releasing is not None:
            self._releasing.cancel()
            self._releasing = None
            self.turns.hold(None)

    async def stop(self) -> None:
        """Leave the turns that still run after a while to the next process."""
        running, self._running = self._running, None
        if running is not None:
            await running.aclose()

    def is_control(self, raw: dict[str, Any]) -> bool:
        """Return whether an update stops a turn or answers a question."""
        return self.turns.is_control(Update.of(raw))

    async def control(self, raw: dict[str, Any]) -> bool:
        """Do what such an update tells, and return whether it is for no other handler."""
        update = Update.of(raw)
        calls = await retry_until_free(lambda: self.turns.control(update))
        await self._make_calls(calls or [])
        return calls is not None

    async def admit(self, raw: dict[str, Any]) -> bool:
        """Take an update that no handler has taken, and return whether it belongs to a turn. It is stored then."""
        admission = await retry_until_free(lambda: self.turns.admit(raw))
        if self._releasing is not None:
            self._release_later()
        await self._make_calls(admission.calls)
        return bool(admission)

    async def _make_calls(self, calls: list[dict[str, Any]]) -> None:
        for call in calls:
            if self._client is None:
                raise UsageError("the turns do not run yet; start the application before it gets updates")
            try:
                await self._client.send(call)
            except BotUnavailable as error:
                # What the update has changed is stored.
                logger.warning("a call was not sent after its update was taken: %s", error)
            except BotApiError as error:
                await report_refusal(logger, call, error, bot=(self.turns.storage, self.turns.bot))
