"""aiogram 3: keep its FSM in a Stepwell storage, or use Stepwell's conversations in its handlers."""

from stepwell.adapters.aiogram.adapter import (
    ContextFilter,
    StepwellIsolation,
    StepwellStorage,
    fsm_flow,
    fsm_in_flow,
    fsm_state,
    setup,
)

__all__ = [
    "ContextFilter",
    "StepwellIsolation",
    "StepwellStorage",
    "fsm_flow",
    "fsm_in_flow",
    "fsm_state",
    "setup",
]
