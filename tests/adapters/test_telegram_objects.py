"""Telegram's objects of the frameworks as stored values."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import aiogram.types
import pytest
import telebot.types
import telegram
from aiogram import Dispatcher
from aiogram.fsm.context import FSMContext
from aiogram.fsm.storage.base import StorageKey
from telebot import TeleBot
from telegram.ext import MessageHandler, filters

from stepwell import Limits, Storage
from stepwell.adapters.aiogram import StepwellIsolation, StepwellStorage
from stepwell.adapters.aiogram import setup as aiogram_setup
from stepwell.adapters.ptb import StepwellPersistence, fsm_of
from stepwell.adapters.ptb import setup as ptb_setup
from stepwell.adapters.telebot import StepwellStateStorage
from stepwell.codec.types import PACKERS
from stepwell.codec.values import decode, encode
from stepwell.errors import EncodeError, UnknownType
from stepwell.fsm import FSM, Flow, state
from tests.adapters import aiogram_bots, ptb_bots
from tests.backends import Backend

USER = {"id": 42, "is_bot": False, "first_name": "Ann", "language_code": "de", "is_premium": True}
MESSAGE: dict[str, Any] = {
    "message_id": 7,
    "date": 1_700_000_000,
    "edit_date": 1_700_000_060,
    "chat": {"id": -100, "type": "supergroup", "title": "Group", "is_forum": True},
    "from": USER,
    "text": "a bold text",
    "entities": [
        {"type": "bold", "offset": 2, "length": 4},
        {"type": "text_mention", "offset": 0, "length": 1, "user": USER},
    ],
    "photo": [{"file_id": "a", "file_unique_id": "b", "width": 1, "height": 2}],
    "forward_origin": {"type": "user", "date": 1_600_000_000, "sender_user": USER},
    "location": {"latitude": 1.5, "longitude": -0.25, "live_period": 60},
    "reply_markup": {"inline_keyboard": [[{"text": "Yes", "callback_data": "y"}]]},
    "reply_to_message": {"message_id": 6, "date": 1, "chat": {"id": -100, "type": "supergroup"}, "text": "before"},
}
MEMBER = {
    "chat": MESSAGE["chat"],
    "from": USER,
    "date": 1_700_000_000,
    "old_chat_member": {"status": "left", "user": USER},
    "new_chat_member": {"status": "kicked", "user": USER, "until_date": 1_800_000_000},
}
QUERY = {"id": "1", "from": USER, "chat_instance": "x", "data": "y", "message": MESSAGE}
POLL = {
    "id": "1",
    "question": "Really?",
    "options": [{"text": "a", "voter_count": 1, "persistent_id": "1"}],
    "total_voter_count": 1,
    "is_closed": False,
    "is_anonymous": True,
    "type": "regular",
    "allows_multiple_answers": False,
    "allows_revoting": False,
    "members_only": False,
    "open_period": 60,
}
#: As Telegram sends them, by the names of their classes.
OBJECTS: dict[str, dict[str, Any]] = {
    "User": USER,
    "Chat": MESSAGE["chat"],
    "Message": MESSAGE,
    "CallbackQuery": QUERY,
    "ChatMemberUpdated": MEMBER,
    "Update": {"update_id": 1, "message": MESSAGE},
    "Location": MESSAGE["location"],
    "PhotoSize": MESSAGE["photo"][0],
    "InlineKeyboardMarkup": MESSAGE["reply_markup"],
}


def of_ptb(name: str) -> Any:
    return getattr(telegram, name).de_json(OBJECTS[name], None)


def of_aiogram(name: str) -> Any:
    return getattr(aiogram.types, name).model_validate(OBJECTS[name])


def of_telebot(name: str) -> Any:
    return getattr(telebot.types, name).de_json(json.loads(json.dumps(OBJECTS[name])))


def parts(value: Any) -> Any:
    """All attributes, also those that the classes do not compare."""
    if isinstance(value, telegram.TelegramObject):
        # With the objects inside, which python-telegram-bot itself compares by a few of their attributes.
        attributes = value.__getstate__()
        # For some classes with a fixed type, de_json keeps the type here too.
        attributes["api_kwargs"].pop("type", None)
        return type(value), {name: parts(each) for name, each in attributes.items()}
    if isinstance(value, list | tuple):
        return type(value), [parts(each) for each in value]
    if type(value).__module__.startswith("telebot"):
        return type(value), {name: parts(each) for name, each in vars(value).items()}
    return value


@pytest.mark.parametrize("name", OBJECTS)
@pytest.mark.parametrize("make", [of_ptb, of_aiogram, of_telebot])
def test_an_object_comes_back_as_it_was(make: Any, name: str) -> None:
    value = {"inside": [make(name)]}
    text = encode(value, Limits()).decode()
    found = decode(text)
    assert found == value or make is of_telebot
    assert parts(found["inside"]) == parts(value["inside"])
    assert encode(found, Limits()).decode() == text
    assert "Enum" not in repr(json.loads(text))


@pytest.mark.parametrize(
    "value",
    [
        telegram.InlineKeyboardMarkup([[telegram.InlineKeyboardButton("a", web_app=telegram.WebAppInfo("b"))]]),
        telegram.ReplyKeyboardMarkup([["a", telegram.KeyboardButton("b", request_contact=True)]], is_persistent=True),
        telegram.BotCommandScopeChat(1),
        telegram.InlineKeyboardMarkup([[telegram.InlineKeyboardButton("a", callback_data=("any", (1, {2})))]]),
        telegram.CallbackQuery("1", telegram.User(1, "Ann", False), "x", data=("any", [1])),
        telegram.InlineQueryResultArticle(
            "1",
            "a",
            telegram.InputTextMessageContent("b", entities=[telegram.MessageEntity("bold", 0, 1)]),
            reply_markup=telegram.InlineKeyboardMarkup([[telegram.InlineKeyboardButton("a", callback_data=("b",))]]),
        ),
        telegram.InputMediaPhoto("file_id", caption="a", caption_entities=[telegram.MessageEntity("bold", 0, 1)]),
        telegram.constants.ParseMode.HTML,
        telegram.constants.ChatAction.TYPING,
        aiogram.enums.ParseMode.HTML,
        aiogram.enums.ContentType.PHOTO,
        telegram.ChatPermissions.all_permissions(),
        telegram.Poll.de_json(POLL, None),
        telegram.Video("a", "b", 1, 2, timedelta(seconds=3)),
        telegram.User(1, "Ann", False, api_kwargs={"new": {"a": [1]}}),
        telegram.Message(1, datetime(2026, 1, 2, tzinfo=UTC), telegram.Chat(1, telegram.constants.ChatType.PRIVATE)),
        aiogram.types.ReplyKeyboardMarkup(keyboard=[[aiogram.types.KeyboardButton(text="Yes")]]),
        aiogram.types.LinkPreviewOptions(url="a.example"),
        aiogram.types.BotCommandScopeChat(chat_id=1),
        aiogram.types.InputMediaPhoto(media="file_id", parse_mode=aiogram.enums.ParseMode.HTML),
        aiogram.types.Poll.model_validate(POLL),
        aiogram.types.User.model_validate({**USER, "new": {"a": [1]}}),
        telebot.types.ReplyKeyboardMarkup(resize_keyboard=True).add("Yes", telebot.types.KeyboardButton("No")),
        telebot.types.LinkPreviewOptions(url="a.example"),
        telebot.types.InputMediaPhoto("file_id"),
    ],
    ids=lambda value: f"{type(value).__module__.split('.')[0]}-{type(value).__name__}",
)
def test_an_object_that_a_bot_has_made_comes_back(value: Any) -> None:
    found = decode(encode(value, Limits()).decode())
    assert parts(found) == parts(value)
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "value",
    [
        telegram.InputMediaPhoto(b"1"),
        aiogram.types.InputMediaPhoto(media=aiogram.types.BufferedInputFile(b"1", "a.jpg")),
    ],
)
def test_an_object_with_a_file_is_refused(value: Any) -> None:
    with pytest.raises(EncodeError, match="not registered"):
        encode({"photo": value}, Limits())


def test_an_own_class_of_an_object_is_refused() -> None:
    class Mine(telegram.User):
        pass

    with pytest.raises(EncodeError, match="not registered"):
        encode(Mine(1, "Ann", False), Limits())


def test_stored_names_import_nothing() -> None:
    for name in ("telegram.Bot", "telegram.ext.Application", "os.system", "aiogram.Bot"):
        with pytest.raises(UnknownType):
            decode(f'{{"$record":["{name}",{{}}]}}')


@pytest.mark.parametrize(("module", "library"), [("ptb", "telegram"), ("aiogram", "aiogram"), ("telebot", "telebot")])
def test_each_adapter_registers_the_classes_of_its_library(module: str, library: str) -> None:
    code = (
        f"import stepwell.adapters.{module}\nfrom stepwell.codec.types import PACKERS\n"
        "print(sorted({cls.__module__.split('.')[0] for cls in PACKERS} - {'stepwell'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == repr([library])
    assert importlib.import_module(f"{library}.types" if library != "telegram" else library).User in PACKERS


@pytest.fixture
def storage(backend: Backend) -> Storage:
    return backend.storage()


async def test_python_telegram_bot_keeps_objects_and_sets_their_bot(storage: Storage, backend: Backend) -> None:
    async def keep(update: telegram.Update, context: Any) -> None:
        assert update.effective_user is not None
        context.user_data["user"] = update.effective_user
        context.chat_data["last"] = [update.effective_message]
        context.bot_data["admins"] = {update.effective_user}

    async def use(update: telegram.Update, context: Any) -> None:
        await context.user_data["user"].send_message("hello")
        (last,) = context.chat_data["last"]
        assert (last.text, last.date, last.get_bot()) == ("keep", update.effective_message.date, context.bot)
        assert {user.get_bot() for user in context.bot_data["admins"]} == {context.bot}

    def make(storage: Storage) -> Any:
        app = ptb_bots.make_app(StepwellPersistence(storage))
        app.add_handler(MessageHandler(filters.Text(["keep"]), keep))
        app.add_handler(MessageHandler(filters.Text(["use"]), use))
        return app

    async with make(storage) as first, make(storage) as second:
        await first.process_update(ptb_bots.message(first, "keep"))
        # Another process reads them with the update, and a new one at its start.
        await second.process_update(ptb_bots.message(second, "use"))
        assert ptb_bots.calls_of(second).texts == ["hello"]
        async with make(storage) as third:
            await third.process_update(ptb_bots.message(third, "use"))
            assert ptb_bots.calls_of(third).texts == ["hello"]


async def test_a_large_entry_of_python_telegram_bot_has_its_bot_too(storage: Storage) -> None:
    app = ptb_bots.make_app(StepwellPersistence(storage))
    async with app:
        update = ptb_bots.message(app, "a" * 4000)
        app.user_data[42]["all"] = [update.effective_message] * 30
        app.mark_data_for_update_persistence(user_ids=42)
        await app.update_persistence()
    again = ptb_bots.make_app(StepwellPersistence(storage))
    async with again:
        assert {each.get_bot() for each in again.user_data[42]["all"]} == {again.bot}


async def test_a_change_of_an_object_with_the_same_id_is_merged(storage: Storage) -> None:
    one, two = (StepwellPersistence[Any, Any, Any](storage) for _ in range(2))
    before, after = telegram.User(1, "Ann", False), telegram.User(1, "Anna", False)
    await one.update_bot_data({"known": {"ann": before}})
    mine, theirs = await one.get_bot_data(), await two.get_bot_data()
    mine["known"]["ann"] = after
    theirs["known"]["bob"] = telegram.User(2, "Bob", False)
    await two.update_bot_data(theirs)
    await one.update_bot_data(mine)
    found = await two.get_bot_data()
    assert {name: user.first_name for name, user in found["known"].items()} == {"ann": "Anna", "bob": "Bob"}


class Asking(Flow, name="asking"):
    ask = state()
    default_state = ask


async def test_conversations_of_python_telegram_bot_keep_objects(storage: Storage) -> None:
    async def use(update: telegram.Update, context: Any) -> None:
        ctx = fsm_of(context)
        if ctx.flow is None:
            ctx.start_flow(Asking)
            ctx.update_data(user=update.effective_user)
        else:
            await ctx.data["user"].send_message("hello")

    app = ptb_bots.make_app()
    app.add_handler(MessageHandler(filters.TEXT, use))
    ptb_setup(app, FSM("my_bot", storage=storage, flows=[Asking]))
    async with app:
        for _ in range(2):
            await app.process_update(ptb_bots.message(app, "x"))
    assert ptb_bots.calls_of(app).texts == ["hello"]


async def test_aiogram_keeps_objects(storage: Storage) -> None:
    found: list[Any] = []
    dispatcher = Dispatcher(storage=StepwellStorage(storage), events_isolation=StepwellIsolation(storage))

    @dispatcher.message()
    async def keep(message: aiogram.types.Message, state: FSMContext) -> None:
        found.append(await state.get_data())
        await state.update_data(user=message.from_user, message=message)
        assert (await state.get_data())["user"].first_name == "A"

    bot, _ = aiogram_bots.make_bot()
    for _ in range(2):
        await aiogram_bots.feed(dispatcher, bot, aiogram_bots.message("x", update_id=1))
    assert found[0] == {}
    assert found[1]["message"].as_(bot) == found[1]["message"]
    assert (found[1]["user"].id, found[1]["message"].text) == (42, "x")
    key = StorageKey(bot_id=7, chat_id=42, user_id=42)
    assert (await StepwellStorage(storage).get_data(key))["user"].full_name == "A"


async def test_conversations_of_aiogram_keep_objects_and_set_their_bot(storage: Storage) -> None:
    dispatcher = Dispatcher(disable_fsm=True)
    aiogram_setup(dispatcher, FSM("my_bot", storage=storage, flows=[Asking]))

    @dispatcher.message()
    async def use(message: aiogram.types.Message, ctx: Any) -> None:
        if ctx.flow is None:
            ctx.start_flow(Asking)
            ctx.update_data(message=message)
        else:
            await ctx.data["message"].answer("hello")

    bot, session = aiogram_bots.make_bot()
    for _ in range(2):
        await aiogram_bots.feed(dispatcher, bot, aiogram_bots.message("x"))
    assert session.texts == ["hello"]


def test_telebot_keeps_objects(backend: Backend) -> None:
    states = StepwellStateStorage(backend.storage())
    bot = TeleBot("7:a", state_storage=states)
    message = of_telebot("Message")
    bot.set_state(42, "asking", -100)
    bot.add_data(42, -100, user=message.from_user, message=message)
    with bot.retrieve_data(42, -100) as data:
        assert parts(data["message"]) == parts(message)
        assert data["user"].full_name == "Ann"
