"""The registration bot for ``stepwell run``, with reminders.

Leases and the pause of the outbox are short, so that a killed process does not delay the next one.
"""

from __future__ import annotations

from examples.registration import Registration, handlers

from stepwell import Storage
from stepwell.fsm import FSM, Context, Flow, Router, command, state
from stepwell.fsm.timers import outbox


async def remind(ctx: Context) -> None:
    ctx.answer(f"Reminder {ctx.data['number']}")
    ctx.clear_flow()


if __name__ == "polling_bot":
    # Only in the process of the bot.
    outbox.RETRY = 2.0


class Reminder(Flow, name="reminder"):
    waiting = state(to=[], timeout=0.2, idle=True, on_timeout=remind)
    default_state = waiting


def make_router(storage: Storage | str, registration: type[Flow] = Registration) -> Router:
    router = Router(FSM("my_bot", storage=storage, flows=[registration, Reminder], lease=1.0))

    @router.on(command("remind"))
    async def begin(ctx: Context) -> None:
        ctx.start_flow(Reminder)
        ctx.update_data(number=ctx.args)
        ctx.answer(f"Waiting {ctx.args}")

    router.include(handlers)
    return router
