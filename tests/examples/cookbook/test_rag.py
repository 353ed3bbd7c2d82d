"""The agent over files: what it reads, what it quotes, and that a file is indexed once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from examples.cookbook import rag
from stepwell.botapi import BotAPI
from stepwell.fsm import Router
from stepwell.testing import Chat
from tests.examples.cookbook.running import running

NOTES = b"Green tea is brewed at 80 degrees.\n\nBlack tea is brewed at 95 degrees.\n\nThe shop opens at nine."


@pytest.fixture
def index(tmp_path: Path) -> str:
    return str(tmp_path / "index.db")


@pytest.fixture
def make_router(index: str) -> Callable[[Any], Router]:
    return lambda storage: rag.make_router(storage, index)


def document(chat: Chat, name: str, content: bytes = NOTES) -> dict[str, Any]:
    return {"document": {"file_id": chat.file(content), "file_name": name}}


async def test_a_file_that_a_person_sends_is_downloaded_and_quoted(tmp_path: Path, index: str) -> None:
    async with BotAPI() as api:
        bot = api.bot("rag_bot")
        alice = api.chat(bot)
        async with running(rag.make_router(f"sqlite:///{tmp_path}/rag.db", index), api, bot):
            await alice.send_document(NOTES, name="tea.txt")
            assert await alice.answer(timeout=60) == "I have read tea.txt. Passages: 3"
            answer = await alice.ask("When does the shop open?", timeout=60)
            assert answer == "The shop opens at nine.\n\nFrom tea.txt"


async def test_each_chat_has_its_own_files(make_router: Callable[[Any], Router]) -> None:
    async with Chat(make_router) as chat:
        assert await chat.ask(**document(chat, "tea.txt")) == ["I have read tea.txt. Passages: 3"]
        assert await chat.ask("How hot is BLACK tea?") == ["Black tea is brewed at 95 degrees.\n\nFrom tea.txt"]
        assert await chat.user(43).ask("How hot is black tea?") == ["Your files do not tell."]
        assert await chat.ask("?") == ["Your files do not tell."]


@pytest.mark.parametrize("point", ["start", "in tool", "behind tool", "before end"])
async def test_killed_while_it_reads_it_answers_and_each_passage_is_there_once(
    point: str, make_router: Callable[[Any], Router], index: str
) -> None:
    async with Chat(make_router) as chat:
        chat.kill_next(point)
        await chat.ask(caption="How hot is green tea?", **document(chat, "tea.txt"))
        assert await chat.advance(30) == [
            "I have read tea.txt. Passages: 3", "Green tea is brewed at 80 degrees.\n\nFrom tea.txt",
        ]  # fmt: skip
    assert len(rag.Library(index).find(42, "tea brewed degrees", most=10)) == 2


async def test_a_newer_file_of_the_same_name_replaces_the_older_one(make_router: Callable[[Any], Router]) -> None:
    async with Chat(make_router) as chat:
        await chat.ask(**document(chat, "tea.txt"))
        await chat.ask(**document(chat, "tea.txt", b"Black tea is brewed at 90 degrees."))
        assert await chat.ask("black tea") == ["Black tea is brewed at 90 degrees.\n\nFrom tea.txt"]
        assert await chat.ask(**document(chat, "photo.jpg", b"\xff\xd8\xff")) == ["photo.jpg is no text."]
