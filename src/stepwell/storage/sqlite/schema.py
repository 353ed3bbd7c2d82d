"""The schema of an SQLite file: creating it, and refusing newer ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.resources import files
from typing import Any

from stepwell.errors import NewerSchema, StorageUnavailable
from stepwell.storage.sqlite.columns import COLUMNS

__all__ = ["APPLICATION", "QUERIES", "VERSION", "prepare", "schema"]

#: The application id in the header of the file.
APPLICATION = int.from_bytes(b"Swll", "big")
#: The version of the schema in this release.
VERSION = 1

_FOLDER = files("stepwell.storage.sqlite")
_INSERTED = re.compile(r"@(\w+)@")
_COMMENT = re.compile(r"--.*")


def schema() -> str:
    """Return the schema as one script."""
    return (_FOLDER / "schema.sql").read_text("utf-8")


def _queries() -> dict[str, str]:
    found = {"columns": ",".join(COLUMNS)}
    for block in (_FOLDER / "queries.sql").read_text("utf-8").split("-- name: ")[1:]:
        name, _, text = block.partition("\n")
        # apsw finds a prepared statement by a hash of its text, which is computed with every call: keep it short.
        text = " ".join(_COMMENT.sub("", text).rstrip(" \n;").split())
        found[name.strip()] = _INSERTED.sub(lambda inserted: found[inserted[1]], text)
    del found["columns"]
    return found


#: Statements by name.
QUERIES = _queries()


def prepare(execute: Callable[[str], Any], where: str) -> None:
    """Create the tables of an empty file. Several processes may call this at once; one of them does the work."""
    # One transaction, so that a file which another process creates is seen as empty or as whole.
    execute("BEGIN")
    try:
        found = _found(execute, where)
    finally:
        execute("ROLLBACK")
    if found:
        return
    execute("BEGIN IMMEDIATE")
    try:
        # Another process may have created the tables in the meantime.
        if not _found(execute, where):
            execute(schema())
            execute(f"PRAGMA application_id = {APPLICATION}")
            execute(f"PRAGMA user_version = {VERSION}")
        execute("COMMIT")
    except BaseException:
        execute("ROLLBACK")
        raise


def _found(execute: Callable[[str], Any], where: str) -> int:
    application: int = execute("PRAGMA application_id").get
    version: int = execute("PRAGMA user_version").get
    ours = application == APPLICATION
    if not ours and (application or version or execute("SELECT count(*) FROM sqlite_schema").get):
        raise StorageUnavailable(
            f"{where} is the database of another program; give Stepwell a file of its own", sent=False, final=True
        )
    if version > VERSION:
        raise NewerSchema(where, version, VERSION)
    return version if ours else 0
