"""What a run stores beside its state: its table, its parts and its visit counts, and their validation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, Final, Literal, NotRequired, TypedDict

from stepwell.codec import values
from stepwell.codec.values import conform
from stepwell.errors import CorruptRecord
from stepwell.nodes.run.ids import WaitId
from stepwell.record import NOTHING, Address, Limits, OpenedHead, Place
from stepwell.slot import Slot

__all__ = [
    "ENDED",
    "FINAL",
    "FORMER",
    "GRAPH",
    "MAIL",
    "PARAMS",
    "REPLY",
    "UNDO",
    "Ending",
    "Former",
    "Retention",
    "Status",
    "Undo",
    "end_timers",
    "flow_index",
    "flow_indexes",
    "flow_of_index",
    "held_table",
    "kind_of_mail",
    "owner_of_part",
    "packed",
    "problem_of_part",
    "run_head",
    "run_table",
    "set_table",
    "submitted_of",
    "table_of",
    "tag_texts",
    "tags_in",
    "timeout_timer",
    "unpacked",
]

Status = Literal["queued", "running", "parked", "sleeping", "paused", "failed", "stuck", "cancelled", "finished"]
#: How a run whose nodes are undone ends.
Ending = Literal["failed", "cancelled"]
#: The statuses of runs that never continue. Their records have no graph.
FINAL: Final = frozenset({"cancelled", "finished"})
#: The statuses of runs that have a result, or none until they are resumed.
ENDED: Final = frozenset({"failed", "stuck", "cancelled", "finished"})
#: Nested deeper is no table.
_DEPTH: Final = 1000
#: The entries of a table that may have values of any type, or any texts as keys. All others are JSON.
_ANY_VALUES: Final = frozenset({"open", "lines", "rechecks"})
#: Seconds after which a worker reports the end of a child run to its parent, if its own runner was killed before.
REPORT: Final = 5.0
#: The entries of a table that say how a run was submitted.
_SUBMITTED: Final = ("partition", "priority", "parent", "above", "input", "timeout", "trace", "span", "forked")
#: ``False``: remove a finished run. ``True``: keep it. A number: keep it for that many seconds.
Retention = bool | float

#: The part that every run has from its first node until it has finished.
GRAPH = "graph::"
#: The prefix of the names of mail parts: ``mail:kind:id``. The ids of one kind are in the order of their writes.
MAIL = "mail:"
#: The part with the params of a run.
PARAMS = "params::"
#: The prefix of the names of parts with what a node has to undo, in the order in which they have completed.
UNDO = "undo::"
#: The prefix of the parts with the last replies to updates, in the order in which the updates were sent.
REPLY = "reply::"
#: The part with what a run keeps of earlier graphs of its flow.
FORMER = "former::"


def table_of(head: OpenedHead, address: Address) -> dict[str, Any] | None:
    """Return the table of a run, or ``None`` if the record is not a run; raise ``CorruptRecord`` if it is damaged."""
    if not head.extension:
        return None
    try:
        table = values.decode(head.extension, _DEPTH)
    except values.DecodeError as error:
        raise CorruptRecord(address.text, "the position of its run", str(error)) from error
    if not (isinstance(table, dict) and "status" in table and "graph" in table):
        return None
    problem = conform(table, _Table)[1]
    for inside in table.get("open", {}).values() if problem is None else ():
        problem = problem or _problem_inside(inside)
    if problem is not None:
        raise CorruptRecord(address.text, "the position of its run", f"has another form ({problem})")
    return table


def held_table(slot: Slot) -> dict[str, Any] | None:
    """Return the table of a held run, or ``None`` if the record is not there or no run."""
    return table_of(slot.head, slot.address) if slot.found else None


def run_table(slot: Slot) -> dict[str, Any]:
    """Return the table of a held run."""
    table = held_table(slot)
    assert table is not None
    return table


def flow_indexes(flow: str, revision: int) -> list[str]:
    """Return the index texts of all revisions of a flow up to this one."""
    return [flow_index(flow, each) for each in range(1, revision + 1)]


def set_table(slot: Slot, table: dict[str, Any]) -> None:
    """Keep a table in the record of a held run, which is found by its revision and its status."""
    slot.head = run_head(slot.head.place, table, slot.storage.limits, slot.head.timers)


def run_head(place: Place, table: dict[str, Any], limits: Limits, timers: Mapping[str, float] = NOTHING) -> OpenedHead:
    """Return the head of a run."""
    nested = not table.keys().isdisjoint(_ANY_VALUES)
    text = values.encode(table, limits, "$head") if nested else values.to_json(table)
    flow = place.flow
    if flow is not None and (place.revision is not None or "@" in flow):
        # It changes less often than the node.
        flow = flow_index(flow, place.revision)
    return OpenedHead(place, timers, text.decode(), (flow, table["status"]))


def submitted_of(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a run was submitted, as it is stored."""
    return {name: table[name] for name in _SUBMITTED if name in table}


def timeout_timer(table: Mapping[str, Any]) -> Mapping[str, float]:
    """Return the timer of a run with a timeout, while it has no runner."""
    return {"timeout": table["timeout"][1]} if "timeout" in table else NOTHING


def end_timers(table: Mapping[str, Any], now: float) -> Mapping[str, float]:
    """Return the timers of a run that ends. A worker reports the end of a child if its runner does not."""
    return {"report": now + REPORT} if "parent" in table else NOTHING


class Undo(TypedDict):
    """How a run ends when its nodes are undone."""

    ends: Ending
    #: Why it was cancelled.
    reason: str | None
    #: The error that it has failed with, as in ``errors``.
    cause: NotRequired[tuple[float, str, str, str, str, int]]


class _Table(TypedDict):
    """The form of :meth:`~stepwell.nodes.run.journal.Journal._fill`."""

    status: Status
    graph: str
    #: How often each stage was visited; see :func:`packed`.
    visits: list[tuple[int, int]]
    started: float
    #: The last nodes that have completed, the newest last: path, start and duration in milliseconds, attempts.
    trail: NotRequired[list[tuple[str, int, int, int]]]
    #: Of the same nodes, see :class:`~stepwell.nodes.history.Recorder`; and how many nodes have completed.
    steps: NotRequired[list[list[int | str | dict[str, Any]]]]
    count: NotRequired[int]
    #: Whether it has the values of the last nodes, too.
    values: NotRequired[bool]
    #: Since when a run has been queued or paused.
    idle: NotRequired[float]
    run: NotRequired[str]
    base: NotRequired[str]
    keep: NotRequired[bool | float]
    #: Whether the call that ran it was cancelled.
    interrupted: NotRequired[bool]
    #: How often its runner has died since its last node completed.
    recoveries: NotRequired[int]
    #: For each batch with items that wait: since when, and when to run these items again.
    rechecks: NotRequired[dict[str, tuple[float, float]]]
    #: Why it was cancelled; may be empty.
    cancelled: NotRequired[str]
    open: NotRequired[dict[str, Any]]
    lines: NotRequired[dict[str, str]]
    #: When the process that wrote it loaded the graph, on the storage's clock.
    since: NotRequired[float]
    #: Why the run is stuck, and its status before.
    stuck: NotRequired[str]
    before: NotRequired[Status]
    #: The last errors, the newest first: time, path, type, message, traceback and attempt.
    errors: NotRequired[list[tuple[float, str, str, str, str, int]]]
    #: The last error that an edge has caught in each branch: branch, path, type and message.
    caught: NotRequired[list[tuple[str, str, str, str]]]
    #: How many visits of nodes can be undone.
    undos: NotRequired[int]
    #: Given while they are undone, and until it has succeeded.
    undo: NotRequired[Undo]
    #: The last ones that were undone, the newest last: path, visit and time.
    undone: NotRequired[list[tuple[str, int, float]]]
    partition: NotRequired[str]
    priority: NotRequired[int]
    #: The id of its parent, and the flow and the partition of each run above it that has one.
    parent: NotRequired[str]
    above: NotRequired[list[list[str]]]
    #: A digest of the data that it was submitted with.
    input: NotRequired[str]
    #: The run that it was forked from.
    forked: NotRequired[str]
    #: The seconds after which the run is cancelled, and when that is.
    timeout: NotRequired[tuple[float, float]]
    #: The trace context of the call that has submitted or started it, and of its last execution.
    trace: NotRequired[str]
    span: NotRequired[str]
    #: When a debounced run was submitted first.
    debounced: NotRequired[float]
    #: The ids of the last waits that have timed out.
    late: NotRequired[list[str]]
    #: A queued run has params.
    params: NotRequired[bool]
    #: A queued run has mail.
    mail: NotRequired[bool]


class Former(TypedDict):
    """The form of the part ``former::``."""

    #: The visits of paths that the graph does not have any more, or has with another kind of node.
    visits: dict[str, int]
    #: The entries of ``renamed`` that were applied.
    renamed: list[str]


class _Wait(TypedDict):
    """The form of a wait in ``Journal.open``."""

    id: str
    question: Any
    until: float | None
    answer: NotRequired[Any]
    again: NotRequired[str]
    #: The JSON schema of its answer.
    accepts: NotRequired[dict[str, Any]]
    #: The id of the update that has answered it.
    reply: NotRequired[str]
    signal: NotRequired[str]
    #: When it began, for how many seconds its node has waited before, and who has answered.
    since: NotRequired[float]
    waited: NotRequired[float]
    by: NotRequired[str]
    #: Of a wait for child runs: how their ids begin.
    step: NotRequired[str]
    #: The id of the child that a node waits for, and when it stops waiting for this one and for others.
    child: NotRequired[str]
    timeouts: NotRequired[dict[str, float]]
    #: The items whose children are running, and the numbers of those that have ended and of all.
    running: NotRequired[list[int]]
    #: The items whose children have failed.
    failed: NotRequired[list[int]]
    progress: NotRequired[tuple[int, int]]


#: The forms of parts, by kind. The result of ``prep`` may have any form.
_PARTS: Final[Mapping[str, Any]] = {
    "former": Former,
    "graph": dict[str, tuple[str, dict[str, str | None]]],
    "params": dict[str, Any],
    "items": list[Any],
    "done": list[list[Any]],
    "field": list[Any],
    "effect": tuple[str, str, str, str | None, Any],
    "undo": tuple[str, int, Any],
    "history": str,
    "values": str,
    "before": list[list[Any]] | None,
}


class _AnswerMail(TypedDict):
    """The mail with an answer to a wait."""

    wait: str
    value: Any
    #: When it was sent, on the storage's clock; given if the wait has a timeout.
    at: NotRequired[float]
    by: NotRequired[str]


class _Signal(TypedDict):
    """The mail with a signal."""

    name: str
    value: Any
    #: When it was sent, on the storage's clock; given if a wait for it has a timeout.
    at: NotRequired[float]
    #: The id under which an update waits for the reply.
    reply: NotRequired[str]


class _ChildEnd(TypedDict):
    """The mail with the end of a child run."""

    child: str


class _Cancel(TypedDict):
    """The mail that cancels a run."""

    reason: str | None


#: The forms of mail, by kind.
_LETTERS: Final[Mapping[str, Any]] = {
    "answer": _AnswerMail,
    "cancel": _Cancel,
    "child": _ChildEnd,
    "pause": dict[str, Any],
    "signal": _Signal,
}


def kind_of_mail(name: str) -> str:
    """Return the kind of a mail part."""
    return name.split(":", 2)[1]


def _problem_inside(inside: Any) -> str | None:
    """Return what is wrong with a value of ``Journal.open``: a wait, a batch's progress, an action, or ``True``."""
    if isinstance(inside, dict):
        problem = conform(inside, _Wait)[1]
        ids = [] if problem is not None else [inside["id"], inside.get("again", "")]
        return problem or ("not the id of a wait" if any(each and WaitId.read(each) is None for each in ids) else None)
    if isinstance(inside, list):
        return conform(inside, tuple[int, int])[1]
    return None if inside is None or isinstance(inside, str | bool) else "unknown kind of progress"


def owner_of_part(name: str) -> str:
    """Return the path of the node whose part this is."""
    return name.partition(":")[2].rpartition(":")[0]


def problem_of_part(name: str, value: Any) -> str | None:
    """Return what is wrong with the form of a part, or ``None``."""
    kind = name.partition(":")[0]
    if kind == "mail":
        form = _LETTERS.get(kind_of_mail(name)) if name.count(":") > 1 else None
        return "unknown kind of mail" if form is None else conform(value, form)[1]
    problem = conform(value, _PARTS[kind])[1] if kind in _PARTS else None
    if problem is None and kind == "done":
        problem = next((problem for row in value if (problem := _problem_of_result(row))), None)
    if problem is None and kind == "field" and not (1 <= len(value) <= 3 and _hashable(value[0])):
        problem = "not a key and its value"
    return problem


def _problem_of_result(row: list[Any]) -> str | None:
    return conform(row, tuple[int, Any] if len(row) == 2 else tuple[int, None, str, str])[1]


def _hashable(key: Any) -> bool:
    try:
        hash(key)
    except TypeError:
        return False
    return True


def packed(counts: list[int]) -> list[list[int]]:
    """Return visit counts, each with the number of equal ones in a row, without the zeros at the end."""
    rows = [[count, len(list(same))] for count, same in groupby(counts)]
    return rows[:-1] if rows and not rows[-1][0] else rows


def unpacked(rows: list[list[int]], length: int) -> list[int]:
    """Return the counts without the zeros at the end; raise ``ValueError`` if these are more than ``length``."""
    if any(count < 0 or times < 1 for count, times in rows) or sum(times for _, times in rows) > length:
        raise ValueError(f"not {length} visit counts")
    return [count for count, times in rows for _ in range(times)]


def tag_texts(tags: Mapping[str, str | int]) -> list[str]:
    """Return the tags of a run as they are stored and searched: ``name=value``, beside the tags of child runs."""
    return [f"{name}={value}" for name, value in tags.items()]


def tags_in(texts: Iterable[str]) -> dict[str, str]:
    """Return the tags that a run was submitted with by name."""
    named = (text.partition("=") for text in texts)
    return {name: value for name, equals, value in named if equals and ":" not in name}


def flow_index(flow: str, revision: int | None = None) -> str:
    """Return the text by which indexes find the runs of one revision of a flow: ``name``, or ``name@2``."""
    if "@" in flow:
        flow = flow.replace("@", "@@")
    return flow if revision is None or revision == 1 else f"{flow}@{revision}"


def flow_of_index(text: str) -> tuple[str, int]:
    """Return the flow and the revision that ``flow_index`` was given."""
    # The doubled "@" of a name come in pairs, so an odd number of them ends with the one before the revision.
    head, at, revision = text.rpartition("@")
    if (len(head) - len(head.rstrip("@"))) % 2 or not at:
        return text.replace("@@", "@"), 1
    return head.replace("@@", "@"), int(revision)
