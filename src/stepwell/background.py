"""One event loop in one background thread, for callers that have none."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Awaitable
from typing import TypeVar

from stepwell.errors import InsideLoop, UsageError

__all__ = ["sync"]

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def sync(awaitable: Awaitable[T]) -> T:
    """Run an awaitable to its end on the library's one background loop, and return its result.

    For Flask, Django and scripts. What is opened through it belongs to that loop and goes on
    living there between calls. Inside a running loop it raises: there, ``await`` it.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        if asyncio.iscoroutine(awaitable):
            awaitable.close()
        raise InsideLoop
    if not inspect.isawaitable(awaitable):
        raise UsageError(f"sync() takes an awaitable, such as sync(storage.get_state(bot, key)), got {awaitable!r}")
    ended = threading.Event()
    future = asyncio.run_coroutine_threadsafe(_awaited(awaitable, ended), _background_loop())
    try:
        return future.result()
    except BaseException:
        # Ctrl-C in the caller's thread must not leave the work running behind its back, nor cut its clean-up short.
        if future.cancel():
            ended.wait()
        raise


async def _awaited(awaitable: Awaitable[T], ended: threading.Event) -> T:
    try:
        return await awaitable
    finally:
        ended.set()


def _background_loop() -> asyncio.AbstractEventLoop:
    global _loop
    with _lock:
        if _loop is None or not _loop.is_running():
            loop = asyncio.new_event_loop()
            running = threading.Event()
            loop.call_soon(running.set)
            threading.Thread(target=loop.run_forever, name="stepwell-loop", daemon=True).start()
            running.wait()
            _loop = loop
        return _loop


def _forget() -> None:
    global _lock, _loop
    _lock, _loop = threading.Lock(), None


if hasattr(os, "register_at_fork"):
    # A forked child has the loop, but not the thread that runs it.
    os.register_at_fork(after_in_child=_forget)
