"""A conversation and a node flow together: the flow gets the data of the conversation, and the next message answers
its question.

Both live in one storage. Kill the bot between any two messages, or in the middle of one that Telegram then
delivers again: each node runs once, and each answer counts once.

python examples/both_halves.py        # type /plan, a city, and then yes or no
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable
from typing import Any

from stepwell import Storage, open_storage
from stepwell.fsm import FSM, Context, Flow, Router, command, fsm_state, state, text
from stepwell.nodes import Node, NodeFlow, Parked, Wait


class FindHotel(Node):
    """Stand in for a search by an agent, which is slow."""

    def prep(self, shared: dict[str, Any]) -> tuple[str, int]:
        return shared["city"], shared.get("tried", 0)

    async def exec(self, search: tuple[str, int]) -> str:
        city, tried = search
        return f"{['Grand', 'Plaza', 'Park'][tried % 3]} Hotel {city}"

    def post(self, shared: dict[str, Any], search: Any, hotel: str) -> None:
        shared["hotel"], shared["tried"] = hotel, shared.get("tried", 0) + 1


class Approve(Wait):
    def prep(self, shared: dict[str, Any]) -> str:
        return f"{shared['hotel']}: shall I book it?"

    def post(self, shared: dict[str, Any], question: str, answer: str) -> str:
        return "book" if answer == "yes" else "again"


class Book(Node):
    def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> None:
        shared["booked"] = shared["hotel"]


find, approve = FindHotel(), Approve("approve")
find >> approve
approve - "again" >> find
approve - "book" >> Book()
# Kept for a day, so that a repeated answer gets the same result.
trip = NodeFlow(start=find, name="trip", keep=86_400)


class Plan(Flow, name="plan"):
    city = state(to=["review"])
    review = state(to=["review"])
    default_state = city


def make_router(storage: Storage | str) -> Router:
    """Return the bot over any storage; conversations and runs share it."""
    fsm = FSM("trip_bot", storage=storage, flows=[Plan])
    router = Router(fsm)

    @router.on(command("plan"))
    async def begin(ctx: Context) -> None:
        ctx.start_flow(Plan)
        ctx.answer("Which city?")

    @router.on(fsm_state(Plan.city), text())
    async def search(ctx: Context) -> None:
        # The id comes from the message, so a redelivered message continues the same run.
        flow_id = f"trip-{ctx.key}-{ctx.update.update_id}"
        await go_on(ctx, trip.run({"city": ctx.text}, storage=fsm.storage, flow_id=flow_id, if_exists="resume"))

    @router.on(fsm_state(Plan.review), text())
    async def review(ctx: Context) -> None:
        # The id of the wait, so that a redelivered message cannot answer the next question.
        await go_on(ctx, trip.resume(ctx.data["wait"], ctx.text, storage=fsm.storage))

    async def go_on(ctx: Context, work: Awaitable[dict[str, Any]]) -> None:
        """Run the trip until it asks again or is booked."""
        try:
            final = await work
        except Parked as parked:
            ctx.update_data(wait=parked.id)
            ctx.transition("review")
            ctx.answer(parked.question)
        else:
            ctx.clear_flow()
            ctx.answer(f"Booked: {final['booked']}.")

    return router


if __name__ == "__main__":
    bot = make_router(open_storage("sqlite:///trips.db"))
    me = {"id": 42, "first_name": "Me"}
    for number, line in enumerate(sys.stdin):
        update = {"update_id": number, "message": {"from": me, "chat": me, "text": line.strip()}}
        for call in bot.handle_sync(update):
            print(call["text"], flush=True)
