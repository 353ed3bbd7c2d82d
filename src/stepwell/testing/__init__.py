"""Helpers for tests of bots, flows and storages; the contract suites need ``stepwell[testing]``."""

import sys
from typing import TYPE_CHECKING, Any

from stepwell._secrets import quoted
from stepwell.testing.clock import Clock
from stepwell.testing.faults import FaultyStorage

if TYPE_CHECKING:
    from stepwell.testing.chat import Chat
    from stepwell.testing.contract import JournaledStorageContract, KeyValueContract, StorageContract
    from stepwell.testing.crashes import CrashFault, CrashReport, crash_test

__all__ = [
    "Chat",
    "Clock",
    "CrashFault",
    "CrashReport",
    "FaultyStorage",
    "JournaledStorageContract",
    "KeyValueContract",
    "StorageContract",
    "crash_test",
]

_pytest = sys.modules.get("pytest")
if _pytest is not None:
    # Before the suites are imported, so that a failing assertion shows its values.
    _pytest.register_assert_rewrite("stepwell.testing.contract")


def __getattr__(name: str) -> Any:
    # Imported on use: tests of a storage need no conversations, tests of a bot no pytest.
    if name == "Chat":
        from stepwell.testing.chat import Chat

        return Chat
    if name in ("CrashFault", "CrashReport", "crash_test"):
        from stepwell.testing import crashes

        return getattr(crashes, name)
    if name in __all__:
        from stepwell.testing import contract

        return getattr(contract, name)
    raise AttributeError(f"module {quoted(__name__)} has no attribute {quoted(name)}")
