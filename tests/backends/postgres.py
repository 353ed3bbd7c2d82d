"""PostgreSQL: one server for the session, a schema for each place."""

from __future__ import annotations

from itertools import count

from tests.backends.base import Backend
from tests.servers import postgres

_numbers = count(1)


class Postgres(Backend):
    name = "postgres"
    shared = True
    durable = True

    def place(self) -> str:
        return f"{postgres.shared().url()}?schema=place_{next(_numbers)}"
