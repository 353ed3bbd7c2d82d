"""The quiz: each question counts once, and its time ends also if the bot was down."""

from __future__ import annotations

from examples.cookbook import quiz
from stepwell.testing import Chat


async def test_right_answers_are_points_and_the_best_result_is_kept() -> None:
    chat = Chat(quiz.make_router)
    assert await chat.send("/quiz") == ["1. Which planet is the largest?"]
    assert await chat.press("Jupiter") == [
        "1. Which planet is the largest?\nJupiter: Right!", "2. How many legs has a spider?",
    ]  # fmt: skip
    await chat.restart()
    assert (await chat.press("6"))[0].endswith("6: No, it is 8.")
    assert (await chat.press("India"))[-1] == "2 of 3 points. Your best result: 2. Again: /quiz"
    await chat.send("/quiz")
    for option in ("Saturn", "6", "Peru"):
        await chat.press(option)
    assert chat.last == "0 of 3 points. Your best result: 2. Again: /quiz"


async def test_a_press_that_is_killed_or_delivered_again_counts_once() -> None:
    chat = Chat(quiz.make_router)
    await chat.send("/quiz")
    chat.kill_next()
    await chat.press("Jupiter")
    await chat.redeliver()
    await chat.redeliver()
    record = await chat.record()
    assert record is not None
    assert record.data == {"results": [True]}


async def test_the_time_of_a_question_ends_while_the_bot_is_down() -> None:
    chat = Chat(quiz.make_router)
    await chat.send("/quiz")
    await chat.restart()
    assert await chat.advance(19) == []
    assert await chat.advance(1) == ["Time is up. It is Jupiter.", "2. How many legs has a spider?"]
    await chat.press("Jupiter", on="1. Which planet is the largest?")
    assert chat.calls[-1]["text"] == "This question is over."
    assert await chat.advance(20) == ["Time is up. It is 8.", "3. Where is the stepwell Chand Baori?"]
    assert await chat.advance(20) == ["Time is up. It is India.", "0 of 3 points. Your best result: 0. Again: /quiz"]
    assert await chat.advance(100) == []
    assert await chat.send("Hello") == ["/quiz begins."]
