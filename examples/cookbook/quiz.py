"""A quiz: buttons, a time limit for each question, and a best result that is kept.

stepwell play quiz.py
"""

import re
from typing import NamedTuple

from stepwell import Storage
from stepwell.fsm import FSM, Context, Flow, Router, button, callback, command, fsm_flow, keyboard, kind, state

SECONDS = 20
PRESSED = re.compile(r"^(\d+):(\d+)$")


class Question(NamedTuple):
    text: str
    options: list[str]
    #: The index of the right option.
    right: int


QUESTIONS = [
    Question("Which planet is the largest?", ["Saturn", "Jupiter", "Neptune"], 1),
    Question("How many legs has a spider?", ["6", "8", "10"], 1),
    Question("Where is the stepwell Chand Baori?", ["India", "Egypt", "Peru"], 0),
]


def ask(ctx: Context) -> None:
    """Ask the next question, or tell the result."""
    number = len(ctx.data["results"])
    if number < len(QUESTIONS):
        text, options, _ = QUESTIONS[number]
        # The number of the question tells an old button from a new one.
        rows = [[button(option, data=f"{number}:{index}")] for index, option in enumerate(options)]
        ctx.answer(f"{number + 1}. {text}", reply_markup=keyboard(rows))
        return
    points = sum(ctx.data["results"])
    best = ctx.profile["best"] = max(points, ctx.profile.get("best", 0))
    ctx.clear_flow()
    ctx.answer(f"{points} of {len(QUESTIONS)} points. Your best result: {best}. Again: /quiz")


def note(ctx: Context, *, right: bool) -> None:
    """Keep the result of a question, and ask the next one."""
    ctx.update_data(results=[*ctx.data["results"], right])
    # Entering the state again restarts its time.
    ctx.transition("asking")
    ask(ctx)


async def too_late(ctx: Context) -> None:
    question = QUESTIONS[len(ctx.data["results"])]
    ctx.answer(f"Time is up. It is {question.options[question.right]}.")
    note(ctx, right=False)


class Quiz(Flow, name="quiz"):
    asking = state(to=["asking"], timeout=SECONDS, on_timeout=too_late)
    default_state = asking


def make_router(storage: Storage | str) -> Router:
    router = Router(FSM("quiz", storage=storage, flows=[Quiz]))

    @router.on(command("start", "quiz"))
    async def begin(ctx: Context) -> None:
        ctx.start_flow(Quiz)
        ctx.update_data(results=[])
        ask(ctx)

    @router.on(callback(PRESSED), fsm_flow(Quiz))
    async def answered(ctx: Context) -> None:
        assert ctx.match is not None
        number, chosen = map(int, ctx.match.groups())
        if number != len(ctx.data["results"]):
            ctx.answer_callback("This question is over.")
            return
        text, options, right = QUESTIONS[number]
        verdict = "Right!" if chosen == right else f"No, it is {options[right]}."
        ctx.edit(f"{number + 1}. {text}\n{options[chosen]}: {verdict}")
        note(ctx, right=chosen == right)

    @router.on(kind("message", "callback_query"))
    async def otherwise(ctx: Context) -> None:
        ctx.answer("Press a button." if ctx.flow else "/quiz begins.")

    return router
