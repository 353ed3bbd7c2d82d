"""Albums in the handlers of aiogram and python-telegram-bot."""

from __future__ import annotations

from typing import Any

import pytest
from aiogram import Bot, Dispatcher, F
from aiogram.types import ErrorEvent, Message
from telegram.ext import Application, MessageHandler, filters

from stepwell import Storage
from stepwell.adapters import aiogram as for_aiogram
from stepwell.adapters import ptb as for_ptb
from stepwell.fsm import FSM, Context, Flow, state
from stepwell.testing import Clock
from tests.adapters import aiogram_bots, ptb_bots
from tests.backends import Backend

#: Seconds after which an album is complete.
CLOSED = 2.0


class Photos(Flow, name="photos"):
    wait = state(to=["done"])
    done = state(to=[])
    default_state = wait


@pytest.fixture
def storage(backend: Backend, clock: Clock) -> Storage:
    return backend.storage(clock=clock)


def fsm_on(storage: Storage) -> FSM:
    return FSM("my_bot", storage=storage, flows=[Photos])


def photo(caption: str, group: str = "1") -> dict[str, Any]:
    size = {"file_id": caption, "file_unique_id": caption, "width": 1, "height": 1}
    return {"photo": [size], "caption": caption, "media_group_id": group}


def with_aiogram(fsm: FSM) -> Dispatcher:
    dispatcher = Dispatcher(disable_fsm=True)
    for_aiogram.setup(dispatcher, fsm)

    @dispatcher.message(for_aiogram.album(), F.caption == "fail")
    async def fail(message: Message, ctx: Context) -> None:
        ctx.start_flow(Photos)
        raise LookupError("oh")

    @dispatcher.message(for_aiogram.album())
    async def photos(message: Message, ctx: Context) -> None:
        ctx.start_flow(Photos)
        names = " ".join(each.caption for each in ctx.album)
        await message.answer(f"{names} from {message.from_user.id if message.from_user else None}")
        ctx.answer(f"{len(ctx.album)} photos")

    @dispatcher.message()
    async def other(message: Message, ctx: Context) -> None:
        await message.answer(f"{message.text} in {ctx.state}")

    return dispatcher


async def feed(dispatcher: Dispatcher, bot: Bot, **more: Any) -> None:
    update = aiogram_bots.message(more.pop("text", "hi"), **more)
    if "photo" in more:
        del update["message"]["text"]
    await aiogram_bots.feed(dispatcher, bot, update)


async def test_with_aiogram_an_album_is_one_call_of_its_handler_also_after_a_restart(
    storage: Storage, clock: Clock
) -> None:
    bot, session = aiogram_bots.make_bot()
    dispatcher = with_aiogram(fsm_on(storage))
    for caption in ("a", "b"):
        await feed(dispatcher, bot, **photo(caption))
    fsm = fsm_on(storage)
    dispatcher = with_aiogram(fsm)
    for caption in ("c", "d"):
        await feed(dispatcher, bot, **photo(caption))
    assert session.texts == []
    clock.advance(CLOSED)
    assert await fsm.tick() == 1
    assert session.texts == ["a b c d from 42", "4 photos"]
    await feed(dispatcher, bot)
    assert session.texts[2:] == ["hi in wait"]


async def test_with_aiogram_the_next_message_is_handled_after_the_album(storage: Storage) -> None:
    bot, session = aiogram_bots.make_bot()
    dispatcher = with_aiogram(fsm_on(storage))
    await feed(dispatcher, bot, **photo("a"))
    await feed(dispatcher, bot)
    assert session.texts == ["a from 42", "1 photos", "hi in wait"]


async def test_with_aiogram_an_album_whose_handler_raises_changes_nothing(
    storage: Storage, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    bot, session = aiogram_bots.make_bot()
    fsm = fsm_on(storage)
    dispatcher = with_aiogram(fsm)
    caught: list[Exception] = []

    @dispatcher.error()
    async def on_error(event: ErrorEvent) -> None:
        caught.append(event.exception)

    await feed(dispatcher, bot, **photo("fail"))
    clock.advance(CLOSED)
    await fsm.tick()
    await feed(dispatcher, bot)
    assert session.texts == ["hi in None"]
    assert [str(error) for error in caught] == ["oh"]


def with_ptb(fsm: FSM) -> Application:
    application = ptb_bots.make_app()

    async def fail(update: Any, context: Any) -> None:
        for_ptb.fsm_of(context).start_flow(Photos)
        raise LookupError("oh")

    async def photos(update: Any, context: Any) -> None:
        ctx = for_ptb.fsm_of(context)
        ctx.start_flow(Photos)
        names = " ".join(each.caption for each in ctx.album)
        await update.message.reply_text(f"{names} from {update.message.from_user.id}")
        ctx.answer(f"{len(ctx.album)} photos")

    async def other(update: Any, context: Any) -> None:
        await update.message.reply_text(f"{update.message.text} in {for_ptb.fsm_of(context).state}")

    application.add_handler(MessageHandler(for_ptb.album() & filters.CaptionRegex("fail"), fail))
    application.add_handler(MessageHandler(for_ptb.album(), photos))
    application.add_handler(MessageHandler(filters.TEXT, other))
    for_ptb.setup(application, fsm)
    return application


async def test_with_ptb_an_album_is_one_call_of_its_handler_also_after_a_restart(
    storage: Storage, clock: Clock
) -> None:
    before = with_ptb(fsm_on(storage))
    await before.initialize()
    for caption in ("a", "b"):
        await before.process_update(ptb_bots.message(before, "", **photo(caption)))
    await before.shutdown()
    fsm = fsm_on(storage)
    application = with_ptb(fsm)
    await application.initialize()
    for caption in ("c", "d"):
        await application.process_update(ptb_bots.message(application, "", **photo(caption)))
    assert ptb_bots.calls_of(application).texts == []
    clock.advance(CLOSED)
    await fsm.tick()
    await application.process_update(ptb_bots.message(application, "hi"))
    await application.shutdown()
    assert ptb_bots.calls_of(application).texts == ["a b c d from 42", "4 photos", "hi in wait"]


async def test_with_ptb_the_next_message_is_handled_after_the_album(storage: Storage) -> None:
    application = with_ptb(fsm_on(storage))
    async with application:
        await application.process_update(ptb_bots.message(application, "", **photo("a")))
        await application.process_update(ptb_bots.message(application, "hi"))
        assert ptb_bots.calls_of(application).texts == ["a from 42", "1 photos", "hi in wait"]


async def test_with_ptb_an_album_whose_handler_raises_changes_nothing(storage: Storage) -> None:
    application = with_ptb(fsm_on(storage))
    caught: list[Exception] = []

    async def on_error(update: Any, context: Any) -> None:
        caught.append(context.error)

    application.add_error_handler(on_error)
    async with application:
        await application.process_update(ptb_bots.message(application, "", **photo("fail")))
        await application.process_update(ptb_bots.message(application, "hi"))
        assert ptb_bots.calls_of(application).texts == ["hi in None"]
    assert [str(error) for error in caught] == ["oh"]
