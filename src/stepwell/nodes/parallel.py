"""Parallel branches, their join, and the merge of the fields that they changed."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from stepwell._secrets import quoted
from stepwell.codec.values import encode
from stepwell.errors import EncodeError, InvalidGraph, InvalidOption, MergeConflict
from stepwell.nodes.flow import NodeFlow
from stepwell.nodes.graph.base import BaseNode
from stepwell.nodes.run.branch import Branch, Park
from stepwell.nodes.walk.execution import Cursor, enter
from stepwell.nodes.walk.on_error import (
    Failed,
    OnError,
    add_note,
    check_on_error,
    conclude,
    inside_cancelled,
    together,
)
from stepwell.nodes.walk.runner import caught_in, walk
from stepwell.nodes.walk.workgroup import Halt
from stepwell.record import Limits

if TYPE_CHECKING:
    from stepwell.nodes.graph.plan import Build, Graph, Stage, Strategy

__all__ = ["Parallel", "parallel"]

logger: logging.Logger = logging.getLogger(__name__)

Merge = Mapping[str, Callable[[list[Any]], Any]]


class Parallel(BaseNode):
    """A node that runs several branches concurrently and completes when all have ended.

    A branch is a node with the nodes that its edges lead to, or a flow. Each branch works on its own shallow
    copy of the shared state. When all have ended, the fields that they changed or deleted are merged into the
    shared state. If several branches changed a field to different values, the function in ``merge`` is called
    with the list of the values, in the order of the branches; without one, :class:`MergeConflict` is raised.
    Values are compared by type and value: ``1``, ``True`` and ``1.0`` differ. ``post`` gets the last actions of the
    branches.

    Raises ``InvalidGraph`` if it gets no branch.

    :param on_error: as for a batch: ``"stop"`` cancels and awaits the other branches and raises the first
        error, ``"collect"`` lets them end and raises an ``ExceptionGroup``, ``"skip"`` continues with the
        branches that succeeded.

    Example::

        class CountLetters(Node):
            def post(self, shared, prep_res, exec_res):
                shared["letters"] = len(shared["text"])

        final = await linear(Parallel(CountWords, CountLetters)).run({"text": "a b"})
        assert (final["words"], final["letters"]) == (2, 3)
    """

    _settings: ClassVar[tuple[str, ...]] = (*BaseNode._settings, "branches", "merge", "on_error")
    _shape: ClassVar[str] = "parallel"

    def __init__(
        self,
        *branches: BaseNode | type[BaseNode],
        name: str | None = None,
        merge: Merge | None = None,
        on_error: OnError = "stop",
    ) -> None:
        super().__init__(name=name)
        if not branches:
            raise InvalidGraph(name or "Parallel", ["parallel() needs at least one branch"])
        check_on_error(on_error)
        if not all(callable(function) for function in (merge or {}).values()):
            raise InvalidOption("merge= needs a function for each field, which takes the list of the branches' values")
        self.branches: tuple[NodeFlow, ...] = tuple(NodeFlow(start=branch) for branch in branches)
        self.merge: Merge = dict(merge or {})
        self.on_error: OnError = on_error

    def _strategy(self, build: Build, stage: Stage) -> Strategy | None:
        build.want_loop_for.append(f"{stage.path} runs branches concurrently")
        stage.leaf = False
        outside, build.concurrent = build.concurrent, True
        stage.extra = [
            build.graph(flow, stage.path, f"{stage.path}/{number}/") for number, flow in enumerate(self.branches)
        ]
        build.concurrent = outside
        if build.durable:
            stage.durable = run_branches_durable
            stage.keeps_prep = stage.prep is not BaseNode.prep
        return run_branches


parallel = Parallel


async def run_branches_durable(stage: Stage, cursor: Cursor, node: Any, shared: Any, inside: bool) -> tuple[Any, Any]:
    """Run the branches of a durable run, each from its own position; return the result of ``prep`` and the actions."""
    assert cursor.branch is not None
    prep_res = await cursor.branch.prep(stage, cursor.visit, node, shared, inside)
    return prep_res, await run_branches(stage, cursor, node, prep_res, shared)


async def _run_branch(stage: Stage, number: int, cursor: Cursor, state: dict[Any, Any], params: Any) -> Any:
    """Walk one branch on its own state, and return its last action."""
    graph: Graph = stage.extra[number]
    branch = None
    if cursor.branch is not None:
        journal = cursor.branch.journal
        branch = Branch(journal, f"{stage.path}/{number}", state, cursor.branch)
        if branch.name in journal.open:
            # It had ended when the run was interrupted.
            return journal.open[branch.name]
    own = Cursor(cursor.run, stage.path, branch=branch, caught=cursor.caught)
    if branch is not None:
        own.caught = caught_in(branch) or cursor.caught
    enter(own)
    action = await walk(graph, own, state, params)
    if branch is not None:
        branch.end_branch(action)
        await branch.save(branch.name)
    return action


async def run_branches(stage: Stage, cursor: Cursor, node: Any, prep_res: Any, shared: Any) -> list[Any]:
    """Run all branches, merge their changes, and return their last actions in the order of the branches."""
    run = cursor.run
    graphs: list[Graph] = stage.extra
    outcomes: list[Any] = [None] * len(graphs)
    states: dict[int, dict[Any, Any]] = {}
    failures: list[Exception] = []
    parked: list[Park] = []

    async def branch(number: int) -> None:
        state = dict(shared)
        try:
            outcomes[number] = await _run_branch(stage, number, cursor, state, node.params)
            states[number] = state
            return
        except Park as park:
            parked.append(park)
            return
        except Exception as error:  # noqa: BLE001 - conclude() applies on_error
            failure = error
        except asyncio.CancelledError as cancelled:
            if run.cancelling():
                raise
            failure = inside_cancelled(f"branch {number} of {quoted(stage.path)}", cancelled)
        add_note(failure, f"branch {number} of {quoted(stage.path)}")
        failures.append(failure)
        outcomes[number] = Failed(_branch_name(graphs[number]), failure)
        if node.on_error == "stop":
            raise Halt
        if node.on_error == "skip":
            # Without a post() that reads the actions, only the log shows it.
            name, kind = _branch_name(graphs[number]), type(failure).__name__
            logger.warning("skipped branch %r of %s, which failed with %s", name, stage.path, kind)

    await together([branch(number) for number in range(len(graphs))], failures)
    if parked:
        # The branches are merged when the last one has ended; a resume runs failed ones again.
        conclude(node.on_error, failures, f"of {len(graphs)} branches of {quoted(stage.path)}")
        raise parked[0]
    conflict: Exception | None = None
    if node.on_error != "stop" or not failures:
        try:
            _merge(stage, node.merge, shared, {_branch_name(graphs[n]): states[n] for n in sorted(states)})
        except Exception as error:  # noqa: BLE001 - conclude() raises it with the errors of the branches
            conflict = error
    conclude(node.on_error, failures, f"of {len(graphs)} branches of {quoted(stage.path)}", fatal=conflict)
    return outcomes


def _branch_name(graph: Graph) -> str:
    assert graph.start is not None
    return graph.start.path


_DELETED: Any = object()


def _merge(stage: Stage, merge: Merge, shared: dict[Any, Any], states: Mapping[str, dict[Any, Any]]) -> None:
    """Merge the changes of the branches into the shared state; change nothing if two of them conflict."""
    changes: dict[Any, dict[str, Any]] = {}
    for name, state in states.items():
        for field, value in state.items():
            if field not in shared or not _same(shared[field], value):
                changes.setdefault(field, {})[name] = value
        for field in shared.keys() - state.keys():
            changes.setdefault(field, {})[name] = _DELETED
    merged: dict[Any, Any] = {}
    for field, values in changes.items():
        first, *others = values.values()
        if field in merge:
            merged[field] = merge[field]([value for value in values.values() if value is not _DELETED])
        elif all(_same(first, other) for other in others):
            merged[field] = first
        else:
            raise MergeConflict(stage.path, field, list(values))
    for field, value in merged.items():
        if value is _DELETED:
            del shared[field]
        else:
            shared[field] = value


def _same(one: Any, other: Any) -> bool:
    """Return whether both have the same stored form: equal values of equal types, at every level.

    Identity is not enough, because a resumed run has decoded copies.
    """
    try:
        return _alike(one, other)
    except RecursionError:
        return False


def _alike(one: Any, other: Any) -> bool:
    if one is other:
        return True
    kind = type(one)
    if kind is not type(other):
        return False
    if kind in (str, int, bytes):
        return bool(one == other)
    if kind is float:
        # 0.0 and -0.0 are equal, and stored differently.
        return bool(one == other) and math.copysign(1, one) == math.copysign(1, other)
    if kind in (list, tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    if kind is dict:
        keys = {key: key for key in other}
        return len(one) == len(other) and all(
            key in keys and _alike(key, keys[key]) and _alike(value, other[key]) for key, value in one.items()
        )
    try:
        return encode(one, Limits()) == encode(other, Limits())
    except EncodeError:
        # Only in a run without a storage. The comparison of arrays has no truth value.
        with suppress(Exception):
            return bool(one == other)
        return False
