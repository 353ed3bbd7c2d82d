"""Conversations whose ``block=False`` handler still runs, in this process or in another one.

The record of such a conversation has its old state, and the id of the process that runs the handler. That process
holds a claim on its own id, so that others know whether it is alive.
"""

from __future__ import annotations

import asyncio
from typing import Any

from telegram.ext._handlers.conversationhandler import PendingState

from stepwell import Storage
from stepwell.engine import Slot

__all__ = ["PendingElsewhere", "PendingHandlers", "pending_field", "resolve"]


def pending_field(name: str) -> str:
    """Return the field with the conversations of a handler that are pending; its value is a dict of processes."""
    return f"pending.{name}"


class PendingElsewhere(PendingState):
    """The state of a conversation whose handler runs in another process."""

    __slots__ = ()

    def __init__(self, old_state: object) -> None:
        never: Any = None
        super().__init__(task=never, old_state=old_state)

    def done(self) -> bool:
        """Return ``False``: the other process writes the next state."""
        return False


def resolve(pending: PendingState) -> object:
    """Return the next state of a conversation whose handler has ended; ``None`` if there is no conversation."""
    return pending.old_state if pending.task.cancelled() else pending.resolve()


class PendingHandlers:
    """The pending handlers of this process."""

    def __init__(self, storage: Storage) -> None:
        #: The id of this process.
        self.process: str = storage.ids()
        self._storage = storage
        self._running = 0
        self._alive: Slot | None = None
        self._changing = asyncio.Lock()

    async def begin(self, namespace: str) -> None:
        """Tell other processes that this one runs a handler."""
        async with self._changing:
            self._running += 1
            if self._alive is None:
                self._alive = await Slot(self._storage, namespace, ("process", self.process)).__aenter__()

    async def end(self) -> None:
        """Note that a handler has ended."""
        async with self._changing:
            self._running -= 1
            if not self._running and self._alive is not None:
                alive, self._alive = self._alive, None
                await alive.__aexit__(None, None, None)

    async def is_running(self, namespace: str, process: str) -> bool:
        """Return whether another process is alive."""
        beside = await self._storage.beside(self._storage.address(namespace, ("process", process)))
        return beside.holder is not None
