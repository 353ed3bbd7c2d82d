"""The storage contract on SQLite, in a file and in memory."""

from pathlib import Path

import pytest

from stepwell import SQLiteStorage, Storage
from stepwell.testing import Clock, StorageContract


class TestSQLiteStorage(StorageContract):
    notices = False

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def open_storage(self, clock: Clock) -> Storage:
        return SQLiteStorage(str(self.folder / "bot.db"), clock=clock)


class TestSQLiteStorageInMemory(StorageContract):
    persistent = False

    def open_storage(self, clock: Clock) -> Storage:
        return SQLiteStorage(":memory:", clock=clock)
