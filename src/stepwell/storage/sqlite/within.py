"""Writes in a transaction of the user, on a connection of apsw to the file of the storage."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from stepwell.errors import InvalidOption, UsageError
from stepwell.storage.operations import Result
from stepwell.storage.sqlite.connection import Connection

__all__ = ["check_connection", "run_in_savepoint"]


def check_connection(connection: Any, path: str) -> None:
    """Raise ``InvalidOption`` unless this is a connection to the file, and ``UsageError`` without a transaction."""
    if not isinstance(connection, Connection):
        raise InvalidOption(
            f"connection= is a {type(connection).__module__}.{type(connection).__name__}: give an apsw.Connection. "
            "Python's sqlite3 is another copy of SQLite, and two copies must not open one file in one process"
        )
    if os.path.realpath(connection.db_filename("main")) != path:
        raise InvalidOption(f"connection= is open on another file than the storage of the flow; open {path}")
    if not connection.in_transaction:
        raise UsageError(
            "connection= has no open transaction, so nothing was written; begin it with "
            "connection.execute('BEGIN IMMEDIATE')"
        )


def run_in_savepoint(connection: Connection, work: Callable[[], list[Result]]) -> list[Result]:
    """Do some work in a savepoint of the open transaction. If it fails or a write is refused, it leaves nothing."""
    kept = False
    connection.execute("SAVEPOINT stepwell")
    try:
        results = work()
        kept = not any(isinstance(result, Exception) for result in results)
    finally:
        # An error such as a full disk may have ended the whole transaction.
        if connection.in_transaction:
            if not kept:
                connection.execute("ROLLBACK TO stepwell")
            connection.execute("RELEASE stepwell")
    return results
