"""Flows and states in their index: which there are, how many records each has, and lists of several of them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from stepwell.storage.listing import Any_, Query, StateCount
from stepwell.storage.postgres.rows import STORED, escaped, unescaped

__all__ = ["PlaceIndex", "TableSize", "filters"]

#: If counting all records would take too long, this many of each flow and state are counted.
MOST_COUNTED = 1000
#: It takes too long with more records than this, or if more of them than this have to be read.
MOST_RECORDS, MOST_LOOKUPS = 2_000_000, 50_000

#: One condition for each case of null: an index finds null only with "is null".
_CASES = (
    "r.flow = p.flow and r.state = p.state",
    "r.flow = p.flow and p.state is null and r.state is null",
    "p.flow is null and r.flow is null and r.state = p.state",
    "p.flow is null and r.flow is null and p.state is null and r.state is null",
)


class TableSize(NamedTuple):
    """The size of the table at the last VACUUM or ANALYZE."""

    #: -1: unknown.
    records: float
    pages: int
    #: The pages that nobody had written since a VACUUM. An index counts their records without reading them.
    visible: int
    #: Records that were written since then.
    written: int

    @property
    def is_quick(self) -> bool:
        """Whether all records can be counted by index without reading many of them."""
        lookups = (self.pages - self.visible + self.written) * self.records / max(self.pages, 1)
        return 0 <= self.records <= MOST_RECORDS and lookups <= MOST_LOOKUPS


class PlaceIndex:
    """The statements of one schema. A place is a flow and a state."""

    def __init__(self, schema: str, now: str) -> None:
        text = (files("stepwell.storage.postgres") / "places.sql").read_text("utf-8")
        records, places = f"{schema}.records", f"({text.replace('@schema@', schema)}) p"
        named = f'from {records} r where r.namespace collate "POSIX" = $1'
        both, no_state, no_flow = (
            f"(select count(*) from (select {named} and {case} limit $2) r)"  # noqa: S608
            for case in _CASES[:-1]
        )
        #: Of each place up to a limit, except of the place without flow and state.
        self.count_sql: str = (
            "select p.flow, p.state, case when p.flow is null "  # noqa: S608
            f"then {no_flow} when p.state is null then {no_state} else {both} end from {places}"
        )
        #: Records without flow and state, among rows without them up to a limit. Others are tombstones or claims.
        self.nowhere_sql: str = (
            "select count(*) filter (where r.alive), count(*) from "  # noqa: S608
            f"(select r.alive {named} and r.flow is null and r.state is null limit $2) r"
        )
        # The index has the keys of each place in order, so that each is read up to the limit only.
        keys = " union all ".join(
            f'(select r.key {named} and {case} and r.alive and r.key collate "POSIX" > $4 '
            f"and (r.expires_at is null or r.expires_at > {now.format(2)}) "
            'order by r.key collate "POSIX" limit $3)'
            for case in _CASES
        )
        wanted = " and ".join(
            f"(${number}::boolean or p.{name} is not distinct from {schema}.indexed(${number + 1}))"
            for name, number in (("flow", 5), ("state", 7))
        )
        self.page_sql: str = (
            f"select r.key, {STORED} from (select k.key from {places} cross join lateral ({keys}) k "  # noqa: S608
            f'where {wanted} order by k.key collate "C" limit $3) k '
            f"join {records} r on r.namespace = $1 and r.key = k.key order by r.key"
        )
        # The order makes the planner use the index of removals. The next sweep removes these records, so they are few.
        self.expired_sql: str = (
            "select e.namespace, e.flow, e.state, count(*) from ("  # noqa: S608
            f"select r.namespace, r.flow, r.state from {records} r "
            f"where r.removable_at <= {now.format(1)} and r.expires_at <= {now.format(1)} and r.alive "
            f"order by r.removable_at limit {MOST_LOOKUPS}) e group by 1, 2, 3"
        )
        self.oldest_sql: str = (
            f"select r.namespace, r.flow, r.state, count(*), min(r.written_at) from {records} r "  # noqa: S608
            f"where r.alive and (r.expires_at is null or r.expires_at > {now.format(1)}) group by 1, 2, 3"
        )
        self.size_sql: str = (
            # Of the table or of all its partitions. -1: a partition was never analyzed.
            "select case when min(c.reltuples) < 0 then -1 else sum(c.reltuples) end, sum(c.relpages)::bigint, "  # noqa: S608
            "sum(c.relallvisible)::bigint, sum(pg_stat_get_mod_since_analyze(c.oid))::bigint from pg_class c "
            f"where c.relkind = 'r' and (c.oid = '{records}'::regclass or c.oid in "
            f"(select i.inhrelid from pg_inherits i where i.inhparent = '{records}'::regclass))"
        )

    async def counts(self, namespaces: Sequence[str], now: float | None, connection: Any) -> list[StateCount]:
        """Count the records of each place by index: all of them, or a few of each if that would take too long."""
        found: list[StateCount] = []
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            await connection.execute("set local enable_seqscan = off; set local enable_bitmapscan = off")
            is_quick = TableSize(*await connection.fetchrow(self.size_sql)).is_quick
            expired = {tuple(place): count for *place, count in await connection.fetch(self.expired_sql, now)}
            most = MOST_LOOKUPS if is_quick else MOST_COUNTED
            limit = None if is_quick else most + 1
            for namespace in namespaces:
                rows = [(*row, row[2]) for row in await connection.fetch(self.count_sql, namespace, limit)]
                rows.append((None, None, *await connection.fetchrow(self.nowhere_sql, namespace, most + 1)))
                for flow, state, records, looked in rows:
                    place = (namespace, flow, state)
                    if looked == limit or (looked > most and flow is state is None):
                        found.append(_count(place, min(records, most), more=True))
                    elif records > expired.get(place, 0):
                        found.append(_count(place, records - expired.get(place, 0)))
        return found

    async def oldest(self, now: float | None, connection: Any) -> list[StateCount]:
        """Count all records, with the time of the oldest write of each place. This reads the whole table."""
        async with connection.transaction(readonly=True):
            await connection.execute("set local enable_seqscan = on; set local statement_timeout = '60s'")
            return [_count(row[:3], row[3], row[4]) for row in await connection.fetch(self.oldest_sql, now)]


def filters(query: Query) -> list[Any]:
    """Return the last parameters of ``page_sql``."""
    found: list[Any] = []
    for wanted in (query.flow, query.state):
        found += [isinstance(wanted, Any_), escaped(wanted) if isinstance(wanted, str) else None]
    return found


def _count(place: Sequence[str | None], records: int, oldest: float | None = None, *, more: bool = False) -> StateCount:
    namespace, flow, state = place
    assert namespace is not None
    return StateCount(namespace, flow and unescaped(flow), state and unescaped(state), records, oldest, more)
