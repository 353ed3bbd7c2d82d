"""The storage of an adapter, which may be that of the program."""

from __future__ import annotations

from stepwell import Storage
from stepwell.engine import as_storage

__all__ = ["AdapterStorage"]


class AdapterStorage:
    """A storage that was given as an object or a URL.

    It is closed here if it was made from a URL, or if it was closed when it was first used here. A framework may start
    again after it has closed its storage.
    """

    def __init__(self, storage: Storage | str) -> None:
        self.storage: Storage = as_storage(storage)
        self._owned: bool | None = True if isinstance(storage, str) else None

    def use(self) -> Storage:
        """Return the storage, and note at the first use whether it is open."""
        if self._owned is None:
            self._owned = not self.storage.is_open
        return self.storage

    async def close(self) -> None:
        """Close the storage, unless the program has opened it."""
        if self._owned:
            await self.storage.close()
            self.storage.allow_reopen()
