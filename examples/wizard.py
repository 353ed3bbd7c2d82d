"""A registration wizard: stepwell play examples/wizard.py. With Form: examples/cookbook/registration.py."""

from stepwell.fsm import FSM, Context, Flow, Router, callback, command, fsm_flow, fsm_state, keyboard, state, text


async def ask(ctx: Context, state: str | None) -> None:
    if state == "confirm":
        ctx.answer("{name}, {email}: is that right?".format(**ctx.data), reply_markup=keyboard([["Confirm", "Cancel"]]))
    else:
        ctx.answer("What's your name?" if state == "get_name" else "What's your email?")


async def remind(ctx: Context) -> None:
    ctx.answer("Are you still there? Please answer the question, or /cancel.")


class Wizard(Flow, name="wizard"):
    get_name = state(to=["get_email"], timeout=600, idle=True, on_timeout=remind)
    get_email = state(to=["confirm"], timeout=600, idle=True, on_timeout=remind)
    confirm = state(to=[], timeout=600, idle=True, on_timeout=remind)
    default_state = get_name
    on_enter = staticmethod(ask)


router = Router(FSM("wizard_bot", storage="sqlite:///wizard.db", flows=[Wizard]))


@router.on(command("register"))
async def begin(ctx: Context) -> None:
    ctx.start_flow(Wizard)


@router.on(command("back"), fsm_state(Wizard.get_email) | fsm_state(Wizard.confirm))
async def back(ctx: Context) -> None:
    ctx.back()


@router.on(fsm_state(Wizard.get_name), text())
async def get_name(ctx: Context) -> None:
    ctx.update_data(name=ctx.text)
    ctx.transition("get_email")


@router.on(fsm_state(Wizard.get_email), text())
async def get_email(ctx: Context) -> None:
    if "@" in (ctx.text or ""):
        ctx.update_data(email=ctx.text)
        ctx.transition("confirm")
    else:
        ctx.answer("Please send an email address, such as alice@example.com.")


@router.on(
    callback("Confirm") & fsm_state(Wizard.confirm) | (callback("Cancel") | command("cancel")) & fsm_flow(Wizard)
)
async def end(ctx: Context) -> None:
    ctx.answer(f"Registered! Welcome, {ctx.data['name']}!" if ctx.update.callback_data == "Confirm" else "Cancelled.")
    ctx.clear_flow()
    if ctx.update.callback_id:
        ctx.answer_callback()
