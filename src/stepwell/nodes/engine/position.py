"""The position of a run, and ``step()``, which returns it to the code of a node."""

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
    #: The node's name; inside a nested flow with that flow's name and a slash before it.
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


class Cursor:
    """The position of one branch of an execution: cheap to move, and turned into a :class:`Step` on demand."""

    __slots__ = ("attempt", "branch", "item", "node", "run", "visit")

    def __init__(
        self,
        run: Execution,
        node: str,
        visit: int = 1,
        item: int | None = None,
        attempt: int = 1,
        *,
        branch: Branch | None = None,
    ) -> None:
        self.run = run
        self.node = node
        self.visit = visit
        self.item = item
        self.attempt = attempt
        #: In a durable run: the branch whose position this is.
        self.branch = branch

    def copy(self) -> Cursor:
        return Cursor(self.run, self.node, self.visit, self.item, self.attempt, branch=self.branch)

    def step(self) -> Step:
        return Step(self.run.flow_id, self.node, self.visit, self.item, self.attempt)


_current: ContextVar[Cursor] = ContextVar("stepwell.nodes.engine.position")


def enter(cursor: Cursor) -> Token[Cursor]:
    """Make this the position of the running context."""
    return _current.set(cursor)


def leave(token: Token[Cursor]) -> None:
    """Undo an :func:`enter`."""
    # A discarded coroutine is closed in another context, where the token is not valid.
    with contextlib.suppress(ValueError):
        _current.reset(token)


def current() -> Cursor | None:
    """Return the position of the running context, or ``None`` outside a run."""
    return _current.get(None)


def step() -> Step:
    """Return the step that the calling code belongs to, in threads and executors too."""
    cursor = current()
    if cursor is None:
        raise UsageError("step() is called outside a run; call it in prep, exec or post of a node")
    return cursor.step()
