"""Conversations: the list, one record, and its edits."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final

from stepwell import Storage
from stepwell.engine import ANY, KEEP, Address, Version, quoted
from stepwell.errors import Unsupported, UsageError
from stepwell.inspector import requests
from stepwell.inspector.flows import KnownFlows
from stepwell.inspector.requests import Action, Enough, Given, Params, View, fields, limited, number, text, value
from stepwell.inspector.subject import Subject
from stepwell.operate import edits
from stepwell.operate.record import Missing, RecordView, parsed_version, read, resolve, show_at, view
from stepwell.operate.records import RecordFilter, bots, check_bot, listed, places_of_chat
from stepwell.web.display import as_json

__all__ = ["ACTIONS", "VIEWS", "changed", "places"]

#: Of how many chats of one conversation the others are looked for.
MOST_CHATS = 3
#: Seconds that an edit waits for a handler that holds the record.
PATIENCE = 5.0


async def records(subject: Subject, params: Params) -> dict[str, Any]:
    """Return a page of the records of one bot that match a filter, and how many records were read for it."""
    storage = subject.storage
    names = await bots(storage)
    bot = params.get("bot") or (names[0] if names else "")
    page: dict[str, Any] = {"bots": names, "bot": bot, "rows": [], "after": None, "looked": 0, "complete": True}
    if not names:
        return page
    await check_bot(storage, bot)
    if key := params.get("key"):
        try:
            address = await resolve(storage, bot, key)
        except Missing:
            return page
        return page | {"rows": [_row(view(storage, address, await read(storage, address)))], "looked": 1}
    tags = [f"{name}:{number(params, name)}" for name in ("user", "chat") if params.get(name)]
    wanted = RecordFilter(
        # A name that is given but empty: records without a flow or state.
        flow=params["flow"] or None if "flow" in params else ANY,
        state=params["state"] or None if "state" in params else ANY,
        tags=(*tags, *([params["tag"]] if params.get("tag") else [])),
        older_than=number(params, "older") if params.get("older") else None,
        fields=fields(params),
        masked=True,
        damaged=params.get("damaged") == "1",
    )
    found: list[RecordView] = []
    read_to: list[str] = []
    after, on_look = params.get("after"), limited(page)
    try:
        async for each in listed(storage, bot, wanted, after=after, on_look=on_look, on_page=read_to.append):
            if len(found) == requests.PAGE:
                page["after"] = found[-1].key
                break
            found.append(each.record)
            page["looked"] = each.looked
    except Enough:
        page |= {"complete": False, "after": read_to[-1]}
    return page | {"rows": [_row(each) for each in found]}


def _row(record: RecordView) -> dict[str, Any]:
    return {
        "bot": record.bot,
        "key": record.key,
        "flow": record.flow,
        "state": record.state,
        "written_at": record.written_at,
        "deadline": record.deadline,
        "tags": list(record.tags),
        "damage": list(record.damage),
    }


async def record(subject: Subject, params: Params) -> dict[str, Any]:
    """Return one record."""
    storage = subject.storage
    address = await resolve(storage, params.get("bot", ""), params.get("key", ""))
    shown = await show_at(storage, address)
    chats = [tag.removeprefix("chat:") for tag in shown.tags if tag.startswith("chat:")]
    return {
        **record_json(shown),
        "chats": chats,
        "places": await places(storage, chats, [shown.bot], ("record", shown.key)),
    }


async def places(
    storage: Storage, chats: Sequence[int | str], names: Sequence[str], own: tuple[str, str] = ("", "")
) -> list[tuple[str, str, str]]:
    """Return the conversations in some chats, for the links between them. ``own``: the kind and key to leave out."""
    found: list[tuple[str, str, str]] = []
    with suppress(Unsupported):
        for chat in chats[:MOST_CHATS]:
            there = await places_of_chat(storage, chat, names)
            found += [each for each in there if (each[0], each[2]) != own]
    return found


def record_json(record: RecordView) -> dict[str, Any]:
    """Return a record as the page shows it: with its data truncated and its secrets masked."""
    return {**asdict(record), "data": as_json(record.data), "profile": as_json(record.profile)}


async def _record(storage: Storage, given: Given) -> tuple[Address, Version]:
    version = parsed_version(text(given, "version"))
    return await resolve(storage, text(given, "bot"), text(given, "key")), version


async def changed(storage: Storage, address: Address) -> dict[str, Any]:
    """Return a record after an edit, as its page shows it."""
    return {"record": record_json(await show_at(storage, address))}


async def set_state(storage: Storage, flows: KnownFlows, who: str, given: Given) -> dict[str, Any]:
    """Move a record to another state, or to a state of another flow; with ``timer``, the timer of the state starts."""
    address, version = await _record(storage, given)
    flow, state = text(given, "flow"), text(given, "state")
    known = flows.conversations.get(flow)
    if known is not None and state not in known.states:
        raise UsageError(
            f"flow {quoted(flow)} has no state {quoted(state)}; it has {', '.join(map(str, known.states))}"
        )
    before = view(storage, address, await read(storage, address))
    timer = None if known is None or given.get("timer") is not True else known.timeouts.get(state)
    changes = edits.Edit(
        flow=KEEP if flow == before.flow else flow, state=state, revision=known.revision if known else None,
        timeout=None if timer is None else timer.seconds,
    )  # fmt: skip
    await edits.edit(storage, address, changes, version=version, who=who, wait=PATIENCE)
    return await changed(storage, address)


async def set_field(storage: Storage, flows: KnownFlows, who: str, given: Given) -> dict[str, Any]:
    """Set a data field of a record to a value."""
    address, version = await _record(storage, given)
    changes = edits.Edit(fields={text(given, "field"): value(given)})
    await edits.edit(storage, address, changes, version=version, who=who, wait=PATIENCE)
    return await changed(storage, address)


async def remove_field(storage: Storage, flows: KnownFlows, who: str, given: Given) -> dict[str, Any]:
    """Remove a data field of a record."""
    address, version = await _record(storage, given)
    changes = edits.Edit(unset=(text(given, "field"),))
    await edits.edit(storage, address, changes, version=version, who=who, wait=PATIENCE)
    return await changed(storage, address)


async def clear(storage: Storage, flows: KnownFlows, who: str, given: Given) -> dict[str, Any]:
    """End the conversation of a record."""
    address, version = await _record(storage, given)
    await edits.clear(storage, address, version=version, who=who, wait=PATIENCE)
    return {}


async def forget(storage: Storage, flows: KnownFlows, who: str, given: Given) -> dict[str, Any]:
    """Delete a record with all traces."""
    address, version = await _record(storage, given)
    await edits.forget(storage, address, version=version, who=who, wait=PATIENCE)
    return {}


#: By the name of their route.
VIEWS: Final[dict[str, View]] = {"records": records, "record": record}
ACTIONS: Final[dict[str, Action]] = {
    "set_state": set_state,
    "set_field": set_field,
    "remove_field": remove_field,
    "clear": clear,
    "forget": forget,
}
