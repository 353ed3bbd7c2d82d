"""Observers of the storages of this process. The playground shows the records of any framework with them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from stepwell.storage.contract import Storage
    from stepwell.storage.operations import Result
    from stepwell.storage.transport.lane import Batch

__all__ = ["BatchObserver", "RunBatch", "StorageObserver", "batch_observers", "storage_observers"]

#: Called with each new storage. It must not raise.
StorageObserver: TypeAlias = Callable[["Storage"], object]

storage_observers: list[StorageObserver] = []

RunBatch: TypeAlias = "Callable[[Batch], Awaitable[list[Result]]]"
#: Wraps the function that sends the batches of a storage. It is called when the storage opens.
BatchObserver: TypeAlias = Callable[["Storage", RunBatch], RunBatch]

batch_observers: list[BatchObserver] = []
