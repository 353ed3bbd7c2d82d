"""Cancel a task at one of its awaits."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any


class _CancelledAt:
    def __init__(self, work: Coroutine[Any, Any, Any], point: int) -> None:
        self._work, self._point = work, point

    def __await__(self) -> Generator[Any, Any, Any]:
        waiting = self._work.__await__()
        number = 0
        send: Any = lambda: waiting.send(None)  # noqa: E731
        while True:
            try:
                future = send()
            except StopIteration as stop:
                return stop.value
            number += 1
            if number == self._point:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            try:
                yield future
            except BaseException as error:
                send = lambda error=error: waiting.throw(error)  # noqa: E731
            else:
                send = lambda: waiting.send(None)  # noqa: E731


async def cancel_at(work: Coroutine[Any, Any, Any], point: int) -> bool:
    """Run it in a task that is cancelled at its ``point``-th wait; return whether it was cancelled."""

    async def run() -> None:
        await _CancelledAt(work, point)

    result = (await asyncio.gather(asyncio.create_task(run()), return_exceptions=True))[0]
    if isinstance(result, asyncio.CancelledError):
        return True
    if result is not None:
        raise result
    return False
