"""The history of a run: what its nodes have done and when, with their waits.

The last nodes are in the table of the run, which is written with every commit anyway. When they are as many as fit
there, they are written as one part together with the commit of the last of them. So it needs no write of its own.

With ``"values"``, two more parts go with the commit of a node: what its hooks got and returned, masked and cut; and the
fields of the shared state that the commit changes, as they were before, so that a fork can begin at an earlier node.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from stepwell._secrets import masked_text
from stepwell.codec import values
from stepwell.codec.json import from_json
from stepwell.codec.masking import masked
from stepwell.errors import EncodeError
from stepwell.record import Limits

__all__ = [
    "BEFORE",
    "HISTORY",
    "LONGEST_BEFORE",
    "PARTS",
    "TRAIL",
    "VALUES",
    "WITH_VALUES",
    "Detail",
    "HistoryEntry",
    "Recorder",
    "RunHistory",
    "failure_of",
    "history_of",
    "rewound",
    "shown",
]

#: How many of the last nodes are in the table, and in one part.
TRAIL: Final = 20
#: The prefix of the names of parts with a history, by their numbers.
HISTORY: Final = "history::"
#: The prefixes of the names of parts with values, and with the fields that were changed, by the number of the visit.
VALUES, BEFORE = "values::", "before::"
#: How many of the last visits have such parts.
WITH_VALUES: Final = 100
#: The most characters of one value as JSON, and of all changed fields.
LONGEST_VALUE, LONGEST_BEFORE = 2_000, 64_000
#: How many parts are kept; the oldest ones are dropped.
PARTS: Final = 50
#: The most characters of an action.
ACTION: Final = 100

_UNKNOWN: Final = [0]

#: What a history has of each node: ``"nodes"`` when it ran and how it ended, ``"values"`` what its hooks got and
#: returned, too; ``None`` nothing but the last ones.
Detail = Literal["nodes", "values"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """A visit of a node that has completed, or at last of the one that has failed the run. Durations are in seconds.

    Example::

        flow = linear(Read, CountWords, name="words", storage=storage, keep=60)
        await flow.run({"text": "a b"}, flow_id="words-42")
        entry: HistoryEntry = (await flow.history("words-42"))[0]
        assert (entry.node, entry.visit, entry.action) == ("Read", 1, "default")
    """

    #: The path of the node.
    node: str
    #: The number of the visit, from 1; ``None`` if it is not known.
    visit: int | None
    attempts: int
    #: When it began, on the storage's clock. A node that an interrupted run has continued: when it was continued.
    started_at: float
    #: The time from then until it has completed, with the time that it has waited or slept.
    duration: float
    #: The action that it has returned, at most 100 characters; ``"error"`` or ``"unknown"`` too if that edge has caught
    #: its error; ``None`` for the node that has failed the run.
    action: str | None
    #: How long the run was in a queue before the node began.
    queued: float = 0.0
    #: How long the run was paused before.
    paused: float = 0.0
    #: How long it has waited for an answer, a signal or child runs.
    waited: float = 0.0
    #: How long it has slept, or waited to try items of a batch again.
    slept: float = 0.0
    #: Who has answered, if the answer said so.
    answered_by: str | None = None
    #: The type and the text of the error that such an edge has caught, or that has failed the run.
    error: tuple[str, str] | None = None
    #: With ``history="values"``: what ``prep`` and ``exec`` have returned, as JSON with masked secrets. A long value is
    #: a text, cut to 2,000 characters.
    input: Any = None
    output: Any = None


@dataclass(frozen=True, slots=True)
class RunHistory(Sequence[HistoryEntry]):
    """The nodes of a run that have completed, in the order in which they have: a sequence of :class:`HistoryEntry`.

    Example::

        flow = linear(Read, CountWords, name="words", storage=storage, keep=60)
        await flow.run({"text": "a b"}, flow_id="words-42")
        history: RunHistory = await flow.history("words-42")
        assert [entry.node for entry in history] == ["Read", "CountWords"]
        assert history.dropped == 0
    """

    entries: tuple[HistoryEntry, ...]
    #: How many older entries were dropped.
    dropped: int = 0

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[HistoryEntry]:
        return iter(self.entries)

    def __getitem__(self, index: Any) -> Any:
        return self.entries[index]


class Recorder:
    """Keeps the history of a run for its next commit."""

    def __init__(self, detail: Detail | None) -> None:
        self.detail: Detail | None = detail
        #: The last nodes that have completed: path, start and duration in milliseconds, attempts.
        self.trail: deque[list[Any]] = deque(maxlen=TRAIL)
        #: Of those of them that are in no part: visit, action unless it is the default one, and the waits in
        #: milliseconds, who has answered and the error, if any.
        self.steps: list[list[Any]] = []
        #: How many nodes have completed.
        self.count: int = 0

    def restore(self, table: Mapping[str, Any]) -> None:
        """Take over what a table has. Nodes that ran without a history are only in the trail."""
        self.trail.extend(table.get("trail", ()))
        self.count = table.get("count", 0)
        self.steps.extend(table.get("steps", ()))

    def add(self, row: list[Any], visit: int, action: object, more: dict[str, Any] | None) -> int | None:
        """Add a node that has completed; return the number of the part to write, if it has filled one."""
        self.trail.append(row)
        if self.detail is None:
            return None
        self.count += 1
        if more is None and (not action or action == "default"):
            # Most nodes. The list is written with each commit, so it is short.
            self.steps.append([visit])
        else:
            text = str(action or "default")
            if not text.isascii() or len(text) > ACTION:
                text = text[:ACTION].encode("utf-8", "backslashreplace").decode()
            self.steps.append([visit, text] if more is None else [visit, text, more])
        return None if self.count % TRAIL else self.count // TRAIL - 1

    def take_part(self) -> str:
        """Return the last nodes as a part, for the next commit. A text is encoded much faster than its rows."""
        rows, self.steps = recent(self.trail, self.steps), []
        return values.to_json(rows).decode()


def recent(trail: Sequence[list[Any]], steps: Sequence[list[Any]]) -> list[list[Any]]:
    """Return the rows of the nodes that are in no part: the last ones of the trail."""
    return [[*row, *step] for row, step in zip(list(trail)[len(trail) - len(steps) :], steps, strict=True)]


def shown(value: Any) -> Any:
    """Return a value as JSON for a history: with masked secrets, and cut if it is long."""
    try:
        tree = masked(from_json(values.encode(value, Limits(), "$")))
    except EncodeError:
        return f"<{type(value).__name__}>"
    if isinstance(tree, str):
        tree = text = masked_text(tree)
    else:
        text = values.to_json(tree).decode()
    return tree if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def rewound(state: dict[Any, Any], history: RunHistory, path: str, before: Mapping[int, Any]) -> dict[Any, Any] | None:
    """Return the shared state before the last visit of a node, or ``None`` if the node has not completed.

    ``before``: the changed fields of each visit, as they were. Raises ``LookupError`` if some are missing.
    """
    nodes = [entry.node for entry in history]
    if path not in nodes:
        return None
    first = len(nodes) - 1 - nodes[::-1].index(path)
    while first and nodes[first - 1] != path and nodes[first - 1].startswith(f"{path}/"):
        # The nodes inside a flow have completed before it.
        first -= 1
    count = history.dropped + len(nodes)
    first += history.dropped + 1
    if first <= count - WITH_VALUES:
        raise LookupError(f"the values of its last {WITH_VALUES} nodes are kept, and it is older")
    state = dict(state)
    for number in range(count, first - 1, -1):
        fields = before.get(number, ())
        if fields is None:
            raise LookupError(f"node {nodes[number - history.dropped - 1]!r} has changed more than could be kept")
        for key, *value in fields:
            if value:
                state[key] = value[0]
            else:
                state.pop(key, None)
    return state


def history_of(table: Mapping[str, Any], parts: Mapping[str, str], seen: Mapping[int, str] | None = None) -> RunHistory:
    """Return the history of a run from its table and its parts; ``seen``: the values of each visit."""
    numbers = sorted(int(name.removeprefix(HISTORY)) for name in parts)
    stored = [row for number in numbers for row in from_json(parts[f"{HISTORY}{number:09d}"])]
    trail, steps = table.get("trail", ()), table.get("steps")
    if steps is None:
        # A run without a history. One that had a history before has its parts.
        steps = [] if parts else [_UNKNOWN] * len(trail)
    rows = [*stored, *recent(trail, steps)]
    count = table.get("count", len(rows))
    dropped = max(count - len(rows), 0)
    entries = [
        _entry(table["started"], row, from_json(seen[number]) if seen and number in seen else (None, None))
        for number, row in enumerate(rows, dropped + 1)
    ]
    return RunHistory(tuple(entries), dropped)


def failure_of(table: Mapping[str, Any]) -> HistoryEntry | None:
    """Return the visit of the node that has failed a run, or ``None`` if the run has not failed."""
    cause = table["undo"].get("cause") if "undo" in table else None
    if cause is None and table["status"] == "failed":
        cause = next(iter(table.get("errors", ())), None)
    if cause is None:
        return None
    at, path, kind, message, _, attempt = cause
    return HistoryEntry(
        node=path, visit=None, attempts=attempt, started_at=at, duration=0.0, action=None, error=(kind, message)
    )


def _entry(began: float, row: Sequence[Any], seen: Sequence[Any]) -> HistoryEntry:
    path, start, duration, attempts, visit, *rest = row
    action = rest[0] if rest else "default" if visit else None
    more: Mapping[str, Any] = rest[1] if len(rest) > 1 else {}
    idle = more.get("waited", 0) + more.get("slept", 0)
    return HistoryEntry(
        node=path,
        visit=visit or None,
        attempts=attempts,
        started_at=began + (start - idle) / 1000,
        duration=(duration + idle) / 1000,
        action=action,
        queued=more.get("queued", 0) / 1000,
        paused=more.get("paused", 0) / 1000,
        waited=more.get("waited", 0) / 1000,
        slept=more.get("slept", 0) / 1000,
        answered_by=more.get("by"),
        error=tuple(more["error"]) if "error" in more else None,
        input=seen[0],
        output=seen[1],
    )
