"""The schema of an SQLite file and the plans of its queries."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from stepwell import SQLiteStorage
from stepwell.storage.sqlite.columns import Row, row_and_sizes, update
from stepwell.storage.sqlite.schema import APPLICATION, QUERIES, VERSION, prepare, schema


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
#: For each of several names, the first rows in the index; then these rows.
SEVERAL = ["SCAN wanted VIRTUAL TABLE INDEX 1:", "SEARCH record USING INTEGER PRIMARY KEY (rowid=?)"]
FIRST_DUE = (
    "SEARCH first USING INDEX record_by_flow_deadline (namespace=? AND flow=? AND (deadline,key)>(?,?) AND deadline<?)"
)
FIRST_QUEUED = "SEARCH first USING INDEX record_by_queue (namespace=? AND queue>? AND queue<?)"
PLANS = {
    "due_of_flows": [*SEVERAL, "CORRELATED LIST SUBQUERY 1", FIRST_DUE, "USE TEMP B-TREE FOR ORDER BY"],
    "queued": [*SEVERAL, "CORRELATED LIST SUBQUERY 1", FIRST_QUEUED, "USE TEMP B-TREE FOR ORDER BY"],
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
    bindings |= {"flows", "after_expiry", "after_row", "after_deadline", "after_key", "lease_now"}
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
