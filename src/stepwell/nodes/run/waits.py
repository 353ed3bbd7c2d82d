"""The waits of a durable run: their questions and answers, as they are stored in :attr:`Journal.open`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeGuard

from stepwell._secrets import quoted
from stepwell.errors import UsageError
from stepwell.nodes.run.ids import WaitId

__all__ = [
    "Answered",
    "asked_again",
    "has_answer",
    "is_child_wait",
    "never_asked",
    "only_wait",
    "questions",
    "unanswered",
    "waits_for",
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


def waits_for(wait: Mapping[str, Any], child: str) -> bool:
    """Return whether a wait is for this child run."""
    if "child" in wait:
        return bool(wait["child"] == child)
    place, _, number = child.rpartition("/")
    return is_child_wait(wait) and place == wait["step"] and number in map(str, wait.get("running", ()))


def asked_again(wait: dict[str, Any]) -> dict[str, Any]:
    """Return a wait that accepts a second answer, under a new id, because its node failed on the first."""
    asked = WaitId.read(wait["id"])
    assert asked is not None
    return {**wait, "again": asked.again().text}


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
