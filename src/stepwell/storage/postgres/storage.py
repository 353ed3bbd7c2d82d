"""PostgreSQL: many workers, durable, queryable with SQL."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Self

from stepwell.errors import EncodeError, InvalidOption, StorageUnavailable
from stepwell.record import Address, Limits
from stepwell.storage.contract import ANY, Due, Page, Query, Storage, Swept
from stepwell.storage.lane import Batch, check_patience
from stepwell.storage.operations import Apply, Get, Operation, Result
from stepwell.storage.postgres.client import Link, Options, Pool, PoolSource, Source, UrlSource, split_url
from stepwell.storage.postgres.fast_path import Usual
from stepwell.storage.postgres.rows import COLUMNS, STORED, columns, escaped, results, stored
from stepwell.storage.postgres.schema import checked, migrate

__all__ = ["PostgresStorage"]

#: What a URL may carry for us after its ``?``; everything else there is for asyncpg.
_IN_URL = ("schema", "timeout", "connect_timeout", "prepared_statements")
_PAUSES = (0.02, 0.05, 0.1, 0.2, 0.5)


class PostgresStorage(Storage):
    """Keeps records in a schema of a PostgreSQL database, shared by any number of workers.

    ``source`` is a URL, or an ``asyncpg.Pool``, which is used and never closed. With a URL it has up to five
    connections of its own. ``prepared_statements=False`` is for PgBouncer. A call takes at most ``timeout``
    seconds; what cannot be delivered is tried again for ``patience`` seconds.
    """

    def __init__(
        self,
        source: str | Pool,
        *,
        schema: str = "stepwell",
        timeout: float = 5.0,
        connect_timeout: float = 5.0,
        prepared_statements: bool = True,
        limits: Limits | None = None,
        clock: Callable[[], float] | None = None,
        ids: Callable[[], str] | None = None,
        sweep_every: float | None = 60.0,
        patience: float = 10.0,
    ) -> None:
        super().__init__(limits=limits, clock=clock, ids=ids, sweep_every=sweep_every, patience=patience)
        options = Options(timeout=timeout, connect_timeout=connect_timeout, prepared_statements=prepared_statements)
        # A batch is one statement, or two if the first cannot make it.
        check_patience(patience, connect_timeout + 2 * timeout)
        self.schema = schema
        self._timeout = timeout
        self._quoted = checked(schema)
        self._source: Source = UrlSource(source, options) if isinstance(source, str) else PoolSource(source, options)
        #: A lane has its own: what it sends next need not wait for anything but its own last answer. Each half of the
        #: keys has its lanes: the server works for one half while we work for the other.
        self._links = {(writes, half): Link(self._source, options) for writes in (True, False) for half in (0, 1)}
        self._aside = Link(self._source, options)
        places = ", ".join(f"${n}" for n in range(1, COLUMNS + 6))
        self._run_batch_sql = f"select * from {self._quoted}.run_batch({places})"  # noqa: S608 checked and quoted
        # Plans that are made once must fit tables of any size, and only our own connections are set up for that.
        self._usual = Usual(self._quoted) if self._source.lock_timeout is None else None
        self._sent = 0

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """``postgresql://user@host/database?schema=bot``, and what else asyncpg takes in a URL."""
        dsn, found = split_url(url, _IN_URL)
        return cls(dsn, **(_typed(found) | options))

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._patience
        attempt = 0
        while True:
            try:
                async with self._aside.connection() as connection:
                    await migrate(connection, self.schema, self._source.place, self._timeout)
                return
            except BaseException as error:
                await self._aside.close()
                if not isinstance(error, StorageUnavailable):
                    raise
                # The server may be just starting, as we are.
                pause = _PAUSES[min(attempt, len(_PAUSES) - 1)]
                if error.final or loop.time() + pause >= give_up:
                    raise
                attempt += 1
            await asyncio.sleep(pause)

    async def _close(self) -> None:
        for link in (*self._links.values(), self._aside):
            await link.close()

    def lane_of(self, operation: Operation) -> Hashable:
        return type(operation) is Apply, _half(operation.address)

    async def run(self, operations: Sequence[Operation]) -> list[Result]:
        if not operations:
            return []
        writes = any(type(operation) is Apply for operation in operations)
        lane, number = None, 0
        if isinstance(operations, Batch) and any(type(operation) is not Get for operation in operations):
            lane, number = operations.lane, operations.number
            if not writes:
                # Claims may be repeated, but not after a later batch: every sending has its own number.
                self._sent = number = self._sent + 1
        link = self._links[writes, _half(operations[0].address)]
        if self._closing is None:
            # A lane's last batches are sent while the storage closes, and must not wait for that to end.
            await self.ensure_open()
        claimed = False
        try:
            if lane is not None and self._usual is not None:
                for statement in self._usual.statements(operations):
                    rows = await link.fetch_whole(statement.sql, lane, number, self._now(), *statement.args)
                    found = statement.results(operations, rows)
                    if found is not None:
                        return found
                    if not writes:
                        claimed = claimed or bool(rows)
                        self._sent = number = self._sent + 1
            sent = columns(operations)
            rows = await link.fetch(self._run_batch_sql, lane, number, self._now(), self._source.lock_timeout, *sent)
        except UnicodeEncodeError:
            raise EncodeError("a tag or a name", "str", "contains a lone surrogate; clean the text") from None
        except StorageUnavailable as error:
            # What was claimed before must be given back.
            error.sent = error.sent or claimed
            raise
        return results(operations, rows)

    async def page(self, query: Query, after: Any, limit: int) -> Page:
        sql, args = self._page_sql(query, after, limit)
        rows = await self._fetch(self._aside, sql, *args)
        records = [(Address(query.namespace, row[0]), stored(row, 1)) for row in rows[:limit]]
        return Page(records, records[-1][0] if len(rows) > limit else None)

    def _page_sql(self, query: Query, after: Address | None, limit: int) -> tuple[str, list[Any]]:
        args: list[Any] = [query.namespace, self._now(), limit + 1]

        def place(value: Any) -> str:
            args.append(value)
            return f"${len(args)}"

        tables = f"{self._quoted}.records r"
        where = ["r.alive", f"(r.expires_at is null or r.expires_at > {_NOW.format(2)})"]
        named = [(name, wanted) for name, wanted in (("flow", query.flow), ("state", query.state)) if wanted is not ANY]
        for name, wanted in named:
            where.append(
                f"r.{name} is null"
                if wanted is None
                else f"r.{name} = {self._quoted}.indexed({place(escaped(str(wanted)))})"
            )
        namespace, key = "r.namespace", "r.key"
        if query.tag is not None:
            # Of the two tables the one with the tag leads: it has few rows.
            tables = f"{self._quoted}.tags g join {tables} on r.namespace = g.namespace and r.key = g.key"
            tag = place(escaped(query.tag))
            where += [f"g.tag = {self._quoted}.indexed({tag})", f"{tag} = any (r.tags)"]
            namespace, key = "g.namespace", "g.key"
        elif named:
            # As the index by state has them.
            namespace, key = 'r.namespace collate "POSIX"', 'r.key collate "POSIX"'
        where.append(f"{namespace} = $1")
        if after is not None:
            where.append(f"{key} > {place(after.key)}")
        sql = f"select r.key, {STORED} from {tables} where {' and '.join(where)} order by {key} limit $3"  # noqa: S608
        return sql, args

    async def namespaces(self) -> list[str]:
        # One look into the index a namespace, however many records it has.
        rows = await self._fetch(
            self._aside,
            "with recursive found (namespace) as ("  # noqa: S608 checked and quoted
            f"(select r.namespace from {self._quoted}.records r order by r.namespace limit 1) union all "
            f"select (select r.namespace from {self._quoted}.records r where r.namespace > f.namespace "
            "order by r.namespace limit 1) from found f where f.namespace is not null) "
            "select namespace from found where namespace is not null",
        )
        return [row[0] for row in rows]

    async def traces(self, namespace: str, tag: str, *, limit: int = 500) -> list[Address]:
        rows = await self._fetch(
            self._aside,
            f"select g.key from {self._quoted}.tags g "  # noqa: S608 checked and quoted
            f"where g.namespace = $1 and g.tag = {self._quoted}.indexed($2) order by g.key limit $3",
            namespace,
            escaped(tag),
            limit,
        )
        return [Address(namespace, row[0]) for row in rows]

    async def due(
        self, namespace: str, *, before: float | None = None, limit: int = 100, after: Due | None = None
    ) -> list[Due]:
        now = self._now()
        last: tuple[float, str] = (float("-inf"), "") if after is None else (after.deadline, after.address.key)
        rows = await self._fetch(
            self._aside,
            f"select r.key, r.deadline from {self._quoted}.records r "  # noqa: S608 checked and quoted
            f"where r.namespace = $1 and r.deadline <= coalesce($3, {_NOW.format(2)}) and r.alive "
            "and (r.deadline, r.key) > ($4::float8, $5::text) "
            f"and (r.expires_at is null or r.expires_at > {_NOW.format(2)}) order by r.deadline, r.key limit $6",
            namespace,
            now,
            before,
            *last,
            limit,
        )
        return [Due(Address(namespace, row[0]), row[1]) for row in rows]

    async def sweep(self, limit: int = 1000) -> Swept:
        rows = await self._fetch(self._aside, f"select * from {self._quoted}.sweep($1, $2)", self._now(), limit)  # noqa: S608
        return Swept([(Address(row[0], row[1]), row[2]) for row in rows if row[3]], len(rows))

    async def _fetch(self, link: Link, sql: str, *args: Any) -> list[Any]:
        if self._loop is not asyncio.get_running_loop():
            await self.ensure_open()
        return await link.fetch(sql, *args)

    def _now(self) -> float | None:
        return None if self.clock is None else self.clock()


#: Our clock if there is one, else the server's. ``now()`` is constant in a statement, so an index can be used.
_NOW = "coalesce(${}::float8, date_part('epoch', now()))"


def _half(address: Address) -> int:
    """Which half of the keys an address belongs to, in this process."""
    return hash(address) & 1


def _typed(found: dict[str, str]) -> dict[str, Any]:
    """Options of a URL as what they mean."""
    typed: dict[str, Any] = dict(found)
    for name in ("timeout", "connect_timeout"):
        if name in typed:
            try:
                typed[name] = float(typed[name])
            except ValueError:
                raise InvalidOption(f"{name} in a PostgreSQL URL is a number of seconds") from None
    if "prepared_statements" in typed:
        words = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}
        try:
            typed["prepared_statements"] = words[typed["prepared_statements"].lower()]
        except KeyError:
            raise InvalidOption("prepared_statements is true or false") from None
    return typed
