"""The control lane: stops and answers to questions reach a turn without a claim, and wait for nothing."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from stepwell.engine import KEEP, Address, Change, Stored, quoted, replaced
from stepwell.errors import InvalidOption
from stepwell.fsm import Update
from stepwell.fsm.keys import Where, params_of
from stepwell.texts import fit
from stepwell.turns.base import TurnsBase
from stepwell.turns.message import Message
from stepwell.turns.policy import may_answer, stopped, with_answer
from stepwell.turns.record import (
    MOST_STOPS,
    WORKING_PARTS,
    Answer,
    OpenQuestion,
    TurnTable,
    change_of,
    draft_id_of,
    is_web,
    send_part,
    table_of,
)
from stepwell.turns.running.question import MARK, PRESS
from stepwell.turns.running.transcript import said_parts
from stepwell.turns.status import status_of

__all__ = ["Controls", "Decided"]


class Decided(StrEnum):
    """What has become of an answer to a question: only ``ACCEPTED`` is true in an ``if``.

    Example::

        if not (decided := await turns.decide((42, 0), "Yes", by=42)):
            print(f"nothing was changed: {decided}")
    """

    #: It is stored.
    ACCEPTED = "accepted"
    #: The question has an answer already.
    ANSWERED_BEFORE = "answered before"
    #: The turn has ended, or the time of the question is over.
    TOO_LATE = "too late"
    #: Who answers is none of the approvers.
    NOT_ALLOWED = "not allowed"

    def __bool__(self) -> bool:
        return self is Decided.ACCEPTED


#: What the person is told who has pressed a button in vain.
_TOLD = {
    Decided.ANSWERED_BEFORE: "This was answered already.",
    Decided.TOO_LATE: "This question is closed.",
    Decided.NOT_ALLOWED: "You are not asked to answer this.",
}


class Controls:
    """Stops turns of one ``Turns``, and answers their questions."""

    def __init__(self, turns: TurnsBase) -> None:
        self._turns = turns

    def is_control(self, update: Update) -> bool:
        """Return whether an update stops a turn or answers a question with a button."""
        data = update.callback_data
        if data is not None:
            return data.startswith(PRESS)
        if update.kind == "stopped_message_generation":
            return True
        return update.command is not None and update.command.name in self._turns.stop_commands

    async def control(self, update: Update) -> list[dict[str, Any]] | None:
        """Do what an update tells. Return the calls to make, or ``None`` if other handlers get the update too."""
        conversation = self._turns.conversation_of(update)
        if conversation is None:
            return [] if update.callback_data is not None else None
        if update.callback_data is not None:
            return await self._press(update, conversation)
        if update.kind == "stopped_message_generation":
            draft = update.event.get("draft_id") if hasattr(update.event, "get") else update.event.draft_id
            await self.stop(conversation, None, draft=draft)
            return []
        await self.stop(conversation, None, update=self._turns.update_id_of(update))
        return None

    async def stop(
        self, conversation: Any, turn_id: str | None, *, draft: int | None = None, update: int | str | None = None
    ) -> bool:
        """Stop the running turn, if it is this one, or the one with this draft.

        ``update``: the id of the update that says so. If it is delivered again, it stops no later turn.
        """
        turns = self._turns
        address = turns.address(conversation)
        seal, now = turns.storage.seal(address), await turns.clock.now()
        found: str | None = None

        def decide(stored: Stored | None) -> Change | None:
            nonlocal found
            table, found = table_of(seal, stored), None
            turn = table.turn
            if stored is None or (update is not None and update in table.stops):
                return None
            if turn is not None and turn_id in (None, turn.id) and draft in (None, draft_id_of(turn.id)):
                found = turn.id
                turn = turn if turn.stop is not None else stopped(turn, "stop", now)
            stops = table.stops if update is None else (*table.stops, update)[-MOST_STOPS:]
            after = replaced(table, turn=turn, stops=stops)
            return None if after == table else change_of(turns.storage, address, turns.name, after, now=now, parts={})

        await turns.storage.edit(address, decide)
        if found is None:
            return False
        # The turn that is stored as stopped, and not one that has begun meanwhile.
        if turns.runner is not None:
            turns.runner.stop(address, found, "stop")
        turns.storage.notify_soon(turns.topic_of(address))
        turns.wake()
        return True

    async def reply(self, conversation: Any, text: str, params: Mapping[str, Any]) -> None:
        """Store a message, to be sent by a worker after the calls that are not sent yet."""
        turns = self._turns
        address = turns.address(conversation)
        seal, now = turns.storage.seal(address), await turns.clock.now()

        def decide(stored: Stored | None) -> Change:
            table = table_of(seal, stored)
            status = status_of(turns.storage, address, stored)
            found = _where(
                status.messages + status.waiting,
                turns.where_by_key(conversation),
                () if stored is None else stored.tags,
            )
            where = params_of(found) | dict(params)
            # A page reads the transcript.
            kept = said_parts(seal, table, text, turns.storage.ids(), now) if table.transcribed else {}
            if "chat_id" not in where and not kept:
                raise InvalidOption(f"the chat of the conversation {quoted(conversation)} is not known; give chat_id=")
            sends = "chat_id" in where and not is_web(where["chat_id"])
            calls = fit([{"method": "sendMessage", **where, "text": text}], turns.formatting) if sends else []
            numbers = tuple(range(table.next_call, table.next_call + len(calls)))
            names = [send_part(number) for number in numbers]
            table = replaced(
                table, next_call=table.next_call + len(calls), added=(*table.added, *numbers),
                send_at=now if table.send_at is None and calls else table.send_at,
                transcripts=table.transcripts + bool(kept),
            )  # fmt: skip
            parts = {**kept, **{name: seal.seal("p", name, call) for name, call in zip(names, calls, strict=True)}}
            tags = KEEP if stored is not None else (turns.tag(f"chat:{where['chat_id']}"),)
            return change_of(turns.storage, address, turns.name, table, now=now, parts=parts, tags=tags)

        await turns.storage.edit(address, decide, parts=WORKING_PARTS)
        turns.storage.notify_soon(turns.topic_of(address))
        turns.show(address)
        turns.wake()

    async def decide(
        self,
        conversation: Any,
        choice: str,
        *,
        by: int | str | None,
        name: str,
        question: int | None,
        turn: str | None = None,
    ) -> Decided:
        """Answer an open question."""
        turns = self._turns
        address = turns.address(conversation)

        def find(table: TurnTable) -> tuple[OpenQuestion | None, str]:
            asked = () if table.turn is None or turn not in (None, table.turn.id) else table.turn.questions
            found = [each for each in asked if question in (None, each.number)]
            still_open = [each for each in found if each.answer is None]
            if question is None and len(still_open) > 1:
                numbers = ", ".join(str(each.number) for each in still_open)
                raise InvalidOption(f"several questions are open here; give question= one of {numbers}")
            chosen = (still_open or found)[-1] if found else None
            if chosen is not None and not chosen.reply and choice not in chosen.options:
                options = ", ".join(map(quoted, chosen.options))
                raise InvalidOption(f"{quoted(choice)} is no option of this question; choose one of {options}")
            return chosen, choice

        decided, _ = await self._answer(address, find, by, name)
        return decided

    async def _press(self, update: Update, conversation: Any) -> list[dict[str, Any]]:
        turn_id, number, place, mark = _read(update.callback_data or "")
        user = update.user
        by, name = (None, "") if user is None else (user.id, user.first_name or str(user.id))

        def find(table: TurnTable) -> tuple[OpenQuestion | None, str]:
            turn = table.turn
            asked = () if turn is None or turn.id != turn_id else turn.questions
            same = (each for each in asked if each.number == number and each.digest[:MARK] == mark)
            found = next((each for each in same if place < len(each.options)), None)
            return found, "" if found is None else found.options[place]

        decided, question = await self._answer(self._turns.address(conversation), find, by, name)
        answer = None if question is None else question.answer
        same = answer is not None and (answer.by, answer.choice) == (by, question.options[place])
        callback: dict[str, Any] = {"method": "answerCallbackQuery", "callback_query_id": update.callback_id}
        if decided is Decided.ANSWERED_BEFORE and same:
            # The same press again, whose answer was perhaps not sent.
            decided = Decided.ACCEPTED
        if not decided:
            return [{**callback, "text": _TOLD[decided]}]
        return [callback, *_edited_card(update, name, answer)]

    async def _answer(self, address: Address, find: Any, by: int | str | None, name: str) -> tuple[Decided, Any]:
        """Store an answer, if the question is open and ``by`` may answer it. Return the question as it is then."""
        turns = self._turns
        seal, now = turns.storage.seal(address), await turns.clock.now()
        decided, found = Decided.TOO_LATE, None

        def decide(stored: Stored | None) -> Change | None:
            nonlocal decided, found
            table = table_of(seal, stored)
            question, choice = find(table)
            decided, found = _judged(question, by, now), question
            if not decided or question is None:
                return None
            answer = Answer(choice, by, name, now)
            found = replaced(question, answer=answer)
            table = with_answer(table, question, answer, now)
            return change_of(turns.storage, address, turns.name, table, now=now, parts={})

        if await turns.storage.edit(address, decide) is not None:
            turns.storage.notify_soon(turns.topic_of(address))
            turns.wake()
        return decided, found


def _where(messages: tuple[Message, ...], by_key: Where, tags: tuple[str, ...]) -> Where:
    """Return the chat of a conversation: that of its last message, else the one in its key, if its tags agree."""
    found = next((message.where for message in reversed(messages) if message.where), ())
    chats = [tag.removeprefix("chat:").partition(" ")[0] for tag in tags if tag.startswith("chat:")]
    if found or not chats or (by_key and str(by_key[0]) in chats):
        return found or by_key
    # With identity= the key says nothing.
    return (int(chats[0]), None, None) if len(chats) == 1 and chats[0].lstrip("-").isdecimal() else ()


def _judged(question: OpenQuestion | None, by: int | str | None, now: float) -> Decided:
    if question is None:
        return Decided.TOO_LATE
    if not may_answer(question, by):
        return Decided.NOT_ALLOWED
    if question.answer is not None:
        return Decided.TOO_LATE if question.answer.choice is None else Decided.ANSWERED_BEFORE
    if question.deadline is not None and question.deadline <= now:
        return Decided.TOO_LATE
    return Decided.ACCEPTED


def _read(data: str) -> tuple[str, int, int, str]:
    """Read the data of a button. What no button of ours has names no question."""
    turn, _, rest = data.removeprefix(PRESS).partition(":")
    number, _, rest = rest.partition(":")
    place, _, mark = rest.partition(":")
    if not (number.isascii() and number.isdecimal() and place.isascii() and place.isdecimal()):
        return "", 0, 0, ""
    return turn, int(number[:9]), int(place[:9]), mark


def _edited_card(update: Update, name: str, answer: Answer | None) -> list[dict[str, Any]]:
    """Return the call that shows in the message with the buttons who has decided."""
    message = update.event.get("message") if hasattr(update.event, "get") else getattr(update.event, "message", None)
    text = message.get("text") if isinstance(message, Mapping) else getattr(message, "text", None)
    if answer is None or update.chat is None or update.message_id is None or not isinstance(text, str):
        return []
    told = f"{text}\n\n{answer.choice} ({name})" if name else f"{text}\n\n{answer.choice}"
    edit: dict[str, Any] = {"method": "editMessageText", "chat_id": update.chat.id, "message_id": update.message_id}
    if update.business_connection_id is not None:
        edit["business_connection_id"] = update.business_connection_id
    entities = message.get("entities") if isinstance(message, Mapping) else None
    if entities:
        # What is added stands behind them.
        edit["entities"] = entities
    return fit([edit | {"text": told}])
