"""Keyboards: checks of reply markup, and the buttons that a user can press."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from stepwell.botapi.errors import bad_request
from stepwell.botapi.params import Params

__all__ = ["KeyboardButton", "buttons_of", "markup_of", "read_markup"]

#: The most bytes of callback data.
DATA_LIMIT = 64

_ACTIONS = frozenset(
    {
        "url", "callback_data", "web_app", "login_url", "switch_inline_query", "switch_inline_query_current_chat",
        "switch_inline_query_chosen_chat", "copy_text", "callback_game", "pay",
    }
)  # fmt: skip
#: Actions for which an empty text or object is a valid value.
_MAY_BE_EMPTY = _ACTIONS - {"url", "callback_data"}


class KeyboardButton(NamedTuple):
    """A button that a user sees.

    Example::

        from stepwell.botapi import KeyboardButton, buttons_of

        markup = {"inline_keyboard": [[{"text": "Yes", "callback_data": "y"}]]}
        assert [button.data for button in buttons_of(markup)] == ["y"]
    """

    text: str
    #: The callback data; ``None`` for a button that sends its text or opens a page.
    data: str | None
    #: True for a button of a reply keyboard, which sends its text.
    types: bool
    #: The button as the bot sent it.
    raw: dict[str, Any]


def markup_of(params: Params) -> dict[str, Any] | None:
    """Return the reply markup of a call; raise the refusal that Telegram would send."""
    markup: dict[str, Any] | None = params.json("reply_markup", dict, "reply keyboard markup")
    if not markup:
        return None
    if "inline_keyboard" in markup:
        for button in _flat(markup["inline_keyboard"], "inline_keyboard"):
            _check_inline(button)
    elif "keyboard" in markup:
        rows = markup["keyboard"]
        if isinstance(rows, list) and all(isinstance(row, list) for row in rows):
            rows = [[{"text": each} if isinstance(each, str) else each for each in row] for row in rows]
        if not list(_flat(rows, "keyboard")):
            return None
        markup = {**markup, "keyboard": rows}
    return markup


def read_markup(given: Any) -> dict[str, Any] | None:
    """Return the reply markup of a call, as an object or as JSON; ``None`` if it has none. Raises ``Refusal``.

    Example::

        from stepwell.botapi import read_markup

        assert read_markup('{"keyboard": [["Yes"]]}') == {"keyboard": [[{"text": "Yes"}]]}
    """
    return markup_of(Params({"reply_markup": given}))


def _check_inline(button: dict[str, Any]) -> None:
    # As at Telegram, an empty value is no action.
    if not any(button.get(action) or action in _MAY_BE_EMPTY for action in _ACTIONS & button.keys()):
        raise bad_request("can't parse inline keyboard button: Text buttons are unallowed in the inline keyboard")
    if len(str(button.get("callback_data", "")).encode()) > DATA_LIMIT:
        raise bad_request("BUTTON_DATA_INVALID")


def buttons_of(markup: dict[str, Any] | None) -> Iterator[KeyboardButton]:
    """Yield the buttons of a keyboard, row by row.

    Example::

        from stepwell.botapi import buttons_of

        assert [button.text for button in buttons_of({"keyboard": [[{"text": "Yes"}]]})] == ["Yes"]
    """
    for name in ("inline_keyboard", "keyboard"):
        for row in (markup or {}).get(name, []):
            for button in row:
                yield KeyboardButton(button["text"], button.get("callback_data"), types=name == "keyboard", raw=button)


def _flat(rows: Any, name: str) -> Iterator[dict[str, Any]]:
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise bad_request(f'field "{name}" must be an Array of Arrays')
    for row in rows:
        for button in row:
            if not isinstance(button, dict) or not str(button.get("text", "")):
                raise bad_request(f"can't parse {name.replace('_', ' ')} button: text must be non-empty")
            yield button
