"""The values that nodes write while they run, in a log beside the run.

Values are gathered: one entry of the log has up to ``MOST`` values of one execution of a step, and is written after
``DELAY`` seconds. What a node has written is stored before the commit of the node.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Final

from stepwell.codec.values import decode
from stepwell.log import Log
from stepwell.record import DAY, STREAMS
from stepwell.storage import Storage

__all__ = ["MOST", "StreamWriter", "log_of"]

#: Values of one entry. The number of a value is the number of its entry times this, plus its place in the entry.
MOST: Final = 1000
#: Seconds that a value waits for others.
DELAY: Final = 0.05
#: Seconds after the last value of a run.
TTL: Final = 7 * DAY
#: Characters of the values of one entry. The storage limits the size of an entry.
_LARGE: Final = 200_000
_LEAVES: Final = (str, int, float, bool, type(None))


def log_of(storage: Storage, flow_id: str) -> Log:
    """Return the log of a run's values."""
    return Log(storage, STREAMS, flow_id, ttl=TTL)


class StreamWriter:
    """Gathers the values of one run. ``write`` may be called in any thread.

    ``mark`` distinguishes the run from an earlier one with the same id, whose values are removed.
    """

    def __init__(self, storage: Storage, flow_id: str, mark: str, loop: asyncio.AbstractEventLoop) -> None:
        self._log = log_of(storage, flow_id)
        self._seal = storage.seal(self._log.address)
        self._limits = storage.limits
        self._mark = mark
        self._is_cleared = False
        self._loop = loop
        #: Distinguishes this runner from those before and after it.
        self._runner = storage.ids()[:8]
        self._lock = threading.Lock()
        self._entries: list[list[Any]] = []
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._scheduled = False

    def write(self, step: str, attempt: int, value: Any) -> None:
        """Add a value. It is stored soon, and at the latest with the commit of its node.

        Raises ``EncodeError`` or ``TooLarge`` if it cannot be stored.
        """
        size = len(value) if type(value) is str else 20
        if type(value) not in _LEAVES:
            # The node may change the value before it is stored, so this is a copy.
            text = self._seal.json(value, self._limits.item)
            value, size = decode(text, self._limits.depth), len(text)
        source = [step, attempt, self._runner, self._mark]
        with self._lock:
            self._size += size
            last = self._entries[-1] if self._entries else None
            if last is None or last[:-1] != source or len(last[-1]) == MOST or self._size > _LARGE:
                self._size = size
                self._entries.append([*source, [value]])
            else:
                last[-1].append(value)
            scheduled, self._scheduled = self._scheduled, True
        if not scheduled:
            self._loop.call_soon_threadsafe(self._schedule)

    def _schedule(self) -> None:
        self._timer = self._loop.call_later(DELAY, self._begin)

    def _begin(self) -> None:
        if self._writing is None or self._writing.done():
            self._writing = self._loop.create_task(self._write())
            # flush() raises its error.
            self._writing.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def flush(self) -> None:
        """Store all values. Raises the error of a write in the background."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            await writing
        if self._timer is not None:
            self._timer.cancel()
        await self._write()

    async def _write(self) -> None:
        while True:
            with self._lock:
                entries, self._entries = self._entries, []
                self._scheduled = bool(entries)
            if not entries:
                return
            try:
                if not self._is_cleared:
                    await self._clear()
                await self._log.append(*entries)
            except BaseException:
                # flush() raises it. Values that come later begin a new write.
                self._scheduled = False
                raise

    async def _clear(self) -> None:
        """Remove the values of an earlier run."""
        last = await self._log.read(limit=1, reverse=True)
        if last and last[0].value[3] != self._mark:
            await self._log.clear()
        self._is_cleared = True
