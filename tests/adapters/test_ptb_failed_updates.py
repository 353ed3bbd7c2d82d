"""Updates whose changes cannot be written: nothing of them stays in memory, and no other update is affected."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import pytest
from telegram import InlineKeyboardButton, InlineKeyboardMarkup
from telegram.ext import Application, MessageHandler, filters

from stepwell import MemoryStorage, Storage
from stepwell.adapters.ptb import ConversationHandler, StepwellPersistence
from stepwell.errors import EncodeError, StorageUnavailable, TooLarge
from stepwell.storage import Apply
from tests.adapters.ptb_bots import builder, message
from tests.backends import Backend
from tests.until import yields

Harm = Callable[[Any, Any], Any]


@dataclass
class Choice:
    """A class that is not registered."""

    number: int


class Bot:
    """A bot that keeps the texts of each user, chat and the bot; the text "bad" also does harm."""

    def __init__(self, storage: Storage, harm: Harm) -> None:
        self.errors: list[Exception] = []
        self.harm = harm
        self.application: Application = builder(StepwellPersistence(storage)).arbitrary_callback_data(True).build()
        self.handler = ConversationHandler(
            [MessageHandler(filters.TEXT, self._step)],
            {number: [MessageHandler(filters.TEXT, self._step)] for number in range(1, 9)},
            [],
            name="steps",
        )
        self.application.add_handler(self.handler)
        self.application.add_error_handler(self._caught)

    async def _step(self, update: Any, context: Any) -> int:
        text = update.message.text
        for data in (context.user_data, context.chat_data, context.bot_data):
            data.setdefault("texts", []).append(text)
        if text == "bad":
            await self.harm(update, context)
        return len(context.user_data["texts"])

    async def _caught(self, update: Any, context: Any) -> None:
        self.errors.append(context.error)

    async def say(self, text: str, **about: Any) -> None:
        await self.application.process_update(message(self.application, text, **about))

    def memory(self, user: int = 42, chat: int | None = None) -> tuple[Any, Any, Any, Any]:
        chat = user if chat is None else chat
        application = self.application
        return (
            dict(application.user_data[user]),
            dict(application.chat_data[chat]),
            dict(application.bot_data),
            self.handler._conversations.get((chat, user)),
        )


@asynccontextmanager
async def running(storage: Storage, harm: Harm) -> AsyncIterator[Bot]:
    bot = Bot(storage, harm)
    async with bot.application:
        yield bot


async def stored(storage: Storage, user: int = 42, chat: int | None = None) -> tuple[Any, Any, Any, Any]:
    """Return what a bot that starts now has."""
    chat = user if chat is None else chat
    kept: StepwellPersistence[Any, Any, Any] = StepwellPersistence(storage, namespace="ptb:7")
    users, chats = await kept.get_user_data(), await kept.get_chat_data()
    states = await kept.get_conversations("steps")
    return users.get(user, {}), chats.get(chat, {}), await kept.get_bot_data(), states.get((chat, user))


def texts(*given: str, bot: list[str] | None = None) -> tuple[Any, Any, Any, Any]:
    """Return data and state of a user who has sent these texts."""
    own = {"texts": [*given]} if given else {}
    return own, own, {"texts": [*given] if bot is None else bot}, len(given) or None


async def send_keyboard(update: Any, context: Any) -> None:
    buttons = [InlineKeyboardButton("a", callback_data="fine"), InlineKeyboardButton("b", callback_data=Choice(1))]
    await update.message.reply_text("?", reply_markup=InlineKeyboardMarkup([buttons]))


async def send_large_keyboard(update: Any, context: Any) -> None:
    buttons = [InlineKeyboardButton("a", callback_data=number * "x") for number in (200_000, 100_000)]
    await update.message.reply_text("?", reply_markup=InlineKeyboardMarkup([buttons]))


async def unsupported_in_bot_data(update: Any, context: Any) -> None:
    context.bot_data["job"] = object()


async def unsupported_key_in_bot_data(update: Any, context: Any) -> None:
    context.bot_data[object()] = 1


async def unsupported_within_bot_data(update: Any, context: Any) -> None:
    context.bot_data["texts"].append(object())


async def too_large_in_bot_data(update: Any, context: Any) -> None:
    context.bot_data["large"] = "x" * 300_000


async def too_much_in_bot_data(update: Any, context: Any) -> None:
    context.bot_data.update({f"k{number}": "x" * 10_000 for number in range(30)})


async def too_much_in_user_data(update: Any, context: Any) -> None:
    context.user_data.update({f"k{number}": "x" * 10_000 for number in range(30)})


HARMS: list[tuple[Harm, type[Exception], str]] = [
    (send_keyboard, EncodeError, "callback_data (*.Choice) *@stepwell.record_type*"),
    (send_large_keyboard, TooLarge, "*keyboard*"),
    (unsupported_in_bot_data, EncodeError, "bot_data.job (object)*"),
    (unsupported_key_in_bot_data, EncodeError, "*object*"),
    (unsupported_within_bot_data, EncodeError, "bot_data.texts[[]2] (object)*"),
    (too_large_in_bot_data, TooLarge, "*bot_data.large*"),
    (too_much_in_bot_data, TooLarge, "bot_data takes*"),
    (too_much_in_user_data, TooLarge, "*42*takes*"),
]


@pytest.fixture
def storage(backend: Backend) -> Storage:
    return backend.storage()


@pytest.mark.parametrize("chat", [42, -5], ids=["private", "group"])
@pytest.mark.parametrize(("harm", "error", "pattern"), HARMS, ids=[harm.__name__ for harm, *_ in HARMS])
async def test_an_update_with_a_value_that_cannot_be_stored_changes_nothing(
    storage: Storage, harm: Harm, error: type[Exception], pattern: str, chat: int
) -> None:
    async with running(storage, harm) as bot:
        await bot.say("a", chat=chat)
        bot_texts = bot.application.bot_data["texts"]
        await bot.say("bad", chat=chat)
        assert [type(each) for each in bot.errors] == [error]
        assert fnmatchcase(str(bot.errors[0]), pattern), str(bot.errors[0])
        assert bot.memory(chat=chat) == await stored(storage, chat=chat) == texts("a")
        # A handler may have a reference to it.
        assert bot.application.bot_data["texts"] is bot_texts
        # Later updates of all users are stored.
        await bot.say("b", chat=chat)
        await bot.say("other", user=43)
        assert bot.memory(chat=chat) == await stored(storage, chat=chat) == texts("a", "b", bot=["a", "b", "other"])
        assert bot.memory(43) == await stored(storage, 43) == texts("other", bot=["a", "b", "other"])
        await bot.application.update_persistence()
        assert len(bot.errors) == 1
    assert await stored(storage, chat=chat) == texts("a", "b", bot=["a", "b", "other"])


async def test_a_keyboard_that_cannot_be_stored_fails_only_the_update_that_sent_it(storage: Storage) -> None:
    sent, others_done = asyncio.Event(), asyncio.Event()

    async def harm(update: Any, context: Any) -> None:
        # In a task of its own, as with asyncio.gather().
        await asyncio.create_task(send_keyboard(update, context))
        sent.set()
        await others_done.wait()

    async with running(storage, harm) as bot:
        bad = asyncio.create_task(bot.say("bad"))
        await sent.wait()
        await bot.say("other", user=43)
        assert bot.errors == []
        others_done.set()
        await bad
        assert [type(error) for error in bot.errors] == [EncodeError]
        assert (await stored(storage, 43))[0] == {"texts": ["other"]}
        assert (await stored(storage))[0] == bot.memory()[0] == {}
        await bot.say("a")
        assert len(bot.errors) == 1


async def test_a_keyboard_of_a_job_that_cannot_be_stored_is_dropped_and_logged_once(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(storage, send_keyboard) as bot:
        markup = InlineKeyboardMarkup([[InlineKeyboardButton("a", callback_data=Choice(1))]])
        await bot.application.bot.send_message(42, "?", reply_markup=markup)
        await bot.say("a")
        await bot.say("b")
        assert bot.errors == []
        assert bot.memory() == await stored(storage) == texts("a", "b")
    (logged,) = [record.getMessage() for record in caplog.records if "callback_data" in record.getMessage()]
    assert "Choice" in logged
    assert "@stepwell.record_type" in logged


@pytest.mark.parametrize(
    "change",
    [{"job": object()}, {"large": "x" * 300_000}, {str(number): "x" * 10_000 for number in range(30)}],
    ids=["unsupported", "too large", "too large together"],
)
async def test_bot_data_that_a_job_has_changed_to_an_unsupported_value_fails_no_update(
    storage: Storage, caplog: pytest.LogCaptureFixture, change: dict[str, Any]
) -> None:
    async with running(storage, send_keyboard) as bot:
        await bot.say("a")
        bot.application.bot_data.update(change)
        await bot.say("b")
        assert bot.errors == []
        assert bot.memory() == await stored(storage) == texts("a", "b")
    assert caplog.text.count("outside of an update") == 1


async def test_a_failed_update_keeps_what_jobs_have_changed_in_bot_data_before_it(storage: Storage) -> None:
    async with running(storage, unsupported_in_bot_data) as bot:
        await bot.say("a")
        data = bot.application.bot_data
        data["rates"] = {"EUR": 1}
        data["texts"].append("job")
        await bot.say("bad")
        assert data == {"texts": ["a", "job"], "rates": {"EUR": 1}}
        assert (await stored(storage))[2] == {"texts": ["a"]}
        await bot.say("b")
        assert data == (await stored(storage))[2] == {"texts": ["a", "job", "b"], "rates": {"EUR": 1}}
        del data["rates"]
        await bot.say("bad")
        assert data == {"texts": ["a", "job", "b"]}
        await bot.say("c")
        assert data == (await stored(storage))[2] == {"texts": ["a", "job", "b", "c"]}


async def test_a_failed_update_keeps_the_changes_of_updates_that_run_beside_it(storage: Storage) -> None:
    began, failed = asyncio.Event(), asyncio.Event()

    async def harm(update: Any, context: Any) -> None:
        if update.effective_user.id == 43:
            context.bot_data["count"] = 1
            began.set()
            await failed.wait()
        else:
            await began.wait()
            context.bot_data["job"] = object()

    async with running(storage, harm) as bot:
        await bot.say("a")
        other = asyncio.create_task(bot.say("bad", user=43))
        await bot.say("bad")
        assert [type(error) for error in bot.errors] == [EncodeError]
        assert bot.memory()[0] == {"texts": ["a"]}
        failed.set()
        await other
        found = await stored(storage, 43)
        assert bot.memory(43) == found
        assert found[2]["count"] == 1
        assert "job" not in found[2]


class PartlyFailing(MemoryStorage):
    """A storage that refuses writes to one record, and is slow with the others."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: str | None = None

    def perform(self, operation: Any) -> Any:
        return self._perform(operation)

    async def _perform(self, operation: Any) -> Any:
        if self.refused is not None and isinstance(operation, Apply):
            if operation.address.key == self.refused:
                raise StorageUnavailable("refused")
            await yields(5)
        return await super().perform(operation)


@pytest.mark.parametrize("refused", [42, -5, "bot_data"])
async def test_memory_equals_the_storage_after_a_write_that_failed_beside_others(refused: Any) -> None:
    async with PartlyFailing() as storage, running(storage, send_keyboard) as bot:
        await bot.say("a", chat=-5)
        storage.refused = storage.address("ptb:7", refused).key
        with pytest.raises(StorageUnavailable):
            await bot.say("b", chat=-5)
        storage.refused = None
        user, chat, bot_data, state = found = await stored(storage, chat=-5)
        written = [name for name, data in ((42, user), (-5, chat), ("bot_data", bot_data)) if "b" in data["texts"]]
        assert sorted([*written, refused], key=str) == [-5, 42, "bot_data"]
        assert state == len(user["texts"])
        assert bot.memory(chat=-5) == found
        await bot.say("c", chat=-5)
        assert bot.memory(chat=-5) == await stored(storage, chat=-5)
        assert [data["texts"][-1] for data in bot.memory(chat=-5)[:3]] == ["c"] * 3


async def test_a_cancelled_update_restores_bot_data(storage: Storage) -> None:
    began = asyncio.Event()

    async def harm(update: Any, context: Any) -> None:
        began.set()
        await asyncio.Event().wait()

    async with running(storage, harm) as bot:
        await bot.say("a")
        update = asyncio.create_task(bot.say("bad"))
        await began.wait()
        update.cancel()
        with pytest.raises(asyncio.CancelledError):
            await update
        assert bot.memory() == await stored(storage) == texts("a")
