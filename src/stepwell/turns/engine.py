"""The names of turns for tools: how the record of a conversation is read."""

from stepwell.turns.record import WORKING_PARTS, State
from stepwell.turns.status import status_of

__all__ = ["WORKING_PARTS", "State", "status_of"]
