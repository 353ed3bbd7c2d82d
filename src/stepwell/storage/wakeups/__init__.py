"""Wake-ups: between the tasks of this process, and between processes over a server."""

from stepwell.storage.wakeups.local import (
    LONGEST_TOPIC,
    Callback,
    Listener,
    add_listener,
    call_soon,
    check_topic,
    has_listeners,
    wake,
)

__all__ = [
    "LONGEST_TOPIC",
    "Callback",
    "Listener",
    "add_listener",
    "call_soon",
    "check_topic",
    "has_listeners",
    "wake",
]
