"""The tables and functions in PostgreSQL: made once, whoever comes first, and brought up to date."""

from __future__ import annotations

import asyncio
import logging
import re
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from stepwell.errors import InvalidOption, NewerSchema

__all__ = ["checked", "migrate", "migrations"]

logger = logging.getLogger(__name__)

#: Seconds that all steps may take, and the wait for another worker that makes them.
_MIGRATING = 60.0
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")


class Migration(NamedTuple):
    """One step of the schema."""

    number: int
    name: str
    sql: str


def checked(schema: str) -> str:
    """A schema's name, quoted; ``InvalidOption`` for one that would need more than quotes."""
    if not isinstance(schema, str) or not _NAME.fullmatch(schema) or schema.startswith("pg_"):
        raise InvalidOption(
            f"schema is {schema!r}; it takes lower-case letters, digits and underscores, at most 63, "
            "starts with a letter or an underscore, and not with pg_"
        )
    return f'"{schema}"'


@cache
def migrations() -> tuple[Migration, ...]:
    """All steps, in order."""
    folder = files("stepwell.storage") / "sql" / "postgres"
    found = []
    for file in folder.iterdir():
        number, _, name = file.name.removesuffix(".sql").partition("_")
        if number.isdigit():
            found.append(Migration(int(number), name, file.read_text("utf-8")))
    return tuple(sorted(found))


async def migrate(connection: Any, schema: str, place: str, timeout: float) -> None:
    """Make sure that the schema is the one this release works with."""
    quoted = checked(schema)
    last = migrations()[-1].number
    async with asyncio.timeout(timeout):
        if await _reached(connection, schema, place, last) == last:
            # Also the way for a role that may not create anything.
            return
    async with asyncio.timeout(_MIGRATING), connection.transaction():
        await connection.execute("set local statement_timeout = 0; set local lock_timeout = 0")
        # One worker at a time; the lock ends with the transaction, also behind PgBouncer.
        await connection.execute("select pg_advisory_xact_lock(hashtextextended($1, 0))", f"stepwell {schema}")
        reached = await _reached(connection, schema, place, last)
        if not await connection.fetchval("select exists (select from pg_namespace where nspname = $1)", schema):
            await connection.execute(f"create schema {quoted}")
        if reached == 0:
            await connection.execute(
                f"create table if not exists {quoted}.migrations "
                "(number integer primary key, name text not null, made_at timestamptz not null default now())"
            )
        for migration in migrations():
            if migration.number > reached:
                await connection.execute(migration.sql.replace("@schema@", quoted))
                await connection.execute(
                    f"insert into {quoted}.migrations (number, name) values ($1, $2)",  # noqa: S608 checked and quoted
                    migration.number,
                    migration.name,
                )
                logger.info("made step %s (%s) of the schema %s", migration.number, migration.name, schema)


async def _reached(connection: Any, schema: str, place: str, last: int) -> int:
    # Not to_regclass: it may answer from a cache that is older than the lock we waited for.
    there = await connection.fetchval(
        "select exists (select from pg_class c join pg_namespace n on n.oid = c.relnamespace "
        "where n.nspname = $1 and c.relname = 'migrations')",
        schema,
    )
    if not there:
        return 0
    number: int = await connection.fetchval(f"select coalesce(max(number), 0) from {checked(schema)}.migrations")  # noqa: S608
    if number > last:
        raise NewerSchema(f"the schema {schema} of {place}", number, last)
    return number
