"""Reminders: "/remind 20m tea". Each is sent once, also if the bot is down at its time.

stepwell play reminders.py
"""

import re
from typing import Any

from stepwell import Storage
from stepwell.fsm import FSM, Context, Router, button, callback, command, keyboard, kind
from stepwell.nodes import Node, linear

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
WHEN = re.compile(r"(\d{1,4})\s*([smhd])\s+(.+)", re.DOTALL)
HELP = "Say /remind 20m tea, with s, m, h or d. /list shows your reminders."


def make_router(storage: Storage | str) -> Router:
    fsm = FSM("reminders", storage=storage, flows=[])
    router = Router(fsm)

    class Remind(Node):
        """Run by a worker when the time has come."""

        def prep(self, shared: dict[str, Any]) -> dict[str, Any]:
            return shared

        async def exec(self, run: dict[str, Any]) -> None:
            async with fsm.conversation(key=run["key"]) as ctx:
                # It is gone if it was cancelled, or if a crash lets this node run again.
                what = ctx.data.pop(run["reminder"], None)
                if what is not None:
                    ctx.answer(f"Reminder: {what}")

    remind = linear(Remind(max_retries=60, wait=5), name="remind", storage=fsm.storage)
    router.run_workers(remind)

    @router.on(command("remind"))
    async def add(ctx: Context) -> None:
        """Remind you: /remind 20m tea"""
        found = WHEN.fullmatch(ctx.args)
        if found is None:
            ctx.answer(HELP)
            return
        number, unit, what = found.groups()
        # The id of the update: if it is delivered again, there is still one reminder.
        reminder = f"reminder-{ctx.update_id}"
        after = int(number) * SECONDS[unit]
        await remind.submit({"key": ctx.key, "reminder": reminder}, flow_id=reminder, after=after)
        ctx.data[reminder] = what
        ctx.answer(f"In {number}{unit}: {what}")

    @router.on(command("list"))
    async def show(ctx: Context) -> None:
        """Show your reminders"""
        rows = [[button(f"✕ {what}", data=reminder)] for reminder, what in ctx.data.items()]
        if rows:
            ctx.answer("Press one to cancel it.", reply_markup=keyboard(rows))
        else:
            ctx.answer("You have no reminders.")

    @router.on(callback(re.compile(r"^reminder-")))
    async def cancel(ctx: Context) -> None:
        what = ctx.data.pop(str(ctx.update.callback_data), None)
        ctx.edit("It was sent already." if what is None else f"Cancelled: {what}")

    @router.on(kind("message"))
    async def otherwise(ctx: Context) -> None:
        ctx.answer(HELP)

    return router
