"""Durable state for conversations and node flows: pick up exactly where you were."""

from typing import TYPE_CHECKING, Any

from stepwell._portal import sync
from stepwell.codec import record_type
from stepwell.errors import StepwellError
from stepwell.record import Limits, State
from stepwell.storage import (
    KeyValueStorage,
    MemoryStorage,
    StateStorage,
    Storage,
    configure,
    copy_records,
    open_storage,
)

if TYPE_CHECKING:
    from stepwell.storage.sqlite import SQLiteStorage

__version__ = "0.1.0.dev0"

__all__ = [
    "KeyValueStorage",
    "Limits",
    "MemoryStorage",
    "SQLiteStorage",
    "State",
    "StateStorage",
    "StepwellError",
    "Storage",
    "__version__",
    "configure",
    "copy_records",
    "open_storage",
    "record_type",
    "sync",
]


def __getattr__(name: str) -> Any:
    # Its driver takes time to load, which a bot on another backend need not spend.
    if name == "SQLiteStorage":
        from stepwell.storage.sqlite import SQLiteStorage

        return SQLiteStorage
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
