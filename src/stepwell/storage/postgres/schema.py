"""Creation of the PostgreSQL schema."""

from __future__ import annotations

import asyncio
import logging
import re
from importlib.resources import files
from typing import Any

from stepwell._secrets import quoted
from stepwell.errors import InvalidOption, NewerSchema, StorageUnavailable

__all__ = ["checked_partitions", "create", "quoted_schema"]

logger: logging.Logger = logging.getLogger(__name__)

#: The oldest release of PostgreSQL on which the contract is tested, by ``make test-versions``.
OLDEST = 14
#: The version of the schema in this release.
VERSION = 1
#: The scripts that create it, in this order.
_SCRIPTS = ("schema.sql", "run_batch.sql", "sweep.sql", "partition.sql")
#: Seconds for all scripts.
_CREATE_TIMEOUT = 60.0
#: Seconds to wait for a lock of another session, such as another worker that creates the schema.
_LOCK_TIMEOUT = 30.0
#: Seconds after which the server ends a session that is idle in this transaction.
_IDLE_TIMEOUT = 10.0
_MAX_PARTITIONS = 1024
_LOCK_NOT_AVAILABLE = "55P03"
#: A table, a function or another object with this name exists.
_EXISTS = ("42P07", "42723", "42710")
_NO_SUCH_COLUMN = "42703"
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")


def quoted_schema(schema: str) -> str:
    """Return the quoted name of a schema. Raises ``InvalidOption`` if the name is not allowed."""
    if not isinstance(schema, str) or not _NAME.fullmatch(schema) or schema.startswith("pg_"):
        raise InvalidOption(
            f"schema is {quoted(schema)}; use at most 63 lower-case letters, digits and underscores, "
            "starting with a letter or an underscore, and not with pg_"
        )
    return f'"{schema}"'


def checked_partitions(count: int) -> int:
    """Return a number of partitions, 0 for none. Raises ``InvalidOption`` if it is not supported."""
    if count != 0 and not (isinstance(count, int) and 2 <= count <= _MAX_PARTITIONS):
        raise InvalidOption(f"partitions must be 0 or from 2 to {_MAX_PARTITIONS}, not {quoted(count)}")
    return count


async def create(connection: Any, schema: str, server: str, timeout: float, partitions: int = 0) -> None:
    """Create the tables, unless they exist. Raises ``NewerSchema`` for those of a later release.

    Raises ``StorageUnavailable`` for an old server, a foreign schema or a lock that another session holds.
    """
    found = connection.get_server_version().major
    if found < OLDEST:
        raise StorageUnavailable(
            f"{server} is PostgreSQL {found}, which is too old: use PostgreSQL {OLDEST} or newer",
            sent=False,
            final=True,
        )
    async with asyncio.timeout(timeout):
        if await _exists(connection, schema, server):
            # Before any DDL, so that a role that may not create can open an existing schema.
            return
    try:
        async with asyncio.timeout(_LOCK_TIMEOUT + _CREATE_TIMEOUT), connection.transaction():
            await _create(connection, schema, server, partitions)
    except Exception as error:
        state = getattr(error, "sqlstate", None)
        if state == _LOCK_NOT_AVAILABLE:
            raise await _blocked(connection, schema, server) from error
        if state in _EXISTS:
            raise _foreign(schema, server) from error
        raise


async def _create(connection: Any, schema: str, server: str, partitions: int) -> None:
    identifier = quoted_schema(schema)
    await connection.execute(
        f"set local statement_timeout = 0; set local lock_timeout = {_LOCK_TIMEOUT * 1000:.0f}; "
        f"set local idle_in_transaction_session_timeout = {_IDLE_TIMEOUT * 1000:.0f}"
    )
    # One worker at a time; the lock ends with the transaction, even behind PgBouncer.
    await connection.execute("select pg_advisory_xact_lock(hashtextextended($1, 0))", _lock_name(schema))
    if await _exists(connection, schema, server):
        return
    if not await connection.fetchval("select exists (select from pg_namespace where nspname = $1)", schema):
        await connection.execute(f"create schema {identifier}")
    folder = files("stepwell.storage.postgres")
    for name in _SCRIPTS:
        await connection.execute((folder / name).read_text("utf-8").replace("@schema@", identifier))
    await connection.execute(f"create table {identifier}.version (number integer primary key)")
    await connection.execute(f"insert into {identifier}.version values ($1)", VERSION)  # noqa: S608 checked and quoted
    if partitions:
        await connection.execute(f"select {identifier}.partition({partitions:d})")
    logger.info("created the tables in the schema %s", schema)


async def _blocked(connection: Any, schema: str, server: str) -> StorageUnavailable:
    """Return an error that names the session which holds the lock of the creation."""
    what = f"the schema {schema} of {server} could not be created within {_LOCK_TIMEOUT:g} s"
    holder = await connection.fetchrow(
        "select a.pid, coalesce(nullif(a.application_name, ''), 'an unnamed program') as program, "
        "coalesce(host(a.client_addr), 'the same machine') as client, coalesce(a.state, 'state hidden') as state, "
        "coalesce(date_part('epoch', clock_timestamp() - a.xact_start), 0) as seconds "
        "from pg_locks l join pg_stat_activity a on a.pid = l.pid "
        "where l.granted and l.pid <> pg_backend_pid() and l.locktype = 'advisory' and l.objsubid = 1 "
        "and (l.classid::bigint << 32 | l.objid::bigint) = hashtextextended($1, 0) limit 1",
        _lock_name(schema),
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


async def _exists(connection: Any, schema: str, server: str) -> bool:
    """Return whether the schema has the tables of this release."""
    # to_regclass may answer from a cache that is older than the lock.
    exists = await connection.fetchval(
        "select exists (select from pg_class c join pg_namespace n on n.oid = c.relnamespace "
        "where n.nspname = $1 and c.relname = 'version')",
        schema,
    )
    if not exists:
        return False
    try:
        number: int = await connection.fetchval(f"select coalesce(max(number), 0) from {quoted_schema(schema)}.version")  # noqa: S608
    except Exception as error:
        if getattr(error, "sqlstate", None) == _NO_SUCH_COLUMN:
            raise _foreign(schema, server) from error
        raise
    if number > VERSION:
        raise NewerSchema(f"the schema {schema} of {server}", number, VERSION)
    # No row: this table is not ours. Version 1 is the first, so there is nothing older to migrate.
    if number < 1:
        raise _foreign(schema, server)
    return True
