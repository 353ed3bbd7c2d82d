"""The agent of the tests of turns, and the roles of the processes that run it and send it messages."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from stepwell import Storage
from stepwell.errors import UnknownOutcome
from stepwell.storage import Apply, Operation
from stepwell.turns import Turn, Turns

#: Seconds. Another worker continues the turn of a killed one after them.
LEASE = 3.0
#: Points at which a process can be killed while it runs a turn that asks, pays and answers.
POINTS = (
    "start", "before the question", "behind the question", "asking", "before the intent", "behind the intent",
    "in the tool", "before the result", "behind the result", "before the end", "behind the end", "behind the send",
)  # fmt: skip


def write_line(path: str, *words: Any) -> None:
    """Append one line in one write, as a service that counts does."""
    with Path(path).open("ab", buffering=0) as log:
        log.write(json.dumps(words).encode() + b"\n")


def lines(path: Path) -> list[list[Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def agent(
    storage: Storage,
    paid: Callable[[str], None],
    kill: Callable[[str], None],
    think: Callable[[], Awaitable[None]] | None = None,
    **options: Any,
) -> Turns:
    """Return turns whose handler pays for messages with ``pay``, asks for those with ``ask``, and names its messages.

    ``paid`` is called with each payment, ``kill`` at each point, ``think`` when the handler begins.
    """
    turns = Turns("bot", storage=storage, **{"collect": 0.05, "lease": LEASE, "attempts": 10, **options})

    async def charge(text: str) -> str:
        paid(text)
        kill("in the tool")
        return f"receipt for {text}"

    @turns.handler
    async def answer(turn: Turn) -> None:
        kill("start")
        if think is not None:
            await think()
        if "ask" in turn.text and not await turn.ask("Really?", approvers=[42]):
            turn.answer("You said no.")
            return
        said = []
        if "pay" in turn.text:
            try:
                said.append(await turn.tool(charge, turn.text, replay="never"))
            except UnknownOutcome:
                said.append("unknown")
        ids = " ".join(str(message.update.update_id) for message in turn.messages)
        turn.history.append(ids)
        turn.answer(f"{turn.id} [{ids}] {' '.join(said)}".strip())

    return turns


#: The text of an answer: the id of its turn, the ids of its messages, and what its tool has returned.
ANSWER = re.compile(r"([0-9a-f]+) \[([0-9 ]*)\]\s*(.*)", re.DOTALL)


def answers_in(texts: Iterable[str]) -> dict[str, tuple[list[int], str]]:
    """Return the messages and the result of each turn that was answered. An answer may be sent again, unchanged."""
    found: dict[str, tuple[list[int], str]] = {}
    for text in texts:
        match = ANSWER.fullmatch(text)
        if match is not None:
            ids = [int(number) for number in match[2].split()]
            assert found.setdefault(match[1], (ids, match[3])) == (ids, match[3]), "an answer is always the same"
    return found


class Killing:
    """Kills this process at a point: between the writes of a turn, in its tool, or around its sends."""

    def __init__(self, storage: Storage, point: str | None) -> None:
        self.point = point
        self._perform = storage.perform
        if point is not None:
            storage.perform = self.perform  # type: ignore[method-assign]

    def __call__(self, point: str) -> None:
        if point == self.point:
            os.kill(os.getpid(), signal.SIGKILL)

    def perform(self, operation: Operation) -> Any:
        return self._performed(operation)

    def point_of(self, operation: Operation) -> str | None:
        return point_of(operation)

    async def _performed(self, operation: Operation) -> Any:
        point = self.point_of(operation)
        if point is not None:
            self(f"before the {point}")
        result = await self._perform(operation)
        if point is not None:
            self(f"behind the {point}")
        return result


def point_of(operation: Operation) -> str | None:
    """Return what a write stores."""
    if not isinstance(operation, Apply):
        return None
    written = {name: text for name, text in operation.change.parts.items() if text is not None}
    for name, text in written.items():
        if name.startswith("o:"):
            return "result" if "returned" in text else "intent"
        if name.startswith("q:"):
            return "question"
    dropped = [name for name, text in operation.change.parts.items() if text is None]
    return "end" if any(name.startswith("i:") for name in dropped) else None


async def run_turns(
    storage: Storage, report: Callable[..., None], *, payments: str, sent: str, kill_at: str | None = None,
    options: dict[str, Any] | None = None,
) -> None:  # fmt: skip
    """Run turns until killed, or until SIGTERM."""
    kill = Killing(storage, kill_at)
    turns = agent(storage, partial(write_line, payments, "paid"), kill, **(options or {}))

    async def send(call: dict[str, Any]) -> None:
        write_line(sent, call)
        kill("behind the send")

    asked = asyncio.Event()
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with turns.worker(send=send, drain=0.0):
        report("ready")
        if kill_at == "asking":
            while not asked.is_set():
                await asyncio.sleep(0.01)
                async for _ in turns.conversations("asking"):
                    kill("asking")
        await stopping.wait()
    report("stopped")


async def stream_words(storage: Storage, report: Callable[..., None], *, sent: str) -> None:
    """Run turns that stream some words, until killed."""
    turns = Turns("bot", storage=storage, collect=0.05, lease=LEASE)

    @turns.handler
    async def answer(turn: Turn) -> Any:
        yield turn.id
        for _ in range(5):
            await asyncio.sleep(0.1)
            yield " word"

    async def send(call: dict[str, Any]) -> None:
        write_line(sent, call)

    async with turns.worker(send=send, drain=0.0):
        report("ready")
        await asyncio.Event().wait()


async def send_messages(
    storage: Storage, report: Callable[..., None], *, texts: list[str], first: int, chat: int = 42,
    kill_behind: int | None = None,
) -> None:  # fmt: skip
    """Admit messages, one after the other, as a poller does that has fetched them."""
    turns = Turns("bot", storage=storage, collect=0.05, lease=LEASE)
    for place, text in enumerate(texts):
        await turns.admit(update(first + place, text, chat=chat))
        if place == kill_behind:
            os.kill(os.getpid(), signal.SIGKILL)
        report("admitted", first + place)


def update(number: int, text: str, *, user: int = 42, chat: int = 42) -> dict[str, Any]:
    person = {"id": user, "is_bot": False, "first_name": "Ann"}
    message = {"message_id": number, "date": 0, "chat": {"id": chat, "type": "private"}, "from": person, "text": text}
    return {"update_id": number, "message": message}


def pressed(number: int, card: dict[str, Any], place: int, *, user: int = 42) -> dict[str, Any]:
    person = {"id": user, "is_bot": False, "first_name": "Ann"}
    data = card["reply_markup"]["inline_keyboard"][0][place]["callback_data"]
    shown = {"message_id": 9, "date": 0, "chat": {"id": card["chat_id"], "type": "private"}, "text": card["text"]}
    query = {"id": str(number), "from": person, "chat_instance": "1", "data": data, "message": shown}
    return {"update_id": number, "callback_query": query}
