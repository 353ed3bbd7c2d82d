"""A bot for the tests of the page: keyboards, a timeout, secrets, and a group's topics."""

from stepwell import Storage
from stepwell.fsm import FSM, Context, Flow, Router, callback, command, fsm_state, keys, state, text


class Order(Flow, name="order"):
    drink = state(to=["size", "drink"])
    size = state(to=["note", "drink"], timeout=600, on_timeout="drink")
    note = state(to=["pay", "size"])
    pay = state(to=[])
    default_state = drink


class Feedback(Flow, name="feedback"):
    stars = state()
    words = state()
    default_state = stars


def make_router(storage: Storage | str) -> Router:
    router = Router(FSM("cafe", storage=storage, flows=[Order, Feedback], key=keys.ChatTopicUser()))

    @router.on(command("order"))
    async def begin(ctx: Context) -> None:
        """Order something to drink."""
        ctx.start_flow(Order)
        ctx.update_data(api_key="very-secret-value", count=0)
        ctx.answer("What will it be?", reply_markup={"keyboard": [["Tea", "Coffee"]], "one_time_keyboard": True})

    @router.on(command("feedback"))
    async def feedback(ctx: Context) -> None:
        """Say what you think."""
        ctx.start_flow(Feedback)
        ctx.answer("How many stars?")

    @router.on(command("crash"))
    async def crash(ctx: Context) -> None:
        """Raise an error."""
        raise RuntimeError("as you wish")

    @router.on(fsm_state(Order.drink), text())
    async def drink(ctx: Context) -> None:
        ctx.update_data(drink=ctx.text)
        ctx.transition("size")
        buttons = [{"text": "Small", "callback_data": "small"}, {"text": "Large", "callback_data": "large"}]
        ctx.answer("Which size?", reply_markup={"inline_keyboard": [buttons]})

    @router.on(fsm_state(Order.size), callback())
    async def size(ctx: Context) -> None:
        ctx.update_data(size=ctx.update.callback_data)
        ctx.transition("note")
        ctx.answer_callback("A good choice.")
        ctx.answer("Anything else to say?")

    @router.on(fsm_state(Order.note), text())
    async def note(ctx: Context) -> None:
        ctx.update_data(note=ctx.text, count=ctx.data["count"] + 1)
        ctx.answer(f"Noted {ctx.data['count']}: {ctx.text}")

    return router
