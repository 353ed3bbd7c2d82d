"""Bot API methods that answer callback queries and inline queries."""

from __future__ import annotations

from typing import Any

from stepwell.botapi.call import Call, Method
from stepwell.botapi.errors import bad_request

__all__ = ["METHODS"]

#: The longest notice in characters.
MAX_NOTICE = 200
MAX_RESULTS = 50


def answer_callback(call: Call) -> bool:
    params = call.params
    if len(params.text("text")) > MAX_NOTICE:
        raise bad_request("MESSAGE_TOO_LONG")
    answer = {
        "text": params.text("text"),
        "show_alert": params.flag("show_alert"),
        "url": params.text("url"),
        "cache_time": params.number("cache_time", 0),
    }
    call.world.answer(call.bot, "callback_query", params.text("callback_query_id"), answer)
    return True


def answer_inline(call: Call) -> bool:
    params = call.params
    results = params.json("results", list)
    if results is None:
        raise bad_request("results is empty")
    if len(results) > MAX_RESULTS:
        raise bad_request("too many inline query results specified")
    answer: dict[str, Any] = {
        "results": results,
        "cache_time": params.number("cache_time", 300),
        "is_personal": params.flag("is_personal"),
        "next_offset": params.text("next_offset"),
        "button": params.json("button", dict),
    }
    call.world.answer(call.bot, "inline_query", params.text("inline_query_id"), answer)
    return True


METHODS: dict[str, Method] = {"answerCallbackQuery": answer_callback, "answerInlineQuery": answer_inline}
