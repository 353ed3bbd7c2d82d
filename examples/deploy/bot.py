"""The bot of the deployments in this folder: replace it by yours, and keep the first lines for OpenTelemetry."""

import os

from stepwell.fsm import FSM, Context, Flow, Router, command, fsm_state, state, text

if "OTEL_EXPORTER_OTLP_ENDPOINT" in os.environ:
    # opentelemetry-instrument has set up the providers before this file is loaded.
    from stepwell.adapters.otel import instrument

    instrument()


class Registration(Flow, name="registration"):
    get_name = state(to=[])
    default_state = get_name


router = Router(FSM("my_bot", storage=os.environ.get("STEPWELL_STORAGE", "sqlite:///bot.db"), flows=[Registration]))


@router.on(command("register"))
async def begin(ctx: Context) -> None:
    ctx.start_flow(Registration)
    ctx.answer("What's your name?")


@router.on(fsm_state(Registration.get_name), text())
async def get_name(ctx: Context) -> None:
    ctx.answer(f"Welcome, {ctx.text}!")
    ctx.clear_flow()
