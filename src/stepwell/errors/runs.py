"""Errors of the runs of node flows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from stepwell._secrets import quoted
from stepwell.errors.nodes import NodeFlowError
from stepwell.errors.storage import Busy
from stepwell.errors.stored_data import CorruptRecord


class RunReplaced(CorruptRecord):
    """The state of a run was replaced from outside, so its position is lost.

    Example::

        try:
            await flow.resume("order-42")
        except RunReplaced:
            print("its state was overwritten; start a new run")
        except UnknownRun:
            print("it has ended")
    """

    def __init__(self, place: str, flow_id: str) -> None:
        super().__init__(place, "its graph", "is missing")
        self.flow_id = flow_id
        self.args: tuple[Any, ...] = (
            f"the state of run {quoted(flow_id)} was replaced from outside, not merged, so the run cannot "
            "continue; remove "
            f"it with StateStorage(storage).cleanup({quoted(flow_id)}) and run it again. Use merge_state() to "
            "change fields "
            "of a run: update_state() replaces the whole record",
        )


class RunBusy(Busy):
    """Another runner holds the run; nothing was changed, and an answer was not stored.

    Example::

        try:
            await flow.resume("order-42")
        except RunBusy:
            print("a worker runs it")
        except UnknownRun:
            print("it has ended")
    """

    def __init__(self, flow_id: str, waited: float, *, answer: bool = False, partition: str | None = None) -> None:
        super().__init__(flow_id, waited)
        self.flow_id = flow_id
        #: Whether the call had an answer to a wait, which was not stored.
        self.answer = answer
        #: The partition that another run has, if this run waits for it.
        self.partition: str | None = partition
        self.args: tuple[Any, ...] = (
            f"run {quoted(flow_id)} waits for its partition {partition}, in which another run comes before "
            "it; a worker "
            "starts it when that run has ended"
            if partition is not None
            else f"run {quoted(flow_id)} is still running elsewhere after {waited:g} s, so the answer was not stored; "
            "flow.answer() stores it while the run is busy"
            if answer
            else f"run {quoted(flow_id)} is still running elsewhere after {waited:g} s, longer than the lease "
            "of a dead "
            "runner; leave it to its runner, flow.status() shows its progress",
        )


class Parked(NodeFlowError):
    """A run waits for an answer, for child runs or for time to pass. Its state is stored, and it can be resumed.

    Example::

        class Approve(Wait):
            def prep(self, shared):
                return "Approve it?"

        with pytest.raises(Parked) as caught:
            await linear(Approve("approved"), name="order").run({}, storage=storage, flow_id="order-42")
        assert caught.value.question == "Approve it?"
    """

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
            f"run {quoted(flow_id)} waits at {quoted(node)}; continue it with flow.resume({quoted(id)}, answer), "
            "in this process or in another one"
            if id
            else f"run {quoted(flow_id)} waits at {quoted(node)} for its child runs; a worker resumes it when "
            "they have ended"
            if for_children
            else f"run {quoted(flow_id)} sleeps at {quoted(node)}{_until(deadline)}; a worker resumes it then, "
            f"or flow.resume({quoted(flow_id)})"
        )


class RunPaused(Parked):
    """A run was paused. Its state is stored, and ``flow.resume(flow_id)`` continues it.

    Example::

        try:
            await flow.resume("order-42")
        except RunPaused as error:
            print(error.flow_id, "waits at", error.node)
        except UnknownRun:
            print("it has ended")
    """

    def __init__(self, flow_id: str, node: str) -> None:
        super().__init__("", flow_id, node, None, None)
        self.args: tuple[Any, ...] = (
            f"run {quoted(flow_id)} was paused at {quoted(node)}; continue it with flow.resume({quoted(flow_id)})",
        )


class RunExists(NodeFlowError, ValueError):
    """The id belongs to an existing run, or to a state that is not a run; nothing was changed.

    Example::

        await flow.submit({}, flow_id="order-42")
        with pytest.raises(RunExists):
            await flow.run({}, flow_id="order-42")
    """

    def __init__(
        self,
        flow_id: str,
        *,
        state_only: bool = False,
        flow: str | None = None,
        status: str | None = None,
        on_exists: str | None = None,
        differs: Sequence[str] | None = None,
    ) -> None:
        self.flow_id = flow_id
        #: There is a state, but no run.
        self.state_only = state_only
        #: The names of the fields that differ from the data that the run was submitted with; ``None`` if they were
        #: not compared, and empty if only their digest is known, because the run has started.
        self.differs: tuple[str, ...] | None = None if differs is None else tuple(differs)
        name = quoted(flow_id)
        if state_only:
            text = f"{_only_a_state(flow_id)}, or give another flow_id"
        elif flow is not None:
            text = f"run {name} exists already, as a run of flow {quoted(flow)}; give another flow_id"
        elif differs is not None:
            what = f" ({', '.join(map(quoted, differs))})" if differs else ""
            text = (
                f"run {name} exists already ({status}), and was submitted with other data{what}; give another flow_id, "
                "or submit(on_exists='return') for that run, 'replace' to change one that has not started, or "
                "'restart' for one that has ended"
            )
        elif on_exists == "replace":
            text = (
                f"run {name} has started (it is {status}), so its data was not replaced; give another flow_id, or "
                "submit(on_exists='restart') after its end"
            )
        elif on_exists is not None:
            text = f"run {name} exists already ({status}); give another flow_id, or submit(on_exists='return')"
        else:
            text = (
                f"run {name} exists already; continue it with flow.resume({name}) or "
                "run(if_exists='resume'), or give another flow_id"
            )
        super().__init__(text)


class UnknownRun(NodeFlowError, LookupError):
    """No run of this id exists: it was never started, or it ended and was not kept.

    Example::

        with pytest.raises(UnknownRun):
            await flow.resume("order-99")
    """

    def __init__(self, flow_id: str, *, state_only: bool = False) -> None:
        self.flow_id = flow_id
        #: There is a state, but no run.
        self.state_only = state_only
        super().__init__(
            f"{_only_a_state(flow_id)}, and then start the run"
            if state_only
            else f"there is no run {quoted(flow_id)} in this storage; check the id and the storage. A run that has "
            "finished is removed, unless keep=... keeps it"
        )


class UnknownSchedule(NodeFlowError, LookupError):
    """No schedule of this name exists.

    Example::

        with pytest.raises(UnknownSchedule):
            await Schedules(storage).pause("nightly")
    """

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(
            f"there is no schedule {quoted(name)} in this storage; add it with worker(..., schedules=[...]) or "
            "Schedules(storage).add(...)"
        )


class RunFinished(NodeFlowError, RuntimeError):
    """The run has ended, so it cannot be answered or resumed.

    Example::

        await flow.run({}, flow_id="order-42", keep=True)
        with pytest.raises(RunFinished):
            await RunHandle("order-42", flow).answer("yes")
    """

    def __init__(self, flow_id: str, wait_id: str | None = None) -> None:
        self.flow_id = flow_id
        #: The id of the wait that was answered too late, if another run of the same id has begun since.
        self.wait_id = wait_id
        super().__init__(
            f"run {quoted(flow_id)} has finished; keep=True (or seconds) keeps its final state for a resume"
            if wait_id is None
            else f"{quoted(wait_id)} belongs to an earlier run {quoted(flow_id)}, which has ended, so the "
            "answer was not stored; "
            f"flow.status({quoted(flow_id)}) shows the waits of the current run"
        )


class RunFailed(NodeFlowError, RuntimeError):
    """A run that this call waited for has failed, with the last error of its record.

    Example::

        class Fail(Node):
            async def exec(self, prep_res):
                raise ValueError("no such order")

        failing = linear(Fail, name="failing", storage=storage)
        handle = await failing.submit({})
        async with worker([failing]):
            with pytest.raises(RunFailed):
                await handle.result(timeout=60)
    """

    def __init__(self, flow_id: str, node: str, type_name: str, message: str, *, undone: bool = False) -> None:
        self.flow_id: str = flow_id
        #: Whether its completed nodes were undone, so that it cannot be resumed.
        self.undone: bool = undone
        #: The path of the node that failed.
        self.node: str = node
        #: The name of the error's class.
        self.type_name: str = type_name
        self.message: str = message
        following = (
            f"its completed nodes were undone; start a new run, or call flow.retry({quoted(flow_id)}, at=node)"
            if undone
            else f"fix the cause, then call flow.resume({quoted(flow_id)})"
        )
        super().__init__(
            f"run {quoted(flow_id)} failed at node {quoted(node)} with {type_name}: {message}; {following}"
        )


class RunCancelled(NodeFlowError, RuntimeError):
    """The run was cancelled, so it has no result and cannot be resumed.

    Example::

        handle = await flow.submit({}, flow_id="order-42", keep=True)
        await handle.cancel("the customer called")
        with pytest.raises(RunCancelled):
            await handle.result(timeout=60)
    """

    def __init__(self, flow_id: str, reason: str | None = None) -> None:
        self.flow_id: str = flow_id
        self.reason: str | None = reason
        super().__init__(f"run {quoted(flow_id)} was cancelled{f': {reason}' if reason else ''}")


class RunStuck(NodeFlowError, RuntimeError):
    """The run cannot continue until somebody changes the flow or the run; its record has the reason.

    Example::

        try:
            await RunHandle("order-42", flow).result(timeout=60)
        except RunStuck as error:
            print(error.reason)
        except UnknownRun:
            print("it has ended")
    """

    def __init__(self, flow_id: str, reason: str) -> None:
        self.flow_id: str = flow_id
        self.reason: str = reason
        # The reason of an unknown outcome says what to call.
        hint = "" if "flow.retry(" in reason else f"; fix the cause, then call flow.resume({quoted(flow_id)})"
        super().__init__(f"run {quoted(flow_id)} is stuck: {reason}{hint}")


class FlowChanged(NodeFlowError, ValueError):
    """A stored run does not fit the present graph of the flow; its position and its state were not changed.

    Example::

        try:
            await flow.resume("order-42")
        except FlowChanged as error:
            print(error.differences)
        except UnknownRun:
            print("it has ended")
    """

    def __init__(self, flow_id: str, differences: list[str], *, stuck: bool = False, asked: str = "resumed") -> None:
        self.flow_id: str = flow_id
        #: What does not fit, as sentences.
        self.differences: list[str] = differences
        #: Whether its status is ``stuck`` now; otherwise the record was not changed.
        self.stuck: bool = stuck
        #: What the call wanted: ``"resumed"``, ``"cancelled"``, ``"answered"``, ...
        self.asked: str = asked
        super().__init__(self._text())

    def _text(self) -> str:
        return (
            f"run {quoted(self.flow_id)} does not fit the present graph of its flow: "
            f"{'; '.join(self.differences)}; give "
            f"the flow renamed= or revision= with migrate=, then call flow.resume({quoted(self.flow_id)}), or "
            "remove the run "
            "with StateStorage(storage).cleanup()"
            if self.stuck
            else f"run {quoted(self.flow_id)} cannot be {self.asked} with this flow: {'; '.join(self.differences)}"
        )


class RunIsNewer(FlowChanged):
    """A newer release of the flow has written the run. It was left unchanged, for a process with that release.

    Example::

        try:
            await flow.resume("order-42")
        except RunIsNewer:
            print("deploy the newest release here too")
        except UnknownRun:
            print("it has ended")
    """

    def _text(self) -> str:
        return (
            f"a newer release has written run {quoted(self.flow_id)}, so it was left unchanged: "
            f"{'; '.join(self.differences)}; resume it with that release"
        )


def _until(deadline: float | None) -> str:
    try:
        return f" until {datetime.fromtimestamp(deadline or 0, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return " beyond the year 9999"


def _only_a_state(flow_id: str) -> str:
    return (
        f"there is no run {quoted(flow_id)} in this storage, only a state from update_state() or merge_state(); "
        f"remove it with StateStorage(storage).cleanup({quoted(flow_id)})"
    )
