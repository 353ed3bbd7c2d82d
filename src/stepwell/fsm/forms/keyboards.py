"""Keyboards: buttons under a message, and buttons in place of the user's keyboard, as plain Bot API dicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from stepwell._secrets import quoted
from stepwell.errors import InvalidOption

__all__ = ["Rows", "button", "keyboard", "remove_keyboard", "reply_keyboard"]

#: Rows of buttons. A button is a text, or a dict such as ``button(...)`` returns.
Rows: TypeAlias = Iterable[Iterable[str | Mapping[str, Any]]]

#: The Bot API's limit of callback data, in bytes.
DATA_LIMIT = 64


def button(text: str, *, data: str | None = None, url: str | None = None) -> dict[str, Any]:
    """Return a button of an inline keyboard, which sends ``data`` to the bot or opens ``url``.

    ``data`` has 1 to 64 bytes, and the filter ``callback(data)`` matches it.

    Example::

        markup = keyboard([[button("Yes", data="yes"), button("Terms", url="https://example.org/terms")]])
    """
    if (data is None) == (url is None):
        raise InvalidOption(f"button({quoted(text)}) takes either data= or url=")
    action = {"url": url} if data is None else {"callback_data": data}
    return _checked_inline({"text": text, **action})


def keyboard(rows: Rows) -> dict[str, Any]:
    """Return an inline keyboard, which is shown under a message, for ``reply_markup=``::

        ctx.answer("Sure?", reply_markup=keyboard([[button("Yes", data="yes"), button("No", data="no")]]))

    A button may be a plain text, which is its callback data too, or any other Bot API dict, such as
    ``{"text": "Open", "web_app": {...}}``.
    """
    return {
        "inline_keyboard": [
            [button(each, data=each) if isinstance(each, str) else _checked_inline(each) for each in row]
            for row in _checked_rows("keyboard", rows)
        ]
    }


def reply_keyboard(
    rows: Rows, *, resize: bool = True, one_time: bool = False, placeholder: str | None = None, **params: Any
) -> dict[str, Any]:
    """Return a keyboard of texts for ``reply_markup=``; a pressed button sends its text as a message.

    It stays until ``remove_keyboard()``, or with ``one_time`` until a button is pressed. ``placeholder`` is shown in
    the empty input field. ``params`` are further fields of Telegram's ``ReplyKeyboardMarkup``. A button that requests
    something is a dict: ``{"text": "My number", "request_contact": True}``.

    Example::

        keys = reply_keyboard([["Yes", "No"]], one_time_keyboard=True)
    """
    shown = {} if placeholder is None else {"input_field_placeholder": placeholder}
    return {
        "keyboard": [
            [_checked_reply({"text": each} if isinstance(each, str) else each) for each in row]
            for row in _checked_rows("reply_keyboard", rows)
        ],
        "resize_keyboard": resize,
        "one_time_keyboard": one_time,
        **shown,
        **params,
    }


def remove_keyboard(**params: Any) -> dict[str, Any]:
    """Return the ``reply_markup=`` that removes a reply keyboard.

    Example::

        @router.on(text("done"))
        async def done(ctx):
            ctx.answer("Thank you!", reply_markup=remove_keyboard())
    """
    return {"remove_keyboard": True, **params}


def _checked_rows(function: str, rows: Rows) -> list[list[str | Mapping[str, Any]]]:
    example = f'{function}([["Yes", "No"]])'
    checked: list[list[str | Mapping[str, Any]]] = []
    for row in _listed(rows, f"{function}() takes a list of rows: {example}"):
        buttons = _listed(row, f"{function}(): the row {quoted(row)} is not a list of buttons; write {example}")
        if not buttons:
            raise InvalidOption(f"{function}(): row {len(checked) + 1} is empty; remove it")
        checked.append(buttons)
    if not checked:
        raise InvalidOption(f"{function}() without rows; leave out reply_markup=, or use remove_keyboard()")
    return checked


def _listed(given: Any, problem: str) -> list[Any]:
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise InvalidOption(problem)
    return list(given)


def _checked_inline(given: Mapping[str, Any]) -> dict[str, Any]:
    made, text = _checked_text(given)
    if len(made) == 1:
        raise InvalidOption(
            f"the button {quoted(text)} does nothing; give it data= or url=: button({quoted(text)}, data=...)"
        )
    if "callback_data" in made:
        _check_data(text, made["callback_data"])
    if "url" in made and (not isinstance(made["url"], str) or not made["url"]):
        raise InvalidOption(f"the url of the button {quoted(text)} must be a string, got {quoted(made['url'])}")
    return made


def _check_data(text: str, data: object) -> None:
    if not isinstance(data, str) or not data:
        raise InvalidOption(
            f"the data of the button {quoted(text)} must be a string of 1 to {DATA_LIMIT} bytes, got {quoted(data)}"
        )
    try:
        size = len(data.encode())
    except UnicodeEncodeError:
        raise InvalidOption(
            f"the data of the button {quoted(text)} contains a lone surrogate, got {quoted(data)}"
        ) from None
    if size > DATA_LIMIT:
        raise InvalidOption(
            f"the data of the button {quoted(text)} has {size} bytes, and Telegram accepts at most {DATA_LIMIT}; "
            "send an id, and keep the rest in ctx.data"
        )


def _checked_reply(given: Mapping[str, Any]) -> dict[str, Any]:
    made, text = _checked_text(given)
    for field in ("callback_data", "url"):
        if field in made:
            raise InvalidOption(
                f"the button {quoted(text)} has {field}, which only keyboard() supports; this button sends its text"
            )
    return made


def _checked_text(given: Any) -> tuple[dict[str, Any], str]:
    if not isinstance(given, Mapping):
        raise InvalidOption(f"a button is a text, or button(...), got {quoted(given)}")
    text = given.get("text")
    if not isinstance(text, str) or not text.strip():
        raise InvalidOption(f"the text of a button must be a non-empty string, got {quoted(text)}")
    return dict(given), text
