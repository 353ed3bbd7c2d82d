"""The names of conversations for adapters and tools: how they are entered, stored, described and answered."""

from stepwell.fsm.base import Machine
from stepwell.fsm.bot import save_file
from stepwell.fsm.conversation.conversation import Conversation
from stepwell.fsm.conversation.duplicates import HandledUpdates, remembered, token_of
from stepwell.fsm.conversation.extension import (
    EXPIRY,
    TIMEOUT,
    Extension,
    after_end,
    opened_extension,
    set_timer,
    with_kept,
    with_timers,
)
from stepwell.fsm.conversation.framework_objects import as_plain
from stepwell.fsm.conversation.history import HISTORY, entry_times, with_entry
from stepwell.fsm.conversation.parameters import check_parameters
from stepwell.fsm.flows.description import FlowDescription, describe
from stepwell.fsm.flows.diagram import diagram
from stepwell.fsm.refusals import RefusedCall, refused_calls, refused_log, report_refusal, sending
from stepwell.fsm.timers.outbox import leave_calls
from stepwell.fsm.update import Peer
from stepwell.texts import is_unmodified, is_unparsable, without_formatting

__all__ = [
    "EXPIRY",
    "HISTORY",
    "TIMEOUT",
    "Conversation",
    "Extension",
    "FlowDescription",
    "HandledUpdates",
    "Machine",
    "Peer",
    "RefusedCall",
    "after_end",
    "as_plain",
    "check_parameters",
    "describe",
    "diagram",
    "entry_times",
    "is_unmodified",
    "is_unparsable",
    "leave_calls",
    "opened_extension",
    "refused_calls",
    "refused_log",
    "remembered",
    "report_refusal",
    "save_file",
    "sending",
    "set_timer",
    "token_of",
    "with_entry",
    "with_kept",
    "with_timers",
    "without_formatting",
]
