"""Creation and migration of the PostgreSQL schema."""

from __future__ import annotations

import asyncio
import logging
import re
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from stepwell.errors import InvalidOption, NewerSchema, StorageUnavailable

__all__ = ["checked", "checked_partitions", "migrate", "migrations"]

logger: logging.Logger = logging.getLogger(__name__)

#: The oldest release of PostgreSQL on which the contract is tested, by ``make test-versions``.
OLDEST = 14
#: Seconds for all migrations.
_MIGRATING = 600.0
#: Seconds to wait for a lock of another session, such as another migrating worker.
_LOCK_WAIT = 30.0
#: Seconds after which the server ends the session of a worker that stops during a migration.
_IDLE_LIMIT = 10.0
_MOST_PARTITIONS = 1024
_LOCK_NOT_AVAILABLE = "55P03"
#: A table, a function or another object with this name exists.
_EXISTS = ("42P07", "42723", "42710")
_NO_SUCH_COLUMN = "42703"
_INCLUDED = re.compile(r"^@include (\w+\.sql)@$", re.MULTILINE)
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")


class Migration(NamedTuple):
    """One migration of the schema."""

    number: int
    name: str
    sql: str


def checked(schema: str) -> str:
    """Return the quoted name of a schema. Raises ``InvalidOption`` if the name is not allowed."""
    if not isinstance(schema, str) or not _NAME.fullmatch(schema) or schema.startswith("pg_"):
        raise InvalidOption(
            f"schema is {schema!r}; use at most 63 lower-case letters, digits and underscores, "
            "starting with a letter or an underscore, and not with pg_"
        )
    return f'"{schema}"'


def checked_partitions(count: int) -> int:
    """Return a number of partitions, 0 for none. Raises ``InvalidOption`` if it is not supported."""
    if count != 0 and not (isinstance(count, int) and 2 <= count <= _MOST_PARTITIONS):
        raise InvalidOption(f"partitions must be 0 or from 2 to {_MOST_PARTITIONS}, not {count!r}")
    return count


@cache
def migrations() -> tuple[Migration, ...]:
    """Return all migrations in order."""
    folder = files("stepwell.storage.postgres")
    found = []
    for file in folder.iterdir():
        number, _, name = file.name.removesuffix(".sql").partition("_")
        if number.isdigit():
            # A migration that changes a function includes the file that has its current text.
            sql = _INCLUDED.sub(lambda included: (folder / included[1]).read_text("utf-8"), file.read_text("utf-8"))
            found.append(Migration(int(number), name, sql))
    return tuple(sorted(found))


async def migrate(connection: Any, schema: str, server: str, timeout: float, partitions: int = 0) -> None:
    """Create the schema or migrate it to this release. A new one gets so many partitions."""
    found = connection.get_server_version().major
    if found < OLDEST:
        raise StorageUnavailable(
            f"{server} is PostgreSQL {found}, which is too old: use PostgreSQL {OLDEST} or newer",
            sent=False,
            final=True,
        )
    last = migrations()[-1].number
    async with asyncio.timeout(timeout):
        if await _current(connection, schema, server, last) == last:
            # Works for a role without the right to create.
            return
    try:
        async with asyncio.timeout(_LOCK_WAIT + _MIGRATING), connection.transaction():
            await _run_migrations(connection, schema, server, last, partitions)
    except Exception as error:
        if getattr(error, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
            raise
        raise await _blocked(connection, schema, server) from error


async def _run_migrations(connection: Any, schema: str, server: str, last: int, partitions: int) -> None:
    quoted = checked(schema)
    await connection.execute(
        f"set local statement_timeout = 0; set local lock_timeout = {_LOCK_WAIT * 1000:.0f}; "
        f"set local idle_in_transaction_session_timeout = {_IDLE_LIMIT * 1000:.0f}"
    )
    # One worker at a time; the lock ends with the transaction, even behind PgBouncer.
    await connection.execute("select pg_advisory_xact_lock(hashtextextended($1, 0))", _lock_name(schema))
    current = await _current(connection, schema, server, last)
    if not await connection.fetchval("select exists (select from pg_namespace where nspname = $1)", schema):
        await connection.execute(f"create schema {quoted}")
    if current == 0:
        await connection.execute(
            f"create table if not exists {quoted}.migrations "
            "(number integer primary key, name text not null, made_at timestamptz not null default now())"
        )
    for migration in migrations():
        if migration.number > current:
            try:
                await connection.execute(migration.sql.replace("@schema@", quoted))
            except Exception as error:
                if current == 0 and getattr(error, "sqlstate", None) in _EXISTS:
                    raise _foreign(schema, server) from error
                raise
            await connection.execute(
                f"insert into {quoted}.migrations (number, name) values ($1, $2)",  # noqa: S608 checked and quoted
                migration.number,
                migration.name,
            )
            logger.info("ran migration %s (%s) of the schema %s", migration.number, migration.name, schema)
    if current == 0 and partitions:
        await connection.execute(f"select {quoted}.partition({partitions:d})")


async def _blocked(connection: Any, schema: str, server: str) -> StorageUnavailable:
    """Return an error that names the session holding the migration lock or a lock on one of the tables."""
    what = f"the schema {schema} of {server} could not be created or migrated within {_LOCK_WAIT:g} s"
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
        return StorageUnavailable(f"{what} because of a lock that has been released since; try again", sent=False)
    pid, program, client, state, seconds = holder
    return StorageUnavailable(
        f"{what}: process {pid} of the server ({program} from {client}, {state}) holds a lock in a transaction that "
        f"started {seconds:.0f} s ago; wait for it, or end it with select pg_terminate_backend({pid})",
        sent=False,
    )


def _foreign(schema: str, server: str) -> StorageUnavailable:
    return StorageUnavailable(
        f"the schema {schema} of {server} belongs to another program: it has tables or functions with the names of "
        "Stepwell's; give Stepwell a schema of its own: ?schema=my_bot",
        sent=False,
        final=True,
    )


def _lock_name(schema: str) -> str:
    return f"stepwell {schema}"


async def _current(connection: Any, schema: str, server: str, last: int) -> int:
    # to_regclass may answer from a cache that is older than the lock.
    exists = await connection.fetchval(
        "select exists (select from pg_class c join pg_namespace n on n.oid = c.relnamespace "
        "where n.nspname = $1 and c.relname = 'migrations')",
        schema,
    )
    if not exists:
        return 0
    try:
        number: int = await connection.fetchval(f"select coalesce(max(number), 0) from {checked(schema)}.migrations")  # noqa: S608
    except Exception as error:
        if getattr(error, "sqlstate", None) == _NO_SUCH_COLUMN:
            raise _foreign(schema, server) from error
        raise
    if number > last:
        raise NewerSchema(f"the schema {schema} of {server}", number, last)
    return number
