"""aiogram_dialog on our storage, in its common set-ups: the isolation on the dispatcher, on the dialogs, on both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from itertools import count
from typing import Any

import pytest
from aiogram import Bot, Dispatcher
from aiogram.client.session.aiohttp import AiohttpSession
from aiogram.client.telegram import TelegramAPIServer
from aiogram.filters import Command
from aiogram.fsm.context import FSMContext
from aiogram.fsm.state import State, StatesGroup
from aiogram.types import CallbackQuery, Message
from aiogram_dialog import Dialog, DialogManager, ShowMode, StartMode, Window, setup_dialogs
from aiogram_dialog.widgets.input import TextInput
from aiogram_dialog.widgets.kbd import Button, SwitchTo
from aiogram_dialog.widgets.text import Const, Format

from stepwell import MemoryStorage, Storage
from stepwell.adapters.aiogram import StepwellIsolation, StepwellStorage
from stepwell.botapi import BotAPI, Person
from tests.backends import Backend
from tests.until import until

#: Seconds before a test fails; far longer than any wait takes.
PATIENCE = 60.0
SETUPS = {"both": (True, True), "dialogs": (False, True), "dispatcher": (True, False)}


class Main(StatesGroup):
    menu = State()
    name = State()
    done = State()


class Side(StatesGroup):
    progress = State()


async def on_name(message: Message, widget: Any, manager: DialogManager, text: str) -> None:
    manager.dialog_data["name"] = text
    await manager.next()


async def on_background(query: CallbackQuery, button: Button, manager: DialogManager) -> None:
    await manager.bg(stack_id="side").start(Side.progress, data={"step": button.widget_id}, mode=StartMode.RESET_STACK)


async def on_foreground(query: CallbackQuery, button: Button, manager: DialogManager) -> None:
    """Change another dialog, and wait for it, inside a handler that has written to its own state."""
    state: FSMContext = manager.middleware_data["state"]
    await state.update_data(seen=1)
    async with manager.bg(stack_id="side").fg() as side:
        await side.start(Side.progress, data={"step": "in front"}, mode=StartMode.RESET_STACK)
        await state.update_data(seen=2)


async def on_later(query: CallbackQuery, button: Button, manager: DialogManager) -> None:
    await manager.bg().update({"later": "later"}, show_mode=ShowMode.SEND)


async def main_data(dialog_manager: DialogManager, **more: Any) -> dict[str, Any]:
    return {"name": "nobody", "later": "now", **dialog_manager.dialog_data}


class CountingDispatcher(Dispatcher):
    """Counts the updates that have begun and not ended, including those that dialogs send in the background."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.running = 0
        self.ended = asyncio.Event()

    async def feed_update(self, *args: Any, **data: Any) -> Any:
        with self._counted():
            return await super().feed_update(*args, **data)

    async def propagate_event(self, update_type: str, *args: Any, **data: Any) -> Any:
        with self._counted():
            return await super().propagate_event(update_type, *args, **data)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self.ended.set()


def make_dispatcher(storage: Storage, *, on_dispatcher: bool, on_dialogs: bool) -> CountingDispatcher:
    isolation = StepwellIsolation(storage) if on_dispatcher else None
    dispatcher = CountingDispatcher(storage=StepwellStorage(storage), events_isolation=isolation)

    @dispatcher.message(Command("start"))
    async def start(message: Message, dialog_manager: DialogManager) -> None:
        await dialog_manager.start(Main.menu, mode=StartMode.RESET_STACK)

    menu = Window(
        Format("Menu {later}"),
        SwitchTo(Const("name"), id="name", state=Main.name),
        Button(Const("background"), id="background", on_click=on_background),
        Button(Const("foreground"), id="foreground", on_click=on_foreground),
        Button(Const("later"), id="later", on_click=on_later),
        state=Main.menu,
        getter=main_data,
    )
    name = Window(Const("What's your name?"), TextInput(id="text", on_success=on_name), state=Main.name)
    done = Window(Format("Welcome, {name}!"), state=Main.done, getter=main_data)
    progress = Window(
        Format("Progress: {start_data[step]}"), Button(Const("again"), id="again", on_click=on_background),
        state=Side.progress,
    )  # fmt: skip
    dispatcher.include_routers(Dialog(menu, name, done), Dialog(progress))
    setup_dialogs(dispatcher, events_isolation=StepwellIsolation(storage) if on_dialogs else None)
    return dispatcher


class Talk:
    """A person who uses the dialogs, and waits for the end of each update."""

    def __init__(self, dispatcher: CountingDispatcher, person: Person) -> None:
        self.dispatcher = dispatcher
        self.person = person

    async def send(self, text: str) -> None:
        await self.person.send(text)

    async def press(self, button: str) -> None:
        # The dialog shows its window before its record is written, and reads the record before it takes the lock.
        await self.finish()
        query = await self.person.press(button)
        assert query is not None
        await self.person.notice(query, timeout=PATIENCE)

    async def read(self, text: str) -> None:
        """Wait for a message with this text."""
        await until(lambda: text in [message.get("text") for message in self.person.messages])

    async def finish(self) -> None:
        """Wait until all updates have ended. An update that starts another one ends after that one has begun."""
        async with asyncio.timeout(PATIENCE):
            while self.dispatcher.running:
                self.dispatcher.ended.clear()
                await self.dispatcher.ended.wait()


@asynccontextmanager
async def talking(storage: Storage, setup: str) -> AsyncIterator[Talk]:
    on_dispatcher, on_dialogs = SETUPS[setup]
    dispatcher = make_dispatcher(storage, on_dispatcher=on_dispatcher, on_dialogs=on_dialogs)
    async with BotAPI() as api, storage:
        registered = api.bot("my_bot")
        bot = Bot(registered.token, session=AiohttpSession(api=TelegramAPIServer.from_base(api.url)))
        polling = asyncio.create_task(dispatcher.start_polling(bot, handle_signals=False))
        try:
            talk = Talk(dispatcher, api.chat(registered))
            yield talk
            await talk.finish()
        finally:
            await dispatcher.stop_polling()
            await polling


@pytest.fixture(autouse=True)
def unique_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each dialog an id of its own.

    aiogram_dialog chooses among 100 ids in each second, and two dialogs of a chat with the same id share one record.
    """
    monkeypatch.setattr("aiogram_dialog.api.entities.stack.new_int_id", partial(next, count(1)))


@pytest.fixture(params=SETUPS)
def setup(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_a_dialog_in_a_private_chat(backend: Backend, setup: str) -> None:
    async with talking(backend.storage(), setup) as alice:
        await alice.send("/start")
        await alice.read("Menu now")
        await alice.press("name")
        await alice.read("What's your name?")
        await alice.send("Alice")
        await alice.read("Welcome, Alice!")


async def test_dialogs_of_two_users_in_a_group(setup: str) -> None:
    async with talking(MemoryStorage(), setup) as talk:
        group = talk.person.group(-5)
        for person, name in ((group, "Alice"), (group.user(43), "Bob")):
            member = Talk(talk.dispatcher, person)
            await member.send("/start")
            await member.read("Menu now")
            await member.press("name")
            await member.send(name)
            await member.read(f"Welcome, {name}!")


async def test_a_dialog_opened_in_the_background(backend: Backend, setup: str) -> None:
    async with talking(backend.storage(), setup) as alice:
        await alice.send("/start")
        await alice.read("Menu now")
        await alice.press("background")
        await alice.read("Progress: background")
        await alice.press("again")
        await alice.read("Progress: again")


async def test_a_handler_that_waits_for_a_dialog_in_the_background(backend: Backend, setup: str) -> None:
    storage = backend.storage()
    async with talking(storage, setup) as alice:
        await alice.send("/start")
        await alice.read("Menu now")
        await alice.press("foreground")
        await alice.read("Progress: in front")
        await alice.finish()
        key = (42, 42, None, None, "default")
        assert await storage.get_data(f"aiogram:{alice.person.bot.id}", key) == {"seen": 2}


async def test_a_dialog_that_changes_itself_in_the_background(setup: str) -> None:
    async with talking(MemoryStorage(), setup) as alice:
        await alice.send("/start")
        await alice.read("Menu now")
        await alice.press("later")
        await alice.read("Menu later")


async def test_a_dialog_continues_after_a_restart(shared_backend: Backend, setup: str) -> None:
    url = shared_backend.place()
    async with talking(shared_backend.storage(url), setup) as alice:
        await alice.send("/start")
        await alice.read("Menu now")
        await alice.press("name")
        await alice.read("What's your name?")
    async with talking(shared_backend.storage(url), setup) as alice:
        await alice.send("Alice")
        await alice.read("Welcome, Alice!")
