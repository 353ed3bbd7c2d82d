"""aiogram, python-telegram-bot and telebot work with the local Bot API unmodified."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiogram
import pytest
import telebot
import telegram
from aiogram.client.session.aiohttp import AiohttpSession
from aiogram.client.telegram import TelegramAPIServer
from aiogram.exceptions import (
    TelegramBadRequest,
    TelegramForbiddenError,
    TelegramMigrateToChat,
    TelegramRetryAfter,
    TelegramUnauthorizedError,
)
from aiogram.types import BotCommand, BufferedInputFile, InlineKeyboardButton, InlineKeyboardMarkup
from telegram.ext import Application, CallbackQueryHandler, CommandHandler

from stepwell.botapi import BotAPI, Person
from tests.until import until


@pytest.fixture
async def served() -> AsyncIterator[BotAPI]:
    async with BotAPI(webhook_pause=0.05) as api:
        yield api


@pytest.fixture
def person(served: BotAPI) -> Person:
    return served.chat(served.bot("my_bot"), first_name="Alice")


@pytest.fixture
async def client(served: BotAPI, person: Person) -> AsyncIterator[aiogram.Bot]:
    session = AiohttpSession(api=TelegramAPIServer.from_base(served.url))
    async with aiogram.Bot(person.bot.token, session=session) as bot:
        yield bot


async def test_aiogram_polls_and_answers_buttons(client: aiogram.Bot, person: Person) -> None:
    dispatcher = aiogram.Dispatcher()

    @dispatcher.message(aiogram.filters.CommandStart())
    async def start(message: aiogram.types.Message) -> None:
        button = InlineKeyboardButton(text="Go", callback_data="go")
        await message.answer("Ready?", reply_markup=InlineKeyboardMarkup(inline_keyboard=[[button]]))

    @dispatcher.callback_query()
    async def pressed(query: aiogram.types.CallbackQuery) -> None:
        assert isinstance(query.message, aiogram.types.Message)
        await query.message.edit_text("Done.")
        await query.answer("Gone")

    polling = asyncio.create_task(dispatcher.start_polling(client, handle_signals=False, polling_timeout=5))
    assert await person.ask("/start") == "Ready?"
    query_id = await person.press("Go")
    assert query_id is not None
    assert (await person.notice(query_id))["text"] == "Gone"
    assert person.last == "Done."
    await dispatcher.stop_polling()
    await polling


async def test_aiogram_parses_every_response(client: aiogram.Bot, person: Person) -> None:
    await person.send("hi")
    group = person.group(-5, title="Team")
    forum = person.group(-1001, is_forum=True)
    assert (await client.get_me()).username == "my_bot"
    assert (await client.get_chat(42)).first_name == "Alice"
    assert (await client.get_chat(-5)).title == "Team"
    assert (await client.get_chat_member(-5, 42)).status == "member"
    assert (await client.get_chat_administrators(-5))[0].user.id == client.id
    assert (await client.get_webhook_info()).pending_update_count == 1
    assert await client.set_my_commands([BotCommand(command="start", description="Begin")])
    assert (await client.get_my_commands())[0].command == "start"
    assert await client.send_chat_action(42, "typing")
    poll = await client.send_poll(42, "Which?", ["a", "b"])
    assert poll.poll is not None
    document = await client.send_document(42, BufferedInputFile(b"content", "a.txt"), caption="<b>A</b>")
    assert document.document is not None
    kept = await client.download(document.document)
    assert kept is not None
    assert kept.read() == b"content"
    topic = await client.create_forum_topic(-1001, "Help")
    sent = await client.send_message(-1001, "there", message_thread_id=topic.message_thread_id)
    assert sent.is_topic_message
    assert forum.topic("Help").last == "there"
    new = await group.migrate()
    updates = await client.get_updates()
    assert updates[-1].message is not None
    assert updates[-1].message.migrate_from_chat_id == -5
    assert new.room.id == updates[-1].message.chat.id


async def test_aiogram_gets_its_own_error_types(served: BotAPI, client: aiogram.Bot, person: Person) -> None:
    with pytest.raises(TelegramBadRequest, match="chat not found"):
        await client.send_message(7, "x")
    await person.block()
    with pytest.raises(TelegramForbiddenError):
        await client.send_message(42, "x")
    person.bot.limit(3)
    with pytest.raises(TelegramRetryAfter) as limited:
        await client.get_me()
    assert limited.value.retry_after == 3
    group = person.group(-5)
    new = await group.migrate()
    with pytest.raises(TelegramMigrateToChat) as moved:
        await client.send_message(-5, "x")
    assert moved.value.migrate_to_chat_id == new.room.id
    async with aiogram.Bot("1:wrong", session=AiohttpSession(api=TelegramAPIServer.from_base(served.url))) as unknown:
        with pytest.raises(TelegramUnauthorizedError):
            await unknown.get_me()


async def test_python_telegram_bot_polls_and_answers_buttons(served: BotAPI, person: Person) -> None:
    async def start(update: telegram.Update, context: object) -> None:
        assert update.message is not None
        button = telegram.InlineKeyboardButton("Go", callback_data="go")
        await update.message.reply_text("Ready?", reply_markup=telegram.InlineKeyboardMarkup([[button]]))

    async def pressed(update: telegram.Update, context: object) -> None:
        assert update.callback_query is not None
        await update.callback_query.edit_message_text("Done.")
        await update.callback_query.answer("Gone")

    application = Application.builder().token(person.bot.token).base_url(f"{served.url}/bot").build()
    application.add_handler(CommandHandler("start", start))
    application.add_handler(CallbackQueryHandler(pressed))
    async with application:
        assert application.updater is not None
        await application.start()
        await application.updater.start_polling(timeout=5)
        assert await person.ask("/start") == "Ready?"
        query_id = await person.press("Go")
        assert query_id is not None
        assert (await person.notice(query_id))["text"] == "Gone"
        assert person.last == "Done."
        await application.updater.stop()
        await application.stop()


async def test_telebot_polls_and_answers_buttons(
    served: BotAPI, person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telebot.apihelper, "API_URL", f"{served.url}/bot{{0}}/{{1}}")
    bot = telebot.TeleBot(person.bot.token, threaded=False)

    @bot.message_handler(commands=["start"])
    def start(message: telebot.types.Message) -> None:
        markup = telebot.types.InlineKeyboardMarkup()
        markup.add(telebot.types.InlineKeyboardButton("Go", callback_data="go"))
        bot.send_message(message.chat.id, "Ready?", reply_markup=markup)

    @bot.callback_query_handler(func=lambda query: query.data == "go")
    def pressed(query: telebot.types.CallbackQuery) -> None:
        bot.edit_message_text("Done.", query.message.chat.id, query.message.message_id)
        bot.answer_callback_query(query.id, "Gone")

    polling = asyncio.create_task(asyncio.to_thread(bot.infinity_polling, timeout=5, long_polling_timeout=1))
    assert await person.ask("/start") == "Ready?"
    query_id = await person.press("Go")
    assert query_id is not None
    assert (await person.notice(query_id))["text"] == "Gone"
    assert person.last == "Done."
    bot.stop_polling()
    await polling
    await asyncio.to_thread(telebot.apihelper._get_req_session().close)


async def test_two_aiogram_bots_polling_with_one_token_get_a_conflict(
    served: BotAPI, client: aiogram.Bot, person: Person, caplog: pytest.LogCaptureFixture
) -> None:
    session = AiohttpSession(api=TelegramAPIServer.from_base(served.url))
    async with aiogram.Bot(person.bot.token, session=session) as second:
        first, other = aiogram.Dispatcher(), aiogram.Dispatcher()
        running = [
            asyncio.create_task(
                dispatcher.start_polling(bot, handle_signals=False, close_bot_session=False, polling_timeout=5)
            )
            for dispatcher, bot in ((first, client), (other, second))
        ]
        await until(lambda: "make sure that only one bot instance is running" in caplog.text)
        await asyncio.gather(first.stop_polling(), other.stop_polling())
        await asyncio.gather(*running)
