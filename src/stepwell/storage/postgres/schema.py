"""The tables and functions in PostgreSQL: made once, whoever comes first, and brought up to date."""

from __future__ import annotations

import asyncio
import logging
import re
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from stepwell.errors import InvalidOption, NewerSchema, StorageUnavailable

__all__ = ["checked", "migrate", "migrations"]

logger = logging.getLogger(__name__)

#: Seconds that all steps may take.
_MIGRATING = 60.0
#: Seconds to wait for a lock of another session, such as a worker that makes the same steps.
_LOCKED = 30.0
#: Seconds after which the server ends the session of a worker that has stopped in the middle of its steps.
_STOPPED = 10.0
_LOCK_NOT_AVAILABLE = "55P03"
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
    folder = files("stepwell.storage.postgres")
    found = []
    for file in folder.iterdir():
        number, _, name = file.name.removesuffix(".sql").partition("_")
        if number.isdigit():
            found.append(Migration(int(number), name, file.read_text("utf-8")))
    return tuple(sorted(found))


async def migrate(connection: Any, schema: str, place: str, timeout: float) -> None:
    """Make sure that the schema is the one this release works with."""
    last = migrations()[-1].number
    async with asyncio.timeout(timeout):
        if await _reached(connection, schema, place, last) == last:
            # Also the way for a role that may not create anything.
            return
    try:
        async with asyncio.timeout(_LOCKED + _MIGRATING), connection.transaction():
            await _make_steps(connection, schema, place, last)
    except Exception as error:
        if getattr(error, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
            raise
        raise await _blocked(connection, schema, place) from error


async def _make_steps(connection: Any, schema: str, place: str, last: int) -> None:
    quoted = checked(schema)
    await connection.execute(
        f"set local statement_timeout = 0; set local lock_timeout = {_LOCKED * 1000:.0f}; "
        f"set local idle_in_transaction_session_timeout = {_STOPPED * 1000:.0f}"
    )
    # One worker at a time; the lock ends with the transaction, also behind PgBouncer.
    await connection.execute("select pg_advisory_xact_lock(hashtextextended($1, 0))", _lock_name(schema))
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


async def _blocked(connection: Any, schema: str, place: str) -> StorageUnavailable:
    """The error that names the session which holds the lock of the steps, or a lock on one of the tables."""
    what = f"the schema {schema} of {place} could not be made or migrated within {_LOCKED:g} s"
    holder = await connection.fetchrow(
        "select a.pid, coalesce(nullif(a.application_name, ''), 'an unnamed program') as program, "
        "coalesce(host(a.client_addr), 'the same machine') as client, coalesce(a.state, 'state hidden') as state, "
        "coalesce(date_part('epoch', clock_timestamp() - a.xact_start), 0) as seconds "
        "from pg_locks l join pg_stat_activity a on a.pid = l.pid "
        "left join pg_class c on c.oid = l.relation left join pg_namespace n on n.oid = c.relnamespace "
        "where l.granted and l.pid <> pg_backend_pid() and (n.nspname = $2 or l.locktype = 'advisory' "
        "and l.objsubid = 1 and (l.classid::bigint << 32 | l.objid::bigint) = hashtextextended($1, 0)) "
        "order by l.locktype = 'advisory' desc, a.xact_start limit 1",
        _lock_name(schema),
        schema,
    )
    if holder is None:
        return StorageUnavailable(f"{what}, because of a lock that is gone by now; try again", sent=False)
    pid, program, client, state, seconds = holder
    return StorageUnavailable(
        f"{what}: process {pid} of the server ({program} from {client}, {state}) holds a lock, in a transaction that "
        f"began {seconds:.0f} s ago; see what it does, or end it with select pg_terminate_backend({pid})",
        sent=False,
    )


def _lock_name(schema: str) -> str:
    return f"stepwell {schema}"


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
