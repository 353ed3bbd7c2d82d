"""Wake-ups within this process: a notice of one storage object reaches all listeners of the same store."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Hashable, Iterable
from typing import TypeAlias

from stepwell._secrets import quoted
from stepwell.errors import InvalidOption

__all__ = ["LONGEST_TOPIC", "Callback", "Listener", "add_listener", "call_soon", "check_topic", "has_listeners", "wake"]

logger: logging.Logger = logging.getLogger(__name__)

Callback: TypeAlias = Callable[[], object]
#: A callback with the event loop that calls it.
Listener: TypeAlias = tuple[asyncio.AbstractEventLoop, Callback]

#: The maximum size of a topic, in bytes of UTF-8.
LONGEST_TOPIC = 200

#: The listeners by store and topic, each with its event loop. Loops may run in different threads.
_listeners: dict[tuple[Hashable, str], list[Listener]] = {}
_lock = threading.Lock()


def check_topic(topic: str) -> None:
    """Raise ``InvalidOption`` unless every backend can send this topic."""
    if not isinstance(topic, str) or not 0 < len(topic.encode("utf-8", "replace")) <= LONGEST_TOPIC:
        raise InvalidOption(f"a topic must be a str of 1 to {LONGEST_TOPIC} bytes, not {quoted(topic):.300}")


def add_listener(key: Hashable, topic: str, callback: Callback) -> Callable[[], None]:
    """Call ``callback`` in the running event loop after each ``wake`` of this store and topic, until it is removed."""
    listener = (asyncio.get_running_loop(), callback)
    with _lock:
        _listeners.setdefault((key, topic), []).append(listener)

    def remove() -> None:
        with _lock:
            left = [each for each in _listeners.pop((key, topic), ()) if each is not listener]
            if left:
                _listeners[key, topic] = left

    return remove


def has_listeners(key: Hashable, topic: str) -> bool:
    """Return whether this process listens to a topic."""
    return (key, topic) in _listeners


def wake(key: Hashable, topic: str) -> None:
    """Call the listeners of a store and topic soon, each in its event loop."""
    if (key, topic) not in _listeners:
        return
    with _lock:
        listeners = tuple(_listeners.get((key, topic), ()))
    call_soon(listeners, topic)


def call_soon(listeners: Iterable[Listener], topic: str) -> None:
    """Call these listeners of a topic soon, each in its event loop."""
    for loop, callback in listeners:
        try:
            loop.call_soon_threadsafe(callback)
        except RuntimeError:
            # The loop was closed without removing its listener.
            logger.debug("a listener for %r was left in a closed event loop", topic)
