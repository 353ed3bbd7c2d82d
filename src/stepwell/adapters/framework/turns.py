"""Turns in the application of a framework: what none of its handlers takes becomes part of a turn."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from stepwell.adapters.framework.retry import retry_until_free
from stepwell.adapters.framework.sending import MakeCall, PauseOf, attempt, make_call, sender
from stepwell.engine import masked_text
from stepwell.errors import UsageError
from stepwell.fsm import Update
from stepwell.turns import Turns

__all__ = ["AttachedTurns"]

logger: logging.Logger = logging.getLogger(__name__)


class AttachedTurns:
    """The turns of one application, which gets its updates as Bot API JSON and makes its calls.

    ``make`` makes a call, ``pause_of`` reads its errors, and ``as_json`` its results.
    """

    def __init__(self, turns: Turns) -> None:
        self.turns: Turns = turns
        self._running: AsyncExitStack | None = None
        self._starting = asyncio.Lock()
        self._make: MakeCall | None = None
        self._pause_of: PauseOf | None = None

    async def start(self, client: Any, make: MakeCall, pause_of: PauseOf, as_json: Callable[[Any], Any]) -> None:
        """Run the turns, with the client of the framework as ``turn.bot``. Does nothing if they run."""
        async with self._starting, AsyncExitStack() as stack:
            if self._running is not None:
                return
            self._make, self._pause_of = make, pause_of
            await stack.enter_async_context(
                self.turns.worker(send=sender(make, pause_of), client=client, try_call=attempt(make, pause_of, as_json))
            )
            self._running = stack.pop_all()

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
        await self._make_calls(admission.calls)
        return bool(admission)

    async def _make_calls(self, calls: list[dict[str, Any]]) -> None:
        if calls and (self._make is None or self._pause_of is None):
            raise UsageError("the turns do not run yet; start the application before it gets updates")
        for call in calls:
            assert self._make is not None and self._pause_of is not None
            try:
                await make_call(self._make, self._pause_of, call)
            except Exception as error:  # noqa: BLE001 what the update has changed is stored
                logger.warning("%s failed after its update was taken: %s", call["method"], masked_text(str(error)))
