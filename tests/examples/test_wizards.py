"""The registration, with and without Form, in a test and with ``stepwell run``."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from examples import wizard
from examples.cookbook import registration
from stepwell import State
from stepwell.botapi import BotAPI
from stepwell.fsm import Router
from stepwell.testing import Chat
from tests.telegram.test_run_command import command

BAD_EMAIL = "Please send an email address, such as alice@example.com."


def chat_with(module: ModuleType) -> Chat:
    if hasattr(module, "make_router"):
        return Chat(module.make_router)

    def make_router(storage: Any) -> Router:
        router: Router = module.router
        assert router.fsm is not None
        router.fsm.move_to(storage)
        return router

    return Chat(make_router)


@pytest.mark.parametrize(("module", "lines"), [(wizard, 60), (registration, 45)])
def test_it_is_short(module: ModuleType, lines: int) -> None:
    assert len(Path(str(module.__file__)).read_text().splitlines()) <= lines


@pytest.mark.parametrize("module", [wizard, registration])
async def test_the_whole_wizard(module: ModuleType) -> None:
    chat = chat_with(module)
    assert await chat.send("/register") == ["What's your name?"]
    assert await chat.send("Alic") == ["What's your email?"]
    assert await chat.send("/back") == ["What's your name?"]
    assert await chat.send("Alice") == ["What's your email?"]
    assert await chat.send("nowhere") == [BAD_EMAIL]
    assert await chat.advance(599) == []
    assert (await chat.advance(1))[0].startswith("Are you still there?")
    await chat.send("alice@example.com")
    assert chat.buttons[0] == "Confirm"
    assert (await chat.press("Confirm"))[-1] == "Registered! Welcome, Alice!"
    assert (await chat.record() or State()) == State()


@pytest.mark.parametrize("module", [wizard, registration])
@pytest.mark.parametrize("pressed", [True, False])
async def test_cancel(module: ModuleType, pressed: bool) -> None:
    chat = chat_with(module)
    for text in ("/register", "Alice", "alice@example.com"):
        await chat.send(text)
    assert await (chat.press("Cancel") if pressed else chat.send("/cancel")) == ["Cancelled."]
    assert await chat.record() is None


@pytest.mark.parametrize("module", [wizard, registration])
async def test_it_runs_by_stepwell_run(module: ModuleType, tmp_path: Path) -> None:
    options = ("--storage", f"sqlite:///{tmp_path / 'wizard.db'}")
    async with BotAPI() as api:
        bot = api.bot("wizard_bot")
        arguments = ("run", str(module.__file__), "--api", api.url, *options)
        async with command(*arguments, folder=tmp_path, BOT_TOKEN=bot.token) as run:
            await run.until("is running")
            alice = api.chat(bot)
            assert await alice.ask("/register", timeout=60) == "What's your name?"
            assert await alice.ask("Alice", timeout=60) == "What's your email?"
            assert await alice.ask("nowhere", timeout=60) == BAD_EMAIL
            await alice.ask("alice@example.com", timeout=60)
            await alice.press("Confirm")
            assert await alice.answer(timeout=60) == "Registered! Welcome, Alice!"
