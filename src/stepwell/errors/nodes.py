"""Errors of node flows and their runs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from stepwell.errors.base import StepwellError
from stepwell.errors.storage import Busy, CorruptRecord, EncodeError


class Unstorable(EncodeError):
    """The state after a node of a durable run cannot be stored; a resume runs that node again."""

    def __init__(self, node: str, path: str, type_name: str, why: str) -> None:
        super().__init__(path, type_name, why)
        #: The path of the node; empty for the initial state and the params.
        self.node = node
        self.args: tuple[Any, ...] = (
            f"{f'after node {node!r}' if node else 'at the start'}: {path} ({type_name}) {why}",
        )


class RunReplaced(CorruptRecord):
    """The state of a run was replaced from outside, so its position is lost."""

    def __init__(self, place: str, flow_id: str) -> None:
        super().__init__(place, "its graph", "is missing")
        self.flow_id = flow_id
        self.args: tuple[Any, ...] = (
            f"the state of run {flow_id!r} was replaced from outside, not merged, so the run cannot continue; remove "
            f"it with StateStorage(storage).cleanup({flow_id!r}) and run it again. Use merge_state() to change fields "
            "of a run: update_state() replaces the whole record",
        )


class RunBusy(Busy):
    """Another runner holds the run; nothing was changed, and an answer was not stored."""

    def __init__(self, flow_id: str, waited: float, *, answer: bool = False, partition: str | None = None) -> None:
        super().__init__(flow_id, waited)
        self.flow_id = flow_id
        #: Whether the call had an answer to a wait, which was not stored.
        self.answer = answer
        #: The partition that another run has, if this run waits for it.
        self.partition: str | None = partition
        self.args: tuple[Any, ...] = (
            f"run {flow_id!r} waits for its partition {partition}, in which another run comes before it; a worker "
            "starts it when that run has ended"
            if partition is not None
            else f"run {flow_id!r} is still running elsewhere after {waited:g} s, so the answer was not stored; "
            "flow.answer() stores it while the run is busy"
            if answer
            else f"run {flow_id!r} is still running elsewhere after {waited:g} s, longer than the lease of a dead "
            "runner; leave it to its runner, flow.status() shows its progress",
        )


class NodeFlowError(StepwellError):
    """The base of the errors of node flows and their runs."""


class InvalidGraph(NodeFlowError, ValueError):
    """The graph of a flow is invalid; no node has run."""

    def __init__(self, flow: str, problems: list[str]) -> None:
        self.flow = flow
        self.problems = problems
        super().__init__(f"flow {flow!r} cannot run: {'; '.join(problems)}")


class InvalidAction(NodeFlowError, TypeError):
    """``post`` of a node returned something that is not an action."""

    def __init__(self, node: str, type_name: str) -> None:
        self.node = node
        self.type_name = type_name
        super().__init__(
            f"post of node {node!r} returned {type_name}; return an action (a string, END or None), "
            "or a pair (action, {field: value}) to change the shared state"
        )


class UnknownAction(NodeFlowError, LookupError):
    """A node returned an action that has no edge."""

    def __init__(self, node: str, action: str, known: list[str]) -> None:
        self.node = node
        self.action = action
        self.known = known
        super().__init__(
            f"node {node!r} returned {action!r}, but its edges are {known}; add an edge for it, "
            "return END to end the flow, or give the flow on_unknown_action='end' or 'default'"
        )


class InvalidItems(NodeFlowError, TypeError):
    """``prep`` of a batch returned something that is not a collection of items."""

    def __init__(self, node: str, type_name: str, hint: str) -> None:
        self.node = node
        self.type_name = type_name
        self.hint = hint
        super().__init__(f"prep of batch {node!r} returned {type_name}, which is not a collection of items; {hint}")


class NodeTimeout(NodeFlowError, TimeoutError):
    """One attempt of a node's ``exec`` took longer than its timeout."""

    def __init__(self, node: str, timeout: float) -> None:
        self.node = node
        self.timeout = timeout
        super().__init__(f"exec of node {node!r} took longer than its timeout of {timeout:g} s")


class TooManySteps(NodeFlowError, RuntimeError):
    """A flow visited more nodes than its ``max_steps``."""

    def __init__(self, flow: str, max_steps: int, node: str) -> None:
        self.flow = flow
        self.max_steps = max_steps
        self.node = node
        super().__init__(
            f"flow {flow!r} has visited {max_steps} nodes, and the next one is {node!r}; "
            "if this is not an endless loop, increase max_steps"
        )


class MergeConflict(NodeFlowError, ValueError):
    """Two parallel branches changed the same field to different values, and it has no merge function."""

    def __init__(self, node: str, field: object, branches: list[str]) -> None:
        self.node = node
        self.field = field
        self.branches = branches
        super().__init__(
            f"branches {branches} of {node!r} all changed {field!r}; let only one of them write it, or give "
            f"a merge function: parallel(..., merge={{{field!r}: function_of_the_list_of_values}})"
        )


class WorkCancelled(NodeFlowError, RuntimeError):
    """A node, an item or a branch awaited something that was cancelled, but the run was not."""

    def __init__(self, place: str) -> None:
        self.place = place
        super().__init__(f"{place} awaited something that was cancelled, but the run was not cancelled")


class NodeExited(NodeFlowError, RuntimeError):
    """A node of a durable run raised ``SystemExit`` or a similar exception, so that its run has failed."""

    def __init__(self, place: str, type_name: str, message: str) -> None:
        self.place = place
        self.type_name = type_name
        super().__init__(
            f"{place} raised {type_name}{f': {message}' if message else ''}; a node cannot end the program, so its "
            "run fails. Raise an Exception in the node instead"
        )


class KeptError(NodeFlowError):
    """An error that was stored with a run: the name of its type, and its message."""

    def __init__(self, type_name: str, message: str) -> None:
        self.type_name = type_name
        self.message = message
        super().__init__(f"{type_name}: {message}")


class ExecutorError(NodeFlowError, RuntimeError):
    """A node, an item, a result or an error cannot be pickled for an executor."""

    def __init__(self, node: str, what: str, why: str) -> None:
        self.node = node
        self.what = what
        self.why = why
        super().__init__(
            f"{what} of node {node!r} cannot be sent between processes ({why}); "
            "make it picklable, or use threads: executor=ThreadPoolExecutor()"
        )


class Parked(NodeFlowError):
    """A run waits for an answer, for child runs or for time to pass. Its state is stored, and it can be resumed."""

    def __init__(
        self,
        id: str,  # noqa: A002
        flow_id: str,
        node: str,
        question: Any,
        deadline: float | None,
        *,
        for_children: bool = False,
    ) -> None:
        #: The id of this wait, for ``flow.resume(parked.id, value)``; empty for a sleep and for a wait for children.
        self.id = id
        self.flow_id = flow_id
        #: The path of the node that waits.
        self.node = node
        #: The result of the node's ``prep``.
        self.question = question
        #: When the wait times out, in seconds since 1970 on the storage's clock.
        self.deadline = deadline
        super().__init__(
            f"run {flow_id!r} waits at {node!r}; continue it with flow.resume({id!r}, answer), "
            "in this process or in another one"
            if id
            else f"run {flow_id!r} waits at {node!r} for its child runs; a worker resumes it when they have ended"
            if for_children
            else f"run {flow_id!r} sleeps at {node!r}{_until(deadline)}; a worker resumes it then, "
            f"or flow.resume({flow_id!r})"
        )


class RunPaused(Parked):
    """A run was paused. Its state is stored, and ``flow.resume(flow_id)`` continues it."""

    def __init__(self, flow_id: str, node: str) -> None:
        super().__init__("", flow_id, node, None, None)
        self.args: tuple[Any, ...] = (
            f"run {flow_id!r} was paused at {node!r}; continue it with flow.resume({flow_id!r})",
        )


def _until(deadline: float | None) -> str:
    try:
        return f" until {datetime.fromtimestamp(deadline or 0, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError):
        return " beyond the year 9999"


class RunExists(NodeFlowError, ValueError):
    """The id belongs to an existing run, or to a state that is not a run; nothing was changed."""

    def __init__(self, flow_id: str, *, state_only: bool = False, flow: str | None = None) -> None:
        self.flow_id = flow_id
        #: There is a state, but no run.
        self.state_only = state_only
        super().__init__(
            f"{_only_a_state(flow_id)}, or give another flow_id"
            if state_only
            else f"run {flow_id!r} exists already, as a run of flow {flow!r}; give another flow_id"
            if flow is not None
            else f"run {flow_id!r} exists already; continue it with flow.resume({flow_id!r}) or "
            "run(if_exists='resume'), or give another flow_id"
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
            else f"there is no run {flow_id!r} in this storage; check the id and the storage. A run that has "
            "finished is removed, unless keep=... keeps it"
        )


class UnknownSchedule(NodeFlowError, LookupError):
    """No schedule of this name exists."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(
            f"there is no schedule {name!r} in this storage; add it with worker(..., schedules=[...]) or "
            "Schedules(storage).add(...)"
        )


def _only_a_state(flow_id: str) -> str:
    return (
        f"there is no run {flow_id!r} in this storage, only a state from update_state() or merge_state(); "
        f"remove it with StateStorage(storage).cleanup({flow_id!r})"
    )


class RunFinished(NodeFlowError, RuntimeError):
    """The run has ended, so it cannot be answered or resumed."""

    def __init__(self, flow_id: str, wait_id: str | None = None) -> None:
        self.flow_id = flow_id
        #: The id of the wait that was answered too late, if another run of the same id has begun since.
        self.wait_id = wait_id
        super().__init__(
            f"run {flow_id!r} has finished; keep=True (or seconds) keeps its final state for a resume"
            if wait_id is None
            else f"{wait_id!r} belongs to an earlier run {flow_id!r}, which has ended, so the answer was not stored; "
            f"flow.status({flow_id!r}) shows the waits of the current run"
        )


class RunFailed(NodeFlowError, RuntimeError):
    """A run that this call waited for has failed, with the last error of its record."""

    def __init__(self, flow_id: str, node: str, type_name: str, message: str) -> None:
        self.flow_id: str = flow_id
        #: The path of the node that failed.
        self.node: str = node
        #: The name of the error's class.
        self.type_name: str = type_name
        self.message: str = message
        super().__init__(
            f"run {flow_id!r} failed at node {node!r} with {type_name}: {message}; fix the cause, then call "
            f"flow.resume({flow_id!r})"
        )


class RunCancelled(NodeFlowError, RuntimeError):
    """The run was cancelled, so it has no result and cannot be resumed."""

    def __init__(self, flow_id: str, reason: str | None = None) -> None:
        self.flow_id: str = flow_id
        self.reason: str | None = reason
        super().__init__(f"run {flow_id!r} was cancelled{f': {reason}' if reason else ''}")


class RunStuck(NodeFlowError, RuntimeError):
    """The run cannot continue until somebody changes the flow or the run; its record has the reason."""

    def __init__(self, flow_id: str, reason: str) -> None:
        self.flow_id: str = flow_id
        self.reason: str = reason
        super().__init__(f"run {flow_id!r} is stuck: {reason}; fix the cause, then call flow.resume({flow_id!r})")


class FlowChanged(NodeFlowError, ValueError):
    """A stored run does not fit the present graph of the flow; its position and its state were not changed."""

    def __init__(self, flow_id: str, differences: list[str], *, stuck: bool = False) -> None:
        self.flow_id: str = flow_id
        #: What does not fit, as sentences.
        self.differences: list[str] = differences
        #: Whether its status is ``stuck`` now; otherwise the record was not changed.
        self.stuck: bool = stuck
        super().__init__(self._text())

    def _text(self) -> str:
        return (
            f"run {self.flow_id!r} does not fit the present graph of its flow: {'; '.join(self.differences)}; give "
            f"the flow renamed= or revision= with migrate=, then call flow.resume({self.flow_id!r}), or remove the run "
            "with StateStorage(storage).cleanup()"
            if self.stuck
            else f"run {self.flow_id!r} cannot be resumed with this flow: {'; '.join(self.differences)}"
        )


class RunIsNewer(FlowChanged):
    """A newer release of the flow has written the run. It was left unchanged, for a process with that release."""

    def _text(self) -> str:
        return (
            f"a newer release has written run {self.flow_id!r}, so it was left unchanged: "
            f"{'; '.join(self.differences)}; resume it with that release"
        )
