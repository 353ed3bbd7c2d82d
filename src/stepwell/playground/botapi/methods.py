"""The table of supported Bot API methods, and the methods for the bot itself."""

from __future__ import annotations

import inspect
import json
import re
from typing import Any

from stepwell.playground.botapi import chats, media, messages
from stepwell.playground.botapi.call import Call, Method
from stepwell.playground.botapi.params import Params
from stepwell.playground.botapi.refusal import ConnectionCut, Refusal, bad_request
from stepwell.playground.botapi.webhook import WebhookInfo, Webhooks
from stepwell.playground.botapi.world import Bot, World

__all__ = ["METHODS", "perform"]


async def perform(world: World, webhooks: Webhooks, bot: Bot, name: str, params: Params) -> Any:
    """Run a method and record the call. Raises ``Refusal`` or ``ConnectionCut``."""
    noted = {"method": name, **params.given, **{field: upload.name for field, upload in params.files.items()}}
    try:
        failure = bot.failure_of(name, params.given.get("chat_id"))
        if failure is not None and failure.refusal is not None:
            raise failure.refusal
        if failure is not None and not failure.after:
            raise ConnectionCut
        method = _BY_LOWER_NAME.get(name.lower())
        if method is None:
            raise Refusal(404, "Not Found: method not found")
        result = method(Call(world, webhooks, bot, params))
        result = await result if inspect.iscoroutine(result) else result
    except Refusal as refusal:
        world.called(bot, {**noted, "answer": refusal.json()})
        raise
    if name.lower() != "getupdates":
        world.called(bot, {**noted, "answer": {"ok": True, "result": result}})
    if failure is not None:
        raise ConnectionCut
    return result


def get_me(call: Call) -> dict[str, Any]:
    abilities = {
        "can_join_groups": True,
        "can_read_all_group_messages": True,
        "supports_inline_queries": True,
        "can_connect_to_business": False,
        "has_main_web_app": False,
    }
    return {**call.bot.user, **abilities}


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


def answer_callback(call: Call) -> bool:
    params = call.params
    answer = {"text": params.text("text"), "show_alert": params.flag("show_alert"), "url": params.text("url")}
    call.world.answer(call.bot, "callback_query", params.text("callback_query_id"), answer)
    return True


def answer_inline(call: Call) -> bool:
    results = call.params.json("results", list)
    if results is None:
        raise bad_request("results is empty")
    if len(results) > 50:
        raise bad_request("RESULTS_TOO_MUCH")
    call.world.answer(call.bot, "inline_query", call.params.text("inline_query_id"), {"results": results})
    return True


def send_chat_action(call: Call) -> bool:
    call.room()
    if not call.params.text("action"):
        raise bad_request("wrong parameter action in request")
    return True


def set_commands(call: Call) -> bool:
    commands = call.params.objects("commands")
    for command in commands:
        if not re.fullmatch(r"[a-z0-9_]{1,32}", str(command.get("command", ""))):
            raise bad_request("BOT_COMMAND_INVALID")
        if not 1 <= len(str(command.get("description", ""))) <= 256:
            raise bad_request("BOT_COMMAND_DESCRIPTION_INVALID")
    call.bot.commands[_scope(call)] = commands
    return True


def get_commands(call: Call) -> list[Any]:
    return call.bot.commands.get(_scope(call), [])


def delete_commands(call: Call) -> bool:
    call.bot.commands.pop(_scope(call), None)
    return True


def _scope(call: Call) -> tuple[str, str]:
    scope = call.params.json("scope", dict) or {"type": "default"}
    return json.dumps(scope, sort_keys=True), call.params.text("language_code")


def _nothing(call: Call) -> bool:
    return True


METHODS: dict[str, Method] = {
    "getMe": get_me,
    "getUpdates": get_updates,
    "setWebhook": set_webhook,
    "deleteWebhook": delete_webhook,
    "getWebhookInfo": get_webhook_info,
    "answerCallbackQuery": answer_callback,
    "answerInlineQuery": answer_inline,
    "sendChatAction": send_chat_action,
    "setMyCommands": set_commands,
    "getMyCommands": get_commands,
    "deleteMyCommands": delete_commands,
    **messages.METHODS,
    **chats.METHODS,
    **media.METHODS,
    # Accepted without effect.
    **dict.fromkeys(
        (
            "logOut", "close", "setMyName", "setMyDescription", "setMyShortDescription", "setChatMenuButton",
            "setMyDefaultAdministratorRights", "pinChatMessage", "unpinChatMessage", "unpinAllChatMessages",
            "setMessageReaction", "answerShippingQuery", "answerPreCheckoutQuery",
        ),
        _nothing,
    ),
}  # fmt: skip
_BY_LOWER_NAME = {name.lower(): method for name, method in METHODS.items()}
