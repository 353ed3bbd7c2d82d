"""Bot API methods that deliver updates: getUpdates and webhooks."""

from __future__ import annotations

import re
from typing import Any

from stepwell.botapi.call import Call, Method
from stepwell.botapi.errors import Refusal, bad_request
from stepwell.botapi.http.webhook import WebhookInfo

__all__ = ["METHODS"]


async def get_updates(call: Call) -> list[dict[str, Any]]:
    params = call.params
    if call.webhooks.of(call.bot) is not None:
        raise Refusal(
            409,
            "Conflict: can't use getUpdates method while webhook is active; "
            "use deleteWebhook to delete the webhook first",
        )
    call.bot.updates.allow(params.texts("allowed_updates"))
    timeout = min(max(params.number("timeout", 0), 0), 50)
    return await call.bot.updates.poll(params.number("offset", 0), params.number("limit", 100), timeout)


async def set_webhook(call: Call) -> bool:
    params = call.params
    if not params.text("url"):
        return await delete_webhook(call)
    secret = params.text("secret_token")
    if not re.fullmatch(r"[A-Za-z0-9_-]{0,256}", secret):
        raise bad_request("secret token contains unallowed characters")
    connections = params.number("max_connections", 40)
    if not 1 <= connections <= 100:
        raise bad_request("max_connections is from 1 to 100")
    call.bot.updates.allow(params.texts("allowed_updates"))
    if params.flag("drop_pending_updates"):
        call.bot.updates.drop()
    await call.webhooks.set(call.bot, WebhookInfo(params.text("url"), secret, connections))
    return True


async def delete_webhook(call: Call) -> bool:
    await call.webhooks.delete(call.bot)
    if call.params.flag("drop_pending_updates"):
        call.bot.updates.drop()
    return True


def get_webhook_info(call: Call) -> dict[str, Any]:
    updates = call.bot.updates
    info: dict[str, Any] = {
        "url": "",
        "has_custom_certificate": False,
        "pending_update_count": len(updates.pending),
        **({"allowed_updates": sorted(updates.allowed)} if updates.allowed else {}),
    }
    webhook = call.webhooks.of(call.bot)
    return info if webhook is None else {**info, **webhook.json()}


METHODS: dict[str, Method] = {
    "getUpdates": get_updates,
    "setWebhook": set_webhook,
    "deleteWebhook": delete_webhook,
    "getWebhookInfo": get_webhook_info,
}
