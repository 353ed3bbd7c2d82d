"""What needs the attention of an operator, the worst first: each with a text, and the page that shows it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from stepwell import Storage
from stepwell.engine import TURNS, Due, Query, counted, log_tag, quoted
from stepwell.errors import MissingExtra, StoredDataError, Unsupported
from stepwell.fsm.engine import refused_calls
from stepwell.inspector.flows import KnownFlows
from stepwell.operate.counts import AllCounts
from stepwell.operate.processes import LastHour, ProcessView, last_hour, processes
from stepwell.operate.queues import QueueView, queues
from stepwell.operate.records import bots, timers

__all__ = ["Problem", "Seen", "look", "of_counts", "of_processes"]

#: Seconds after its time from which a timer or a turn is overdue: a process that runs serves it within a second.
LATE: Final = 60.0
#: Seconds that a run may be the next one of a queue before the queue is slow.
SLOW: Final = 60.0
#: How many of one kind are counted, and of how many bots and queues.
MOST: Final = 50
#: The most processes that are read.
MOST_PROCESSES: Final = 500


class Problem(NamedTuple):
    """Something that needs a look."""

    #: Whether something is wrong; otherwise it only waits.
    is_bad: bool
    #: The status whose shape it is shown with.
    status: str
    text: str
    #: Since when, if that is known.
    since: float | None
    #: The page that shows it, with its parameters.
    page: str
    params: dict[str, str]


def of_counts(counts: AllCounts, flows: KnownFlows) -> Iterator[Problem]:
    """Yield runs that do not go on or wait for people, and conversations in states that their flow does not have."""
    sums: dict[str, tuple[int, bool, float | None]] = {}
    for run in counts.runs:
        number, more, oldest = sums.get(run.status, (0, False, None))
        times = [each for each in (oldest, run.oldest) if each]
        sums[run.status] = number + run.runs, more or run.more, min(times, default=None)
    for status in ("stuck", "failed", "paused"):
        if status in sums:
            number, more, oldest = sums[status]
            verb = ("has" if number == 1 else "have") if status == "failed" else ("is" if number == 1 else "are")
            text = f"{_many(number, more, 'run')} {verb} {status}"
            yield Problem(status != "paused", status, text, oldest, "runs", {"status": status})
    if "parked" in sums:
        number, more, oldest = sums["parked"]
        verb = "waits" if number == 1 else "wait"
        params = {"status": "parked", "sort": "-waiting"}
        text = f"{_many(number, more, 'run')} {verb} for an answer or for other runs"
        yield Problem(False, "parked", text, oldest, "runs", params)
    for state in counts.states:
        known = flows.conversations.get(state.flow or "")
        if known is not None and state.state is not None and state.state not in known.states:
            text = (
                f"{_many(state.records, state.more, 'conversation')} of {state.bot} in {quoted(state.state)}, a state "
            )
            text += f"that the flow {quoted(known.name)} does not have"
            params = {"bot": state.bot, "flow": known.name, "state": state.state}
            yield Problem(True, "stuck", text, state.oldest, "records", params)
    for turn in counts.turns:
        if turn.state == "asking":
            verb = "waits" if turn.conversations == 1 else "wait"
            text = f"{_many(turn.conversations, turn.more, 'turn')} of {turn.name} {verb} for the answer to a question"
            yield Problem(False, "asking", text, turn.oldest, "turns", {"state": "asking"})


def of_processes(
    hour: LastHour, running: Sequence[ProcessView], waiting: Sequence[QueueView], now: float
) -> Iterator[Problem]:
    """Yield the processes that have died and that no other one has replaced, and queues that are not worked off."""
    served = {(each.kind, name) for each in running for name in each.names}
    for gone in hour.stopped:
        missing = [name for name in gone.names if (gone.kind, name) not in served]
        if missing and not gone.ended:
            text = f"the {gone.kind} of {', '.join(missing)} has died (process {gone.pid} on {gone.host})"
            yield Problem(True, "gone", f"{text}, and no other runs", gone.seen_at, "overview", {})
    for queue in waiting:
        if queue.partition is not None:
            continue
        number, since = _many(queue.waiting, queue.more, "run"), getattr(queue.next, "idle_since", None)
        if ("worker", queue.flow) not in served:
            verb = "waits" if queue.waiting == 1 else "wait"
            text = f"{number} of {queue.flow} {verb} in the queue, and no worker of this flow was seen"
            yield Problem(True, "queued", text, since, "queue", {"name": queue.name})
        elif since is not None and now - since > SLOW:
            text = f"the next of {number} in the queue of {queue.flow} has not been taken yet"
            yield Problem(False, "queued", text, since, "queue", {"name": queue.name})


class Seen(NamedTuple):
    """What is read of a storage for the overview, beside the counts."""

    processes: list[ProcessView]
    hour: LastHour
    problems: list[Problem]


async def look(storage: Storage) -> Seen:
    """Return the processes, and what is wrong with them, with queues, updates, answers, turns and timers."""
    running, hour = await processes(storage, limit=MOST_PROCESSES), await last_hour(storage, limit=MOST_PROCESSES)
    found, waiting = await _of_storage(storage, running)
    now = (storage.clock or time.time)()
    return Seen(running, hour, [*found, *of_processes(hour, running, waiting, now)])


async def _of_storage(storage: Storage, running: Sequence[ProcessView]) -> tuple[list[Problem], list[QueueView]]:
    now = (storage.clock or time.time)()
    found: list[Problem] = []
    names = [*await bots(storage), *[name for each in running if each.kind == "bot" for name in each.names]]
    for bot in dict.fromkeys(names[:MOST]):
        try:
            found += [each async for each in _of_bot(storage, bot, now)]
        except StoredDataError as error:
            found.append(
                Problem(True, "stuck", f"a log of {bot} cannot be read: {error}", None, "messages", {"bot": bot})
            )
    late: list[Due] = []
    waiting: list[QueueView] = []
    with suppress(Unsupported):
        late = await storage.due(TURNS, before=now - LATE, limit=MOST + 1)
        waiting, _ = await queues(storage, limit=MOST)
    if late:
        text = f"{_many(len(late), len(late) > MOST, 'turn')} should have begun or gone on; does the bot run?"
        found.append(Problem(True, "late", text, late[0].deadline, "turns", {}))
    return found, waiting


async def _of_bot(storage: Storage, bot: str, now: float) -> AsyncIterator[Problem]:
    def problem(times: Sequence[float | None], noun: str, what: str, page: str, status: str, **params: str) -> Problem:
        text = f"{_many(len(times), len(times) > MOST, noun)} of {bot} {'has' if len(times) == 1 else 'have'} {what}"
        known = [each for each in times if each is not None]
        return Problem(True, status, text, min(known, default=None), page, {"bot": bot, **params})

    if aside := await _aside(storage, bot):
        yield problem([each.at for each in aside], "update", "failed or were set aside", "messages", "failed")
    refused: list[float | None] = []
    async for call in refused_calls(storage, bot):
        refused.append(call.at)
        if len(refused) > MOST:
            break
    if refused:
        yield problem(refused, "answer", "been refused", "messages", "refused")
    with suppress(Unsupported):
        turns = await storage.page(Query(TURNS, tag=log_tag(bot, "failed")), None, MOST + 1)
        if turns.records:
            times = [stored.written_at for _, stored in turns.records]
            yield problem(times, "conversation", "failed turns", "turns", "failed", failed="1")
        if overdue := await timers(storage, bot, before=now - LATE, limit=MOST + 1):
            yield problem(
                [each.deadline for each in overdue], "timer", "not fired; does the bot run?", "records", "late"
            )


async def _aside(storage: Storage, bot: str) -> list[Any]:
    """Return the updates of a bot that failed or were set aside."""
    try:
        # Imported here because it needs the bot extra, which only machines with bots have.
        from stepwell.telegram.engine import updates_aside
    except MissingExtra:
        return []
    return await updates_aside(storage, bot, limit=MOST + 1)


def _many(number: int, more: bool, noun: str) -> str:
    return f"more than {number} {noun}s" if more else counted(number, noun)
