"""What a test needs to know of a backend."""

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
    #: Other processes that open the same place see the same records.
    shared: ClassVar[bool]
    #: What was acknowledged survives kill -9 of every process that has it open.
    durable: ClassVar[bool]

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._opened: list[Storage] = []

    @abstractmethod
    def place(self) -> str:
        """The URL of a fresh, empty place of this test's own."""

    async def corrupt(self, url: str, address: Address, kind: str, name: str, damage: Callable[[bytes], bytes]) -> None:
        """Change the stored bytes of one value behind the storage's back.

        ``kind`` is ``field``, ``part``, ``head``, ``memo`` or ``tags``; ``name`` is that of a field or part.
        """
        raise NotImplementedError(f"{type(self).__name__} has no bytes to damage")

    async def settled(self) -> None:  # noqa: B027 - a file has no server that goes on
        """Wait until a server has finished what processes that were killed had sent to it."""

    def storage(self, url: str | None = None, **options: Any) -> Storage:
        """A storage at a place (default: a fresh one), closed after the test."""
        storage = open_storage(url or self.place(), **options)
        self._opened.append(storage)
        return storage

    async def close(self) -> None:
        for storage in self._opened:
            await storage.close()
