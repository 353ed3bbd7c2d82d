"""``ctx.bot`` and ``turn.bot`` in the bots of frameworks, and the answers that Telegram refuses there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiogram
import pytest
from aiogram.client.session.aiohttp import AiohttpSession
from aiogram.client.telegram import TelegramAPIServer
from telegram.ext import ApplicationBuilder, MessageHandler, filters

import stepwell.adapters.aiogram
import stepwell.adapters.ptb
from stepwell import MemoryStorage, Storage
from stepwell.adapters.ptb import fsm_of
from stepwell.botapi import BotAPI, Person
from stepwell.errors import BotApiError
from stepwell.fsm import FSM, AnswerRefused, Context
from stepwell.fsm.engine import RefusedCall, refused_calls
from stepwell.turns import Turn, Turns
from tests.until import until

each_framework = pytest.mark.parametrize("framework", ["aiogram", "ptb"])


@asynccontextmanager
async def running(
    framework: str, ann: Person, api: BotAPI, bot: Turns | FSM, handler: Any = None
) -> AsyncIterator[Any]:
    """Run the bot of a framework with turns, or with conversations and a handler; yield its own bot object."""
    if framework == "aiogram":
        dispatcher = aiogram.Dispatcher(disable_fsm=True)
        own = aiogram.Bot(ann.bot.token, session=AiohttpSession(api=TelegramAPIServer.from_base(api.url)))
        if isinstance(bot, Turns):
            bot.attach(dispatcher)
        else:

            @dispatcher.message()
            async def handle(message: aiogram.types.Message, ctx: Context) -> None:
                await handler(ctx)

            stepwell.adapters.aiogram.setup(dispatcher, bot)
        polling = asyncio.create_task(dispatcher.start_polling(own, handle_signals=False, polling_timeout=2))
        yield own
        await dispatcher.stop_polling()
        await polling
        return
    builder = ApplicationBuilder().token(ann.bot.token).base_url(f"{api.url}/bot").base_file_url(f"{api.url}/file/bot")
    application = builder.build()
    if isinstance(bot, Turns):
        bot.attach(application)
    else:

        async def handle_update(update: Any, context: Any) -> None:
            await handler(fsm_of(context))

        application.add_handler(MessageHandler(filters.ALL, handle_update))
        stepwell.adapters.ptb.setup(application, bot)
    async with application:
        await application.start()
        assert application.updater is not None
        await application.updater.start_polling(timeout=2)
        yield application.bot
        await application.updater.stop()
        await application.stop()


def texts(person: Person) -> list[str]:
    return [message["text"] for message in person.messages if message["from"]["is_bot"]]


async def refused_in(storage: Storage) -> list[RefusedCall]:
    return [each async for each in refused_calls(storage, "agent_bot")]


@each_framework
async def test_the_client_of_a_turn_is_the_same_in_each_framework(
    framework: str, api: BotAPI, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ann = api.chat(api.bot("agent_bot"), 42)
    ann.group(-7)
    found: list[Any] = []
    async with MemoryStorage() as storage:
        turns = Turns("agent_bot", storage=storage, collect=0.0)

        @turns.handler
        async def answer(turn: Turn) -> AsyncIterator[str]:
            yield "Before. "
            sent = await turn.bot.send_message(chat_id=42, text="Between.")
            yield "After."
            file_id = turn.messages[0].event["photo"][0]["file_id"]
            found.extend(
                [
                    sent["message_id"],
                    await turn.bot.get_chat_administrators(chat_id=-7),
                    await turn.bot.download(file_id),
                    await turn.bot.download(file_id, to=tmp_path / "picture"),
                    turn.bot.native,
                ]
            )
            with pytest.raises(AttributeError, match="did you mean 'send_message'"):
                await turn.bot.send_mesage(chat_id=42, text="x")
            async with turn.bot.typing(42):
                pass
            with pytest.raises(BotApiError) as refused:
                await turn.bot.send_message(chat_id=99, text="Nobody")
            found.append(refused.value)
            turn.call("sendMessage", chat_id=99, text="Nobody hears it")

        async with running(framework, ann, api, turns) as own:
            await ann.send_photo(b"a picture", caption="hi")
            await until(lambda: texts(ann), lambda heard: heard == ["Before.", "Between.", "After."])
            (refused,) = await until(lambda: refused_in(storage))
    message_id, admins, content, path, native, error = found
    assert message_id == next(each["message_id"] for each in ann.messages if each.get("text") == "Between.")
    assert [each["user"]["is_bot"] for each in admins] == [True]
    assert content == b"a picture" == path.read_bytes()
    assert native is own
    assert "chat not found" in str(error).lower()
    assert (refused.method, refused.chat, refused.code) == ("sendMessage", 99, 400)
    assert ann.bot.token not in caplog.text + str(error) + str(refused)


@each_framework
async def test_the_client_of_a_conversation_streams_and_its_refused_answers_are_kept(
    framework: str, api: BotAPI
) -> None:
    ann = api.chat(api.bot("agent_bot"), 42)
    ann.bot.refuse(400, "Bad Request: topic closed", method="sendPhoto")
    events: list[Any] = []
    async with MemoryStorage() as storage:
        fsm = FSM("agent_bot", storage=storage, flows=[])
        fsm.subscribe(events.append)
        shown = asyncio.Event()

        async def handle(ctx: Context) -> None:
            chat = await ctx.bot.get_chat(chat_id=42)
            async with ctx.typing(), ctx.stream() as out:
                out.write(f"Hello {chat['id']}")
                await asyncio.wait_for(shown.wait(), 60)
                out.write("!")
            ctx.call("sendPhoto", chat_id=42, photo="lost")

        async with running(framework, ann, api, fsm, handle):
            await ann.send("hi")
            await until(lambda: "Hello 42" in str(ann.room.drafts))
            shown.set()
            assert await ann.answer(timeout=60) == "Hello 42!"
            (refused,) = await until(lambda: refused_in(storage))
    assert (refused.method, refused.chat, refused.code) == ("sendPhoto", 42, 400)
    assert refused.update_id is not None and "topic closed" in refused.description.lower()
    assert [event.method for event in events if isinstance(event, AnswerRefused)] == ["sendPhoto"]
