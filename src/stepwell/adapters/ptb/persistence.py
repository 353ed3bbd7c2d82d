"""``StepwellPersistence``: the data of a python-telegram-bot application in a Stepwell storage."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Any, TypeAlias, TypeVar, cast, overload

from telegram.ext import BasePersistence, ContextTypes, PersistenceInput

from stepwell import Storage
from stepwell.adapters.framework.claims import HeldRecords, check_waiting
from stepwell.adapters.framework.storage import AdapterStorage
from stepwell.adapters.ptb.data.entries import BOT, CHAT, USER, EntryRecords
from stepwell.adapters.ptb.data.keyboards import CallbackData, KeyboardRecords
from stepwell.adapters.ptb.objects import bot_of_objects
from stepwell.adapters.ptb.states import (
    ConversationKey,
    field_of,
    home_of,
    key_text,
    open_state,
    pack_state,
)
from stepwell.engine import decode_key

__all__ = ["RecordsInUse", "StepwellPersistence", "UpdatesInUse"]

UD = TypeVar("UD")
CD = TypeVar("CD")
BD = TypeVar("BD")
_Data: TypeAlias = dict[Any, Any]


class RecordsInUse(HeldRecords, ABC):
    """The records of an update whose handlers run, for the data and the conversations of its user and chat."""

    #: The task of the update.
    task: asyncio.Task[Any] | None
    #: The ids of the keyboards that its handlers have sent.
    sent: set[str]

    @abstractmethod
    def refresh(self, kind: str, key: Any, live: Any) -> None:
        """Add the changes of other processes to the data of a user or chat."""

    @abstractmethod
    def touch(self, handler: Any, key: ConversationKey, context: Any) -> None:
        """Note that a handler of conversations handles the update."""


class UpdatesInUse(ABC):
    """The updates of an application, which use the storage until they have ended."""

    @abstractmethod
    async def stop(self) -> None:
        """Wait for all work that updates have left."""


class StepwellPersistence(BasePersistence[UD, CD, BD]):
    """The data of an application in a Stepwell storage, for any number of processes.

    The data of a user is a record of its own, and so is that of a group. Each item of a dict is a field: only changed
    items are written, and two processes can change different ones.

    One update of a user, and of a chat, is handled at a time. Its data is read before its handlers run, and written
    when they have ended. An update that Telegram delivers again is dropped. ``update_interval`` remains for data that
    jobs and ``block=False`` handlers have changed.

    ``storage``: a storage or its URL. ``namespace``: the namespace of the records, by default ``ptb:<bot id>``.
    ``context_types``: pass the application's, if it has any. ``wait`` and ``lease``: the seconds for which an update
    waits for another one of the same user or chat, and after which the claim of a killed process ends.

    Example::

        from telegram.ext import Application
        from stepwell.adapters.ptb import StepwellPersistence

        persistence = StepwellPersistence("sqlite:///bot.db")
        application = Application.builder().token("42:token").persistence(persistence).build()
    """

    @overload
    def __init__(
        self: StepwellPersistence[_Data, _Data, _Data],
        storage: Storage | str,
        *,
        store_data: PersistenceInput | None = None,
        update_interval: float = 60,
        namespace: str | None = None,
        wait: float = 60.0,
        lease: float = 30.0,
    ) -> None: ...
    @overload
    def __init__(
        self: StepwellPersistence[UD, CD, BD],
        storage: Storage | str,
        *,
        store_data: PersistenceInput | None = None,
        update_interval: float = 60,
        namespace: str | None = None,
        context_types: ContextTypes[Any, UD, CD, BD] | None = None,
        wait: float = 60.0,
        lease: float = 30.0,
    ) -> None: ...
    def __init__(
        self,
        storage: Storage | str,
        *,
        store_data: PersistenceInput | None = None,
        update_interval: float = 60,
        namespace: str | None = None,
        context_types: ContextTypes[Any, UD, CD, BD] | None = None,
        wait: float = 60.0,
        lease: float = 30.0,
    ) -> None:
        check_waiting(wait, lease)
        super().__init__(store_data=store_data, update_interval=update_interval)
        self._storage = AdapterStorage(storage)
        self.context_types: ContextTypes[Any, UD, CD, BD] = cast(
            "ContextTypes[Any, UD, CD, BD]", context_types or ContextTypes()
        )
        self._given_namespace = namespace
        self.wait: float = wait
        self.lease: float = lease
        #: The entries of users, chats and the bot.
        self.entries: EntryRecords = EntryRecords(self.storage, lambda: self.namespace)
        #: The updates of this process that hold a record, by the key of the record.
        self.held: dict[Any, RecordsInUse] = {}
        #: Handles the updates of the application.
        self.updates: UpdatesInUse | None = None
        #: The keyboards with arbitrary callback data.
        self.keyboards: KeyboardRecords = KeyboardRecords(
            EntryRecords(self.storage, lambda: f"{self.namespace}:keyboards")
        )

    @property
    def storage(self) -> Storage:
        """The storage that holds the records."""
        return self._storage.storage

    @property
    def namespace(self) -> str:
        """The namespace of the records."""
        if self._given_namespace is not None:
            return self._given_namespace
        number = "" if self.bot is None else self.bot.token.partition(":")[0]
        return f"ptb:{number}" if number.isdecimal() else "ptb"

    async def get_user_data(self) -> dict[int, UD]:
        """Return the data of all users."""
        return await self._all(USER, self.context_types.user_data)

    async def get_chat_data(self) -> dict[int, CD]:
        """Return the data of all chats."""
        return await self._all(CHAT, self.context_types.chat_data)

    async def get_bot_data(self) -> BD:
        """Return the data of the bot."""
        self._use()
        return cast("BD", await self.entries.load(BOT, BOT, self.context_types.bot_data))

    async def get_callback_data(self) -> CallbackData | None:
        """Return the callback data of all keyboards; ``None`` if there is none."""
        self._use()
        return await self.keyboards.load_all()

    async def get_conversations(self, name: str) -> dict[ConversationKey, object]:
        """Return the states of all conversations of a handler."""
        self._use()
        field, found = field_of(name), {}
        async for address, stored in self.entries.records():
            if field in stored.fields:
                states = self.storage.seal(address).data({field: stored.fields[field]})[field]
                found.update({decode_key(text): open_state(state) for text, state in states.items()})
        return found

    async def update_user_data(self, user_id: int, data: UD) -> None:
        """Write what this process has changed in the data of a user."""
        await self._save(USER, user_id, data)

    async def update_chat_data(self, chat_id: int, data: CD) -> None:
        """Write what this process has changed in the data of a chat."""
        await self._save(CHAT, chat_id, data)

    async def update_bot_data(self, data: BD) -> None:
        """Write what this process has changed in the data of the bot."""
        await self._save(BOT, BOT, data)

    async def update_callback_data(self, data: CallbackData | None) -> None:
        """Write the keyboards that are new or were used, and delete those that are gone."""
        self._use()
        await self.keyboards.store_all(data)

    async def update_conversation(self, name: str, key: ConversationKey, new_state: object | None) -> None:
        """Write the state of a conversation; ``None`` ends it."""
        self._use()
        state = None if new_state is None else pack_state(new_state)

        def change(states: dict[str, Any]) -> None:
            if state is None:
                states.pop(key_text(key), None)
            else:
                states[key_text(key)] = state

        await self.entries.edit(home_of(key), field_of(name), change)

    async def drop_user_data(self, user_id: int) -> None:
        """Delete the data of a user."""
        self._use()
        await self.entries.drop(USER, user_id)

    async def drop_chat_data(self, chat_id: int) -> None:
        """Delete the data of a chat."""
        self._use()
        await self.entries.drop(CHAT, chat_id)

    async def refresh_user_data(self, user_id: int, user_data: UD) -> None:
        """Add the changes of other processes to the data of a user."""
        await self._refresh(USER, user_id, user_data)

    async def refresh_chat_data(self, chat_id: int, chat_data: CD) -> None:
        """Add the changes of other processes to the data of a chat."""
        await self._refresh(CHAT, chat_id, chat_data)

    async def refresh_bot_data(self, bot_data: BD) -> None:
        """Add the changes of other processes to the data of the bot."""
        await self._refresh(BOT, BOT, bot_data)

    async def flush(self) -> None:
        """Close the storage, unless it was already open when it was first used here. All data is written before."""
        if self.updates is not None:
            await self.updates.stop()
        await self._storage.close()

    def _use(self) -> None:
        bot_of_objects.set(self.bot)
        self._storage.use()

    async def _all(self, kind: str, make: type[Any]) -> dict[int, Any]:
        self._use()
        return await self.entries.load_all(kind, make)

    async def _save(self, kind: str, key: Any, data: Any) -> None:
        self._use()
        if key in self.held:
            # The update writes it when its handlers end.
            return
        await self.entries.save(kind, key, data)

    async def _refresh(self, kind: str, key: Any, live: Any) -> None:
        self._use()
        claim = self.held.get(key)
        if claim is None:
            await self.entries.refresh(kind, key, live)
        else:
            claim.refresh(kind, key, live)
