"""The names of turns for tools: how the record of a conversation is read."""

from stepwell.turns.message import WebUpdate, web_update
from stepwell.turns.record import WORKING_PARTS, State
from stepwell.turns.running.budget import budgets_in
from stepwell.turns.running.transcript import ShownConversation, read_shown
from stepwell.turns.status import status_of

__all__ = [
    "WORKING_PARTS",
    "ShownConversation",
    "State",
    "WebUpdate",
    "budgets_in",
    "read_shown",
    "status_of",
    "web_update",
]
