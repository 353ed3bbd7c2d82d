"""The shop: each order is paid once and delivered once, whatever is killed or delivered again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from examples.cookbook import shop
from stepwell.botapi import BotAPI
from stepwell.testing import Chat
from tests.examples.cookbook.running import running

EMPTY = "Your cart: empty. ★ 0"


async def checked_out(chat: Chat) -> str:
    """Order a tea, and return the number of the order."""
    assert await chat.send("/shop") == [EMPTY]
    await chat.press("Tea ★ 30")
    await chat.press("Pay")
    invoice = chat.calls[-2] if chat.calls[-1]["method"] == "answerCallbackQuery" else chat.calls[-1]
    assert invoice["prices"] == [{"label": "Your order", "amount": 30}]
    return str(invoice["payload"])


def query(chat: Chat, number: str) -> dict[str, Any]:
    """The question of Telegram whether a payment may be made."""
    asked = {"id": "q", "from": {"id": 42, "first_name": "Alice"}, "currency": "XTR", "total_amount": 30}
    return {"update_id": next_id(chat), "pre_checkout_query": {**asked, "invoice_payload": number}}


def payment(chat: Chat, number: str, charge: str = "c1") -> dict[str, Any]:
    """The message of Telegram that a payment was made."""
    person = {"id": 42, "is_bot": False, "first_name": "Alice"}
    paid = {
        "currency": "XTR", "total_amount": 30, "invoice_payload": number, "telegram_payment_charge_id": charge,
    }  # fmt: skip
    message = {"message_id": next_id(chat), "date": 0, "chat": {"id": 42, "type": "private"}, "from": person}
    return {"update_id": next_id(chat), "message": {**message, "successful_payment": paid}}


def next_id(chat: Chat) -> int:
    return int(chat.updates[-1]["update_id"]) + 1


def calls(chat: Chat, method: str) -> list[dict[str, Any]]:
    return [call for call in chat.calls if call["method"] == method]


async def test_an_order_is_paid_at_a_real_server_and_survives_a_restart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    async with BotAPI() as api:
        bot = api.bot("shop_bot")
        alice = api.chat(bot)
        async with running(shop.make_router(url), api, bot):
            assert await alice.ask("/shop") == EMPTY
            await alice.notice(await alice.press("Tea ★ 30") or "")
            await alice.notice(await alice.press("Cake ★ 50") or "")
            assert alice.last == "Your cart: Tea, Cake. ★ 80"
            await alice.press("Pay")
            while "invoice" not in (await alice.hear()):
                pass
        async with running(shop.make_router(url), api, bot):
            asked = await alice.pay()
            assert (await alice.notice(asked))["ok"] is True
            assert (await alice.answer()).startswith("Thank you! Show this at the counter: order-")
            refused = await alice.notice(await alice.pay())
            assert refused["ok"] is False
            assert refused["error_message"].startswith("This order was paid or has changed.")


@pytest.mark.parametrize("after_commit", [False, True])
async def test_a_payment_that_is_killed_and_delivered_again_gives_one_order_and_no_refund(after_commit: bool) -> None:
    chat = Chat(shop.make_router)
    number = await checked_out(chat)
    chat.kill_next(after_commit=after_commit)
    await chat.deliver(payment(chat, number))
    for _ in range(2):
        assert await chat.redeliver() == [f"Thank you! Show this at the counter: {number}"]
    assert await chat.record() is None
    assert calls(chat, "refundStarPayment") == []


async def test_the_second_of_two_payments_of_one_order_is_paid_back_once() -> None:
    chat = Chat(shop.make_router)
    number = await checked_out(chat)
    for _ in range(2):
        await chat.deliver(query(chat, number))
        assert calls(chat, "answerPreCheckoutQuery")[-1]["ok"] is True
    assert (await chat.deliver(payment(chat, number)))[0].startswith("Thank you!")
    chat.kill_next()
    await chat.deliver(payment(chat, number, "c2"))
    assert await chat.redeliver() == ["This order was paid or has changed, so you get this payment back."]
    assert [call["telegram_payment_charge_id"] for call in calls(chat, "refundStarPayment")] == ["c2"]


async def test_the_invoice_of_an_order_that_has_changed_is_refused() -> None:
    chat = Chat(shop.make_router)
    number = await checked_out(chat)
    await chat.send("/shop")
    await chat.deliver(query(chat, number))
    assert calls(chat, "answerPreCheckoutQuery")[-1]["ok"] is False
    newer = await checked_out(chat)
    assert newer != number
    await chat.deliver(query(chat, newer))
    assert calls(chat, "answerPreCheckoutQuery")[-1]["ok"] is True


async def test_an_empty_cart_has_no_invoice() -> None:
    chat = Chat(shop.make_router)
    await chat.send("/shop")
    await chat.press("Tea ★ 30")
    await chat.press("Empty")
    await chat.press("Pay")
    assert calls(chat, "answerCallbackQuery")[-1]["text"] == "Your cart is empty."
    assert calls(chat, "sendInvoice") == []
