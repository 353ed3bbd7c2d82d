"""The public names of the adapters."""

from __future__ import annotations

import stepwell.adapters.aiogram
import stepwell.adapters.ptb
import stepwell.adapters.telebot


def test_the_aiogram_adapter_exports_just_these_names() -> None:
    assert sorted(stepwell.adapters.aiogram.__all__) == [
        "ContextFilter", "StepwellIsolation", "StepwellStorage", "album", "attach_turns", "fsm_flow", "fsm_in_flow",
        "fsm_state", "setup", "without_isolation",
    ]  # fmt: skip


def test_the_adapter_of_python_telegram_bot_exports_just_these_names() -> None:
    assert sorted(stepwell.adapters.ptb.__all__) == [
        "ConversationFilter", "ConversationHandler", "StepwellPersistence", "album", "attach_turns",
        "confirm_handled", "fsm_flow", "fsm_in_flow", "fsm_of", "fsm_state", "setup",
    ]  # fmt: skip


def test_the_adapter_of_telebot_exports_just_these_names() -> None:
    assert sorted(stepwell.adapters.telebot.__all__) == [
        "AsyncStepwellStateStorage", "StepwellStateStorage", "confirm_handled", "fsm_of", "setup",
    ]  # fmt: skip
