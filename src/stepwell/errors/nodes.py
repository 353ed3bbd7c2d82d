"""Errors of node flows, raised by their nodes and their graphs."""

from __future__ import annotations

from typing import Any

from stepwell._secrets import quoted
from stepwell.errors.base import StepwellError
from stepwell.errors.storage import EncodeError


class Unstorable(EncodeError):
    """The state after a node of a durable run cannot be stored; a resume runs that node again.

    Example::

        class Connect(Node):
            def post(self, shared, prep_res, exec_res):
                shared["connection"] = object()

        with pytest.raises(Unstorable):
            await linear(Connect, name="connect").run({}, storage=storage)
    """

    def __init__(self, node: str, path: str, type_name: str, why: str, *, signal_to: str | None = None) -> None:
        super().__init__(path, type_name, why)
        #: The path of the node; empty for the initial state, the params and signals.
        self.node = node
        where = f"after node {quoted(node)}" if node else "at the start"
        if signal_to is not None:
            where = f"to run {quoted(signal_to)}"
        self.args: tuple[Any, ...] = (f"{where}: {path} ({type_name}) {why}",)


class NodeFlowError(StepwellError):
    """The base of the errors of node flows and their runs.

    Example::

        try:
            await flow.resume("order-42")
        except NodeFlowError as error:
            print(type(error).__name__, error)
    """


class InvalidAnswer(NodeFlowError, ValueError):
    """An answer or a signal does not fit the ``accepts=`` of its ``Wait``; nothing was stored.

    Example::

        flow = linear(Wait("amount", accepts=int), name="approve", storage=storage)
        try:
            await flow.run({}, flow_id="order-42")
        except Parked as parked:
            with pytest.raises(InvalidAnswer, match="Expected"):
                await flow.answer(parked.id, "many")
    """

    def __init__(self, flow_id: str, node: str, problem: str, *, signal: str | None = None) -> None:
        self.flow_id = flow_id
        #: The path of the node that waits.
        self.node = node
        #: What does not fit, and where in the value.
        self.problem = problem
        what = "answer to" if signal is None else f"signal {quoted(signal)} for"
        super().__init__(
            f"the {what} {quoted(node)} of run {quoted(flow_id)} does not fit: {problem}; nothing was stored, and the "
            "run still waits"
        )


class InvalidGraph(NodeFlowError, ValueError):
    """The graph of a flow is invalid; no node has run.

    Example::

        with pytest.raises(InvalidGraph):
            await NodeFlow().run({})
    """

    def __init__(self, flow: str, problems: list[str]) -> None:
        self.flow = flow
        self.problems = problems
        super().__init__(f"flow {quoted(flow)} cannot run: {'; '.join(problems)}")


class InvalidAction(NodeFlowError, TypeError):
    """``post`` of a node returned something that is not an action.

    Example::

        class Wrong(Node):
            def post(self, shared, prep_res, exec_res):
                return 42

        with pytest.raises(InvalidAction):
            await linear(Wrong, Read).run({})
    """

    def __init__(self, node: str, type_name: str) -> None:
        self.node = node
        self.type_name = type_name
        super().__init__(
            f"post of node {quoted(node)} returned {type_name}; return an action (a string, END or None), "
            "or a pair (action, {field: value}) to change the shared state"
        )


class UnknownAction(NodeFlowError, LookupError):
    """A node returned an action that has no edge.

    Example::

        class Choose(Node):
            def post(self, shared, prep_res, exec_res):
                return "retry"

        with pytest.raises(UnknownAction):
            await linear(Choose, Read).run({})
    """

    def __init__(self, node: str, action: str, known: list[str]) -> None:
        self.node = node
        self.action = action
        self.known = known
        super().__init__(
            f"node {quoted(node)} returned {quoted(action)}, but its edges are {known}; add an edge for it, "
            "return END to end the flow, or give the flow on_unknown_action='end' or 'default'"
        )


class InvalidItems(NodeFlowError, TypeError):
    """``prep`` of a batch returned something that is not a collection of items.

    Example::

        class Count(BatchNode):
            def prep(self, shared):
                return 42

        with pytest.raises(InvalidItems):
            await linear(Count).run({})
    """

    def __init__(self, node: str, type_name: str, hint: str) -> None:
        self.node = node
        self.type_name = type_name
        self.hint = hint
        super().__init__(
            f"prep of batch {quoted(node)} returned {type_name}, which is not a collection of items; {hint}"
        )


class NodeTimeout(NodeFlowError, TimeoutError):
    """One attempt of a node's ``exec`` took longer than its timeout.

    Example::

        class Slow(Node):
            async def exec(self, prep_res):
                await asyncio.sleep(10)

        with pytest.raises(NodeTimeout):
            await linear(Slow(timeout=0.01)).run({})
    """

    def __init__(self, node: str, timeout: float) -> None:
        self.node = node
        self.timeout = timeout
        super().__init__(f"exec of node {quoted(node)} took longer than its timeout of {timeout:g} s")


class TooManySteps(NodeFlowError, RuntimeError):
    """A flow visited more nodes than its ``max_steps``.

    Example::

        node = Read()
        node >> node
        with pytest.raises(TooManySteps):
            await NodeFlow(node, max_steps=100).run({})
    """

    def __init__(self, flow: str, max_steps: int, node: str) -> None:
        self.flow = flow
        self.max_steps = max_steps
        self.node = node
        super().__init__(
            f"flow {quoted(flow)} has visited {max_steps} nodes, and the next one is {quoted(node)}; "
            "if this is not an endless loop, increase max_steps"
        )


class MergeConflict(NodeFlowError, ValueError):
    """Two parallel branches changed the same field to different values, and it has no merge function.

    Example::

        class One(Node):
            def post(self, shared, prep_res, exec_res):
                shared["answer"] = type(self).__name__

        class Two(One):
            pass

        with pytest.raises(MergeConflict):
            await linear(Parallel(One, Two)).run({})
    """

    def __init__(self, node: str, field: object, branches: list[str]) -> None:
        self.node = node
        self.field = field
        self.branches = branches
        super().__init__(
            f"branches {branches} of {quoted(node)} all changed {quoted(field)}; let only one of them write "
            "it, or give "
            f"a merge function: parallel(..., merge={{{quoted(field)}: function_of_the_list_of_values}})"
        )


class WorkCancelled(NodeFlowError, RuntimeError):
    """A node, an item or a branch awaited something that was cancelled, but the run was not.

    Example::

        class Wait(Node):
            async def exec(self, prep_res):
                task = asyncio.ensure_future(asyncio.sleep(10))
                task.cancel()
                await task

        with pytest.raises(WorkCancelled):
            await linear(Wait).run({})
    """

    def __init__(self, place: str) -> None:
        self.place = place
        super().__init__(f"{place} awaited something that was cancelled, but the run was not cancelled")


class NodeExited(NodeFlowError, RuntimeError):
    """A node of a durable run raised ``SystemExit`` or a similar exception, so that its run has failed.

    Example::

        class Exit(Node):
            async def exec(self, prep_res):
                raise SystemExit("no more work")

        with pytest.raises(NodeExited):
            await linear(Exit, name="exit").run({}, storage=storage)
    """

    def __init__(self, place: str, type_name: str, message: str) -> None:
        self.place = place
        self.type_name = type_name
        super().__init__(
            f"{place} raised {type_name}{f': {message}' if message else ''}; a node cannot end the program, so its "
            "run fails. Raise an Exception in the node instead"
        )


class KeptError(NodeFlowError):
    """An error that was stored with a run: the name of its type, and its message.

    Example::

        error = KeptError("ValueError", "the card was declined")
        assert error.type_name == "ValueError"
    """

    def __init__(self, type_name: str, message: str) -> None:
        self.type_name = type_name
        self.message = message
        super().__init__(f"{type_name}: {message}")


class ExecutorError(NodeFlowError, RuntimeError):
    """A node, an item, a result or an error cannot be pickled for an executor.

    Example::

        class Double(BatchNode):
            def prep(self, shared):
                return [lambda: 42]

            def exec(self, item):
                return 2 * item()

        with ProcessPoolExecutor(1) as pool, pytest.raises(ExecutorError):
            await linear(Double(executor=pool)).run({})
    """

    def __init__(self, node: str, what: str, why: str) -> None:
        self.node = node
        self.what = what
        self.why = why
        super().__init__(
            f"{what} of node {quoted(node)} cannot be sent between processes ({why}); "
            "make it picklable, or use threads: executor=ThreadPoolExecutor()"
        )
