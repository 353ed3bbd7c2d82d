"""One conversation of one person on a page: what they send, and what they see of it."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, Final, NamedTuple, TypeAlias

from stepwell.engine import Address
from stepwell.errors import StorageClosed, StorageError
from stepwell.turns import Admission, Turns
from stepwell.turns.engine import ShownConversation, WebUpdate, read_shown, web_update
from stepwell.web.ui_messages import Diverged, StreamedMessage, answer_id, open_questions, ui_messages

__all__ = ["Chunks", "Visitor", "WebConversation"]

#: Seconds between two reads without a notice: where other processes can send notices, and where not.
LOOK, LOOK_WITHOUT_NOTICES = 1.0, 0.2
#: As the number of the first ended turn to read: none.
NO_ENDED: Final = 10**12
#: Seconds between two lines that keep a connection open.
HEARTBEAT: Final = 15.0
#: Seconds after the end of a turn in which a page that has lost its connection may still get its answer.
REPLAYED: Final = 300.0
#: The id of an approval: the turn, the number and the mark of a question.
_APPROVAL: Final = re.compile(r"(\w+):([0-9]{1,9}):(\w+)")
_DIVERGED = "The answer was begun again after an interruption. Please load it again."


#: Finds the message of a stream among those of a turn: its place, or that of the next one.
PlaceOf: TypeAlias = Callable[[list[dict[str, Any]]], int | None]
#: Chunks of the UI message stream; ``None`` keeps the connection open.
Chunks: TypeAlias = AsyncGenerator[dict[str, Any] | None, None]


class Visitor(NamedTuple):
    """Who uses a page.

    Example::

        def user(request):
            return Visitor(42, "Ann")
    """

    #: The id, as ``turn.user.id`` has it.
    id: int | str
    #: The name for other people, as ``turn.user.first_name`` has it.
    name: str = ""


class _Target(NamedTuple):
    """The message of the bot that a stream shows."""

    message: dict[str, Any]
    complete: bool
    #: How its turn has ended: ``answered``, ``stopped`` or ``failed``; ``None`` while it runs.
    how: str | None


class WebConversation:
    """A conversation of one person."""

    def __init__(self, turns: Turns, person: Visitor, chat: str, *, tools: bool) -> None:
        self._turns, self._person, self._tools = turns, person, tools
        # 42 and "42" may be two people.
        self._chat = {"id": f"web:{chat}:{json.dumps(person.id, ensure_ascii=False)}", "type": "private"}
        self._from = {"id": person.id, "is_bot": False, "first_name": person.name or str(person.id)}
        #: Its key; ``None`` if the turns have none for this person.
        self.key: Any = turns.conversation_of(self._update("", ""))

    @property
    def address(self) -> Address:
        """The address of its record."""
        return self._turns.address(self.key)

    async def send(self, number: str, text: str) -> Admission:
        """Take a message. One with the same id was taken before."""
        return await self._turns.admit(self._update(number, text))

    async def stop(self) -> dict[str, bool]:
        """Stop the running turn."""
        return {"stopped": await self._turns.stop(self.key)}

    async def decide(self, approval: str, choice: str | None, *, approved: bool | None = None) -> str | None:
        """Answer a question; return why the answer was not taken.

        ``choice``: an option. ``approved``: the first one or not, which says all if there are two.
        """
        asked = _APPROVAL.fullmatch(approval)
        shown = await self.read(NO_ENDED)
        parts = (part for each in self._running(shown) for part in each["parts"])
        found = next((part for part in parts if part.get("approval", {}).get("id") == approval), None)
        if asked is None or found is None:
            return "This question is closed."
        options = found["input"]["options"]
        if approved is not None and (len(options) == 2 or choice not in options):
            # The reason for a refusal may be the name of the first option.
            choice = options[0] if approved else options[1] if len(options) == 2 else None
        if choice not in options or (approved is False and choice == options[0]):
            return "This is no option of the question."
        turn, number, mark = asked.groups()
        data = f"turn:{turn}:{number}:{options.index(choice)}:{mark}"
        query = {"id": "web", "from": self._from, "message": {"chat": self._chat}, "data": data}
        for call in (await self._turns.admit(web_update({"update_id": None, "callback_query": query}))).calls:
            if call.get("text"):
                return str(call["text"])
        return None

    async def read(self, after: int = 0) -> ShownConversation:
        """Return what a page shows, of the ended turns those from a number on."""
        return await read_shown(self._turns.storage, self.address, after)

    async def messages(self) -> list[dict[str, Any]]:
        """Return all messages, also the one that is being written."""
        shown = await self.read()
        found = [each for kept in _last_of(shown.ended) for each in self._ended(kept)]
        return [*found, *self._running(shown), *self._waiting(shown)]

    async def follow(self, after: int = 0) -> AsyncGenerator[ShownConversation | None, None]:
        """Yield what a page shows now and after each change; ``None`` if there was none for a while.

        The reader is never behind: what has changed while it was slow is one change.
        """
        storage, news, last = self._turns.storage, asyncio.Event(), None
        every = LOOK if storage.notices_reach_processes else LOOK_WITHOUT_NOTICES
        loop = asyncio.get_running_loop()
        quiet_since = loop.time()
        unlisten = storage.listen(self._turns.page_topic_of(self.address), news.set)
        try:
            while True:
                news.clear()
                try:
                    shown: ShownConversation | None = await self.read(after)
                except StorageClosed:
                    return
                except StorageError:
                    # It may be back soon, and the page keeps its connection.
                    shown = last
                if shown is not None and shown.number < after:
                    # The conversation was deleted.
                    after, last = 0, None
                    continue
                if shown is not None and shown != last:
                    yield shown
                    after, quiet_since = shown.number, loop.time()
                    last = None if shown.ended else shown
                elif loop.time() - quiet_since > HEARTBEAT:
                    yield None
                    quiet_since = loop.time()
                try:
                    async with asyncio.timeout(every):
                        await news.wait()
                except TimeoutError:
                    pass
        finally:
            unlisten()

    async def events(self, after: int = 0) -> AsyncGenerator[tuple[int, list[dict[str, Any]]] | None, None]:
        """Yield what has changed, with the number after which a page that has lost its connection continues.

        A page may apply an event twice: a message replaces the one with its id, and a text is added at its place.
        """
        # The messages of turns that have not ended, as the page has them, and the state.
        known: dict[str, dict[str, Any]] = {}
        state: dict[str, Any] = {}
        async with aclosing(self.follow(after)) as looks:
            async for shown in looks:
                if shown is None:
                    yield None
                    continue
                ended = [each for kept in _last_of(shown.ended) for each in self._ended(kept)]
                now = {each["id"]: each for each in (*self._running(shown), *self._waiting(shown))}
                latest = {each["id"]: each for each in ended} | now
                changed = [_change(known.get(number), each) for number, each in latest.items()]
                gone = [number for number in known if number not in latest]
                said = {"state": shown.state, "stopping": shown.stopping, "waiting": len(shown.waiting)}
                changed += [{"type": "gone", "ids": gone}] if gone else []
                changed += [{"type": "state", **said}] if said != state else []
                known, state = now, said
                if found := [each for each in changed if each is not None]:
                    yield shown.number, found

    # The UI message stream

    async def resumed(self) -> Chunks | None:
        """Return the stream of the running turn, or of one that has just ended; ``None`` if there is none."""
        shown = await self.read(NO_ENDED)
        asked = [each["id"] for each in (*self._running(shown), *self._waiting(shown)) if each["role"] == "user"]
        if not asked:
            shown = await self.read(max(shown.number - 1, 0))
        if not asked and shown.ended and await self._turns.clock.now() - shown.ended[-1]["at"] < REPLAYED:
            asked = [each["id"] for each in self._ended(shown.ended[-1]) if each["role"] == "user"]
        return self.answer_to(asked[-1]) if asked else None

    def answer_to(self, number: str) -> Chunks:
        """Yield the chunks of the answer to a message; ``None`` keeps the connection open."""

        def behind(messages: list[dict[str, Any]]) -> int | None:
            asked = [place for place, each in enumerate(messages) if each["role"] == "user" and each["id"] == number]
            if not asked:
                return None
            answers = (place for place in range(asked[-1], len(messages)) if messages[place]["role"] == "assistant")
            return next(answers, len(messages))

        return self._stream(behind, lambda shown: number in shown.ids or number in map(_id, self._running(shown)))

    def completed(self, number: str, parts: Sequence[dict[str, Any]], approval: str) -> Chunks:
        """Yield the chunks that complete a message with a question, of which the page has some parts."""

        def asking(messages: list[dict[str, Any]]) -> int | None:
            for place, each in enumerate(messages):
                if any(part.get("approval", {}).get("id") == approval for part in each["parts"]):
                    return place
            return None

        turn = approval.partition(":")[0]
        return self._stream(asking, lambda shown: shown.turn == turn, StreamedMessage(number, parts))

    async def _stream(
        self,
        place_of: PlaceOf,
        comes: Callable[[ShownConversation], bool],
        streamed: StreamedMessage | None = None,
    ) -> Chunks:
        """Yield the chunks of the message at a place among those of its turn, while there is one or it comes."""
        started, after = False, 0
        with suppress(StorageError):
            # Turns that have ended before are read only if the message is not in a later one.
            now = await self.read(NO_ENDED)
            after = now.number if comes(now) else 0
        async with aclosing(self.follow(after)) as looks:
            async for shown in looks:
                target = None if shown is None else self._target(shown, place_of)
                if shown is None:
                    yield None
                if target is None:
                    if shown is not None and not comes(shown):
                        yield {"type": "abort"}
                        return
                    continue
                message, how = target.message, target.how
                if target.complete and not message["parts"] and not started:
                    yield {"type": "abort"}
                    return
                streamed = streamed or StreamedMessage(message["id"])
                if not started:
                    started = True
                    yield streamed.start()
                try:
                    chunks = streamed.chunks(message["parts"], complete=target.complete)
                except Diverged:
                    yield {"type": "error", "errorText": _DIVERGED}
                    return
                for chunk in chunks:
                    yield chunk
                asks = bool(open_questions(message)) and how is None
                if target.complete or asks:
                    reason = "tool-calls" if asks else {"failed": "error", "stopped": "other"}.get(how or "", "stop")
                    yield {"type": "finish", "finishReason": reason}
                    return

    def _target(self, shown: ShownConversation, place_of: PlaceOf) -> _Target | None:
        """Return the message that a stream shows, if it is there."""
        found: list[tuple[str, list[dict[str, Any]], str | None]] = [
            (kept["turn"], self._ended(kept), kept["how"]) for kept in reversed(shown.ended)
        ]
        if shown.turn is not None:
            found.append((shown.turn, self._running(shown), None))
        for turn, messages, how in found:
            place = place_of(messages)
            if place is not None:
                answers = sum(each["role"] == "assistant" for each in messages)
                coming = {"id": answer_id(turn, answers), "role": "assistant", "parts": []}
                message = messages[place] if place < len(messages) else coming
                return _Target(message, how is not None or place < len(messages) - 1, how)
        return None

    def _update(self, number: str, text: str) -> WebUpdate:
        message = {"date": int(time.time()), "from": self._from, "chat": self._chat, "text": text}
        return web_update({"update_id": f"web:{number}", "message": message})

    def _ended(self, kept: Mapping[str, Any]) -> list[dict[str, Any]]:
        return ui_messages(kept["turn"], kept["messages"], ended=True, tools=self._tools)

    def _running(self, shown: ShownConversation) -> list[dict[str, Any]]:
        return ui_messages(shown.turn or "", shown.running, ended=False, tools=self._tools)

    def _waiting(self, shown: ShownConversation) -> list[dict[str, Any]]:
        waiting = ui_messages("waiting", shown.waiting, ended=False, tools=self._tools)
        return [{**each, "waiting": True} for each in waiting]


def _id(message: Mapping[str, Any]) -> Any:
    return message["id"]


def _last_of(ended: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the turns that have ended, each once: one that had failed may have been tried again."""
    return list({kept["turn"]: kept for kept in ended}.values())


def _change(known: Mapping[str, Any] | None, message: dict[str, Any]) -> dict[str, Any] | None:
    """Return the event for a message: the text that was added to its end, the whole message, or none."""
    if known == message:
        return None
    before, now = [] if known is None else known["parts"], message["parts"]
    if known is None or not before or not now or {**known, "parts": [*before[:-1], now[-1]]} != message:
        return {"type": "message", "message": message}
    old, new = before[-1].get("text"), now[-1].get("text", "")
    if old is not None and new.startswith(old):
        return {"type": "delta", "id": message["id"], "part": len(now) - 1, "at": len(old), "text": new[len(old) :]}
    return {"type": "message", "message": message}
