"""In the bot's process: reads, edits and restores records for the page.

A snapshot is a record as it is stored, as JSON; ``{}`` stands for no record. The playground keeps snapshots in memory
and never shows them, because secrets in them are not masked.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from stepwell import Storage
from stepwell.engine import KEEP, Address, Get, Slot, Stored, decode_key, decode_namespace, decode_value, replaced
from stepwell.errors import VersionChanged
from stepwell.fsm import FSM
from stepwell.fsm.engine import TIMEOUT, set_timer
from stepwell.operate import edits
from stepwell.operate.record import parsed_version, read, version_text, view
from stepwell.options import check_instance
from stepwell.web.display import as_json

__all__ = [
    "ReadRecord",
    "clear_record",
    "edit_record",
    "read_record",
    "restore_record",
    "shown_record",
    "snapshot_of",
    "time_out_now",
]

#: Seconds to wait for a handler that holds the record.
PATIENCE = 4.0
WHO = "playground"


class ReadRecord(NamedTuple):
    """A record for the page, ``None`` if there is none, and its snapshot."""

    record: dict[str, Any] | None
    snapshot: dict[str, Any]


async def read_record(storage: Storage, address: Address) -> ReadRecord:
    """Return the record at an address."""
    return shown_record(storage, address, await storage.perform(Get(address)))


def shown_record(storage: Storage, address: Address, stored: Stored | None) -> ReadRecord:
    """Return a stored record."""
    if stored is None:
        return ReadRecord(None, {})
    shown = view(storage, address, stored)
    record = {
        "version": shown.version,
        "flow": shown.flow,
        "state": shown.state,
        "history": list(shown.history),
        "waiting": len(shown.waiting),
        "deadline": shown.deadline,
        "expires_at": shown.expires_at,
        "data": as_json(shown.data),
        "profile": as_json(shown.profile),
        "error": "; ".join(shown.damage) or None,
    }
    return ReadRecord(record, snapshot_of(stored))


def snapshot_of(stored: Stored | None) -> dict[str, Any]:
    """Return a record as JSON, for ``restore_record``."""
    if stored is None:
        return {}
    return {
        "head": stored.head,
        "fields": dict(stored.fields),
        "tags": list(stored.tags),
        "written_at": stored.written_at,
        "expires_at": stored.expires_at,
        "deadline": stored.deadline,
    }


async def edit_record(storage: Storage, address: Address, request: dict[str, Any]) -> None:
    """Change the state and the data of a record that has the version in the request.

    ``data`` is the JSON text of all fields as the page shows them. Fields that are equal to the shown ones stay as they
    are, so that masked and truncated values are kept.
    """
    shown = as_json(view(storage, address, await read(storage, address)).data)
    given = json.loads(request["data"])
    check_instance(given, dict, 'the data must be a JSON object such as {"name": "Alice"}')
    changed = {name: value for name, value in given.items() if name not in shown or value != shown[name]}
    changes = edits.Edit(
        state=KEEP if request["state"] is None else request["state"],
        fields={name: decode_value(json.dumps(value)) for name, value in changed.items()},
        unset=tuple(name for name in shown if name not in given),
    )
    if changes.names:
        version = parsed_version(request["version"])
        await edits.edit(storage, address, changes, version=version, who=WHO, wait=PATIENCE)


async def clear_record(storage: Storage, address: Address, request: dict[str, Any]) -> None:
    """End the conversation of a record that has the version in the request."""
    version = parsed_version(request["version"])
    await edits.clear(storage, address, version=version, who=WHO, wait=PATIENCE)


async def restore_record(storage: Storage, address: Address, request: dict[str, Any]) -> None:
    """Restore the snapshot in the request, if the record still has the version in it; ``None`` stands for no record.

    Timers start again with their full time.
    """
    snapshot: dict[str, Any] = request["snapshot"]
    bot, key = decode_namespace(address.namespace), decode_key(address.key)
    async with Slot(storage, bot, key, wait=PATIENCE) as slot:
        if (None if slot.version is None else version_text(slot.version)) != request["version"]:
            raise VersionChanged(address.text)
        slot.delete()
        if not snapshot:
            await slot.commit()
            return
        seal, later = storage.seal(address), slot.now - snapshot["written_at"]
        head = seal.open_head(snapshot["head"])
        slot.head = replaced(head, timers={name: at + later for name, at in head.timers.items()})
        slot.data = seal.data(snapshot["fields"])
        expires_at = snapshot["expires_at"]
        expiry = None if expires_at is None else max(expires_at - snapshot["written_at"], 0.0)
        await slot.commit(tags=tuple(snapshot["tags"]), expiry=expiry, force=True)


async def time_out_now(fsm: FSM, key: Any) -> int:
    """Set the deadline of a record to now, fire all due timers, and return their number."""
    async with Slot(fsm.storage, fsm.bot, key, wait=fsm.wait, lease=fsm.lease) as slot:
        if TIMEOUT not in slot.timers:
            return 0
        set_timer(slot, TIMEOUT, slot.now)
        await slot.commit()
    return await fsm.tick()
