"""The PostgreSQL storage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, Self

from stepwell._backoff import backoff
from stepwell.errors import EncodeError, StorageUnavailable
from stepwell.record import Address, Limits
from stepwell.storage.contract import Storage
from stepwell.storage.listing import ANY, Any_, Beside, Due, Page, Query, StateCount, Swept
from stepwell.storage.operations import Apply, Get, Operation, Result
from stepwell.storage.postgres import fast_parts
from stepwell.storage.postgres.client import (
    Options,
    Pool,
    PoolSource,
    PostgresConnection,
    Source,
    UrlSource,
)
from stepwell.storage.postgres.hosts import PrimarySource, hosts_of
from stepwell.storage.postgres.notices import PostgresChannel, channel_of
from stepwell.storage.postgres.places import PlaceIndex, filters
from stepwell.storage.postgres.rows import STORED, addresses_json, escaped, results, stored
from stepwell.storage.postgres.schema import checked_partitions, create, quoted_schema
from stepwell.storage.postgres.within import within
from stepwell.storage.queue_text import END
from stepwell.storage.transport.batch import Batch, check_patience
from stepwell.storage.transport.notices import payload_of
from stepwell.storage.transport.reads import read_again
from stepwell.storage.urls import check_url, take_options, truth

__all__ = ["PostgresStorage"]

#: Options that may be given in a URL, and how they are parsed; all others are passed to asyncpg.
URL_OPTIONS: dict[str, Callable[[str], Any]] = {
    "schema": str,
    "timeout": float,
    "connect_timeout": float,
    "patience": float,
    "prepared_statements": truth,
    "notices": truth,
    "partitions": int,
}
#: Seconds between attempts to open: the first pause, and the longest.
_PAUSES = (0.02, 0.5)


class PostgresStorage(Storage):
    """Stores records in a schema of a PostgreSQL database, shared by any number of workers.

    ``source`` is a URL, or an ``asyncpg.Pool``, which is never closed. A URL may name several servers, of which the
    storage uses the one that accepts writes, and follows a promotion. With a URL the storage opens up to three
    connections, one more while it listens for notices, and one more while it counts. Use ``prepared_statements=False``
    with PgBouncer. A call takes at most ``timeout`` seconds; calls that do not reach the server are retried for
    ``patience`` seconds.
    ``notices=False``: send and receive no notices about new runs; workers poll.
    ``partitions=16``: a new schema gets tables with so many partitions, for hundreds of millions of records.

    Example::

        async with PostgresStorage("postgresql://localhost/bot", schema="my_bot") as storage:
            await storage.set_data("my_bot", (42, 42), {"name": "Alice"})
    """

    def __init__(
        self,
        source: str | Pool,
        *,
        schema: str = "stepwell",
        timeout: float = 5.0,
        connect_timeout: float = 5.0,
        prepared_statements: bool = True,
        notices: bool = True,
        partitions: int = 0,
        limits: Limits | None = None,
        clock: Callable[[], float] | None = None,
        ids: Callable[[], str] | None = None,
        sweep_every: float | None = 60.0,
        patience: float = 10.0,
    ) -> None:
        super().__init__(limits=limits, clock=clock, ids=ids, sweep_every=sweep_every, patience=patience)
        options = Options(timeout=timeout, connect_timeout=connect_timeout, prepared_statements=prepared_statements)
        # A batch is one statement, or two if the fast path cannot run it.
        check_patience(patience, connect_timeout + 2 * timeout)
        self.schema = schema
        self._partitions = checked_partitions(partitions)
        self._timeout = timeout
        self._quoted = quoted_schema(schema)
        self._source = _source(source, options)
        #: One connection per lane: for writes, which wait for the disk, and for all other operations.
        self._connections = {writes: PostgresConnection(self._source, options) for writes in (True, False)}
        #: For everything else: creating tables, listing and sweeping.
        self._other = PostgresConnection(self._source, options)
        #: For counts, which take longer than other calls.
        self._counting = PostgresConnection(self._source, options)
        self._places = PlaceIndex(self._quoted, _NOW)
        self._wake_key = ("postgresql", self._source.server if isinstance(source, str) else source, schema)
        if notices:
            self._channel = PostgresChannel(self._source, options, self._other, schema)
        self._run_batch_sql = f"select * from {self._quoted}.run_batch($1, $2, $3, $4, $5, $6)"  # noqa: S608 checked
        # Its plan needs the settings of our own connections.
        self._parts_sql = fast_parts.statement(self._quoted) if self._source.lock_timeout is None else None
        #: Numbers each attempt to send a batch without writes.
        self._sent = 0
        #: Looks for a promotion, if the URL names several servers.
        self._watching: asyncio.Task[None] | None = None

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """Open ``postgresql://user@host/database?schema=bot``. Other options of the URL are passed to asyncpg."""
        check_url(url)
        dsn, ours = take_options(url, URL_OPTIONS, "a PostgreSQL URL")
        return cls(dsn, **(ours | options))

    @property
    def location(self) -> str:
        return self._source.server

    @property
    def wake_key(self) -> Hashable:
        return self._wake_key

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._patience
        failures = 0
        while True:
            try:
                await self._other.call(self._create_tables)
                break
            except BaseException as error:
                await self._other.close()
                if not isinstance(error, StorageUnavailable):
                    raise
                # The server may still be starting.
                failures += 1
                pause = backoff(failures, *_PAUSES)
                if error.final or loop.time() + pause >= give_up:
                    raise
            await asyncio.sleep(pause)
        if isinstance(self._source, PrimarySource):
            self._watching = loop.create_task(self._source.watch(), name="stepwell-primary")

    async def _create_tables(self, connection: Any) -> None:
        await create(connection, self.schema, self._source.server, self._timeout, self._partitions)

    async def _close(self) -> None:
        watching, self._watching = self._watching, None
        if watching is not None and watching.get_loop() is asyncio.get_running_loop():
            watching.cancel()
            await asyncio.wait({watching})
        for connection in (*self._connections.values(), self._other, self._counting):
            await connection.close()

    def lane_of(self, operation: Operation) -> Hashable:
        return type(operation) is Apply

    async def run(self, operations: Sequence[Operation]) -> list[Result]:
        if not operations:
            return []
        writes = any(type(operation) is Apply for operation in operations)
        lane, number = None, 0
        if isinstance(operations, Batch) and any(type(operation) is not Get for operation in operations):
            lane, number = operations.lane, operations.number
            if not writes:
                # Each attempt has its own number, so that a message that arrives late claims nothing.
                self._sent = number = self._sent + 1
        # The last batches of a lane are sent while the storage closes, so they must not wait for that.
        if self._closing is None and self.loop is not asyncio.get_running_loop():
            await self.ensure_open()
        now = None if self.clock is None else self.clock()
        # All batches lock their rows in this order.
        order = sorted(range(len(operations)), key=lambda at: operations[at].address)
        batch = [operations[at] for at in order]
        try:
            if lane is not None and self._parts_sql and (args := fast_parts.arguments(operations)) is not None:
                rows = await self._connections[True].fetch(self._parts_sql, lane, number, now, *args)
                if rows:
                    return [fast_parts.applied(rows[0])]
            text = addresses_json(batch)
            rows = await self._connections[writes].fetch(
                self._run_batch_sql, lane, number, now, self._source.lock_timeout, writes, text
            )
        except UnicodeEncodeError:
            raise EncodeError("a tag or a name", "str", "contains a lone surrogate; clean the text") from None
        found: list[Result] = [None] * len(operations)
        for at, result in zip(order, results(batch, rows), strict=True):
            found[at] = result
        return found

    async def run_within(
        self, connection: Any, operations: Sequence[Operation], *, topic: str | None = None
    ) -> list[Result]:
        if self.loop is not asyncio.get_running_loop():
            await self.ensure_open()
        now = None if self.clock is None else self.clock()
        order = sorted(range(len(operations)), key=lambda at: operations[at].address)
        batch = [operations[at] for at in order]
        found: list[Result] = [None] * len(operations)
        async with within(connection, self._quoted) as savepoint:
            # The settings of the connection stay as they are.
            rows = await connection.fetch(self._run_batch_sql, None, 0, now, None, True, addresses_json(batch))
            for at, result in zip(order, results(batch, rows), strict=True):
                found[at] = result
            if any(isinstance(result, Exception) for result in found):
                # The rows of refused writes must not stay locked until the end of the transaction.
                savepoint.refuse()
            elif topic is not None and self._channel is not None:
                await connection.execute("select pg_notify($1, $2)", channel_of(self.schema), payload_of(topic))
        return found

    async def page(self, query: Query, after: Any, limit: int) -> Page:
        if query.tag is None and (query.flow is ANY) != (query.state is ANY):
            key = "" if after is None else after.key
            sql = self._places.page_sql
            args = [query.namespace, self._now(), limit + 1, key, *filters(query)]
        else:
            sql, args = self._page_sql(query, after, limit)
        rows = await self._read(sql, *args)
        records = [(Address(query.namespace, row[0]), stored(row, 1)) for row in rows[:limit]]
        return Page(records, records[-1][0] if len(rows) > limit else None)

    def _page_sql(self, query: Query, after: Address | None, limit: int) -> tuple[str, list[Any]]:
        args: list[Any] = [query.namespace, self._now(), limit + 1]

        def parameter(value: Any) -> str:
            args.append(value)
            return f"${len(args)}"

        tables = f"{self._quoted}.records r"
        where = ["r.alive", f"(r.expires_at is null or r.expires_at > {_NOW.format(2)})"]
        named = [(name, wanted) for name, wanted in (("flow", query.flow), ("state", query.state)) if wanted is not ANY]
        for name, wanted in named:
            where.append(
                f"r.{name} is null"
                if wanted is None
                else f"r.{name} = {self._quoted}.indexed({parameter(escaped(str(wanted)))})"
            )
        namespace, key = "r.namespace", "r.key"
        if query.tag is not None:
            # Start from the tags: there are few rows per tag.
            tables = f"{self._quoted}.tagged g join {tables} on r.key = g.key"
            tag = parameter(escaped(query.tag))
            where += [f"g.hash = {self._quoted}.tag_hash($1, {tag})", f"{tag} = any (r.tags)"]
            key = "g.key"
        elif named:
            # Matches the index by flow and state.
            namespace, key = 'r.namespace collate "POSIX"', 'r.key collate "POSIX"'
        where.append(f"{namespace} = $1")
        if after is not None:
            where.append(f"{key} > {parameter(after.key)}")
        sql = f"select r.key, {STORED} from {tables} where {' and '.join(where)} order by {key} limit $3"  # noqa: S608
        return sql, args

    def position(self, address: Address) -> Any:
        return address

    async def counts(self, *, oldest: bool = False) -> list[StateCount]:
        now = self._now()
        count = partial(self._places.oldest, now)
        if not oldest:
            count = partial(self._places.counts, await self.namespaces(), now)
        elif self.loop is not asyncio.get_running_loop():
            await self.ensure_open()
        try:
            return await self._counting.call(count)
        finally:
            await self._counting.close()

    async def beside(self, address: Address) -> Beside:
        now = "coalesce($3::float8, date_part('epoch', clock_timestamp()))"
        rows = await self._read(
            f"select r.token, r.leased_until - {now}, "  # noqa: S608
            f"case when r.memo_until > {now} then coalesce(r.memo, m.body) end "
            f"from {self._quoted}.records r left join {self._quoted}.memos m using (namespace, key) "
            "where r.namespace = $1 and r.key = $2",
            *address,
            self._now(),
        )
        token, remaining, memo = rows[0] if rows else (None, 0.0, None)
        held = token is not None and remaining > 0
        return Beside(token if held else None, float(remaining) if held else 0.0, memo)

    async def namespaces(self) -> list[str]:
        # One index lookup per namespace, however many records it has.
        rows = await self._read(
            "with recursive found (namespace) as ("  # noqa: S608 checked and quoted
            f"(select r.namespace from {self._quoted}.records r order by r.namespace limit 1) union all "
            f"select (select r.namespace from {self._quoted}.records r where r.namespace > f.namespace "
            "order by r.namespace limit 1) from found f where f.namespace is not null) "
            "select namespace from found where namespace is not null",
        )
        return [row[0] for row in rows]

    async def traces(self, namespace: str, tag: str, *, limit: int = 500) -> list[Address]:
        rows = await self._read(
            f"select g.key from {self._quoted}.tagged g "  # noqa: S608 checked and quoted
            f"join {self._quoted}.records r on r.namespace = $1 and r.key = g.key "
            f"where g.hash = {self._quoted}.tag_hash($1, $2) "
            # Another tag may have this hash. A record whose tags are damaged has none with it.
            f"and ($2 = any (r.tags) or g.hash <> all (array("
            f"select {self._quoted}.tag_hash($1, x.tag) from unnest(r.tags) x(tag)))) order by g.key limit $3",
            namespace,
            escaped(tag),
            limit,
        )
        return [Address(namespace, row[0]) for row in rows]

    async def due(
        self,
        namespace: str,
        *,
        before: float | None = None,
        limit: int = 100,
        after: Due | None = None,
        flow: str | Any_ | Sequence[str] | None = ANY,
    ) -> list[Due]:
        last: tuple[float, str] = (float("-inf"), "") if after is None else (after.deadline, after.address.key)
        args: list[Any] = [namespace, self._now(), before, *last, limit]
        of_flow = ""
        if flow is None:
            of_flow = "and r.flow is null "
        elif not isinstance(flow, Any_):
            args.append(list(map(escaped, [flow] if isinstance(flow, str) else dict.fromkeys(flow))))
            of_flow = f"and r.flow = {self._quoted}.indexed(n.flow) "
        sql = (
            f"select r.key, r.deadline from {self._quoted}.records r "  # noqa: S608 checked and quoted
            f"where r.namespace = $1 {of_flow}and r.deadline <= coalesce($3, {_NOW.format(2)}) and r.alive "
            "and (r.deadline, r.key) > ($4::float8, $5::text) "
            f"and (r.expires_at is null or r.expires_at > {_NOW.format(2)}) order by r.deadline, r.key limit $6"
        )
        if not isinstance(flow, Any_ | None):
            # The first of each flow, then the first of all of them.
            sql = (
                "select d.key, d.deadline from unnest($7::text[]) n (flow) "  # noqa: S608 checked and quoted
                f"cross join lateral ({sql}) d order by d.deadline, d.key limit $6"
            )
        rows = await self._read(sql, *args)
        return [Due(Address(namespace, row[0]), row[1]) for row in rows]

    async def due_in(self, wanted: Mapping[str, Sequence[str] | Any_], *, limit: int = 100) -> list[Due]:
        whole = [namespace for namespace, flows in wanted.items() if isinstance(flows, Any_)]
        pairs = [
            (namespace, escaped(flow))
            for namespace, flows in wanted.items()
            if not isinstance(flows, Any_)
            for flow in dict.fromkeys(flows)
        ]
        first = (
            f"cross join lateral (select r.key, r.deadline from {self._quoted}.records r "  # noqa: S608
            f"where r.namespace = n.namespace and r.deadline <= {_NOW.format(2)} and r.alive {{}}"
            f"and (r.expires_at is null or r.expires_at > {_NOW.format(2)}) order by r.deadline, r.key limit $1) d"
        )
        rows = await self._read(
            f"select n.namespace, d.key, d.deadline from unnest($3::text[]) n (namespace) {first.format('')} "  # noqa: S608
            "union all select n.namespace, d.key, d.deadline from unnest($4::text[], $5::text[]) n (namespace, flow) "
            f"{first.format(f'and r.flow = {self._quoted}.indexed(n.flow) ')} order by deadline limit $1",
            *(limit, self._now(), whole, [namespace for namespace, _ in pairs], [flow for _, flow in pairs]),
        )
        return [Due(Address(namespace, key), deadline) for namespace, key, deadline in rows]

    async def queued(self, namespace: str, name: str | Sequence[str], *, limit: int = 100) -> list[Address]:
        # The first of each queue, then the first of all of them by what follows the name.
        rows = await self._read(
            f"select q.key from unnest($3::text[]) n (name) cross join lateral ("  # noqa: S608 checked and quoted
            f"select r.key, r.queue from {self._quoted}.records r where r.namespace = $1 "
            "and r.queue > n.name || chr(10) and r.queue < n.name || chr(11) and r.alive "
            f"and (r.expires_at is null or r.expires_at > {_NOW.format(2)}) order by r.queue, r.key limit $4) q "
            "order by substr(q.queue, length(n.name) + 2), q.key limit $4",
            namespace,
            self._now(),
            [name] if isinstance(name, str) else list(dict.fromkeys(name)),
            limit,
        )
        return [Address(namespace, row[0]) for row in rows]

    async def queues(self, namespace: str, *, prefix: str = "", after: str = "", limit: int = 100) -> list[str]:
        # One index lookup per queue, however many records it has.
        first = (
            f"select r.queue from {self._quoted}.records r "  # noqa: S608 checked and quoted
            "where r.namespace = $1 and r.queue > {} and r.alive "
            f"and (r.expires_at is null or r.expires_at > {_NOW.format(2)}) order by r.queue limit 1"
        )
        after_queue = first.format("split_part(f.queue, chr(10), 1) || chr(11)")
        rows = await self._read(
            f"with recursive found (queue) as (({first.format('$3::text')}) union all "  # noqa: S608
            f"select ({after_queue}) from found f where starts_with(f.queue, $4)) "
            "select split_part(queue, chr(10), 1) from found where starts_with(queue, $4) limit $5",
            namespace,
            self._now(),
            max(prefix, f"{after}{END}") if after else prefix,
            prefix,
            limit,
        )
        return [row[0] for row in rows]

    async def sweep(self, limit: int = 1000) -> Swept:
        # Not repeated: its answer names the records that it has removed.
        rows = await self._fetch(f"select * from {self._quoted}.sweep($1, $2)", self._now(), limit)  # noqa: S608
        return Swept([(Address(row[0], row[1]), row[2]) for row in rows if row[3]], len(rows))

    async def settings(self) -> dict[str, Any]:
        names = (
            "server_version",
            "server_version_num",
            "synchronous_commit",
            "synchronous_standby_names",
            "fsync",
            "full_page_writes",
        )
        leases = (
            f"select r.leased_until - {_NOW.format(1)} as seconds, r.namespace, r.key from {self._quoted}.records r "  # noqa: S608
            f"where r.token is not null and r.leased_until > {_NOW.format(1)} order by 1 desc limit 1"
        )
        longest = await self._other.call(partial(_read_all, leases, self._now()))
        pooled = await self._other.call(_is_pooled)
        servers = await self._source.roles() if isinstance(self._source, PrimarySource) else {}
        # Last, because the check of the clock compares its time with the time of this machine after the call.
        values = ", ".join(f"current_setting('{name}') as {name}" for name in names)
        (row,) = await self._read(
            f"select {values}, pg_is_in_recovery() as in_recovery, pg_backend_pid() as pid, "  # noqa: S608 constants
            f"date_part('epoch', clock_timestamp()) as now, "
            f"(select max(number) from {self._quoted}.version) as schema, "
            "(select count(*) from pg_stat_replication) as replicas, "
            f"(select count(*) from pg_inherits where inhparent = '{self._quoted}.records'::regclass) as partitions",
        )
        return {
            "backend": "postgres",
            "prepared_statements": self._source.lock_timeout is None,
            **dict(row),
            "partitions_wanted": self._partitions,
            "schema_name": self.schema,
            "longest_lease": dict(longest[0]) if longest else None,
            "pooled": pooled,
            "servers": servers,
        }

    async def _read(self, sql: str, *args: Any) -> list[Any]:
        return await read_again(partial(self._fetch, sql, *args))

    async def _fetch(self, sql: str, *args: Any) -> list[Any]:
        if self.loop is not asyncio.get_running_loop():
            await self.ensure_open()
        return await self._other.fetch(sql, *args)

    def _now(self) -> float | None:
        return None if self.clock is None else self.clock()


def _source(source: str | Pool, options: Options) -> Source:
    if not isinstance(source, str):
        return PoolSource(source, options)
    check_url(source)
    hosts = hosts_of(source)
    return UrlSource(source, options) if len(hosts) == 1 else PrimarySource(source, options, hosts)


async def _is_pooled(connection: Any) -> bool:
    """Return whether a pooler such as PgBouncer is between this client and the server."""
    # A pooler gives each client a process id of its own.
    async with connection.transaction():
        return bool(connection.get_server_pid() != await connection.fetchval("select pg_backend_pid()"))


async def _read_all(sql: str, now: float | None, connection: Any) -> list[Any]:
    """Read a whole table, which other statements must not do."""
    async with connection.transaction():
        await connection.execute("set local enable_seqscan = on; set local statement_timeout = '60s'")
        rows: list[Any] = await connection.fetch(sql, now)
        return rows


#: The given clock or the server's. ``now()`` is constant within a statement, so the planner can use an index.
_NOW = "coalesce(${}::float8, date_part('epoch', now()))"
