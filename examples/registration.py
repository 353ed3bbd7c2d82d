"""A registration bot. Kill it between any two messages and start it again: the conversation continues.

python -m stepwell demo               # this bot in your terminal
python examples/registration.py       # the same, without the demo
"""

import sys

from stepwell import Storage
from stepwell.fsm import FSM, Context, Flow, Router, command, fsm_in_flow, fsm_state, kind, state, text


class Registration(Flow, name="registration"):
    get_name = state(to=["get_email"])
    get_email = state(to=["confirm"])
    confirm = state(to=[])
    default_state = get_name


handlers = Router()


@handlers.on(command("register"))
async def begin(ctx: Context) -> None:
    ctx.start_flow(Registration)
    ctx.answer("What's your name?")


@handlers.on(command("cancel"), fsm_in_flow())
async def cancel(ctx: Context) -> None:
    ctx.clear_flow()
    ctx.answer("Cancelled.")


@handlers.on(fsm_state(Registration.get_name), text())
async def get_name(ctx: Context) -> None:
    ctx.update_data(name=ctx.text)
    ctx.transition("get_email")
    ctx.answer(f"Got it, {ctx.text}! What's your email?")


@handlers.on(fsm_state(Registration.get_email), text())
async def get_email(ctx: Context) -> None:
    if "@" in (ctx.text or ""):
        ctx.update_data(email=ctx.text)
        ctx.transition("confirm")
        ctx.answer("Please confirm.")
    else:
        ctx.answer("Please send an email address, such as alice@example.com.")


@handlers.on(fsm_state(Registration.confirm), text("yes"))
async def confirm(ctx: Context) -> None:
    ctx.answer(f"Registered! Welcome, {ctx.data['name']}!")
    ctx.clear_flow()


@handlers.on(kind("message"))
async def otherwise(ctx: Context) -> None:
    ctx.answer("Say yes, or /cancel." if ctx.state == "confirm" else "Say /register to begin.")


def make_router(storage: Storage | str) -> Router:
    """Return the bot over any storage."""
    router = Router(FSM("registration_bot", storage=storage, flows=[Registration]))
    router.include(handlers)
    return router


if __name__ == "__main__":
    bot = make_router("sqlite:///registration.db")
    me = {"id": 42, "first_name": "Me"}
    for line in sys.stdin:
        for call in bot.handle_sync({"message": {"from": me, "chat": me, "text": line.strip()}}):
            print(call["text"], flush=True)
