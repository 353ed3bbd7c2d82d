"""telebot's states in a Stepwell storage, for ``TeleBot`` and for ``AsyncTeleBot``."""

# telebot passes these arguments by position and by name.
# ruff: noqa: PLR0917
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import Any, TypeVar

from telebot import asyncio_storage
from telebot import storage as sync_storage

from stepwell import Storage
from stepwell.adapters.telebot.blocking import BlockingCalls
from stepwell.adapters.telebot.records import RecordKey, Snapshot, StateRecords
from stepwell.engine import as_storage

__all__ = ["AsyncInteractiveData", "AsyncStepwellStateStorage", "InteractiveData", "StepwellStateStorage"]

T = TypeVar("T")


class StateMethods(ABC):
    """The methods that telebot calls, for both storages. With ``AsyncTeleBot`` their results are awaited."""

    def __init__(self, storage: Storage | str, *, name: str = "telebot") -> None:
        super().__init__()
        self._records = StateRecords(as_storage(storage), name)

    @property
    def storage(self) -> Storage:
        """The storage that holds the records."""
        return self._records.storage

    @abstractmethod
    def _run(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Return a coroutine, or run it and return its result."""

    def set_state(
        self,
        chat_id: int,
        user_id: int,
        state: object,
        business_connection_id: str | None = None,
        message_thread_id: int | None = None,
        bot_id: int | None = None,
    ) -> Any:
        """Set the state of a user."""
        key = RecordKey(chat_id, user_id, message_thread_id, business_connection_id, bot_id)
        return self._run(self._records.set_state(key, state))

    def get_state(
        self,
        chat_id: int,
        user_id: int,
        business_connection_id: str | None = None,
        message_thread_id: int | None = None,
        bot_id: int | None = None,
    ) -> Any:
        """Return the state of a user, or ``None``."""
        key = RecordKey(chat_id, user_id, message_thread_id, business_connection_id, bot_id)
        return self._run(self._records.state(key))

    def delete_state(
        self,
        chat_id: int,
        user_id: int,
        business_connection_id: str | None = None,
        message_thread_id: int | None = None,
        bot_id: int | None = None,
    ) -> Any:
        """Delete state and data of a user, and return whether there were any."""
        key = RecordKey(chat_id, user_id, message_thread_id, business_connection_id, bot_id)
        return self._run(self._records.delete(key))

    def set_data(
        self,
        chat_id: int,
        user_id: int,
        key: Any,
        value: Any,
        business_connection_id: str | None = None,
        message_thread_id: int | None = None,
        bot_id: int | None = None,
    ) -> Any:
        """Set one field of the data of a user."""
        record = RecordKey(chat_id, user_id, message_thread_id, business_connection_id, bot_id)
        return self._run(self._records.set_field(record, key, value))

    def get_data(
        self,
        chat_id: int,
        user_id: int,
        business_connection_id: str | None = None,
        message_thread_id: int | None = None,
        bot_id: int | None = None,
    ) -> Any:
        """Return the data of a user."""
        key = RecordKey(chat_id, user_id, message_thread_id, business_connection_id, bot_id)
        return self._run(self._records.data(key))

    def reset_data(
        self,
        chat_id: int,
        user_id: int,
        business_connection_id: str | None = None,
        message_thread_id: int | None = None,
        bot_id: int | None = None,
    ) -> Any:
        """Remove the data of a user."""
        key = RecordKey(chat_id, user_id, message_thread_id, business_connection_id, bot_id)
        return self._run(self._records.set_data(key, {}))

    def save(
        self,
        chat_id: int,
        user_id: int,
        data: Mapping[Any, Any],
        business_connection_id: str | None = None,
        message_thread_id: int | None = None,
        bot_id: int | None = None,
    ) -> Any:
        """Replace the whole data of a user."""
        key = RecordKey(chat_id, user_id, message_thread_id, business_connection_id, bot_id)
        return self._run(self._records.set_data(key, data))


class StepwellStateStorage(StateMethods, sync_storage.StateStorageBase):
    """telebot's states and data in a Stepwell storage, for ``TeleBot(token, state_storage=...)``.

    Bot, chat, user, topic and business connection are always part of the key. A bot's records are in the namespace
    ``"<name>:<bot id>"``; a group of states is the flow. Every method is atomic.

    Example::

        from telebot import TeleBot
        from stepwell.adapters.telebot import StepwellStateStorage

        bot = TeleBot("42:token", state_storage=StepwellStateStorage("sqlite:///bot.db"))
    """

    def __init__(self, storage: Storage | str, *, name: str = "telebot") -> None:
        super().__init__(storage, name=name)
        self._calls = BlockingCalls()

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._calls.run(call)

    def get_interactive_data(
        self,
        chat_id: int,
        user_id: int,
        business_connection_id: str | None = None,
        message_thread_id: int | None = None,
        bot_id: int | None = None,
    ) -> InteractiveData:
        """Return the data for a ``with`` block, which writes the changed fields at its end."""
        key = RecordKey(chat_id, user_id, message_thread_id, business_connection_id, bot_id)
        return InteractiveData(self._records, self._calls, key)


class AsyncStepwellStateStorage(StateMethods, asyncio_storage.StateStorageBase):
    """telebot's states and data in a Stepwell storage, for ``AsyncTeleBot(token, state_storage=...)``.

    The records are those of ``StepwellStateStorage``.

    Example::

        from telebot.async_telebot import AsyncTeleBot
        from stepwell.adapters.telebot import AsyncStepwellStateStorage

        bot = AsyncTeleBot("42:token", state_storage=AsyncStepwellStateStorage("sqlite:///bot.db"))
    """

    def _run(self, call: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        return call

    def get_interactive_data(
        self,
        chat_id: int,
        user_id: int,
        business_connection_id: str | None = None,
        message_thread_id: int | None = None,
        bot_id: int | None = None,
    ) -> AsyncInteractiveData:
        """Return the data for an ``async with`` block, which writes the changed fields at its end."""
        key = RecordKey(chat_id, user_id, message_thread_id, business_connection_id, bot_id)
        return AsyncInteractiveData(self._records, key)


class InteractiveData:
    """The data of a ``with`` block. A block that raises changes nothing."""

    def __init__(self, records: StateRecords, calls: BlockingCalls, key: RecordKey) -> None:
        self._records = records
        self._calls = calls
        self._key = key
        self._before = calls.run(records.snapshot(key))
        #: The data; telebot offers it before the block, too.
        self.data: dict[Any, Any] = self._before.data

    def __enter__(self) -> dict[Any, Any]:
        return self.data

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self._calls.run(self._records.merge(self._key, self._before, self.data))


class AsyncInteractiveData:
    """The data of an ``async with`` block. A block that raises changes nothing."""

    def __init__(self, records: StateRecords, key: RecordKey) -> None:
        self._records = records
        self._key = key
        self._before: Snapshot | None = None
        #: The data, from the beginning of the block.
        self.data: dict[Any, Any] | None = None

    async def __aenter__(self) -> dict[Any, Any]:
        self._before = await self._records.snapshot(self._key)
        self.data = self._before.data
        return self.data

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None and self._before is not None:
            await self._records.merge(self._key, self._before, self._before.data)
