"""The tables of an SQLite file, and how they are searched."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from stepwell import SQLiteStorage, State
from stepwell.storage.sqlite_schema import QUERIES, VERSION, migrations, schema


def tables(*scripts: str) -> list[tuple[object, ...]]:
    connection = apsw.Connection(":memory:")
    for script in scripts:
        connection.execute(script)
    return sorted(connection.execute("SELECT type, name, sql FROM sqlite_schema"), key=str)


def test_the_schema_equals_the_sum_of_its_migrations() -> None:
    assert tables(schema()) == tables(*migrations())
    assert len(migrations()) == VERSION


async def test_an_older_file_is_migrated_and_keeps_its_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stepwell.storage import sqlite_schema

    path = str(tmp_path / "bot.db")
    async with SQLiteStorage(path) as storage:
        await storage.set_state("bot", 1, State("a", "b", {"c": 1}))
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_schema, "VERSION", VERSION + 1)
        patch.setattr(sqlite_schema, "migrations", lambda: [*migrations(), "ALTER TABLE memo ADD COLUMN extra TEXT"])
        for _ in range(2):
            async with SQLiteStorage(path) as storage:
                assert await storage.get_state("bot", 1) == State("a", "b", {"c": 1})
    connection = apsw.Connection(path)
    assert connection.pragma("user_version") == VERSION + 1
    assert "extra" in [row[1] for row in connection.execute("PRAGMA table_info(memo)")]
    connection.close()


async def test_a_migration_that_fails_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stepwell.errors import StorageUnavailable
    from stepwell.storage import sqlite_schema

    path = str(tmp_path / "bot.db")
    async with SQLiteStorage(path) as storage:
        await storage.set_state("bot", 1, State("a"))
    broken = "ALTER TABLE memo ADD COLUMN extra TEXT; ALTER TABLE nowhere ADD COLUMN extra TEXT"
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_schema, "VERSION", VERSION + 1)
        patch.setattr(sqlite_schema, "migrations", lambda: [*migrations(), broken])
        with pytest.raises(StorageUnavailable):
            await SQLiteStorage(path).open()
    async with SQLiteStorage(path) as storage:
        assert await storage.get_state("bot", 1) == State("a")
    assert "extra" not in [row[1] for row in apsw.Connection(path).execute("PRAGMA table_info(memo)")]


#: All that reads more than a row by its primary key: what its plan must say, step by step.
PLANS = {
    "page": ["SEARCH record USING PRIMARY KEY (namespace=? AND key>?)"],
    "page_by_flow": ["SEARCH record USING INDEX record_by_flow (namespace=? AND flow=? AND key>?)"],
    "page_by_state": ["SEARCH record USING INDEX record_by_state (namespace=? AND state=? AND key>?)"],
    "page_by_tag": [
        "SEARCH tag USING PRIMARY KEY (namespace=? AND tag=? AND key>?)",
        "SEARCH record USING PRIMARY KEY (namespace=? AND key=?)",
    ],
    "traces": ["SEARCH tag USING PRIMARY KEY (namespace=? AND tag=?)"],
    "due": ["SEARCH record USING INDEX record_by_deadline (namespace=? AND (deadline,key)>(?,?) AND deadline<?)"],
    "over": [
        "SEARCH record USING INDEX record_by_expiry (expires_at>? AND expires_at<?)",
        "CORRELATED SCALAR SUBQUERY 1",
        "SEARCH lease USING PRIMARY KEY (namespace=? AND key=?)",
        "SEARCH memo USING PRIMARY KEY (namespace=? AND key=?) LEFT-JOIN",
    ],
    "namespaces": [
        "CO-ROUTINE found",
        "SETUP",
        "SEARCH record USING PRIMARY KEY",
        "RECURSIVE STEP",
        "SCAN found",
        "CORRELATED SCALAR SUBQUERY 2",
        "SEARCH record USING PRIMARY KEY (namespace>?)",
        "SCAN found",
    ],
    # Holds only what is claimed now: looking through it is cheaper than keeping an index.
    "leases_over": ["SCAN lease", "SEARCH record USING PRIMARY KEY (namespace=? AND key=?) LEFT-JOIN"],
    "memos_after": ["SEARCH memo USING PRIMARY KEY ((namespace,key)>(?,?))"],
}


@pytest.mark.parametrize("name", sorted(QUERIES))
def test_a_query_uses_the_index_that_was_made_for_it(name: str) -> None:
    connection = apsw.Connection(":memory:")
    connection.execute(schema())
    steps = plan(connection, QUERIES[name])
    if name in PLANS:
        assert steps == PLANS[name]
    else:
        for step in steps:
            assert not step.startswith("SCAN"), steps
            assert "TEMP B-TREE" not in step, steps
            if step.startswith("SEARCH"):
                assert "(namespace=? AND key=?" in step or "(namespace=? AND tag=?" in step, steps


def plan(connection: apsw.Connection, query: str) -> list[str]:
    bindings = {"namespace", "after", "now", "limit", "flow", "state", "tag", "any_flow", "any_state", "before"}
    bindings |= {"after_deadline", "after_key"}
    named = dict.fromkeys(bindings) if ":now" in query or ":namespace" in query else (None,) * query_bindings(query)
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", named)]


def query_bindings(query: str) -> int:
    return max((number for number in range(1, 20) if f"?{number}" in query), default=0)


async def test_the_reserved_page_size_is_used_for_new_files(tmp_path: Path) -> None:
    path = str(tmp_path / "bot.db")
    async with SQLiteStorage(path):
        connection = apsw.Connection(path)
        assert connection.pragma("page_size") == 1024
        assert connection.pragma("journal_mode") == "wal"
        connection.close()
