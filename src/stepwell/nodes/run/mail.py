"""Mail to a run: parts that any process adds to the record of a run without a claim, and that its runner uses.

A mail part is written together with a deadline in the past, so that a worker takes up a run without a runner. The
runner of a busy run detects the write by the version numbers of its commits. It drops a mail part with the commit that
uses it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal

from stepwell.errors import CorruptRecord, RecordReplaced, UnknownRun, VersionChanged
from stepwell.nodes.run.notices import wake_workers
from stepwell.nodes.run.table import MAIL, flow_index, run_head, table_of
from stepwell.record import KEEP, RUNS, Change, Head, Keep, Place
from stepwell.slot import Slot
from stepwell.storage import Storage
from stepwell.storage.operations import Apply, Get, Guard
from stepwell.storage.transport.wakeups import wake

__all__ = ["Kind", "LetterOf", "send", "topic_of"]

Kind = Literal["answer", "cancel", "child", "pause", "signal"]

#: The statuses of runs without a runner that mail may continue.
_WAKES: Final = frozenset({"parked", "sleeping"})


#: Returns the value of a mail part for a run at this place with this table, or ``None`` if there is nothing to send.
LetterOf = Callable[[Place, dict[str, Any]], Awaitable[Mapping[str, Any] | None]]


async def send(storage: Storage, flow_id: str, kind: Kind, message_of: LetterOf) -> bool:
    """Add a mail part to a run, and return whether it was added; raise ``UnknownRun`` if there is no run."""
    address = storage.address(RUNS, flow_id)
    while True:
        stored = await storage.perform(Get(address))
        if stored is None:
            raise UnknownRun(flow_id)
        try:
            opened = storage.seal(address).open_head(stored.head)
            place, table = opened.place, table_of(opened, address)
        except CorruptRecord as error:
            await storage.quarantine(address, stored, error)
            raise
        if table is None:
            raise UnknownRun(flow_id, state_only=True)
        message = await message_of(place, table)
        if message is None:
            return False
        # A later call reads a higher version, so its part comes after this one.
        name = f"{MAIL}{kind}:{stored.version.number:020d}{storage.ids()}"
        part = Slot(storage, RUNS, flow_id).seal_part(name, message)
        busy = table["status"] == "running"
        head: Head | Keep = KEEP
        if table.get("before", table["status"]) == "queued":
            # A worker reads the parts of a queued run only if its table says that there are some.
            head = storage.seal(address).head(run_head(place, {**table, "mail": True}, storage.limits, opened.timers))
        change = Change(
            storage.ids(),
            head=head,
            deadline=0.0 if busy or table["status"] in _WAKES else KEEP,
            expiry=storage.expiry_of(address),
            parts={name: part.text},
            limit=storage.seal(address).limit,
        )
        # A busy run writes often. Other runs change their status rarely, and the deadline depends on it.
        # Of two answers to one question, the later one must see the first.
        guard = Guard(base=stored.base) if busy and kind != "answer" else Guard(version=stored.version)
        try:
            await storage.perform(Apply(address, change, guard))
        except (VersionChanged, RecordReplaced):
            continue
        # Runners in other processes see the new version with their next commit or renewal.
        wake(storage.wake_key, topic_of(flow_id))
        if change.deadline is not KEEP:
            wake_workers(storage, flow_index(place.flow or "", place.revision or 1))
        return True


def topic_of(flow_id: str) -> str:
    """Return the topic that wakes a runner of this process when there is new mail."""
    return f"mail:{flow_id}"
