"""Arbitrary callback data and chats that become supergroups: any process has what another one has stored."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import pytest
from telegram import InlineKeyboardButton, InlineKeyboardMarkup, Update
from telegram.ext import Application, CallbackQueryHandler, InvalidCallbackData, MessageHandler, filters

from stepwell import Storage
from stepwell.adapters.ptb import StepwellPersistence
from tests.adapters.ptb_bots import builder, calls_of, make_app, message
from tests.backends import Backend

_ids = count(10_000)


@pytest.fixture
def storage(backend: Backend) -> Storage:
    return backend.storage()


def make_asking(storage: Storage, pressed: list[Any]) -> Application:
    """Return a bot that asks with buttons, and notes the data of pressed ones."""

    async def ask(update: Any, context: Any) -> None:
        buttons = [InlineKeyboardButton(str(number), callback_data=("buy", number)) for number in (1, 2)]
        await update.message.reply_text("?", reply_markup=InlineKeyboardMarkup([buttons]))

    async def press(update: Any, context: Any) -> None:
        rows = update.callback_query.message.reply_markup.inline_keyboard
        pressed.append((update.callback_query.data, [button.callback_data for row in rows for button in row]))

    application = builder(StepwellPersistence(storage)).arbitrary_callback_data(True).build()
    application.add_handler(MessageHandler(filters.TEXT, ask))
    application.add_handler(CallbackQueryHandler(press, pattern=lambda data: not isinstance(data, InvalidCallbackData)))
    return application


def keyboard_of(application: Application) -> dict[str, Any]:
    """Return the last keyboard that was sent to Telegram."""
    markup = calls_of(application).calls[-1]["reply_markup"]
    found: dict[str, Any] = json.loads(markup) if isinstance(markup, str) else markup
    return found


def press(application: Application, markup: dict[str, Any], button: int) -> Update:
    """A pressed button, as the updater passes it to the application."""
    about = message(application, "?").to_dict()["message"]
    query = {
        "id": str(next(_ids)), "chat_instance": "1", "from": about["from"],
        "message": {**about, "from": {"id": 7, "is_bot": True, "first_name": "Bot"}, "reply_markup": markup},
        "data": markup["inline_keyboard"][0][button]["callback_data"],
    }  # fmt: skip
    update = Update.de_json({"update_id": next(_ids), "callback_query": query}, application.bot)
    application.bot.insert_callback_data(update)
    return update


async def test_a_button_works_in_any_process_at_once_and_after_a_kill(storage: Storage) -> None:
    pressed: list[Any] = []
    one, two, later = (make_asking(storage, pressed) for _ in range(3))
    async with two:
        # It has not ended when the others handle its keyboard.
        await one.initialize()
        await one.process_update(message(one, "hi"))
        markup = keyboard_of(one)
        await two.process_update(press(two, markup, 1))
        await two.process_update(press(two, markup, 0))
    async with later:
        await later.process_update(press(later, markup, 1))
        assert pressed == [(("buy", number), [("buy", 1), ("buy", 2)]) for number in (2, 1, 2)]
        # A button of no keyboard stays invalid.
        markup["inline_keyboard"][0][1]["callback_data"] = "0" * 64
        await later.process_update(press(later, markup, 1))
        assert len(pressed) == 3
    await one.shutdown()


async def test_chat_data_that_a_handler_moves_is_written_with_its_update(storage: Storage) -> None:
    async def count_messages(update: Any, context: Any) -> None:
        context.chat_data["n"] = context.chat_data.get("n", 0) + 1

    async def move(update: Any, context: Any) -> None:
        if update.message.migrate_to_chat_id:
            context.application.migrate_chat_data(message=update.message)

    def make() -> Application:
        application = make_app(StepwellPersistence(storage))
        application.add_handler(MessageHandler(filters.StatusUpdate.MIGRATE, move))
        application.add_handler(MessageHandler(filters.TEXT, count_messages))
        return application

    one = make()
    await one.initialize()
    await one.process_update(message(one, "a", chat=-5))
    about = message(one, "x", chat=-5, migrate_to_chat_id=-1005).to_dict()
    del about["message"]["text"]
    await one.process_update(Update.de_json(about, one.bot))
    # As after a kill.
    async with make() as two:
        about = message(two, "x", chat=-1005, migrate_from_chat_id=-5).to_dict()
        del about["message"]["text"]
        await two.process_update(Update.de_json(about, two.bot))
        await two.process_update(message(two, "b", chat=-1005))
        assert {chat: data for chat, data in two.chat_data.items() if data} == {-1005: {"n": 2}}
    await one.shutdown()
