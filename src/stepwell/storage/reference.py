"""The state of one address, and the effect of each operation on it.

``Header`` has the rules of writes, for all backends that run them in this process. ``Cell`` adds contents, memo and
lease: it is the reference for every backend, and the implementation of ``MemoryStorage`` and ``KeyValueStorage``.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from stepwell.errors import LeaseLost, RecordExists, RecordReplaced, StepwellError, TooLarge, VersionChanged
from stepwell.record import DAY, KEEP, Address, Change, Head, Queue, Range, Stored, Version
from stepwell.storage.operations import (
    Applied,
    Apply,
    Claim,
    Claimed,
    Get,
    Guard,
    Operation,
    Release,
    Result,
    Taken,
)

__all__ = ["Cell", "Header"]


#: The version of an address that was never written.
NEVER = Version(0, "")


@dataclass(slots=True)
class Header:
    """A record, or its tombstone, without its contents. Times are seconds since 1970."""

    version: Version = NEVER
    base: str = ""
    written_at: float = 0.0
    #: Whether there is a record, expired or not. Otherwise there is only a tombstone, a memo or a lease.
    alive: bool = False
    head: Head | None = None
    tags: tuple[str, ...] = ()
    #: Of all fields and parts with their names.
    size: int = 0
    #: Of a tombstone: when it can be removed.
    expires_at: float | None = None
    deadline: float | None = None
    queue: Queue | None = None
    queued_at: float = 0.0

    def visible(self, now: float) -> bool:
        """Return whether there is a record that has not expired."""
        return self.alive and not self.expired(now)

    def expired(self, now: float) -> bool:
        """Return whether it has expired. It is then hidden, and the next sweep removes it."""
        return self.expires_at is not None and self.expires_at <= now

    def refusal(self, guard: Guard, address: Address, now: float) -> StepwellError | None:
        """Return the error of a guard that is not met. The lease, which goes first, is not a part of the header."""
        if guard.base is not None and guard.base != self.base:
            return RecordReplaced(address.text)
        if guard.version is not None and (guard.version != self.version or not self.visible(now)):
            return VersionChanged(address.text)
        if guard.absent and self.visible(now):
            return RecordExists(address.text)
        return None

    def starts_anew(self, change: Change, now: float, *, held: bool) -> bool:
        """Return whether a write drops the old record, which has expired.

        An expired record is only hidden: a write by its holder restores it, any other write starts a new one.
        """
        return self.alive and self.expired(now) and (change.fresh or not held)

    def write(self, change: Change, now: float, size: int, *, held: bool) -> TooLarge | None:
        """Apply a change that does not delete the record; its contents will have this size."""
        if size > change.limit and size > self.size:
            return TooLarge("the record", size, change.limit)
        anew = self.starts_anew(change, now, held=held)
        over = self.expired(now)
        if change.replace or anew:
            self.base = change.write
        if anew:
            self.head, self.tags, self.deadline, self.expires_at, self.queue = None, (), None, None, None
        if change.head is not KEEP:
            self.head = change.head
        if change.tags is not KEEP:
            self.tags = change.tags
        if change.deadline is not KEEP:
            self.deadline = None if change.deadline is None else now + change.deadline
        if change.expiry is not KEEP:
            self.expires_at = None if change.expiry is None else now + change.expiry
        elif not self.alive or (held and over):
            self.expires_at = None
        if change.queue is not KEEP:
            self.queue, self.queued_at = change.queue, now
        number = self.version.number + 1
        self.version = Version(number if self.alive else max(number, int(now * 1e6)), change.write)
        self.alive, self.written_at, self.size = True, now, size
        return None

    def delete(self, change: Change, now: float) -> None:
        """Leave a tombstone, or with ``forget`` only a base, which shows the present holder that its record is gone."""
        if self.alive:
            self.version = Version(self.version.number + 1, change.write)
            self.base, self.written_at, self.alive = change.write, now, False
            # The tags stay, so that deleting a user's data finds the tombstone too.
            self.head, self.size, self.expires_at = None, 0, now + DAY
            self.deadline = self.queue = None
        if change.forget:
            self.version, self.base, self.expires_at, self.tags = NEVER, change.write, now, ()


@dataclass(slots=True)
class Cell(Header):
    """A record, or its tombstone, with its contents, its memo and its lease."""

    fields: dict[str, str] = field(default_factory=dict)
    parts: dict[str, str] = field(default_factory=dict)
    memo: str | None = None
    memo_until: float = 0.0
    token: str | None = None
    leased_until: float = 0.0
    #: The names of its parts, sorted; ``None`` until a range is needed.
    part_names: list[str] | None = None

    def do(self, operation: Operation, now: float) -> Result:
        """Apply one operation. If it fails, return the error and change nothing."""
        if self.base and self.version is NEVER and not self.leased(now):
            # The base of a forgotten record is kept only while the record is held.
            self.base: str = ""
        if isinstance(operation, Apply):
            return self._apply(operation, now)
        if isinstance(operation, Claim):
            return self._claim(operation, now)
        if isinstance(operation, Get):
            return self.stored(operation.parts) if self.visible(now) else None
        self._release(operation)
        return None

    def leased(self, now: float) -> bool:
        """Return whether it is held."""
        return self.token is not None and self.leased_until > now

    def removable(self, now: float) -> bool:
        """Return whether a sweep may remove it."""
        if self.leased(now):
            return False
        if self.alive:
            return self.expired(now)
        return self.memo_until <= now and (not self.version.number or self.expired(now))

    def remains(self, now: float) -> Cell | None:
        """Return what a sweep leaves behind: the memo of handled updates is kept for a day."""
        return type(self)(memo=self.memo, memo_until=self.memo_until, tags=self.tags) if self.memo_until > now else None

    def stored(self, parts: bool | Range | tuple[str, ...]) -> Stored:
        """Return a copy for a reader."""
        return Stored(
            version=self.version,
            base=self.base,
            written_at=self.written_at,
            head=self.head.text if self.head else None,
            fields=self.fields.copy(),
            tags=self.tags,
            expires_at=self.expires_at,
            deadline=self.deadline,
            parts=None if parts is False else self._chosen(parts),
            queue=self.queue,
        )

    def _chosen(self, parts: bool | Range | tuple[str, ...]) -> dict[str, str]:
        """Return a copy of these parts."""
        if isinstance(parts, Range):
            names = self._sorted_names()
            found = names[parts.span(names)]
            return {name: self.parts[name] for name in (reversed(found) if parts.reverse else found)}
        if isinstance(parts, tuple):
            return {name: self.parts[name] for name in parts if name in self.parts}
        return self.parts.copy()

    def _sorted_names(self) -> list[str]:
        if self.part_names is None:
            self.part_names = sorted(self.parts)
        return self.part_names

    def _claim(self, claim: Claim, now: float) -> Result:
        if self.token is not None and self.leased_until > now:
            if self.token != claim.token:
                return LeaseLost(claim.address.text) if claim.renew else Taken(self.leased_until - now)
        elif claim.renew:
            return LeaseLost(claim.address.text)
        self.token, self.leased_until = claim.token, now + claim.lease
        record = self.stored(parts=False) if self.visible(now) else None
        return Claimed(record=record, base=self.base, memo=self.memo if self.memo_until > now else None, now=now)

    def _release(self, release: Release) -> None:
        if self.token == release.token:
            self.token, self.leased_until = None, 0.0

    def _apply(self, apply: Apply, now: float) -> Result:
        change, guard = apply.change, apply.guard
        held = False
        if guard is not None:
            held = guard.token is not None
            refused = self._refused(guard, apply.address, now)
            if refused is not None:
                return refused
        if change.delete:
            self._delete(change, held, now)
        else:
            too_large = self._write(change, held, now)
            if too_large is not None:
                return too_large
        if change.memo is not KEEP and not change.forget:
            self.memo, self.memo_until = change.memo, now + DAY
        if held:
            self.token, self.leased_until = (self.token, now + apply.lease) if apply.then == "keep" else (None, 0.0)
        record = self.stored(parts=False) if apply.returning and self.alive else None
        return Applied(version=self.version, base=self.base, now=now, record=record)

    def _refused(self, guard: Guard, address: Address, now: float) -> StepwellError | None:
        token = guard.token
        if token is not None and (token != self.token or self.leased_until <= now):
            return LeaseLost(address.text)
        return self.refusal(guard, address, now)

    def _delete(self, change: Change, held: bool, now: float) -> None:
        if self.alive:
            self.fields, self.parts, self.part_names = {}, {}, None
        self.delete(change, now)
        if change.forget:
            self.memo, self.memo_until = None, 0.0
            if held or not self.leased(now):
                self.base = ""

    def _write(self, change: Change, held: bool, now: float) -> TooLarge | None:
        dropped = change.replace or self.starts_anew(change, now, held=held)
        too_large = self.write(change, now, self._size_after(change, dropped), held=held)
        if too_large is not None:
            return too_large
        if dropped:
            self.fields, self.parts, self.part_names = {}, {}, None
        for name in change.unset:
            self.fields.pop(name, None)
        self.fields.update(change.set)
        if change.drop is not None and self.parts:
            names = self._sorted_names()
            span = change.drop.span(names)
            for name in names[span]:
                del self.parts[name]
            del names[span]
        for name, text in change.parts.items():
            self._set_part(name, text)
        return None

    def _set_part(self, name: str, text: str | None) -> None:
        names = self.part_names
        if text is None:
            if self.parts.pop(name, None) is not None and names is not None:
                del names[bisect_left(names, name)]
            return
        if names is not None and name not in self.parts:
            insort(names, name)
        self.parts[name] = text

    def _size_after(self, change: Change, dropped: bool) -> int:
        fields = {} if dropped else self.fields
        parts = {} if dropped else self.parts
        size = 0 if dropped else self.size
        gone: set[str] = set()
        if change.drop is not None and parts:
            names = self._sorted_names()
            gone = set(names[change.drop.span(names)])
            size -= sum([weight(name, parts[name]) for name in gone])
        for name in set(change.unset):
            if name in fields and name not in change.set:
                size -= weight(name, fields[name])
        for name, text in change.set.items():
            size += weight(name, text) - weight(name, fields.get(name))
        for name, part in change.parts.items():
            size += weight(name, part) - weight(name, None if name in gone else parts.get(name))
        return size


def weight(name: str, text: str | None) -> int:
    """Return the size of a field or part with its name, in UTF-8 bytes.

    Example::

        from stepwell.engine import weight

        assert weight("name", "Ann") == 7
    """
    if text is None:
        return 0
    both = name + text
    return len(both) if both.isascii() else len(both.encode())
