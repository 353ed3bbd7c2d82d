"""The rules of get, claim, apply and release. They run inside a transaction of the caller."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from stepwell.codec.json import astuple
from stepwell.errors import (
    CorruptRecord,
    LeaseLost,
    StepwellError,
)
from stepwell.record import DAY, KEEP, Address, Change, Range, Stored
from stepwell.storage.operations import (
    Applied,
    Apply,
    Claim,
    Claimed,
    Get,
    Operation,
    Release,
    Result,
    Taken,
)
from stepwell.storage.reference import weight
from stepwell.storage.sqlite.columns import (
    COLUMNS,
    FIELDS_DIFFER,
    IS_MEMO,
    IS_RECORD,
    MISSING,
    NOT_AS_WRITTEN,
    NOTHING,
    Row,
    contents_of,
    header_of,
    is_sound,
    name_hash,
    record_of,
    row_and_sizes,
    row_of,
    salvaged,
    stored,
    tags_of,
    text_of,
    texts_of,
    update,
)
from stepwell.storage.sqlite.connection import Connection
from stepwell.storage.sqlite.parts import range_bindings, reading
from stepwell.storage.sqlite.schema import QUERIES

__all__ = ["LargeRecord", "Rows"]


class LargeRecord(StepwellError):
    """A record is too large to be read on the loop."""


class Rows:
    """The rules of get, claim, apply and release, on one connection.

    ``lease_clock`` gives the seconds that leases are measured in. Reading a record of more than ``most`` bytes raises
    ``LargeRecord``.
    """

    def __init__(self, connection: Connection, lease_clock: Callable[[], float], most: int | None = None) -> None:
        self._connection = connection
        self._use(connection.cursor())
        self._most = most
        self.lease_clock = lease_clock

    def _use(self, cursor: Any) -> None:
        self._execute: Callable[..., Any] = cursor.execute
        self._execute_many: Callable[..., Any] = cursor.executemany

    def run(self, operations: Sequence[Operation], now: float) -> list[Result]:
        """Run these operations. An error is returned, not raised, and then its operation has changed nothing."""
        results: list[Result] = []
        lease_now = self.lease_clock()
        for operation in operations:
            if isinstance(operation, Apply):
                results.append(self._apply(operation, now, lease_now))
            elif isinstance(operation, Claim):
                results.append(self._claim(operation, now, lease_now))
            elif isinstance(operation, Get):
                results.append(self.get(operation, now))
            else:
                self._release(operation, now)
                results.append(None)
        return results

    def get(self, get: Get, now: float) -> Stored | None:
        """Return a record as readers see it. This is one statement, so it needs no transaction."""
        address, wanted = get.address, get.parts
        query, bindings = reading(address, wanted)
        rows = self.read(query, bindings) if self._most is None else self._read_small_record(query, bindings, wanted)
        row, fields, parts = contents_of(rows)
        if wanted is False:
            return stored(address, row, fields, now)
        if isinstance(wanted, tuple):
            parts = {name: parts[name] for name in wanted if name in parts}
        complete = wanted.covers(len(parts)) if isinstance(wanted, Range) else wanted is True
        return stored(address, row, fields, now, parts, all_parts=complete)

    def fields(self, address: Sequence[str]) -> dict[str, str]:
        """Return all fields of a record."""
        return texts_of(self.read(QUERIES["fields"], address))

    def put(self, address: Sequence[str], old: Row | None, new: Row) -> None:
        """Write the columns of a record that differ. ``new`` has its checksum."""
        if old is None:
            self._execute(QUERIES["add_record"], (*astuple(new), *address))
        else:
            self._execute(*update(address, old, new))

    def read(self, query: str, bindings: Any) -> list[Any]:
        """Return all rows of a query. Damaged UTF-8 is returned with replaced characters: its checksum fails."""
        try:
            found: list[Any] = self._execute(query, bindings).fetchall()
        except UnicodeDecodeError:
            width = len(self._execute(query, bindings).get_description())
            found = self._execute(_as_bytes(query, width), bindings).fetchall()
            found = [tuple([text_of(value) for value in row]) for row in found]
        return found

    def drop_contents(self, address: Sequence[str]) -> None:
        """Remove all fields and parts."""
        self._execute(QUERIES["drop_fields"], address)
        self._execute(QUERIES["drop_parts"], address)

    def retag(self, address: Sequence[str], old: str | None, new: Sequence[str]) -> None:
        """Update the index of tags after the tags of a record have changed."""
        before = set(tags_of(old))
        for tag in before.difference(new):
            self._execute(QUERIES["unset_tag"], (*address, tag))
        for tag in new:
            if tag not in before:
                self._execute(QUERIES["set_tag"], (*address, tag))

    def _read_small_record(self, query: str, bindings: Sequence[Any], wanted: Any) -> list[Any]:
        """Return all rows of a query whose first row is the one of the record, or raise ``LargeRecord``."""
        try:
            cursor = self._execute(query, bindings)
            first = cursor.fetchone()
            if first is None:
                return []
            if first[0] != IS_RECORD or not self._is_large(first[_BYTES]):
                return [first, *cursor.fetchall()]
            if wanted is not True and not self._has_large_fields(bindings[:2]):
                # Most of it are parts, of which few may be wanted.
                rows, left = [first], self._most or 0
                for row in cursor:
                    left -= len(row[2])
                    if left < 0:
                        break
                    rows.append(row)
                else:
                    return rows
            # A statement that is left unfinished would keep its snapshot.
            cursor.close(True)
            self._use(self._connection.cursor())
            raise LargeRecord
        except UnicodeDecodeError:
            return self.read(query, bindings)

    def _is_large(self, size: Any) -> bool:
        return self._most is not None and isinstance(size, int) and size > self._most

    def _has_large_fields(self, address: Sequence[str]) -> bool:
        """Return whether the fields of a large record are large, and not only its parts."""
        found: list[Any] = self._connection.execute(QUERIES["fields_size"], address).fetchall()
        return bool(found[0][0] > (self._most or 0))

    def _claim(self, claim: Claim, now: float, lease_now: float) -> Result:
        address, token, lease, renew = claim.address, claim.token, claim.lease, claim.renew
        namespace, key = address
        self._execute(
            QUERIES["extend_lease"] if renew else QUERIES["take_lease"],
            (namespace, key, token, lease_now + lease, lease, lease_now),
        )
        if not self._connection.changes():
            if renew:
                return LeaseLost(address.text)
            return Taken(self.read(QUERIES["lease"], (namespace, key, lease_now))[0][1] - lease_now)
        found = self.read(QUERIES["claimed"], (namespace, key, now))
        memo = found.pop()[2] if found and found[-1][0] == IS_MEMO else None
        row, fields, _ = contents_of(found)
        base = row.base if row is not None and type(row.base) is str else ""
        return Claimed(
            record=stored(address, row, fields, now), base=base, memo=memo if type(memo) is str else None, now=now
        )

    def _release(self, release: Release, now: float) -> None:
        address, token = release.address, release.token
        self._execute(QUERIES["end_lease"], (*address, token))
        if self._connection.changes():
            self._execute(QUERIES["drop_mark"], (*address, now))

    def _apply(self, apply: Apply, now: float, lease_now: float) -> Result:
        address, change, guard = apply.address, apply.change, apply.guard
        token = None if guard is None else guard.token
        names = tuple(dict.fromkeys((*change.set, *change.unset))) if change.unset else tuple(change.set)
        old, sizes = self._row_and_sizes(address, names)
        row = old or NOTHING
        damage = None
        if old is not None and not is_sound(address, old):
            damage = NOT_AS_WRITTEN
        elif not row.alive and self.read(QUERIES["has_contents"], address)[0][0]:
            damage = MISSING
        if damage is not None:
            if not change.delete and (not change.replace or change.head is KEEP):
                return CorruptRecord(address.text, *damage)
            # A write that replaces or removes the whole record is allowed: it repairs the damage.
            row = salvaged(row)
        header, held = header_of(row), token is not None
        drops = not row.alive or change.replace or header.starts_anew(change, now, held=held)
        refused = None if guard is None else header.refusal(guard, address, now)
        contents = 0, 0, 0
        if refused is None and not change.delete:
            contents = _new_contents(change) if drops else self._contents_after(address, change, row, names, sizes)
            refused = header.write(change, now, contents[0], held=held)
        if token is not None and not self._holds(apply, token, lease_now, refused is not None):
            return LeaseLost(address.text)
        if refused is not None:
            return refused
        if change.delete:
            return self._delete(apply, old, row, now, lease_now)
        new = row_of(address, header, row, change, contents[1:])
        self.put(address, old, new)
        if drops and row.alive:
            self.drop_contents(address)
        if new.tags != row.tags:
            self.retag(address, row.tags, header.tags)
        self._write_contents(address, change, drops=drops)
        if change.memo is not KEEP:
            self._execute(QUERIES["set_memo"], (*address, change.memo, now + DAY))
        record = None
        if apply.returning:
            fields = self.fields(address)
            damage = None if sum(map(name_hash, fields)) == new.names else FIELDS_DIFFER
            record = record_of(new, fields, damage=damage)
        return Applied(header.version, header.base, now, record)

    def _write_contents(self, address: Address, change: Change, *, drops: bool) -> None:
        """Write fields and parts; ``drops``: the old ones are removed already."""
        execute = self._execute
        namespace, key = address
        for name in change.unset:
            execute(QUERIES["unset_field"], (namespace, key, name))
        for name, text in change.set.items():
            execute(QUERIES["set_field"], (namespace, key, name, text))
        drop = change.drop
        if drop is not None and not drops:
            execute(QUERIES["drop_range_reverse" if drop.reverse else "drop_range"], range_bindings(address, drop))
        if change.parts:
            self._write_parts(address, change.parts)

    def _row_and_sizes(self, address: Address, names: tuple[str, ...]) -> tuple[Row | None, tuple[int | None, ...]]:
        """Return the row before a change, and the sizes of these fields; ``None`` for what does not exist."""
        first = names[:_SIZES]
        found = self.read(row_and_sizes(len(first)), (*address, *first))
        if not found:
            return None, (None,) * len(names)
        (columns,) = found
        sizes = columns[_COLUMNS:]
        if rest := names[_SIZES:]:
            more = self._sizes(QUERIES["field_sizes"], address, rest)
            sizes += tuple([more.get(name) for name in rest])
        return Row(*columns[:_COLUMNS]), sizes

    def _holds(self, apply: Apply, token: str, lease_now: float, refused: bool) -> bool:
        """Return whether the token's lease runs; end or extend it, unless the write is refused."""
        address, then, lease = apply.address, apply.then, apply.lease
        namespace, key = address
        if refused:
            return any(holder == token for holder, _ in self.read(QUERIES["lease"], (namespace, key, lease_now)))
        if then == "keep":
            self._execute(QUERIES["extend_lease"], (namespace, key, token, lease_now + lease, lease, lease_now))
        else:
            self._execute(QUERIES["end_running_lease"], (namespace, key, token, lease_now))
        return bool(self._connection.changes())

    def _delete(self, apply: Apply, old: Row | None, row: Row, now: float, lease_now: float) -> Applied:
        address, change, guard, then = apply.address, apply.change, apply.guard, apply.then
        held = guard is not None and guard.token is not None
        header = header_of(row)
        header.delete(change, now)
        if row.alive or change.forget:
            self.drop_contents(address)
        if change.forget:
            self.retag(address, row.tags, ())
            for tag in () if change.tags is KEEP else change.tags:
                self._execute(QUERIES["unset_tag"], (*address, tag))
            self._execute(QUERIES["drop_record"], address)
            self._execute(QUERIES["drop_memo"], address)
            old = None
            if held or not self.read(QUERIES["lease"], (*address, lease_now)):
                return Applied(header.version, "", now)
        elif change.memo is not KEEP:
            # The sweep finds a memo by the row of its record.
            header.expires_at = max(header.expires_at or 0.0, now + DAY)
            self._execute(QUERIES["set_memo"], (*address, change.memo, now + DAY))
        if row.alive or header.expires_at is not None:
            new = row_of(address, header, row, change, (0, 0))
            if new != old:
                self.put(address, old, new)
        if held and then == "release" and not header.version.number:
            self._execute(QUERIES["drop_mark"], (*address, now))
        return Applied(header.version, header.base, now)

    def _write_parts(self, address: Address, parts: Mapping[str, str | None]) -> None:
        namespace, key = address
        if unset := [(namespace, key, name) for name, part in parts.items() if part is None]:
            self._execute_many(QUERIES["unset_part"], unset)
        if len(unset) < len(parts):
            texts = [(namespace, key, name, part) for name, part in parts.items() if part is not None]
            self._execute_many(QUERIES["set_part"], texts)

    def _contents_after(
        self, address: Address, change: Change, row: Row, changed: tuple[str, ...], sizes: tuple[int | None, ...]
    ) -> tuple[int, int, int]:
        """Return the columns ``bytes``, ``names`` and ``part_names`` of a record after a change.

        ``sizes``: the sizes of the changed fields before it.
        """
        size, names, part_names = row.bytes, row.names, row.part_names
        texts, parts = change.set, change.parts
        for name, before in zip(changed, sizes, strict=True):
            text = texts.get(name)
            size += weight(name, text) - (before or 0)
            if (text is None) == bool(before):
                names += name_hash(name) if text is not None else -name_hash(name)
        gone: dict[str, int] = {}
        if (drop := change.drop) is not None:
            query = QUERIES["range_sizes_reverse" if drop.reverse else "range_sizes"]
            gone = dict(self._execute(query, range_bindings(address, drop)))
            size -= sum(gone.values())
            part_names -= sum(map(name_hash, gone))
        if parts:
            before_parts = self._sizes(QUERIES["part_sizes"], address, [name for name in parts if name not in gone])
            for name, part in parts.items():
                before = before_parts.get(name) or 0
                size += weight(name, part) - before
                if (part is None) == bool(before):
                    part_names += name_hash(name) if part is not None else -name_hash(name)
        return size, names, part_names

    def _sizes(self, query: str, address: Address, names: Iterable[str]) -> dict[str, int | None]:
        """Return the sizes of the fields or parts that exist."""
        namespace, key = address
        return dict(self._execute_many(query, [(namespace, key, name) for name in names]))


def _new_contents(change: Change) -> tuple[int, int, int]:
    """Return the columns ``bytes``, ``names`` and ``part_names`` of a record that has only what a change sets."""
    parts = {name: text for name, text in change.parts.items() if text is not None}
    size = sum([weight(name, text) for name, text in (*change.set.items(), *parts.items())])
    return size, sum(map(name_hash, change.set)), sum(map(name_hash, parts))


def _as_bytes(query: str, width: int) -> str:
    """Return the same query, which has this many columns, with its texts as bytes."""
    columns = [f"c{number}" for number in range(width)]
    chosen = ", ".join(f"CASE typeof({c}) WHEN 'text' THEN CAST({c} AS BLOB) ELSE {c} END" for c in columns)
    return f"WITH damaged ({', '.join(columns)}) AS ({query}) SELECT {chosen} FROM damaged"  # noqa: S608


#: The position of ``bytes`` in the first row of a query for a whole record.
_BYTES = 1 + COLUMNS.index("bytes")
_COLUMNS = len(COLUMNS)
#: A query for a row reads the sizes of this many fields too.
_SIZES = 4
