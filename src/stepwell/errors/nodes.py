"""Errors of node flows and their runs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from stepwell.errors.base import StepwellError
from stepwell.errors.storage import Busy, CorruptRecord, EncodeError


class Unstorable(EncodeError):
    """What a node of a durable run left behind cannot be kept; the run stands before that node."""

    def __init__(self, node: str, path: str, type_name: str, why: str) -> None:
        super().__init__(path, type_name, why)
        #: The path of the node; empty for what the run was started with.
        self.node = node
        self.args = (f"{f'after node {node!r}' if node else 'at the start'}: {path} ({type_name}) {why}",)


class RunReplaced(CorruptRecord):
    """The state of a run was replaced from outside, and with it what the run needs to go on."""

    def __init__(self, place: str, flow_id: str) -> None:
        super().__init__(place, "its graph", "is gone")
        self.flow_id = flow_id
        self.args = (
            f"the state of run {flow_id!r} was replaced from outside, not merged, so it cannot go on; remove it with "
            f"StateStorage(storage).cleanup({flow_id!r}) and run it again, and change fields of a run with "
            "merge_state(): update_state() replaces all of it",
        )


class RunBusy(Busy):
    """A run is still being run elsewhere; nothing was done to it, and an answer was not stored."""

    def __init__(self, flow_id: str, waited: float, *, answer: bool = False) -> None:
        super().__init__(flow_id, waited)
        self.flow_id = flow_id
        #: Whether an answer to a wait was given, which was not stored.
        self.answer = answer
        self.args = (
            f"run {flow_id!r} is still being run elsewhere after {waited:g} s, so the answer was not stored; send it "
            "again when the run has parked, which flow.status() shows"
            if answer
            else f"run {flow_id!r} is still being run elsewhere after {waited:g} s, longer than a dead runner's claim "
            "lasts; leave it to its runner, and ask flow.status() how far it is",
        )


class NodeFlowError(StepwellError):
    """A node flow, or what one of its nodes gave, cannot be worked with."""


class InvalidGraph(NodeFlowError, ValueError):
    """A flow's graph cannot be run; nothing of it has run."""

    def __init__(self, flow: str, problems: list[str]) -> None:
        self.flow, self.problems = flow, problems
        super().__init__(f"flow {flow!r} cannot run: {'; '.join(problems)}")


class InvalidAction(NodeFlowError, TypeError):
    """A node's ``post`` returned something that is no action."""

    def __init__(self, node: str, type_name: str) -> None:
        self.node, self.type_name = node, type_name
        super().__init__(
            f"post of node {node!r} returned {type_name}; return an action (a string, END or None), "
            "or a pair (action, {field: value}) to change the shared state"
        )


class UnknownAction(NodeFlowError, LookupError):
    """A node returned a named action that no edge leads away for."""

    def __init__(self, node: str, action: str, known: list[str]) -> None:
        self.node, self.action, self.known = node, action, known
        super().__init__(
            f"node {node!r} returned {action!r}, but its edges are {known}; connect that action, "
            "return END to end the flow, or give the flow on_unknown_action='end' or 'default'"
        )


class InvalidItems(NodeFlowError, TypeError):
    """A batch's ``prep`` returned something that is not a collection of items."""

    def __init__(self, node: str, type_name: str, hint: str) -> None:
        self.node, self.type_name, self.hint = node, type_name, hint
        super().__init__(f"prep of batch {node!r} returned {type_name}, which is no collection of items; {hint}")


class NodeTimeout(NodeFlowError, TimeoutError):
    """One attempt of a node's ``exec`` took longer than its timeout."""

    def __init__(self, node: str, timeout: float) -> None:
        self.node, self.timeout = node, timeout
        super().__init__(f"exec of node {node!r} took longer than its timeout of {timeout:g} s")


class TooManySteps(NodeFlowError, RuntimeError):
    """A flow visited more nodes than its ``max_steps``."""

    def __init__(self, flow: str, max_steps: int, node: str) -> None:
        self.flow, self.max_steps, self.node = flow, max_steps, node
        super().__init__(
            f"flow {flow!r} has visited {max_steps} nodes and would go on with {node!r}; "
            "if that is no endless loop, raise max_steps"
        )


class MergeConflict(NodeFlowError, ValueError):
    """Two parallel branches changed the same field, and nothing says how to merge it."""

    def __init__(self, node: str, field: object, branches: list[str]) -> None:
        self.node, self.field, self.branches = node, field, branches
        super().__init__(
            f"branches {branches} of {node!r} all changed {field!r}; let one of them write it, or say how to "
            f"merge it: parallel(..., merge={{{field!r}: function_of_the_list_of_values}})"
        )


class WorkCancelled(NodeFlowError, RuntimeError):
    """A node, an item or a branch ended by a cancellation that came from inside its own work."""

    def __init__(self, place: str) -> None:
        self.place = place
        super().__init__(f"{place} awaited something that was cancelled, while the run itself was not")


class KeptError(NodeFlowError):
    """An error that was kept with a run: the name of its type, and its message."""

    def __init__(self, type_name: str, message: str) -> None:
        self.type_name, self.message = type_name, message
        super().__init__(f"{type_name}: {message}")


class ExecutorError(NodeFlowError, RuntimeError):
    """An item's value or error cannot travel to an executor's worker or back."""

    def __init__(self, node: str, what: str, why: str) -> None:
        self.node, self.what, self.why = node, what, why
        super().__init__(
            f"{what} of node {node!r} cannot travel between processes ({why}); "
            "keep it picklable, or use threads: executor=ThreadPoolExecutor()"
        )


class Parked(NodeFlowError):
    """A run waits, durably: for somebody's answer, or for its time. Nothing is lost, and nothing is final yet."""

    def __init__(self, id: str, flow_id: str, node: str, question: Any, deadline: float | None) -> None:  # noqa: A002
        #: Answers this very wait, once: ``flow.resume(parked.id, value)``.
        self.id = id
        self.flow_id = flow_id
        #: The path of the node that waits.
        self.node = node
        #: What the node's ``prep`` returned.
        self.question = question
        #: When it times out, in seconds since 1970 on the storage's clock.
        self.deadline = deadline
        super().__init__(
            f"run {flow_id!r} waits at {node!r}; go on with flow.resume({id!r}, answer), "
            "in this process or in another one"
            if id
            else f"run {flow_id!r} sleeps at {node!r}{_until(deadline)}; a worker goes on with it then, "
            f"or flow.resume({flow_id!r})"
        )


def _until(deadline: float | None) -> str:
    try:
        return f" until {datetime.fromtimestamp(deadline or 0, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError):
        return " beyond the year 9999"


class RunExists(NodeFlowError, ValueError):
    """A run of this id exists already, or a state that is no run; it was left alone."""

    def __init__(self, flow_id: str, *, state_only: bool = False) -> None:
        self.flow_id = flow_id
        #: There is a state, but no run.
        self.state_only = state_only
        super().__init__(
            f"{_only_a_state(flow_id)}, or give another flow_id"
            if state_only
            else f"run {flow_id!r} exists already; go on with flow.resume({flow_id!r}) or run(if_exists='resume'), "
            "or give another flow_id"
        )


class UnknownRun(NodeFlowError, LookupError):
    """No run of this id exists: it was never started, or it ended and was not kept."""

    def __init__(self, flow_id: str, *, state_only: bool = False) -> None:
        self.flow_id = flow_id
        #: There is a state, but no run.
        self.state_only = state_only
        super().__init__(
            f"{_only_a_state(flow_id)}, and then start the run"
            if state_only
            else f"there is no run {flow_id!r} in this storage; start it with flow.run(shared, storage=..., "
            f"flow_id={flow_id!r}), or keep finished runs with keep=..."
        )


def _only_a_state(flow_id: str) -> str:
    return (
        f"there is no run {flow_id!r} in this storage, only a state that update_state() or merge_state() made; "
        f"remove it with StateStorage(storage).cleanup({flow_id!r})"
    )


class RunFinished(NodeFlowError, RuntimeError):
    """The run has ended: there is nothing left to answer or to resume."""

    def __init__(self, flow_id: str, wait_id: str | None = None) -> None:
        self.flow_id = flow_id
        #: The question that was answered too late, if another run of the same id has begun since.
        self.wait_id = wait_id
        super().__init__(
            f"run {flow_id!r} has finished; keep=True (or seconds) keeps its final state for a resume"
            if wait_id is None
            else f"{wait_id!r} belongs to an earlier run {flow_id!r}, which has ended, so nothing was answered; "
            f"flow.status({flow_id!r}) tells what the present run waits for"
        )


class FlowChanged(NodeFlowError, ValueError):
    """A run was begun with another graph than the flow has now; it was left as it was."""

    def __init__(self, flow_id: str, differences: list[str]) -> None:
        self.flow_id, self.differences = flow_id, differences
        super().__init__(
            f"run {flow_id!r} was begun with another graph: {'; '.join(differences)}; finish it with the graph "
            "it was begun with (give the new one another name), or remove it with StateStorage(storage).cleanup()"
        )
