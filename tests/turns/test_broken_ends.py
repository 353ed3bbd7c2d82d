"""Turns whose end cannot be written as it is, or whose handler, tool or sender does what nobody expects of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from stepwell import Limits, MemoryStorage
from stepwell.engine import replaced
from stepwell.errors import Busy, InvalidOption, OutcomeUnknown
from stepwell.storage import Apply, Operation
from stepwell.turns import Turn, Turns
from tests.backends import Backend
from tests.constants import Constants
from tests.turns.people import ANN, People, state_of, working
from tests.until import forever, until


def turns_of(handler: Callable[[Turn], Any], storage: Any = None, **options: Any) -> tuple[Turns, list[int]]:
    """Return turns, and the attempts of which their handler was called."""
    turns = Turns("bot", storage=storage or MemoryStorage(), **{"collect": 0.0, **options})
    attempts: list[int] = []

    @turns.handler
    async def answer(turn: Turn) -> None:
        attempts.append(turn.attempt)
        await handler(turn)

    return turns, attempts


async def busy(turn: Turn) -> None:
    raise Busy("another record", 1.0)


async def unstorable_call(turn: Turn) -> None:
    turn.call("sendPhoto", chat_id=42, photo=object())


async def surrogates(turn: Turn) -> None:
    turn.answer("half of an emoji: \ud83d")


async def unstorable_params(turn: Turn) -> None:
    async with turn.stream(parse_mode=object()) as out:
        out.write("text")


async def unstorable_entry(turn: Turn) -> None:
    turn.history.append({"content": object()})


async def changed_entry(turn: Turn) -> None:
    entry: dict[str, Any] = {"content": "text"}
    turn.history.append(entry)
    entry["content"] = object()


async def long_answer(turn: Turn) -> None:
    turn.answer("x" * 1_100_000)


async def surrogate_error(turn: Turn) -> None:
    raise FileNotFoundError("cannot open \udcff.txt")


class BrokenError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


async def error_without_a_text(turn: Turn) -> None:
    raise BrokenError


async def wrong_piece(turn: Turn) -> None:
    async with turn.stream() as out:
        out.write(b"bytes")  # type: ignore[arg-type]


async def exits(turn: Turn) -> None:
    raise SystemExit(3)


def exiting() -> None:
    raise SystemExit(3)


async def tool_that_exits(turn: Turn) -> None:
    await turn.tool(exiting)


async def async_exiting() -> None:
    raise KeyboardInterrupt


async def async_tool_that_exits(turn: Turn) -> None:
    await turn.tool(async_exiting)


async def cancels_itself(turn: Turn) -> None:
    raise asyncio.CancelledError


async def wrong_approvers(turn: Turn) -> None:
    await turn.ask("Sure?", approvers=[(1, 2)])  # type: ignore[list-item]


async def wrong_reply(turn: Turn) -> None:
    await turn.ask("Sure?", reply="yes")  # type: ignore[arg-type]


async def wrong_option(turn: Turn) -> None:
    await turn.ask("Sure?", options=["\ud83d"])


async def large_result(turn: Turn) -> None:
    await turn.tool(lambda: "x" * 3_000_000)
    await turn.tool(lambda: object())


@pytest.mark.parametrize(
    "handler",
    [
        busy, unstorable_call, surrogates, unstorable_params, unstorable_entry, changed_entry, long_answer,
        surrogate_error, error_without_a_text, wrong_piece, exits, tool_that_exits, async_tool_that_exits,
        cancels_itself, wrong_approvers, wrong_reply, wrong_option, large_result,
    ],
    ids=lambda handler: handler.__name__,
)  # fmt: skip
async def test_a_turn_that_cannot_be_answered_fails_once_and_the_next_one_is_answered(
    handler: Callable[[Turn], Any],
) -> None:
    async def answer(turn: Turn) -> None:
        if turn.text == "good":
            turn.answer("good")
        else:
            await handler(turn)

    (turns, attempts), people = turns_of(answer), People()
    async with working(turns, people):
        await turns.admit(people.message("bad"))
        assert "went wrong" in (await people.answered())[0]
        await turns.admit(people.message("good"))
        assert (await people.answered(2))[1:] == ["good"]
        await state_of(turns, "idle")
        (failed,) = (await turns.status(ANN)).failed
    assert attempts == [1, 1]
    assert failed.texts == ("bad",) and failed.error


async def test_a_note_that_cannot_be_stored_does_not_keep_a_turn_from_failing() -> None:
    def note(where: dict[str, Any], error: str) -> Any:
        return {"method": "sendMessage", "chat_id": 42, "text": object()}

    (turns, attempts), people = turns_of(busy, on_failed=note), People()
    async with working(turns, people):
        await turns.admit(people.message("hi"))
        await until(lambda: turns.status(ANN), lambda status: status.failed and status.state == "idle")
    assert attempts == [1]


@pytest.mark.every_backend
async def test_a_turn_in_a_full_record_fails_and_messages_are_still_taken(backend: Backend) -> None:
    async def answer(turn: Turn) -> None:
        turn.history.append("x" * 30_000)
        turn.answer(turn.text)

    storage = backend.storage(limits=Limits(run=100_000, record=100_000))
    (turns, attempts), people = turns_of(answer, storage), People()
    async with working(turns, people):
        for number in range(1, 6):
            await turns.admit(people.message(f"m{number}"))
            await people.answered(number)
            await state_of(turns, "idle")
        assert people.texts[:3] == ["m1", "m2", "m3"] and "went wrong" in people.texts[4]
        assert all("TooLarge" in each.error for each in (await turns.status(ANN)).failed)
        await turns.history(ANN).clear()
        await turns.admit(people.message("m6"))
        assert (await people.answered(6))[5] == "m6"
    assert attempts == [1] * 6


class Unanswered(MemoryStorage):
    """Writes under a claim are applied, and the answer to each is lost the first time."""

    lost = 0

    async def perform(self, operation: Operation) -> Any:
        result = await super().perform(operation)
        guard = operation.guard if isinstance(operation, Apply) else None
        if guard is not None and guard.token is not None:
            self.lost += 1
            raise OutcomeUnknown("the record", "the connection broke")
        return result


@pytest.mark.parametrize("on_busy", ["merge", "steer"])
async def test_a_write_whose_answer_is_lost_counts_once(on_busy: Any, constants: Constants) -> None:
    payments: list[str] = []
    steered: list[str] = []
    go_on = asyncio.Event()

    async def answer(turn: Turn) -> None:
        if turn.text == "first":
            await turn.tool(payments.append, turn.text)
            await turn.ask("Sure?", timeout=0.05)
            await go_on.wait()
            steered.extend(message.text for message in await turn.steered())
        turn.history.append(turn.text)
        turn.answer(turn.text)

    constants(held_pauses=(0.001, 0.001))
    storage = Unanswered()
    (turns, attempts), people = turns_of(answer, storage, on_busy=on_busy, lease=2.0), People()
    async with working(turns, people):
        await turns.admit(people.message("first"))
        await until(lambda: people.sent)
        await turns.admit(people.message("second"))
        go_on.set()
        expected = {"merge": ["Sure?", "first", "second"], "steer": ["Sure?", "first\nsecond"]}[on_busy]
        assert await people.answered(len(expected)) == expected
        await state_of(turns, "idle")
        assert await turns.history(ANN).read() == expected[1:]
    assert steered == (["second"] if on_busy == "steer" else [])
    assert storage.lost > 5 and payments == ["first"] and set(attempts) == {1}
    assert len(attempts) == len(expected) - 1


@pytest.mark.every_backend
async def test_all_calls_of_an_answer_are_sent_if_the_worker_stops_between_two(backend: Backend) -> None:
    async def answer(turn: Turn) -> None:
        for number in range(3):
            turn.answer(f"{turn.text} {number}")

    (turns, attempts), people = turns_of(answer, backend.storage(), lease=60.0), People()
    await turns.storage.open()
    stuck = asyncio.Event()

    async def send(call: dict[str, Any]) -> None:
        if call["text"] == "one 1":
            stuck.set()
            await forever()
        await people.send(call)

    async with turns.worker(send=send, drain=0):
        await turns.admit(people.message("one"))
        await stuck.wait()
        await turns.admit(people.message("two"))
    async with working(turns, people):
        assert await people.answered(6) == ["one 0", "one 1", "one 2", "two 0", "two 1", "two 2"]
        await state_of(turns, "idle")
    assert attempts == [1, 1], "a stop of the worker counts no attempt"


async def test_a_turn_that_was_taken_while_the_last_answer_is_sent_does_not_wait_for_its_lease_after_a_stop() -> None:
    async def answer(turn: Turn) -> None:
        if turn.text == "one":
            await turns.admit(people.message("two"))
        turn.answer(turn.text)

    (turns, attempts), people = turns_of(answer, lease=60.0, attempts=1), People()
    await turns.storage.open()
    stuck = asyncio.Event()

    async def send(call: dict[str, Any]) -> None:
        stuck.set()
        await forever()

    async with turns.worker(send=send, drain=0):
        await turns.admit(people.message("one"))
        await stuck.wait()
        assert (await turns.status(ANN)).state == "running"
    async with working(turns, people):
        assert await people.answered(2) == ["one", "two"]
    assert attempts == [1, 1]


async def test_a_question_whose_card_cannot_be_sent_is_answered_by_the_same_handler_later(constants: Constants) -> None:
    started: list[Turn] = []

    async def answer(turn: Turn) -> None:
        started.append(turn)
        turn.answer(str(await turn.ask("Sure?")))

    (turns, attempts), people = turns_of(answer), People()
    failures = [RuntimeError("no network"), asyncio.CancelledError(), SystemExit()]

    async def send(call: dict[str, Any]) -> None:
        if failures:
            raise failures.pop()
        await people.send(call)

    constants(resend=(0.05, 0.05))
    async with turns.worker(send=send, drain=0):
        await turns.admit(people.message("go"))
        await people.answered()
        await state_of(turns, "asking")
        await turns.admit(people.press(people.sent[0], "Yes"))
        assert (await people.answered(2))[1] == "Yes"
    assert attempts == [1]


async def test_a_button_of_an_earlier_question_does_not_answer_another_one() -> None:
    async def answer(turn: Turn) -> None:
        question = turn.ask(["Delete one file?", "Delete all files?"][len(attempts) - 1])
        # With a tool that runs beside it the turn does not wait for people only, so the next worker begins again.
        decision, _ = await asyncio.gather(question, turn.tool(forever if len(attempts) == 1 else list, replay="safe"))
        turn.answer("deleted" if decision else "kept")

    (turns, attempts), people = turns_of(answer), People()
    await turns.storage.open()
    async with working(turns, people):
        await turns.admit(people.message("go"))
        await people.answered()
    async with working(turns, people):
        await people.answered(2)
        old, new = people.sent
        pressed = await turns.admit(people.press(old, "Yes"))
        assert pressed.calls[0]["text"] == "This question is closed."
        await turns.admit(people.press(new, "No"))
        assert (await people.answered(3))[2] == "kept"


async def test_a_message_and_its_edit_that_are_delivered_again_are_known() -> None:
    async def answer(turn: Turn) -> None:
        turn.answer(turn.text)

    (turns, _), people = turns_of(answer), People()
    await turns.storage.open()
    message = people.message("helo")
    edits = [people.edit(message, "hello"), people.edit(message, "hello!")]
    for again in range(2):
        outcomes = [(await turns.admit(update)).outcome for update in (message, *edits)]
        assert outcomes == (["known"] * 3 if again else ["taken", "edited", "edited"])
    async with working(turns, people):
        assert await people.answered() == ["hello!"]
        await state_of(turns, "idle")
        assert [(await turns.admit(update)).outcome for update in (message, *edits)] == ["known"] * 3


async def test_what_cannot_be_read_again_is_refused_at_the_call() -> None:
    async def answer(turn: Turn) -> None:
        turn.answer(str(await turn.ask("Why?", reply=True)))

    (turns, _), people = turns_of(answer, update_id=lambda update: (update.update_id or 0) / 2), People()
    with pytest.raises(InvalidOption, match="update_id="):
        await turns.admit(people.message("hi"))
    (turns, _) = turns_of(answer)
    async with working(turns, people):
        await turns.admit(people.message("hi"))
        await state_of(turns, "asking")
        for options in ({"by": 1.5}, {"by": (1,)}, {"name": None}):
            with pytest.raises(InvalidOption, match="decide"):
                await turns.decide(ANN, "because", **options)  # type: ignore[arg-type]
        with pytest.raises(InvalidOption, match="decide"):
            await turns.decide(ANN, 5)  # type: ignore[arg-type]
        await turns.decide(ANN, "because")
        assert (await people.answered(2))[1] == "because"


async def test_a_second_question_is_answered_at_once_after_one_that_was_answered_while_its_turn_was_busy() -> None:
    async def slow() -> None:
        await until(lambda: turns.status(ANN), lambda status: status.questions and status.questions[0].answered)

    async def answer(turn: Turn) -> None:
        first, _ = await asyncio.gather(turn.ask("First?"), turn.tool(slow))
        second = await turn.ask("Second?")
        turn.answer(f"{first} {second}")

    (turns, attempts), people = turns_of(answer, lease=60.0), People()
    async with working(turns, people):
        await turns.admit(people.message("go"))
        await people.answered()
        await turns.admit(people.press(people.sent[0], "Yes"))
        await people.answered(2)
        await state_of(turns, "asking")
        await turns.admit(people.press(people.sent[1], "No"))
        assert (await people.answered(3))[2] == "Yes No"
    assert attempts == [1]


async def test_a_worker_that_has_ended_leaves_no_tasks_and_listeners() -> None:
    async def answer(turn: Turn) -> None:
        turn.answer(str(await turn.ask("Sure?")))

    (turns, _), people = turns_of(answer), People()
    await turns.storage.open()
    before = asyncio.all_tasks()
    async with working(turns, people):
        await turns.admit(people.message("one"))
        await state_of(turns, "asking")
        turns.rules = replaced(turns.rules, collect=50.0)
        await turns.admit(people.message("two", user=43))
    await until(lambda: asyncio.all_tasks() <= before)
    assert not turns._wakes


async def test_a_handler_that_catches_its_cancellation_does_not_keep_its_worker_and_the_next_one_continues(
    constants: Constants, caplog: pytest.LogCaptureFixture
) -> None:
    constants(cancel_timeout=0.1)
    goes_on = True

    async def deaf(turn: Turn) -> None:
        async with turn.stream() as out:
            while goes_on:
                try:
                    await asyncio.sleep(0.01)
                except asyncio.CancelledError:
                    out.write("still here ")
        turn.answer("never sent")

    async def answer(turn: Turn) -> None:
        turn.answer(turn.text.upper())

    storage, people = MemoryStorage(), People()
    await storage.open()
    first, attempts = turns_of(deaf, storage)
    async with working(first, people):
        await first.admit(people.message("one"))
        await until(lambda: attempts)
    assert "has caught its cancellation and goes on" in caplog.text
    goes_on = False
    second, attempts = turns_of(answer, storage)
    async with working(second, people):
        assert await people.answered() == ["ONE"]
    assert attempts == [1], "it is not counted, and continues at once"
