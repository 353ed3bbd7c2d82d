"""Admission: a message is stored before its update is confirmed, without a claim."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from weakref import WeakValueDictionary

from stepwell.engine import KEEP, Address, Change, Stored, counted, replaced
from stepwell.errors import EncodeError, InvalidOption, TooLarge
from stepwell.fsm import Update, keys
from stepwell.turns.base import TurnsBase
from stepwell.turns.message import Message
from stepwell.turns.policy import Outcome, admitted, edited, wanted_reply, with_answer
from stepwell.turns.record import (
    HANDLED,
    Answer,
    TurnTable,
    WaitingMessage,
    change_of,
    is_web,
    message_part,
    table_of,
)

__all__ = ["Admission", "Admissions", "calls_of"]

#: A text of this length is probably cut: Telegram cuts longer ones at 4,096 characters.
LONG_TEXT = 4000
#: The most tags of a conversation.
MOST_TAGS = 50


class Admission:
    """What has become of an update. It is false if the update is for other handlers.

    Example::

        admission = await turns.admit(update)
        if admission:
            print(admission.outcome, admission.calls)
    """

    __slots__ = ("busy", "calls", "outcome", "waiting")

    def __init__(
        self, outcome: Outcome, waiting: int, *, busy: bool = False, calls: list[dict[str, Any]] | None = None
    ) -> None:
        #: ``"taken"``; ``"edited"``: a message that waits has a newer text; ``"known"``: it was taken before;
        #: ``"full"``: too many messages wait; ``"busy"``: a turn runs, and ``on_busy="reject"``; ``"answer"``: it was a
        #: stop or the answer to a question; ``"passed"``: it is for other handlers.
        self.outcome: Outcome = outcome
        #: How many messages wait.
        self.waiting: int = waiting
        #: Whether a turn runs.
        self.busy: bool = busy
        #: The calls to make, as after ``Router.handle``.
        self.calls: list[dict[str, Any]] = calls or []

    def __bool__(self) -> bool:
        return self.outcome != "passed"

    def __repr__(self) -> str:
        return f"<Admission {self.outcome}, {counted(self.waiting, 'message')} waiting>"


class Admissions:
    """Takes messages of one ``Turns``."""

    def __init__(
        self,
        turns: TurnsBase,
        waiting_calls: Callable[[Admission, Message], Awaitable[list[dict[str, Any]]]],
        told: Callable[[Address, Admission, int | str | None], None],
    ) -> None:
        self._turns = turns
        self._waiting_calls, self._told = waiting_calls, told
        #: Messages of one conversation are taken one after the other in this process.
        self._locks: WeakValueDictionary[Address, asyncio.Lock] = WeakValueDictionary()

    async def admit(self, update: Update, conversation: Any) -> Admission:
        """Take a message. Return only when it is stored."""
        turns = self._turns
        address = turns.address(conversation)
        lock = self._locks.setdefault(address, asyncio.Lock())
        async with lock:
            now = await turns.clock.now()
            message = Message(update, now)
            admission = await self._store(message, address, now)
        if admission.outcome in ("full", "busy") or (admission.outcome == "taken" and admission.busy):
            admission.calls = await self._waiting_calls(admission, message)
        if admission:
            self._told(address, admission, turns.update_id_of(message.update))
        return admission

    async def shut(self, conversation: Any) -> None:
        """Shut the window of a conversation, so that its turn starts now."""
        turns = self._turns
        address = turns.address(conversation)
        now = await turns.clock.now()

        def decide(stored: Stored | None) -> Change | None:
            table = table_of(seal, stored)
            if table.window is None or not table.waiting or table.window.shut <= now:
                return None
            table = replaced(table, window=replaced(table.window, shut=now))
            return change_of(turns.storage, address, turns.name, table, now=now, parts={})

        seal = turns.storage.seal(address)
        if await turns.storage.edit(address, decide) is not None:
            turns.wake()

    async def _store(self, message: Message, address: Address, now: float) -> Admission:
        turns, storage = self._turns, self._turns.storage
        seal = storage.seal(address)
        name = message_part(0)
        try:
            text = seal.seal("p", name, message.stored)
        except EncodeError as error:
            raise InvalidOption(
                f"this update cannot be stored ({error}); pass it as Bot API JSON, or attach the turns to a framework"
            ) from error
        if len(text.encode()) > storage.limits.item:
            raise TooLarge("the message", len(text.encode()), storage.limits.item)
        update_id = turns.update_id_of(message.update)
        is_edit = (message.update.kind or "").startswith("edited_")
        user, chat = message.user, message.chat
        from_page = chat is not None and is_web(chat.id)
        # A person sends one whole message on a page.
        rules = replaced(turns.rules, collect=0.0) if from_page else turns.rules
        more = message.album is not None or message.forwarded or len(message.text) >= LONG_TEXT
        arrived = WaitingMessage(
            seq=0, id=update_id, message_id=message.message_id, burst=0, size=len(text), at=now, album=message.album,
            more=more and not from_page,
        )  # fmt: skip
        user_id = None if user is None else user.id
        result: tuple[Outcome, TurnTable] = ("passed", TurnTable())

        def decide(stored: Stored | None) -> Change | None:
            nonlocal result
            table = table_of(seal, stored)
            if update_id is not None and (update_id in table.ids or update_id in _handled(seal, stored)):
                result = "known", table
                return None
            asked = None if is_edit else wanted_reply(table, user_id, now)
            if asked is not None and message.text:
                answer = Answer(message.text, user_id, (user and user.first_name) or "", now, update_id)
                after = with_answer(table, asked, answer, now, update=update_id)
                result = "answer", after
                return change_of(storage, address, turns.name, after, now=now, parts={})
            if is_edit:
                newer = edited(table, arrived)
                result = ("passed", table) if newer is None else ("edited", newer)
                if newer is None:
                    return None
                seq = next(each.seq for each in newer.waiting if each.message_id == arrived.message_id)
                after = newer
            else:
                after, outcome = admitted(table, arrived, now, rules)
                result = outcome, after
                if outcome != "taken":
                    return None
                seq = table.next
                if from_page and not after.transcribed:
                    after = replaced(after, transcribed=True)
                    result = outcome, after
            part = message_part(seq)
            return change_of(
                storage, address, turns.name, after, now=now, parts={part: seal.seal("p", part, message.stored)},
                tags=self._tags(stored, message),
            )  # fmt: skip

        applied = await storage.edit(address, decide, parts=(HANDLED,))
        outcome, table = result
        busy = table.turn is not None
        if applied is not None:
            turns.clock.note(applied.now)
            self._wake(address, table, now, answered=outcome == "answer")
            if table.transcribed:
                turns.show(address)
        return Admission(outcome, len(table.waiting), busy=busy)

    def _wake(self, address: Address, table: TurnTable, now: float, *, answered: bool) -> None:
        """Let a worker start the turn when its window is shut, or stop the running one."""
        turns = self._turns
        turn = table.turn
        if turn is None:
            turns.wake(address, max(table.window.shut - now, 0.0) if table.window is not None else 0.0)
        elif turn.stop is not None or answered:
            if turns.runner is not None and turn.stop is not None:
                turns.runner.stop(address, turn.id, turn.stop)
            turns.storage.notify_soon(turns.topic_of(address))
            if turn.asking or turn.paused:
                turns.wake()

    def _tags(self, stored: Stored | None, message: Message) -> Any:
        """Return the tags of the record with those of the people of a message, by which ``forget`` finds it."""
        known = () if stored is None else stored.tags
        named = (("user", message.user), ("chat", message.chat))
        new = [self._turns.tag(f"{name}:{peer.id}") for name, peer in named if peer is not None]
        new = [tag for tag in new if tag not in known]
        return (*known, *new) if new and len(known) < MOST_TAGS else KEEP


def calls_of(found: Any, where: keys.Where) -> list[dict[str, Any]]:
    """Return what a function of the bot gives as calls: a text, a call, a list of them, or nothing."""
    if not found:
        return []
    if isinstance(found, str):
        return [{"method": "sendMessage", **keys.params_of(where), "text": found}] if where else []
    if isinstance(found, Mapping):
        return [dict(found)]
    return [dict(call) for call in found]


def _handled(seal: Any, stored: Stored | None) -> list[int | str]:
    if stored is None or HANDLED not in (stored.parts or {}):
        return []
    found: list[int | str] = seal.value("p", HANDLED, (stored.parts or {})[HANDLED])
    return found
