"""A limit on the updates of one person."""

from __future__ import annotations

import pytest

from stepwell.errors import InvalidOption
from stepwell.fsm import FSM, Context, Router, Throttle, text
from stepwell.fsm import throttle as module
from stepwell.testing import Chat


class Time:
    """A clock that stands still."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(module, "monotonic", time)
    return time


def limited(throttle: Throttle) -> Router:
    router = Router(FSM("my_bot", storage="memory://", flows=[]))
    router.middleware(throttle)

    @router.on(text())
    async def answer(ctx: Context) -> None:
        ctx.answer("yes")

    return router


async def test_a_person_gets_so_many_answers_in_so_many_seconds_and_one_notice(time: Time) -> None:
    chat = Chat(limited(Throttle(2, per=10, answer="Wait.")))
    other = chat.user(43)
    assert [await chat.send("hi") for _ in range(4)] == [["yes"], ["yes"], ["Wait."], []]
    assert await other.send("hi") == ["yes"]
    time.now = 5.1
    assert [await chat.send("hi") for _ in range(3)] == [["yes"], ["Wait."], []]
    time.now = 1000
    assert [await chat.send("hi") for _ in range(3)] == [["yes"], ["yes"], ["Wait."]]


async def test_updates_that_nobody_is_counted_for_are_not_limited(time: Time) -> None:
    chat = Chat(limited(Throttle(1, per=10, by=lambda ctx: None if ctx.text == "free" else "all")))
    assert [await chat.send(text) for text in ("free", "hi", "free", "hi")] == [["yes"], ["yes"], ["yes"], []]


async def test_persons_who_have_written_least_lately_are_forgotten(time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PERSONS", 2)
    chat = Chat(limited(Throttle(1, per=10)))
    persons = [chat.user(number) for number in (1, 2, 3)]
    for person in persons:
        assert await person.send("hi") == ["yes"]
    assert [await person.send("hi") for person in persons] == [["yes"], ["yes"], ["yes"]]
    assert await persons[2].send("hi") == []


def test_wrong_options_are_refused() -> None:
    for updates, per, by in ((0, 1, None), (1, 0, None), (1, "x", None), (1, 1, 3)):
        with pytest.raises(InvalidOption, match="Throttle"):
            Throttle(updates, per=per, by=by)  # type: ignore[arg-type]
