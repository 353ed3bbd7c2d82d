"""The writes of the page. Each is guarded by the version that was shown, and logged with who made it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from stepwell import Storage
from stepwell.engine import KEEP, Address, Version, decode_value, quoted
from stepwell.errors import InvalidOption, UsageError
from stepwell.inspector.flows import KnownFlows
from stepwell.inspector.views import record_json, run_json
from stepwell.operate import edits, runs
from stepwell.operate.fields import check_text
from stepwell.operate.record import parsed_version, read, resolve, show_at, view

__all__ = ["ACTIONS", "current"]

#: Seconds that a request waits for a handler that holds the record, and for a run to stop.
PATIENCE, STOPPING = 5.0, 20.0

Given = Mapping[str, Any]
Action = Callable[[Storage, KnownFlows, str, Given], Awaitable[dict[str, Any]]]


def _text(given: Given, name: str) -> str:
    value = given.get(name)
    if not isinstance(value, str) or not value:
        raise UsageError(f"{name} must be a text")
    return value


async def _record(storage: Storage, given: Given) -> tuple[Address, Version]:
    version = parsed_version(_text(given, "version"))
    return await resolve(storage, _text(given, "bot"), _text(given, "key")), version


async def _changed(storage: Storage, address: Address) -> dict[str, Any]:
    return {"record": record_json(await show_at(storage, address))}


async def set_state(storage: Storage, flows: KnownFlows, who: str, given: Given) -> dict[str, Any]:
    """Move a record to another state, or to a state of another flow."""
    address, version = await _record(storage, given)
    flow, state = _text(given, "flow"), _text(given, "state")
    known = flows.conversations.get(flow)
    if known is not None and state not in known.states:
        raise UsageError(
            f"flow {quoted(flow)} has no state {quoted(state)}; it has {', '.join(map(str, known.states))}"
        )
    before = view(storage, address, await read(storage, address))
    changes = edits.Edit(
        flow=KEEP if flow == before.flow else flow, state=state, revision=known.revision if known else None
    )
    await edits.edit(storage, address, changes, version=version, who=who, wait=PATIENCE)
    return await _changed(storage, address)


async def set_field(storage: Storage, flows: KnownFlows, who: str, given: Given) -> dict[str, Any]:
    """Set a data field of a record to a value."""
    address, version = await _record(storage, given)
    changes = edits.Edit(fields={_text(given, "field"): _value(given)})
    await edits.edit(storage, address, changes, version=version, who=who, wait=PATIENCE)
    return await _changed(storage, address)


async def remove_field(storage: Storage, flows: KnownFlows, who: str, given: Given) -> dict[str, Any]:
    """Remove a data field of a record."""
    address, version = await _record(storage, given)
    changes = edits.Edit(unset=(_text(given, "field"),))
    await edits.edit(storage, address, changes, version=version, who=who, wait=PATIENCE)
    return await _changed(storage, address)


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


async def retry(storage: Storage, flows: KnownFlows, who: str, given: Given) -> dict[str, Any]:
    """Put a failed, stuck or paused run into the queue again; a worker continues it."""
    run = await runs.check_unchanged(storage, _text(given, "id"), _text(given, "version"))
    if run.status not in ("failed", "stuck", "paused"):
        raise UsageError(
            f"run {quoted(run.flow_id)} is {run.status}; only failed, stuck and paused runs can be retried"
        )
    await runs.retry(storage, run, who=who)
    return {"run": await run_json(storage, run.flow_id)}


async def pause(storage: Storage, flows: KnownFlows, who: str, given: Given) -> dict[str, Any]:
    """Stop a run after the nodes that it runs now; no worker continues it."""
    run = await runs.check_unchanged(storage, _text(given, "id"), _text(given, "version"))
    try:
        async with asyncio.timeout(STOPPING):
            await runs.pause(storage, run.flow_id, who=who)
    except TimeoutError:
        raise UsageError(f"run {quoted(run.flow_id)} has not stopped yet; it stops when its node returns") from None
    return {"run": await run_json(storage, run.flow_id)}


async def cancel(storage: Storage, flows: KnownFlows, who: str, given: Given) -> dict[str, Any]:
    """End a run as cancelled."""
    run = await runs.check_unchanged(storage, _text(given, "id"), _text(given, "version"))
    reason = given.get("reason") or None
    if reason is not None and not isinstance(reason, str):
        raise UsageError("reason must be a text")
    try:
        async with asyncio.timeout(STOPPING):
            await runs.cancel(storage, run.flow_id, reason, who=who)
    except TimeoutError:
        raise UsageError(f"run {quoted(run.flow_id)} has not ended yet; it ends when its node returns") from None
    return {"run": await run_json(storage, run.flow_id)}


async def answer(storage: Storage, flows: KnownFlows, who: str, given: Given) -> dict[str, Any]:
    """Answer a wait of a run; a worker continues it."""
    run = await runs.check_unchanged(storage, _text(given, "id"), _text(given, "version"))
    wait = runs.wait_of(run, _text(given, "wait"))
    await runs.answer(storage, wait.id, _value(given), who=who)
    return {"run": await run_json(storage, run.flow_id)}


def _value(given: Given) -> Any:
    """Return the value in a request. It is text of JSON as the page shows it, so that no number is rounded."""
    text = _text(given, "value")
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        check_text(text, "the value")
        raise InvalidOption("the value is not JSON; put a text in double quotes") from None
    return decode_value(text)


async def current(storage: Storage, given: Given) -> dict[str, Any]:
    """Return what the record or run of a refused request is now."""
    if "id" in given:
        return {"run": await run_json(storage, _text(given, "id"))}
    return await _changed(storage, await resolve(storage, _text(given, "bot"), _text(given, "key")))


#: By the name of their route.
ACTIONS: Final[dict[str, Action]] = {
    "set_state": set_state,
    "set_field": set_field,
    "remove_field": remove_field,
    "clear": clear,
    "forget": forget,
    "retry": retry,
    "pause": pause,
    "cancel": cancel,
    "answer": answer,
}
