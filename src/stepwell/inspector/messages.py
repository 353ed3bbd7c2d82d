"""Messages: updates that are not handled, calls that are not sent or were refused, and what people do about them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from stepwell import Storage
from stepwell.engine import INBOX, REFUSED, counted, decode_key, encode_key, masked_text
from stepwell.errors import MissingExtra, StepwellError, UsageError
from stepwell.fsm.engine import RefusedCall, refused_calls
from stepwell.inspector.flows import KnownFlows
from stepwell.inspector.requests import PAGE, Action, Given, Params, View, chosen, number, text
from stepwell.inspector.subject import Subject
from stepwell.operate import audit
from stepwell.operate.outbox import (
    UnsentCalls,
    change_unsent,
    drop_refused,
    refused_call,
    send_refused_again,
    unsent_calls,
)
from stepwell.operate.outbox import reply as send_reply
from stepwell.operate.record import resolve
from stepwell.operate.records import bots
from stepwell.operate.runs import shown_value
from stepwell.web.display import as_json

__all__ = ["ACTIONS", "VIEWS"]

#: How many calls of each kind are listed.
LISTED = 200
#: How many are read to list the newest.
MOST_READ = 1_000


async def messages(subject: Subject, params: Params) -> dict[str, Any]:
    """Return the updates and calls of a bot that wait or failed."""
    storage = subject.storage
    names = await _bots(storage)
    bot = params.get("bot") or (names[0] if names else "")
    if not bot:
        return {"bots": [], "bot": "", "waiting": [], "aside": [], "unsent": [], "refused": [], "more": False}
    (waiting, aside), unsent, refused = await asyncio.gather(
        _updates(storage, bot), unsent_calls(storage, bot, limit=LISTED, most=2 * LISTED), _refused(storage, bot)
    )
    return {
        "bots": names,
        "bot": bot,
        "waiting": [_update_json(each) for each in waiting[:LISTED]],
        "aside": [_update_json(each) for each in aside[-LISTED:][::-1]],
        "unsent": [_unsent_json(each) for each in unsent],
        "refused": [_refused_json(each) for each in refused[:LISTED]],
        "more": max(len(waiting), len(aside), len(unsent), len(refused)) > LISTED,
    }


async def _bots(storage: Storage) -> list[str]:
    names = set(await bots(storage))
    names |= {str(entry.key) async for entry in storage.scan(INBOX)}
    looked = 0
    async for entry in storage.scan(REFUSED):
        looked += 1
        if looked > MOST_READ:
            break
        if isinstance(entry.key, tuple):
            names.add(entry.key[0])
    return sorted(names)


async def _updates(storage: Storage, bot: str) -> tuple[list[Any], list[Any]]:
    """Return the updates that wait in the inbox of a bot, and those that were set aside."""
    try:
        # Imported here because only bots of this library have an inbox, which need the bot extra.
        from stepwell.telegram.engine import updates_aside, updates_in_inbox
    except MissingExtra:
        return [], []
    waiting, aside = await asyncio.gather(updates_in_inbox(storage, bot), updates_aside(storage, bot, limit=MOST_READ))
    return waiting, aside


async def _refused(storage: Storage, bot: str) -> list[RefusedCall]:
    """Return the refused calls of a bot, the newest first of those that are read."""
    found: list[RefusedCall] = []
    async for each in refused_calls(storage, bot):
        found.append(each)
        if len(found) == MOST_READ:
            break
    return sorted(found, key=lambda each: each.at, reverse=True)


def _update_json(each: Any) -> dict[str, Any]:
    shown = {name: getattr(each, name) for name in ("update_id", "chat", "kind", "attempts", "entry", "at")}
    update = None if each.update is None else as_json(shown_value(each.update))
    return {
        **shown,
        "log": None if each.log is None else encode_key(each.log),
        "why": None if each.why is None else masked_text(each.why),
        "traceback": None if each.traceback is None else masked_text(each.traceback),
        "update": update,
    }


def _unsent_json(each: UnsentCalls) -> dict[str, Any]:
    calls = [{"method": method, "chat": chat} for method, chat in each.calls]
    return {"key": encode_key(each.key), "next_at": each.next_at, "attempts": each.attempts, "calls": calls}


def _refused_json(each: RefusedCall) -> dict[str, Any]:
    call = None if each.call is None else as_json(shown_value(each.call))
    return {**each._asdict(), "description": masked_text(each.description), "call": call}


async def _change_refused(
    storage: Storage, who: str, given: Given, change: Callable[..., Awaitable[bool]]
) -> dict[str, Any]:
    bot, places = text(given, "bot"), chosen(given, "chat", "number")
    done = 0
    for chat, place in places:
        refused = await refused_call(storage, bot, chat, place) if type(place) is int and place > 0 else None
        done += refused is not None and await change(storage, bot, refused, who=who)
    return {"done": done, "late": len(places) - done}


async def resend(storage: Storage, flows: KnownFlows, who: str, given: Given) -> dict[str, Any]:
    """Let the bot send calls again that were refused."""
    return await _change_refused(storage, who, given, send_refused_again)


async def drop_calls(storage: Storage, flows: KnownFlows, who: str, given: Given) -> dict[str, Any]:
    """Remove calls that were refused."""
    return await _change_refused(storage, who, given, drop_refused)


async def _change_unsent(storage: Storage, who: str, given: Given, *, drop: bool) -> dict[str, Any]:
    bot, keys = text(given, "bot"), [key for (key,) in chosen(given, "key")]
    known = {encode_key(each.key): each for each in await unsent_calls(storage, bot, limit=LISTED, most=2 * LISTED)}
    done = 0
    for key in keys:
        if key in known and await change_unsent(storage, known[key], drop=drop):
            done += 1
            what = f"{'dropped' if drop else 'to be sent now'}: the unsent calls of {bot} {key}"
            await audit.record_change(storage, who, what, audit.ChangedThing("record", bot, key))
    return {"done": done, "late": len(keys) - done}


async def send_now(storage: Storage, flows: KnownFlows, who: str, given: Given) -> dict[str, Any]:
    """Let the bot send calls now that wait for their next attempt."""
    return await _change_unsent(storage, who, given, drop=False)


async def drop_unsent(storage: Storage, flows: KnownFlows, who: str, given: Given) -> dict[str, Any]:
    """Drop calls that are not sent yet."""
    return await _change_unsent(storage, who, given, drop=True)


async def _change_updates(storage: Storage, who: str, given: Given, *, drop: bool) -> dict[str, Any]:
    from stepwell.telegram.engine import drop_aside, retry_aside, updates_aside

    bot, places = text(given, "bot"), chosen(given, "log", "entry")
    known: dict[tuple[Any, Any], Any] = {}
    for log in {log for log, _ in places if isinstance(log, str)}:
        # A key that is no log of updates has none.
        with suppress(StepwellError):
            known |= {(log, each.entry): each for each in await updates_aside(storage, bot, log=decode_key(log))}
    found = [known[place] for place in dict.fromkeys(places) if place in known]
    if drop:
        await drop_aside(storage, bot, found)
    else:
        found = [each for each in found if each.update is not None]
        await retry_aside(storage, bot, found)
    if found:
        what = f"{counted(len(found), 'update')} ({', '.join(str(each.update_id) for each in found)}) of {bot}"
        done = f"dropped {what}" if drop else f"put {what} back into the inbox"
        await audit.record_change(storage, who, done, audit.ChangedThing("messages", bot, ""))
    return {"done": len(found), "late": len(places) - len(found)}


async def retry_updates(storage: Storage, flows: KnownFlows, who: str, given: Given) -> dict[str, Any]:
    """Put updates back into the inbox; the bot handles them after its next start."""
    return await _change_updates(storage, who, given, drop=False)


async def drop_updates(storage: Storage, flows: KnownFlows, who: str, given: Given) -> dict[str, Any]:
    """Remove updates that were set aside."""
    return await _change_updates(storage, who, given, drop=True)


async def reply(storage: Storage, flows: KnownFlows, who: str, given: Given) -> dict[str, Any]:
    """Leave a message to the user of a conversation to its bot."""
    message, chat = text(given, "text"), given.get("chat")
    if chat is not None and type(chat) is not int:
        raise UsageError("chat must be the id of a chat")
    address = await resolve(storage, text(given, "bot"), text(given, "key"))
    await send_reply(storage, address, message, chat=chat, who=who)
    return {"outcome": "stored"}


async def changes(subject: Subject, params: Params) -> dict[str, Any]:
    """Return a page of the audit, the newest first."""
    before = number(params, "before") if params.get("before") else None
    found = await audit.recorded(subject.storage, before=before, limit=PAGE)
    rows = [{**each._asdict(), "subject": None if each.subject is None else each.subject[:3]} for each in found]
    return {"rows": rows, "before": found[-1].number if len(found) == PAGE else None}


VIEWS: Final[dict[str, View]] = {"messages": messages, "audit": changes}
ACTIONS: Final[dict[str, Action]] = {
    "reply": reply,
    "resend": resend,
    "drop_calls": drop_calls,
    "send_now": send_now,
    "drop_unsent": drop_unsent,
    "retry_updates": retry_updates,
    "drop_updates": drop_updates,
}
