"""The public names of the adapters and the local Bot API."""

from __future__ import annotations

import subprocess
import sys

import stepwell.adapters.aiogram
import stepwell.adapters.ptb
import stepwell.adapters.telebot
import stepwell.playground.botapi


def test_the_aiogram_adapter_exports_just_these_names() -> None:
    assert sorted(stepwell.adapters.aiogram.__all__) == [
        "ContextFilter", "StepwellIsolation", "StepwellStorage", "fsm_flow", "fsm_in_flow", "fsm_state", "setup",
        "without_isolation",
    ]  # fmt: skip


def test_the_adapter_of_python_telegram_bot_exports_just_these_names() -> None:
    assert sorted(stepwell.adapters.ptb.__all__) == [
        "ConversationFilter", "ConversationHandler", "StepwellPersistence", "confirm_handled", "fsm_flow",
        "fsm_in_flow", "fsm_of", "fsm_state", "setup",
    ]  # fmt: skip


def test_the_adapter_of_telebot_exports_just_these_names() -> None:
    assert sorted(stepwell.adapters.telebot.__all__) == [
        "AsyncStepwellStateStorage", "StepwellStateStorage", "confirm_handled", "fsm_of", "setup",
    ]  # fmt: skip


def test_the_local_bot_api_exports_just_these_names() -> None:
    assert sorted(stepwell.playground.botapi.__all__) == [
        "Bot", "BotAPI", "Person", "Refusal", "Room", "World", "WorldEvent",
    ]  # fmt: skip


def test_the_local_bot_api_needs_no_framework() -> None:
    code = (
        "import sys; from stepwell.playground.botapi import BotAPI; "
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "starlette" in loaded
    assert not {"aiogram", "telegram", "telebot", "pydantic", "apsw"} & set(loaded)
