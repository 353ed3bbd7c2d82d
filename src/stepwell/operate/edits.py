"""Edits of one record, guarded by the version that was shown, and the deletion of all records of a user or chat.

An edit claims the record first, so that it never overtakes a handler that holds it. It is refused with
``VersionChanged`` if the record has another version than the one that was shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from stepwell import Storage
from stepwell.engine import (
    AUDIT,
    BY_BOT,
    KEEP,
    NO_HEAD,
    Address,
    Applied,
    Apply,
    Change,
    Claim,
    Claimed,
    Get,
    Guard,
    Head,
    Keep,
    OpenedHead,
    Place,
    Release,
    Stored,
    Taken,
    Version,
    check_name,
    counted,
    decode_key,
    decode_namespace,
    encode_namespace,
    log_tag,
    quoted,
    replaced,
)
from stepwell.errors import Busy, CorruptRecord, InvalidOption, StepwellError, VersionChanged
from stepwell.fsm import FSM
from stepwell.fsm.engine import HISTORY, TIMEOUT, after_end, opened_extension, with_entry, with_kept, with_timers
from stepwell.operate.audit import ChangedThing, forget_values, record_change
from stepwell.operate.record import Missing, errors_of, shown_field, view

__all__ = [
    "Edit",
    "NoSuchField",
    "RecordBusy",
    "check_edit",
    "clear",
    "edit",
    "forget",
    "forget_all",
    "forget_traces",
    "has_traces",
    "records_of",
]

#: Seconds of the claim of an edit.
LEASE = 10.0


class RecordBusy(Busy):
    """A handler holds the record."""

    def __init__(self, place: str, waited: float) -> None:
        super().__init__(place, waited)
        self.args: tuple[object, ...] = (
            f"a handler still holds {place} after {waited:g} s, nothing was changed; try again later",
        )


class NoSuchField(StepwellError, LookupError):
    """A record does not have the field to remove."""

    def __init__(self, record: str, field: str) -> None:
        self.record: str = record
        self.field: str = field
        super().__init__(f"{record} has no field {quoted(field)}; nothing was changed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """The changes of one edit."""

    #: Entering a state ends the timer of the state before. Another flow begins without a history.
    flow: str | Keep | None = KEEP
    state: str | Keep | None = KEEP
    #: The revision of another flow.
    revision: int | None = None
    #: Seconds until the timeout of the state that is entered; ``None``: it gets no timer.
    timeout: float | None = None
    #: Data fields and their new values.
    fields: Mapping[str, Any] = field(default_factory=dict)
    #: Data fields to remove.
    unset: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """What changes, without the values of fields."""
        moved = [f"{name} to {to}" for name in ("flow", "state") if (to := getattr(self, name)) is not KEEP]
        return [*moved, *[f"field {name}" for name in (*self.fields, *self.unset)]]

    def check(self) -> None:
        """Raise ``InvalidOption`` if nothing changes, or a field is both set and removed, or a name is invalid."""
        if not self.names:
            raise InvalidOption("nothing to change; give FIELD=VALUE, a state, a flow or a field to remove")
        both = [name for name in self.unset if name in self.fields]
        if both:
            raise InvalidOption(f"the field {quoted(both[0])} is both set and removed; give one of them")
        check_name("the flow", self.flow)
        check_name("the state", self.state)


async def edit(
    storage: Storage, address: Address, changes: Edit, *, version: Version, who: str, wait: float = 5.0
) -> None:
    """Change a record that has this version. ``who`` is logged. Raises ``KeyMissing`` if it needs another key."""
    changes.check()
    seal = storage.seal(address)
    written = {seal.name(name): seal.field(seal.name(name), value) for name, value in changes.fields.items()}
    async with _claimed(storage, address, version, wait) as (token, claimed, stored):
        check_edit(storage, address, stored, changes)
        await _keep_damaged(storage, address, stored)
        head: Head | Keep = KEEP
        deadline: float | Keep | None = KEEP
        if changes.flow is not KEEP or changes.state is not KEEP:
            opened = _moved(_opened(storage, address, stored, changes), changes, address, claimed.now)
            head, deadline = seal.head(opened), opened.next_timer(claimed.now)
        change = Change(
            storage.ids(),
            head=head,
            set=written,
            unset=tuple(seal.name(name) for name in changes.unset),
            deadline=deadline,
            limit=seal.limit,
        )
        await _apply(storage, address, change, Guard(token, claimed.base, version))
    shown = view(storage, address, stored)
    moved = {name: to for name in ("flow", "state") if (to := getattr(changes, name)) is not KEEP}
    values = {name: shown_field(shown.flow, name, value) for name, value in changes.fields.items()}
    await record_change(
        storage, who, f"changed {', '.join(changes.names)} of {_name(address)}", ChangedThing.of(address, stored.tags),
        before={**{name: getattr(shown, name) for name in moved},
                **{name: shown.data[name] for name in (*values, *changes.unset) if name in shown.data}},
        after={**moved, **values},
    )  # fmt: skip


async def clear(storage: Storage, address: Address, *, version: Version, who: str, wait: float = 5.0) -> None:
    """End the conversation of a record that has this version: delete it, except for its profile.

    Raises ``KeyMissing`` if it needs another key.
    """
    async with _claimed(storage, address, version, wait) as (token, claimed, stored):
        _check_keys(storage, address, stored)
        await _keep_damaged(storage, address, stored)
        seal = storage.seal(address)
        try:
            left = after_end(opened_extension(seal.open_head(stored.head).extension, address))
        except CorruptRecord:
            left = NO_HEAD
        if left == NO_HEAD:
            change = Change(storage.ids(), delete=True)
        else:
            deadline = left.next_timer(claimed.now)
            change = Change(storage.ids(), replace=True, head=seal.head(left), deadline=deadline)
        await _apply(storage, address, change, Guard(token, claimed.base, version))
    shown = view(storage, address, stored)
    place = {"flow": shown.flow, "state": shown.state}
    before = {**{name: value for name, value in place.items() if value is not None}, **shown.data}
    await record_change(storage, who, f"cleared {_name(address)}", ChangedThing.of(address, stored.tags), before=before)


async def forget(storage: Storage, address: Address, *, version: Version, who: str, wait: float = 5.0) -> None:
    """Delete a record that has this version, with its profile, its memo and its copy in quarantine."""
    async with _claimed(storage, address, version, wait) as (token, claimed, stored):
        change = Change(storage.ids(), delete=True, forget=True, tags=stored.tags or KEEP)
        await _apply(storage, address, change, Guard(token, claimed.base, version))
    await storage.drop_quarantined(address)
    await forget_values(storage, subject := ChangedThing.of(address))
    await record_change(storage, who, f"forgot {_name(address)}", subject)


async def forget_traces(storage: Storage, address: Address, *, who: str, wait: float = 5.0) -> None:
    """Delete what a deleted record has left: its tombstone, its memo and its copy in quarantine."""
    async with _held(storage, address, wait) as (token, claimed):
        if claimed.record is not None:
            raise VersionChanged(address.text)
        change = Change(storage.ids(), delete=True, forget=True)
        await _apply(storage, address, change, Guard(token, claimed.base))
    await storage.drop_quarantined(address)
    await forget_values(storage, subject := ChangedThing.of(address))
    await record_change(storage, who, f"forgot the traces of {_name(address)}", subject)


async def has_traces(storage: Storage, address: Address, *, wait: float = 5.0) -> bool:
    """Return whether a deleted record has left a tombstone, a memo or a copy in quarantine."""
    async with _held(storage, address, wait) as (_, claimed):
        if claimed.record is None and (claimed.base or claimed.memo is not None):
            return True
    return await storage.quarantined(decode_namespace(address.namespace), decode_key(address.key)) is not None


async def records_of(storage: Storage, bot: str, *, user: int | None, chat: int | None, limit: int) -> list[Address]:
    """Return the addresses of a user or a chat, with those of logs, turns, and deleted records that left a trace."""
    tag = _tag(user, chat)
    found = await storage.traces(encode_namespace(bot, storage.limits), tag, limit=limit)
    for namespace in (*BY_BOT, AUDIT):
        found += await storage.traces(namespace, log_tag(bot, tag), limit=limit - len(found))
    return found


async def forget_all(storage: Storage, bot: str, *, user: int | None, chat: int | None, who: str) -> int:
    """Delete all records of a user or a chat in a bot, and return how many."""
    count = await FSM(bot, storage=storage, flows=[], run_timers=False).forget(user=user, chat=chat)
    await record_change(storage, who, f"forgot {counted(count, 'record')} of {_tag(user, chat)} in {bot}")
    return count


def _check_keys(storage: Storage, address: Address, stored: Stored) -> None:
    """Raise ``KeyMissing`` if a text of a record is encrypted with a key that this storage does not have.

    A write would mix texts of two keys, and no process could read the record any more.
    """
    storage.seal(address).check_keys(stored)


def check_edit(storage: Storage, address: Address, stored: Stored, changes: Edit) -> None:
    """Raise ``KeyMissing``, ``NoSuchField``, or ``InvalidOption`` for a path, if changes do not fit a record."""
    _check_keys(storage, address, stored)
    seal = storage.seal(address)
    for name in (*changes.fields, *changes.unset):
        outer = name.partition(".")[0]
        # A search reads such a name as a path.
        if seal.name(name) not in stored.fields and outer != name and seal.name(outer) in stored.fields:
            raise InvalidOption(
                f"{quoted(name)} is a path into the field {quoted(outer)}, and only whole fields can be changed; "
                f"give the new value of {quoted(outer)}"
            )
    for name in changes.unset:
        if seal.name(name) not in stored.fields:
            raise NoSuchField(_name(address), name)


async def _keep_damaged(storage: Storage, address: Address, stored: Stored) -> None:
    """Copy a damaged record to quarantine before it is changed."""
    if any(isinstance(error, CorruptRecord) for error in errors_of(storage, address, stored)):
        whole: Stored | None = await storage.perform(Get(address, parts=True))
        await storage.perform(storage.copy_of_damage(address, whole or stored))


def _name(address: Address) -> str:
    return f"{decode_namespace(address.namespace)} {address.key}"


def _tag(user: int | None, chat: int | None) -> str:
    return f"user:{user}" if user is not None else f"chat:{chat}"


@asynccontextmanager
async def _held(storage: Storage, address: Address, wait: float) -> AsyncIterator[tuple[str, Claimed]]:
    """Claim an address, and release it if the block does not write. Raises ``RecordBusy``."""
    await storage.ensure_open()
    loop = asyncio.get_running_loop()
    token, give_up = storage.ids(), loop.time() + wait
    while isinstance(claimed := await storage.perform(Claim(address, token, LEASE)), Taken):
        if loop.time() >= give_up:
            raise RecordBusy(address.text, wait)
        await asyncio.sleep(min(0.05, max(claimed.remaining, 0.001)))
    try:
        yield token, claimed
    finally:
        await storage.perform(Release(address, token))


@asynccontextmanager
async def _claimed(
    storage: Storage, address: Address, version: Version, wait: float
) -> AsyncIterator[tuple[str, Claimed, Stored]]:
    """Claim a record that has this version, and release it if the block does not write."""
    async with _held(storage, address, wait) as (token, claimed):
        if claimed.record is None:
            raise Missing(decode_namespace(address.namespace), address.key, "it was deleted meanwhile")
        if claimed.record.version != version:
            raise VersionChanged(address.text)
        yield token, claimed, claimed.record


async def _apply(storage: Storage, address: Address, change: Change, guard: Guard) -> Applied:
    applied: Applied = await storage.perform(Apply(address, change, guard))
    return applied


def _opened(storage: Storage, address: Address, stored: Stored, changes: Edit) -> OpenedHead:
    try:
        return storage.seal(address).open_head(stored.head)
    except CorruptRecord:
        if changes.flow is KEEP or changes.state is KEEP:
            raise
        # Both are given, so the damaged position is not needed.
        return NO_HEAD


def _moved(head: OpenedHead, changes: Edit, address: Address, now: float) -> OpenedHead:
    """Return the head of a conversation after a move by an operator, which replaces the timeout of its state."""
    place, kept = head.place, opened_extension(head.extension, address)
    state = place.state if changes.state is KEEP else changes.state
    if changes.flow is not KEEP and changes.flow != place.flow:
        place = Place(changes.flow, None if changes.state is KEEP else state, changes.revision)
        history: tuple[str, ...] = ()
        entered_at = with_entry("", now)
    else:
        history = kept.history if place.state is None else (*kept.history, place.state)[-HISTORY:]
        entered_at = with_entry("" if place.state is None else kept.entered_at, now)
        place = replaced(place, state=state)
    kept = replaced(kept, history=history, entered_at=entered_at, where=())
    due = None if changes.timeout is None else now + changes.timeout
    return with_timers(with_kept(replaced(head, place=place), kept), {TIMEOUT: due})
