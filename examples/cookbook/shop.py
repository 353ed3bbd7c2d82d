"""A shop that is paid in Telegram Stars: a cart, an invoice, and each order paid once.

stepwell play shop.py
"""

import re

from stepwell import Storage
from stepwell.fsm import (
    FSM,
    Context,
    Flow,
    Router,
    button,
    callback,
    command,
    content,
    fsm_state,
    keyboard,
    keys,
    kind,
    state,
)

#: The price of each item in Stars.
ITEMS = {"Tea": 30, "Cake": 50}
MENU = keyboard(
    [
        [button(f"{item} ★ {price}", data=f"add:{item}") for item, price in ITEMS.items()],
        [button("Empty", data="empty"), button("Pay", data="checkout")],
    ]
)


class Order(Flow, name="order"):
    cart = state(to=["paying"])
    #: An invoice is open. /shop begins a new order, whose invoice is another one.
    paying = state(to=[])
    default_state = cart


def total(ctx: Context) -> int:
    return sum(ITEMS[item] for item in ctx.data["items"])


def cart(ctx: Context) -> str:
    return f"Your cart: {', '.join(ctx.data['items']) or 'empty'}. ★ {total(ctx)}"


def is_invoice_of_order(ctx: Context, payload: str) -> bool:
    """Whether an invoice is the newest one of the order that is open."""
    return ctx.state == "paying" and ctx.data["number"] == payload


def make_router(storage: Storage | str) -> Router:
    # The query of a payment belongs to no chat, so the key is the user.
    router = Router(FSM("shop", storage=storage, flows=[Order], key=keys.User()))

    @router.on(command("start", "shop"))
    async def begin(ctx: Context) -> None:
        """Show the menu"""
        ctx.start_flow(Order)
        ctx.update_data(items=[])
        ctx.answer(cart(ctx), reply_markup=MENU)

    @router.on(callback(re.compile("^add:(.*)")), fsm_state(Order.cart))
    async def add(ctx: Context) -> None:
        assert ctx.match is not None
        ctx.data["items"].append(ctx.match[1])
        ctx.edit(cart(ctx), reply_markup=MENU)

    @router.on(callback("empty"), fsm_state(Order.cart))
    async def empty(ctx: Context) -> None:
        ctx.update_data(items=[])
        ctx.edit(cart(ctx), reply_markup=MENU)

    @router.on(callback("checkout"), fsm_state(Order.cart))
    async def checkout(ctx: Context) -> None:
        if not ctx.data["items"]:
            ctx.answer_callback("Your cart is empty.")
            return
        ctx.transition("paying")
        number = f"order-{ctx.update_id}"
        ctx.update_data(number=number)
        ctx.edit(cart(ctx))
        invoice = {"title": "Your order", "description": cart(ctx), "payload": number}
        # An invoice in Stars has one price.
        price = {"label": "Your order", "amount": total(ctx)}
        ctx.call("sendInvoice", chat_id=ctx.key[0], currency="XTR", prices=[price], **invoice)

    @router.on(kind("pre_checkout_query"))
    async def check(ctx: Context) -> None:
        query = ctx.update.event
        if is_invoice_of_order(ctx, query["invoice_payload"]):
            ctx.call("answerPreCheckoutQuery", pre_checkout_query_id=query["id"], ok=True)
        else:
            reason = "This order was paid or has changed. Please see /shop."
            ctx.call("answerPreCheckoutQuery", pre_checkout_query_id=query["id"], ok=False, error_message=reason)

    @router.on(content("successful_payment"))
    async def paid(ctx: Context) -> None:
        payment = ctx.update.event["successful_payment"]
        if is_invoice_of_order(ctx, payment["invoice_payload"]):
            ctx.answer(f"Thank you! Show this at the counter: {ctx.data['number']}")
            ctx.clear_flow()
        else:
            # Two payments were under way at the same time, or a new order was begun meanwhile.
            charge = payment["telegram_payment_charge_id"]
            ctx.call("refundStarPayment", user_id=ctx.key[0], telegram_payment_charge_id=charge)
            ctx.answer("This order was paid or has changed, so you get this payment back.")

    @router.on(kind("message", "callback_query"))
    async def otherwise(ctx: Context) -> None:
        ctx.answer("Say /shop to begin.")

    return router
