from __future__ import annotations

from pathlib import Path

from stepwell import Storage
from stepwell.storage.postgres import PostgresStorage
from stepwell.testing import Clock, StorageContract
from tests.backends.postgres import Postgres


class TestPostgresStorage(StorageContract):
    def open_storage(self, clock: Clock) -> Storage:
        return PostgresStorage.from_url(Postgres(Path()).place(), clock=clock)
