"""The schema of an SQLite file, its migrations, and the plans of its queries."""

from __future__ import annotations

import re
from pathlib import Path

import apsw
import pytest

from stepwell import SQLiteStorage, State
from stepwell.slot import Slot
from stepwell.storage.sqlite.columns import Row, row_and_sizes, update
from stepwell.storage.sqlite.schema import APPLICATION, QUERIES, VERSION, migrations, prepare, schema


def tables(*scripts: str) -> list[tuple[object, ...]]:
    connection = apsw.Connection(":memory:")
    for script in scripts:
        connection.execute(script)
    return tables_in(connection)


def tables_in(connection: apsw.Connection) -> list[tuple[object, ...]]:
    """Return tables and indexes as SQL, without comments and layout, which ``ALTER TABLE`` changes."""
    found = connection.execute("SELECT type, name, sql FROM sqlite_schema")
    plain = [(kind, name, " ".join(re.sub("--.*", "", sql or "").split())) for kind, name, sql in found]
    return sorted(plain)


def test_the_schema_equals_the_sum_of_its_migrations() -> None:
    assert tables(schema()) == tables(*migrations())
    assert len(migrations()) == VERSION


def test_a_file_that_another_process_creates_meanwhile_is_not_the_database_of_another_program(tmp_path: Path) -> None:
    path = str(tmp_path / "bot.db")
    first, second = apsw.Connection(path), apsw.Connection(path)
    first.pragma("journal_mode", "WAL")

    def execute(sql: str) -> apsw.Cursor:
        cursor = first.execute(sql)
        if sql == "PRAGMA application_id" and not second.pragma("user_version"):
            prepare(second.execute, path)
        return cursor

    prepare(execute, path)
    assert first.pragma("application_id") == APPLICATION
    assert first.pragma("user_version") == second.pragma("user_version") == VERSION


async def test_an_older_file_is_migrated_and_keeps_its_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stepwell.storage.sqlite import schema as schema_module

    path = str(tmp_path / "bot.db")
    async with SQLiteStorage(path) as storage:
        await storage.set_state("bot", 1, State("a", "b", {"c": 1}))
    with monkeypatch.context() as patch:
        patch.setattr(schema_module, "VERSION", VERSION + 1)
        patch.setattr(schema_module, "migrations", lambda: [*migrations(), "ALTER TABLE memo ADD COLUMN extra TEXT"])
        for _ in range(2):
            async with SQLiteStorage(path) as storage:
                assert await storage.get_state("bot", 1) == State("a", "b", {"c": 1})
    connection = apsw.Connection(path)
    assert connection.pragma("user_version") == VERSION + 1
    assert "extra" in [row[1] for row in connection.execute("PRAGMA table_info(memo)")]
    connection.close()


async def test_a_file_of_the_first_schema_is_migrated_and_keeps_its_contents(tmp_path: Path) -> None:
    # Records, fields, memos and tags of the current schema, in the tables of the first one.
    path, old = str(tmp_path / "new.db"), str(tmp_path / "old.db")
    async with SQLiteStorage(path) as storage:
        async with Slot(storage, "bot", 1) as slot:
            slot.flow, slot.state, slot.data["text"] = "a", "b", "x" * 3000
            await slot.commit(tags=("user:1",), memo=["seen"], deadline=50.0, parts={"p": 1})
        await storage.set_state("bot", 2, State("c", None, {"n": 2}))
        await storage.clear("bot", 2)
    connection = apsw.Connection(old)
    connection.execute(migrations()[0])
    connection.execute("ATTACH ? AS new", (path,))
    columns = ", ".join(row[1] for row in connection.execute("PRAGMA main.table_info(record)"))
    connection.execute(f"INSERT INTO main.record SELECT {columns.replace('size', 'bytes')} FROM new.record")
    for table in ("field", "part", "memo", "tag"):
        connection.execute(f"INSERT INTO main.{table} SELECT * FROM new.{table}")
    connection.execute("DETACH new")
    connection.execute(f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = 1")
    connection.close()

    async with SQLiteStorage(path) as ours, SQLiteStorage(old) as migrated:
        for key in (1, 2):
            assert await migrated.get_state("bot", key) == await ours.get_state("bot", key)
        assert await migrated.traces("bot", "user:1") == [migrated.address("bot", 1)]
        assert await migrated.due("bot", before=1e12) == await ours.due("bot", before=1e12)
        async with Slot(migrated, "bot", 1) as slot:
            assert (slot.memo, slot.tags, await slot.parts()) == (["seen"], ("user:1",), {"p": 1})
            slot.data["n"] = 1
            await slot.commit()
    connection = apsw.Connection(old)
    assert tables_in(connection) == tables(schema())
    assert connection.pragma("user_version") == VERSION
    connection.close()


async def test_a_migration_that_fails_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stepwell.errors import StorageUnavailable
    from stepwell.storage.sqlite import schema as schema_module

    path = str(tmp_path / "bot.db")
    async with SQLiteStorage(path) as storage:
        await storage.set_state("bot", 1, State("a"))
    broken = "ALTER TABLE memo ADD COLUMN extra TEXT; ALTER TABLE nowhere ADD COLUMN extra TEXT"
    with monkeypatch.context() as patch:
        patch.setattr(schema_module, "VERSION", VERSION + 1)
        patch.setattr(schema_module, "migrations", lambda: [*migrations(), broken])
        with pytest.raises(StorageUnavailable):
            await SQLiteStorage(path).open()
    async with SQLiteStorage(path) as storage:
        assert await storage.get_state("bot", 1) == State("a")
    assert "extra" not in [row[1] for row in apsw.Connection(path).execute("PRAGMA table_info(memo)")]


#: The lookups of a record and its fields, and of a range of its parts.
BY_KEY = [
    "COMPOUND QUERY",
    "LEFT-MOST SUBQUERY",
    "SEARCH record USING INDEX sqlite_autoindex_record_1 (namespace=? AND key=?)",
    "UNION ALL",
    "SEARCH field USING PRIMARY KEY (namespace=? AND key=?)",
    "UNION ALL",
]
RANGE = "SEARCH part USING INDEX sqlite_autoindex_part_1 (namespace=? AND key=? AND name>? AND name<?)"
NAMES_OF_RANGE = RANGE.replace("USING INDEX", "USING COVERING INDEX")
#: The required plans of queries that do not look up one row by its primary key.
PLANS = {
    "get_range": [*BY_KEY, "CO-ROUTINE (subquery-3)", RANGE, "SCAN (subquery-3)"],
    "get_range_reverse": [*BY_KEY, "CO-ROUTINE (subquery-3)", RANGE, "SCAN (subquery-3)"],
    "drop_range": ["SEARCH part USING INTEGER PRIMARY KEY (rowid=?)", "LIST SUBQUERY 1", NAMES_OF_RANGE],
    "drop_range_reverse": ["SEARCH part USING INTEGER PRIMARY KEY (rowid=?)", "LIST SUBQUERY 1", NAMES_OF_RANGE],
    "page": ["SEARCH record USING INDEX sqlite_autoindex_record_1 (namespace=? AND key>?)"],
    "page_by_place": ["SEARCH record USING INDEX record_by_place (namespace=? AND flow=? AND state=? AND key>?)"],
    "keys_of_place": [
        "SEARCH record USING COVERING INDEX record_by_place (namespace=? AND flow=? AND state=? AND key>?)"
    ],
    "page_by_tag": [
        "SEARCH tag USING PRIMARY KEY (namespace=? AND tag=? AND key>?)",
        "SEARCH record USING INDEX sqlite_autoindex_record_1 (namespace=? AND key=?)",
    ],
    "traces": ["SEARCH tag USING PRIMARY KEY (namespace=? AND tag=?)"],
    "due": ["SEARCH record USING INDEX record_by_deadline (namespace=? AND (deadline,key)>(?,?) AND deadline<?)"],
    "due_of_flow": [
        "SEARCH record USING INDEX record_by_flow_deadline "
        "(namespace=? AND flow=? AND (deadline,key)>(?,?) AND deadline<?)"
    ],
    "queued": ["SEARCH record USING INDEX record_by_queue (namespace=? AND queue>? AND queue<?)"],
    "queues": [
        "CO-ROUTINE found",
        "SETUP",
        "SCAN CONSTANT ROW",
        "SCALAR SUBQUERY 1",
        "SEARCH record USING INDEX record_by_queue (namespace=? AND queue>?)",
        "RECURSIVE STEP",
        "SCAN found",
        "CORRELATED SCALAR SUBQUERY 3",
        "SEARCH record USING INDEX record_by_queue (namespace=? AND queue>?)",
        "SCAN found",
    ],
    "expired": [
        "SEARCH record USING INDEX record_by_expiry (expires_at>? AND expires_at<?)",
        "CORRELATED SCALAR SUBQUERY 1",
        "SEARCH lease USING PRIMARY KEY (namespace=? AND key=?)",
        "SEARCH memo USING INDEX sqlite_autoindex_memo_1 (namespace=? AND key=?) LEFT-JOIN",
    ],
    "has_contents": [
        "SCAN CONSTANT ROW",
        "SCALAR SUBQUERY 1",
        "SEARCH field USING PRIMARY KEY (namespace=? AND key=?)",
        "SCALAR SUBQUERY 2",
        "SEARCH part USING COVERING INDEX sqlite_autoindex_part_1 (namespace=? AND key=?)",
    ],
    "namespaces": [
        "CO-ROUTINE found",
        "SETUP",
        "SEARCH record USING COVERING INDEX sqlite_autoindex_record_1",
        "RECURSIVE STEP",
        "SCAN found",
        "CORRELATED SCALAR SUBQUERY 2",
        "SEARCH record USING COVERING INDEX sqlite_autoindex_record_1 (namespace>?)",
        "SCAN found",
    ],
    "expired_counts": ["SEARCH record USING INDEX record_by_expiry (expires_at<?)", "USE TEMP B-TREE FOR GROUP BY"],
    # For operators only. Reading the whole table is faster than reading its rows in the order of an index.
    "oldest": ["SCAN record", "USE TEMP B-TREE FOR GROUP BY"],
    # The table has only running leases: a scan is cheaper than an index.
    "ended_leases": [
        "SCAN lease",
        "SEARCH record USING INDEX sqlite_autoindex_record_1 (namespace=? AND key=?) LEFT-JOIN",
    ],
    "memos_after": ["SEARCH memo USING INDEX sqlite_autoindex_memo_1 ((namespace,key)>(?,?))"],
}


@pytest.mark.parametrize("name", sorted(QUERIES))
def test_a_query_uses_the_index_that_was_made_for_it(name: str) -> None:
    connection = apsw.Connection(":memory:")
    connection.execute(schema())
    steps = plan(connection, QUERIES[name])
    if name in ("places", "counts"):
        tables = [step for step in steps if " record" in step]
        assert len(tables) == (4 if name == "places" else 5)
        for step in tables:
            assert step.startswith("SEARCH record USING COVERING INDEX record_by_place (namespace=?"), steps
    elif name in PLANS:
        assert steps == PLANS[name]
    else:
        for step in steps:
            assert not step.startswith("SCAN"), steps
            assert "TEMP B-TREE" not in step, steps
            if step.startswith("SEARCH"):
                assert "(namespace=? AND key=?" in step or "(namespace=? AND tag=?" in step, steps


def test_reading_and_writing_a_record_searches_by_its_key() -> None:
    connection = apsw.Connection(":memory:")
    connection.execute(schema())
    by_key = "SEARCH record USING INDEX sqlite_autoindex_record_1 (namespace=? AND key=?)"
    assert [step for step in plan(connection, row_and_sizes(1)) if "SCALAR" not in step] == [
        by_key,
        "SEARCH field USING PRIMARY KEY (namespace=? AND key=? AND name=?)",
    ]
    statement, values = update(("bot", "1"), Row(), Row(number=1, state="other"))
    steps = connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)
    assert [row[3] for row in steps] == [by_key]


def plan(connection: apsw.Connection, query: str) -> list[str]:
    bindings = {"namespace", "after", "now", "limit", "flow", "state", "tag", "any_flow", "any_state", "before"}
    bindings |= {"after_expiry", "after_row", "after_deadline", "after_key", "lease_now"}
    named = dict.fromkeys(bindings) if ":limit" in query or ":namespace" in query else (None,) * query_bindings(query)
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
