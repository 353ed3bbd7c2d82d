"""Deploys: fits the stored position of a run to the present graph of its flow.

A run needs only a part of the graph: the next node of each branch, the nodes that it is inside of, and the nodes around
them. If all of them still exist with a kind that fits, the run continues, and its next commit stores the new graph.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from stepwell._secrets import quoted

if TYPE_CHECKING:
    from stepwell.nodes.graph.plan import Stage
    from stepwell.nodes.graph.shape import Shape

__all__ = [
    "Position",
    "ambiguous_names",
    "around",
    "branch_of",
    "kind_of",
    "misfits",
    "new_path",
    "renamed_position",
    "stale_parts",
    "starts_of",
]

#: The words for the kinds of nodes.
_KINDS: Final = {"parallel": "parallel node"}


@dataclass(slots=True)
class Position:
    """The position of a stored run, with the paths of the graph that it was stored with."""

    #: The next node of each branch, as in ``Journal.positions``.
    positions: dict[str, str]
    #: As in ``Journal.open``.
    open: dict[str, Any]
    #: By path, without zeros.
    visits: dict[str, int]
    #: The first node of each branch of the parallel nodes that were entered.
    starts: dict[str, str] = field(default_factory=dict)
    #: The kinds of the nodes that the run is inside of.
    kinds: dict[str, str] = field(default_factory=dict)

    @property
    def used(self) -> set[str]:
        """The paths that the run needs: its positions, the nodes that it is inside of, and its ended branches."""
        branches = [self.starts[path] for path in self.open if path in self.starts]
        return {*self.positions.values(), *(path for path in self.open if path and path not in self.starts), *branches}


def branch_of(path: str) -> str:
    """Return the branch that a node belongs to; "" is the main one. The name of a branch ends with its number."""
    steps = path.split("/")[:-1]
    while steps and not steps[-1].isdigit():
        steps.pop()
    return "/".join(steps)


def around(path: str) -> Iterator[str]:
    """Yield the paths of the flows, parallel nodes and branches around a path, the innermost first, "" last."""
    while path:
        path = path.rpartition("/")[0]
        yield path


def misfits(stored: Position, shape: Shape) -> list[str]:
    """Return why a stored position does not fit a graph, as sentences."""
    problems: list[str] = []
    for branch, path in stored.positions.items():
        if branch and (problem := _misfit_of_branch(stored, branch, shape)) is not None:
            problems.append(problem)
        elif path not in shape and path not in stored.open:
            problems.append(f"it is at {quoted(path)}, which is not a node of the flow any more")
        elif path in shape and branch_of(path) != branch:
            problems.append(
                f"it is at {quoted(path)}, which is in a branch of a parallel node that the run has not entered"
            )
    for path, inside in stored.open.items():
        if path in stored.starts:
            problem = _misfit_of_branch(stored, path, shape)
            start = stored.starts[path]
            if problem is None and (start not in shape or branch_of(start) != path):
                problem = f"branch {quoted(path)} has ended, and its first node {quoted(start)} is not in it any more"
        elif path and stored.positions.get(branch_of(path)) != path:
            problem = f"it is inside {quoted(path)} and not at it; check renamed="
        else:
            problem = _misfit_inside(path, inside, stored.kinds.get(path), shape)
        if problem is not None:
            problems.append(problem)
    problems += [problem for path in stored.open if (problem := _misfit_of_branches(stored, path, shape))]
    return list(dict.fromkeys(problems))


def _misfit_of_branch(stored: Position, branch: str, shape: Shape) -> str | None:
    """Return why a branch that has begun or ended does not exist in a graph."""
    parallel, _, number = branch.rpartition("/")
    if kind_of(shape, parallel) != "parallel":
        return f"it is inside the branches of {quoted(parallel)}, which {_now(shape, parallel)}"
    if stored.open.get(parallel) is not True or f"start {number}" not in shape[parallel][1]:
        return f"it is in branch {quoted(branch)}, which is not a branch of {quoted(parallel)} any more"
    return None


def _misfit_of_branches(stored: Position, parallel: str, shape: Shape) -> str | None:
    """Return why the branches of a parallel node can be confused, if their number has changed."""
    before = [start for branch, start in stored.starts.items() if branch.rpartition("/")[0] == parallel]
    if not before or kind_of(shape, parallel) != "parallel":
        return None
    begun = [branch for branch in stored.starts if branch in stored.open or branch in stored.positions]
    after = [target for action, target in shape[parallel][1].items() if action.startswith("start ")]
    names = [start.rpartition("/")[2] for start in after]
    if len(before) == len(after) or not any(branch.rpartition("/")[0] == parallel for branch in begun):
        return None
    if len(set(names)) == len(names) and set(before) <= set(after):
        # Each branch can be recognised by its first node, and none has moved.
        return None
    return f"it is inside the branches of {quoted(parallel)}, which had {len(before)} branches and has {len(after)}"


def _misfit_inside(path: str, inside: Any, kind: str | None, shape: Shape) -> str | None:
    """Return why the progress inside a node of a kind does not fit its present kind."""
    if kind_of(shape, path) == kind:
        return None
    if isinstance(inside, dict):
        doing = "waits for an answer at" if inside["id"] else "sleeps at"
        doing = "waits for a child run at" if "step" in inside else doing
    elif isinstance(inside, list):
        doing = "is half-way in the batch"
    elif inside is True:
        doing = "is inside the branches of"
    else:
        doing = "has completed the nodes inside the flow"
    return f"it {doing} {quoted(path)}, which {_now(shape, path)}"


def ambiguous_names(
    used: Iterable[str], renamed: Mapping[str, str], old: Shape, stages: Mapping[str, Stage]
) -> dict[str, str]:
    """Return which of the used paths may mean another node now, by their new paths, each with a sentence.

    Nodes without a name are numbered by class (``Say``, ``Say-2``). If the flow has more or fewer of them than before,
    a number may belong to another node. An entry of ``renamed`` decides it.
    """
    problems: dict[str, str] = {}
    for path in sorted(used):
        before, after = path, new_path(path, renamed)
        place = after
        while after and before not in renamed:
            (above, _, name), (parent, _, _) = before.rpartition("/"), after.rpartition("/")
            stage = stages.get(after)
            if stage is not None and stage.node._given_name() is None:
                kind = stage.node._kind()
                known, present = _numbered(old, above, kind), _numbered(stages, parent, kind)
                if known != present:
                    problems[place] = (
                        f"it is at {quoted(path)}, and the flow had {len(known)} of {quoted(kind)} without a name and "
                        f"has {len(present)}, so {quoted(name)} may be another node; name them, or use renamed="
                    )
            before, after = above, parent
    return problems


def _numbered(paths: Iterable[str], parent: str, kind: str) -> set[str]:
    """Return the names inside a flow that nodes of a class have if they are given none."""
    prefix = f"{parent}/" if parent else ""
    pattern = re.compile(re.escape(kind) + r"(-\d+)?")
    return {
        path.removeprefix(prefix)
        for path in paths
        if path.startswith(prefix) and pattern.fullmatch(path.removeprefix(prefix))
    }


def new_path(path: str, renamed: Mapping[str, str]) -> str:
    """Return the path of a node after a rename of it, or of a node around it."""
    for old in (path, *around(path)):
        if old in renamed:
            return renamed[old] + path[len(old) :]
    return path


def renamed_position(stored: Position, renamed: Mapping[str, str]) -> tuple[Position, list[str]]:
    """Return a position with the new paths, and the problems of two paths that became one."""
    visits: dict[str, int] = {}
    for path, count in stored.visits.items():
        after = new_path(path, renamed)
        visits[after] = visits.get(after, 0) + count
    moved = Position(
        positions={new_path(name, renamed): new_path(path, renamed) for name, path in stored.positions.items()},
        open={new_path(path, renamed): inside for path, inside in stored.open.items()},
        visits=visits,
        starts={new_path(branch, renamed): new_path(start, renamed) for branch, start in stored.starts.items()},
        kinds={new_path(path, renamed): kind for path, kind in stored.kinds.items()},
    )
    lost = len(moved.positions) < len(stored.positions) or len(moved.open) < len(stored.open)
    return moved, ["renamed= gives two nodes that it is inside of the same path"] if lost else []


def kind_of(shape: Shape, path: str) -> str | None:
    """Return the kind of a node, or ``None`` if there is no such node."""
    return str(shape[path][0]) if path in shape else None


def _now(shape: Shape, path: str) -> str:
    kind = kind_of(shape, path)
    return "is not a node of the flow any more" if kind is None else f"is a {_KINDS.get(kind, kind)} now"


def starts_of(graph: Shape, opened: Mapping[str, Any]) -> dict[str, str]:
    """Return the first node of each branch of the parallel nodes that a run has entered."""
    return {
        f"{path}/{action.removeprefix('start ')}": target
        for path, inside in opened.items()
        if inside is True and kind_of(graph, path) == "parallel"
        for action, target in graph[path][1].items()
        if action.startswith("start ")
    }


def stale_parts(stored: Position, parts: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the names of parts that no node of the run needs: of an interrupted ``prep``, or of a node it has left."""
    needed = {*stored.open, *stored.starts, *stored.positions}
    for path in stored.positions.values():
        needed.update(around(path))
    return [
        name
        for owner, names in parts.items()
        for name in names
        if owner not in needed and name.partition(":")[0] in ("items", "done", "field", "prep")
    ]
