"""A registration: questions with checks, buttons, a way back and a summary, from a dataclass.

stepwell play registration.py
"""

from dataclasses import dataclass

from stepwell import Storage
from stepwell.fsm import FSM, Context, Form, Router, command


@dataclass
class Person:
    name: str
    email: str


async def done(ctx: Context, person: Person) -> None:
    # The profile outlives the form.
    ctx.profile.update(name=person.name, email=person.email)
    ctx.answer(f"Registered! Welcome, {person.name}!")


def make_router(storage: Storage | str) -> Router:
    form = Form(
        Person,
        name="wizard",
        command="register",
        ask={"name": "What's your name?", "email": "What's your email?"},
        validate={"email": lambda ctx, email: "@" in email},
        strings={"bad.email": "Please send an email address, such as alice@example.com."},
        idle=600,
        on_done=done,
    )
    router = Router(FSM("wizard_bot", storage=storage, flows=[form.flow]))

    @router.on(command("me"))
    async def me(ctx: Context) -> None:
        """What the bot knows of you"""
        known = "{name}, {email}".format(**ctx.profile) if ctx.profile else "Nobody yet. /register"
        ctx.answer(known)

    router.include(form.router)
    return router
