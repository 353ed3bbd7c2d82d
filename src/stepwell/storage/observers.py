"""Observers of the storages of this process. The playground shows the records of any framework with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from stepwell.storage.contract import RunBatch, Storage

__all__ = [
    "BatchObserver",
    "StorageObserver",
    "observe_batches",
    "observe_storages",
]

#: Called with each new storage. It must not raise.
StorageObserver: TypeAlias = Callable[[Storage], object]
#: Wraps the function that sends the batches of a storage. It is called when the storage opens.
BatchObserver: TypeAlias = Callable[[Storage, RunBatch], RunBatch]


def observe_storages(observer: StorageObserver) -> Callable[[], None]:
    """Call a function with each storage that is created from now on; return a function that ends this.

    Example::

        from stepwell.engine import observe_storages

        created = []
        end = observe_storages(created.append)
        assert created == [] or open_storage("memory://") in created
        end()
    """
    return _added(Storage.observers, observer)


def observe_batches(observer: BatchObserver) -> Callable[[], None]:
    """Wrap the function that sends the batches of each storage that opens from now on; return a function that ends it.

    Example::

        from stepwell.engine import observe_batches

        def count(storage, run):
            async def counted(batch):
                print(len(batch), "operations")
                return await run(batch)

            return counted

        end = observe_batches(count)
        end()
    """
    return _added(Storage.batch_observers, observer)


def _added(observers: list[Any], observer: object) -> Callable[[], None]:
    observers.append(observer)

    def end() -> None:
        if observer in observers:
            observers.remove(observer)

    return end
