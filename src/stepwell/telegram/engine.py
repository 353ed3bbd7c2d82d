"""The names of this package for the tools that start bots."""

from stepwell.dispatch.health import HEALTH
from stepwell.telegram.calls.client import TELEGRAM
from stepwell.telegram.receiving.beside import flows_beside, health_of
from stepwell.telegram.receiving.polling import call_at_start, collect_less_often
from stepwell.telegram.receiving.unfinished import drop_aside, retry_aside, updates_aside, updates_in_inbox
from stepwell.telegram.receiving.webhook import Message, Receive, Send

__all__ = [
    "HEALTH",
    "TELEGRAM",
    "Message",
    "Receive",
    "Send",
    "call_at_start",
    "collect_less_often",
    "drop_aside",
    "flows_beside",
    "health_of",
    "retry_aside",
    "updates_aside",
    "updates_in_inbox",
]
