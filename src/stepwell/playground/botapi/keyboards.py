"""Keyboards: checks of reply markup, and the buttons that a user can press."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from stepwell.fsm.keyboards import DATA_LIMIT
from stepwell.playground.botapi.params import Params
from stepwell.playground.botapi.refusal import bad_request

__all__ = ["KeyboardButton", "buttons_of", "markup_of"]

_ACTIONS = frozenset(
    {
        "url", "callback_data", "web_app", "login_url", "switch_inline_query", "switch_inline_query_current_chat",
        "switch_inline_query_chosen_chat", "copy_text", "callback_game", "pay",
    }
)  # fmt: skip


class KeyboardButton(NamedTuple):
    """A button that a user sees."""

    text: str
    #: The callback data; ``None`` for a button that sends its text or opens a page.
    data: str | None
    #: True for a button of a reply keyboard, which sends its text.
    types: bool
    #: The button as the bot sent it.
    raw: dict[str, Any]


def markup_of(params: Params) -> dict[str, Any] | None:
    """Return the reply markup of a call; raise the refusal that Telegram would send."""
    markup: dict[str, Any] | None = params.json("reply_markup", dict)
    if not markup:
        return None
    if "inline_keyboard" in markup:
        for button in _flat(markup["inline_keyboard"]):
            actions = _ACTIONS & button.keys()
            if len(actions) != 1:
                raise bad_request("inline keyboard button must have exactly one action: Text buttons are unallowed")
            data = button.get("callback_data")
            if data is not None and not 1 <= len(str(data).encode()) <= DATA_LIMIT:
                raise bad_request("BUTTON_DATA_INVALID")
    elif "keyboard" in markup:
        rows = markup["keyboard"]
        if not isinstance(rows, list) or not rows:
            raise bad_request("reply keyboard is empty")
        if not all(isinstance(row, list) for row in rows):
            raise bad_request("can't parse keyboard: expected an Array of Array")
        rows = [[{"text": each} if isinstance(each, str) else each for each in row] for row in rows]
        markup = {**markup, "keyboard": rows}
        list(_flat(rows))
    return markup


def buttons_of(markup: dict[str, Any] | None) -> Iterator[KeyboardButton]:
    """Yield the buttons of a keyboard, row by row."""
    for name in ("inline_keyboard", "keyboard"):
        for row in (markup or {}).get(name, []):
            for button in row:
                yield KeyboardButton(button["text"], button.get("callback_data"), types=name == "keyboard", raw=button)


def _flat(rows: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise bad_request("can't parse keyboard: expected an Array of Array")
    for row in rows:
        for button in row:
            if not isinstance(button, dict) or not str(button.get("text", "")):
                raise bad_request("can't parse keyboard button: text must be non-empty")
            yield button
