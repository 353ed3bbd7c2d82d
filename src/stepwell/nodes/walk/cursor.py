"""The position of a run."""

from __future__ import annotations

import contextlib
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from stepwell.nodes.run.branch import Branch
    from stepwell.nodes.walk.execution import Execution

__all__ = ["Cursor", "CursorValues", "current", "enter", "leave"]


class CursorValues(NamedTuple):
    """The values of a cursor, which can be sent to another process."""

    flow_id: str
    node: str
    visit: int
    item: int | None
    attempt: int


@dataclass(slots=True, eq=False)
class Cursor:
    """The position of one branch of an execution, which the runner moves."""

    run: Execution
    node: str
    visit: int = 1
    item: int | None = None
    attempt: int = 1
    #: The branch of a durable run.
    branch: Branch | None = None
    #: The attempts of the last ``exec`` that ended.
    attempts: int = 1

    def copy(self) -> Cursor:
        return Cursor(self.run, self.node, self.visit, self.item, self.attempt, self.branch)

    def values(self) -> CursorValues:
        return CursorValues(self.run.flow_id, self.node, self.visit, self.item, self.attempt)


_current: ContextVar[Cursor] = ContextVar("stepwell.nodes.walk.cursor")


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
