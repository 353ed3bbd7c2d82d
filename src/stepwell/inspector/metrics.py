"""The page ``/metrics`` in the text format of Prometheus. The numbers are those of the overview."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final, NamedTuple

from stepwell.engine import TURNS
from stepwell.inspector.subject import Subject
from stepwell.operate.processes import ProcessView, processes
from stepwell.operate.records import bots, timers

__all__ = ["CONTENT_TYPE", "metrics"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
#: How many bots and processes are listed, as in the overview.
_LISTED: Final = 50


class _Sample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float


_HELP: Final = {
    "stepwell_conversations": "Conversations by bot, flow and state.",
    "stepwell_conversations_oldest_write_seconds": "Seconds since the oldest last write in this state.",
    "stepwell_runs": "Runs by flow and status.",
    "stepwell_runs_oldest_write_seconds": "Seconds since the oldest last write in this status.",
    "stepwell_turns": "Conversations with an agent by the name of their turns and state.",
    "stepwell_turns_oldest_write_seconds": "Seconds since the oldest last write in this state.",
    "stepwell_turns_late_seconds": "Seconds for which messages or turns wait for a worker.",
    "stepwell_counts_complete": "1 if the numbers above include all records, else 0.",
    "stepwell_timer_late_seconds": "Seconds by which the most overdue timer of a bot is late.",
    "stepwell_processes": "Processes that were seen within the last minute.",
    "stepwell_handled_per_minute": "Updates or runs a minute, of all processes.",
    "stepwell_failed_per_minute": "Failed updates or runs a minute, of all processes.",
    "stepwell_retried_per_minute": "Failed attempts a minute after which an update was handled again.",
    "stepwell_refused_per_minute": "Calls a minute that Telegram refused or that could not be sent in time.",
    "stepwell_set_aside_per_minute": "Updates a minute that were set aside.",
    "stepwell_queue_wait_seconds": "Mean wait in the queue of the runs that workers have taken lately.",
    "stepwell_recovered_per_minute": "Runs a minute that were continued after the death of their runner.",
    "stepwell_leases_lost_per_minute": "Leases of runs a minute that were lost to another worker.",
}


async def metrics(subject: Subject) -> str:
    """Return all metrics."""
    samples = [*await _counts(subject), *await _timers(subject)]
    samples += _processes(await processes(subject.storage, limit=_LISTED))
    lines: list[str] = []
    for name, text in _HELP.items():
        lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
        lines += [f"{name}{_labels(each.labels)} {each.value:.15g}" for each in samples if each.name == name]
    return "\n".join(lines) + "\n"


async def _counts(subject: Subject) -> list[_Sample]:
    counts = await subject.counts()
    if counts is None:
        # The first counts take long.
        return [_Sample("stepwell_counts_complete", {}, 0)]
    now = _now(subject)
    samples: list[_Sample] = []
    for state in counts.states:
        labels = {"bot": state.bot, "flow": state.flow or "", "state": state.state or ""}
        samples.append(_Sample("stepwell_conversations", labels, state.records))
        if state.oldest is not None:
            samples.append(_Sample("stepwell_conversations_oldest_write_seconds", labels, max(0, now - state.oldest)))
    for run in counts.runs:
        labels = {"flow": run.flow, "status": run.status}
        samples.append(_Sample("stepwell_runs", labels, run.runs))
        if run.oldest is not None:
            samples.append(_Sample("stepwell_runs_oldest_write_seconds", labels, max(0, now - run.oldest)))
    for turn in counts.turns:
        labels = {"name": turn.name, "state": turn.state}
        samples.append(_Sample("stepwell_turns", labels, turn.conversations))
        if turn.oldest is not None:
            samples.append(_Sample("stepwell_turns_oldest_write_seconds", labels, max(0, now - turn.oldest)))
    return [*samples, _Sample("stepwell_counts_complete", {}, counts.complete and not counts.has_more)]


async def _timers(subject: Subject) -> list[_Sample]:
    now = _now(subject)
    samples: list[_Sample] = []
    for bot in (await bots(subject.storage))[:_LISTED]:
        first = await timers(subject.storage, bot, before=now, limit=1)
        samples.append(_Sample("stepwell_timer_late_seconds", {"bot": bot}, now - first[0].deadline if first else 0))
    late = await subject.storage.due(TURNS, before=now, limit=1)
    return [*samples, _Sample("stepwell_turns_late_seconds", {}, now - late[0].deadline if late else 0)]


def _processes(running: list[ProcessView]) -> Iterator[_Sample]:
    for kind in ("bot", "worker"):
        these = [each for each in running if each.kind == kind]
        yield _Sample("stepwell_processes", {"kind": kind}, len(these))
        yield _Sample("stepwell_handled_per_minute", {"kind": kind}, sum(each.done for each in these))
        yield _Sample("stepwell_failed_per_minute", {"kind": kind}, sum(each.failed for each in these))
        if kind == "bot":
            yield _Sample("stepwell_retried_per_minute", {"kind": kind}, sum(each.retried for each in these))
            yield _Sample("stepwell_refused_per_minute", {"kind": kind}, sum(each.refused for each in these))
            yield _Sample("stepwell_set_aside_per_minute", {"kind": kind}, sum(each.aside for each in these))
            continue
        waits = [each.wait for each in these if each.wait is not None]
        if waits:
            yield _Sample("stepwell_queue_wait_seconds", {}, sum(waits) / len(waits))
        yield _Sample("stepwell_recovered_per_minute", {}, sum(each.recovered for each in these))
        yield _Sample("stepwell_leases_lost_per_minute", {}, sum(each.lost for each in these))


def _now(subject: Subject) -> float:
    return (subject.storage.clock or time.time)()


def _labels(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}" if labels else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
