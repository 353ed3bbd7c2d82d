"""Durable state for conversations and node flows: pick up exactly where you were."""

from stepwell.background import sync
from stepwell.codec import record_type
from stepwell.errors import StepwellError
from stepwell.record import Limits, State
from stepwell.storage import KeyValueStorage, MemoryStorage, StateStorage, Storage, configure, open_storage

__version__ = "0.1.0.dev0"

__all__ = [
    "KeyValueStorage",
    "Limits",
    "MemoryStorage",
    "State",
    "StateStorage",
    "StepwellError",
    "Storage",
    "__version__",
    "configure",
    "open_storage",
    "record_type",
    "sync",
]
