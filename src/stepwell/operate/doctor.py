"""Checks of a storage: its server, its records, its timers and its runs. Nothing is changed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from shlex import quote
from typing import Any

from stepwell import Storage
from stepwell.engine import (
    QUARANTINE,
    RUNS,
    TURNS,
    Address,
    Get,
    Query,
    Stored,
    counted,
    decode_key,
    decode_namespace,
    encode_namespace,
    log_tag,
)
from stepwell.errors import (
    KeyMissing,
    NewerSchema,
    NotEncrypted,
    StepwellError,
    StorageError,
    StorageUnavailable,
    StoredDataError,
    Unsupported,
)
from stepwell.fsm.engine import Machine
from stepwell.nodes import NodeFlow, Run
from stepwell.nodes.engine import run_of
from stepwell.operate.checks import check_encryption, check_settings
from stepwell.operate.checks.finding import Finding
from stepwell.operate.processes import ProcessView, processes
from stepwell.operate.record import errors_of, view
from stepwell.operate.records import bots, timers
from stepwell.operate.run_list import OPEN
from stepwell.operate.runs import masked_run, reason_of
from stepwell.operate.search import PAGE, pages
from stepwell.turns.engine import status_of

__all__ = ["Finding", "diagnose"]

#: Seconds after which a due timer or a queued run should have been taken.
LATE = 60.0
#: The deaths of its runner after which a run probably is their cause.
DEATHS = 2
#: The longest lease, in seconds, that is usual.
LONG_LEASE = 300.0


async def diagnose(
    storage: Storage,
    *,
    machines: Iterable[Machine] = (),
    flows: Iterable[NodeFlow] = (),
    limit: int | None = 10_000,
    patience: float | None = None,
) -> AsyncIterator[Finding]:
    """Yield the findings about a storage.

    ``machines`` and ``flows`` are the bots and node flows that use it: records in flows and states that they do not
    have are then reported. ``limit``: how many records of each bot to read; ``None``: all.
    ``patience``: that of the bots, if this storage was opened with another one.
    """
    try:
        await storage.open()
    except NewerSchema as error:
        yield Finding("schema", "fail", str(error), "install a newer release of Stepwell")
        return
    except StepwellError as error:
        yield _failure(str(error), error, "check the URL, the server and the network")
        return
    yield Finding("connection", "ok", f"connected to {storage.location}")
    settings: dict[str, Any] = {}
    try:
        settings = dict(await storage.settings())
        if patience is not None and "patience" in settings:
            settings["patience"] = patience
        for finding in check_settings(settings):
            yield finding
        yield _leases(settings)
    except StorageError as error:
        yield Finding("settings", "warn", f"the settings of the server cannot be read: {error}")
    known = {machine.bot: machine for machine in machines}
    try:
        async for finding in _contents(storage, settings, known, {flow._title() for flow in flows}, limit):
            yield finding
    except (StorageError, StoredDataError) as error:
        advice = "repair the server, or wait for its failover; then check again"
        yield _failure(f"the checks could not be completed: {error}", error, advice)


def _failure(what: str, error: StepwellError, advice: str) -> Finding:
    # The other errors, such as those of a full disk and of a damaged file, say what to do.
    return Finding("connection", "fail", what, advice if isinstance(error, StorageUnavailable) else "")


async def _contents(
    storage: Storage,
    settings: Mapping[str, Any],
    known: Mapping[str, Machine],
    flows: Collection[str],
    limit: int | None,
) -> AsyncIterator[Finding]:
    """Check the records, timers and runs."""
    running = await processes(storage, limit=PAGE)
    seen = counted(len(running), "process of bots and workers was", "processes of bots and workers were")
    yield Finding("processes", "ok", f"{seen} seen within the last minute")
    is_readable = True
    for bot in await bots(storage):
        async for finding in _records(storage, bot, known.get(bot), limit, checked=bool(known)):
            is_readable = is_readable and finding.check != "encryption"
            yield finding
        yield await _timers(storage, bot, sum(each.kind == "bot" and bot in each.names for each in running))
    async for finding in _runs(storage, flows, limit):
        is_readable = is_readable and finding.check != "encryption"
        yield finding
    async for finding in _turns(storage, limit):
        is_readable = is_readable and finding.check != "encryption"
        yield finding
    if "sealed" in settings and (is_readable or settings["allow_plaintext"]):
        yield check_encryption(settings)
    yield await _queues(storage, running)
    yield await _quarantine(storage)


def _leases(settings: Mapping[str, Any]) -> Finding:
    longest: dict[str, Any] | None = settings.get("longest_lease")
    if longest is None:
        return Finding("leases", "ok", "no record is held")
    seconds: float = longest["seconds"]
    name = f"{decode_namespace(longest['namespace'])} {longest['key']}"
    if seconds > LONG_LEASE:
        return Finding(
            "leases",
            "warn",
            f"{name} is held for {seconds:.0f} s more: if its holder has died, the record is blocked for so long",
            "use a shorter lease=...; a running holder renews its lease",
        )
    return Finding("leases", "ok", f"the lease that ends last is that of {name}, in {seconds:.0f} s")


async def _records(
    storage: Storage, bot: str, machine: Machine | None, limit: int | None, *, checked: bool
) -> AsyncIterator[Finding]:
    """Look for records that cannot be read, and for states that the bot does not declare, if flows are checked."""
    damaged: list[str] = []
    encrypted: list[StepwellError] = []
    undeclared: Counter[tuple[str, str | None, bool]] = Counter()
    looked = 0
    complete = True
    async for page in pages(storage, Query(encode_namespace(bot, storage.limits))):
        if limit is not None and looked >= limit:
            complete = False
            break
        for address, stored in page:
            looked += 1
            shown = view(storage, address, stored)
            if shown.damage:
                cause = _cause_of(errors_of(storage, address, stored))
                if cause is None:
                    damaged.append(shown.key)
                else:
                    encrypted.append(cause)
            elif machine is not None and shown.flow is not None:
                flow = machine.flows.get(shown.flow)
                if flow is None or (shown.state is not None and not flow.declares(shown.state)):
                    revision = shown.revision or 1
                    migrates = flow is not None and revision < flow.revision and flow.hook("migrate") is not None
                    undeclared[shown.flow, shown.state, migrates] += 1
    read = f"{'' if complete else 'the first '}{counted(looked, 'record')} of {bot!r}"
    if damaged:
        yield Finding(
            "records",
            "fail",
            f"{len(damaged)} of {read} cannot be read, the first is {damaged[0]}",
            f"stepwell ls {quote(bot)} --damaged shows them; restore them from a backup, or stepwell clear them: "
            "it keeps a copy in quarantine",
        )
    elif not encrypted:
        yield Finding("records", "ok", f"{read} can be read")
    for finding in _encryption(encrypted, read):
        yield finding
    if machine is None:
        if checked:
            what = f"the code that was given has no bot {bot!r}, so its flows and states were not checked"
            yield Finding("flows", "warn", what, "give its file or module too")
        return
    for (flow_name, state, migrates), count in undeclared.items():
        are = counted(count, f"record of {bot!r} is", f"records of {bot!r} are")
        lists = f"stepwell ls {quote(bot)} --flow {quote(flow_name)} --state {quote(state or '')} lists them"
        yield Finding(
            "flows",
            "warn",
            f"{are} in {flow_name}/{state}, which the code does not declare",
            f"{lists}; migrate() of the flow converts each at its next update, stepwell migrate converts all now"
            if migrates
            else f"{lists}; add migrate() to the flow, or move them with stepwell set",
        )
    if not undeclared:
        yield Finding("flows", "ok", f"the code declares the flows and states of {read}")


def _cause_of(errors: Iterable[StepwellError]) -> StepwellError | None:
    """Return the error of a record that is not damaged, but needs another key or is not encrypted."""
    return next((error for error in errors if isinstance(error, KeyMissing | NotEncrypted)), None)


def _encryption(errors: Iterable[StepwellError], read: str) -> Iterator[Finding]:
    """Say which keys are missing. ``errors`` has one error of each record, ``read`` names the records."""
    found: dict[tuple[str, str], list[str]] = {}
    for error in errors:
        if isinstance(error, NotEncrypted):
            what = "have plaintext"
            advice = (
                "find out which program wrote it; to encrypt records of a time before encryption, use "
                "?allow_plaintext=true and stepwell rotate-keys"
            )
        elif isinstance(error, KeyMissing):
            what = f"need the key with the id {error.key_id!r}"
            if error.known is None:
                what += ", and the storage was opened without keys"
                advice = "the storage is encrypted: write sealed+ before its URL, and set STEPWELL_KEYS"
            else:
                variable = "STEPWELL_KEYS" if error.known else "STEPWELL_NAMES_KEY"
                advice = f"the records are intact: add the key to {variable}"
        else:
            continue
        found.setdefault((what, advice), []).append(error.place)
    for (what, advice), places in found.items():
        yield Finding("encryption", "fail", f"{len(places)} of {read} {what}, the first is {places[0]}", advice)


async def _timers(storage: Storage, bot: str, running: int) -> Finding:
    now = (storage.clock or time.time)()
    late = await timers(storage, bot, before=now - LATE, limit=PAGE)
    if not late:
        return Finding("timers", "ok", f"no timer of {bot!r} is overdue")
    found = counted(len(late), f"timer of {bot!r} is", f"timers of {bot!r} are")
    are = f"{PAGE} or more timers of {bot!r} are" if len(late) == PAGE else found
    what = f"{are} overdue, the first for {now - late[0].deadline:.0f} s ({late[0].key})"
    listed = "stepwell timers --overdue lists them"
    if not running:
        return Finding("timers", "warn", f"{what}; no process of the bot was seen", f"start the bot; {listed}")
    advice = f"look for errors of on_timeout in the log of the bot; {listed}"
    return Finding(
        "timers",
        "warn",
        f"{what}; {counted(running, 'process of the bot was', 'processes of the bot were')} seen",
        advice,
    )


async def _runs(storage: Storage, known: Collection[str], limit: int | None) -> AsyncIterator[Finding]:
    found: dict[str, list[Run]] = {"failed": [], "stuck": []}
    unknown: Counter[str] = Counter()
    deadly: list[Run] = []
    damaged: list[str] = []
    encrypted: list[StepwellError] = []
    looked = 0
    async for entry in storage.scan(RUNS, page=PAGE):
        if limit is not None and looked >= limit:
            break
        looked += 1
        try:
            run = run_of(entry)
        except (KeyMissing, NotEncrypted) as error:
            encrypted.append(error)
            continue
        except StoredDataError:
            damaged.append(entry.address.key)
            continue
        if run is not None:
            if run.status in found:
                found[run.status].append(run)
            if run.recoveries >= DEATHS and run.status in OPEN and run.status != "stuck":
                deadly.append(run)
            if known and run.flow not in known:
                unknown[run.flow] += 1
    if damaged:
        what = f"{counted(len(damaged), 'run')} cannot be read, the first is {damaged[0]}"
        yield Finding("runs", "fail", what, "restore them from a backup")
    for finding in _encryption(encrypted, counted(looked, "run")):
        yield finding
    for status, runs in found.items():
        if runs:
            first, are = masked_run(runs[0]), counted(len(runs), "run is", "runs are")
            yield Finding(
                "runs",
                "warn",
                f"{are} {status}, the first is {first.flow_id} at node {first.node}: {reason_of(first)}",
                f"stepwell runs --status {status} lists them; fix the cause, then stepwell resume --status {status}",
            )
    if deadly:
        worst = max(deadly, key=lambda run: run.recoveries)
        what = f"run {worst.flow_id} has lost its runner {counted(worst.recoveries, 'time')} at node {worst.node}"
        others = f", and {counted(len(deadly) - 1, 'other')} too" if len(deadly) > 1 else ""
        advice = "it may kill its worker: look at the worker's log and memory, or stepwell cancel the run"
        yield Finding("runs", "warn", what + others, advice)
    for flow, count in unknown.items():
        what = f"{counted(count, 'run is', 'runs are')} of the flow {flow!r}, which the code does not have"
        yield Finding("runs", "warn", what, "give its module too, or stepwell cancel them")
    if not damaged and not encrypted and not unknown and not deadly and not any(found.values()):
        yield Finding("runs", "ok", f"{counted(looked, 'run')}, none of them failed or stuck")


async def _turns(storage: Storage, limit: int | None) -> AsyncIterator[Finding]:
    """Look for conversations with an agent that cannot be read, that have failed turns, or that no worker serves."""
    damaged: list[str] = []
    encrypted: list[StepwellError] = []
    failed: list[str] = []
    looked = 0
    async for page in pages(storage, Query(TURNS)):
        if limit is not None and looked >= limit:
            break
        for address, stored in page:
            looked += 1
            try:
                status_of(storage, address, stored)
            except (KeyMissing, NotEncrypted) as error:
                encrypted.append(error)
            except StoredDataError:
                damaged.append(address.key)
            else:
                if log_tag(decode_key(address.key)[0], "failed") in stored.tags:
                    failed.append(address.key)
    if not looked:
        return
    if damaged:
        what = f"{counted(len(damaged), 'conversation')} of turns cannot be read, the first is {damaged[0]}"
        yield Finding("turns", "fail", what, "restore them from a backup")
    for finding in _encryption(encrypted, counted(looked, "conversation")):
        yield finding
    if failed:
        have = counted(len(failed), "conversation has", "conversations have")
        what = f"{have} failed turns, the first is {failed[0]}"
        yield Finding("turns", "warn", what, "stepwell turns --failed lists them; stepwell turns BOT --failed --retry")
    now = (storage.clock or time.time)()
    late = [
        due
        for due in await storage.due(TURNS, before=now - LATE, limit=PAGE)
        if not await _is_held(storage, due.address)
    ]
    if late:
        wait = counted(len(late), "conversation waits", "conversations wait")
        what = f"{wait} for a worker, {late[0].address.key} for {now - late[0].deadline:.0f} s"
        yield Finding("turns", "warn", what, "start the bot, or look for errors of its turns in its log")
    if not damaged and not encrypted and not failed and not late:
        yield Finding("turns", "ok", f"{counted(looked, 'conversation')} of turns, none of them failed or late")


async def _queues(storage: Storage, running: list[ProcessView]) -> Finding:
    """Look for runs that no worker takes: overdue ones, and old ones at the head of a queue."""
    now = (storage.clock or time.time)()
    waiting = [
        (now - due.deadline, due.address)
        for due in await storage.due(RUNS, before=now - LATE, limit=10)
        if not await _is_held(storage, due.address)
    ]
    for name in await storage.queues(RUNS):
        # A run may have to wait for its partition for a long time.
        if "/" not in name:
            for address in await storage.queued(RUNS, name, limit=1):
                stored = await storage.perform(Get(address))
                if stored is not None and now - stored.written_at > LATE:
                    waiting.append((now - stored.written_at, address))
    if not waiting:
        return Finding("workers", "ok", "no run waits for a worker")
    age, address = max(waiting)
    flow = await _flow_of(storage, address)
    workers = sum(each.kind == "worker" and flow in each.names for each in running)
    what = f"runs wait for a worker, {decode_key(address.key)} of the flow {flow!r} for {age:.0f} s"
    if not workers:
        advice = "start a worker: async with worker([flow])"
        return Finding("workers", "warn", f"{what}; no worker of this flow was seen", advice)
    advice = "start more of them, or look for errors in their log"
    return Finding(
        "workers",
        "warn",
        f"{what}; {counted(workers, 'worker of this flow was', 'workers of this flow were')} seen",
        advice,
    )


async def _flow_of(storage: Storage, address: Address) -> str | None:
    stored: Stored | None = await storage.perform(Get(address))
    try:
        return None if stored is None else storage.seal(address).open_head(stored.head).place.flow
    except StoredDataError:
        return None


async def _is_held(storage: Storage, address: Address) -> bool:
    """Return whether a runner holds a run, as far as the storage can tell."""
    with suppress(Unsupported):
        return (await storage.beside(address)).holder is not None
    return False


async def _quarantine(storage: Storage) -> Finding:
    copies = 0
    first = ""
    async for entry in storage.scan(QUARANTINE):
        copies += 1
        first = first or entry.address.key
        if copies == PAGE:
            break
    if not copies:
        return Finding("quarantine", "ok", "there are no copies of damaged records")
    are = counted(copies, "copy of a damaged record is", "copies of damaged records are")
    what = f"{are} in quarantine, the first is of {first}"
    advice = "restore the records, or delete the copies with stepwell forget"
    return Finding("quarantine", "warn", what, advice)
