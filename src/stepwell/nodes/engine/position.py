"""The position of a run, and ``step()``, which returns it."""

from __future__ import annotations

import contextlib
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepwell.errors import UsageError

if TYPE_CHECKING:
    from stepwell.nodes.engine.branch import Branch
    from stepwell.nodes.engine.execution import Execution

__all__ = ["Cursor", "Step", "current", "enter", "leave", "step"]


@dataclass(frozen=True, slots=True)
class Step:
    """The step that is running."""

    #: The id of the run.
    flow_id: str
    #: The path of the node: its name, after the names of the nested flows around it.
    node: str
    #: The visit number of this node in the run, from 1.
    visit: int
    #: The item's index in its batch, from 0; ``None`` outside a batch.
    item: int | None
    #: The attempt number, from 1.
    attempt: int

    @property
    def id(self) -> str:
        """``flow_id/node/visit/item``: equal for every attempt, so it can serve as an idempotency key."""
        place = f"{self.flow_id}/{self.node}/{self.visit}"
        return place if self.item is None else f"{place}/{self.item}"


@dataclass(slots=True, eq=False)
class Cursor:
    """The position of one branch of an execution, which the runner moves; :meth:`step` makes a value of it."""

    run: Execution
    node: str
    visit: int = 1
    item: int | None = None
    attempt: int = 1
    #: The branch of a durable run.
    branch: Branch | None = None

    def copy(self) -> Cursor:
        return Cursor(self.run, self.node, self.visit, self.item, self.attempt, self.branch)

    def step(self) -> Step:
        return Step(self.run.flow_id, self.node, self.visit, self.item, self.attempt)


_current: ContextVar[Cursor] = ContextVar("stepwell.nodes.engine.position")


def enter(cursor: Cursor) -> Token[Cursor]:
    """Make this the position of the current context."""
    return _current.set(cursor)


def leave(token: Token[Cursor]) -> None:
    """Undo an :func:`enter`."""
    # A discarded coroutine is closed in another context, where the token is not valid.
    with contextlib.suppress(ValueError):
        _current.reset(token)


def current() -> Cursor | None:
    """Return the position of the current context, or ``None`` outside a run."""
    return _current.get(None)


def step() -> Step:
    """Return the current step of the calling node, in threads and executors too."""
    cursor = current()
    if cursor is None:
        raise UsageError("step() was called outside a run; call it in prep, exec or post of a node")
    return cursor.step()
