"""Conversations: flows, keys, filters and the machine that keeps them."""

from stepwell.errors import (
    Busy,
    DuplicateUpdate,
    LeaseLost,
    NoKeyError,
    TransitionError,
    UnknownFlowError,
)
from stepwell.fsm import keys
from stepwell.fsm.context import Context
from stepwell.fsm.description import StateName, UnreachableState
from stepwell.fsm.events import (
    Committed,
    ConversationExpired,
    DuplicateReceived,
    FSMEvent,
    HandlerFailed,
    MachineReady,
    StateEntered,
    TimerFired,
    UpdateReceived,
    subscribe,
)
from stepwell.fsm.filters import (
    Filter,
    callback,
    command,
    fsm_flow,
    fsm_in_flow,
    fsm_state,
    kind,
    text,
)
from stepwell.fsm.flow import Flow, state
from stepwell.fsm.machine import FSM
from stepwell.fsm.router import Router
from stepwell.fsm.update import Update

__all__ = [
    "FSM",
    "Busy",
    "Committed",
    "Context",
    "ConversationExpired",
    "DuplicateReceived",
    "DuplicateUpdate",
    "FSMEvent",
    "Filter",
    "Flow",
    "HandlerFailed",
    "LeaseLost",
    "MachineReady",
    "NoKeyError",
    "Router",
    "StateEntered",
    "StateName",
    "TimerFired",
    "TransitionError",
    "UnknownFlowError",
    "UnreachableState",
    "Update",
    "UpdateReceived",
    "callback",
    "command",
    "fsm_flow",
    "fsm_in_flow",
    "fsm_state",
    "keys",
    "kind",
    "state",
    "subscribe",
    "text",
]
