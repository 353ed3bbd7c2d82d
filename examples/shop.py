"""A shop: a cart that times out, going back, a nested flow that asks for an address, and a new release.

``python examples/shop.py`` plays a visit, with a deploy in the middle that renames a state.
"""

import asyncio
from typing import Any

from stepwell import Storage
from stepwell.fsm import FSM, Context, Flow, Router, command, fsm_in_flow, fsm_state, state, text
from stepwell.testing import Chat

WEEK = 7 * 24 * 3600


class AskAddress(Flow, name="address"):
    """Ask for an address, and return it to the calling flow."""

    street = state(to=["city"])
    city = state(to=[])
    default_state = street


async def empty_the_cart(ctx: Context) -> None:
    ctx.answer(f"Your cart of {len(ctx.data['items'])} was emptied. /shop to begin again.")
    ctx.clear_flow()


class Shop(Flow, name="shop", ttl=WEEK):
    cart = state(to=["delivery"], timeout=1800, on_timeout=empty_the_cart)
    delivery = state(to=["pay"])
    pay = state(to=[], timeout=600, on_timeout="delivery")
    default_state = cart

    @staticmethod
    def on_enter(ctx: Context, state: str) -> None:
        if state == "pay":
            ctx.answer(f"By {ctx.data['by']} to {ctx.data['address']}. Pay now?")


class NextShop(Flow, name="shop", ttl=WEEK, revision=2):
    """The next release: ``delivery`` is called ``shipping``, and items have a quantity."""

    cart = state(to=["shipping"], timeout=1800, on_timeout=empty_the_cart)
    shipping = state(to=["pay"])
    pay = state(to=[], timeout=600, on_timeout="shipping")
    default_state = cart
    on_enter = Shop.on_enter

    @staticmethod
    def migrate(old_revision: int, state: str | None, data: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
        data["items"] = [(item, 1) for item in data["items"]]
        return "shipping" if state == "delivery" else state, data


def make_router(storage: Storage | str, shop: type[Flow] = Shop) -> Router:
    """Return the bot, in this release or the next."""
    router = Router(FSM("shop_bot", storage=storage, flows=[shop, AskAddress], on_invalid_transition="ignore"))
    cart, sending, _ = shop.states

    @router.on(command("shop"))
    async def begin(ctx: Context) -> None:
        ctx.clear_flow()
        ctx.start_flow(shop)
        ctx.update_data(items=[])
        ctx.answer("What would you like? /checkout when you are done.")

    @router.on(command("cancel"), fsm_in_flow())
    async def cancel(ctx: Context) -> None:
        ctx.clear_flow()
        ctx.answer("Cancelled.")

    @router.on(command("back"), fsm_in_flow())
    async def back(ctx: Context) -> None:
        moved = ctx.back()
        ctx.answer(f"Back at {ctx.state}." if moved else "There is no way back from here.")

    @router.on(fsm_state(cart), command("checkout"))
    async def checkout(ctx: Context) -> None:
        ctx.transition(sending)
        ctx.push_flow(AskAddress, into="address")
        ctx.answer("Which street?")

    @router.on(fsm_state(cart), text())
    async def add(ctx: Context) -> None:
        ctx.data["items"].append(ctx.text if shop is Shop else (ctx.text, 1))
        ctx.answer(f"{len(ctx.data['items'])} in your cart.")

    @router.on(fsm_state(AskAddress.street), text())
    async def street(ctx: Context) -> None:
        ctx.update_data(street=ctx.text)
        ctx.transition("city")
        ctx.answer("Which city?")

    @router.on(fsm_state(AskAddress.city), text())
    async def city(ctx: Context) -> None:
        ctx.pop_flow(f"{ctx.data['street']}, {ctx.text}")
        ctx.answer("By post, or by bike?")

    @router.on(fsm_state(sending), text())
    async def by(ctx: Context) -> None:
        ctx.update_data(by=ctx.text)
        ctx.transition("pay")

    return router


async def main() -> None:
    async with Chat(make_router) as chat:
        for words in ("/shop", "tea", "cups", "/checkout", "Main Street 1", "Berlin"):
            await chat.send(words)
        await chat.restart(lambda storage: make_router(storage, NextShop))
        await chat.send("bike")
        await chat.send("/back")
        print(chat)
        print(await chat.record())


if __name__ == "__main__":
    asyncio.run(main())
