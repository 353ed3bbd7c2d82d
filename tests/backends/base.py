"""The interface of a backend for tests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from stepwell import Storage, open_storage
from stepwell.record import Address


class Backend(ABC):
    """One backend for one test. Servers are started once per session, by the class."""

    #: In test ids.
    name: ClassVar[str]
    #: Whether other processes that open the same URL see the same records.
    shared: ClassVar[bool]
    #: Whether acknowledged writes survive kill -9 of all processes that have it open.
    durable: ClassVar[bool]

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._opened: list[Storage] = []

    @abstractmethod
    def place(self) -> str:
        """Return the URL of a new, empty store for this test."""

    async def corrupt(self, url: str, address: Address, kind: str, name: str, damage: Callable[[bytes], bytes]) -> None:
        """Change the stored bytes of one value, bypassing the storage.

        ``kind`` is ``field``, ``part``, ``head``, ``memo`` or ``tags``; ``name`` is that of a field or part.
        """
        raise NotImplementedError(f"{type(self).__name__} has no bytes to damage")

    async def settled(self) -> None:  # noqa: B027 - a file has no server
        """Wait until the server has finished the requests of killed processes."""

    def storage(self, url: str | None = None, **options: Any) -> Storage:
        """Return a storage for a URL (default: a new store), closed after the test."""
        storage = open_storage(url or self.place(), **options)
        self._opened.append(storage)
        return storage

    async def close(self) -> None:
        for storage in self._opened:
            await storage.close()
