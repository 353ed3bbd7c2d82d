"""The values that nodes write while they run, in a log beside the run.

Values are gathered: one entry of the log has up to ``MOST`` values of one execution of a step, and is written after
``DELAY`` seconds. What a node has written is stored before the commit of the node.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Final

from stepwell.codec.values import decode, to_json
from stepwell.errors import EncodeError, TooLarge
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
#: Bytes of an entry beside its source and its values.
_ENTRY: Final = 64
_LARGEST: Final = 2**63
#: Values that every storage takes, and values that cannot change.
_SMALL: Final = (int, bool, type(None))
_CONSTANT: Final = (str, float)


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
        self._most = min(_LARGE, storage.limits.item // 2)
        self._mark = mark
        self._is_cleared = False
        self._loop = loop
        #: Distinguishes this runner from those before and after it.
        self._runner = storage.ids()[:8]
        self._lock = threading.Lock()
        self._entries: list[list[Any]] = []
        self._size = 0
        self._turn = asyncio.Lock()
        #: The entries that are being written. After a failure the next write begins with them.
        self._batch: list[list[Any]] = []
        #: Whether these may be stored, because their write failed or was cancelled.
        self._is_unsure = False
        #: The number of the last entry that was stored.
        self._last = 0
        #: Why values were dropped. No node of this runner can be stored without them.
        self._refused: Exception | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._scheduled = False

    def write(self, step: str, attempt: int, value: Any) -> None:
        """Add a value. It is stored soon, and at the latest with the commit of its node.

        Raises ``EncodeError`` or ``TooLarge`` if it cannot be stored.
        """
        source = [step, attempt, self._runner, self._mark]
        size = 20
        if type(value) not in _SMALL or (type(value) is int and not -_LARGEST <= value <= _LARGEST):
            text = self._seal.json(value, self._limits.item - len(to_json(source)) - _ENTRY)
            size = len(text)
            if type(value) not in (*_SMALL, *_CONSTANT):
                # The node may change the value before it is stored, so this is a copy.
                value = decode(text, self._limits.depth)
        with self._lock:
            self._size += size
            last = self._entries[-1] if self._entries else None
            if last is None or last[:-1] != source or len(last[-1]) == MOST or self._size > self._most:
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
            # flush() repeats it if it fails.
            self._writing.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def flush(self) -> None:
        """Store all values, also those of a write in the background that failed."""
        writing, self._writing = self._writing, None
        if writing is not None:
            await asyncio.wait({writing})
        if self._timer is not None:
            self._timer.cancel()
        await self._write()
        if self._refused is not None:
            raise self._refused

    async def _write(self) -> None:
        """Store the values so far. If that fails, they are kept for the next write."""
        # Parallel nodes may end at the same time.
        async with self._turn:
            while await self._write_batch():
                pass

    async def _write_batch(self) -> bool:
        """Store the next entries, and return whether there were any."""
        if not self._batch:
            with self._lock:
                self._batch, self._entries = self._entries, []
                self._scheduled = bool(self._batch)
        if not self._batch:
            return False
        try:
            if not self._is_cleared:
                await self._clear()
            if not (self._is_unsure and await self._is_stored()):
                self._is_unsure = True
                self._last = (await self._log.append(*self._batch))[-1]
        except (EncodeError, TooLarge) as error:
            # The log is full. These values would fail again, and with them all later ones.
            self._refused = error
        except BaseException:
            # Values that come later begin a new write.
            self._scheduled = False
            raise
        self._batch, self._is_unsure = [], False
        return True

    async def _is_stored(self) -> bool:
        """Return whether the write that failed has stored its entries. No other runner writes entries with its name."""
        found = await self._log.read(after=self._last, limit=MOST, reverse=True)
        numbers = [entry.number for entry in found if entry.value[2] == self._runner]
        self._last = max(numbers, default=self._last)
        return bool(numbers)

    async def _clear(self) -> None:
        """Remove the values of an earlier run."""
        last = await self._log.read(limit=1, reverse=True)
        if last and last[0].value[3] != self._mark:
            await self._log.clear()
        self._is_cleared = True
