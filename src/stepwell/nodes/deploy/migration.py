"""The migration of runs of an earlier revision of their flow."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from stepwell._secrets import quoted
from stepwell.errors import EncodeError, FlowChanged, InvalidOption, TooLarge
from stepwell.nodes.deploy.position import Position, branch_of
from stepwell.nodes.run.monitor import OpenWait, Progress, progress_of, waits_of
from stepwell.nodes.run.parts import is_inside
from stepwell.nodes.run.table import Status
from stepwell.options import check_whole

if TYPE_CHECKING:
    from stepwell.nodes.run.journal import Journal

__all__ = ["Migrate", "StoredRun", "check_deploy_options", "migrated"]


#: The highest revision. Workers look for runs of each earlier revision.
MOST_REVISIONS = 1000


@dataclass(slots=True, kw_only=True)
class StoredRun:
    """A run of an earlier revision, as ``NodeFlow(migrate=...)`` gets it.

    Set ``position`` to move the run to the start of another node. The progress inside the node that it leaves is
    dropped: its wait, the results of its batch, and the fields that its branches have changed. Change ``shared``
    in place, or set it.

    Example::

        def migrate(run: StoredRun) -> None:
            if run.position == "OldName":
                run.position = "Read"
            run.shared.setdefault("text", "")

        flow = linear(Read, name="words", revision=2, migrate=migrate)
    """

    flow_id: str
    #: The revision that it was stored with.
    revision: int
    status: Status
    #: The path of the next node, after ``renamed``.
    position: str
    #: The next node of each parallel branch that has begun and has not ended; set one to move that branch.
    branches: dict[str, str]
    #: The shared state.
    shared: dict[Any, Any]
    #: The waits without an answer.
    waits: tuple[OpenWait, ...]
    #: The progress of each batch that is half-way.
    progress: Mapping[str, Progress]


#: The function that moves a run of an earlier revision to the present one.
Migrate = Callable[[StoredRun], None]


def check_deploy_options(revision: object, migrate: object, renamed: Mapping[str, str] | None) -> None:
    """Raise ``InvalidOption`` unless these can be options of a flow."""
    check_whole(
        revision,
        f"revision={{}}: give a whole number from 1 to {MOST_REVISIONS}, and increase it by 1",
        least=1,
        most=MOST_REVISIONS,
    )
    if migrate is not None:
        if not callable(migrate) or inspect.iscoroutinefunction(migrate):
            raise InvalidOption(f"migrate={quoted(migrate)}: give a def function that takes the run")
        if revision == 1:
            raise InvalidOption("migrate= is called for runs of an earlier revision; give revision=2 or above")
    if not isinstance(renamed or {}, Mapping) or not all(
        isinstance(path, str) and path.strip("/") == path != "" for pair in (renamed or {}).items() for path in pair
    ):
        raise InvalidOption(f"renamed={quoted(renamed)}: give a dict of old paths and their new paths")


async def migrated(journal: Journal, stored: Position, revision: int, migrate: Migrate) -> Position:
    """Return the position that ``migrate`` gave a run, and set its shared state; raise ``FlowChanged`` if it fails."""
    run = StoredRun(
        flow_id=journal.flow_id,
        revision=revision,
        status=journal.status,
        position=stored.positions[""],
        branches={name: path for name, path in stored.positions.items() if name},
        # A copy, because a commit before the run continues must not write what migrate() has changed.
        shared=journal.slot.copy_of_data(),
        waits=waits_of(stored.open),
        progress=progress_of(stored.open),
    )
    try:
        result = cast(Callable[[StoredRun], Any], migrate)(run)
    except Exception as error:
        raise _failed(journal, f"migrate() raised {type(error).__name__}: {error}") from error
    if result is not None:
        if inspect.iscoroutine(result):
            result.close()
        raise _failed(journal, f"migrate() returned a {type(result).__name__}; change the run in place, return None")
    moved = _moved(journal, stored, run)
    # Encoded here too, so that a value that cannot be stored is an error of migrate().
    slot, before = journal.slot, journal.slot.data
    slot.data = dict(run.shared)
    try:
        await slot.changes()
    except (EncodeError, TooLarge) as error:
        raise _failed(journal, f"migrate() left a value that cannot be stored: {error}") from error
    finally:
        slot.data = before
    journal.shared = run.shared
    return moved


def _moved(journal: Journal, stored: Position, run: StoredRun) -> Position:
    """Return the position after a migration."""
    if not isinstance(run.shared, dict):
        raise _failed(journal, f"migrate() set run.shared to a {type(run.shared).__name__}; set it to a dict")
    for name, path in (("position", run.position), *run.branches.items()):
        branch = "" if name == "position" else name
        if branch not in stored.positions:
            raise _failed(
                journal, f"migrate() set run.branches[{quoted(branch)}], which is not a branch that is running"
            )
        if path != stored.positions[branch] and (path not in journal.shape or branch_of(path) != branch):
            where = f"branch {quoted(branch)}" if branch else "the flow"
            raise _failed(journal, f"migrate() moved the run to {quoted(path)}, which is not a node of {where}")
    positions, opened = dict(stored.positions), dict(stored.open)
    if run.position != positions[""]:
        positions, opened = {"": run.position}, {}
    else:
        for branch in [name for name in run.branches if run.branches[name] != positions[name]]:
            opened = {path: inside for path, inside in opened.items() if path == branch or not is_inside(path, branch)}
            positions = {
                name: path for name, path in positions.items() if name == branch or not is_inside(name, branch)
            } | {branch: run.branches[branch]}
    if positions != stored.positions:
        # It does not wait there any more.
        journal.status = "running"
    starts = {name: start for name, start in stored.starts.items() if name.rpartition("/")[0] in opened}
    return replace(stored, positions=positions, open=opened, starts=starts)


def _failed(journal: Journal, problem: str) -> FlowChanged:
    return FlowChanged(journal.flow_id, [problem], stuck=True)
