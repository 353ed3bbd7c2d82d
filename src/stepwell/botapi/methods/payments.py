"""Invoices and payments."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, replace
from typing import Any

from stepwell.botapi.call import Call, Method
from stepwell.botapi.errors import bad_request
from stepwell.botapi.keyboards import markup_of
from stepwell.botapi.methods.messages.sending import deliver
from stepwell.botapi.objects import PendingInvoice, Room
from stepwell.botapi.params import Params
from stepwell.botapi.world import World

__all__ = ["METHODS", "Payment", "start_payment"]

#: Telegram Stars, which need no payment provider.
STARS = "XTR"
#: Bytes.
MAX_PAYLOAD = 128
_NEEDS = {
    "need_name": "name",
    "need_phone_number": "phone_number",
    "need_email": "email",
    "need_shipping_address": "shipping_address",
}


@dataclass(frozen=True, slots=True)
class Payment:
    """A payment of a user that the bot has not confirmed yet."""

    room: Room
    user: dict[str, Any]
    invoice: PendingInvoice
    total: int
    order_info: dict[str, Any]
    shipping_option: str | None = None

    def json(self) -> dict[str, Any]:
        """Return the fields that a pre-checkout query and a successful payment have in common."""
        return {
            "currency": self.invoice.json["currency"],
            "total_amount": self.total,
            "invoice_payload": self.invoice.payload,
            **({"shipping_option_id": self.shipping_option} if self.shipping_option is not None else {}),
            **({"order_info": self.order_info} if self.order_info else {}),
        }


def send_invoice(call: Call) -> dict[str, Any]:
    invoice = _invoice(call)
    markup = markup_of(call.params)
    if markup is not None and not _starts_with_pay(markup):
        raise bad_request("REPLY_MARKUP_BUY_EMPTY")
    button = {} if markup is not None else {"reply_markup": {"inline_keyboard": [[{"text": "Pay", "pay": True}]]}}
    message = deliver(call, invoice=invoice.json, **button)
    call.room().invoices[message["message_id"]] = invoice
    return message


def create_link(call: Call) -> str:
    link = f"https://t.me/$invoice-{secrets.token_urlsafe(8)}"
    call.world.invoices[link] = _invoice(call)
    return link


def _invoice(call: Call) -> PendingInvoice:
    params = call.params
    title, description = params.required("title"), params.required("description")
    payload, currency = params.required("payload"), params.required("currency")
    if len(payload.encode()) > MAX_PAYLOAD:
        raise bad_request("INVOICE_PAYLOAD_INVALID")
    if not re.fullmatch("[A-Z]{3}", currency):
        raise bad_request("CURRENCY_INVALID")
    if currency != STARS and not params.has("provider_token"):
        raise bad_request("PAYMENT_PROVIDER_INVALID")
    prices = _prices(params, "prices")
    if currency == STARS and len(prices) != 1:
        raise bad_request("STARS_INVOICE_INVALID")
    total = sum(prices)
    if total <= 0:
        raise bad_request("CURRENCY_TOTAL_AMOUNT_INVALID")
    about = {"title": title, "description": description, "start_parameter": params.text("start_parameter")}
    return PendingInvoice(
        call.bot,
        {**about, "currency": currency, "total_amount": total},
        payload,
        tuple(part for name, part in _NEEDS.items() if params.flag(name)),
        is_flexible=params.flag("is_flexible"),
        max_tip=params.number("max_tip_amount", 0),
        subscription=params.number("subscription_period", 0),
    )


def _prices(params: Params, name: str) -> list[int]:
    prices = params.objects(name)
    if not prices:
        raise bad_request("there must be at least one price")
    for price in prices:
        if not price.get("label"):
            raise bad_request("can't parse labeled price: LabeledPrice label must be non-empty")
    return [Params(price).number("amount") for price in prices]


def _starts_with_pay(markup: dict[str, Any]) -> bool:
    rows = markup.get("inline_keyboard") or [[]]
    return bool(rows[0]) and "pay" in rows[0][0]


# Payments


def start_payment(world: World, payment: Payment) -> str:
    """Send the first query of a payment, and return its id."""
    if not payment.invoice.is_flexible:
        return _check_out(world, payment)
    query = {
        "from": dict(payment.user),
        "invoice_payload": payment.invoice.payload,
        "shipping_address": payment.order_info.get("shipping_address", {}),
    }
    return world.ask(payment.invoice.bot, "shipping_query", query, payment)


def _check_out(world: World, payment: Payment) -> str:
    return world.ask(payment.invoice.bot, "pre_checkout_query", {"from": dict(payment.user), **payment.json()}, payment)


def answer_shipping(call: Call) -> bool:
    params = call.params
    ok = params.flag("ok")
    options = params.objects("shipping_options") if ok else []
    if ok and not options:
        raise bad_request("there must be at least one shipping option")
    chosen = next(iter(options), {})
    extra = sum(_prices(Params(chosen), "prices")) if ok else 0
    error = "" if ok else params.required("error_message")
    answer = {"ok": ok, "shipping_options": options, "error_message": error}
    payment = call.world.answer(call.bot, "shipping_query", params.text("shipping_query_id"), answer)
    if ok:
        # The user chooses the first option.
        total, option = payment.total + extra, str(chosen.get("id"))
        _check_out(call.world, replace(payment, total=total, shipping_option=option))
    return True


def answer_checkout(call: Call) -> bool:
    params, world = call.params, call.world
    ok = params.flag("ok")
    answer = {"ok": ok, "error_message": "" if ok else params.required("error_message")}
    payment = world.answer(call.bot, "pre_checkout_query", params.text("pre_checkout_query_id"), answer)
    if ok:
        _finish(world, payment)
    return True


def _finish(world: World, payment: Payment) -> None:
    charge = secrets.token_urlsafe(24)
    paid = {
        **payment.json(),
        "telegram_payment_charge_id": charge,
        "provider_payment_charge_id": secrets.token_urlsafe(12),
    }
    if payment.invoice.subscription:
        expires = int(world.clock()) + payment.invoice.subscription
        paid |= {"subscription_expiration_date": expires, "is_recurring": True, "is_first_recurring": True}
    world.payments[charge] = {
        "bot": payment.invoice.bot.id,
        "user": payment.user["id"],
        "paid": paid,
        "refunded": False,
    }
    world.post(payment.room, payment.user, successful_payment=paid)


def refund(call: Call) -> bool:
    found = call.world.payments.get(call.params.required("telegram_payment_charge_id"))
    user_id = call.params.number("user_id", 0)
    if found is None or (found["bot"], found["user"]) != (call.bot.id, user_id) or found["paid"]["currency"] != STARS:
        raise bad_request("CHARGE_NOT_FOUND")
    if found["refunded"]:
        raise bad_request("CHARGE_ALREADY_REFUNDED")
    found["refunded"] = True
    names = ("currency", "total_amount", "invoice_payload", "telegram_payment_charge_id", "provider_payment_charge_id")
    refunded = {name: found["paid"][name] for name in names}
    call.world.post(call.world.private(call.bot, user_id), call.bot.user, refunded_payment=refunded)
    return True


METHODS: dict[str, Method] = {
    "sendInvoice": send_invoice,
    "createInvoiceLink": create_link,
    "answerShippingQuery": answer_shipping,
    "answerPreCheckoutQuery": answer_checkout,
    "refundStarPayment": refund,
}
