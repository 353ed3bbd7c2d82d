"""Durable state for conversations and node flows: pick up exactly where you were."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stepwell._portal import sync
from stepwell._secrets import quoted
from stepwell.codec import Secret, record_type
from stepwell.errors import StepwellError
from stepwell.log import Log, LogEntry
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
    from stepwell.storage.postgres import PostgresStorage as PostgresStorage
    from stepwell.storage.redis import RedisStorage as RedisStorage
    from stepwell.storage.sealed import SealedStorage as SealedStorage
    from stepwell.storage.sqlite import SQLiteStorage

__version__ = "0.1.0"

# RedisStorage, PostgresStorage and SealedStorage are public too. They are left out here because the packages that they
# need are optional, and "from stepwell import *" must not need them.
__all__ = [
    "KeyValueStorage",
    "Limits",
    "Log",
    "LogEntry",
    "MemoryStorage",
    "SQLiteStorage",
    "Secret",
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

_LAZY = {
    "PostgresStorage": "stepwell.storage.postgres",
    "RedisStorage": "stepwell.storage.redis",
    "SQLiteStorage": "stepwell.storage.sqlite",
    "SealedStorage": "stepwell.storage.sealed",
}


def __getattr__(name: str) -> Any:
    # Drivers are imported on first use: loading one takes time, and some are optional.
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {quoted(__name__)} has no attribute {quoted(name)}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
