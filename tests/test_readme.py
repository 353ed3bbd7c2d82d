"""The README keeps its word: twenty quick messages, a bot that runs, a flow that resumes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiogram import Bot, Dispatcher
from aiogram.client.session.aiohttp import AiohttpSession
from aiogram.client.telegram import TelegramAPIServer

from stepwell.botapi import BotAPI
from tests.docs.page import ROOT, snippets

README = (ROOT / "README.md").read_text()
FILES = {snippet.title: snippet.text for snippet in snippets(README) if snippet.title}
SOURCES = {"PYTHONPATH": str(ROOT / "src")}


@asynccontextmanager
async def polling(dispatcher: Dispatcher, bot: Bot) -> AsyncIterator[None]:
    task = asyncio.create_task(dispatcher.start_polling(bot, handle_signals=False, polling_timeout=2))
    try:
        yield
    finally:
        await dispatcher.stop_polling()
        await task


async def test_aiogram_answers_1_twenty_times_and_two_changed_lines_answer_1_to_20(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    snippet = next(each for each in snippets(README) if "Dispatcher" in each.text)
    names: dict[str, Any] = {}
    exec(snippet.text, names)
    numbers: dict[str, list[str]] = {}
    for name in ("before", "after"):
        names[name].include_router(names["counter"]())
        async with BotAPI() as api:
            account = api.bot("my_bot")
            chat = api.chat(account)
            for number in range(20):
                await chat.send(f"message {number}")
            session = AiohttpSession(api=TelegramAPIServer.from_base(api.url))
            async with polling(names[name], Bot(account.token, session=session)):
                numbers[name] = [await chat.answer() for _ in range(20)]
    assert numbers["before"] == ["1"] * 20
    assert numbers["after"] == [str(number) for number in range(1, 21)]
    await names["storage"].close()


async def test_the_bot_runs_by_stepwell_run(tmp_path: Path) -> None:
    (tmp_path / "bot.py").write_text(FILES["bot.py"])
    async with BotAPI() as api:
        account = api.bot("my_bot")
        command = [sys.executable, "-m", "stepwell", "run", "bot.py"]
        environment = {**os.environ, **SOURCES, "BOT_TOKEN": account.token, "BOT_API": api.url}
        process = await asyncio.create_subprocess_exec(
            *command, cwd=tmp_path, env=environment, stdout=asyncio.subprocess.DEVNULL
        )
        try:
            chat = api.chat(account)
            await chat.send("/register")
            assert await chat.answer(timeout=60) == "Name?"
            await chat.send("Alice")
            assert await chat.answer(timeout=60) == "Email?"
        finally:
            process.kill()
            await process.wait()


def test_the_flow_continues_after_a_crash_without_running_its_first_node_again(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(FILES["flow.py"])
    crash = (
        "import asyncio, os, flow\n"
        "flow.Write.post = lambda *_: os._exit(9)\n"
        "asyncio.run(flow.flow.run({}, flow_id='report-42', if_exists='resume', keep=True))"
    )
    environment = {**os.environ, **SOURCES}
    run = {"cwd": tmp_path, "env": environment, "text": True, "stdout": subprocess.PIPE}
    first = subprocess.run([sys.executable, "-u", "-c", crash], **run)
    assert (first.returncode, first.stdout) == (9, "researching\n")
    second = subprocess.run([sys.executable, "flow.py"], **run)
    assert (second.returncode, second.stdout) == (0, "{'notes': 'notes', 'report': 'a report from notes'}\n")


@pytest.mark.parametrize("name", ["agent.py", "bot.py", "flow.py"])
def test_the_files_of_the_readme_are_short(name: str) -> None:
    assert len([line for line in FILES[name].splitlines() if line.strip()]) < 20


@pytest.mark.parametrize("name", ["agent.py", "bot.py"])
def test_the_agent_and_the_wizard_fit_beside_each_other(name: str) -> None:
    assert max(map(len, FILES[name].splitlines())) <= 50
