"""The dispatcher of a storage in this process: finds what is due or queued, and calls its owner.

A layer of one's own registers the owners of its timers with ``serve_timers``.
"""

from stepwell.dispatch.dispatcher import Dispatcher, dispatcher_of
from stepwell.dispatch.sources import QueueSource, RecordSource, TaskLimit
from stepwell.dispatch.timers import WAKE, Owner, TimerSource, serve_timers

__all__ = [
    "WAKE",
    "Dispatcher",
    "Owner",
    "QueueSource",
    "RecordSource",
    "TaskLimit",
    "TimerSource",
    "dispatcher_of",
    "serve_timers",
]
