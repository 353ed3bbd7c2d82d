"""The waits of a durable run: their questions and answers, as they are stored in :attr:`Journal.open`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeGuard

from stepwell._secrets import quoted
from stepwell.errors import Parked, UsageError
from stepwell.nodes.run.ids import WaitId
from stepwell.nodes.run.table import kind_of_mail

if TYPE_CHECKING:
    from stepwell.nodes.run.journal import Journal

__all__ = [
    "Answered",
    "answer",
    "asked_again",
    "check_wait",
    "deliver",
    "has_answer",
    "is_child_wait",
    "never_asked",
    "only_wait",
    "parked",
    "questions",
    "signal_for",
    "unanswered",
    "was_asked",
]


class Answered(StrEnum):
    """What has become of an answer: only ``ACCEPTED`` is true in an ``if``.

    Example::

        try:
            await flow.run(flow_id="contract-7")
        except Parked as parked:
            if not (answered := await flow.answer(parked.id, "yes")):
                print(f"nothing was changed: {answered}")
    """

    #: It is stored.
    ACCEPTED = "accepted"
    #: The question has an answer already, so this one was not stored.
    ANSWERED_BEFORE = "answered before"
    #: The timeout of the question has passed, so it was not stored.
    TOO_LATE = "too late"

    def __bool__(self) -> bool:
        return self is Answered.ACCEPTED


def unanswered(inside: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the waits without an answer, by the path of their node."""
    return {path: wait for path, wait in inside.items() if isinstance(wait, dict) and "answer" not in wait}


def has_answer(inside: Any) -> bool:
    """Return whether a value of ``Journal.open`` is a wait with an answer that its node has not completed with yet."""
    return isinstance(inside, dict) and "answer" in inside


def is_child_wait(inside: Any) -> TypeGuard[dict[str, Any]]:
    """Return whether a value of ``Journal.open`` is a wait for child runs."""
    return isinstance(inside, dict) and "step" in inside


def _waits_for(wait: Mapping[str, Any], child: str) -> bool:
    if "child" in wait:
        return bool(wait["child"] == child)
    place, _, number = child.rpartition("/")
    return is_child_wait(wait) and place == wait["step"] and number in map(str, wait.get("running", ()))


def asked_again(wait: dict[str, Any]) -> dict[str, Any]:
    """Return a wait that accepts a second answer, under a new id, because its node failed on the first."""
    asked = WaitId.read(wait["id"])
    assert asked is not None
    return {**wait, "again": asked.again().text}


def parked(journal: Journal) -> Parked:
    """Return the exception that names the first wait of a run."""
    waits = unanswered(journal.open)
    if not waits:
        path, (_, until) = next(iter(journal.rechecks.items()))
        return Parked("", journal.flow_id, path, None, until)
    path = next((path for path, wait in waits.items() if wait["id"]), None) or next(iter(waits))
    wait = waits[path]
    return Parked(wait["id"], journal.flow_id, path, wait["question"], wait["until"], for_children=is_child_wait(wait))


def check_wait(journal: Journal, wait_id: str) -> None:
    """Raise ``UsageError`` unless this is a current or an earlier wait of the run."""
    asked = WaitId.read(wait_id)
    visits = {s.path: journal.visits[s.index] for s in journal.program.stages if s.node._shape == "wait"}
    visits |= journal.former
    if wait_id not in questions(journal.open).values() and (
        asked is None or not was_asked(journal.open, visits, asked)
    ):
        raise never_asked(journal.flow_id, wait_id, journal.open)


def answer(journal: Journal, wait_id: str | None, value: Any) -> None:
    """Store the answer to a wait, or to the only wait of the run; raise ``Unstorable`` if it cannot be stored.

    An answer to an earlier question is ignored, and so is one after the deadline, even if no worker has fired the
    timeout yet.
    """
    asked = questions(journal.open)
    if wait_id is None:
        wait_id = only_wait(journal.flow_id, journal.open)
        if wait_id is None:
            raise UsageError(f"run {quoted(journal.flow_id)} waits for no answer; resume it without a value")
    path = next((path for path, known in asked.items() if wait_id == known), None)
    if path is None or path in journal.overdue:
        return
    journal.seal(path, "answer", value, "the answer{}".format)
    _set_answer(journal, path, value)


def deliver(journal: Journal) -> bool:
    """Give answers, signals and ends of children in the mail of a run to its waits; return whether a wait got one.

    An answer whose wait has been answered before, or has timed out before it was sent, is dropped. A signal is kept
    until a wait takes it.
    """
    delivered = False
    for name in [name for name in journal.mail if kind_of_mail(name) == "answer"]:
        message = journal.use_mail(name)
        path = next((path for path, known in questions(journal.open).items() if known == message["wait"]), None)
        if path is None:
            continue
        until = journal.open[path]["until"]
        if until is not None and message.get("at", until) >= until:
            continue
        journal.overdue.discard(path)
        _set_answer(journal, path, message["value"])
        delivered = True
    for waiting, wait in unanswered(journal.open).items():
        signal = signal_for(journal, wait)
        if signal is not None:
            journal.overdue.discard(waiting)
            _set_answer(journal, waiting, journal.use_mail(signal)["value"])
            delivered = True
    for name in [name for name in journal.mail if kind_of_mail(name) == "child"]:
        child = journal.use_mail(name)["child"]
        if journal.rechecks:
            # An item of a batch may wait for it.
            journal.rechecks = {path: [since, 0.0] for path, (since, _) in journal.rechecks.items()}
            delivered = True
        for path, wait in unanswered(journal.open).items():
            if _waits_for(wait, child):
                # The node reads the record of the child.
                journal.open[path] = {**wait, "answer": None}
                delivered = True
    return delivered


def signal_for(journal: Journal, wait: Mapping[str, Any]) -> str | None:
    """Return the mail with the oldest signal that a wait may take, or ``None``."""
    if "signal" not in wait:
        return None
    until = wait["until"]
    for name in sorted(journal.mail):
        message = journal.mail[name]
        if kind_of_mail(name) == "signal" and message["name"] == wait["signal"]:
            late = until is not None and "at" in message and message["at"] >= until
            return None if late else name
    return None


def _set_answer(journal: Journal, path: str, value: Any) -> None:
    wait = {**journal.open[path], "answer": value}
    wait["id"] = wait.pop("again", wait["id"])
    journal.open[path] = wait


def questions(opened: Mapping[str, Any]) -> dict[str, str]:
    """Return the ids that an answer may have now, by the path of their node; first those that are asked again."""
    again = {path: wait["again"] for path, wait in opened.items() if has_answer(wait) and "again" in wait}
    return again | {path: wait["id"] for path, wait in unanswered(opened).items() if wait["id"]}


def only_wait(flow_id: str, opened: Mapping[str, Any]) -> str | None:
    """Return the id of the wait that an answer to a run without the id of a wait is for, or ``None`` if none is open.

    A wait whose node failed on its answer comes first. Raise ``UsageError`` if there are several.
    """
    again = [wait["again"] for wait in opened.values() if has_answer(wait) and "again" in wait]
    ids = again or list(questions(opened).values())
    if len(ids) > 1:
        raise UsageError(
            f"run {quoted(flow_id)} has several open waits; answer one of them by its id: {', '.join(map(quoted, ids))}"
        )
    return ids[0] if ids else None


def was_asked(opened: Mapping[str, Any], visits: Mapping[str, int], asked: WaitId) -> bool:
    """Return whether this is a current or an earlier wait of a run; ``visits`` are those of its wait nodes."""
    for inside in opened.values():
        # A wait keeps its id when its node is renamed.
        now = WaitId.read(inside["id"]) if isinstance(inside, dict) else None
        if now is not None and (now.node, now.visit) == (asked.node, asked.visit):
            return asked.attempt <= now.attempt
    return 1 <= asked.visit <= visits.get(asked.node, 0)


def never_asked(flow_id: str, wait_id: str, opened: Mapping[str, Any]) -> UsageError:
    """Return the error for the id of a wait that the run never had."""
    open_ids = questions(opened).values()
    known = f"it waits for {', '.join(map(quoted, open_ids))}" if open_ids else "it waits for no answer"
    return UsageError(f"run {quoted(flow_id)} never had the wait {quoted(wait_id)}; {known}")
