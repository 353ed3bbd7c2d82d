"""Opening and closing a storage, in one event loop and one process at a time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Hashable
from types import TracebackType
from typing import Any, Self

from stepwell._portal import background_loop
from stepwell.errors import StorageClosed, WrongLoop
from stepwell.record import Address, Limits
from stepwell.storage.base.facade import Facade
from stepwell.storage.base.sweeper import Sweeper
from stepwell.storage.transport.lane import Lane, retrieve
from stepwell.storage.transport.notices import NoticeChannel, Outbox

__all__ = ["Lifecycle"]


class Lifecycle(Facade):
    """Opens and closes a storage; the base of ``Storage``."""

    _sweeper: Sweeper

    def __init__(self, *, limits: Limits | None, ids: Callable[[], str] | None) -> None:
        super().__init__(limits=limits, ids=ids)
        #: The local waiters for each address. Used by ``slot``.
        self.waiters: dict[Address, Any] = {}
        #: The event loop in which it was opened; ``None`` while it is closed.
        self.loop: asyncio.AbstractEventLoop | None = None
        #: The id of the process that opened it.
        self._process = 0
        #: ``close()`` was called, and ``open()`` not since then.
        self._closed = False
        self._opening: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._lanes: dict[Hashable, Lane] = {}
        #: Exchanges notices with other processes. Set by backends with a server.
        self._channel: NoticeChannel | None = None
        self._outbox = Outbox()

    async def _open(self) -> None:
        """Connect and prepare. Called once before the first ``run``."""

    async def _close(self) -> None:
        """Release the resources that ``_open`` acquired."""

    @property
    def is_open(self) -> bool:
        """Whether it is open."""
        return self.loop is not None

    @property
    def foreign_loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop in which it is open if that one runs in another thread of this process, else ``None``."""
        loop = self.loop
        if loop is None or loop is asyncio._get_running_loop() or self._process != os.getpid():
            return None
        return loop if loop.is_running() else None

    async def open(self) -> None:
        """Connect and prepare. Calls on an open storage do nothing.

        The first operation opens a new storage too. After ``close()`` only this method opens it again.

        Raises ``WrongLoop`` if it is open in another event loop, and ``StorageClosed`` if it is closed meanwhile.
        """
        loop = asyncio.get_running_loop()
        self._closed = False
        while self.loop is not loop:
            pending = self._closing or self._opening
            if self.loop is not None and self._process != os.getpid():
                raise WrongLoop(forked=True)
            if pending is not None and pending.get_loop().is_closed():
                self._closing = self._opening = pending = None
            owner = self.loop if pending is None else pending.get_loop()
            if owner is not None and owner is not loop and not owner.is_closed():
                raise WrongLoop
            if pending is None:
                pending = self._opening = loop.create_task(self._begin(), name="stepwell-open")
                pending.add_done_callback(retrieve)
            # The cancellation of one caller must not affect the others.
            await asyncio.shield(pending)
            if self._closed:
                raise StorageClosed

    async def ensure_open(self) -> None:
        """Open the storage for an operation, or raise ``StorageClosed`` if it was closed."""
        if self._closed:
            raise StorageClosed
        await self.open()

    def allow_reopen(self) -> None:
        """Let the next operation open the storage even after ``close()``."""
        self._closed = False

    async def _begin(self) -> None:
        try:
            if self.loop is not None:
                # The loop that opened it is closed, and its tasks have ended with it.
                self.loop, self._lanes = None, {}
                self.waiters.clear()
                self._outbox.reset()
                if self._channel is not None:
                    self._channel.reset()
                await self._close()
            await self._open()
            self.loop, self._process = asyncio.get_running_loop(), os.getpid()
            self._sweeper.start()
            if self._channel is not None:
                self._channel.start()
        finally:
            self._opening = None

    async def close(self) -> None:
        """Finish pending operations, then close connections, threads and files. Calls on a closed storage do nothing.

        Later operations raise ``StorageClosed``, until ``open()`` or ``async with`` opens it again.

        Raises ``WrongLoop`` if it is open in another event loop, unless that is the library's background loop.
        """
        loop = asyncio.get_running_loop()
        background = self.foreign_loop
        if background is not None and background is background_loop():
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.close(), background))
            return
        for owner in (self.loop, *(task.get_loop() for task in (self._opening, self._closing) if task is not None)):
            if owner is not None and owner is not loop and not owner.is_closed():
                raise WrongLoop
        self._closed = True
        if self._opening is not None:
            await asyncio.wait([self._opening])
        if self._closing is None and self.loop is not None:
            self._closing = loop.create_task(self._end(), name="stepwell-close")
            self._closing.add_done_callback(retrieve)
        if self._closing is not None:
            await asyncio.shield(self._closing)

    async def _end(self) -> None:
        try:
            self.loop = None
            await self._sweeper.stop()
            while self._lanes:
                # A lane may pass operations on to a new one.
                lanes, self._lanes = self._lanes, {}
                for lane in lanes.values():
                    await lane.close()
            await self._outbox.close()
            if self._channel is not None:
                await self._channel.close()
            await self._close()
        finally:
            self._closing = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
