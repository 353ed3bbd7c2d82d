"""Help for tests of bots, of flows and of storages; the contract suites need ``stepwell[testing]``."""

from typing import TYPE_CHECKING, Any

from stepwell.testing.clock import Clock
from stepwell.testing.faults import FaultyStorage

if TYPE_CHECKING:
    from stepwell.testing.contract import JournaledStorageContract, KeyValueContract, StorageContract

__all__ = ["Clock", "FaultyStorage", "JournaledStorageContract", "KeyValueContract", "StorageContract"]


def __getattr__(name: str) -> Any:
    # The suites import pytest, which a bot's own tests may do without.
    if name in __all__:
        from stepwell.testing import contract

        return getattr(contract, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
