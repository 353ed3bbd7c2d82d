"""A bot with an agent as an operator finds it: a question, a failed turn, refused answers and updates that failed."""

from __future__ import annotations

import asyncio
from typing import Any

from stepwell.fsm import FSM, Update
from stepwell.fsm.engine import leave_calls
from stepwell.fsm.refusals import keep_refused
from stepwell.storage import Storage
from stepwell.telegram.receiving.aside import keep_failed, set_aside
from stepwell.turns import Turn, Turns
from tests.turns.people import People
from tests.until import until

#: A text that would be markup, and one that turns the direction of what follows.
HOSTILE = "<img src=x onerror=alert(1)>\u202egnp.exe"
#: Must not be shown.
SECRET = "sk-hunter2hunter2"


def made(storage: Storage) -> Turns:
    """Return the turns of the bot."""
    turns = Turns("desk", storage=storage, collect=0.0)

    @turns.handler
    async def answer(turn: Turn) -> None:
        if "refund" in turn.text:
            await turn.tool(_look_up, turn.text, replay="safe")
            approved = await turn.ask(f"Refund 40 €? {HOSTILE}", options=("Yes", "No"), approvers=[7, 8])
            turn.answer("Refunded." if approved else "No refund.")
        elif "broken" in turn.text:
            raise RuntimeError(f"the model does not answer: api_key={SECRET} {HOSTILE}")
        else:
            turn.answer(f"You wrote {turn.text}")

    return turns


async def _look_up(text: str) -> str:
    return "order 7"


async def fill(storage: Storage) -> People:
    """Write the conversations and messages."""
    people, turns = People(), made(storage)
    async with turns.worker(send=people.send, drain=0):
        await turns.admit(people.message("Hello", user=41))
        await turns.admit(people.message(f"a refund please {HOSTILE}", user=42))
        await turns.admit(people.message("it is broken", user=43))
        await turns.admit(people.message("still broken", user=44))
        await until(turns.conversations, lambda found: sum(len(each.failed) for each in found) == 2)
        await until(lambda: turns.conversations("asking"))
        await people.answered(4)
        await until(turns.conversations, lambda found: not any(each.unsent for each in found))
    fsm = FSM("desk", storage=storage, flows=[], run_timers=False)
    async with fsm.conversation(key=(42, 42)) as ctx:
        ctx.update_data(name="Anna")
    for number, chat in enumerate((42, 43)):
        call = {"method": "sendMessage", "chat_id": chat, "text": f"Your order {number}: {HOSTILE}", "token": SECRET}
        about = {"update_id": 7, "handler": "bot.answer", "method": "sendMessage", "chat": chat}
        await keep_refused(
            storage, "desk", call, **about, code=403, description="Forbidden: bot was blocked by the user"
        )
    await leave_calls(storage, "desk", (45, 45), [{"method": "sendMessage", "chat_id": 45, "text": "Reminder"}])
    update = people.message(f"poison {HOSTILE}", user=46)
    await set_aside(fsm, update, why="its process has ended each time", attempts=5)
    try:
        raise ValueError(f"password={SECRET} {HOSTILE}")
    except ValueError as error:
        await keep_failed(fsm, Update.of(people.message("fails", user=47)), error)
    return people


async def answered_by(storage: Storage, people: People, count: int) -> list[str]:
    """Run the turns until so many messages were sent."""
    turns = made(storage)
    async with turns.worker(send=people.send, drain=0):
        found = await people.answered(count)
        await asyncio.sleep(0)
    return found


def subject(user: int) -> dict[str, Any]:
    """Return what names a conversation with the agent in a request."""
    return {"bot": "desk", "key": f"({user},0)"}
