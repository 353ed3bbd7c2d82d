"""SQLite: a file in the test's folder."""

from __future__ import annotations

from itertools import count

from tests.backends.base import Backend


class SQLite(Backend):
    name = "sqlite"
    shared = True
    durable = True

    _numbers = count()

    def place(self) -> str:
        return f"sqlite:///{self.folder}/{next(self._numbers)}.db"
