"""Tests of the SQL in docs/postgresql.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import asyncpg

from stepwell import State
from stepwell.storage.postgres import PostgresStorage
from tests.servers.postgres import shared

PAGE = Path(__file__).parent.parent.parent / "docs" / "postgresql.md"


async def test_every_query_of_the_page_returns_the_described_rows() -> None:
    count, find, index, find_by_index, quiet, divide = re.findall(
        r"^```sql\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    connection = await asyncpg.connect(shared().url())
    try:
        async with PostgresStorage(shared().url(), schema="my_bot") as storage:
            bot = "registration_bot"
            for number in range(3):
                await storage.set_state(bot, number, State("form", "get_name", {"email": f"{number}@example.org"}))
            alice = {"name": "Alice", "email": "alice@example.org", "note": "NUL \0 and 1e16", "n": 1e16}
            await storage.set_state(bot, (42, 42), State("form", "confirm", alice))
            await storage.set_state(bot, "long", State(None, None, {"email": "x" * 5000}))
            await storage.set_state("other", 1, State("form", "confirm", alice))
            await storage.set_state(bot, "gone", State("form", "confirm", alice))
            await storage.clear(bot, "gone")

            assert rows(await connection.fetch(count)) == [
                ("form", "confirm", 1),
                ("form", "get_name", 3),
                (None, None, 1),
            ]
            assert rows(await connection.fetch(find)) == [("(42,42)", "confirm", "Alice")]
            await connection.execute(index)
            assert rows(await connection.fetch(find_by_index)) == [("(42,42)",)]
            async with connection.transaction():
                await connection.execute("set local enable_seqscan = off")
                plan = "\n".join(line[0] for line in await connection.fetch(f"explain {find_by_index}"))
            assert "people_by_email" in plan
            assert rows(await connection.fetch(quiet)) == []
            await connection.execute(divide)
            assert rows(await connection.fetch(find)) == [("(42,42)", "confirm", "Alice")]
            # Writes still work with the index and the partitions.
            assert (await storage.update_data(bot, (42, 42), {"n": -0.0}))["email"] == "alice@example.org"
    finally:
        await connection.close()


async def test_damaged_values_and_values_that_jsonb_does_not_support_do_not_fail_a_query() -> None:
    connection = await asyncpg.connect(shared().url())
    try:
        async with PostgresStorage(shared().url(), schema="spoilt") as storage:
            await storage.set_state("bot", 1, State("f", "s", {"nul": "a\0b", "fine": [1]}))
            await storage.set_state("bot", 2, State("f", "s", {"n": 1}))
            await connection.execute("update spoilt.records set data = '{\"n\": \"rubbish\"}' where key = '2'")
            found = rows(await connection.fetch("select key, data ->> 'nul', data -> 'fine' from spoilt.states"))
            assert sorted(found) == [("1", '"a\\u0000b"', "[1]"), ("2", None, None)]
    finally:
        await connection.close()


def rows(found: list[Any]) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in found]
