"""Parts of storages that have no public name: only this module knows where they are."""

from __future__ import annotations

from typing import Any

from stepwell import Storage
from stepwell.record import Address

__all__ = ["cell_at", "cells_of", "file_of", "server_of"]


def cells_of(storage: Storage) -> dict[Address, Any]:
    """Return the records in the memory of a ``MemoryStorage``."""
    cells: dict[Address, Any] = storage._cells
    return cells


def cell_at(storage: Storage, bot: str, key: Any) -> Any:
    """Return one record of a ``MemoryStorage``, which the test may damage."""
    return cells_of(storage)[storage.address(bot, key)]


def file_of(storage: Storage) -> Any:
    """Return the connections of an open ``SQLiteStorage`` to its file."""
    return storage._file


def server_of(storage: Storage) -> Any:
    """Return the servers of a ``RedisStorage`` and who has which keys."""
    return storage._server
