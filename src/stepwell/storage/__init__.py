"""Storages: the contract, and a module or a folder per backend."""

from stepwell.storage.contract import Storage
from stepwell.storage.copying.copy import Copied, copy_records
from stepwell.storage.keyvalue import KeyValueStorage
from stepwell.storage.listing import ANY, Due, Entry, Page, Query, Swept
from stepwell.storage.memory import MemoryStorage
from stepwell.storage.operations import (
    Applied,
    Apply,
    Claim,
    Claimed,
    Get,
    Guard,
    Operation,
    Range,
    Release,
    Result,
    Taken,
)
from stepwell.storage.state_storage import StateStorage, configure
from stepwell.storage.urls import open_storage

__all__ = [
    "ANY",
    "Applied",
    "Apply",
    "Claim",
    "Claimed",
    "Copied",
    "Due",
    "Entry",
    "Get",
    "Guard",
    "KeyValueStorage",
    "MemoryStorage",
    "Operation",
    "Page",
    "Query",
    "Range",
    "Release",
    "Result",
    "StateStorage",
    "Storage",
    "Swept",
    "Taken",
    "configure",
    "copy_records",
    "open_storage",
]
