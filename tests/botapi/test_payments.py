"""Invoices, queries and payments."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell.botapi import NotPossible, Person
from tests.botapi.conftest import Client

INVOICE: dict[str, Any] = {
    "title": "Tea", "description": "A cup of tea", "payload": "tea-1", "currency": "XTR",
    "prices": [{"label": "Tea", "amount": 30}],
}  # fmt: skip
EUROS = {**INVOICE, "currency": "EUR", "provider_token": "test"}


async def test_stars_are_paid_and_refunded(call: Client, chat: Person) -> None:
    sent = await call("sendInvoice", chat_id=42, **INVOICE)
    assert sent["invoice"] == {
        "title": "Tea", "description": "A cup of tea", "start_parameter": "", "currency": "XTR", "total_amount": 30,
    }  # fmt: skip
    assert chat.buttons == ["Pay"]
    query_id = await chat.pay()
    query = chat.updates[-1]["pre_checkout_query"]
    assert (query["id"], query["from"]["id"], query["total_amount"]) == (query_id, 42, 30)
    assert query["invoice_payload"] == "tea-1"
    assert await call("answerPreCheckoutQuery", pre_checkout_query_id=query_id, ok=True) is True
    assert (await chat.notice(query_id))["ok"] is True
    message = chat.updates[-1]["message"]
    paid = message["successful_payment"]
    assert (message["from"]["id"], paid["total_amount"], paid["invoice_payload"]) == (42, 30, "tea-1")
    assert (await call("answerPreCheckoutQuery", pre_checkout_query_id=query_id, ok=True))[0] == 400
    charge = {"user_id": 42, "telegram_payment_charge_id": paid["telegram_payment_charge_id"]}
    assert await call("refundStarPayment", **{**charge, "user_id": 7}) == (400, "Bad Request: CHARGE_NOT_FOUND")
    assert await call("refundStarPayment", **charge) is True
    assert chat.updates[-1]["message"]["refunded_payment"]["total_amount"] == 30
    assert await call("refundStarPayment", **charge) == (400, "Bad Request: CHARGE_ALREADY_REFUNDED")


async def test_a_copy_of_an_invoice_is_not_paid(call: Client, chat: Person) -> None:
    number = (await call("sendInvoice", chat_id=42, **INVOICE))["message_id"]
    await call("forwardMessage", chat_id=42, from_chat_id=42, message_id=number)
    with pytest.raises(NotPossible, match="a copy of an invoice"):
        await chat.pay()
    await chat.press("Pay")
    await call("deleteMessage", chat_id=42, message_id=number)
    assert chat.room.invoices == {}


async def test_a_payment_is_declined(call: Client, chat: Person) -> None:
    keyboard = {"inline_keyboard": [[{"text": "Pay 30", "pay": True}]]}
    await call("sendInvoice", chat_id=42, **INVOICE, reply_markup=keyboard)
    query_id = await chat.press("Pay 30")
    assert query_id is not None
    assert await call("answerPreCheckoutQuery", pre_checkout_query_id=query_id, ok=False) == (
        400, 'Bad Request: parameter "error_message" is required')  # fmt: skip
    await call("answerPreCheckoutQuery", pre_checkout_query_id=query_id, ok=False, error_message="Sold out")
    assert (await chat.notice(query_id))["error_message"] == "Sold out"
    assert "successful_payment" not in chat.messages[-1]


async def test_a_flexible_price_has_a_shipping_query(call: Client, chat: Person) -> None:
    needs = {"need_name": True, "need_shipping_address": True, "is_flexible": True, "max_tip_amount": 10}
    await call("sendInvoice", chat_id=42, **EUROS, **needs)
    query_id = await chat.pay(tip=5, order_info={"name": "Alice A."})
    query = chat.updates[-1]["shipping_query"]
    assert query["shipping_address"]["country_code"] == "US"
    assert await call("answerShippingQuery", shipping_query_id=query_id, ok=True) == (
        400, "Bad Request: there must be at least one shipping option")  # fmt: skip
    options = [{"id": "post", "title": "Post", "prices": [{"label": "Stamp", "amount": 7}]}]
    assert await call("answerShippingQuery", shipping_query_id=query_id, ok=True, shipping_options=options) is True
    query = chat.updates[-1]["pre_checkout_query"]
    assert (query["total_amount"], query["shipping_option_id"]) == (42, "post")
    assert query["order_info"]["name"] == "Alice A."
    await call("answerPreCheckoutQuery", pre_checkout_query_id=query["id"], ok=True)
    assert chat.updates[-1]["message"]["successful_payment"]["order_info"] == query["order_info"]
    await chat.pay()
    query_id = chat.updates[-1]["shipping_query"]["id"]
    await call("answerShippingQuery", shipping_query_id=query_id, ok=False, error_message="Too far")
    assert (await chat.notice(query_id))["error_message"] == "Too far"
    with pytest.raises(NotPossible, match="a tip of 0 to 10"):
        await chat.pay(tip=11)


async def test_a_subscription_is_paid_by_a_link(call: Client, chat: Person) -> None:
    link = await call("createInvoiceLink", **INVOICE, subscription_period=2592000)
    query_id = await chat.pay(link)
    await call("answerPreCheckoutQuery", pre_checkout_query_id=query_id, ok=True)
    paid = chat.updates[-1]["message"]["successful_payment"]
    assert (paid["is_recurring"], paid["subscription_expiration_date"] > 0) == (True, True)
    with pytest.raises(NotPossible, match="no invoice link"):
        await chat.pay("https://t.me/$x")
    with pytest.raises(NotPossible, match="sent no invoice"):
        await chat.pay()


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({"title": ""}, 'parameter "title" is required'),
        ({"payload": "x" * 129}, "INVOICE_PAYLOAD_INVALID"),
        ({"currency": "euro"}, "CURRENCY_INVALID"),
        ({"currency": "EUR"}, "PAYMENT_PROVIDER_INVALID"),
        ({"prices": []}, "there must be at least one price"),
        ({"prices": [{"amount": 1}]}, "can't parse labeled price: LabeledPrice label must be non-empty"),
        ({"prices": [{"label": "a", "amount": 1}] * 2}, "STARS_INVOICE_INVALID"),
        ({"prices": [{"label": "a", "amount": 0}]}, "CURRENCY_TOTAL_AMOUNT_INVALID"),
        ({"reply_markup": {"inline_keyboard": [[{"text": "x", "callback_data": "y"}]]}}, "REPLY_MARKUP_BUY_EMPTY"),
    ],
)
async def test_an_invalid_invoice_is_refused(call: Client, chat: Person, params: dict[str, Any], why: str) -> None:
    assert await call("sendInvoice", chat_id=42, **{**INVOICE, **params}) == (400, f"Bad Request: {why}")
