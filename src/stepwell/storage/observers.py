"""Observers of the storages of this process. The playground shows the records of any framework with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from stepwell.storage.contract import Storage

__all__ = ["StorageObserver", "storage_observers"]

#: Called with each new storage. It must not raise.
StorageObserver: TypeAlias = Callable[["Storage"], object]

storage_observers: list[StorageObserver] = []
