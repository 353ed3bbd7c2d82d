"""For operators: the updates that wait in the inbox of a polling bot, and those that were set aside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from stepwell.codec.json import from_json, to_json
from stepwell.errors import StoredDataError
from stepwell.fsm import Update
from stepwell.log import Log
from stepwell.log.names import log_tag
from stepwell.record import INBOX, LOGS, Change, Stored
from stepwell.storage import Storage
from stepwell.storage.operations import Apply, Get
from stepwell.telegram.calls.reading import is_update
from stepwell.telegram.receiving.aside import ASIDE, FAILED
from stepwell.telegram.receiving.inbox import ATTEMPTS, KIND

__all__ = ["UnfinishedUpdate", "drop_aside", "retry_aside", "updates_aside", "updates_in_inbox"]


class UnfinishedUpdate(NamedTuple):
    """An update that is not handled."""

    update_id: int | None
    chat: int | None
    kind: str | None
    #: How often its process has ended.
    attempts: int
    #: Why it was set aside.
    why: str | None
    #: Its number in the log of updates that were set aside.
    entry: int | None
    #: ``None`` if it cannot be handled again.
    update: dict[str, Any] | None
    #: The key of that log.
    log: Any = None
    #: Where its handler has raised, and when.
    traceback: str | None = None
    at: float | None = None


async def updates_in_inbox(storage: Storage, bot: str) -> list[UnfinishedUpdate]:
    """Return the updates that were fetched and are not finished, in the order of their ids."""
    address = storage.address(INBOX, bot)
    stored: Stored | None = await storage.perform(Get(address, parts=True))
    if stored is None:
        return []
    seal = storage.seal(address)
    try:
        attempts = seal.data(stored.fields).get(ATTEMPTS, {})
    except StoredDataError:
        attempts = {}
    found: list[UnfinishedUpdate] = []
    for name, text in (stored.parts or {}).items():
        try:
            update = from_json(seal.body(KIND, name, text))
        except (StoredDataError, ValueError):
            found.append(UnfinishedUpdate(int(name), None, None, 0, "it is damaged", None, None))
        else:
            found.append(_seen(update, attempts.get(name, 0), None, None))
    return sorted(found, key=lambda each: each.update_id or 0)


async def updates_aside(
    storage: Storage, bot: str, *, log: Any = None, limit: int | None = None
) -> list[UnfinishedUpdate]:
    """Return the updates that were set aside, and then those whose handler has raised, each in their order.

    ``log``: only those of the log with this key. ``limit``: read no further log when there are so many.
    """
    if log is not None:
        is_ours = log == ASIDE or (isinstance(log, tuple) and len(log) == 3 and log[0] == FAILED)
        return await _updates_in(storage, bot, log) if is_ours else []
    found = await _updates_in(storage, bot, ASIDE)
    failed: list[UnfinishedUpdate] = []
    async for entry in storage.scan(LOGS, tag=log_tag(bot, FAILED)):
        if limit is not None and len(found) + len(failed) >= limit:
            break
        failed += await _updates_in(storage, bot, entry.key[1])
    return found + sorted(failed, key=lambda each: each.at or 0)


async def _updates_in(storage: Storage, bot: str, key: Any) -> list[UnfinishedUpdate]:
    found: list[UnfinishedUpdate] = []
    for number, value in await Log(storage, bot, key).read():
        try:
            update = from_json(value["update"])
        except ValueError:
            update = None
        if not is_update(update):
            seen = UnfinishedUpdate(
                value["update_id"], value["chat"], None, value["attempts"], value["why"], number, None
            )
        else:
            seen = _seen(update, value["attempts"], value["why"], number)
        found.append(seen._replace(log=key, traceback=value.get("traceback"), at=value.get("at")))
    return found


async def retry_aside(storage: Storage, bot: str, updates: Sequence[UnfinishedUpdate]) -> None:
    """Put updates that were set aside back into the inbox. The bot handles them after its next start."""
    address = storage.address(INBOX, bot)
    seal = storage.seal(address)
    parts: dict[str, str | None] = {
        str(each.update_id): seal.seal_body(KIND, str(each.update_id), to_json(each.update)) for each in updates
    }
    await storage.perform(Apply(address, Change(storage.ids(), parts=parts, limit=seal.limit)))
    await drop_aside(storage, bot, updates)


async def drop_aside(storage: Storage, bot: str, updates: Sequence[UnfinishedUpdate]) -> None:
    """Remove updates that were set aside."""
    for each in updates:
        if each.entry is not None:
            await Log(storage, bot, each.log or ASIDE).remove(each.entry)


def _seen(update: dict[str, Any], attempts: int, why: str | None, entry: int | None) -> UnfinishedUpdate:
    seen = Update.of(update)
    chat = None if seen.chat is None else seen.chat.id
    return UnfinishedUpdate(seen.update_id, chat, seen.kind, attempts, why, entry, update)
