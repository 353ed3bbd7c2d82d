"""Lists of records by flow, state, tag or deadline, and the sweep of expired ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from stepwell.record import Address
from stepwell.storage.listing import ANY, Any_, Beside, Due, Page, Query, StateCount, Swept
from stepwell.storage.queue_text import END
from stepwell.storage.sqlite.columns import Row, checksum, is_sound, row_and_sizes, stored
from stepwell.storage.sqlite.rows import Rows
from stepwell.storage.sqlite.schema import QUERIES

__all__ = ["Listing"]

#: Memos that one sweep checks. Memos of existing records have no index, so each sweep checks the next ones.
MEMOS_A_SWEEP = 500
#: How often one sweep reads more expired rows if some of them are damaged.
READS_A_SWEEP = 10
#: A list by flow or by state alone merges the keys of up to this many flows and states. With more of them, it reads all
#: records of the namespace.
MOST_PLACES = 1000

#: The position before all expired rows.
_START: tuple[Any, int] = (float("-inf"), 0)


class Listing:
    """Pages, deadlines and sweeps on one connection, inside a transaction of the caller."""

    def __init__(self, execute: Callable[..., Any], rows: Rows, clock: Callable[[], float]) -> None:
        self._execute = execute
        self._rows = rows
        self._clock = clock
        self._memos_seen = ("", "")
        #: The last expired row that a sweep has read. Damaged rows stay, so the next sweep continues behind them.
        self._expired_seen: tuple[Any, int] = _START

    def page(self, query: Query, after: str | None, limit: int) -> Page:
        """Return records in the order of their keys; ``after`` is the last key of the previous page."""
        now = self._clock()
        bindings = {
            "namespace": query.namespace,
            "tag": query.tag,
            "any_flow": query.flow is ANY,
            "flow": None if query.flow is ANY else query.flow,
            "any_state": query.state is ANY,
            "state": None if query.state is ANY else query.state,
            "after": after or "",
            "now": now,
            "limit": limit + 1,
        }
        found: list[Any]
        if query.tag is not None:
            found = self._rows.read(QUERIES["page_by_tag"], bindings)
        elif query.flow is not ANY and query.state is not ANY:
            found = self._rows.read(QUERIES["page_by_place"], bindings)
        elif query.flow is ANY and query.state is ANY:
            found = self._rows.read(QUERIES["page"], bindings)
        elif (places := self._places(query)) is not None:
            found = self._page_of_places(query.namespace, places, after or "", limit + 1)
        else:
            found = self._rows.read(QUERIES["page"], bindings)
        records = []
        for key, *columns in found[:limit]:
            address = Address(query.namespace, key)
            record = stored(address, Row(*columns), self._rows.fields(address), now)
            if record is not None:
                records.append((address, record))
        return Page(records, found[limit - 1][0] if len(found) > limit else None)

    def _places(self, query: Query) -> list[tuple[str | None, str | None]] | None:
        """Return the flows and states that match a query, perhaps with some without records; ``None``: too many."""
        places = self._rows.read(QUERIES["places"], (query.namespace, MOST_PLACES + 1))
        if len(places) > MOST_PLACES:
            return None
        return [(flow, state) for flow, state in places if query.flow in (ANY, flow) and query.state in (ANY, state)]

    def _page_of_places(
        self, namespace: str, places: list[tuple[str | None, str | None]], after: str, limit: int
    ) -> list[Any]:
        """Return the first rows of several flows and states together. The index has the keys of each in order."""
        keys: list[str] = []
        for place in places:
            keys += [key for (key,) in self._rows.read(QUERIES["keys_of_place"], (namespace, *place, after, limit))]
        return [
            (key, *row) for key in sorted(keys)[:limit] for row in self._rows.read(row_and_sizes(0), (namespace, key))
        ]

    def due(
        self,
        namespace: str,
        before: float | None,
        limit: int,
        after: Due | None,
        flow: str | Any_ | Sequence[str] | None,
    ) -> list[Due]:
        """Return the deadlines that have passed, earliest first."""
        now = self._clock()
        bindings = {
            "namespace": namespace,
            "before": now if before is None else before,
            "after_deadline": float("-inf") if after is None else after.deadline,
            "after_key": "" if after is None else after.address.key,
            "now": now,
            "limit": limit,
        }
        if isinstance(flow, Any_):
            found = self._rows.read(QUERIES["due"], bindings)
        else:
            flows = [flow] if flow is None or isinstance(flow, str) else list(dict.fromkeys(flow))
            found = self._rows.read(QUERIES["due_of_flows"], bindings | {"flows": json.dumps(flows)})
        return [Due(Address(namespace, key), deadline) for key, deadline in found]

    def queued(self, namespace: str, name: str | Sequence[str], limit: int) -> list[Address]:
        """Return the first records of a queue, or of several together."""
        names = [name] if isinstance(name, str) else list(dict.fromkeys(name))
        bindings = (namespace, json.dumps(names), self._clock(), limit)
        return [Address(namespace, key) for (key,) in self._rows.read(QUERIES["queued"], bindings)]

    def queues(self, namespace: str, prefix: str, after: str, limit: int) -> list[str]:
        """Return the names of queues in order."""
        first = max(prefix, f"{after}{END}") if after else prefix
        return [
            name for (name,) in self._rows.read(QUERIES["queues"], (namespace, first, prefix, self._clock(), limit))
        ]

    def counts(self) -> list[StateCount]:
        """Count the records of all namespaces by flow and state, in their index."""
        now = self._clock()
        expired = {tuple(place): count for *place, count in self._rows.read(QUERIES["expired_counts"], (now,))}
        counts = []
        for namespace in self.namespaces():
            for flow, state, count in self._rows.read(QUERIES["counts"], (namespace, -1)):
                left = count - expired.get((namespace, flow, state), 0)
                if left > 0:
                    counts.append(StateCount(namespace, flow, state, left))
        return counts

    def oldest(self) -> list[StateCount]:
        """Count the records with the time of the oldest write of each state, in one pass over the table."""
        return [StateCount(*row) for row in self._rows.read(QUERIES["oldest"], (self._clock(),))]

    def beside(self, address: Address) -> Beside:
        """Return the lease and the memo of an address."""
        now = self._rows.lease_clock()
        lease = self._rows.read(QUERIES["lease"], (*address, now))
        memo = self._rows.read(QUERIES["memo"], (*address, self._clock()))
        holder, until = lease[0] if lease else (None, now)
        return Beside(holder, until - now, memo[0][0] if memo and type(memo[0][0]) is str else None)

    def namespaces(self) -> list[str]:
        """Return every namespace that has a record or a tombstone."""
        return [namespace for (namespace,) in self._rows.read(QUERIES["namespaces"], ())]

    def traces(self, namespace: str, tag: str, limit: int) -> list[Address]:
        """Return the addresses with a tag, tombstones included."""
        return [Address(namespace, key) for (key,) in self._rows.read(QUERIES["traces"], (namespace, tag, limit))]

    def sweep(self, limit: int) -> Swept:
        """Remove up to ``limit`` expired records, tombstones and leases that are not held."""
        expired: list[tuple[Address, str | None]] = []
        removed, now = 0, self._clock()
        from_start = self._expired_seen == _START
        for _ in range(READS_A_SWEEP):
            wanted = limit - removed
            found = self._next_expired(now, wanted)
            for address, memo_until, row in found:
                if not is_sound(address, row):
                    # Its time of expiry may be damaged too. A reader gets CorruptRecord.
                    continue
                remembered = type(memo_until) is float and memo_until > now
                if row.alive:
                    expired.append((address, row.head))
                self._remove(address, row, memo_until if remembered else None)
                removed += 1 if row.alive or not remembered else 0
            if removed == limit or (len(found) < wanted and from_start):
                break
            # At the end, read the rows before the first one of this sweep too.
            from_start = from_start or len(found) < wanted
        return Swept(expired, removed + self._sweep_leases_and_memos(limit - removed, now))

    def _next_expired(self, now: float, limit: int) -> list[tuple[Address, Any, Row]]:
        """Return expired rows behind those that were returned before. Fewer than ``limit`` are the last ones."""
        after_expiry, after_row = self._expired_seen
        bindings = {
            "now": now,
            "lease_now": self._rows.lease_clock(),
            "after_expiry": after_expiry,
            "after_row": after_row,
            "limit": limit,
        }
        found = [
            (rowid, Address(namespace, key), memo_until, Row(*columns))
            for rowid, namespace, key, memo_until, *columns in self._rows.read(QUERIES["expired"], bindings)
        ]
        self._expired_seen = (found[-1][3].expires_at, found[-1][0]) if len(found) == limit else _START
        return [(address, memo_until, row) for _, address, memo_until, row in found]

    def _remove(self, address: Address, row: Row, memo_until: float | None) -> None:
        """Remove an expired row. A memo is kept for a day, even after its record has expired."""
        if row.alive:
            self._rows.drop_contents(address)
        if memo_until is not None:
            left = Row(tags=row.tags, expires_at=memo_until)
            left.checksum = checksum(address, left)
            self._rows.put(address, row, left)
        else:
            self._execute(QUERIES["drop_record"], address)
            self._execute(QUERIES["drop_memo"], address)
            self._rows.retag(address, row.tags, ())
        self._execute(QUERIES["drop_lease"], address)

    def _sweep_leases_and_memos(self, limit: int, now: float) -> int:
        removed = 0
        for namespace, key, number in self._rows.read(
            QUERIES["ended_leases"], {"lease_now": self._rows.lease_clock(), "limit": limit}
        ):
            self._execute(QUERIES["drop_lease"], (namespace, key))
            # Count only leases without a record.
            removed += number is None
        seen = self._rows.read(QUERIES["memos_after"], (*self._memos_seen, MEMOS_A_SWEEP))
        for namespace, key, until in seen:
            if type(until) is not float or until <= now:
                self._execute(QUERIES["drop_memo"], (namespace, key))
        self._memos_seen = seen[-1][:2] if len(seen) == MEMOS_A_SWEEP else ("", "")
        return removed
