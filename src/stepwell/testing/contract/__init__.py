"""The storage contract as a pytest suite: subclass it and supply a storage.

    class TestMyStorage(StorageContract):
        def open_storage(self, clock):
            return MyStorage(clock=clock)

The storage must start empty, and use ``clock`` for leases, deadlines and expiry.

``reopen(storage)`` opens the same store a second time, as after a restart or in another process. By default it calls
``open_storage(clock)`` again. Override it if ``open_storage`` creates a new store each time::

        def reopen(self, storage):
            return MyStorage(storage.path, clock=storage.clock)

A storage whose records end with its object, as in memory, sets ``persistent = False`` in its class. A storage without
queues sets ``queues = False``, and one whose notices stay within their process ``notices = False``. A storage without
``counts()`` sets ``counts = False``, and one without ``position()`` and ``beside()`` sets ``inspection = False``.

``pytest --stepwell-real-time 90`` also runs a test that waits for 90 seconds, for stores that forget by themselves.
"""

from typing import Any

from stepwell.testing.contract.callbacks import CallbackPromises
from stepwell.testing.contract.claims import ClaimPromises
from stepwell.testing.contract.expiry import ExpiryPromises
from stepwell.testing.contract.journal import JournalPromises
from stepwell.testing.contract.listing import ListingPromises
from stepwell.testing.contract.notices import NoticePromises
from stepwell.testing.contract.operators import CountPromises, InspectionPromises
from stepwell.testing.contract.parts import PartPromises
from stepwell.testing.contract.queues import QueuePromises, SharedQueuePromises
from stepwell.testing.contract.real_time import RealTimePromises
from stepwell.testing.contract.records import RecordPromises
from stepwell.testing.contract.reopening import ReopenPromises, SharingPromises
from stepwell.testing.contract.values import ValuePromises

__all__ = ["JournaledStorageContract", "KeyValueContract", "StorageContract"]


class KeyValueContract(
    CallbackPromises,
    ValuePromises,
    ClaimPromises,
    RecordPromises,
    PartPromises,
    ExpiryPromises,
    ReopenPromises,
    RealTimePromises,
):
    """The contract of every storage, including those without listing or shared access.

    Example::

        class TestMyStorage(KeyValueContract):
            def open_storage(self, clock):
                return MyStorage(clock=clock)
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        left_out: set[type] = set()
        if not cls.persistent:
            left_out |= {ReopenPromises, SharingPromises, SharedQueuePromises, NoticePromises}
        if not cls.queues:
            left_out |= {QueuePromises, SharedQueuePromises}
        if not cls.notices:
            left_out.add(NoticePromises)
        if not cls.counts:
            left_out.add(CountPromises)
        if not cls.inspection:
            left_out.add(InspectionPromises)
        for promises in left_out:
            for name in vars(promises):
                if name.startswith("test_"):
                    # pytest collects no attribute that is None.
                    setattr(cls, name, None)


class StorageContract(
    KeyValueContract,
    ListingPromises,
    CountPromises,
    InspectionPromises,
    QueuePromises,
    SharingPromises,
    SharedQueuePromises,
    NoticePromises,
):
    """The contract of a full storage.

    Example::

        class TestSQLite(StorageContract):
            notices = False

            @pytest.fixture(autouse=True)
            def file(self, tmp_path):
                self.path = str(tmp_path / "bot.db")

            def open_storage(self, clock):
                return SQLiteStorage(self.path, clock=clock)
    """


class JournaledStorageContract(StorageContract, JournalPromises):
    """The contract of a storage whose connection can break between a write and its result.

    Example::

        class TestMyServer(JournaledStorageContract):
            def open_storage(self, clock):
                return MyStorage("https://localhost:7000", clock=clock)
    """
