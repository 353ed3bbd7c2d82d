"""The storage contract as a pytest suite: subclass it, supply a storage, and every promise is a test.

    class TestMyStorage(StorageContract):
        def open_storage(self, clock):
            return MyStorage(clock=clock)

The storage must start empty, and judge leases, deadlines and expiry by ``clock``.
"""

from stepwell.testing.contract.callbacks import CallbackPromises
from stepwell.testing.contract.claims import ClaimPromises
from stepwell.testing.contract.expiry import ExpiryPromises
from stepwell.testing.contract.journal import JournalPromises
from stepwell.testing.contract.listing import ListingPromises
from stepwell.testing.contract.records import RecordPromises
from stepwell.testing.contract.values import ValuePromises

__all__ = ["JournaledStorageContract", "KeyValueContract", "StorageContract"]


class KeyValueContract(CallbackPromises, ValuePromises, ClaimPromises, RecordPromises, ExpiryPromises):
    """What every storage promises, those without listing included."""


class StorageContract(KeyValueContract, ListingPromises):
    """What a full storage promises."""


class JournaledStorageContract(StorageContract, JournalPromises):
    """What a storage promises whose connection can break between a write and its answer."""
