"""The checks of a call that need no chat."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from stepwell.botapi.errors import Refusal, quoted
from stepwell.botapi.formatting.texts import text_of
from stepwell.botapi.keyboards import markup_of
from stepwell.botapi.official import like_official, official_name
from stepwell.botapi.params import Params

__all__ = ["check_call"]


def check_call(call: Mapping[str, Any]) -> None:
    """Raise ``Refusal`` for a method, text, caption or keyboard that Telegram refuses.

    Example::

        from stepwell.botapi import check_call

        check_call({"method": "sendMessage", "chat_id": 42, "text": "Hello"})
    """
    method, markup = call["method"], call.get("reply_markup")
    if official_name(method) is None:
        near = like_official(method)
        hint = f"; did you mean {quoted(near)}?" if near else " (Bot API 10.3)"
        raise Refusal(404, f"Not Found: Telegram has no method {quoted(method)}{hint}")
    # As it is sent: tuples become arrays.
    params = Params(call if markup is None else {**call, "reply_markup": json.dumps(markup)})
    edits = method.startswith("edit")
    if method in ("sendMessage", "editMessageText") and "rich_message" not in call:
        text_of(params, edits=edits)
    if method == "sendMessageDraft":
        text_of(params, may_be_empty=True)
    if "caption" in call:
        text_of(params, "caption", "caption_entities", edits=edits)
    markup_of(params)
