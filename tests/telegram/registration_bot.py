"""A bot that asks for a name and an address, one question after the other."""

from stepwell.fsm import FSM, Flow, Router, command, fsm_state, state, text


class Registration(Flow, name="registration"):
    get_name = state(to=["get_email"])
    get_email = state(to=[])
    default_state = get_name


router = Router(FSM("my_bot", storage="sqlite:///bot.db", flows=[Registration]))


@router.on(command("register"))
async def begin(ctx):
    ctx.start_flow(Registration)
    ctx.answer("What's your name?")


@router.on(fsm_state(Registration.get_name), text())
async def get_name(ctx):
    ctx.update_data(name=ctx.text)
    ctx.transition("get_email")
    ctx.answer(f"Got it, {ctx.text}! What's your email?")
