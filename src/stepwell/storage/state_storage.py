"""The state of node runs as plain dicts, and the default storages of the process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from stepwell.options import check_instance
from stepwell.record import KEEP, RUNS, Keep
from stepwell.storage.contract import Storage
from stepwell.storage.memory import MemoryStorage
from stepwell.storage.urls import as_storage

__all__ = ["StateStorage", "configure", "default_state_storage", "default_storage", "is_configured"]


class StateStorage:
    """The state of node runs as plain dicts. A subclass may override the four methods to keep it elsewhere.

    A storage given as a URL is opened on first use; ``await states.storage.close()`` closes it.

    Example::

        states = StateStorage(storage)
        await states.update_state("order-42", {"paid": False})
        assert await states.merge_state("order-42", {"paid": True}) == {"paid": True}
    """

    def __init__(self, storage: Storage | str | None = None) -> None:
        self._storage = None if storage is None else as_storage(storage)

    @property
    def storage(self) -> Storage:
        """The storage that was given, else the configured one."""
        return self._storage if self._storage is not None else default_storage()

    async def get_state(self, flow_id: Any) -> dict[Any, Any]:
        """Return the state of a run; ``{}`` if there is none."""
        return await self.storage.get_data(RUNS, flow_id) or {}

    async def update_state(self, flow_id: Any, state: Mapping[Any, Any]) -> dict[Any, Any]:
        """Replace the state of a run, and return it."""
        await self.storage.set_data(RUNS, flow_id, state)
        return dict(state)

    async def merge_state(self, flow_id: Any, updates: Mapping[Any, Any]) -> dict[Any, Any]:
        """Merge fields into the state of a run atomically, and return the merged state."""
        return await self.storage.update_data(RUNS, flow_id, updates)

    async def cleanup(self, flow_id: Any) -> None:
        """Remove the state of a run, if there is one."""
        await self.storage.clear(RUNS, flow_id)


#: The configured storage.
_storage: Storage | None = None
#: The one MemoryStorage of this process, which is used while no storage is configured.
_fallback: Storage | None = None
_state_storage: StateStorage | None = None


def _forget() -> None:
    global _storage, _fallback, _state_storage
    _storage = _fallback = _state_storage = None


if hasattr(os, "register_at_fork"):
    # A forked child has neither the loops nor the threads of its parent's storages.
    os.register_at_fork(after_in_child=_forget)


def configure(*, storage: Storage | str | Keep | None = KEEP, state_storage: StateStorage | Keep | None = KEEP) -> None:
    """Set the default storages. Options that are not given stay; ``None`` means the one MemoryStorage of the process.

    A storage given as a URL is opened on first use, and stays open until the process ends.

    Example::

        configure(storage="sqlite:///flows.db")
        flow = linear(Read, name="words")  # its runs are stored in flows.db
    """
    global _storage, _state_storage
    if storage is not KEEP:
        _storage = None if storage is None else as_storage(storage)
    if state_storage is not KEEP:
        check_instance(state_storage, StateStorage, "state_storage must be a StateStorage, not {type}", optional=True)
        _state_storage = state_storage


def default_storage() -> Storage:
    """Return the configured storage, else the MemoryStorage of this process."""
    global _fallback
    if _storage is not None:
        return _storage
    if _fallback is None:
        _fallback = MemoryStorage()
    return _fallback


def is_configured() -> bool:
    """Return whether ``configure()`` has set a storage."""
    return _storage is not None


def default_state_storage() -> StateStorage:
    """Return the configured state storage, else one on the configured storage."""
    return _state_storage or StateStorage()
