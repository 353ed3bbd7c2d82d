"""The backends that the tests run on: one module each, all listed here.

A test that takes the fixture ``backend`` runs once on each backend that ``tests/conftest.py`` chooses for it.
``backend.place()`` returns the URL of a new, empty store. ``backend.storage(clock=...)`` returns a storage, which the
fixture closes.
"""

from __future__ import annotations

from tests.backends.base import Backend
from tests.backends.memory import Memory
from tests.backends.postgres import Postgres
from tests.backends.redis import Redis, RedisCluster
from tests.backends.sqlite import SQLite

ALL: list[type[Backend]] = [Memory, SQLite, Redis, RedisCluster, Postgres]
#: Backends without a server.
LOCAL: list[type[Backend]] = [Memory, SQLite]

__all__ = ["ALL", "LOCAL", "Backend"]
