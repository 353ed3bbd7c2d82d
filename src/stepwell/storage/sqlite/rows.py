"""What each operation does to the rows of one address, inside a transaction that somebody else ends."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from stepwell.errors import CorruptRecord, LeaseLost, RecordReplaced, StepwellError, TooLarge, VersionChanged
from stepwell.record import DAY, KEEP, Address, Change, Damage, Stored, Version
from stepwell.storage.operations import Applied, Apply, Claim, Claimed, Get, Guard, Operation, Result, Taken
from stepwell.storage.reference import weight
from stepwell.storage.sqlite.cache import Known, KnownRecords
from stepwell.storage.sqlite.columns import Row, checksum, name_hash, sealed, update, written
from stepwell.storage.sqlite.connection import Connection
from stepwell.storage.sqlite.schema import QUERIES

__all__ = ["LargeRecord", "Rows", "is_sound", "stored"]


_NOTHING = Row()


class LargeRecord(StepwellError):
    """A record is too large to be read where it was asked for."""


class Rows:
    """The operations on a connection's rows. ``lease_clock`` is the clock that leases are kept on, in seconds."""

    def __init__(self, connection: Connection, lease_clock: Callable[[], float]) -> None:
        self._connection = connection
        self._execute: Callable[..., Any] = connection.cursor().execute
        self.lease_clock = lease_clock
        self.known = KnownRecords()
        #: Reading a record with more bytes raises ``LargeRecord``.
        self.most: int | None = None

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
        rows = self._read_record(query, get.address)
        row = Row._make(rows[0][1:]) if rows and rows[0][0] == _IS_RECORD else None
        fields = _texts({found[1]: found[2] for found in rows if found[0] == _IS_FIELD})
        if not get.parts:
            return stored(get.address, row, fields, now)
        parts = _texts({found[1]: found[2] for found in rows if found[0] == _IS_PART})
        return stored(get.address, row, fields, now, parts)

    def fields(self, address: Sequence[str]) -> dict[str, str]:
        """All fields of a record."""
        return _texts(dict(self.read(_FIELDS, address)))

    def put(self, address: Sequence[str], old: Row | None, new: Row) -> Row:
        """Write what differs of a record's row: an index is touched only if one of its columns is."""
        new = sealed(address, new)
        if old is None:
            self._execute(_ADD_RECORD, (*new, *address))
            return new
        updates, values = update(old, new)
        self._execute(updates.always, (*values, *address))
        return new

    def _put_known(self, address: Sequence[str], old: Row, new: Row, token: str | None, at: float) -> bool:
        """The same, if the row is the old one, and the lease of the token, if there is one, runs."""
        updates, values = update(old, new)
        if token is None:
            self._execute(updates.unchanged, (*values, *address, old.number, old.write))
        else:
            self._execute(updates.held, (*values, *address, old.number, old.write, token, at, at))
        return bool(self._connection.changes())

    def _read_record(self, query: str, address: Address) -> list[Any]:
        """All rows of a query that begins with the row of the record."""
        if self.most is None:
            return self.read(query, address)
        try:
            cursor = self._execute(query, address)
            first = cursor.fetchone()
            if first is None:
                return []
            if first[0] == _IS_RECORD and isinstance(first[_BYTES], int) and first[_BYTES] > self.most:
                # Not read to its end, it would go on looking at an old snapshot.
                cursor.close(True)
                self._execute = self._connection.cursor().execute
                raise LargeRecord
            return [first, *cursor.fetchall()]
        except UnicodeDecodeError:
            return self.read(query, address)

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
        at = self.lease_clock()
        self._execute(_EXTEND_LEASE if renew else _TAKE_LEASE, (*address, token, at + lease, lease, at))
        if not self._connection.changes():
            if renew:
                return LeaseLost(address.text)
            return Taken(self.read(_LEASE, (*address, at))[0][1] - at)
        rows = self._read_record(_CLAIMED, address)
        memo = None
        if rows and rows[-1][0] == _IS_MEMO:
            _, memo, until, *_ = rows.pop()
            if type(memo) is not str or (type(until) is float and until <= now):
                memo = None
        if not rows:
            return Claimed(None, "", memo, now)
        row = Row._make(rows[0][1:]) if rows[0][0] == _IS_RECORD else None
        fields = _texts({found[1]: found[2] for found in rows if found[0] == _IS_FIELD})
        record = stored(address, row, fields, now)
        if row is not None and record is not None and not isinstance(record.head, Damage):
            self.known.put(address, Known.of(row, fields.copy()))
        return Claimed(record, row.base if row is not None and type(row.base) is str else "", memo, now)

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
        contents = self._contents_after(address, change, row, False, known.fields)
        if contents[0] > change.limit and contents[0] > row.bytes:
            return None
        at = 0.0 if token is None else self.lease_clock()
        new = sealed(address, written(row, change, now, contents=contents, held=token is not None))
        if not self._put_known(address, row, new, token, at):
            return None
        if token is not None:
            self._holds(apply, token, at, refused=False)
        return self._finish(apply, row, new, known.after(change, new), now)

    def _apply_to_any(self, apply: Apply, now: float) -> Result:
        address, change, guard, _, _, returning = apply
        found = self.read(_RECORD, address)
        old = Row._make(found[0]) if found else None
        row = old or _NOTHING
        token = fields = refused = damage = None
        if old is not None and not is_sound(address, old):
            damage = _NOT_AS_WRITTEN
        elif not row.alive and self.read(_HAS_CONTENTS, address)[0][0]:
            damage = _MISSING
        if damage is not None:
            if not change.delete and (not change.replace or change.head is KEEP):
                return CorruptRecord(address.text, *damage)
            # A write that replaces or removes the whole record is allowed: it repairs the damage.
            row = _salvaged(row)
        if guard is not None:
            token = guard.token
            refused = _refused(address, guard, row, now)
        contents, anew = (0, 0, 0), False
        if refused is None and not change.delete:
            if returning:
                # Read now, they also tell how large they are.
                fields = self.fields(address) if row.alive else {}
            # An expired record is only hidden: its holder brings it back, anybody else starts anew.
            anew = bool(row.alive) and row.expired(now) and (change.fresh or token is None)
            contents = self._contents_after(address, change, row, anew or change.replace, fields)
            if contents[0] > change.limit and contents[0] > row.bytes:
                refused = TooLarge("the record", contents[0], change.limit)
        if token is not None and not self._holds(apply, token, self.lease_clock(), refused=refused is not None):
            return LeaseLost(address.text)
        if refused is not None:
            return refused
        if change.delete:
            return self._delete(apply, old, row, now)
        new = self.put(address, old, written(row, change, now, contents=contents, anew=anew, held=token is not None))
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
            whole = not apply.returning or sum(map(name_hash, known.fields)) == new.names
            if whole:
                self.known.put(address, known)
            if apply.returning:
                record = _stored(new, known.fields.copy(), None if whole else _FIELDS_DIFFER)
        return Applied(Version(new.number, new.write), new.base, now, record)

    def _holds(self, apply: Apply, token: str, at: float, refused: bool) -> bool:
        """Whether the token's lease runs; if so, it is ended or extended, unless the write is refused."""
        address = apply.address
        if refused:
            return any(mine == token for mine, _ in self.read(_LEASE, (*address, at)))
        if apply.then == "keep":
            self._execute(_EXTEND_LEASE, (*address, token, at + apply.lease, apply.lease, at))
        else:
            self._execute(_END_RUNNING_LEASE, (*address, token, at))
        return bool(self._connection.changes())

    def _delete(self, apply: Apply, old: Row | None, row: Row, now: float) -> Applied:
        address, change, guard, then, _, _ = apply
        held = guard is not None and guard.token is not None
        row = self._forget(apply, row, held, now) if change.forget else self._bury(apply, old, row, now)
        if held and then == "release" and not row.number:
            self._execute(_DROP_MARK, (*address, now))
        return Applied(Version(row.number, row.write), row.base, now, None)

    def _bury(self, apply: Apply, old: Row | None, row: Row, now: float) -> Row:
        """Leave a tombstone."""
        address, change = apply.address, apply.change
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

    def _forget(self, apply: Apply, old: Row, held: bool, now: float) -> Row:
        """Leave nothing."""
        address = apply.address
        self.drop_contents(address)
        self.retag(address, old.tags, ())
        for tag in () if apply.change.tags is KEEP else apply.change.tags:
            self._execute(_UNSET_TAG, (*address, tag))
        self._execute(_DROP_RECORD, address)
        self._execute(_DROP_MEMO, address)
        if held or not self.read(_LEASE, (*address, self.lease_clock())):
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

    def _contents_after(
        self, address: Address, change: Change, row: Row, dropped: bool, fields: dict[str, str] | None
    ) -> tuple[int, int, int]:
        """The columns ``bytes``, ``names`` and ``part_names`` after a change."""
        if dropped or not row.alive:
            parts = {name: text for name, text in change.parts.items() if text is not None}
            size = sum([weight(name, text) for name, text in (*change.set.items(), *parts.items())])
            return size, sum(map(name_hash, change.set)), sum(map(name_hash, parts))
        size, names, part_names = row.bytes, row.names, row.part_names
        if names is None or part_names is None:
            names = sum(map(name_hash, self.fields(address) if fields is None else fields))
            part_names = sum([name_hash(name) for (name,) in self.read(_PART_NAMES, address)])
        for name in set(change.unset):
            if name not in change.set and (before := self._weight(_FIELD_SIZE, address, name, fields)):
                size -= before
                names -= name_hash(name)
        for name, text in change.set.items():
            before = self._weight(_FIELD_SIZE, address, name, fields)
            size += weight(name, text) - before
            if not before:
                names += name_hash(name)
        for name, part in change.parts.items():
            before = self._weight(_PART_SIZE, address, name)
            size += weight(name, part) - before
            if (part is None) == bool(before):
                part_names += name_hash(name) if part is not None else -name_hash(name)
        return size, names, part_names

    def _weight(self, query: str, address: Address, name: str, known: dict[str, str] | None = None) -> int:
        if known is not None:
            return weight(name, known.get(name))
        found = self._execute(query, (*address, name)).fetchall()
        length: int = found[0][0] + weight(name, "") if found else 0
        return length


def stored(
    address: Address, row: Row | None, fields: dict[str, str], now: float, parts: dict[str, str] | None = None
) -> Stored | None:
    """A record as readers see it. Where it is damaged, decoding it raises ``CorruptRecord``."""
    damage = None
    if row is None:
        if not fields and not parts:
            return None
        row, damage = _salvaged(_NOTHING), _MISSING
    elif not is_sound(address, row):
        row, damage = _salvaged(row), _NOT_AS_WRITTEN
    elif not row.alive:
        if not fields and not parts:
            return None
        damage = _MISSING
    elif row.names is not None and sum(map(name_hash, fields)) != row.names:
        damage = _FIELDS_DIFFER
    elif row.expires_at is not None and row.expires_at <= now:
        return None
    if parts is not None and row.part_names is not None and sum(map(name_hash, parts)) != row.part_names:
        parts = {**parts, DAMAGED: Damage(*_PARTS_DIFFER)}
    return _stored(row, fields, damage, parts)


def _stored(
    row: Row, fields: dict[str, str], damage: tuple[str, str] | None = None, parts: dict[str, str] | None = None
) -> Stored:
    version, head = Version(row.number, row.write), row.head
    if damage is not None:
        # In both, because some read only flow and state, and some only the data.
        head = Damage(*damage, head)
        fields[DAMAGED] = Damage(*damage)
    tags = _tags(row.tags)
    return Stored(version, row.base, row.written_at, head, fields, tags, row.expires_at, row.deadline, parts)


def is_sound(address: Sequence[str], row: Row) -> bool:
    """Whether a row is as it was written. One without a checksum only has its types checked."""
    if row.checksum is None and row.names is None and row.part_names is None:
        return all(type(value) in kinds for value, kinds in zip(row, _TYPES, strict=False))
    try:
        return row.checksum == checksum(address, row)
    except struct.error:
        return False


def _salvaged(row: Row) -> Row:
    """A row that can be replaced or removed, from a damaged one."""
    number, write, base, _, _, _, _, head, tags, *_ = row
    return Row(
        number if type(number) is int and 0 <= number < _LARGEST else 0,
        write if type(write) is str else "",
        base if type(base) is str else "",
        alive=1,
        head=head if type(head) is str else None,
        tags=tags if type(tags) is str and _tags(tags) else None,
    )


def _texts(texts: dict[Any, Any]) -> dict[str, str]:
    """Names and texts. What is not even text is made one: its checksum tells."""
    if _TEXT.issuperset(map(type, texts)) and _TEXT.issuperset(map(type, texts.values())):
        return texts
    return {str(_text(name)): str(_text(text)) for name, text in texts.items()}


def _refused(address: Address, guard: Guard, row: Row, now: float) -> StepwellError | None:
    """What the guard says of the record; who holds it is not looked at here."""
    _, base, version = guard
    if base is not None and base != row.base:
        return RecordReplaced(address.text)
    if version is not None and (version != (row.number, row.write) or not row.alive or row.expired(now)):
        return VersionChanged(address.text)
    return None


@lru_cache(maxsize=4096)
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


#: The name of a field or part that stands for what is missing; none that was written has it.
DAMAGED = "$damaged"
_MISSING = ("its row", "is missing, but its fields or parts are there")
_NOT_AS_WRITTEN = ("its row", "does not match its checksum")
_FIELDS_DIFFER = ("its fields", "are not the ones that were written")
_PARTS_DIFFER = ("its parts", "are not the ones that were written")
#: No version has a greater number.
_LARGEST = 1 << 62
#: What a row of the queries for whole records is, and where the size of the record is in its row.
_IS_RECORD, _IS_FIELD, _IS_PART, _IS_MEMO = range(4)
_BYTES = 1 + Row._fields.index("bytes")
_TEXT = frozenset({str})
_MAYBE_TEXT = frozenset({str, type(None)})
_NUMBER, _TIME, _MAYBE_TIME = frozenset({int}), frozenset({float}), frozenset({float, type(None)})
#: The types of the columns of a row, up to ``deadline``.
_TYPES = (
    *(_NUMBER, _TEXT, _TEXT, _TIME, _NUMBER),
    *(_MAYBE_TEXT, _MAYBE_TEXT, _MAYBE_TEXT, _MAYBE_TEXT, _NUMBER, _MAYBE_TIME, _MAYBE_TIME),
)


_GET = QUERIES["get"]
_GET_WITH_PARTS = QUERIES["get_with_parts"]
_LEASE = QUERIES["lease"]
_CLAIMED = QUERIES["claimed"]
_RECORD = QUERIES["record"]
_FIELDS = QUERIES["fields"]
_PART_NAMES = QUERIES["part_names"]
_HAS_CONTENTS = QUERIES["has_contents"]
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
    **dict.fromkeys((_GET, _GET_WITH_PARTS, _CLAIMED), 16),
    **{QUERIES[name]: 16 for name in ("page", "page_by_flow", "page_by_state", "page_by_tag")},
    _RECORD: 15,
    _FIELDS: 2,
    _PART_NAMES: 1,
    _HAS_CONTENTS: 1,
    _LEASE: 2,
    QUERIES["over"]: 18,
    QUERIES["traces"]: 1,
    QUERIES["due"]: 2,
    QUERIES["leases_over"]: 3,
    QUERIES["memos_after"]: 3,
}
