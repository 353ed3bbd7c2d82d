"""A line of execution of a durable run: the outermost one, or a parallel branch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepwell.codec.values import step
from stepwell.nodes.engine.journal import Journal, is_inside
from stepwell.nodes.engine.position import Cursor

if TYPE_CHECKING:
    from stepwell.nodes.engine.plan import Graph, Stage
    from stepwell.nodes.engine.runner import Run
    from stepwell.slot import Sealed

__all__ = ["DurableCursor", "Line"]

_IMMUTABLE = frozenset({str, int, float, bool, type(None), bytes})


class DurableCursor(Cursor):
    """A position that also knows its line."""

    __slots__ = ("line",)

    def __init__(self, run: Run, node: str, line: Line) -> None:
        super().__init__(run, node)
        self.line = line


class Line:
    """Where one line stands. Every method takes the journal from one consistent point to the next."""

    def __init__(self, journal: Journal, name: str, state: dict[Any, Any], parent: Line | None = None) -> None:
        self.journal = journal
        self.name = name
        #: The state that this line works on: the shared one, or a branch's own copy.
        self.state = state
        self.parent = parent
        #: Where the run was left, until the walk has got there again.
        self._resumed_at = journal.positions.get(name)
        #: Of a branch: its own fields, each with the part that keeps it.
        self._fields: dict[Any, _Field] = {}
        if parent is not None:
            self._restore()

    def enter(self, graph: Graph) -> tuple[Stage, bool]:
        """Where in a graph to begin, and whether the run was left inside that node."""
        at, start = self._resumed_at, graph.start
        assert start is not None
        if at is None:
            return start, False
        for stage in graph.stages:
            if stage.path == at:
                self._resumed_at = None
                return stage, stage.durable is not None and at in self.journal.open
            if is_inside(at, stage.path):
                return stage, True
        # This graph was not begun when the run was left.
        self._resumed_at = None
        return start, False

    def begin(self, stage: Stage, visit: int, prep_res: Any, inside: Any = True) -> None:
        """Go into a node that holds others, or that does its work bit by bit."""
        journal = self.journal
        if self.parent is not None:
            self._note_fields(stage.path)
        if stage.keeps_prep and prep_res is not None:
            journal.put(stage.key, "prep", 0, prep_res)
        journal.visits[stage.index] = visit
        if stage.graph is not None:
            assert stage.graph.start is not None
            journal.positions[self.name] = stage.graph.start.path
        else:
            journal.positions[self.name] = stage.path
            journal.open[stage.path] = inside

    def end(self, stage: Stage, action: Any) -> None:
        """The nodes inside a flow have ended; its ``post`` has yet to choose the edge."""
        if stage.key:
            self.journal.positions[self.name] = stage.path
        self.journal.open[stage.key] = action

    def complete(self, stage: Stage, visit: int, following: Stage | None) -> None:
        """A node has completed, and the next one has been chosen."""
        journal, path = self.journal, stage.path
        if self.parent is not None:
            self._note_fields(stage.path)
        journal.visits[stage.index] = visit
        journal.trail.append(path)
        if journal.open:
            journal.open = {name: value for name, value in journal.open.items() if not is_inside(name, path)}
        if len(journal.positions) > 1:
            for name in [name for name in journal.positions if name and is_inside(name, path)]:
                del journal.positions[name]
        journal.drop(path)
        if following is not None:
            journal.positions[self.name] = following.path

    async def save(self, node: str) -> None:
        """Commit where the run stands."""
        if self.parent is None:
            await self.journal.save(node)
        else:
            await self.journal.save_whole(node)

    # Branches

    def ended(self) -> bool:
        """Whether this branch had ended when the run was left."""
        return self.name in self.journal.open

    def end_branch(self, action: Any) -> None:
        """The branch has come to its end."""
        self._note_fields(self.name)
        self.journal.positions.pop(self.name, None)
        self.journal.open[self.name] = action

    def _restore(self) -> None:
        for part in self.journal.parts_of(self.name, "field"):
            key, *rest = part
            value = _GONE if not rest else rest[0] if len(rest) == 1 else _AS_BEFORE
            if value is _GONE:
                self.state.pop(key, None)
            elif value is not _AS_BEFORE:
                self.state[key] = value
            self._fields[key] = _Field(len(self._fields), None, value)

    def _note_fields(self, node: str) -> None:
        """Keep what this branch has set or deleted, as parts of its own."""
        assert self.parent is not None
        base, state = self.parent.state, self.state
        for key, value in state.items():
            known = self._fields.get(key)
            if base.get(key, _GONE) is not value:
                if known is None or known.value is not value or type(value) not in _IMMUTABLE:
                    self._keep(node, key, known, value, [key, value])
            elif known is not None and known.value is not _AS_BEFORE:
                self._keep(node, key, known, _AS_BEFORE, [key, None, True])
        if base.keys() - state.keys() or self._fields:
            for key in [*base, *self._fields]:
                known = self._fields.get(key)
                if key not in state and (known is None or known.value is not _GONE):
                    self._keep(node, key, known, _GONE, [key])

    def _keep(self, node: str, key: Any, known: _Field | None, value: Any, part: list[Any]) -> None:
        journal = self.journal
        number = len(self._fields) if known is None else known.number
        # The part is [key, value]; its reader knows the value by its key.
        text = journal.seal(node, f"field:{self.name}:{number}", part, lambda at: f"${step(key)}{at[3:]}")
        if known is None or known.text != text:
            journal.put(self.name, "field", number, text)
        self._fields[key] = _Field(number, text, value)


class _Field:
    """A field of a branch as it was last kept."""

    __slots__ = ("number", "text", "value")

    def __init__(self, number: int, text: Sealed | None, value: Any) -> None:
        self.number = number
        self.text = text
        self.value = value


_GONE: Any = object()
#: A field that has become what it was before the branch began.
_AS_BEFORE: Any = object()
