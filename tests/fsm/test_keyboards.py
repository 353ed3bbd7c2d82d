"""Keyboards, and edits of the message whose button was pressed."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell.errors import InvalidOption, UsageError
from stepwell.fsm import (
    FSM,
    Context,
    Router,
    button,
    callback,
    command,
    keyboard,
    remove_keyboard,
    reply_keyboard,
    text,
)
from stepwell.testing import Chat


def test_an_inline_keyboard() -> None:
    rows = [[button("Yes", data="yes"), button("Help", url="https://example.com")], ["No"]]
    assert keyboard(rows) == {
        "inline_keyboard": [
            [{"text": "Yes", "callback_data": "yes"}, {"text": "Help", "url": "https://example.com"}],
            [{"text": "No", "callback_data": "No"}],
        ]
    }
    app = {"text": "Open", "web_app": {"url": "https://example.com"}}
    assert keyboard(iter([(app,)])) == {"inline_keyboard": [[app]]}


def test_a_reply_keyboard() -> None:
    rows = [["Tea", "Coffee"], [{"text": "My number", "request_contact": True}]]
    assert reply_keyboard(rows, one_time=True, placeholder="Your drink", selective=True) == {
        "keyboard": [[{"text": "Tea"}, {"text": "Coffee"}], [{"text": "My number", "request_contact": True}]],
        "resize_keyboard": True,
        "one_time_keyboard": True,
        "input_field_placeholder": "Your drink",
        "selective": True,
    }
    assert remove_keyboard() == {"remove_keyboard": True}


def test_callback_data_is_counted_in_bytes() -> None:
    assert button("A", data="é" * 32)["callback_data"] == "é" * 32
    with pytest.raises(InvalidOption, match="the data of the button 'A' has 66 bytes, and Telegram accepts at most 64"):
        button("A", data="é" * 33)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: button("Yes"), r"button\('Yes'\) takes either data= or url="),
        (lambda: button("Yes", data="yes", url="https://example.com"), r"button\('Yes'\) takes either data= or url="),
        (lambda: button("Yes", data=""), "must be a string of 1 to 64 bytes, got ''"),
        (lambda: button("Yes", data=1), "must be a string of 1 to 64 bytes, got 1"),  # type: ignore[arg-type]
        (lambda: button("Yes", url=""), "the url of the button 'Yes' must be a string"),
        (lambda: button(" ", data="yes"), "the text of a button must be a non-empty string"),
        (lambda: keyboard([[{"text": "Yes"}]]), "the button 'Yes' does nothing; give it data= or url="),
        (lambda: keyboard([["x" * 65]]), "has 65 bytes"),
        (lambda: button("A", data="\ud800"), "the data of the button 'A' contains a lone surrogate"),
        (lambda: keyboard([["Yes"], []]), r"keyboard\(\): row 2 is empty; remove it"),
        (lambda: keyboard([]), r"keyboard\(\) without rows"),
        (lambda: keyboard(["Yes", "No"]), r"the row 'Yes' is not a list of buttons; write keyboard\(\[\["),
        (lambda: keyboard([button("Yes", data="yes")]), "is not a list of buttons"),
        (lambda: keyboard("Yes"), r"keyboard\(\) takes a list of rows"),
        (lambda: keyboard([[1]]), r"a button is a text, or button\(\.\.\.\), got 1"),  # type: ignore[list-item]
        (lambda: reply_keyboard([[]]), r"reply_keyboard\(\): row 1 is empty"),
        (lambda: reply_keyboard([[button("Yes", data="yes")]]), r"has callback_data, which only keyboard\(\) supports"),
    ],
)
def test_what_telegram_refuses_is_refused(make: Any, problem: str) -> None:
    with pytest.raises(InvalidOption, match=problem):
        make()


def make_router(storage: Any) -> Router:
    router = Router(FSM("bot", storage=storage, flows=[]))

    @router.on(command("start"))
    async def start(ctx: Context) -> None:
        ctx.answer("Sure?", reply_markup=keyboard([[button("Yes", data="yes"), button("No", data="no")]]))

    @router.on(callback("yes"))
    async def yes(ctx: Context) -> None:
        ctx.edit("Done.")
        ctx.answer_callback()

    @router.on(callback("no"))
    async def no(ctx: Context) -> None:
        ctx.edit("Really?", reply_markup=keyboard([["yes"]]), parse_mode="HTML")

    @router.on(command("drink"))
    async def drink(ctx: Context) -> None:
        ctx.answer("Tea or coffee?", reply_markup=reply_keyboard([["Tea", "Coffee"]]))

    @router.on(text("Tea"))
    async def tea(ctx: Context) -> None:
        ctx.answer("Here.", reply_markup=remove_keyboard())

    @router.on(text("edit"))
    async def edit(ctx: Context) -> None:
        ctx.edit("Changed.")

    return router


async def test_an_edit_changes_the_message_of_the_button() -> None:
    chat = Chat(make_router)
    await chat.send("/start")
    await chat.press("No")
    assert (chat.last, chat.buttons) == ("Really?", ["yes"])
    await chat.press("yes")
    assert (chat.last, chat.buttons, len(chat.messages)) == ("Done.", [], 2)
    sent = chat.messages[-1]["message_id"]
    assert chat.calls[-2] == {"method": "editMessageText", "chat_id": 42, "message_id": sent, "text": "Done."}


async def test_a_reply_keyboard_sends_its_text() -> None:
    chat = Chat(make_router)
    await chat.send("/drink")
    assert await chat.press("Tea") == ["Here."]


async def test_an_edit_of_a_message_that_was_sent_through_an_inline_query() -> None:
    user = {"id": 42, "is_bot": False, "first_name": "A"}
    pressed = {"id": "1", "from": user, "inline_message_id": "abc", "chat_instance": "1", "data": "yes"}
    calls = await make_router("memory://").handle({"update_id": 1, "callback_query": pressed})
    assert calls[0] == {"method": "editMessageText", "inline_message_id": "abc", "text": "Done."}


async def test_an_edit_for_a_business_account() -> None:
    chat = {"id": 7, "type": "private"}
    message = {"message_id": 5, "date": 1, "chat": chat, "business_connection_id": "b1"}
    pressed = {"id": "1", "from": {"id": 7}, "message": message, "chat_instance": "1", "data": "yes"}
    calls = await make_router("memory://").handle({"update_id": 1, "callback_query": pressed})
    assert calls[0] == {
        "method": "editMessageText", "chat_id": 7, "message_id": 5, "business_connection_id": "b1", "text": "Done.",
    }  # fmt: skip


async def test_an_edit_needs_a_pressed_button() -> None:
    with pytest.raises(UsageError, match=r"edit\(\) changes the message whose button was pressed"):
        await Chat(make_router).send("edit")
