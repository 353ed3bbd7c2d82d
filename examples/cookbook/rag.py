"""An agent that answers from the files that people send, with the passages that it has used.

stepwell play rag.py

The index is a full-text table of SQLite. A script plays the model and quotes the best passage; put yours in its place.
"""

import asyncio
import os
import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from typing import NamedTuple

from stepwell import Storage
from stepwell.fsm import Router
from stepwell.turns import Turn, Turns


class Passage(NamedTuple):
    file: str
    text: str


class Library:
    """The passages of all files, by chat. All processes of the bot need the same file."""

    def __init__(self, path: str) -> None:
        self.path = path
        with closing(sqlite3.connect(path)) as db, db:
            table = "fts5(chat UNINDEXED, file UNINDEXED, text, tokenize = 'porter')"
            db.execute(f"CREATE VIRTUAL TABLE IF NOT EXISTS passages USING {table}")

    def add(self, chat: int, file: str, content: str) -> int:
        """Index a file by its paragraphs, in place of an earlier one of this name, and return their number."""
        passages = [part.strip() for part in re.split(r"\n\s*\n", content) if part.strip()]
        with closing(sqlite3.connect(self.path)) as db, db:
            db.execute("DELETE FROM passages WHERE chat = ? AND file = ?", (chat, file))
            db.executemany("INSERT INTO passages VALUES (?, ?, ?)", [(chat, file, each) for each in passages])
        return len(passages)

    def find(self, chat: int, question: str, most: int = 3) -> list[Passage]:
        """Return the passages of a chat that fit a question best."""
        words = " OR ".join(f'"{word}"' for word in re.findall(r"\w{3,}", question))
        query = "SELECT file, text FROM passages WHERE passages MATCH ? AND chat = ? ORDER BY rank LIMIT ?"
        with closing(sqlite3.connect(self.path)) as db:
            return [Passage(*row) for row in db.execute(query, (words, chat, most))] if words else []


async def model(question: str, passages: list[Passage]) -> AsyncIterator[str]:
    """Answer a question from passages, piece by piece."""
    answer = f"{passages[0].text}\n\nFrom {passages[0].file}" if passages else "Your files do not tell."
    for piece in re.split("(?<= )", answer):
        await asyncio.sleep(0.05)
        yield piece


def make_router(storage: Storage | str, index: str | None = None) -> Router:
    library = Library(index or os.environ.get("RAG_INDEX", "rag-index.db"))
    turns = Turns("rag", storage=storage, collect=1.0)

    @turns.handler
    async def answer(turn: Turn) -> None:
        assert turn.chat is not None
        chat, questions = turn.chat.id, []

        async def read(file_id: str, name: str) -> int | None:
            content: bytes = await turn.bot.download(file_id)
            try:
                return await asyncio.to_thread(library.add, chat, name, content.decode())
            except UnicodeDecodeError:
                return None

        for message in turn.messages:
            if document := message.event.get("document"):
                name = document.get("file_name", "file")
                # Reading a file twice leaves the same index, so a call that a crash has interrupted runs again.
                count = await turn.tool(read, document["file_id"], name, replay="safe")
                turn.answer(f"{name} is no text." if count is None else f"I have read {name}. Passages: {count}")
            if message.text:
                questions.append(message.text)
        if questions:
            question = "\n".join(questions)
            passages = await asyncio.to_thread(library.find, chat, question)
            async with turn.stream() as out:
                async for piece in model(question, passages):
                    out.write(piece)

    return turns.as_router()
