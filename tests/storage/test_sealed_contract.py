"""The storage contract over encrypted records."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import ClassVar

import pytest

from stepwell import MemoryStorage, SealedStorage, SQLiteStorage, Storage, open_storage
from stepwell.storage.sealed import new_key
from stepwell.testing import Clock, JournaledStorageContract, StorageContract
from tests.backends import Backend
from tests.backends.postgres import Postgres
from tests.backends.redis import Redis, RedisCluster
from tests.reliability.dose import LARGE

KEYS = [new_key(), new_key()]
NAMES_KEY = new_key()


class TestSealedMemory(StorageContract):
    persistent = False

    def open_storage(self, clock: Clock) -> Storage:
        return SealedStorage(MemoryStorage(clock=clock), keys=KEYS)


class TestSealedMemoryWithHiddenNames(StorageContract):
    persistent = False

    def open_storage(self, clock: Clock) -> Storage:
        return SealedStorage(MemoryStorage(clock=clock), keys=KEYS, names_key=NAMES_KEY)


class TestSealedSQLite(StorageContract):
    notices = False

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def open_storage(self, clock: Clock) -> Storage:
        return SealedStorage(SQLiteStorage(str(self.folder / "bot.db"), clock=clock), keys=KEYS, names_key=NAMES_KEY)


class JournaledOverServer(JournaledStorageContract):
    """The contract over a server, with ``STEPWELL_DOSE=large``."""

    server: ClassVar[type[Backend]]

    @pytest.fixture(autouse=True)
    async def _backend(self, tmp_path: Path) -> AsyncIterator[None]:
        self.backend = self.server(tmp_path)
        yield
        await self.backend.close()

    def open_storage(self, clock: Clock) -> Storage:
        self.url = f"sealed+{self.backend.place()}"
        return open_storage(self.url, clock=clock, keys=KEYS)

    def reopen(self, storage: Storage) -> Storage:
        return open_storage(self.url, clock=storage.clock, keys=KEYS)


if LARGE:

    class TestSealedRedis(JournaledOverServer):
        counts = False
        server = Redis

    class TestSealedRedisCluster(JournaledOverServer):
        counts = False
        server = RedisCluster

    class TestSealedPostgres(JournaledOverServer):
        server = Postgres
