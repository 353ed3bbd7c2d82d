"""Four functions for the state of a flow's run, by flow id; and what is used when nothing is given."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from stepwell.errors import InvalidOption
from stepwell.record import KEEP, RUNS, Keep
from stepwell.storage.contract import Storage
from stepwell.storage.memory import MemoryStorage
from stepwell.storage.urls import as_storage

__all__ = ["StateStorage", "configure", "default_state_storage", "default_storage", "is_configured"]


class StateStorage:
    """The state of runs of node flows as plain dicts. A subclass with its own four methods may keep it anywhere.

    A storage that is given as a URL is opened by its first use; ``await states.storage.close()`` closes it.
    """

    def __init__(self, storage: Storage | str | None = None) -> None:
        self._storage = None if storage is None else as_storage(storage)

    @property
    def storage(self) -> Storage:
        """Where it is kept: what was given, else what is configured."""
        return self._storage if self._storage is not None else default_storage()

    async def get_state(self, flow_id: Any) -> dict[Any, Any]:
        """The state of a run; ``{}`` if there is none."""
        return await self.storage.get_data(RUNS, flow_id) or {}

    async def update_state(self, flow_id: Any, state: Mapping[Any, Any]) -> dict[Any, Any]:
        """Replace the state of a run, and return it."""
        await self.storage.set_data(RUNS, flow_id, state)
        return dict(state)

    async def merge_state(self, flow_id: Any, updates: Mapping[Any, Any]) -> dict[Any, Any]:
        """Merge fields into the state of a run, atomically, and return the merged state."""
        return await self.storage.update_data(RUNS, flow_id, updates)

    async def cleanup(self, flow_id: Any) -> None:
        """Remove the state of a run. On an unknown id it does nothing."""
        await self.storage.clear(RUNS, flow_id)


_storage: Storage | None = None
#: The MemoryStorage that stands for a storage that was not configured.
_stand_in: Storage | None = None
_state_storage: StateStorage | None = None


def _forget() -> None:
    global _storage, _state_storage
    _storage = _state_storage = None


if hasattr(os, "register_at_fork"):
    # A forked child has none of the loops and threads that its parent's storages live on.
    os.register_at_fork(after_in_child=_forget)


def configure(*, storage: Storage | str | Keep | None = KEEP, state_storage: StateStorage | Keep | None = KEEP) -> None:
    """Set what is used when no storage is given. What is left out stays; ``None`` is one MemoryStorage per process.

    A storage that is given as a URL is opened by its first use, and stays open as long as the process.
    """
    global _storage, _state_storage
    if storage is not KEEP:
        _storage = None if storage is None else as_storage(storage)
    if state_storage is not KEEP:
        if state_storage is not None and not isinstance(state_storage, StateStorage):
            raise InvalidOption(f"state_storage is a StateStorage or a subclass, not {type(state_storage).__name__}")
        _state_storage = state_storage


def default_storage() -> Storage:
    """The configured storage, else this process's MemoryStorage."""
    global _storage, _stand_in
    if _storage is None:
        _storage = _stand_in = MemoryStorage()
    return _storage


def is_configured() -> bool:
    """Whether ``configure()`` has set a storage."""
    return _storage is not None and _storage is not _stand_in


def default_state_storage() -> StateStorage:
    """The configured state storage, else one over the configured storage."""
    return _state_storage or StateStorage()
