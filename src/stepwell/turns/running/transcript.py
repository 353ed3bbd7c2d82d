"""What turns show, in order, for pages that show a whole conversation.

It is kept for conversations that have had a message from a page. While a turn runs, its steps are parts of the record,
and are written with its other writes. The write that ends the turn replaces them with one part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from json import loads
from typing import Any, Final, TypeAlias

from stepwell import Storage
from stepwell.engine import Address, Get, Range, Seal, Stored
from stepwell.errors import Conflict, StepwellError
from stepwell.turns.base import AttemptBase, TranscriptBase
from stepwell.turns.message import Message
from stepwell.turns.record import (
    WORKING_PARTS,
    Answer,
    OpenQuestion,
    Running,
    State,
    TurnTable,
    WaitingMessage,
    live_prefix,
    message_part,
    table_of,
    transcript_part,
)
from stepwell.turns.running.held import HeldRecord

__all__ = [
    "ShownConversation",
    "Step",
    "TurnTranscript",
    "call_steps",
    "ended_parts",
    "live_steps",
    "read_shown",
    "said_parts",
]

#: The most ended turns that are kept, and the most bytes of one.
MOST_TURNS: Final = 200
LARGEST_TURN: Final = 128 * 1024
#: Seconds in which text is collected before it is written.
PAUSE: Final = 0.15
#: Characters after which another part is begun, so that a write is small however long the answer is.
LONG_PART: Final = 2000
#: The most characters of a value of a tool, and of a text that is too long with its turn.
LONGEST_VALUE: Final = 8000

#: What is named in place of a message without text.
NAMED: Final = ("photo", "video", "voice", "audio", "document", "sticker", "location", "contact", "poll")

#: A text, a call of a tool or its end, a question, another call, or a message of a person.
Step: TypeAlias = dict[str, Any]


class TurnTranscript(TranscriptBase):
    """The steps of one run of a handler. The first write replaces those of an earlier run of the same turn."""

    def __init__(self, attempt: AttemptBase, messages: Sequence[Message]) -> None:
        self._attempt = attempt
        self._prefix = live_prefix(attempt.turn_id)
        self._parts: list[list[Step]] = [[]]
        self._size = 0
        #: The first part that is not written as it is now; ``None`` if all are.
        self._changed: int | None = None
        self._news = asyncio.Event()
        self._stream: object = None
        self.messages(messages)
        self._task: asyncio.Task[None] = asyncio.create_task(self._write_soon(), name="stepwell-turn-transcript")

    @property
    def steps(self) -> list[Step]:
        """All steps so far."""
        return [step for part in self._parts for step in part]

    def messages(self, messages: Iterable[Message]) -> None:
        """Add messages of people: those of the turn, or others that came while it ran."""
        for message in messages:
            self._add(_message_step(message))

    def text(self, stream: object, text: str) -> None:
        """Add text of a stream."""
        begins, self._stream = stream is not self._stream, stream
        text = _clean(text)
        for place in range(0, len(text), LARGEST_TURN):
            piece, last = text[place : place + LARGEST_TURN], self._parts[-1][-1]
            if "text" in last and "user" not in last and not begins and self._size <= LONG_PART:
                last["text"] += piece
                self._note(len(piece))
            else:
                self._add({"text": piece, "begins": begins})
            begins = False

    def call(self, call: Mapping[str, Any]) -> None:
        """Add a call of the Bot API."""
        for step in call_steps([call]):
            self._add(step)

    def tool(self, part: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        given: Any = {"args": list(args), **kwargs} if args else dict(kwargs)
        if len(args) == 1 and not kwargs:
            # Adapters of agent frameworks give all arguments as one, some of them as JSON.
            one = args[0]
            with suppress(ValueError):
                one = loads(one) if isinstance(one, str) and one.startswith("{") else one
            given = one if isinstance(one, Mapping) else given
        self._add({"tool": name, "id": _tool_id(part), "input": self._shown(given)})

    def tool_ended(self, part: str, outcome: str, value: Any, shown: Callable[[Any], Any] | None = None) -> None:
        self._add({"end": _tool_id(part), "outcome": outcome, "value": self._shown(value, shown)})

    def ask(self, question: OpenQuestion, text: str) -> None:
        self._add(
            {
                "ask": question.number, "mark": question.digest, "question": _clean(text),
                "options": list(question.options), "reply": question.reply,
            }
        )  # fmt: skip

    def answered(self, question: OpenQuestion, answer: Answer) -> None:
        if question.reply and answer.choice is not None:
            self._add({"user": update_key(answer.update), "text": answer.choice, "name": answer.name, "at": answer.at})

    def take(self, record: HeldRecord) -> dict[str, str | None]:
        """Return the parts to write with the next write of the turn. If that writes nothing, give them back."""
        first, self._changed = self._changed, None
        self._news.clear()
        if first is None:
            return {}
        names = [f"{self._prefix}{number:06}" for number in range(len(self._parts))]
        earlier = (name for name in record.parts if name.startswith(self._prefix) and name > names[-1])
        changed = zip(names[first:], self._parts[first:], strict=True)
        return {**dict.fromkeys(earlier), **{name: record.seal.seal("p", name, part) for name, part in changed}}

    def give_back(self, taken: Mapping[str, str | None]) -> None:
        """Note that parts were not written."""
        if taken:
            self._changed = min(int(name.rpartition(":")[2]) for name in taken)
            self._news.set()

    def stop(self) -> None:
        """Write nothing more by itself."""
        self._task.cancel()

    async def close(self) -> None:
        """Write nothing more by itself, and wait for the write under way."""
        self.stop()
        await asyncio.wait({self._task})

    def _add(self, step: Step) -> None:
        if self._size > LONG_PART:
            self._parts.append([])
            self._size = 0
        self._parts[-1].append(step)
        self._note(len(str(step)))

    def _note(self, size: int) -> None:
        self._size += size
        place = len(self._parts) - 1
        self._changed = place if self._changed is None else min(self._changed, place)
        self._news.set()

    async def _write_soon(self) -> None:
        pause = 0.0
        while True:
            await self._news.wait()
            await asyncio.sleep(pause)
            pause = PAUSE
            if not self._news.is_set():
                # Another write of the turn has taken them.
                continue
            try:
                await self._attempt.protected(self._attempt.store({}))
            except Conflict:
                return
            except StepwellError:
                # The next write of the turn fails too, or has them.
                pause = 1.0

    def _shown(self, value: Any, shown: Callable[[Any], Any] | None = None) -> Any:
        seal = self._attempt.record.seal
        try:
            value = value if shown is None else shown(value)
            text = seal.json(value, seal.limit)
        except Exception:  # noqa: BLE001 what cannot be shown is no error of the tool
            return type(value).__name__
        return value if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def update_key(update: int | str | None) -> str | None:
    """Return the id of an update as pages know it: the id that a page gave its message, else that of Telegram."""
    return update.removeprefix("web:") if isinstance(update, str) else None if update is None else f"u{update}"


def call_steps(calls: Iterable[Mapping[str, Any]]) -> list[Step]:
    """Return the steps that show calls of the Bot API: those that send something."""
    steps: list[Step] = []
    for call in calls:
        method = str(call.get("method"))
        if method == "sendMessage" and isinstance(call.get("text"), str):
            steps.append({"text": _clean(call["text"]), "begins": True})
        elif method.startswith(("send", "copy", "forward")) and method != "sendChatAction":
            steps.append({"call": method, "params": {k: v for k, v in call.items() if k not in ("method", "chat_id")}})
    return steps


def messages_of(steps: Iterable[Step], turn: Running, *, ended: bool) -> list[Step]:
    """Return the messages of a turn: those of people have ``user``, those of the bot ``parts``."""
    questions = {each.number: each for each in turn.questions}
    messages: list[Step] = []
    tools: dict[str, Step] = {}
    for step in steps:
        if "user" in step:
            messages.append(step)
            continue
        if "end" in step:
            if step["end"] in tools:
                tools[step["end"]] |= {"outcome": step["outcome"], "value": step["value"]}
            continue
        if not messages or "parts" not in messages[-1]:
            messages.append({"parts": []})
        parts: list[Step] = messages[-1]["parts"]
        if "text" in step and parts and "text" in parts[-1] and not step.get("begins"):
            parts[-1] = {"text": parts[-1]["text"] + step["text"]}
        elif "text" in step:
            parts.append({"text": step["text"]})
        elif "ask" in step:
            question = questions.get(step["ask"])
            answer = None if question is None or question.digest != step["mark"] else question.answer
            choice, name = (None, "") if answer is None else (answer.choice, answer.name)
            parts.append({**step, "open": answer is None and not ended, "choice": choice, "name": name})
        else:
            parts.append(dict(step))
            if "tool" in step:
                tools[step["id"]] = parts[-1]
    return messages


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownConversation:
    """What pages show of a conversation: the turns that have ended, the running one, and the messages that wait."""

    state: State
    #: The id of the running turn, and whether it is being stopped.
    turn: str | None
    stopping: bool
    #: The ids of the messages that wait or belong to the running turn, as pages know them.
    ids: frozenset[str | None]
    #: The turns that have ended since the last look, oldest first, and how many have ended until now.
    ended: list[Step]
    number: int
    #: The messages of the running turn, and those that wait.
    running: list[Step]
    waiting: list[Step]


async def read_shown(storage: Storage, address: Address, after: int = 0) -> ShownConversation:
    """Return what pages show of a conversation, of the ended turns those with a number of at least ``after``."""
    stored: Stored | None = await storage.perform(Get(address, WORKING_PARTS))
    seal = storage.seal(address)
    table, parts = table_of(seal, stored), {} if stored is None else stored.parts or {}
    kept: Mapping[str, str] = {}
    if table.transcripts > after:
        last = transcript_part(table.transcripts - 1)
        found: Stored | None = await storage.perform(Get(address, Range(transcript_part(after), last)))
        kept = {} if found is None else found.parts or {}
    turn = table.turn
    steps = [] if turn is None else _stored_steps(seal, parts, turn) or _given(seal, parts, turn.messages)
    return ShownConversation(
        state=table.state, turn=None if turn is None else turn.id, stopping=turn is not None and turn.stop is not None,
        ids=frozenset(map(update_key, table.ids)),
        ended=[seal.value("p", name, text) for name, text in sorted(kept.items())], number=table.transcripts,
        running=[] if turn is None else messages_of(steps, turn, ended=False),
        waiting=_given(seal, parts, table.waiting),
    )  # fmt: skip


def live_steps(record: HeldRecord, turn: Running) -> list[Step]:
    """Return the steps that are stored of a turn whose handler does not run, or its messages if there are none."""
    return _stored_steps(record.seal, record.parts, turn) or _given(record.seal, record.parts, turn.messages)


def _stored_steps(seal: Seal, parts: Mapping[str, str], turn: Running) -> list[Step]:
    names = sorted(name for name in parts if name.startswith(live_prefix(turn.id)))
    return [step for name in names for step in seal.value("p", name, parts[name])]


def _given(seal: Seal, parts: Mapping[str, str], messages: Iterable[WaitingMessage]) -> list[Step]:
    found = [seal.value("p", name, parts[name]) for each in messages if (name := message_part(each.seq)) in parts]
    return [_message_step(Message.of(each["update"], each["at"])) for each in found]


def ended_parts(
    record: HeldRecord, table: TurnTable, turn: Running, steps: Iterable[Step], how: str
) -> dict[str, str | None]:
    """Return the parts that keep what an ended turn has shown. ``table`` is that before its end."""
    messages = messages_of(steps, turn, ended=True)
    return _kept(record.seal, table, {"turn": turn.id, "how": how, "at": record.slot.time(), "messages": messages})


def said_parts(seal: Seal, table: TurnTable, text: str, number: str, now: float) -> dict[str, str | None]:
    """Return the parts that keep a message that belongs to no turn."""
    messages = [{"parts": [{"text": _clean(text)}]}]
    return _kept(seal, table, {"turn": number, "how": "answered", "at": now, "messages": messages})


def _kept(seal: Seal, table: TurnTable, kept: Step) -> dict[str, str | None]:
    part, oldest = transcript_part(table.transcripts), table.transcripts - MOST_TURNS
    text = seal.seal("p", part, kept)
    if len(text) > LARGEST_TURN:
        text = seal.seal("p", part, {**kept, "messages": _cut(kept["messages"])})
    return {part: text, **({transcript_part(oldest): None} if oldest >= 0 else {})}


def _cut(messages: list[Step]) -> list[Step]:
    """Return the texts of messages that are too long to be kept, as far as there is room."""
    room, left = LARGEST_TURN // 8, list[Step]()
    for message in messages:
        text = "\n".join(part.get("text", "") for part in message.get("parts", [message]))
        cut = text if len(text) <= room else f"{text[:room]}…"
        room = max(room - len(text), 0)
        left.append({**message, "text": cut} if "user" in message else {"parts": [{"text": cut}]})
    return left[:1000]


def _message_step(message: Message) -> Step:
    user = message.user
    name = "" if user is None else str(user.first_name or user.id)
    text = message.text or next((f"[{kind}]" for kind in NAMED if message.update.has(kind)), "[message]")
    return {"user": update_key(message.update.update_id), "text": _clean(text), "name": _clean(name), "at": message.at}


def _tool_id(part: str) -> str:
    """Return the id of a call of a tool, by which a page finds it again: it is the same for all runs of the handler."""
    return part.partition(":")[2].replace("#", "")


def _clean(text: str) -> str:
    # A lone surrogate cannot be stored.
    return text.encode("utf-8", "replace").decode()
