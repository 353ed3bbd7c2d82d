"""Writes in a transaction of the user: a savepoint in it, so that a refused write leaves nothing behind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from stepwell.errors import InvalidOption, UsageError
from stepwell.storage.postgres.client import ServerError

__all__ = ["Savepoint", "within"]

#: There is no such schema, or no such function in it.
_MISSING = ("3F000", "42883")


class Savepoint:
    """A savepoint that is released at the end of its block, unless the block refuses its writes."""

    def __init__(self) -> None:
        self.refused: bool = False

    def refuse(self) -> None:
        """Undo the writes of the block at its end; the transaction goes on."""
        self.refused = True


@asynccontextmanager
async def within(connection: Any, schema: str) -> AsyncIterator[Savepoint]:
    """Yield a savepoint in the open transaction of an asyncpg connection.

    Raises ``InvalidOption`` for another object and for another database, and ``UsageError`` without a transaction.
    """
    if not callable(getattr(connection, "is_in_transaction", None)):
        raise InvalidOption(
            f"connection= is a {type(connection).__name__}: give a connection of asyncpg, of asyncpg.connect() or a "
            "pool; SQLAlchemy has it as (await connection.get_raw_connection()).driver_connection"
        )
    if not connection.is_in_transaction():
        raise UsageError(
            "connection= has no open transaction, so nothing was written; call submit() within "
            "'async with connection.transaction():'"
        )
    savepoint, inner = Savepoint(), connection.transaction()
    await inner.start()
    try:
        yield savepoint
    except BaseException as error:
        if not connection.is_closed():
            await inner.rollback()
        if isinstance(error, ServerError) and error.sqlstate in _MISSING:
            raise InvalidOption(
                f"the database of connection= has no schema {schema} of Stepwell: it must be the database of the "
                "storage of the flow"
            ) from error
        raise
    if savepoint.refused:
        await inner.rollback()
    else:
        await inner.commit()
