"""A place in a queue as one text, whose order is that of the queue: name, priority and time.

Backends with ordered indexes store this text. The name ends with a newline, which is less than every character of a
name, so names are in order too. Higher priorities have smaller numbers.
"""

from __future__ import annotations

from stepwell.record import Queue

__all__ = ["END", "key_of", "queue_of", "queue_text", "time_text"]

#: ``name + END`` is greater than all places in the queue of this name, and less than the next name.
END = "\x0b"
_LOWEST = (1 << 31) - 1
#: Hex digits of the priority and of the time.
_PRIORITY, _TIME = 8, 14


def queue_text(queue: Queue) -> str:
    """Return a place in a queue without its time."""
    return f"{queue.name}\n{_LOWEST - queue.priority:0{_PRIORITY}x}"


def time_text(now: float) -> str:
    """Return the time of entering a queue, which follows ``queue_text``: microseconds as 14 hex digits."""
    return f"{int(now * 1e6):0{_TIME}x}"


def key_of(entry: str) -> str:
    """Return the key that follows the time in an entry of an index, from which the name was removed."""
    return entry[_PRIORITY + _TIME :]


def queue_of(text: str | None) -> Queue | None:
    """Return the queue of a stored place. Raises ``ValueError`` if the text is damaged."""
    if text is None:
        return None
    name, _, place = text.partition("\n")
    return Queue(name, _LOWEST - int(place[:_PRIORITY], 16))
