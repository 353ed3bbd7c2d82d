"""Questions of a turn: they are stored with the call that shows them, and answered once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

from stepwell.engine import replaced
from stepwell.errors import InvalidOption
from stepwell.options import check, check_instance, check_text, seconds_of
from stepwell.texts import fit
from stepwell.turns.base import AttemptBase
from stepwell.turns.policy import cut
from stepwell.turns.record import Answer, OpenQuestion, Running, TurnTable, question_part
from stepwell.turns.running.held import sent

__all__ = ["MARK", "PRESS", "Decision", "Questions", "earliest_deadline", "press_data"]

#: The beginning of the data of a button that answers a question.
PRESS: Final = "turn:"
#: How much of the digest of a question the data of its buttons has, which Telegram limits to 64 bytes.
MARK: Final = 8
#: The most options of a question.
MOST_OPTIONS: Final = 20
#: Seconds after an answer before the claim is released again for the other questions.
PAUSE: Final = 0.1
#: The most buttons that are in one row.
IN_ONE_ROW: Final = 3


class Decision:
    """The answer to a question of a turn. It is true if the first option was chosen, or a message was sent.

    Example::

        @turns.handler
        async def answer(turn):
            decision = await turn.ask("Which plan?", options=("Small", "Large"), timeout="1h")
            if decision.timed_out:
                turn.answer("Come back when you know.")
            else:
                turn.answer(f"{decision.name} wants {decision.choice}.")
    """

    __slots__ = ("by", "choice", "first", "name")

    def __init__(self, answer: Answer, question: OpenQuestion) -> None:
        #: The chosen option or the text; ``None`` if nobody has answered in time.
        self.choice: str | None = answer.choice
        #: The id of who has answered, and the name.
        self.by: int | str | None = answer.by
        self.name: str = answer.name
        self.first: bool = answer.choice is not None and (question.reply or answer.choice == question.options[0])

    @property
    def timed_out(self) -> bool:
        """Whether nobody has answered in time."""
        return self.choice is None

    def __bool__(self) -> bool:
        return self.first

    def __str__(self) -> str:
        return self.choice or ""

    def __eq__(self, other: object) -> bool:
        return self.choice == (other.choice if isinstance(other, Decision) else other)

    def __hash__(self) -> int:
        return hash(self.choice)

    def __repr__(self) -> str:
        return f"<Decision {self.choice!r} by {self.by!r}>"


def press_data(turn: str, question: OpenQuestion, option: int) -> str:
    """Return the data of the button for an option of a question.

    It names what is asked, so that a button never answers another question that a later attempt has asked instead.
    """
    return f"{PRESS}{turn}:{question.number}:{option}:{question.digest[:MARK]}"


def earliest_deadline(questions: Iterable[OpenQuestion]) -> float | None:
    """Return when the first open question ends."""
    return min((each.deadline for each in questions if each.answer is None and each.deadline is not None), default=None)


class Questions:
    """The questions of one attempt, and those that earlier attempts have asked."""

    def __init__(self, attempt: AttemptBase) -> None:
        self._attempt = attempt
        self._count = 0
        #: The numbers of the questions that this attempt has asked.
        self._asked: set[int] = set()
        #: The asks that wait, by the number of their question.
        self._waiting: dict[int, asyncio.Future[None]] = {}

    @property
    def waits(self) -> bool:
        """Whether the handler waits for an answer."""
        return any(not each.done() for each in self._waiting.values())

    async def ask(
        self,
        text: str,
        *,
        options: Sequence[str],
        approvers: Iterable[int | str] | None,
        timeout: Any,
        about: Any,
        reply: bool,
        params: Mapping[str, Any],
    ) -> Decision:
        """Ask, unless an earlier attempt has asked the same, and wait for the answer."""
        check_text(text, "ask() takes a text, got {}")
        chosen = () if reply else _checked_options(options)
        seconds = None if timeout is None else seconds_of(timeout, "ask(timeout={}): give seconds, or '24h'")
        check_instance(reply, bool, "ask(reply=...) is True or False, not {}")
        allowed = None if approvers is None else tuple(approvers)
        for each in allowed or ():
            check_instance(each, (int, str), "ask(approvers=...) takes the ids of people, not {}")
        attempt = self._attempt
        digest = self._digest(text, chosen, about)
        number = self._number(digest)
        known = self._find(number)
        if known is None or known.digest != digest:
            question = OpenQuestion(
                number=number, digest=digest, options=chosen, approvers=allowed, reply=reply,
                deadline=None if seconds is None else attempt.record.slot.time() + seconds,
            )  # fmt: skip
            with attempt.busy():
                await attempt.before_message(lambda calls: self._store(question, text, params, calls))
                await attempt.deliver()
        else:
            attempt.skip_sent()
            if attempt.transcript is not None:
                attempt.transcript.ask(known, text)
                with attempt.busy():
                    # Later there may be no claim to write under.
                    await attempt.store({})
        while True:
            found = self._find(number)
            assert found is not None
            if found.answer is not None:
                if attempt.transcript is not None:
                    attempt.transcript.answered(found, found.answer)
                return Decision(found.answer, found)
            self._waiting[number] = asyncio.get_running_loop().create_future()
            attempt.may_be_suspended()
            try:
                await self._waiting[number]
            finally:
                del self._waiting[number]
                # Another task of the handler may still wait for its answer, when this one has gone on.
                asyncio.get_running_loop().call_later(PAUSE, attempt.may_be_suspended)

    def wake(self) -> None:
        """Let the asks go on whose question has an answer in the table."""
        for number, future in self._waiting.items():
            found = self._find(number)
            if not future.done() and found is not None and found.answer is not None:
                future.set_result(None)

    def _number(self, digest: str) -> int:
        """Return the number of the next question: its place, or that of the same question of an earlier attempt.

        An attempt that continues in the middle does not ask again what was asked before that.
        """
        self._count += 1
        turn = self._attempt.record.table.turn
        free = [each for each in (() if turn is None else turn.questions) if each.number not in self._asked]
        same = [each.number for each in free if each.digest == digest]
        number = self._count if self._count in same or not same else same[0]
        while number in self._asked:
            number += 1
        self._asked.add(number)
        return number

    def _find(self, number: int) -> OpenQuestion | None:
        turn = self._attempt.record.table.turn
        return None if turn is None else next((each for each in turn.questions if each.number == number), None)

    def _digest(self, text: str, options: tuple[str, ...], about: Any) -> str:
        seal = self._attempt.record.seal
        return blake2b(seal.json([text, options, about], seal.limit).encode(), digest_size=9).hexdigest()

    async def _store(
        self, question: OpenQuestion, text: str, params: Mapping[str, Any], before: list[dict[str, Any]]
    ) -> None:
        """Store a question together with the calls that show it, after those of the text before it."""
        attempt = self._attempt
        seal, part = attempt.record.seal, question_part(attempt.turn_id, question.number)
        card = {"method": "sendMessage", **attempt.where, "text": text, **params}
        if question.options and "reply_markup" not in params:
            buttons = [
                {"text": option, "callback_data": press_data(attempt.turn_id, question, place)}
                for place, option in enumerate(question.options)
            ]
            rows = [buttons] if len(buttons) <= IN_ONE_ROW else [[button] for button in buttons]
            card["reply_markup"] = {"inline_keyboard": rows}
        calls = sent([*before, *fit([card], attempt.formatting)])
        if attempt.transcript is not None:
            attempt.transcript.ask(question, text)

        def added(table: TurnTable) -> TurnTable:
            turn = attempt.own(table)
            others = tuple(each for each in turn.questions if each.number != question.number)
            turn = replaced(turn, questions=(*others, question))
            return replaced(table, turn=cut(turn) if before else turn, next_call=table.next_call + len(calls))

        def parts(table: TurnTable, after: TurnTable) -> dict[str, str | None]:
            return {part: seal.seal("p", part, text), **attempt.record.calls_after(table, calls)}

        await attempt.write(added, parts)


def with_timeouts(turn: Running, now: float) -> Running:
    """Return a turn with the questions answered whose time is over."""
    ended = tuple(
        replaced(each, answer=Answer(None, None, "", now))
        if each.answer is None and each.deadline is not None and each.deadline <= now
        else each
        for each in turn.questions
    )
    return replaced(turn, questions=ended)


def _checked_options(options: Sequence[str]) -> tuple[str, ...]:
    if isinstance(options, str) or not options or not all(isinstance(each, str) and each for each in options):
        raise InvalidOption("ask(options=...) takes a list of texts, such as ('Yes', 'No')")
    chosen = tuple(options)
    check(len(set(chosen)) == len(chosen), "ask(options=...): each option must be another text, got {}", chosen)
    check(len(chosen) <= MOST_OPTIONS, f"ask(options=...) takes at most {MOST_OPTIONS} options, got {{}}", len(chosen))
    return chosen
