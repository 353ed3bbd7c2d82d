from stepwell import MemoryStorage, Storage
from stepwell.testing import Clock, StorageContract


class TestMemoryStorage(StorageContract):
    persistent = False

    def open_storage(self, clock: Clock) -> Storage:
        return MemoryStorage(clock=clock)
