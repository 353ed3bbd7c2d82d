"""SQLite: a file in the test's folder."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import apsw

from stepwell.record import Address
from tests.backends.base import Backend

WHERE = {
    "field": ("field", "value", "AND name = ?3"),
    "part": ("part", "value", "AND name = ?3"),
    "head": ("record", "head", "AND ?3 = ''"),
    "memo": ("memo", "value", "AND ?3 = ''"),
    "tags": ("record", "tags", "AND ?3 = ''"),
}


class SQLite(Backend):
    name = "sqlite"
    shared = True
    durable = True

    _numbers = count()

    def place(self) -> str:
        return f"sqlite:///{self.folder}/{next(self._numbers)}.db"

    async def corrupt(self, url: str, address: Address, kind: str, name: str, damage: Callable[[bytes], bytes]) -> None:
        table, column, and_name = WHERE[kind]
        where = f"namespace = ?1 AND key = ?2 {and_name}"
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        connection.set_busy_timeout(10_000)
        found = connection.execute(f"SELECT CAST({column} AS BLOB) FROM {table} WHERE {where}", (*address, name)).get
        changed = damage(found)
        assert changed != found
        connection.execute(
            f"UPDATE {table} SET {column} = CAST(?4 AS TEXT) WHERE {where}", (*address, name, changed)
        ).fetchall()
        assert connection.changes() == 1
        connection.close()
