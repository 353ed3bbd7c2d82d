"""The lease on a run, and changes of its status by the task that has it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stepwell.nodes.history import BEFORE, HISTORY, VALUES
from stepwell.nodes.run.table import PARAMS, Retention, end_timers, run_table, set_table, timeout_timer
from stepwell.options import check_text
from stepwell.record import DAY, RUNS, Address, Queue, Stored
from stepwell.slot import Slot
from stepwell.storage.operations import Claim, Get, Release

if TYPE_CHECKING:
    from stepwell.storage import Storage

__all__ = ["LEASE", "cancel", "clock", "hold", "interrupt", "pause", "retry"]

#: The lease of a run in seconds, renewed with each node and by a timer. A run whose runner died is free after it.
LEASE: float = 10.0


def hold(storage: Storage, flow_id: str, *, wait: float, seconds: float | None = None) -> Slot:
    """Return the slot of a run, which one task holds at a time. ``seconds``: another lease than the usual one."""
    check_text(flow_id, "flow_id={}: give a non-empty string")
    return Slot(storage, RUNS, flow_id, wait=wait, lease=LEASE if seconds is None else seconds)


async def clock(storage: Storage, flow_id: str) -> float:
    """Return the time of the storage's clock."""
    if storage.clock is not None:
        return storage.clock()
    token = storage.ids()
    # No key is encoded like this. The lease of an unused address costs one row for a moment.
    address = Address(RUNS, f"{storage.address(RUNS, flow_id).key} {token}")
    claimed = await storage.perform(Claim(address, token, 1.0))
    await storage.perform(Release(address, token))
    return float(claimed.now)


async def cancel(slot: Slot, reason: str | None) -> None:
    """Commit that a run was cancelled, and release it. Its record is kept, for a day unless the run has ``keep``."""
    table = run_table(slot)
    table["status"], table["cancelled"] = "cancelled", reason or ""
    for name in ("open", "undo", "undos"):
        table.pop(name, None)
    keep: Retention = table.get("keep", False)
    expiry = None if keep is True else float(keep or DAY)
    set_table(slot, table)
    stored: Stored | None = await slot.storage.perform(Get(slot.address, parts=True))
    found = (stored.parts or {}) if stored is not None else {}
    names = tuple(name for name in found if not name.startswith((BEFORE, HISTORY, PARAMS, VALUES)))
    await slot.commit(timers=end_timers(table, slot.time()), expiry=expiry, queue=None, dropped_parts=names)


async def pause(slot: Slot, mail: Iterable[str]) -> None:
    """Commit that a run is paused, without this mail, and release it."""
    table = run_table(slot)
    if table["status"] == "queued":
        table.setdefault("before", "queued")
    table["status"], table["idle"] = "paused", slot.time()
    set_table(slot, table)
    await slot.commit(timers={}, queue=None, dropped_parts=tuple(mail))


async def retry(
    slot: Slot, queue: Queue, parts: Mapping[str, Any] | None = None, dropped_parts: Sequence[str] = ()
) -> None:
    """Commit that a run waits in a queue to continue at its position, and release it; write and drop these parts."""
    table = run_table(slot)
    if table["status"] in ("failed", "stuck"):
        # Somebody has decided to go on, whatever time has passed.
        table.pop("timeout", None)
    table.setdefault("before", table["status"])
    table["status"], table["idle"] = "queued", slot.time()
    if table["before"] == "queued":
        del table["before"]
    set_table(slot, table)
    await slot.commit(timers=timeout_timer(table), queue=queue, parts=parts, dropped_parts=dropped_parts)


async def interrupt(slot: Slot) -> None:
    """Commit that a run has no runner any more, so that the next worker continues it at once, and release it."""
    table = run_table(slot)
    if table["status"] == "running":
        table["interrupted"] = True
        set_table(slot, table)
        await slot.commit(deadline=0.0)
