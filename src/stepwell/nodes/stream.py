"""Streams: the values that the nodes of a run write, read in any process while the run goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any, Final, NamedTuple

from stepwell._secrets import quoted
from stepwell.errors import StorageUnavailable, UnknownRun
from stepwell.log import Log, LogEntry
from stepwell.nodes.run import monitor
from stepwell.nodes.run.notices import ends_of
from stepwell.nodes.run.streams import MOST, log_of
from stepwell.options import check_whole
from stepwell.storage import Storage

__all__ = ["StreamEntry", "follow", "sse"]

#: Seconds between two reads of the status of a run.
POLL: Final = 1.0
_ENDED: Final = ("finished", "failed", "cancelled", "stuck")


class StreamEntry(NamedTuple):
    """A value that a node has written.

    Example::

        async for entry in flow.stream("order-42"):
            print(entry.number, entry.value)
    """

    #: Grows from value to value, not always by one. Pass the last one as ``after`` to continue.
    number: int
    value: Any
    #: ``flow_id/node/visit/item``, as ``Step.id``.
    step: str
    #: Changes when the step begins again, after an error or on another worker. The values of the step before that are
    #: void.
    execution: str


async def follow(storage: Storage, flow_id: str, after: int) -> AsyncGenerator[StreamEntry]:
    """Yield the values of a run with numbers above ``after``, until the run has ended."""
    check_whole(after, "after must be the number of a value, or 0, not {}", least=0)
    await storage.ensure_open()
    log = log_of(storage, flow_id)
    marks: dict[str, bool] = {}

    async def is_current(entry: LogEntry) -> bool:
        """Return whether an entry is of this run, not of an earlier one with the same id."""
        mark = entry.value[3]
        if mark not in marks:
            # A run stores its mark before its first node begins.
            marks[mark] = await monitor.mark_of(storage, flow_id) in (mark, None)
        return marks[mark]

    ended = asyncio.Event()
    watching = asyncio.create_task(_watch(storage, flow_id, log, ended))
    try:
        async with aclosing(_until(log, after, ended, is_current)) as entries:
            async for entry in entries:
                yield entry
        # Raises UnknownRun.
        await watching
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await watching


async def _until(
    log: Log, after: int, ended: asyncio.Event, is_current: Callable[[LogEntry], Awaitable[bool]]
) -> AsyncGenerator[StreamEntry]:
    """Yield all values, and those that come until ``ended`` is set."""
    position = after
    async with aclosing(log.follow(after=max(position // MOST - 1, 0))) as entries:
        waiting: asyncio.Task[Any] | None = None
        end = asyncio.create_task(ended.wait())
        try:
            while True:
                waiting = asyncio.ensure_future(anext(entries))
                await asyncio.wait([waiting, end], return_when=asyncio.FIRST_COMPLETED)
                if not waiting.done():
                    break
                entry = waiting.result()
                if not await is_current(entry):
                    continue
                for each in _values(entry, position):
                    position = each.number
                    yield each
        finally:
            end.cancel()
            if waiting is not None and not waiting.done():
                waiting.cancel()
                with suppress(asyncio.CancelledError):
                    await waiting
    # All values were stored before the run ended.
    for entry in await log.read(after=max(position // MOST - 1, 0)):
        if await is_current(entry):
            for each in _values(entry, position):
                position = each.number
                yield each


def _values(entry: LogEntry, after: int) -> list[StreamEntry]:
    step, attempt, runner, _, values = entry.value
    execution = f"{runner}/{attempt}"
    entries = [StreamEntry(entry.number * MOST + at, value, step, execution) for at, value in enumerate(values)]
    return [entry for entry in entries if entry.number > after]


async def _watch(storage: Storage, flow_id: str, log: Log, ended: asyncio.Event) -> None:
    """Set ``ended`` when the run has ended; raise ``UnknownRun`` if there is neither a run nor a value."""
    try:
        with ends_of(storage, flow_id) as wait:
            while True:
                try:
                    if (await monitor.status(storage, flow_id)).status in _ENDED:
                        return
                except UnknownRun:
                    # A run that is not kept is removed when it has finished.
                    if not await log.last():
                        raise
                    return
                except StorageUnavailable as error:
                    # The log is followed again after an outage too.
                    if error.final:
                        raise
                await wait(POLL)
    finally:
        ended.set()


async def sse(entries: AsyncIterator[StreamEntry], *, heartbeat: float = 15.0) -> AsyncIterator[str]:
    """Yield server-sent events for a browser: a value as JSON each, with its number as the event's id.

    A browser that reconnects sends the last id in the header ``Last-Event-ID``; pass it as ``after``. The last event
    has the name ``end``: close the ``EventSource`` then. If there is no such run, it is the only event, and its data
    has an ``error``. When the ``execution`` of a ``step`` changes, it has begun again: remove what you show of it.
    Without values a comment is sent every ``heartbeat`` seconds::

        async def tokens(request):
            after = int(request.headers.get("last-event-id", 0))
            stream = flow.stream(request.path_params["run"], after=after)
            return StreamingResponse(sse(stream), media_type="text/event-stream")
    """
    waiting: asyncio.Future[StreamEntry] = asyncio.ensure_future(anext(entries))
    try:
        while True:
            done, _ = await asyncio.wait([waiting], timeout=heartbeat)
            if not done:
                yield ": still running\n\n"
                continue
            try:
                entry = waiting.result()
            except (StopAsyncIteration, UnknownRun) as end:
                # Without this event, a browser would ask again and again for a run that does not exist.
                about = {"error": f"there is no run {quoted(end.flow_id)}"} if isinstance(end, UnknownRun) else {}
                yield f"event: end\ndata: {json.dumps(about)}\n\n"
                return
            body = {"value": entry.value, "step": entry.step, "execution": entry.execution}
            # A line break inside the data would end it; JSON has none.
            yield f"id: {entry.number}\ndata: {json.dumps(body, default=str)}\n\n"
            waiting = asyncio.ensure_future(anext(entries))
    finally:
        waiting.cancel()
        with suppress(asyncio.CancelledError, StopAsyncIteration, Exception):
            await waiting
        if hasattr(entries, "aclose"):
            await entries.aclose()
