"""aiogram's FSM in a Stepwell storage: its states and data, and the isolation of its updates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiogram.exceptions import DataNotDictLikeError
from aiogram.fsm.state import State
from aiogram.fsm.storage.base import BaseEventIsolation, BaseStorage, StateType, StorageKey

from stepwell import Storage
from stepwell.adapters.aiogram.claims import ClaimedRecords, HandlerClaim
from stepwell.adapters.aiogram_records import address_of, tags_of
from stepwell.adapters.framework.claims import check_waiting
from stepwell.adapters.framework.retry import PATIENCE
from stepwell.adapters.framework.states import place_of, state_name
from stepwell.adapters.framework.storage import AdapterStorage
from stepwell.engine import check_name
from stepwell.options import check_instance, check_number

__all__ = ["StepwellIsolation", "StepwellStorage"]


class StepwellStorage(BaseStorage):
    """aiogram's states and data in a Stepwell storage, one record for both.

    Bot, chat, user, topic, business connection and destiny are always part of the key. A bot's records
    are in the namespace ``"<name>:<bot id>"``; a group of states is the flow.

    Example::

        from aiogram import Dispatcher
        from stepwell.adapters.aiogram import StepwellIsolation, StepwellStorage

        dispatcher = Dispatcher(storage=StepwellStorage(storage), events_isolation=StepwellIsolation(storage))
    """

    def __init__(self, storage: Storage | str, *, name: str = "aiogram") -> None:
        self._storage = AdapterStorage(storage)
        self._records = ClaimedRecords(self._storage.storage)
        self._name = name

    @property
    def storage(self) -> Storage:
        """The storage that holds the records."""
        return self._storage.storage

    async def set_state(self, key: StorageKey, state: StateType = None) -> None:
        name = state.state if isinstance(state, State) else state
        check_name("the state", name)
        check_instance(name, str, "a state must be a State, its name, or None, got {}", optional=True)
        await self._records.set_place(*self._at(key), place_of(name), tags=tags_of(key))

    async def get_state(self, key: StorageKey) -> str | None:
        return state_name(await self._records.place(*self._at(key)))

    async def set_data(self, key: StorageKey, data: Mapping[str, Any]) -> None:
        await self._records.set_data(*self._at(key), _mapping(data), tags=tags_of(key))

    async def get_data(self, key: StorageKey) -> dict[str, Any]:
        return await self._records.data(*self._at(key))

    async def update_data(self, key: StorageKey, data: Mapping[str, Any]) -> dict[str, Any]:
        return await self._records.update_data(*self._at(key), _mapping(data), tags=tags_of(key))

    async def close(self) -> None:
        """Close the storage, unless it was already open when it was first used here."""
        await self._storage.close()

    def _at(self, key: StorageKey) -> tuple[str, Any]:
        self._storage.use()
        return address_of(self._name, key)


class StepwellIsolation(BaseEventIsolation):
    """Handle one update of a key at a time, across all workers, in the order of arrival.

    All writes of a handler to its key, through ``StepwellStorage`` over the same storage, become one write
    when the handler ends, fenced by this claim. A handler that raises writes nothing. A handler that loses
    its lease gets ``LeaseLost``, and nothing is written.

    An update that waits for another one logs a warning every ``wait`` seconds, and one that waits for an unavailable
    storage at each attempt. After ``patience`` seconds it fails with ``Busy`` or ``StorageUnavailable``, and logs an
    error.
    """

    def __init__(
        self,
        storage: Storage | StepwellStorage | str,
        *,
        wait: float = 60.0,
        lease: float = 30.0,
        patience: float = PATIENCE,
        name: str = "aiogram",
    ) -> None:
        if isinstance(storage, StepwellStorage):
            name, storage = storage._name, storage.storage
        check_waiting(wait, lease)
        check_number(patience, "patience must not be negative, got {}", least=0)
        # Of this and the ``StepwellStorage``, the one that opened the storage closes it.
        self._storage = AdapterStorage(storage)
        self._name = name
        self._wait, self._lease, self._patience = wait, lease, patience

    def lock(self, key: StorageKey) -> HandlerClaim:  # type: ignore[override]
        """Return a context manager that claims a key: ``async with isolation.lock(key)``."""
        namespace, record = address_of(self._name, key)
        return HandlerClaim(
            self._storage.use(), namespace, record, wait=self._wait, lease=self._lease, patience=self._patience
        )

    async def close(self) -> None:
        """Close the storage, unless it was already open when it was first used here. Claims end with their updates."""
        await self._storage.close()


def _mapping(data: Any) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise DataNotDictLikeError(f"Data must be a dict or dict-like object, got {type(data).__name__}")
    return data
