"""What each operation does to the rows of one address, inside a transaction that somebody else ends."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from stepwell.errors import LeaseLost, RecordReplaced, StepwellError, TooLarge, VersionChanged
from stepwell.record import DAY, KEEP, Address, Change, Stored, Version
from stepwell.storage.cell import weight
from stepwell.storage.operations import Applied, Apply, Claim, Claimed, Get, Guard, Operation, Result, Taken
from stepwell.storage.sqlite_file import Connection
from stepwell.storage.sqlite_known import Known, KnownRecords
from stepwell.storage.sqlite_row import Row, update, written
from stepwell.storage.sqlite_schema import QUERIES

__all__ = ["Rows", "stored"]


_NOTHING = Row()


class Rows:
    """The operations on a connection's rows."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._execute: Callable[..., Any] = connection.cursor().execute
        self.known = KnownRecords()

    def do(self, operation: Operation, now: float) -> Result:
        """Make one operation; an error is returned, with nothing changed."""
        if isinstance(operation, Apply):
            return self._apply(operation, now)
        if isinstance(operation, Claim):
            return self._claim(operation, now)
        if isinstance(operation, Get):
            return self.get(operation, now)
        self._execute(_END_LEASE, (*operation.address, operation.token))
        if self._connection.changes():
            self._execute(_DROP_MARK, (*operation.address, now))
        return None

    def get(self, get: Get, now: float) -> Stored | None:
        """A record as readers see it. One statement, so that it needs no transaction."""
        query = _GET_WITH_PARTS if get.parts else _GET
        return stored(self.read(query, get.address), now, get.parts)

    def fields(self, address: Sequence[str]) -> dict[str, str]:
        """All fields of a record."""
        return dict(self.read(_FIELDS, address))

    def put(self, address: Sequence[str], old: Row | None, new: Row) -> None:
        """Write what differs of a record's row: an index is touched only if one of its columns is."""
        if old is None:
            self._execute(_ADD_RECORD, (*new, *address))
            return
        updates, values = update(old, new)
        self._execute(updates.always, (*values, *address))

    def _put_known(self, address: Sequence[str], old: Row, new: Row, token: str | None, now: float) -> bool:
        """The same, if the row is the old one, and the lease of the token, if there is one, runs."""
        updates, values = update(old, new)
        if token is None:
            self._execute(updates.unchanged, (*values, *address, old.number, old.write))
        else:
            self._execute(updates.held, (*values, *address, old.number, old.write, token, now))
        return bool(self._connection.changes())

    def read(self, query: str, bindings: Any) -> list[Any]:
        """All rows of a query. Text whose bytes were damaged comes back changed: its checksum tells."""
        try:
            found: list[Any] = self._execute(query, bindings).fetchall()
        except UnicodeDecodeError:
            found = self._execute(_as_bytes(query), bindings).fetchall()
            found = [tuple([_text(value) for value in row]) for row in found]
        return found

    def drop_contents(self, address: Sequence[str]) -> None:
        """Remove all fields and parts."""
        self._execute(_DROP_FIELDS, address)
        self._execute(_DROP_PARTS, address)

    def retag(self, address: Sequence[str], old: str | None, new: Sequence[str]) -> None:
        """Make the index of tags say what the record says."""
        before = set(_tags(old))
        for tag in before.difference(new):
            self._execute(_UNSET_TAG, (*address, tag))
        for tag in new:
            if tag not in before:
                self._execute(_SET_TAG, (*address, tag))

    def _claim(self, claim: Claim, now: float) -> Result:
        address, token, lease, renew = claim
        execute = self._execute
        execute(_EXTEND_LEASE if renew else _TAKE_LEASE, (*address, token, now + lease, now))
        if not self._connection.changes():
            return LeaseLost(address.text) if renew else Taken(self.read(_LEASE, address)[0][1] - now)
        rows = self.read(_CLAIMED, address)
        memo = None
        if rows and rows[-1][0] is None and rows[-1][2] is None:
            _, text, _, _, _, _, _, until, *_ = rows.pop()
            memo = text if until > now else None
        if not rows:
            return Claimed(None, "", memo, now)
        _, head, number, write, base, written_at, tags, expires_at, deadline, alive, flow, state, size = rows[0]
        record = None
        if alive and (expires_at is None or expires_at > now):
            row = Row(number, write, base, written_at, alive, flow, state, head, tags, size, expires_at, deadline)
            fields = {found[0]: found[1] for found in rows[1:]}
            self.known.put(address, Known.of(row, fields.copy()))
            record = _stored(row, fields)
        return Claimed(record, base, memo, now)

    def _apply(self, apply: Apply, now: float) -> Result:
        # Forgotten with that: work that is rolled back is done again, with the same write id.
        known = self.known.take(apply.address)
        applied = None if known is None else self._apply_to_known(apply, known, now)
        return self._apply_to_any(apply, now) if applied is None else applied

    def _apply_to_known(self, apply: Apply, known: Known, now: float) -> Applied | None:
        """A usual write, without reading the record first; ``None``, and nothing changed, if it is not usual."""
        address, change, guard, _, _, _ = apply
        row = known.row
        token = None
        if change.delete or change.replace or row.expired(now):
            return None
        if guard is not None:
            token, base, version = guard
            if version is not None or base not in (None, row.base):
                return None
        size = self._size_after(address, change, row, False, known.fields)
        if size > change.limit and size > row.size:
            return None
        new = written(row, change, now, size=size, held=token is not None)
        if not self._put_known(address, row, new, token, now):
            return None
        if token is not None:
            self._holds(apply, token, now, refused=False)
        return self._finish(apply, row, new, known.after(change, new), now)

    def _apply_to_any(self, apply: Apply, now: float) -> Result:
        address, change, guard, _, _, returning = apply
        found = self.read(_RECORD, address)
        old = Row._make(found[0]) if found else None
        row = old or _NOTHING
        token = fields = refused = None
        if guard is not None:
            token = guard.token
            refused = _refused(address, guard, row, now)
        size, anew = 0, False
        if refused is None and not change.delete:
            if returning:
                # Read now, they also tell how large they are.
                fields = self.fields(address) if row.alive else {}
            # An expired record is only hidden: its holder brings it back, anybody else starts anew.
            anew = bool(row.alive) and row.expired(now) and (change.fresh or token is None)
            size = self._size_after(address, change, row, anew or change.replace, fields)
            if size > change.limit and size > row.size:
                refused = TooLarge("the record", size, change.limit)
        if token is not None and not self._holds(apply, token, now, refused=refused is not None):
            return LeaseLost(address.text)
        if refused is not None:
            return refused
        if change.delete:
            return self._delete(apply, old, now)
        new = written(row, change, now, size=size, anew=anew, held=token is not None)
        self.put(address, old, new)
        if change.replace or anew or not row.alive:
            if row.alive:
                self.drop_contents(address)
            fields = {}
        known = None if fields is None else Known.of(row, fields).after(change, new)
        return self._finish(apply, row, new, known, now)

    def _finish(self, apply: Apply, old: Row, new: Row, known: Known | None, now: float) -> Applied:
        """Write what belongs to a row that was written, and remember the record if all of it is known."""
        address, change = apply.address, apply.change
        if new.tags != old.tags:
            self.retag(address, old.tags, _tags(new.tags))
        self._write_contents(address, change)
        if change.memo is not KEEP:
            self._execute(_SET_MEMO, (*address, change.memo, now + DAY))
        record = None
        if known is not None:
            self.known.put(address, known)
            record = _stored(new, known.fields.copy()) if apply.returning else None
        return Applied(Version(new.number, new.write), new.base, now, record)

    def _holds(self, apply: Apply, token: str, now: float, refused: bool) -> bool:
        """Whether the token's lease runs; if so, it is ended or extended, unless the write is refused."""
        address = apply.address
        if refused:
            return any(mine == token and until > now for mine, until in self.read(_LEASE, address))
        if apply.then == "keep":
            self._execute(_EXTEND_LEASE, (*address, token, now + apply.lease, now))
        else:
            self._execute(_END_RUNNING_LEASE, (*address, token, now))
        return bool(self._connection.changes())

    def _delete(self, apply: Apply, old: Row | None, now: float) -> Applied:
        address, change, guard, then, _, _ = apply
        held = guard is not None and guard.token is not None
        row = self._forget(apply, old, held, now) if change.forget else self._bury(apply, old, now)
        if held and then == "release" and not row.number:
            self._execute(_DROP_MARK, (*address, now))
        return Applied(Version(row.number, row.write), row.base, now, None)

    def _bury(self, apply: Apply, old: Row | None, now: float) -> Row:
        """Leave a tombstone."""
        address, change = apply.address, apply.change
        row = old or _NOTHING
        if row.alive:
            self.drop_contents(address)
            row = Row(row.number + 1, change.write, change.write, now, tags=row.tags, expires_at=now + DAY)
        if change.memo is not KEEP:
            # A memo always has a row to be swept with.
            row = row._replace(expires_at=max(row.expires_at or 0.0, now + DAY))
            self._execute(_SET_MEMO, (*address, change.memo, now + DAY))
        if row is not _NOTHING and row != old:
            self.put(address, old, row)
        return row

    def _forget(self, apply: Apply, old: Row | None, held: bool, now: float) -> Row:
        """Leave nothing."""
        address = apply.address
        self.drop_contents(address)
        self.retag(address, None if old is None else old.tags, ())
        for tag in () if apply.change.tags is KEEP else apply.change.tags:
            self._execute(_UNSET_TAG, (*address, tag))
        self._execute(_DROP_RECORD, address)
        self._execute(_DROP_MEMO, address)
        if held or not any(until > now for _, until in self.read(_LEASE, address)):
            return _NOTHING
        # While somebody else holds it, the base says that what they saw is gone; this mark goes with the lease.
        row = _NOTHING._replace(base=apply.change.write, expires_at=now)
        self.put(address, None, row)
        return row

    def _write_contents(self, address: Address, change: Change) -> None:
        execute = self._execute
        namespace, key = address
        for name in change.unset:
            execute(_UNSET_FIELD, (namespace, key, name))
        for name, text in change.set.items():
            execute(_SET_FIELD, (namespace, key, name, text))
        for name, part in change.parts.items():
            if part is None:
                execute(_UNSET_PART, (namespace, key, name))
            else:
                execute(_SET_PART, (namespace, key, name, part))

    def _size_after(
        self, address: Address, change: Change, row: Row, dropped: bool, fields: dict[str, str] | None
    ) -> int:
        if dropped or not row.alive:
            return sum([weight(name, text) for name, text in (*change.set.items(), *change.parts.items())])
        size = row.size
        for name in change.unset:
            if name not in change.set:
                size -= self._weight(_FIELD_SIZE, address, name, fields)
        for name, text in change.set.items():
            size += weight(name, text) - self._weight(_FIELD_SIZE, address, name, fields)
        for name, part in change.parts.items():
            size += weight(name, part) - self._weight(_PART_SIZE, address, name)
        return size

    def _weight(self, query: str, address: Address, name: str, known: dict[str, str] | None = None) -> int:
        if known is not None:
            return weight(name, known.get(name))
        found = self._execute(query, (*address, name)).fetchall()
        length: int = found[0][0] + weight(name, "") if found else 0
        return length


def stored(rows: list[tuple[Any, ...]], now: float, parts: bool = False) -> Stored | None:
    """A record from the rows of the query ``get``: its own first, then those of its fields and parts."""
    if not rows or rows[0][0] is not None:
        return None
    _, head, number, write, base, written_at, tags, expires_at, deadline = rows[0]
    if expires_at is not None and expires_at <= now:
        return None
    row = Row(number, write, base, written_at, 1, None, None, head, tags, 0, expires_at, deadline)
    if not parts:
        return _stored(row, {found[0]: found[1] for found in rows[1:]})
    record = _stored(row, {found[0]: found[1] for found in rows[1:] if found[2] is None})
    record.parts = {found[0]: found[1] for found in rows[1:] if found[2] is not None}
    return record


def _stored(row: Row, fields: dict[str, str]) -> Stored:
    version = Version(row.number, row.write)
    return Stored(version, row.base, row.written_at, row.head, fields, _tags(row.tags), row.expires_at, row.deadline)


def _refused(address: Address, guard: Guard, row: Row, now: float) -> StepwellError | None:
    """What the guard says of the record; who holds it is not looked at here."""
    _, base, version = guard
    if base is not None and base != row.base:
        return RecordReplaced(address.text)
    if version is not None and (version != (row.number, row.write) or not row.alive or row.expired(now)):
        return VersionChanged(address.text)
    return None


def _tags(text: str | None) -> tuple[str, ...]:
    try:
        tags = json.loads(text) if text else ()
    except ValueError:
        # Damaged, and only an index: what was tagged can still be read, replaced and removed.
        return ()
    return tuple([tag for tag in tags if type(tag) is str]) if type(tags) is list else ()


def _as_bytes(query: str) -> str:
    """The same query with its texts as bytes."""
    columns = [f"c{number}" for number in range(_WIDTHS[query])]
    chosen = ", ".join(f"CASE typeof({c}) WHEN 'text' THEN CAST({c} AS BLOB) ELSE {c} END" for c in columns)
    return f"WITH damaged ({', '.join(columns)}) AS ({query}) SELECT {chosen} FROM damaged"  # noqa: S608


def _text(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


_GET = QUERIES["get"]
_GET_WITH_PARTS = QUERIES["get_with_parts"]
_LEASE = QUERIES["lease"]
_CLAIMED = QUERIES["claimed"]
_RECORD = QUERIES["record"]
_FIELDS = QUERIES["fields"]
_FIELD_SIZE = QUERIES["field_size"]
_PART_SIZE = QUERIES["part_size"]
_TAKE_LEASE = QUERIES["take_lease"]
_EXTEND_LEASE = QUERIES["extend_lease"]
_END_LEASE = QUERIES["end_lease"]
_END_RUNNING_LEASE = QUERIES["end_running_lease"]
_ADD_RECORD = QUERIES["add_record"]
_DROP_RECORD = QUERIES["drop_record"]
_DROP_MARK = QUERIES["drop_mark"]
_SET_FIELD = QUERIES["set_field"]
_UNSET_FIELD = QUERIES["unset_field"]
_DROP_FIELDS = QUERIES["drop_fields"]
_SET_PART = QUERIES["set_part"]
_UNSET_PART = QUERIES["unset_part"]
_DROP_PARTS = QUERIES["drop_parts"]
_SET_MEMO = QUERIES["set_memo"]
_DROP_MEMO = QUERIES["drop_memo"]
_SET_TAG = QUERIES["set_tag"]
_UNSET_TAG = QUERIES["unset_tag"]

#: How many columns a query that gives stored text has.
_WIDTHS = {
    **dict.fromkeys((_GET, _GET_WITH_PARTS), 9),
    **{QUERIES[name]: 9 for name in ("page", "page_by_flow", "page_by_state", "page_by_tag")},
    _CLAIMED: 13,
    _RECORD: 12,
    _FIELDS: 2,
    _LEASE: 2,
    QUERIES["over"]: 6,
    QUERIES["traces"]: 1,
    QUERIES["due"]: 2,
    QUERIES["leases_over"]: 3,
    QUERIES["memos_after"]: 3,
}
