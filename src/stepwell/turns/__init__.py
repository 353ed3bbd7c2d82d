"""Turns: messages are collected, and answered by an agent that may be slow, stopped and killed."""

from stepwell.errors import UnknownOutcome
from stepwell.turns.admission import Admission
from stepwell.turns.control import Decided
from stepwell.turns.events import MessageTaken, TurnEnded, TurnEvent, TurnStarted, subscribe
from stepwell.turns.history import History
from stepwell.turns.message import Message
from stepwell.turns.running.budget import Budget, BudgetStatus, Price, Usage, person
from stepwell.turns.running.question import Decision
from stepwell.turns.running.stream import Stream
from stepwell.turns.running.tools import current_turn, tool
from stepwell.turns.running.turn import Turn
from stepwell.turns.status import FailedTurn, QuestionStatus, ToolStatus, TurnStatus
from stepwell.turns.turns import Turns

__all__ = [
    "Admission",
    "Budget",
    "BudgetStatus",
    "Decided",
    "Decision",
    "FailedTurn",
    "History",
    "Message",
    "MessageTaken",
    "Price",
    "QuestionStatus",
    "Stream",
    "ToolStatus",
    "Turn",
    "TurnEnded",
    "TurnEvent",
    "TurnStarted",
    "TurnStatus",
    "Turns",
    "UnknownOutcome",
    "Usage",
    "current_turn",
    "person",
    "subscribe",
    "tool",
]
