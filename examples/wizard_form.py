"""A registration wizard made with Form: BOT_TOKEN=... stepwell run examples/wizard_form.py"""

from dataclasses import dataclass

from stepwell.fsm import FSM, Context, Form, Router


@dataclass
class Person:
    name: str
    email: str


async def done(ctx: Context, person: Person) -> None:
    ctx.answer(f"Registered! Welcome, {person.name}!")


ask = {"name": "What's your name?", "email": "What's your email?"}
bad = {"bad.email": "Please send an email address, such as alice@example.com."}
valid = {"email": lambda ctx, email: "@" in email}
form = Form(Person, name="wizard", command="register", ask=ask, validate=valid, strings=bad, idle=600, on_done=done)
router = Router(FSM("wizard_bot", storage="sqlite:///wizard.db", flows=[form.flow]))
router.include(form.router)
