"""The waits of a durable run: their questions and answers, as they are stored in :attr:`Journal.open`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stepwell.errors import Parked, UsageError
from stepwell.nodes.engine.ids import WaitId

if TYPE_CHECKING:
    from stepwell.nodes.engine.journal import Journal

__all__ = ["answer", "asked_again", "check_wait", "has_answer", "parked", "unanswered"]


def unanswered(inside: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the waits without an answer, by the path of their node."""
    return {path: wait for path, wait in inside.items() if isinstance(wait, dict) and "answer" not in wait}


def has_answer(inside: Any) -> bool:
    """Return whether a value of ``Journal.open`` is a wait with an answer that its node has not completed with yet."""
    return isinstance(inside, dict) and "answer" in inside


def asked_again(wait: dict[str, Any]) -> dict[str, Any]:
    """Return a wait that accepts a second answer, under a new id, because its node failed on the first."""
    asked = WaitId.read(wait["id"])
    assert asked is not None
    return {**wait, "again": asked.again().text}


def parked(journal: Journal) -> Parked:
    """Return the exception that names the first wait of a run."""
    waits = unanswered(journal.open)
    path = next((path for path, wait in waits.items() if wait["id"]), None) or next(iter(waits))
    wait = waits[path]
    return Parked(wait["id"], journal.flow_id, path, wait["question"], wait["until"])


def check_wait(journal: Journal, wait_id: str, asked: WaitId | None) -> None:
    """Raise ``UsageError`` unless this is a current or an earlier wait of the run."""
    open_ids = _questions(journal).values()
    if wait_id in open_ids or (asked is not None and _was_asked(journal, asked)):
        return
    known = f"it waits for {', '.join(map(repr, open_ids))}" if open_ids else "it waits for no answer"
    raise UsageError(f"run {journal.flow_id!r} never had the wait {wait_id!r}; {known}")


def answer(journal: Journal, wait_id: str | None, value: Any) -> None:
    """Store the answer to a wait, or to the first wait of the run; raise ``Unstorable`` if it cannot be stored.

    An answer to an earlier question is ignored, and so is one after the deadline, even if no worker has fired the
    timeout yet.
    """
    questions = _questions(journal)
    if wait_id is None and not questions:
        raise UsageError(f"run {journal.flow_id!r} waits for no answer; resume it without a value")
    path = next((path for path, known in questions.items() if wait_id in (None, known)), None)
    if path is None or path in journal.overdue:
        return
    journal.seal(path, "answer", value, "the answer{}".format)
    wait = {**journal.open[path], "answer": value}
    wait["id"] = wait.pop("again", wait["id"])
    journal.open[path] = wait


def _questions(journal: Journal) -> dict[str, str]:
    """Return the ids that an answer may have now, by the path of their node; first those that are asked again."""
    again = {path: wait["again"] for path, wait in journal.open.items() if has_answer(wait) and "again" in wait}
    return again | {path: wait["id"] for path, wait in unanswered(journal.open).items() if wait["id"]}


def _was_asked(journal: Journal, asked: WaitId) -> bool:
    inside = journal.open.get(asked.node)
    now = WaitId.read(inside["id"]) if isinstance(inside, dict) else None
    if now is not None and now.visit == asked.visit:
        return asked.attempt <= now.attempt
    return any(
        stage.path == asked.node and stage.node._shape == "wait" and 1 <= asked.visit <= journal.visits[stage.index]
        for stage in journal.program.stages
    )
